# SPDX-License-Identifier: Apache-2.0
"""stop_test.py ELASTRUN STUB_WORKER: who may save what before a job ends, and who cuts it short."""
from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import unittest
from pathlib import Path

from harness import wait_until
from launched import ELASTRUN, LIMIT, STUB, Case, state_of
from ports import free_port, listens
from screen import OnTerminal

SIDE_BY_SIDE = 3
LONG = "1000"  # seconds; more than LIMIT, so that only the wanted end is in time
SAVING = 2.0   # longer than any grace but that of --shutdown-timeout
# Saves for a while when it is asked to end, and says so in a file, which no signal cuts. The signal
# may come within print(), which cannot be entered twice.
TRAINER = f"""
import os, signal, sys, time
def save(number, frame):
    try: os.write(1, b"saving %d\\n" % number)
    except OSError: pass  # a terminal that is gone
    time.sleep({SAVING})
    with open("checkpoint", "w") as file: file.write("whole")
    os._exit(0)
for name in sys.argv[1:]: signal.signal(getattr(signal, name), save)
print("trainer", os.getpid(), flush=True)
while True: signal.pause()
"""
# A trainer with a service in a process group of its own, which ends by the first signal.
# The kernel tells start times in hundredths of a second: what starts in that of the signal may have
# been begun by it.
USER = ("import os, subprocess, time\n"
        "service = subprocess.Popen(['sleep', '1000'], preexec_fn=os.setpgrp)\ntime.sleep(0.02)")
USER += TRAINER.replace("    with open", "    assert service.poll() is None\n    with open")
# Saves in steps, which go on where they were after a pause of the machine.
STEPPER = """
import os, signal, sys, time
def save(number, frame):
    os.write(1, b"saving\\n")
    for _ in range(int(sys.argv[1])): time.sleep(0.02)
    with open("checkpoint", "w") as file: file.write("whole")
    os._exit(0)
signal.signal(signal.SIGTERM, save)
print("trainer", os.getpid(), flush=True)
while True: signal.pause()
"""
# What sudo(8) is, to its parent.
FOREIGN = """
import os, signal
os.setresuid(1, 1, 1)
print("foreign", os.getpid(), flush=True)
while True: signal.pause()
"""
# A trainer that saves, and uploads then by a program in a process group or session of its own.
UPLOADER = """
import os, signal, subprocess, sys
def save(number, frame):
    upload = [sys.executable, "upload.py", sys.argv[2]]
    if sys.argv[1] == "group": subprocess.run(upload, preexec_fn=os.setpgrp)
    if sys.argv[1] == "session": subprocess.Popen(upload, start_new_session=True)
    os._exit(0)
signal.signal(signal.SIGTERM, save)
print("trainer", os.getpid(), flush=True)
while True: signal.pause()
"""
# Has forked, as a DataLoader does: a child that dies of a signal ends the trainer before it saves.
FORKER = """
import os, signal, sys, time
child = os.fork()
if child == 0:
    while True: signal.pause()
time.sleep(0.02)  # the child is older than the signal, by what the kernel tells
asked = False
def ask(number, frame):
    global asked
    asked = True
signal.signal(signal.SIGTERM, ask)
print("trainer", os.getpid(), flush=True)
while not asked: time.sleep(0.01)
for _ in range(20):  # steps until the one that saves
    time.sleep(0.02)
    assert os.waitpid(child, os.WNOHANG) == (0, 0), "a forked child was killed"
with open("checkpoint", "w") as file: file.write("whole")
"""
# Only notes when it is asked, and when its child is.
DEAF = """
import os, signal, sys, time
def note(name):
    def at(number, frame):
        with open(name + ".new", "w") as file: file.write(str(time.monotonic()))
        os.rename(name + ".new", name)
        if name == "heard" and number == signal.SIGINT: os._exit(0)
    return at
for number in (signal.SIGTERM, signal.SIGINT): signal.signal(number, note("heard"))
if os.fork() == 0:
    while True: signal.pause()
for number in (signal.SIGTERM, signal.SIGINT): signal.signal(number, note("asked"))
time.sleep(0.02)
print("trainer", os.getpid(), flush=True)
while True: signal.pause()
"""
# Says what it hears and goes on; only SIGTERM ends it.
NOTER = """
import os, signal
def note(number, frame):
    os.write(1, b"heard %d\\n" % number)
def save(number, frame):
    with open("checkpoint", "w") as file: file.write("whole")
    os._exit(0)
for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP): signal.signal(number, note)
signal.signal(signal.SIGTERM, save)
print("trainer", os.getpid(), flush=True)
while True: signal.pause()
"""
# What a successful worker leaves behind: "upload SECONDS".
UPLOAD = """
import sys, time
time.sleep(float(sys.argv[1]))
with open("uploaded", "w") as file: file.write("whole")
"""
LEAVER = """
import subprocess, sys
print("child", subprocess.Popen([sys.executable, "upload.py", *sys.argv[1:2]],
                                start_new_session="away" in sys.argv).pid, flush=True)
"""


