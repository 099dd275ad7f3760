#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Restarts from a fork server: who is whose child, what a fault in it costs, and that it goes."""
import os
import signal
import unittest
from pathlib import Path

from harness import Job, lives, main, stat_of, wait_until

# Ends each attempt but the last when it is told to by a file, and says who it is.
SCRIPT = r'''
import gc, os, sys, time, decimal
attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
sizes = [line.split()[1] for line in open("/proc/self/smaps_rollup") if "Private_Dirty" in line]
words = ("worker", attempt, os.environ["LOCAL_RANK"], os.getpid(), os.getppid(),
         os.getsid(0) == os.getpid(), gc.get_freeze_count() > 0, sizes[0])
os.write(1, (" ".join(map(str, words)) + "\n").encode())
while not os.path.exists("end" + attempt):
    time.sleep(0.005)
sys.exit(1 if os.environ["LOCAL_RANK"] == "0" and attempt != sys.argv[1] else 0)
'''
SERVER = "forkserver.py"
POLL, RECVMSG = ("7", "47") if os.uname().machine == "x86_64" else ("73", "212")


class Served:
    """A job with a fork server, and its workers by attempt and local rank."""

    def __init__(self, job, last):
        self.job, self.last = job, last

    def workers(self, attempt, count=2):
        pattern = rf"^worker {attempt} (\d \d+ \d+ \w+ \w+ \d+)$"
        found = [one.split() for one in self.job.wait_for(pattern, count)]
        return {int(one[0]): (int(one[1]), int(one[2]), one[3] == "True", one[4] == "True",
                              int(one[5])) for one in found}

    def servers(self):
        """Those that serve or will."""
        found = []
        for entry in os.listdir("/proc"):
            try:
                words = Path(f"/proc/{entry}/cmdline").read_bytes().split(b"\0")
                folder = os.readlink(f"/proc/{entry}/cwd")
            except OSError:
                continue
            ours = folder == str(self.job.folder) and any(
                one.endswith(SERVER.encode()) for one in words)
            if ours and lives(int(entry)):
                found.append(int(entry))
        return found

    def ready(self, children=0):
        """The server waits in poll(2), its children in recvmsg(2) for their order."""
        def is_so():
            try:
                calls = [Path(f"/proc/{one}/syscall").read_text().split()[0]
                         for one in self.servers()]
            except OSError:
                return False
            return sorted(calls) == [RECVMSG] * children + [POLL]
        wait_until(is_so, f"a server and {children} children wait", self.job.errors)

    def end(self, attempt):
        (self.job.folder / f"end{attempt}").touch()


class ForkServer(unittest.TestCase):
    def job(self, *words, last=1, **more):
        more.setdefault("env", {})["XDG_CACHE_HOME"] = "cache"
        return Job("--nproc-per-node=2", f"--max-restarts={last}", "--log-dir=logs", *words,
                   "job.py", str(last), files={"job.py": SCRIPT}, **more)

    def log(self, job):
        return next((job.folder / "logs").glob("*/agent.log")).read_text()

    def test_a_restart_is_forked_and_the_agent_is_the_parent(self):
        with self.job("--start-method=forkserver", "--warm-spares=0", last=2) as job:
            served = Served(job, 2)
            first = served.workers(0)
            self.assertFalse(any(one[3] for one in first.values()))
            served.ready()
            for attempt in (1, 2):
                served.end(attempt - 1)
                for pid, parent, leads, forked, private in served.workers(attempt).values():
                    self.assertEqual((parent, leads, forked), (job.agent(), True, True))
                    self.assertLess(private, 10_000)
            server = served.servers()[0]
            served.end(2)
            self.assertEqual(job.end(), 0, job.errors())
            self.assertFalse(lives(server))
            self.assertIn("Local rank 1 is forked", self.log(job))
            job.nothing_left()

    def test_warm_spares_are_taken_and_made_again(self):
        with self.job("--start-method=auto", "--warm-spares=2", last=2) as job:
            served = Served(job, 2)
            served.workers(0)
            for attempt in (1, 2):
                served.ready(children=2)
                spares = {one for one in served.servers() if stat_of(one)[1] == str(job.agent())
                          and os.getsid(one) == one}
                served.end(attempt - 1)
                pids = {one[0] for one in served.workers(attempt).values()}
                self.assertLessEqual(pids, spares)
            served.end(2)
            self.assertEqual(job.end(), 0, job.errors())
            job.nothing_left()

    def test_a_server_that_was_killed_or_stopped_costs_no_more_than_an_exec(self):
        for fault in (signal.SIGKILL, signal.SIGSTOP):
            with self.subTest(fault), self.job("--start-method=forkserver",
                                               "--warm-spares=0") as job:
                served = Served(job, 1)
                served.workers(0)
                served.ready()
                os.kill(served.servers()[0], fault)
                served.end(0)
                for _, parent, leads, forked, _ in served.workers(1).values():
                    self.assertEqual((parent, leads, forked), (job.agent(), True, False))
                served.end(1)
                self.assertEqual(job.end(), 0, job.errors())
                self.assertIn("without the fork server", job.errors())
                job.nothing_left()

    def test_nothing_is_left_of_an_agent_that_was_killed(self):
        with self.job("--start-method=forkserver") as job:
            served = Served(job, 1)
            served.workers(0)
            served.ready(children=2)
            os.kill(job.agent(), signal.SIGKILL)
            job.end()
            wait_until(lambda: not served.servers(), "server and spares are gone")
            job.nothing_left()


if __name__ == "__main__":
    main()
