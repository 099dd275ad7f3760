# SPDX-License-Identifier: Apache-2.0
"""slow_test.py ELASTRUN STUB_WORKER: readers and file systems that take nothing for a while."""
from __future__ import annotations

import os
import re
import signal
import tempfile
import threading
import time
import unittest
from pathlib import Path

from harness import LIMIT, STUB, Job, fetched, stat_of, stub, stuck, wait_until
from ports import free_port

SIDE_BY_SIDE = 3
# Prints 12 MiB, says so by a file, and fails when it may.
TALKER = """
import os, sys, time
for i in range(12 * 1024):
    sys.stdout.write(f"line {i} " + "x" * 1000 + "\\n")
sys.stdout.flush()
open("done", "w").close()
while not os.path.exists("fail"): time.sleep(0.02)
sys.exit(7)
"""
# Fails when it may; the second attempt prints 3 MiB into its file and ends when it may.
TWICE = """
import os, sys, time
def wait(name):
    while not os.path.exists(os.path.join(sys.argv[1], name)): time.sleep(0.02)
attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
print("begun", attempt, os.environ["WORLD_SIZE"], file=sys.stderr, flush=True)
if attempt == "0":
    wait("fail")
    sys.exit(3)
if len(sys.argv) > 2:
    for i in range(3000): print(f"line {i} " + "y" * 1000)
    sys.stdout.flush()
wait("end")
"""
NOTICE = re.compile(r"\[elastrun\] ([\d,]+) lines were not shown: the reader was too slow; "
                    r"they are in the files below \S+/attempt_0\n")


def read_all(fd: int, into: list[bytes]) -> None:
    while piece := os.read(fd, 1 << 16):
        into.append(piece)


class SlowReader(unittest.TestCase):
    def stuck(self, ours: int, theirs: int) -> None:
        """A job whose output nobody reads until its workers have ended."""
        with Job("--tee=3", "--log-dir=logs", "talk.py", stdout=theirs, stderr=theirs,
                 files={"talk.py": TALKER}) as job:
            os.close(theirs)
            wait_until((job.folder / "done").exists, "training has gone on")
            (job.folder / "fail").touch()
            [worker] = [pid for pid in job.alive() if b"talk.py" in
                        Path(f"/proc/{pid}/cmdline").read_bytes()
                        and b"elastrun" not in Path(f"/proc/{pid}/cmdline").read_bytes()] or [0]
            wait_until(lambda: worker == 0 or stat_of(worker) is None, "the worker has ended")
            self.assertIsNone(job.process.poll(), "elastrun ended with its verdict untold")
            pieces: list[bytes] = []
            reader = threading.Thread(target=self.read_terminal, args=(ours, pieces))
            reader.start()
            self.assertEqual(job.end(), 1)
            reader.join()
            shown = b"".join(pieces).decode().replace("\r\n", "\n")
            expected = "".join(f"line {i} " + "x" * 1000 + "\n" for i in range(12 * 1024))
            [file] = (job.folder / "logs").glob("*/attempt_0/0/stdout.log")
            self.assertEqual(file.read_text(), expected)
            notices = list(NOTICE.finditer(shown))
            self.assertTrue(notices, shown[-3000:])
            missed = sum(int(found[1].replace(",", "")) for found in notices)
            lines = re.findall(r"^\[default0\]:line \d+ x{1000}$", shown, re.M)
            self.assertEqual(len(lines) + missed, 12 * 1024)
            verdict = shown.find("ended with exit code 7")
            self.assertGreater(verdict, notices[0].start(), shown[-3000:])

    @staticmethod
    def read_terminal(fd: int, into: list[bytes]) -> None:
        try:
            read_all(fd, into)
        except OSError:  # EIO: a terminal that nobody has open any more
            pass

    def test_a_pipe_nobody_reads_stops_no_training_and_loses_no_verdict(self) -> None:
        """Nor does a terminal that is stopped."""
        for make in (os.pipe, os.openpty):
            ours, theirs = make()
            self.stuck(ours, theirs)
            os.close(ours)

    def waiting_job(self, limit: str) -> tuple[Job, int]:
        """A job that waits for its reader and has got a signal, and that reader's end."""
        ours, theirs = os.pipe()
        self.addCleanup(os.close, ours)
        job = self.enterContext(Job(
            "--tee=3", "--log-dir=logs", f"--shutdown-timeout={limit}", "talk.py", stdout=theirs,
            files={"talk.py": TALKER, "fail": ""}))
        os.close(theirs)
        job.wait_for("waiting for the reader of the output", path=job.err)
        job.process.terminate()
        return job, ours

    def test_a_signal_limits_the_wait_for_a_reader_that_does_not_come(self) -> None:
        job, _ = self.waiting_job("1")
        self.assertEqual(job.end(), 1)
        for said in ("the reader of the output has up to 1.0 s", "has not taken in time is lost",
                     "ended with exit code 7"):
            self.assertIn(said, job.errors())

    def test_a_reader_that_comes_after_the_signal_gets_all(self) -> None:
        job, ours = self.waiting_job("300")
        job.wait_for("a signal came: ", path=job.err)
        pieces: list[bytes] = []
        read_all(ours, pieces)
        self.assertEqual(job.end(), 1)
        self.assertNotIn("is lost", job.errors())
        self.assertIn(b"lines were not shown", b"".join(pieces))

    def test_ctrl_c_again_gives_up_at_once(self) -> None:
        job, _ = self.waiting_job("300")
        job.wait_for("a signal came: ", path=job.err)
        time.sleep(1.5)  # sooner the same signal could be the same end by another way
        job.stopped(1)
        # The line that tells of the signal may be on its way to agent.log.
        self.assertRegex(job.errors(), "a signal came again: what (.*agent.log and )?the "
                                       "reader of the output has not taken is lost")


