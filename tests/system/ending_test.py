# SPDX-License-Identifier: Apache-2.0
"""ending_test.py ELASTRUN STUB_WORKER: difficult ends of a run, and what is left of it."""
from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import unittest
from pathlib import Path

from harness import wait_until
from launched import ELASTRUN, STUB, Case, state_of

UNUSED_USER = 61837


CAN_MOUNT = subprocess.run(["unshare", "-m", "true"], capture_output=True,
                           check=False).returncode == 0
mounts = unittest.skipUnless(CAN_MOUNT, "mounting something in a namespace needs root")


class Signals(Case):
    def test_a_stopped_worker_goes_on_when_continued(self) -> None:
        child = self.start_elastrun("--no-python", STUB, "pid", "stop", "say=on")
        pid = int(self.line_with(child.stdout, "pid ").split()[-1])
        wait_until(lambda: state_of(pid) == "T", "the worker has stopped")
        self.assertIsNone(child.poll())
        os.kill(pid, signal.SIGCONT)
        self.assertEqual(self.ended(child, 0)[0], "on\n")


class Mounts(Case):
    def unshared(self, script: str, *words: str, **more):
        """Runs it in a mount namespace, with the program as $0 and the stub as $1."""
        return self.run_words("unshare", "-m", "sh", "-c", script, ELASTRUN, STUB, *words, **more)


class Outputs(Mounts):
    def test_an_answer_that_cannot_be_written_is_no_success(self) -> None:
        for words in (["--print-config"], ["--version"], ["--dry-run", "--no-python", "true"],
                      ["--explain", "--no-python", "true"]):
            with self.subTest(words=words), open("/dev/full", "w", encoding="ascii") as full:
                done = self.run_elastrun(*words, capture_output=False, stdout=full,
                                         stderr=subprocess.PIPE)
                self.assertEqual(done.returncode, 1)
                self.assertIn("cannot write to stdout: No space left on device", done.stderr)

    @mounts
    def test_a_full_disk_does_not_end_the_job(self) -> None:
        (self.folder / "disk").mkdir()
        script = ('mount -t tmpfs -o size=64k none disk && '
                  '"$0" --tee 1 --log-dir disk/logs --no-python "$1" flood=300000 say=end')
        # Into a file: a pipe whose reader lags by 100 ms misses lines, on purpose.
        with open(self.folder / "shown", "w+", encoding="utf-8") as shown:
            done = self.unshared(script, capture_output=False, stdout=shown,
                                 stderr=subprocess.PIPE)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue((self.folder / "shown").read_text().endswith("[default0]:end\n"))
        self.assertIn("No space left on device; what does not fit is dropped", done.stderr)

    @mounts
    def test_files_that_are_mounted_alone_are_written(self) -> None:
        for name in ("report", "error"):  # what a container's runtime has mounted there
            (self.folder / name).touch()
            (self.folder / f"{name}.there").touch()
        script = ('mount --bind report report.there && mount --bind error error.there && '
                  'exec "$0" --report report.there --no-python "$1" "$2" exit=3')
        error = {"message": {"message": "boom", "extraInfo": {"timestamp": "1"}}}
        done = self.unshared(script, "error=" + json.dumps(error),
                             env={"TORCHELASTIC_ERROR_FILE": "error.there"})
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertNotIn("cannot write", done.stderr)
        self.assertEqual(json.loads((self.folder / "report").read_text())["exit_code"], 1)
        told = json.loads((self.folder / "error").read_text())
        self.assertEqual((told["message"]["message"], told["message"]["errorCode"]), ("boom", 3))
        self.assertEqual(list(self.folder.glob("*.part")), [])

    def test_error_files_of_each_attempt_are_kept(self) -> None:
        def error(text: str) -> str:
            return "error=" + json.dumps({"message": {"message": text, "extraInfo": {
                "py_callstack": "", "timestamp": "1"}}})
        done = self.run_elastrun("--max-restarts", "2", "--log-dir", "logs", "--redirects", "3",
                                 "--no-python", STUB, "attempt=0", error("zero"), "all",
                                 "attempt=1", error("one"), "all", "attempt=2", error("two"), "all",
                                 "say=out", "exit=3")
        self.assertEqual(done.returncode, 1)
        for attempt, text in enumerate(("zero", "one", "two")):
            (file,) = self.folder.glob(f"logs/*/attempt_{attempt}/0/error.json")
            self.assertEqual(json.loads(file.read_text())["message"]["message"], text)
            self.assertEqual((file.parent / "stdout.log").read_text(), "out\n")
        self.assertIn("two", done.stderr)


class Starts(Mounts):
    def test_a_start_that_fails_half_way_leaves_nobody(self) -> None:
        if os.geteuid() != 0:
            self.skipTest("a limit of processes for an unused user needs root")
        self.folder.chmod(0o777)
        (self.folder / "tmp").chmod(0o777)
        programs = [shutil.copy(path, self.folder) for path in (ELASTRUN, STUB)]

        def limit() -> None:  # for the guardian, the agent and four of the eight workers
            resource.setrlimit(resource.RLIMIT_NPROC, (6, 6))
        done = self.run_words(programs[0], "--nproc-per-node", "8", "--no-python", programs[1],
                              "ignore=TERM", "stay", preexec_fn=limit, user=UNUSED_USER,
                              group=UNUSED_USER, extra_groups=[])
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("the workers could not be started", done.stderr)
        self.assertIn("Resource temporarily unavailable", done.stderr)

    @mounts
    def test_a_job_has_a_cgroup_of_its_own_and_removes_it(self) -> None:
        (self.folder / "cgroup").mkdir()
        script = ('mount -t cgroup2 none cgroup || exit 77; find cgroup -type d > before; '
                  '"$0" --shutdown-timeout 1 --no-python "$1" cgroup '
                  'child=setsid,double,bare,deaf wait=go exit=0 '
                  '> out & '
                  'until grep -qs "^child " out || ! kill -0 $!; do sleep 0.02; done; : > go; '
                  'wait $!; code=$?; cat out; find cgroup -type d > after; exit $code')
        done = self.unshared(script)
        if done.returncode == 77:
            self.skipTest("this kernel does not mount cgroup2: " + done.stderr)
        self.assertEqual(done.returncode, 0, done.stderr)
        path = next(line for line in done.stdout.splitlines() if line.startswith("cgroup "))[7:]
        self.assertRegex(path, "elastrun")
        self.assertNotIn(Path(path).name, (self.folder / "after").read_text())
        child = next(line for line in done.stdout.splitlines() if line.startswith("child "))
        self.assertIn(state_of(int(child.split()[1])), "XZ")
