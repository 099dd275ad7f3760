# SPDX-License-Identifier: Apache-2.0
"""What workers have of their agent, and what not: limits, secrets, a channel, and each other."""
import os
import resource
import signal
import sys
import tempfile
import unittest
from collections.abc import Callable
from pathlib import Path

from harness import Job, wait_until

# Worker 0 returns at once. Worker 1 looks whether it has really ended, for longer than an
# interpreter takes to end, and says so.
TOGETHER = """
import os, pathlib, select, sys
rank, file = os.environ["RANK"], pathlib.Path("pid")
if rank == "0":
    file.with_suffix(".new").write_text(str(os.getpid()))
    file.with_suffix(".new").rename(file)
else:
    while not file.exists():
        select.select([], [], [], 0.01)
    fd = os.pidfd_open(int(file.read_text()))
    print("gone" if select.select([fd], [], [], 2)[0] else "there", flush=True)
    {end}
"""
CONNECTIONS = """
import os, socket
all = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(45)]
for one in all: one.connect(os.environ["ELASTRUN_CHANNEL"])
"""
# A cleaner of temporary files comes by during the first attempt.
CLEANED = """
import os, shutil, socket, sys
path = os.environ["ELASTRUN_CHANNEL"]
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    shutil.rmtree(os.path.dirname(path))
    sys.exit(1)
socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET).connect(path)
print("connected")
"""


def limited(soft: int, hard: int | None = None) -> Callable[[], None]:
    """Sets how many files the launcher may open."""
    return lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard or soft))


class RunPath(unittest.TestCase):
    def together(self, end: str = "") -> Job:
        return Job("--run-path", "--nproc-per-node=2", script=TOGETHER.format(end=end))

    def done_below(self, text: str, *words: str) -> None:
        """Where the interpreter is this script, PYTHON in it."""
        python = Path(self.enterContext(tempfile.TemporaryDirectory()), "python")
        python.write_text("#!/bin/sh\n" + text.replace("PYTHON", f'"{sys.executable}" "$@"'))
        python.chmod(0o755)
        with Job("--run-path", *words, env={"PYTHON_EXEC": str(python)},
                 script="print('done')").ended() as job:
            self.assertEqual(job.output(), "done\n")

    def test_who_has_returned_waits_for_the_others(self) -> None:
        with self.together().ended() as job:
            self.assertEqual(job.output(), "there\n")

    def test_whoever_ends_without_returning_is_not_waited_for(self) -> None:
        for end in ("sys.exit(0)", "os._exit(0)"):
            with self.subTest(end), self.together(end).ended():
                pass

    def test_who_has_returned_may_be_below_a_script_that_starts_the_interpreter(self) -> None:
        self.done_below("PYTHON\nexit $?\n")

    def test_who_has_returned_may_be_in_a_session_of_its_own(self) -> None:
        # The second one is no descendant of its worker any more, and may go when it has returned.
        for start in ("exec setsid -w", "setsid"):
            with self.subTest(start):
                self.done_below(f"{start} PYTHON\n", "--shutdown-timeout=1000")

    def test_a_failure_ends_those_who_wait(self) -> None:
        with self.together("raise ValueError('boom')").ended(1) as job:
            self.assertIn("boom", job.errors())
            job.nothing_left()


class Limits(unittest.TestCase):
    def test_a_channel_that_was_removed_is_there_again_for_the_next_attempt(self) -> None:
        for options in ((), ("--redirects=2", "--log-dir=logs")):
            with self.subTest(options), Job("--max-restarts=1", *options,
                                            script=CLEANED).ended() as job:
                self.assertEqual(job.output(), "connected\n")

    def test_connections_of_workers_do_not_use_up_the_agents_descriptors(self) -> None:
        with Job("--run-path", "--nproc-per-node=3", before=limited(64),
                 script=CONNECTIONS).ended() as job:
            said = job.lines("No more processes of the workers can report", job.err)
            self.assertEqual(len(said), 1)

    def test_the_agent_may_open_more_and_workers_what_the_user_gave(self) -> None:
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        script = "echo soft $(ulimit -Sn) hard $(ulimit -Hn); read line"
        read, write = os.pipe()
        with Job("--no-python", "sh", "-c", script, before=limited(300, hard), stdin=read) as job:
            shown = "unlimited" if hard == resource.RLIM_INFINITY else str(hard)
            self.assertEqual(job.wait_for("^soft .*"), [f"soft 300 hard {shown}"])
            self.assertEqual(resource.prlimit(job.agent(), resource.RLIMIT_NOFILE), (hard, hard))
            os.close(write)
            job.end()
        os.close(read)


class Secrets(unittest.TestCase):
    def test_workers_do_not_get_what_opens_the_rendezvous(self) -> None:
        env = {"ELASTRUN_SECRET": "between us", "PET_RDZV_CONF": "user=u,password=hidden"}
        with Job("--no-python", "env", env=env).ended() as job:
            self.assertIn("TORCHELASTIC_RUN_ID", job.output())
            for text in ("between us", "hidden"):
                self.assertNotIn(text, job.output())


class Channel(unittest.TestCase):
    """Where the path of the run is too long for a socket, it lies in a folder of its own."""

    def start(self, *words: str) -> Job:
        job = Job("--log-dir=" + "x" * 100, "--no-python", "sh", "-c",
                  "echo at $ELASTRUN_CHANNEL; " + " ".join(words))
        self.addCleanup(job.__exit__)
        return job

    def folder_of(self, job: Job) -> Path:
        path = Path(job.wait_for("^at (.*)")[0])
        self.assertEqual(path.parent.parent, job.temporary)
        return path.parent

    def test_its_folder_goes_with_the_job(self) -> None:
        job = self.start("true")
        folder = self.folder_of(job)
        self.assertEqual(job.end(), 0, job.errors())
        self.assertFalse(folder.exists())

    def test_its_folder_goes_with_an_agent_that_is_killed(self) -> None:
        job = self.start("sleep 600")
        folder = self.folder_of(job)
        self.assertTrue(folder.exists())
        os.kill(job.agent(), signal.SIGKILL)
        job.end()
        wait_until(lambda: not folder.exists(), "the folder is gone")