class SlowFiles(unittest.TestCase):
    """A FIFO in the place of a file: open(2) waits for its reader, then write(2) does, as with a
    network file system that does not answer."""

    def frozen_log(self, run: Path) -> Path:
        """That of the worker in the attempt that is to come."""
        log = run / "attempt_1/0/stdout.log"
        log.parent.mkdir(parents=True)
        os.mkfifo(log)
        return log

    def test_a_log_that_takes_nothing_restarts_nothing_and_loses_nothing(self) -> None:
        # A node that is silent for 15 s, as torch has it, is lost; this one's files are frozen for
        # longer.
        words = ["--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{free_port()}",
                 "--rdzv-id=job", "--max-restarts=3", "-r", "1"]
        with Job(*words, "--log-dir=logs", "twice.py", ".", "talk",
                 files={"twice.py": TWICE}) as one:
            with Job(*words, "--log-dir=logs", "twice.py", str(one.folder),
                     files={"twice.py": TWICE}) as two:
                for job in (one, two):
                    job.wait_for("^begun 0 2", path=job.err)
                [run] = (one.folder / "logs").iterdir()
                log = self.frozen_log(run)
                (one.folder / "fail").touch()
                for job in (one, two):
                    job.wait_for("^begun 1 2", path=job.err)
                time.sleep(20)  # what is tested: nothing happens while nothing is taken
                self.assertEqual(one.errors().count("begun"), 2)
                self.assertEqual(two.errors().count("begun"), 2)
                pieces: list[bytes] = []
                fd = os.open(log, os.O_RDONLY)
                reader = threading.Thread(target=read_all, args=(fd, pieces))
                reader.start()
                (one.folder / "end").touch()
                for job in (one, two):
                    self.assertEqual(job.end(), 0, job.errors())
                    self.assertEqual(job.errors().count("begun"), 2, job.errors())
                reader.join(LIMIT)
                os.close(fd)
                self.assertEqual(b"".join(pieces).decode(),
                                 "".join(f"line {i} " + "y" * 1000 + "\n" for i in range(3000)))
                journal = (run / "journal.jsonl").read_text()
                self.assertIn('"name":"job.ended"', journal)

    def test_a_frozen_log_does_not_hold_back_the_report_and_the_verdict(self) -> None:
        """Nor does one in the temporary directory."""
        script = ("echo some; [ $TORCHELASTIC_RESTART_COUNT = 1 ] || "
                  "while [ ! -e go ]; do sleep 0.1; done; "
                  "echo '{\"message\": \"boom\"}' > $TORCHELASTIC_ERROR_FILE; exit 3")
        for options, runs in ((("--log-dir=logs",), "logs/*"), ((), "tmp/*/*")):
            with self.subTest(runs), Job(
                    *options, "-r", "1", "--max-restarts=1", "--report=report.json", "--no-python",
                    "sh", "-c", script, env={"TORCHELASTIC_ERROR_FILE": "handed.json"}) as job:
                wait_until(lambda: list(job.folder.glob(f"{runs}/attempt_0/0/stdout.log")),
                           "the first attempt has begun")
                log = self.frozen_log(*job.folder.glob(runs))
                (job.folder / "go").touch()
                job.wait_for("waiting for .*stdout.log to take", path=job.err)
                self.assertIn('"exit_code": 1', (job.folder / "report.json").read_text())
                self.assertIn('"boom"', (job.folder / "handed.json").read_text())
                self.assertIn("ChildFailedError", job.errors())
                self.assertEqual(log.read_text(), "some\n")
                self.assertEqual(job.end(), 1)
                self.assertEqual("files of this run are in" in job.errors(), not options)

    def test_at_the_end_the_file_that_is_waited_for_is_named(self) -> None:
        with Job("--log-dir=logs", "--report=report", "--no-python", "sh", "-c", "exit 3",
                 before=lambda: os.mkfifo("report")) as job:
            job.wait_for("waiting for report to take", path=job.err)
            self.assertIn("ended with exit code 3", job.errors())
            text = (job.folder / "report").read_text()
            self.assertEqual(job.end(), 1)
            self.assertIn('"exit_code": 1', text)
            self.assertTrue((job.folder / "report").is_fifo())