class Files(Case):
    def setUp(self) -> None:
        super().setUp()
        for name, text in (("trainer.py", TRAINER), ("upload.py", UPLOAD), ("leaver.py", LEAVER),
                           ("uploader.py", UPLOADER), ("stepper.py", STEPPER),
                           ("foreign.py", FOREIGN), ("forker.py", FORKER),
                           ("noter.py", NOTER), ("deaf.py", DEAF), ("user.py", USER)):
            self.write(name, text)


class Stop(Files):
    def wrapper(self, line: str) -> str:
        """A script that starts the trainer and stays: a shell ends by the first signal."""
        return self.write("wrapper.sh", f"#!/bin/sh\n{line}\necho never\n")

    def train(self, *words: str) -> subprocess.Popen:
        child = self.start_elastrun("--shutdown-timeout", LONG, *words)
        self.trainer = int(self.line_with(child.stdout, "trainer").split()[-1])
        return child

    def saved(self, child: subprocess.Popen) -> str:
        said = self.ended(child)[1]
        self.assertEqual((self.folder / "checkpoint").read_text(), "whole", said)
        return said

    def cut(self, child: subprocess.Popen) -> str:
        said = self.ended(child)[1]
        self.assertFalse((self.folder / "checkpoint").exists(), said)
        return said

    def test_a_trainer_below_a_script_saves_its_checkpoint(self) -> None:
        child = self.train("--no-python", self.wrapper("python3 trainer.py SIGTERM"))
        child.terminate()
        self.line_with(child.stdout, "saving 15")
        said = self.saved(child)
        self.assertIn("The workers have up to 16 min 40 s to end; SIGTERM once more kills", said)
        self.assertRegex(said, r"waiting up to 16 min .* s for what they have left: "
                               rf"{self.trainer} \(python3 trainer.py SIGTERM\)")

    def test_so_does_one_below_a_program_that_catches_the_signal_and_only_waits(self) -> None:
        (self.folder / "waiter.py").write_text(
            "import signal, subprocess, sys\n"
            "signal.signal(signal.SIGTERM, lambda *_: None)\n"
            "subprocess.call([sys.executable, 'forker.py'])\n")
        child = self.start_elastrun("--shutdown-timeout", "40", "waiter.py")
        self.line_with(child.stdout, "trainer")
        child.terminate()
        said = self.saved(child)
        self.assertRegex(said, r"to processes that others wait for: \d+ \(\S+ forker")
        self.assertNotIn("SIGKILL", said)

    def test_what_a_trainer_has_forked_lives_until_it_has_saved(self) -> None:
        """Also below a script, one that catches the signal, and in a group of its own."""
        of_itself = ["--no-python", "timeout", "1000", sys.executable, "forker.py"]
        groups = "Sending SIGTERM to processes in other process groups: "
        for line, said in (("forker.py", ""), ("python3 forker.py", ""), (of_itself, ""),
                           ("trap true TERM; python3 forker.py", ""),
                           ("timeout 1000 python3 forker.py", ""),
                           ("trap true TERM; timeout 1000 python3 forker.py", groups)):
            with self.subTest(line):
                script = isinstance(line, str) and " " in line
                child = self.train(*(["--no-python", self.wrapper(line)] if script else
                                     [line] if isinstance(line, str) else line))
                child.terminate()
                # Long before the grace of 1000 s: the fork was asked then.
                self.assertIn(said, self.saved(child))
                (self.folder / "checkpoint").unlink()

    def test_a_deaf_trainer_keeps_its_forks_until_the_grace_is_nearly_over(self) -> None:
        child = self.start_elastrun("--shutdown-timeout", "4", "deaf.py")
        self.line_with(child.stdout, "trainer")
        child.terminate()
        self.assertIn("Unable to shutdown process", self.ended(child)[1])
        asked, saw = (float((self.folder / name).read_text()) for name in ("asked", "heard"))
        self.assertGreaterEqual(saw - asked, 2.5)

    def test_an_interrupt_reaches_the_whole_group_as_from_a_terminal(self) -> None:
        child = self.start_elastrun("--shutdown-timeout", LONG, "deaf.py")
        trainer = int(self.line_with(child.stdout, "trainer").split()[-1])
        child.send_signal(signal.SIGINT)
        wait_until((self.folder / "heard").exists, "it has heard")
        os.kill(trainer, signal.SIGKILL)
        self.ended(child)

    def test_sigusr1_for_the_launcher_alone_is_passed_on_once_and_ends_nothing(self) -> None:
        self.environment["LOGLEVEL"] = "INFO"
        child = self.train("noter.py")
        agent = int(Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text())
        for pid, number in ((child.pid, signal.SIGUSR1), (agent, signal.SIGUSR2)):
            os.kill(pid, number)
            self.line_with(child.stdout, f"heard {int(number)}")
        child.terminate()
        self.saved(child)

    def test_two_who_signal_agent_and_guardian_are_two_orders(self) -> None:
        self.environment["LOGLEVEL"] = "INFO"
        child = self.train("noter.py")
        agent = int(Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text())
        for pid in (agent, child.pid):  # each by a process of its own
            subprocess.run(["sh", "-c", f"kill -USR1 {pid}"], check=True)
            self.line_with(child.stdout, "heard 10")
        child.terminate()
        self.saved(child)

    def test_sigusr1_for_every_process_reaches_the_workers_once(self) -> None:
        self.environment["LOGLEVEL"] = "INFO"
        child = self.train("noter.py")
        for pid in self.alive():
            os.kill(pid, signal.SIGUSR1)
        self.line_with(child.stderr, "SIGUSR1 was sent to every process")
        child.terminate()
        self.assertEqual(self.ended(child)[0], "heard 10\n")

    def test_sigusr1_does_not_kill_workers_that_know_nothing_of_it(self) -> None:
        child = self.train("trainer.py", "SIGTERM")
        child.send_signal(signal.SIGUSR1)
        self.line_with(child.stderr, "SIGUSR1: no worker handles it")
        child.terminate()
        self.saved(child)

    def test_sigusr1_that_comes_while_no_workers_run_is_said_to_be_lost(self) -> None:
        port = free_port()
        child = self.start_elastrun("--nnodes=2", "--rdzv-backend=c10d",
                                    f"--rdzv-endpoint=127.0.0.1:{port}", "noter.py")
        wait_until(lambda: listens(port), "it listens, before it waits for the other node")
        child.send_signal(signal.SIGUSR1)
        self.line_with(child.stderr, "SIGUSR1: no workers run, so none got it")
        child.terminate()
        child.communicate(timeout=LIMIT)

    def test_a_signal_to_forward_reaches_the_workers_and_ends_nothing(self) -> None:
        child = self.train("--forward-signals", "SIGHUP,SIGUSR1", "noter.py")
        child.send_signal(signal.SIGHUP)
        self.line_with(child.stdout, "heard 1")
        child.send_signal(signal.SIGUSR2)  # is not among them, and ends nothing all the same
        child.send_signal(signal.SIGUSR1)
        self.line_with(child.stdout, "heard 10")
        child.terminate()
        self.saved(child)

    def test_sigterm_reaches_workers_that_go_on_after_a_listed_sigusr2(self) -> None:
        child = self.train("--signals-to-handle", "SIGTERM,SIGUSR2", "noter.py")
        child.send_signal(signal.SIGUSR2)
        self.line_with(child.stdout, "heard 12")
        child.terminate()
        self.saved(child)

    def test_a_service_lives_until_its_trainer_has_saved(self) -> None:
        child = self.train("user.py", "SIGTERM")
        child.terminate()
        self.assertNotIn("Sending SIGTERM to what is in", self.saved(child))

    def test_an_upload_that_the_signal_begins_finishes(self) -> None:
        for where in ("group", "session"):
            with self.subTest(where):
                child = self.train("uploader.py", where, str(SAVING))
                child.terminate()
                said = self.ended(child)[1]
                self.assertEqual((self.folder / "uploaded").read_text(), "whole", said)
                (self.folder / "uploaded").unlink()

    def test_an_upload_that_takes_longer_than_the_grace_is_killed(self) -> None:
        child = self.start_elastrun("--shutdown-timeout", "1", "uploader.py", "session", LONG)
        self.line_with(child.stdout, "trainer")
        child.terminate()
        self.assertIn("Killing what the workers have left", self.ended(child)[1])

    def test_one_that_never_ends_is_killed_and_named(self) -> None:
        child = self.start_elastrun("--shutdown-timeout", "1", "--no-python",
                                    self.wrapper(f"{STUB} ignore=TERM pid stay"))
        pid = self.line_with(child.stdout, "pid").split()[-1]
        child.terminate()
        self.assertRegex(self.ended(child)[1], rf"Killing what the workers have left: {pid} "
                                               rf"\({STUB} ignore=TERM")

    def test_one_end_by_two_signals_does_not_cut_it(self) -> None:
        child = self.train("trainer.py", "SIGTERM")
        child.send_signal(signal.SIGTERM)
        child.send_signal(signal.SIGHUP)  # as systemd with SendSIGHUP=
        self.saved(child)

    def test_a_pause_of_all_processes_does_not_cut_it(self) -> None:
        child = self.start_elastrun("--shutdown-timeout", "5", "stepper.py", "100")
        self.line_with(child.stdout, "trainer")
        child.terminate()
        self.line_with(child.stdout, "saving")
        job = self.alive()
        for pid in job:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(6)  # more than they have
        for pid in job:
            os.kill(pid, signal.SIGCONT)
        self.assertNotIn("SIGKILL", self.saved(child))

    def test_a_terminal_that_closes_does_not_cut_it(self) -> None:
        job = OnTerminal([ELASTRUN, "--shutdown-timeout", LONG, "trainer.py", "SIGHUP"],
                         self.environment | {"TERM": "dumb"}, str(self.folder), LIMIT)
        self.addCleanup(job.close)
        job.until(r"trainer \d+")
        os.kill(job.pid, signal.SIGHUP)  # as the shell does when it hears of the end
        job.until("saving 1")
        os.close(job.ours)  # and now the kernel
        job.ours = os.open(os.devnull, os.O_RDONLY)
        wait_until(lambda: not self.alive(), "the job has ended")
        self.assertEqual((self.folder / "checkpoint").read_text(), "whole")

    def test_every_process_of_a_step_signalled_is_one_end(self) -> None:
        child = self.train("trainer.py", "SIGTERM")
        for pid in self.alive():
            os.kill(pid, signal.SIGTERM)
        self.saved(child)

    def test_ctrl_z_reaches_the_workers_if_it_is_listed(self) -> None:
        child = self.train("--signals-to-handle", "SIGTSTP", "trainer.py", "SIGTSTP")
        child.send_signal(signal.SIGTSTP)
        self.saved(child)

    def test_the_same_signal_after_a_second_cuts_it(self) -> None:
        child = self.train("trainer.py", "SIGINT")
        child.send_signal(signal.SIGINT)
        self.line_with(child.stdout, "saving 2")
        self.line_with(child.stderr, "to end; press Ctrl+C again to kill them now")
        os.kill(self.trainer, signal.SIGSTOP)  # so that it saves for longer than this test lasts
        time.sleep(1.1)
        child.send_signal(signal.SIGINT)
        self.assertIn("SIGINT again: killing the workers", self.cut(child))

    def test_a_second_ctrl_c_cuts_it(self) -> None:
        job = OnTerminal([ELASTRUN, "--shutdown-timeout", LONG, "trainer.py", "SIGINT"],
                         self.environment | {"TERM": "dumb"}, str(self.folder), LIMIT, columns=200)
        self.addCleanup(job.close)
        trainer = int(job.until(r"trainer (\d+)")[1])
        os.write(job.ours, b"\x03")
        job.until("saving 2")
        os.kill(trainer, signal.SIGSTOP)
        job.until(r"press Ctrl\+C again to kill them now")
        time.sleep(0.2)  # faster is a key that bounces
        os.write(job.ours, b"\x03")
        self.assertEqual(job.finish(), 1)
        self.assertEqual(self.alive(), [])
        self.assertFalse((self.folder / "checkpoint").exists())

    def test_an_interrupt_ends_what_a_script_started_in_the_background(self) -> None:
        line = f"{ELASTRUN} --no-python {STUB} pid stay & echo launcher $!; wait $!; echo code $?"
        shell = self.start_words("/bin/sh", "-c", line)
        launcher = int(self.line_with(shell.stdout, "launcher").split()[-1])
        self.line_with(shell.stdout, "pid")
        os.kill(launcher, signal.SIGINT)
        self.assertEqual(self.line_with(shell.stdout, "code"), "code 1")
        self.ended(shell, 0)


NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=+setuid",
          "--ambient-caps=+setuid"]  # the last so that what it starts can become somebody else


def can_be_nobody() -> bool:
    try:
        return subprocess.run([*NOBODY, "test", "-x", ELASTRUN], check=False,
                              capture_output=True).returncode == 0
    except OSError:
        return False


@unittest.skipUnless(os.geteuid() == 0 and can_be_nobody(), "needs root, who can be anybody")
class OtherUser(Files):
    def end(self, *words: str) -> str:
        for path in (self.folder, *self.folder.iterdir()):
            os.chown(path, 65534, 65534)
        child = self.start_words(*NOBODY, ELASTRUN, "--shutdown-timeout", LONG, *words)
        self.foreign = int(self.line_with(child.stdout, "foreign").split()[-1])
        child.terminate()
        self.assertEqual(child.wait(LIMIT), 1)
        self.assertEqual(self.alive(), [self.foreign])
        os.kill(self.foreign, signal.SIGKILL)
        said = child.communicate(timeout=LIMIT)[1]
        self.assertNotIn("kernel", said)
        return said

    def test_a_worker_that_cannot_be_signalled_is_named_at_once(self) -> None:
        said = self.end("foreign.py")
        self.assertIn(f"Process {self.foreign} runs as user 1: elastrun may not signal it", said)

    def test_one_below_a_script_is_too(self) -> None:
        script = self.write("script.sh", "#!/bin/sh\npython3 foreign.py\necho never\n")
        said = self.end("--no-python", script)
        self.assertRegex(said, rf"run as other users, .*: {self.foreign} \(\S+, state S, "
                               r"of user 1\)")


