# SPDX-License-Identifier: Apache-2.0
"""The file system of the rendezvous is full while a job runs: full_disk_test.py ELASTRUN STUB."""
from __future__ import annotations

import contextlib
import ctypes
import json
import subprocess
import time
from pathlib import Path

from harness import Job, wait_until
from jobs_test import INFO, Elastic

LIBC = ctypes.CDLL(None, use_errno=True)
FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE = 1, 2  # <linux/falloc.h>


class FullDisk(Elastic):
    # isolation_timeout: raised to what a member needs to stop, so that about two seconds without a
    # renewal stop the workers.
    conf = "last_call_timeout=1,lease_ttl=1,isolation_timeout=1"

    def setUp(self) -> None:
        super().setUp()
        self.disk = self.mount()
        self.where = ["--rdzv-backend=file", f"--rdzv-endpoint={self.disk}"]

    def mount(self) -> Path:
        """A file system of 64 KiB, of a process that alone has it mounted, and dies with us."""
        point = self.folder / "disk"
        point.mkdir()
        words = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c",
                 f"mount -t tmpfs -o size=64k none {point} && echo mounted && read done"]
        holder = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, text=True)
        self.addCleanup(holder.communicate)
        assert holder.stdout is not None
        said = holder.stdout.readline().strip()
        if said != "mounted":
            self.skipTest(f"no file system can be mounted here: {said}")
        return Path(f"/proc/{holder.pid}/root{point}")

    def member(self, nodes: str) -> Job:
        return self.waits(nodes, options=("--shutdown-timeout=1",), env=INFO)

    def fill(self) -> None:
        with open(self.disk / "filler", "wb", buffering=0) as file, \
                contextlib.suppress(OSError):
            for _ in range(1000):
                file.write(b"x" * 512)
        with self.assertRaises(OSError):
            (self.disk / "more").write_bytes(b"x")
        (self.disk / "more").unlink()

    def starve(self) -> None:
        """As on a file system that copies on write: the block that the next renewal takes is of no
        use. It may come in between and have that block, so this is to be repeated."""
        with open(self.disk / "elastrun-job.json", "r+b", buffering=0) as file:
            text = file.read()
            size = len(text) // 2
            versions = [0]
            for slot in (text[:size], text[size:]):
                with contextlib.suppress(ValueError):
                    versions.append(json.loads(slot)["version"])
            start = (max(versions) + 1) % 2 * size
            done = LIBC.fallocate(file.fileno(), FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE,
                                  ctypes.c_long(start), ctypes.c_long(size))
            self.assertEqual(done, 0)
        self.fill()

    def heartbeat(self) -> int:
        text = (self.disk / "elastrun-job.json").read_text()
        heartbeats = [-1]
        for line in text.splitlines():
            with contextlib.suppress(ValueError):
                heartbeats.append(json.loads(line)["heartbeat"])
        return max(heartbeats)

    def renews(self, *jobs: Job, heartbeats: int = 15) -> None:
        """For so long that a lease which is not renewed would have lapsed, and workers ended."""
        last = self.heartbeat() + heartbeats
        wait_until(lambda: self.heartbeat() >= last or any(
            "could not renew" in job.errors() or len(self.worlds(job)) > 1
            for job in jobs), "it is renewed, or not")
        for job in jobs:
            self.assertEqual(len(self.worlds(job)), 1, job.errors())

    def test_a_full_disk_stops_nobody(self) -> None:
        jobs = [self.member("2"), self.member("2")]
        for job in jobs:
            job.wait_for("^WORLD_SIZE=2")
        self.fill()
        self.renews(*jobs)
        (self.disk / "filler").unlink()
        self.renews(*jobs)
        self.go_on(*jobs)
        self.assertEqual([self.attempts(job) for job in jobs], [["0"]] * 2)
        # The end of the job is kept there, and nothing else.
        self.assertEqual({path.name for path in self.disk.iterdir()},
                         {"elastrun-job.json", "elastrun-job.json.lock"})

    def test_the_world_of_a_full_disk_is_recorded(self) -> None:
        # A round begins only once it is recorded, and a successor is elected by the same file.
        first = self.member("1:2")
        first.wait_for("^WORLD_SIZE=1")
        self.fill()
        second = self.member("1:2")
        self.world(first, second, size=2)
        leader = first if "coordinates the job" in first.errors() else second
        other = second if leader is first else first
        leader.process.terminate()
        self.assertNotEqual(leader.end(), 0)
        self.world(other, size=1)
        self.go_on(other)
        leader.nothing_left()

    def test_renewals_that_find_no_room_are_told_once(self) -> None:
        self.conf = "last_call_timeout=1,lease_ttl=1"
        job = self.member("1:2")
        job.wait_for("^WORLD_SIZE=1")
        self.fill()
        said = "cannot renew its election; make room there"
        for count in (1, 2):
            wait_until(lambda n=count: job.errors().count(said) == n or self.starve(), "it says so",
                       job.errors)
            time.sleep(2)  # in which several renewals fail
            (self.disk / "filler").unlink()
            self.renews(job, heartbeats=3)
            self.fill()
        self.assertEqual(job.errors().count(said), 2, job.errors())
        self.go_on(job)
