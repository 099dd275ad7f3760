# SPDX-License-Identifier: Apache-2.0
"""Jobs of several agents that know each other by IPv6 only: loopback6_test.py ELASTRUN STUB_WORKER
"""
from __future__ import annotations

import importlib.util
import sys
import unittest
from pathlib import Path

from harness import Job
from jobs_test import Elastic
from ports import free_port

NETNS = Path(__file__).resolve().parents[1] / "netns"


def has_six() -> bool:
    try:
        free_port("::1")
    except OSError:
        return False
    return True


@unittest.skipUnless(has_six(), "this machine has no ::1")
class Loopback6(Elastic):
    def setUp(self) -> None:
        super().setUp()
        self.where = ["--rdzv-backend=c10d", f"--rdzv-endpoint=[::1]:{free_port('::1')}"]

    def start(self, count: int, *words: str | Path, nproc: int = 1) -> list[Job]:
        options = [*self.where, "--local-addr=::1", f"--nnodes={count}", "--rdzv-id=job",
                   f"--nproc-per-node={nproc}"]
        return [self.stack.enter_context(Job(*options, *words, env={"GLOO_SOCKET_IFNAME": "lo"}))
                for _ in range(count)]

    def meet(self) -> None:
        jobs = self.start(3, "--no-python", sys.executable, "-u", NETNS / "meet.py")
        self.all_end(*jobs)
        for job in jobs:
            self.assertEqual(job.lines(r"^MASTER_ADDR=(.*)"), ["::1"])
            self.assertEqual(job.lines(r"^met 3$"), ["met 3"])

    def test_agents_meet_at_an_endpoint(self) -> None:
        self.meet()

    def test_agents_meet_by_a_file(self) -> None:
        self.by_file()
        self.meet()

    def test_static_ranks(self) -> None:
        port = free_port("::1")
        jobs = []
        for rank in range(2):
            self.where = ["--master-addr=::1", f"--master-port={port}", f"--node-rank={rank}"]
            jobs.append(self.stack.enter_context(Job(
                *self.where, "--nnodes=2", "--no-python", sys.executable, "-u", NETNS / "meet.py")))
        self.all_end(*jobs)
        for job in jobs:
            self.assertEqual(job.lines(r"^MASTER_(?:ADDR|PORT)=(.*)"), ["::1", str(port)])

    @unittest.skipUnless(importlib.util.find_spec("torch"), "no torch in this Python")
    def test_torch_works_over_it(self) -> None:
        jobs = self.start(2, NETNS / "ddp.py", nproc=2)
        self.all_end(*jobs)
        for job in jobs:
            self.assertEqual(job.lines(r"^MASTER_ADDR=(.*)"), ["::1"] * 2)
            self.assertEqual(job.lines(r"^trained (.*)"), ["4"] * 2)