class Failure(Files):
    # Goes on for a while, whatever signal it gets, when the script that has started it has failed.
    # A write that fails ends it, as it ends most trainers.
    SCRIPT = """#!/bin/sh
( trap '' TERM
for i in 1 2 3 4 5; do sleep 0.3; echo saving $i || exit 1; echo more $i >&2 || exit 1; done
echo whole > checkpoint ) &
sleep 0.2
%s
"""

    def test_a_trainer_below_a_script_that_fails_can_write_while_it_saves(self) -> None:
        for end in ("exit 4", "kill -9 $$"):
            script = self.write("script.sh", self.SCRIPT % end)
            for words in ([], ["-r", "3"], ["-t", "3"]):
                with self.subTest(f"{end} {words}"):
                    logs = self.folder / f"logs {end[:4]} {words[:1]}"
                    done = self.run_elastrun("--shutdown-timeout", LONG, f"--log-dir={logs}",
                                             *words, "--no-python", script)
                    self.assertEqual(done.returncode, 1)
                    self.assertTrue((self.folder / "checkpoint").exists(), done.stderr)
                    (self.folder / "checkpoint").unlink()
                    files = [path.read_text() for path in logs.glob("*/*/0/std*.log")]
                    for text in ("saving 5\n", "more 5\n"):
                        self.assertIn(text, "".join([done.stdout, done.stderr, *files]))


