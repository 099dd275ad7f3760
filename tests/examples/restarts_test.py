# SPDX-License-Identifier: Apache-2.0
"""restarts_test.py ELASTRUN: config/examples/restarts, as its README runs it, with real torch."""
from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

from ports import free_port

ELASTRUN = Path(sys.argv.pop(1)).resolve() if len(sys.argv) > 1 else Path("elastrun")
TRAIN = Path(__file__).resolve().parents[2] / "config/examples/restarts/train.py"
LIMIT = 120.0  # seconds, for a start of torch on a busy machine


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
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))

    def start(self, *words: str, **env: str) -> subprocess.Popen[str]:
        started = subprocess.Popen([ELASTRUN, "--worker-lib", *words], cwd=self.folder, text=True,
                                   env={**os.environ, "OMP_NUM_THREADS": "1", **env},
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.addCleanup(self.end, started)
        return started

    @staticmethod
    def end(started: subprocess.Popen[str]) -> None:
        if started.poll() is None:
            started.kill()
        started.communicate()

    def test_a_preempted_job_goes_on_where_it_left_and_one_with_a_bug_does_not(self) -> None:
        words = ("--nproc-per-node=2", "--preempt-signals=SIGTERM", "--report=report.json",
                 str(TRAIN), "--loaders=1")
        job = self.start(*words)
        end = time.monotonic() + LIMIT
        while not (self.folder / "checkpoint.pt").exists():
            self.assertIsNone(job.poll(), "ended before it saved")
            self.assertLess(time.monotonic(), end)
            time.sleep(0.01)
        job.send_signal(signal.SIGTERM)
        out, _ = job.communicate(timeout=LIMIT)
        self.assertEqual(job.returncode, 75, out)
        preemption = json.loads((self.folder / "report.json").read_text())["preemption"]
        self.assertEqual(preemption["lost_steps"], 0, out)
        left = preemption["saved_step"]
        # By themselves, behind the save: the launcher stops no trainer that is on its way.
        self.assertEqual(out.count(f"leaves after step {left}\n"), 2, out)

        again = self.start("--max-restarts=10", "--restart-policy=auto", str(TRAIN),
                           f"--bug-at={left + 3}")
        out, _ = again.communicate(timeout=LIMIT)
        self.assertEqual(again.returncode, 93, out)
        # Where the second failure comes within 5 s, a third start follows.
        self.assertIn(out.count(f"begins at step {left + 1}\n"), (2, 3), out)
        self.assertIn("twice the same ValueError@train.py:", out)

    def test_a_peer_that_went_is_no_verdict_on_the_program(self) -> None:
        (self.folder / "peer.py").write_text(PEER)
        job = self.start("--nproc-per-node=2", "--max-restarts=1", "--restart-policy=auto",
                         "--report=report.json", "peer.py")
        out, _ = job.communicate(timeout=LIMIT)
        self.assertEqual(job.returncode, 1, out)
        ledger = json.loads((self.folder / "report.json").read_text())["restart_ledger"]["ledger"]
        self.assertEqual([(one["class"], one["step"]) for one in ledger], [("external", 1)] * 2,
                         out)

    def test_the_spare_takes_the_place_of_a_bad_node(self) -> None:
        common = ("--nnodes=1", "--max-restarts=5", "--restart-policy=auto", "--rdzv-backend=c10d",
                  f"--rdzv-endpoint=127.0.0.1:{free_port()}", "--rdzv-id=bad-node")
        script = (str(TRAIN), "--bad-node", "--steps=20", "--every=100")
        bad = self.start("--local-addr=127.0.0.1", *common, *script, THIS_NODE_IS_BAD="1")
        assert bad.stdout is not None
        for line in bad.stdout:  # it has the place before the other one comes
            if "begins at step" in line:
                break
        good = self.start("--local-addr=127.0.0.2", *common, *script)
        out, _ = good.communicate(timeout=LIMIT)
        self.assertEqual(good.returncode, 0, out)
        self.assertIn("begins at step 1\n", out)  # behind the checkpoint of step 0
        rest, _ = bad.communicate(timeout=LIMIT)
        self.assertEqual(bad.returncode, 0, rest)
        self.assertEqual(rest.count("begins at step"), 1, rest)  # the second start
