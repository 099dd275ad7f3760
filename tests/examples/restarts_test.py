# SPDX-License-Identifier: Apache-2.0
"""restarts_test.py ELASTRUN: config/examples/restarts, as its README runs it, with real torch."""
from __future__ import annotations

import importlib.util
import tempfile
import unittest
from pathlib import Path

import harness
from harness import Job, wait_until
from ports import free_port

harness.LIMIT = 120.0  # seconds, for a start of torch on a busy machine
TRAIN = Path(__file__).resolve().parents[2] / "config/examples/restarts/train.py"
# Rank 0 fails in a collective because rank 1 has left it, with whatever words gloo has for that.
PEER = """\
import os, torch, torch.distributed as dist, elastrun
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
elastrun.step(1)
if os.environ["RANK"] == "1":
    os._exit(0)
dist.all_reduce(torch.ones(1))
"""


@unittest.skipUnless(importlib.util.find_spec("torch"), "python3 has no torch")
class Restarts(unittest.TestCase):
    def setUp(self) -> None:
        self.checkpoint = Path(self.enterContext(tempfile.TemporaryDirectory())) / "checkpoint.pt"

    def start(self, *words: str | Path, **env: str) -> Job:
        return self.enterContext(Job("--worker-lib", "--report=report.json", *words,
                                     files={"peer.py": PEER}, env=env))

    def train(self, *words: str) -> tuple[str | Path, ...]:
        return TRAIN, f"--checkpoint={self.checkpoint}", *words

    def test_a_preempted_job_goes_on_where_it_left_and_one_with_a_bug_does_not(self) -> None:
        job = self.start("--nproc-per-node=2", "--preempt-signals=SIGTERM",
                         *self.train("--loaders=1"))
        wait_until(lambda: self.checkpoint.exists() or job.process.poll() is not None, "it saves")
        job.stopped(75)
        preemption = job.report()["preemption"]
        self.assertEqual(preemption["lost_steps"], 0, job.errors())
        left = preemption["saved_step"]
        # By themselves, behind the save: the launcher stops no trainer that is on its way.
        self.assertEqual(job.output().count(f"leaves after step {left}\n"), 2, job.errors())

        again = self.start("--max-restarts=10", "--restart-policy=auto",
                           *self.train(f"--bug-at={left + 3}")).ended(93)
        # Where the second failure comes within 5 s, a third start follows.
        self.assertIn(again.output().count(f"begins at step {left + 1}\n"), (2, 3))
        self.assertIn("twice the same ValueError@train.py:", again.errors())

    def test_a_peer_that_went_is_no_verdict_on_the_program(self) -> None:
        job = self.start("--nproc-per-node=2", "--max-restarts=1", "--restart-policy=auto",
                         "peer.py").ended(1)
        ledger = job.report()["restart_ledger"]["ledger"]
        self.assertEqual([(one["class"], one["step"]) for one in ledger], [("external", 1)] * 2,
                         job.errors())

    def test_the_spare_takes_the_place_of_a_bad_node(self) -> None:
        common = ("--nnodes=1", "--max-restarts=5", "--restart-policy=auto", "--rdzv-backend=c10d",
                  f"--rdzv-endpoint=127.0.0.1:{free_port()}", "--rdzv-id=bad-node")
        script = self.train("--bad-node", "--steps=20", "--every=100")
        bad = self.start("--local-addr=127.0.0.1", *common, *script, THIS_NODE_IS_BAD="1")
        bad.wait_for("begins at step")  # it has the place before the other one comes
        good = self.start("--local-addr=127.0.0.2", *common, *script).ended()
        self.assertIn("begins at step 1\n", good.output())  # behind the checkpoint of step 0
        self.assertEqual(bad.end(), 0, bad.errors())
        self.assertEqual(bad.output().count("begins at step"), 2)  # the second start