class FrozenFolder(unittest.TestCase):
    """A log directory in which mkdir(2) does not come back."""

    def start(self, *words: str, at_once: bool = False) -> Job:
        return self.enterContext(Job(
            "--log-dir=logs", "-r", "1", *words, env=stuck(folder="/logs/"),
            before=lambda: Path("stuck").touch() if at_once else None))

    def frozen_restart(self) -> Job:
        job = self.start("--max-restarts=1", *stub("attempt=0", "pid", "wait=fail", "exit=3", "all",
                                                   "say=again"))
        wait_until(lambda: list((job.folder / "logs").glob("*/attempt_0/0/stdout.log")), "it runs")
        (job.folder / "stuck").touch()
        (job.folder / "fail").touch()
        job.wait_for("waiting for the directories of the workers' logs in .*/logs/",
                     path=job.err)
        return job

    def test_a_signal_ends_the_wait_at_a_restart(self) -> None:
        job = self.frozen_restart()
        job.stopped(1)
        self.assertEqual(re.findall(r"(\S+) took nothing: .* is lost", job.errors()),
                         [str(run := next((job.folder / "logs").iterdir())) + "/report.json"])
        self.assertIn('"job.ended"', (run / "journal.jsonl").read_text())
        job.nothing_left()

    def test_the_restart_comes_when_the_file_system_does(self) -> None:
        job = self.frozen_restart()
        (job.folder / "stuck").unlink()
        self.assertEqual(job.end(), 0, job.errors())
        [log] = (job.folder / "logs").glob("*/attempt_1/0/stdout.log")
        self.assertEqual(log.read_text(), "again\n")

    def two_nodes(self, restarts: int, *script: str) -> tuple[Job, Job]:
        """The first one fails, and the second one waits for its folders at the restart."""
        words = ["--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{free_port()}",
                 "--rdzv-id=job", f"--max-restarts={restarts}"]
        one = self.enterContext(Job(*words, *stub(*script)))
        two = self.start(*words, *stub("attempt=0", "wait=never", "all", "say=again"))
        wait_until(lambda: list((two.folder / "logs").glob("*/attempt_0/0/stdout.log")), "it runs")
        (two.folder / "stuck").touch()
        (one.folder / "fail").touch()
        return one, two

    def test_the_end_of_the_job_elsewhere_ends_the_wait_at_a_restart(self) -> None:
        one, two = self.two_nodes(2, "wait=fail", "exit=3")
        for job in (one, two):
            self.assertEqual(job.end(), 1, job.errors())
            self.assertIn("2 of 2 restarts used", job.errors())
        self.assertIn("Restarting the workers", one.errors())
        self.assertNotIn("Restarting the workers", two.errors())

    def test_files_that_answer_just_then_lose_nothing(self) -> None:
        one, two = self.two_nodes(1, "wait=fail", "exit=3")
        self.assertEqual(one.end(), 1, one.errors())
        time.sleep(0.5)
        (two.folder / "stuck").unlink()
        self.assertEqual(two.end(), 1, two.errors())
        self.assertNotIn("took nothing", two.errors())
        names = {one["name"] for one in two.records()}
        self.assertEqual({"restart", "job.ended", "goodput"} - names, set())

    def test_a_round_that_breaks_up_meanwhile_is_left_out(self) -> None:
        one, two = self.two_nodes(2, "attempt=0", "wait=fail", "exit=3", "all", "attempt=1",
                                  "exit=3", "all", "say=again")
        two.wait_for("Not starting the workers, 0 restarts left", path=two.err)
        (two.folder / "stuck").unlink()
        for job in (one, two):
            self.assertEqual(job.end(), 0, job.errors())
        logs = sorted((two.folder / "logs").glob("*/attempt_*/0/stdout.log"))
        self.assertEqual([log.parts[-3] for log in logs], ["attempt_0", "attempt_2"])
        self.assertEqual(logs[-1].read_text(), "again\n")

    def test_a_signal_ends_the_wait_at_the_start(self) -> None:
        job = self.start(*stub("say=up"), at_once=True)
        job.wait_for("waiting for the directory of this run", path=job.err)
        job.stopped(-signal.SIGTERM)
        job.nothing_left()

    def test_the_start_comes_when_the_file_system_does(self) -> None:
        job = self.start(*stub("say=up"), at_once=True)
        job.wait_for("waiting for the directory of this run", path=job.err)
        (job.folder / "stuck").unlink()
        self.assertEqual(job.end(), 0, job.errors())


