# SPDX-License-Identifier: Apache-2.0
"""elastrun under a real Slurm: the same command without node counts finds its place.

Usage: slurm_test.py ELASTRUN ELASTRUNCTL. Ends with 77 and the reason where Slurm cannot be
started.
"""
from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import time
import unittest
from collections.abc import Callable
from pathlib import Path

import cluster

ELASTRUN, CTL = "", ""
SHOW = 'echo "at $GROUP_RANK: rank $RANK of $WORLD_SIZE, run $TORCHELASTIC_RUN_ID"'

# Counts SIGUSR1, and says at SIGTERM how often it has heard it.
NOTER = """
import os, signal, sys
heard = 0
def note(number, frame):
    global heard
    heard += 1
    open(sys.argv[1] + '/heard', 'w').close()
def end(number, frame):
    open(sys.argv[1] + f'/saved{heard}', 'w').close()
    os._exit(0)
signal.signal(signal.SIGUSR1, note)
signal.signal(signal.SIGTERM, end)
open(sys.argv[1] + '/' + os.environ['TORCHELASTIC_RUN_ID'] + '.runs', 'w').close()
while True: signal.pause()
"""

# Trains, does not mind the signals that Slurm sends to all, and saves when it is asked.
SAVER = """
import os, signal, sys, time
import elastrun
signal.signal(signal.SIGTERM, lambda *_: None)
rank = os.environ['RANK']
open(f'{sys.argv[1]}/runs.{rank}', 'w').close()
for step in range(1000000):
    time.sleep(0.01)
    if elastrun.should_save(step):
        with open(f'{sys.argv[1]}/saved.{rank}', 'a') as file:
            file.write(f'{step}\\n')
        time.sleep(0.5)
        elastrun.checkpoint_done(step)
        break
"""


