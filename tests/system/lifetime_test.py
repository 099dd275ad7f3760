# SPDX-License-Identifier: Apache-2.0
"""No process of a job outlives it, however it ends, and nothing else is touched."""
import os
import signal
import subprocess
import unittest

from harness import STUB, Job, lives, stat_of, stub, wait_until
from ports import free_port

AWFUL = ("child=setsid", "child=setsid,double,deaf", "child=setsid,double,bare,deaf,deep", "say=up")


class Lifetime(unittest.TestCase):
    def start(self, *steps: str, options: tuple[str, ...] = ()) -> Job:
        """Two workers with three grandchildren each that do all they can to stay."""
        job = Job("--nproc-per-node=2", "--shutdown-timeout=1", *options, *stub(*AWFUL, *steps))
        job.wait_for("^up$", 2)
        job.said |= {int(pid) for pid in job.wait_for(r"^child (\d+)", 6)}
        return job

    def test_after_success(self) -> None:
        with self.start("exit=0").ended() as job:
            job.nothing_left()
            self.assertEqual(list(job.temporary.iterdir()), [])

    def test_after_failure(self) -> None:
        with self.start("only=1", "wait=go", "exit=3", "all", "stay") as job:
            job.tell("go").ended(1)
            job.nothing_left()

    def test_between_attempts(self) -> None:
        with self.start("attempt=0", "only=1", "wait=go", "exit=3", "all", "attempt=0", "stay",
                        "all", "wait=end", options=("--max-restarts=1",)) as job:
            first = set(job.said)
            (job.folder / "go").touch()
            job.wait_for("^up$", 4)
            wait_until(lambda: not any(lives(pid) for pid in first), "the first attempt is gone")
            job.said |= {int(pid) for pid in job.wait_for(r"^child (\d+)", 12)}
            job.tell("end").ended()
            job.nothing_left()

    def test_after_each_signal(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
            with self.subTest(number.name), self.start("stay") as job:
                job.stopped(1, number)
                job.nothing_left()

    def test_after_kill_9_of_the_agent(self) -> None:
        with self.start("stay") as job:
            os.kill(job.agent(), signal.SIGKILL)
            self.assertEqual(job.end(), -signal.SIGKILL)
            job.nothing_left()
            self.assertEqual(list(job.temporary.iterdir()), [])

    def test_after_kill_9_of_the_guardian(self) -> None:
        with self.start("stay") as job:
            job.process.kill()
            self.assertEqual(job.end(), -signal.SIGKILL)
            job.nothing_left()

    def test_after_kill_9_of_both_nothing_is_left_below_a_wrapper(self) -> None:
        script = f"'{STUB}' pid ignore=TERM ignore=HUP stay; exit"  # the shell waits for its child
        with Job("--nproc-per-node=2", "--no-python", "sh", "-c", script) as job:
            job.said |= {int(pid) for pid in job.wait_for(r"^pid (\d+)", 2)}
            agent = job.agent()
            for pid in (job.process.pid, agent):  # stopped, none of them sees the other's end
                os.kill(pid, signal.SIGSTOP)
            for pid in (job.process.pid, agent):
                os.kill(pid, signal.SIGKILL)
            self.assertEqual(job.end(), -signal.SIGKILL)
            job.nothing_left()

    def test_after_a_signal_that_nobody_handles(self) -> None:
        with self.start("stay") as job:
            job.stopped(-signal.SIGALRM, signal.SIGALRM)
            job.nothing_left()

    def test_strangers_are_left_alone(self) -> None:
        with subprocess.Popen(["sleep", "1000"]) as stranger:
            with self.start("only=0", "wait=go", "exit=1", "all", "stay") as job:
                job.tell("go").end()
                job.nothing_left()
            self.assertIsNone(stranger.poll())
            stranger.kill()


class Signals(unittest.TestCase):

    def test_ignored_signals_stay_ignored(self) -> None:
        def nohup() -> None:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)

        with Job(*stub("pid", "stay"), before=nohup) as job:
            job.wait_for("^pid")
            job.process.send_signal(signal.SIGHUP)
            job.stopped(1)
            self.assertIn("Received 15 death signal", job.errors())
            self.assertNotIn("Received 1 death signal", job.errors())

    def test_a_stopped_worker_can_be_ended(self) -> None:
        with Job("--shutdown-timeout=1000", *stub("on=TERM:0", "pid", "stop", "stay")) as job:
            pid = int(job.wait_for(r"^pid (\d+)")[0])
            wait_until(lambda: (stat_of(pid) or "?")[0] == "T", "the worker has stopped")
            job.stopped(1)
            job.nothing_left()

    def test_a_signal_while_nobody_has_started_yet(self) -> None:
        with Job("--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{free_port()}",
                 *stub("stay"), env={"LOGLEVEL": "INFO"}) as job:
            job.wait_for("Rendezvous'ing|waiting", 1, job.err)
            job.stopped(1)
            job.nothing_left()
