# SPDX-License-Identifier: Apache-2.0
"""frameworks_test.py ELASTRUN: --goodput auto with Lightning's and Hugging Face's trainers, against
scripts that clock themselves, with two crashes and a resume each. Each bucket is within 5 % or
0.3 s of what the script says in one of three runs; the differences are printed.
"""
from __future__ import annotations

import importlib.util
import tempfile
import unittest
from pathlib import Path

import harness
from clocked import EVALUATION, FETCH, LOAD, SAVE, Clock, always_wrong, far_off

harness.LIMIT = 800.0
RESUMED = {0: 0, 1: 10, 2: 20}  # after how many steps each attempt goes on


class Frameworks(unittest.TestCase):
    def compare(self, script: str) -> None:
        self.assertEqual(always_wrong(lambda: self.measure(script)), set())

    def measure(self, script: str) -> set[str]:
        env = {"HF_HUB_OFFLINE": "1", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONWARNINGS": "ignore",
               "HOME": self.enterContext(tempfile.TemporaryDirectory())}
        job = self.enterContext(harness.Job(
            "--nproc-per-node=1", "--max-restarts=2", "--goodput=auto", "--report=report.json",
            Path(__file__).with_name(script), env=env)).ended()
        report, clock = job.report()["goodput"], Clock(job.folder / "clock.jsonl")
        made = max(step or 0 for what, *_, step in clock.lines if what == "step")
        self.assertEqual((report["restarts"], report["last_step"], report["loss_known"]),
                         (2, made - 1, True))
        said = {"evaluation": clock.spent(*EVALUATION), "data_loading": clock.spent(*FETCH),
                "checkpoint": clock.spent(*SAVE) + clock.spent(*LOAD), "lost": 0.0,
                "productive": 0.0}
        for attempt in RESUMED:
            first, *_, end = clock.times("step", attempt)
            if attempt + 1 in RESUMED:
                end = clock.at("crash", attempt)
                beyond = clock.beyond_a_step(attempt)
                kept = clock.at("saved", attempt, RESUMED[attempt + 1])
                said["lost"] += clock.training(kept, end) - beyond
                said["productive"] -= beyond
            said["productive"] += clock.training(first, end)
        said["productive"] -= said["lost"]
        return far_off(report["buckets_s"], said, share=0.05, seconds=0.3)

    @unittest.skipUnless(importlib.util.find_spec("lightning"), "this Python has no lightning")
    def test_lightning(self) -> None:
        self.compare("measured_lightning.py")

    @unittest.skipUnless(importlib.util.find_spec("transformers")
                         and importlib.util.find_spec("accelerate"),
                         "this Python has no transformers and accelerate")
    def test_hugging_face(self) -> None:
        self.compare("measured_hf.py")
