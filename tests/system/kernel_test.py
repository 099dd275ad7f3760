# SPDX-License-Identifier: Apache-2.0
"""What the kernel may do to a job: a clock set back, a worker held in it, a binding, no memory."""
from __future__ import annotations

import os
import re
import signal
import subprocess
import unittest
import uuid
from pathlib import Path

from harness import LIMIT, PROGRAM, STUB, Job, stat_of, stub, stuck, wait_until

CLOCK_STEP = STUB.parent / "libclock_step.so"


class ClockSetBack(unittest.TestCase):
    # Rank 0 sets the clock back by an hour when it is told to stop, because rank 1 has failed.
    WORKER = """
        [ "$TORCHELASTIC_RESTART_COUNT" = "$1" ] || exit 0
        [ "$RANK" = 1 ] && { until [ -e ready ]; do sleep 0.02; done; exit 3; }
        trap ': > stepped; exit 1' TERM
        : > ready
        while :; do sleep 0.02; done
        """

    def run_job(self, restarts: int, attempt: str) -> tuple[Job, int, dict]:
        script = self.WORKER.replace("$", "$$")
        job = self.enterContext(Job(
            "--nproc-per-node=2", f"--max-restarts={restarts}", "--report=report.json",
            "--log-dir=logs", "--no-python", "sh", "-c", script, "sh", attempt,
            env={"LD_PRELOAD": str(CLOCK_STEP), "CLOCK_STEP": "stepped",
                 "ASAN_OPTIONS": "verify_asan_link_order=0"}))
        code = job.end()
        self.assertTrue((job.folder / "stepped").exists(), job.errors())
        report = job.report()
        self.assertLess(report["finished"], report["started"])  # the step was seen at all
        return job, code, report

    def test_the_first_to_fail_stays_the_first(self) -> None:
        job, code, report = self.run_job(0, "0")
        self.assertEqual(code, 1, job.errors())
        self.assertEqual(report["culprit"]["rank"], 1)
        self.assertIn("rank 1 failed first: it ended with exit code 3", job.errors())
        root = job.errors().split("Root Cause")[1]
        self.assertRegex(root, r"rank      : 1 ")

    def test_restarts_and_the_ledger_go_on(self) -> None:
        job, code, report = self.run_job(1, "0")
        self.assertEqual(code, 0, job.errors())
        self.assertEqual(report["restarts"], 1)
        seconds = report["goodput"]["buckets_s"].values()
        self.assertTrue(all(one >= 0 for one in seconds), seconds)
        self.assertAlmostEqual(sum(seconds), report["goodput"]["elapsed_s"], places=6)
        self.assertTrue(all(a["ran_s"] >= 0 for a in report["attempts"]))


class HeldInTheKernel(unittest.TestCase):
    def start(self, *options: str, until: str = "never", **env: str) -> Job:
        """A worker in state D, which no signal but SIGKILL can end."""
        job = self.enterContext(Job(*options, *stub("ignore=TERM", "pid", f"vfork={until}",
                                                    "say=on", "stay"), env=env))
        pid = int(job.wait_for(r"^pid (\d+)")[0])
        wait_until(lambda: (stat_of(pid) or "?")[0] == "D", "the worker is held")
        return job

    def test_the_stop_is_bounded(self) -> None:
        job = self.start("--shutdown-timeout=1")
        job.stopped(1)
        job.nothing_left()
        self.assertIn("ended by SIGTERM", job.errors())

    def test_who_stays_there_is_reported_if_that_is_asked_for(self) -> None:
        job = self.start("--shutdown-timeout=1", "--max-restarts=3",
                         TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT="0.5").ended(1)
        job.nothing_left()
        self.assertIn("stuck in uninterruptible sleep (D-state)", job.errors())
        self.assertNotIn("Restarting the workers", job.errors())

    def test_it_goes_on_when_the_kernel_lets_it_go(self) -> None:
        job = self.start(until="go")
        (job.folder / "go").touch()
        job.wait_for("^on")


class Frozen(unittest.TestCase):
    """A frozen cgroup of version 1 is the one place where not even SIGKILL arrives."""

    def setUp(self) -> None:
        self.cgroup = Path("/sys/fs/cgroup/freezer") / f"elastrun-test-{uuid.uuid4().hex[:8]}"
        try:
            self.cgroup.mkdir()
        except OSError as error:
            self.skipTest(f"no cgroup v1 freezer that may be written: {error}")
        self.addCleanup(self.cgroup.rmdir)
        self.addCleanup(lambda: wait_until(
            lambda: not (self.cgroup / "cgroup.procs").read_text(), "the cgroup is empty"))
        self.addCleanup(self.freeze, "THAWED")

    def freeze(self, state: str) -> None:
        (self.cgroup / "freezer.state").write_text(state)

    def test_who_cannot_be_killed_is_named_and_left(self) -> None:
        """A worker, or one that has left its group."""
        worker = ("Process {0} did not exit after SIGKILL within 10.0 s",
                  "process {0} could not be killed.*: it hangs in the kernel",
                  "cannot end these processes of the job: {0} ")
        for step, name, said in (("pid", "pid", worker), ("child=setsid", "child", (
                r"Cannot end these processes of the job, not even by SIGKILL within 10.0 s: {0} \(",
                ))):
            with self.subTest(name), Job("--shutdown-timeout=1", *stub(step, "stay")) as job:
                pid = job.wait_for(rf"^{name} (\d+)")[0]
                (self.cgroup / "cgroup.procs").write_text(pid)
                self.freeze("FROZEN")
                wait_until(lambda: (self.cgroup / "freezer.state").read_text() == "FROZEN\n",
                           "frozen")
                job.stopped(1)
                for text in said:
                    self.assertRegex(job.errors(), text.format(pid))
                self.freeze("THAWED")
                job.nothing_left()