class UnderSlurm(unittest.TestCase):
    slurm: cluster.Cluster

    def srun(self, *words: str, **more: object) -> subprocess.CompletedProcess[str]:
        done = self.slurm.run("srun", "-N2", "-n2", *words, **more)
        if done.returncode not in (0, 1):
            print(self.slurm.logs(), file=sys.stderr)
        return done

    def test_both_nodes_meet_without_being_told(self) -> None:
        done = self.srun(ELASTRUN, "--nproc-per-node", "2", "--no-python", "sh", "-c", SHOW)
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = sorted(done.stdout.splitlines())
        places = [line.split(", run")[0] for line in lines]
        self.assertEqual(places, [f"at {r // 2}: rank {r} of 4" for r in range(4)], done.stderr)
        (run_id,) = {line.split(", run ")[1] for line in lines}
        self.assertRegex(run_id, r"^slurm-elastrun-root-\d+\.0$")
        self.assertNotIn("has no secret", done.stderr)  # MUNGE takes its place

    def until(self, condition: Callable[[], object], what: Callable[[], str] = str) -> None:
        end = time.monotonic() + 120
        while not condition():
            self.assertLess(time.monotonic(), end, f"{what()}\n{self.slurm.logs()}")
            time.sleep(0.05)

    def batch(self, script: Path, *words: str, **more: object) -> str:
        """The number of a batch job, which ends with the test."""
        batch = self.slurm.run("sbatch", "--parsable", *words, str(script), **more)
        self.assertEqual(batch.returncode, 0, batch.stderr)
        self.addCleanup(self.slurm.run, "scancel", batch.stdout.strip())
        return batch.stdout.strip()

    def requeued(self, job: str, said: Callable[[], str] = str) -> None:
        self.until(lambda: "Restarts=1" in self.slurm.run("scontrol", "show", "job", job).stdout,
                   said)
        self.slurm.run("scancel", job)

    def waiting_job(self, registry: Path, go: Path) -> tuple[subprocess.Popen, dict]:
        """A running job of both nodes and what its host has registered."""
        script = f"until [ -e {go} ]; do sleep 0.05; done"
        env = self.slurm.env | {"ELASTRUN_RUNTIME_DIR": str(registry), "LOGLEVEL": "INFO"}
        job = subprocess.Popen(["srun", "-N2", "-n2", ELASTRUN, "--no-python", "sh", "-c", script],
                               env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(job.communicate)
        self.addCleanup(go.touch)
        while True:
            self.assertIsNone(job.poll())
            for path in registry.glob("*.json"):
                entry = json.loads(path.read_text())
                if entry["phase"] == "running":
                    return job, entry
            time.sleep(0.05)

    def test_agents_know_each_other_by_munge_and_no_stranger(self) -> None:
        go = self.slurm.folder / "go"
        job, entry = self.waiting_job(self.slurm.folder / "registry", go)
        where, run_id = entry["endpoint"], entry["run_id"]
        stranger = self.slurm.run(ELASTRUN, "--nnodes", "2", "--rdzv-backend", "c10d",
                                  "--rdzv-endpoint", where, "--rdzv-id", run_id, "--rdzv-conf",
                                  "is_host=0", "--no-python", "true")
        self.assertEqual(stranger.returncode, 1)
        self.assertIn("MUNGE", stranger.stderr)
        asked = self.slurm.run(CTL, "status", where)
        self.assertEqual(asked.returncode, 0, asked.stderr)
        self.assertIn(f'job "{run_id}" at {where}: running', asked.stdout)
        go.touch()
        _, said = job.communicate(timeout=90)
        self.assertEqual(job.returncode, 0, said)
        host = self.slurm.run("hostname").stdout.strip()
        self.assertEqual(len(re.findall(
            rf'node \S+ of the job "{run_id}" joins from \S+ \(host {host}, user \S+\)', said)),
            2, said)

    def test_without_munged_the_nodes_meet_as_elsewhere(self) -> None:
        hide = 'mount -t tmpfs none /run/munge && exec "$0" "$@"'
        done = self.srun("unshare", "-m", "sh", "-c", hide, ELASTRUN, "--no-python", "true",
                         env={"LOGLEVEL": "DEBUG"})
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("agents are not authenticated by MUNGE", done.stderr)
        self.assertIn("has no secret", done.stderr)

    def test_an_explicit_option_wins(self) -> None:
        done = self.srun(ELASTRUN, "--standalone", "--no-python", "sh", "-c", SHOW)
        self.assertEqual(done.returncode, 0, done.stderr)
        places = {line.split(", run")[0] for line in done.stdout.splitlines()}
        self.assertEqual(places, {"at 0: rank 0 of 1"})

    def test_explain_names_slurm(self) -> None:
        done = self.srun(ELASTRUN, "--explain", "--no-python", "true")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("SLURM_", done.stdout)

    def test_a_failure_on_one_node_ends_the_step_on_both(self) -> None:
        script = '[ "$RANK" = 1 ] && exit 3; sleep 600'
        done = self.srun(ELASTRUN, "--no-python", "sh", "-c", script, limit=90)
        self.assertEqual(done.returncode, 1, done.stderr)

    def test_a_signal_that_announces_the_end_ends_nothing(self) -> None:
        """scancel --signal reaches launcher and workers alike: each worker hears it once."""
        folder = self.slurm.folder / "announced"
        folder.mkdir()
        (folder / "train.py").write_text(NOTER)
        env = self.slurm.env | {"LOGLEVEL": "INFO"}
        job = subprocess.Popen(["srun", "-N1", "-n1", ELASTRUN, str(folder / "train.py"),
                                str(folder)], env=env, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True)
        self.addCleanup(job.communicate)
        self.addCleanup(job.kill)
        while not (runs := list(folder.glob("*.runs"))):
            self.assertIsNone(job.poll())
            time.sleep(0.05)
        number = re.fullmatch(r"slurm-.*-(\d+)\.0-[0-9a-f]{8}\.runs", runs[0].name)[1]
        self.slurm.run("scancel", "--signal=USR1", number)
        for line in job.stderr:
            if "SIGUSR1 was sent to every process" in line:
                break
        while not (folder / "heard").exists():
            self.assertIsNone(job.poll())
            time.sleep(0.05)
        self.slurm.run("scancel", "--signal=TERM", number)
        said = job.communicate(timeout=90)[1]
        self.assertTrue((folder / "saved1").exists(), said + str(list(folder.iterdir())))

    def test_a_signal_before_the_time_limit_reaches_each_worker_once(self) -> None:
        """#SBATCH --signal=USR1@N, for every process of each step, and B:USR1@N, for the batch
        script alone. Slurm looks at the limits of jobs twice a minute."""
        jobs = []
        for where, run in (("", "srun -n1"), ("B:", "exec")):
            folder = self.slurm.folder / f"limit-{run[:4]}"
            folder.mkdir()
            (folder / "train.py").write_text(NOTER)
            (folder / "batch").write_text(
                f"#!/bin/sh\n#SBATCH --time=2 --signal={where}USR1@110 -N1 -n1\n"
                f"{run} {ELASTRUN} {folder}/train.py {folder}\n")
            number = self.batch(folder / "batch", "-o", f"{folder}/out", env={"LOGLEVEL": "INFO"})
            jobs.append((number, folder, ["--batch"] if where else []))
        for number, folder, alone in jobs:
            self.wait_for(folder / "heard", folder / "out")
            if not alone:
                self.wait_for(folder / "out", folder / "out", "SIGUSR1 was sent to every process")
            self.slurm.run("scancel", "--signal=TERM", *alone, number)
            self.wait_for(folder / "saved1", folder / "out")

    def wait_for(self, path: Path, log: Path, text: str = "") -> None:
        """Until the file has that text."""
        self.until(lambda: path.exists() and text in path.read_text(),
                   lambda: f"{path} {text}: {log.read_text() if log.exists() else ''}")

    def test_a_lost_coordinator_asks_for_a_requeue(self) -> None:
        """With c10d the job goes with its coordinator's agent; the others say what to type."""
        script = '[ "$SLURM_NODEID" = 0 ] && kill -9 $PPID; sleep 600'
        # Into files: srun passes nothing on any more once a task has been killed.
        said = self.slurm.folder / "said"
        run = f'echo $SLURM_JOB_ID > {said}.job; exec "$0" "$@" 2> {said}.$SLURM_NODEID'
        report = f"--report={said}.json"
        command = ("sh", "-c", f'exec sh -c \'{run}\' "$0" "{report}" "$@"', ELASTRUN,
                   "--no-python", "sh", "-c", script)
        done = self.srun(*command, limit=90)
        self.assertIn("Exited with exit code 75", done.stderr)
        again = "scontrol requeue " + Path(f"{said}.job").read_text().strip()
        self.assertIn(f"{again}\n", Path(f"{said}.1").read_text())
        # Its name depends on the group rank; the agent that was killed has written none.
        (written,) = self.slurm.folder.glob("said*.json")
        report = json.loads(written.read_text())
        self.assertEqual((report["exit_code"], report["requeue_command"]), (75, again))

    def test_the_command_that_is_named_puts_the_job_back_into_the_queue(self) -> None:
        """A batch job that loses its first node does what the launcher says."""
        said = self.slurm.folder / "again"
        worker = '[ "$SLURM_NODEID" = 0 ] && kill -9 $PPID; sleep 600'
        (self.slurm.folder / "worker").write_text(worker)
        (self.slurm.folder / "node").write_text(
            f"exec {ELASTRUN} --no-python sh {self.slurm.folder}/worker 2> {said}.$SLURM_NODEID\n")
        script = self.slurm.folder / "batch"
        script.write_text(f"#!/bin/sh\nsrun -N2 -n2 sh {self.slurm.folder}/node\n"
                          f"$(grep -o 'scontrol requeue [0-9]*' {said}.1)\nsleep 600\n")
        self.requeued(self.batch(script, "-N2", "--requeue", "-o", "/dev/null"))

    def saves(self, name: str, *options: str) -> tuple[str, Path]:
        """A batch job on both nodes whose workers save when they are asked; its id and folder."""
        folder = self.slurm.folder / name
        folder.mkdir()
        (folder / "train.py").write_text(SAVER)
        (folder / "node").write_text(
            f"trap : TERM USR1\n{ELASTRUN} --worker-lib --preempt-timeout 30 {' '.join(options)} "
            f"{folder}/train.py {folder} 2> {folder}/log.$SLURM_NODEID\n"
            f"echo $? > {folder}/code.$SLURM_NODEID\n")
        script = folder / "batch"
        # Slurm signals the batch shell alone (B:), and that its agents.
        script.write_text(f"#!/bin/sh\nsrun -N2 -n2 sh {folder}/node &\n"
                          "trap 'scancel --signal=USR1 $SLURM_JOB_ID.0' USR1\n"
                          "wait; wait; sleep 100\n")
        job = self.batch(script, "-N2", "--requeue", "--time=30", "--signal=B:USR1@60", "-o",
                         "/dev/null")
        self.until(lambda: len(list(folder.glob("runs.*"))) == 2)
        return job, folder

    def logs(self, folder: Path) -> str:
        return "".join(path.read_text() for path in folder.glob("log.*"))

    def wait_for_requeue(self, job: str, folder: Path) -> None:
        self.requeued(job, lambda: self.logs(folder))
        self.assertIn("start the job again: elastrun asks Slurm itself, scontrol requeue ",
                      self.logs(folder))
        self.check_saved(folder)

    def check_saved(self, folder: Path) -> None:
        logs = self.logs(folder)
        saved = [p.read_text().split() for p in folder.glob("saved.*")]
        self.assertEqual([len(one) for one in saved], [1, 1], logs)
        self.assertEqual(saved[0], saved[1], logs)  # both ranks at one step

    def test_a_signal_to_every_process_of_a_step_saves_once(self) -> None:
        job, folder = self.saves("all", "--preempt-signals", "SIGTERM")
        self.slurm.run("scancel", "--signal=TERM", job)
        self.until(lambda: [p.read_text() for p in folder.glob("code.*")] == ["75\n"] * 2,
                   lambda: self.logs(folder))
        self.slurm.run("scancel", job)
        self.check_saved(folder)

    def test_a_preempted_job_saves_and_is_requeued_once(self) -> None:
        job, folder = self.saves("signalled", "--preempt-signals", "SIGUSR1", "--on-preempt",
                                 "requeue")
        self.slurm.run("scancel", "--signal=USR1", "--batch", job)
        self.wait_for_requeue(job, folder)

    def test_elastrunctl_preempts_a_job_of_slurm(self) -> None:
        job, folder = self.saves("asked", "--preempt-signals", "SIGTERM", "--name", "asked",
                                 "--on-preempt", "requeue")
        asked = self.slurm.run("srun", "--overlap", f"--jobid={job}", "-N1", "-n1", CTL, "preempt",
                               "asked")
        self.assertEqual(asked.returncode, 0, asked.stderr)
        self.wait_for_requeue(job, folder)


def run_tests(folder: Path) -> int:
    with cluster.Cluster(folder) as slurm:
        UnderSlurm.slurm = slurm
        load = unittest.defaultTestLoader
        suite = (load.loadTestsFromNames(sys.argv[1:], UnderSlurm) if sys.argv[1:]
                 else load.loadTestsFromTestCase(UnderSlurm))
        return 0 if unittest.TextTestRunner(verbosity=2).run(suite).wasSuccessful() else 1


def main() -> int:
    global ELASTRUN, CTL
    ELASTRUN, CTL = (str(Path(sys.argv.pop(1)).resolve()) for _ in range(2))
    reason = cluster.obstacle()
    try:
        if reason:
            raise cluster.Unavailable(reason)
        with tempfile.TemporaryDirectory() as name:
            return cluster.isolated(lambda: run_tests(Path(name)))
    except cluster.Unavailable as why:
        print(f"SKIP: {why}")
        return 77


if __name__ == "__main__":
    sys.exit(main())