class FrozenTemporary(unittest.TestCase):
    """A job that keeps nothing, whose temporary directory is on a network file system."""

    ENV = stuck(folder="/tmp/elastrun_", remote="yes")

    def start(self, *script: str, options: tuple[str, ...] = ("--max-restarts=1",),
              **env: str) -> Job:
        job = self.enterContext(Job(*options, *stub(*script), env=self.ENV | env))
        job.wait_for("up")
        (job.folder / "stuck").touch()
        return job

    def test_it_holds_back_no_end(self) -> None:
        """Nor does the channel of a job without logs, or a pipe for timers."""
        nowhere, timers = ("--log-dir=/dev/null",), {"TORCHELASTIC_ENABLE_FILE_TIMER": "1"}
        for options, env, left in (((), {}, "elastrun_"), (nowhere, {}, "elastrun_"),
                                   ((), timers, "elastrun_timer_")):
            with self.subTest(left, options=options):
                job = self.start("say=up", "wait=end", options=options, **env)
                job.tell("end").ended()
                self.assertRegex(job.errors(), f"left behind: .*/tmp/{left}")
                self.assertNotIn("is lost", job.errors())

    def test_what_explains_a_failure_stays_if_it_answers_late(self) -> None:
        job = self.enterContext(Job("--no-python", "sh", "-c", "echo '{}' > "
                                    "$TORCHELASTIC_ERROR_FILE; : > stuck; exit 3", env=self.ENV))
        job.wait_for("error.json .*cannot be read within", path=job.err)
        time.sleep(3)
        (job.folder / "stuck").unlink()
        self.assertEqual(job.end(), 1, job.errors())
        self.assertIn("files of this run are in", job.errors())
        self.assertEqual(len(list(job.temporary.glob("elastrun_*/*/*/0/error.json"))), 1)

    def test_neither_a_failure_nor_a_signal_waits_for_it(self) -> None:
        for end in ("exit=3", "stay"):
            job = self.start("say=up", "wait=fail", end, options=())
            if end == "stay":
                job.process.terminate()
            job.tell("fail").ended(1)
            self.assertIn("report.json took nothing", job.errors())

    def test_a_start_says_what_it_waits_for(self) -> None:
        job = self.enterContext(Job(
            *stub("say=up"), env=self.ENV | {"STUCK_FOLDER": "/tmp"},
            before=lambda: Path("stuck").touch()))
        job.wait_for("waiting for the temporary directory", path=job.err)
        (job.folder / "stuck").unlink()
        self.assertEqual(job.end(), 0, job.errors())

    def test_a_signal_ends_the_wait_at_a_restart_and_so_does_an_answer(self) -> None:
        for answers in (False, True):
            job = self.start("say=up", "attempt=0", "wait=fail", "exit=3", "all", "say=again")
            (job.folder / "fail").touch()
            job.wait_for("waiting for the directories of the workers' logs", path=job.err)
            if answers:
                (job.folder / "stuck").unlink()
            else:
                job.process.terminate()
            self.assertEqual(job.end(), 0 if answers else 1, job.errors())
        self.assertIn("again", job.output())
        self.assertEqual(list(job.temporary.glob("elastrun_*")), [])


class SlowDisk(unittest.TestCase):
    """fdatasync(2) does not come back: other files of the same file system answer."""

    def test_a_restart_does_not_wait_for_the_journal_to_be_synced(self) -> None:
        job = self.enterContext(Job(
            "--log-dir=logs", "--tee=3", "--max-restarts=1",
            *stub("attempt=0", "exit=3", "all", "say=again"), env=stuck(sync="yes"),
            before=lambda: Path("stuck").touch()))
        job.wait_for("again$")
        job.wait_for("waiting for .*/journal.jsonl to take what is left", path=job.err)
        (job.folder / "stuck").unlink()
        self.assertEqual(job.end(), 0, job.errors())
        self.assertNotIn("the directories of the workers' logs", job.errors())


