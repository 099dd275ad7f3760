# SPDX-License-Identifier: Apache-2.0
"""Restarts from a fork server: who is whose child, what a fault in it costs, and that it goes."""
import json
import os
import re
import resource
import signal
import unittest
from pathlib import Path

from harness import Job, lives, stat_of, wait_until

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
# What it sees of itself and the agent gives: left in a file of each attempt and rank.
PORTRAIT = r'''
import ctypes, json, os, random, resource, sys, threading
from pathlib import Path
libc = ctypes.CDLL(None)
def of_prctl(number):
    value = ctypes.c_int()
    return libc.prctl(number, ctypes.byref(value), 0, 0, 0), value.value
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
mine = os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["LOCAL_RANK"]
Path("draft" + mine[1]).write_text(json.dumps({
    "pid": os.getpid(), "parent": os.getppid(), "draw": random.random(),
    "environment": dict(os.environ), "death signal": of_prctl(2),
    "dumpable": libc.prctl(3, 0, 0, 0, 0), "timer slack": libc.prctl(30, 0, 0, 0, 0),
    "subreaper": of_prctl(37), "leads": [os.getsid(0) - os.getpid(), os.getpgid(0) - os.getpid()],
    "terminal": os.path.exists("/dev/tty") and os.access("/dev/tty", os.R_OK),
    "cgroup": [line.split(":", 2) for line in open("/proc/self/cgroup")],
    "cpus": sorted(os.sched_getaffinity(0)), "policy": os.sched_getscheduler(0),
    "nice": os.getpriority(os.PRIO_PROCESS, 0), "umask": os.umask(0o77), "cwd": os.getcwd(),
    "limits": [resource.getrlimit(one) for one in range(16)],
    "descriptors": {one: os.readlink("/proc/self/fd/" + one).split(":")[0]
                    for one in os.listdir("/proc/self/fd") if int(one) < 3},
    "more descriptors": [one for one in os.listdir("/proc/self/fd") if int(one) > 3],
    "status": [status.get(one) for one in ("SigBlk", "SigIgn", "SigCgt", "Threads", "NoNewPrivs",
                                           "Seccomp", "CapEff", "Uid", "Gid", "Groups")],
    "oom": [Path("/proc/self/" + one).read_text()
            for one in ("oom_score_adj", "coredump_filter", "comm", "personality")],
    "cmdline": Path("/proc/self/cmdline").read_bytes().hex(), "path": sys.path, "argv": sys.argv,
    "main": sorted(vars(sys.modules["__main__"])), "own": "elastrun" in sys.modules,
    "threads": [threading.main_thread() is threading.current_thread(),
                threading.get_native_id() == os.getpid(), threading.active_count()]}))
os.rename("draft" + mine[1], "portrait" + mine[0] + mine[1])
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
    maxDiff = None

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

    def test_a_worker_sees_the_same_of_itself_both_ways(self):
        def before():
            os.umask(0o027)
            os.nice(3)
            os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
            resource.setrlimit(resource.RLIMIT_CORE, (0, 4096))
            resource.setrlimit(resource.RLIMIT_STACK, (4 << 20, 8 << 20))
            resource.setrlimit(resource.RLIMIT_NOFILE, (300, 999))
        for spares in (0, 2):
            with self.subTest(spares), Job(
                    "--nproc-per-node=2", "--max-restarts=1", "--log-dir=logs", "--redirects=3",
                    "--start-method=forkserver", f"--warm-spares={spares}", "job.py", "1",
                    files={"job.py": PORTRAIT + SCRIPT}, before=before,
                    env={"XDG_CACHE_HOME": "cache", "MINE": "a\nb=c"}) as job:
                served = Served(job, 1)
                wait_until(lambda: len(self.portraits(job, 0)) == 2, "portraits", job.errors)
                served.ready(children=spares)
                served.end(0)
                wait_until(lambda: len(self.portraits(job, 1)) == 2, "portraits", job.errors)
                agent = job.agent()
                served.end(1)
                self.assertEqual(job.end(), 0, job.errors())
                self.assertIn("Local rank 1 is forked", self.log(job))
                for executed, forked in zip(self.portraits(job, 0), self.portraits(job, 1)):
                    for one in (executed, forked):
                        self.assertEqual(one.pop("parent"), agent)
                        # Each attempt has its own cgroup, files, count and port.
                        one["cgroup"] = [[*some, re.sub(r"-\d+$", "-N", path.strip())]
                                         for *some, path in one["cgroup"]]
                        one["environment"] = {
                            name: "" if name in ("MASTER_PORT", "TORCHELASTIC_RESTART_COUNT")
                            else value.replace("/attempt_1/", "/attempt_0/")
                            for name, value in one["environment"].items()}
                    for changes in ("pid", "draw"):
                        self.assertNotEqual(forked.pop(changes), executed.pop(changes))
                    self.assertEqual(forked, executed)

    def portraits(self, job, attempt):
        return [json.loads(one.read_text())
                for one in sorted(job.folder.glob(f"portrait{attempt}?"))]

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