class Leavings(Files):
    """Children of workers that have succeeded."""

    def test_an_upload_of_a_successful_worker_finishes(self) -> None:
        for where in ("here", "away"):
            with self.subTest(where):
                done = self.run_elastrun("--shutdown-timeout", LONG, "leaver.py", str(SAVING),
                                         where)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertEqual((self.folder / "uploaded").read_text(), "whole")
                pid = done.stdout.split()[-1]
                self.assertRegex(done.stderr, r"waiting up to 16 min .* s for what they have left: "
                                              rf"{pid} \(\S*python\S* upload.py {SAVING}\)")
                (self.folder / "uploaded").unlink()

    def test_one_that_never_ends_is_ended_and_named(self) -> None:
        done = self.run_elastrun("--shutdown-timeout", "1", "leaver.py", LONG)
        self.assertEqual(done.returncode, 0, done.stderr)
        pid = done.stdout.split()[-1]
        self.assertEqual(state_of(int(pid)), "X")
        self.assertFalse((self.folder / "uploaded").exists())
        self.assertRegex(done.stderr, rf"Ending what the workers have left.*: {pid} \(\S*python\S* "
                                      rf"upload.py {LONG}\)")

    def test_a_signal_ends_the_wait_but_does_not_change_the_success(self) -> None:
        child = self.start_elastrun("--shutdown-timeout", LONG, "leaver.py", LONG)
        self.line_with(child.stderr, "for what they have left")
        child.terminate()
        self.ended(child, 0)