class FrozenRegistry(unittest.TestCase):
    """A directory of runs, say on a network file system, that does not answer."""

    def start(self, *words: str, at_once: bool = False) -> Job:
        self.runs = self.enterContext(tempfile.TemporaryDirectory(prefix="system."))
        return self.enterContext(Job(
            *words, env=stuck(folder=self.runs) | {"ELASTRUN_RUNTIME_DIR": self.runs},
            before=lambda: Path("stuck").touch() if at_once else None))

    def test_it_holds_back_no_start_and_no_end(self) -> None:
        job = self.start(*stub("say=up", "exit=3"), at_once=True).ended(1)
        self.assertIn("what earlier runs may have left was not looked for", job.errors())
        self.assertIn("has not answered within 2", job.errors())
        job.nothing_left()

    def test_one_that_freezes_later_holds_back_no_restart_and_no_end(self) -> None:
        job = self.start("--max-restarts=1", *stub("attempt=0", "wait=fail", "exit=3", "all",
                                                   "say=again"))
        wait_until(lambda: list(Path(self.runs).glob("*.json")), "the run is registered")
        (job.folder / "stuck").touch()
        job.tell("fail").ended()
        self.assertRegex(job.errors(), f"left behind: {self.runs}/.*[.]json\n")
        job.nothing_left()


class LostGpu(unittest.TestCase):
    def test_a_driver_that_cannot_be_closed_holds_back_no_end(self) -> None:
        folder = self.enterContext(tempfile.TemporaryDirectory(prefix="system."))
        os.symlink(STUB.parent / "libfake_nvml.so", f"{folder}/libnvidia-ml.so.1")
        job = self.enterContext(Job(
            "--http=0", "--tee=3", *stub("say=up", "wait=end"), env={
                "LD_LIBRARY_PATH": folder, "FAKE_NVML_HANGS_AT_END": "1"}))
        job.wait_for("up")
        self.assertIn("Fake H200", fetched(job.page() + "metrics"))
        job.tell("end").ended()
        job.nothing_left()


class Devices(unittest.TestCase):
    def test_what_is_no_regular_file_is_written_to_and_stays(self) -> None:
        # Links, so that a mistake replaces them and not the device.
        with Job("--report=null", "--no-python", "sh", "-c", "exit 3",
                 env={"TORCHELASTIC_ERROR_FILE": "error"},
                 before=lambda: (os.symlink("/dev/null", "null"),
                                 os.symlink("/dev/null", "error"))).ended(1) as job:
            for name in ("null", "error"):
                self.assertTrue((job.folder / name).is_char_device(), name)
            self.assertNotIn("is replaced", job.errors())
            self.assertNotIn("no report", job.errors())

    def test_a_report_on_a_stream_of_ours_keeps_what_is_in_its_file(self) -> None:
        for name in ("/proc/self/fd/1", "/dev/fd/1", "/dev/stdout", "link", "out"):
            with self.subTest(name), \
                    Job(f"--report={name}", "--no-python", "sh", "-c", "echo before",
                        before=lambda: os.symlink("/proc/self/fd/1", "link")) as job:
                was = job.out.stat().st_ino
                self.assertEqual(job.end(), 0)
                self.assertEqual(job.out.stat().st_ino, was)
                said = job.output()
                self.assertTrue(said.startswith('before\n{"format": 1'), said)
                self.assertTrue(said.endswith("}\n"), said)
                self.assertEqual(said.count('"format": 1'), 1)


class UnfinishedLines(unittest.TestCase):
    def test_a_prompt_is_shown_before_its_answer(self) -> None:
        ours, theirs = os.pipe()
        script = ("import sys, time, os\n"
                  "sys.stdout.write('Name? '); sys.stdout.flush()\n"
                  "while not os.path.exists('go'): time.sleep(0.02)\n"
                  "print('thanks')\n")
        with Job("--tee=3", "ask.py", stdout=theirs, files={"ask.py": script}) as job:
            os.close(theirs)
            self.assertEqual(os.read(ours, 100), b"[default0]:Name? ")
            (job.folder / "go").touch()
            self.assertEqual(os.read(ours, 100), b"thanks\n")
            self.assertEqual(job.end(), 0)
        os.close(ours)
