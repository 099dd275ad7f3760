# SPDX-License-Identifier: Apache-2.0
"""What a person, a program and the shell are told at the end."""
import subprocess
import unittest

from harness import Job, stub, wait_until
from ports import free_port, listens


# Rank 1 raises first, but its interpreter ends only after rank 0, which failed because of that.
SLOW_END = """
import atexit, os, time
rank, printed = os.environ["RANK"], "printed"

if rank == "0":
    with open("pid.new", "w") as file:
        file.write(str(os.getpid()))
    os.rename("pid.new", "pid")
    while not os.path.exists(printed):
        time.sleep(0.001)
    raise KeyError("what rank 1 should have sent")
while not os.path.exists("pid"):
    time.sleep(0.001)
other = open("pid").read()

def end_last():
    open(printed, "w").close()
    while open(f"/proc/{other}/stat").read().rsplit(")", 1)[1].split()[0] not in "ZX":
        time.sleep(0.001)

atexit.register(end_last)
raise ValueError("the first")
"""

# Rank 0 raises, and its interpreter ends by a signal alone; rank 1 fails because of that, each time
# in another way.
NEVER_ENDS = """
import atexit, os, signal, sys, time
def wait_for(name):
    while not os.path.exists(name):
        time.sleep(0.001)
def ends():
    open("ends", "w").close()
    time.sleep(600)
if os.environ["RANK"] == "0":
    atexit.register(ends)
    if os.environ.get("RECORDED"):
        with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w") as file:
            file.write('{"message": {"message": "ValueError: the first", "extraInfo": {}}}')
        time.sleep(0.02)
        sys.stderr = None
    raise ValueError("the first")
wait_for("ends")
"""
VICTIMS = {
    "gloo": "raise RuntimeError('[../gloo/transport/tcp/pair.cc:1] Connection closed by peer')",
    "nccl": "raise RuntimeError('NCCL error: ncclRemoteError: remote process exited')",
    "reset": "raise ConnectionResetError(104, 'Connection reset by peer')",
    "pipe": "raise BrokenPipeError(32, 'Broken pipe')",
    "end of file": "raise EOFError('Ran out of input')",
    "time": "raise TimeoutError('rank 0 has not sent its part')",
    "own words": "raise ValueError('got 3 parts, not 4')",
    "key": "raise KeyError('part 0')",
    "silent": "sys.exit(1)",
    "silent at once": "os._exit(7)",
    "words": "sys.exit('lost rank 0')",
    "logged": "print('rank 0 is gone', file=sys.stderr); sys.exit(3)",
    "abort": "os.abort()",
    "watchdog": "print('Watchdog caught collective operation timeout', file=sys.stderr); "
                "os.abort()",
    "crash": "os.kill(os.getpid(), signal.SIGSEGV)",
    "killed": "os.kill(os.getpid(), signal.SIGKILL)",
    "late": "time.sleep(0.2); raise RuntimeError('Connection closed by peer')",
}