class ForeignProc(unittest.TestCase):
    """A pid namespace of its own, below the /proc of another."""

    def test_numbers_of_others_are_not_taken_for_ours(self) -> None:
        probe = subprocess.run(["unshare", "--pid", "--fork", "true"], capture_output=True)
        if probe.returncode != 0:
            self.skipTest("this user may not make pid namespaces")
        script = "setsid sh -c 'sleep 1; echo uploaded' & exit 0"
        done = subprocess.run(["unshare", "--pid", "--fork", PROGRAM, "--no-python", "sh", "-c",
                               script], capture_output=True, text=True, timeout=LIMIT)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(len(re.findall("/proc is not that of this pid namespace", done.stderr)), 1)
        self.assertNotIn("they have left", done.stderr)


class StuckFile(unittest.TestCase):
    def test_a_stdout_that_does_not_answer_deafens_nobody_and_loses_nothing(self) -> None:
        for options in ((), ("--tee=3", "--log-dir=logs")):
            with self.subTest(options), Job(
                    *options, *stub("say=first", "wait=go", "say=second", "complain=up",
                                    "on=TERM:0", "stay"),
                    env=stuck(file="out")) as job:
                job.wait_for("first")
                (job.folder / "stuck").touch()
                (job.folder / "go").touch()
                job.wait_for("up", path=job.err)
                job.process.send_signal(signal.SIGTERM)
                job.wait_for("closing signal SIGTERM", path=job.err)
                self.assertNotIn("second", job.output())
                (job.folder / "stuck").unlink()
                self.assertEqual(job.end(), 1, job.errors())
                self.assertIn("second", job.output())


class SmallMemoryFiles(unittest.TestCase):
    """As in a container: /dev/shm is small, and the job fills it."""

    def test_the_error_file_is_elsewhere(self) -> None:
        mount = "mount -t tmpfs -o size=64m tmpfs /dev/shm && "
        if subprocess.run(["unshare", "--mount", "sh", "-c", mount + "true"],
                          capture_output=True).returncode != 0:
            self.skipTest("this user may not mount")
        line = mount + 'exec "$@"'
        without = {name: "" for name in ("TMPDIR", "TEMP", "TMP")}
        done = subprocess.run(["unshare", "--mount", "sh", "-c", line, "sh", PROGRAM,
                               *stub("env=TORCHELASTIC_ERROR_FILE")], capture_output=True,
                              text=True, timeout=LIMIT, env={**os.environ, **without})
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, "^TORCHELASTIC_ERROR_FILE=/tmp/elastrun_")


class Memory(unittest.TestCase):
    def limited_cgroup(self) -> Path:
        """A new memory cgroup with a limit, of version 1 or 2; removed at the end."""
        name = f"elastrun-test-{uuid.uuid4().hex[:8]}"
        why = []
        for root, limit in ((Path("/sys/fs/cgroup"), "memory.max"),
                            (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes")):
            if not (root / "cgroup.procs").exists():
                continue
            try:
                (root / name).mkdir()
            except OSError as error:
                why.append(str(error))
                continue
            self.addCleanup((root / name).rmdir)
            try:
                (root / name / limit).write_text(str(512 << 20))  # room for a sanitised agent
                return root / name
            except OSError as error:
                why.append(str(error))
        self.skipTest(f"no memory cgroup that may be written: {'; '.join(why)}")
        raise AssertionError

    def test_the_kernels_kill_for_want_of_memory_is_recognised(self) -> None:
        cgroup = self.limited_cgroup()

        def enter() -> None:
            (cgroup / "cgroup.procs").write_text(str(os.getpid()))

        with Job("--report=report.json", *stub("memory=2000", "stay"),
                 before=enter).ended(1) as job:
            report = job.report()
            self.assertEqual(report["failures"][0]["signal"], signal.SIGKILL.name)
            self.assertRegex(report["failures"][0]["out_of_memory"], "memory")
            self.assertIn("was killed by SIGKILL: the kernel killed it", job.errors())
            self.assertIn("raise the memory limit", job.errors())
        wait_until(lambda: not (cgroup / "cgroup.procs").read_text(), "the cgroup is empty")


class Binding(unittest.TestCase):
    def test_workers_run_where_the_dry_run_says(self) -> None:
        for mode in ("node", "socket", "exclusive", "core-complex"):
            with self.subTest(mode):
                options = (f"--numa-binding={mode}", *stub("cpus"))
                with Job("--dry-run", *options) as plan:
                    self.assertEqual(plan.end(), 0, plan.errors())
                    (said,) = plan.lines(r"^  binding      CPUs (\S+)$")
                    self.assertEqual(list(plan.temporary.iterdir()), [])
                with Job(*options).ended() as job:
                    (bound,) = job.lines(r"^cpus (.*)$")
                self.assertEqual([int(cpu) for cpu in bound.split()], self.numbers(said))

    @staticmethod
    def numbers(text: str) -> list[int]:
        """ "0-2,5" as numbers."""
        found = []
        for part in text.split(","):
            ends = [int(end) for end in re.split("-", part)]
            found += range(ends[0], ends[-1] + 1)
        return found

    def test_more_workers_than_cores_cannot_have_one_each(self) -> None:
        with Job("--nproc-per-node=4096", "--numa-binding=exclusive", "--dry-run",
                 *stub("cpus")).ended(1) as job:
            self.assertIn("needs a physical core for each", job.errors())