class Reports(unittest.TestCase):
    def test_who_has_raised_is_to_blame_also_if_it_never_gets_to_its_end(self) -> None:
        for kind, fails in VICTIMS.items():
            with self.subTest(kind), Job("--nproc-per-node=2", "--report=report.json",
                                         script=NEVER_ENDS + fails).ended(1) as job:
                self.assertIn("rank 0 failed first: it raised ValueError: the first, and was "
                              "stopped "
                              "before it had ended", job.errors())
                self.assertRegex(job.errors(), r": rank 0: ValueError: the first\n$")
                report = job.report()
                self.assertEqual(report["culprit"]["rank"], 0)

    def test_who_has_left_an_error_file_is_to_blame_also_if_it_never_gets_to_its_end(self) -> None:
        for kind in ("gloo", "silent", "own words"):
            script = NEVER_ENDS + VICTIMS[kind]
            with self.subTest(kind), Job("--nproc-per-node=2", env={"RECORDED": "1"},
                                         script=script).ended(1) as job:
                self.assertIn("rank 0 failed first: it raised ValueError: the first", job.errors())

    def test_who_has_got_over_an_error_is_not_to_blame(self) -> None:
        script = """
import logging, os, sys, time
if os.environ["RANK"] == "0":
    try:
        raise ValueError("got over")
    except ValueError:
        logging.exception("trying again")
    time.sleep(1.5)
    logging.warning("goes on")
    open("goes", "w").close()
    time.sleep(600)
while not os.path.exists("goes"): time.sleep(0.001)
raise KeyError("of its own")
"""
        with Job("--nproc-per-node=2", script=script).ended(1) as job:
            self.assertIn("rank 1 failed first: it ended with exit code 1 (KeyError: 'of its own')",
                          job.errors())

    def test_the_culprit_is_who_raised_first_not_whose_interpreter_ended_first(self) -> None:
        with Job("--nproc-per-node=2", "--monitor-interval=2", script=SLOW_END).ended(1) as job:
            self.assertRegex(job.errors(), r"rank 1 failed first: it .*\(ValueError: the first\)")

    def test_the_verdict_names_who_was_first_and_why(self) -> None:
        steps = ("only=2", "complain=Traceback (most recent call last):",
                 "complain=ValueError: boom", "exit=7", "all", "stay")
        with Job("--nproc-per-node=4", *stub(*steps)).ended(1) as job:
            self.assertIn("rank 2 failed first: it ended with exit code 7 (ValueError: boom)",
                          job.errors())
            self.assertIn("ranks 0, 1, 3: stopped by elastrun", job.errors())
            self.assertRegex(job.errors(), r"\nelastrun: FAILED after [^\n]*: rank 2: "
                                           r"ValueError: boom\n$")
            # The console has it already, and nobody else has said anything.
            self.assertEqual(job.errors().count("ValueError: boom\n"), 2)

    def test_a_worker_that_does_not_end_when_asked_to_is_named(self) -> None:
        script = """
import os, signal, time
rank, ready = os.environ["RANK"], "ready"
if rank == "0":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    open(ready, "w").close()
while not os.path.exists(ready): time.sleep(0.001)
while rank == "0": time.sleep(1)
raise ValueError("boom")
"""
        with Job("--nproc-per-node=2", "--shutdown-timeout=1", script=script).ended(1) as job:
            self.assertRegex(job.errors(), r"\n  slow      rank 0 did not end when asked to: "
                                           r"killed after [0-9.]+ m?s\n")

    def test_the_workers_own_code_if_asked_for(self) -> None:
        for steps, code in (("exit=7", 7), ("die=KILL", 137), ("exit=0", 0)):
            with self.subTest(steps), Job("--exit-code=worker", *stub(steps)) as job:
                self.assertEqual(job.end(), code)

    def test_last_words_without_a_traceback_are_quoted(self) -> None:
        script = "import sys; sys.exit('data set not found')"
        with Job(script=script).ended(1) as job:
            self.assertIn("  its last lines on stderr:\n    | data set not found\n", job.errors())

    def test_what_two_streams_wrote_into_one_file_is_not_said_to_be_of_stderr(self) -> None:
        with Job(*stub("say=step 7", "complain=no data", "exit=3"),
                 stderr=subprocess.STDOUT).ended(1) as job:
            self.assertIn("  its last output:\n    | step 7\n    | no data\n", job.output())

    def test_escape_sequences_change_neither_the_verdict_nor_the_terminal(self) -> None:
        coloured = ("Traceback (most recent call last):",  # Python 3.13, FORCE_COLOR=1
                    '  File \x1b[35m"a.py"\x1b[0m, line \x1b[35m1\x1b[0m, in \x1b[35mmain\x1b[0m',
                    "\x1b[1;35mValueError\x1b[0m: \x1b[35mboom\x1b[0m")
        with Job("--redirects=3", *stub(*(f"complain={line}" for line in coloured),
                                        "exit=7")).ended(1) as job:
            self.assertIn("it ended with exit code 7 (ValueError: boom)", job.errors())
            self.assertIn("    | ValueError: boom\n", job.errors())
            self.assertNotIn("\x1b", job.errors())

    def test_the_summary_is_as_long_as_asked_for(self) -> None:
        for form, outcome, account in (("full", True, True), ("short", True, False),
                                       ("off", False, False)):
            with self.subTest(form), Job(f"--summary={form}", "--no-python", "sh", "-c",
                                         "sleep 1.1; exit 3").ended(1) as job:
                self.assertEqual("elastrun: FAILED after" in job.errors(), outcome)
                self.assertEqual("goodput between 0 and " in job.errors(), account)
                self.assertIn("elastrun: rank 0 failed first", job.errors())

    def test_of_two_nodes_one_gives_the_account(self) -> None:
        words = ("--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{free_port()}",
                 "--no-python", "sh", "-c", "sleep 1.1; exit $$GROUP_RANK")
        with Job(*words) as one, Job(*words) as other:
            self.assertEqual((one.end(), other.end()), (1, 1))
            said = [job.errors() for job in (one, other)]
            self.assertEqual([s.count("elastrun: FAILED after") for s in said], [1, 1])
            self.assertEqual(sum("goodput between 0 and" in s for s in said), 1)

    def test_a_signal_to_one_node_after_the_other_reads_as_the_end_of_the_job(self) -> None:
        port = free_port()
        words = ("--nnodes=2", "--max-restarts=3", "--rdzv-backend=c10d",
                 f"--rdzv-endpoint=127.0.0.1:{port}", *stub("say=up", "stay"))
        with Job(*words) as host:
            wait_until(lambda: listens(port), "the host listens")
            with Job(*words) as other:
                host.wait_for("^up")
                other.wait_for("^up")
                other.process.terminate()
                host.wait_for("Stopping the workers", path=host.err)
                host.process.terminate()
                self.assertEqual((other.end(), host.end()), (1, 1))
                self.assertNotIn("Restarting the workers", host.errors())
                self.assertRegex(host.errors(), "elastrun: FAILED after .*: ended by SIGTERM\n$")

    def test_a_report_that_cannot_be_written_does_not_change_the_end(self) -> None:
        with Job("--report=/nowhere/report.json", *stub("exit=0")).ended() as job:
            self.assertIn("/nowhere/report.json", job.errors())

    def test_a_dry_run_starts_nothing(self) -> None:
        with Job("--dry-run", "--nproc-per-node=2", *stub("say=no", "$local_rank")).ended() as job:
            self.assertIn("say=no 1", job.output())
            self.assertIn("LOCAL_RANK=1", job.output())
            self.assertEqual(list(job.temporary.iterdir()), [])
