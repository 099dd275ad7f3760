# SPDX-License-Identifier: Apache-2.0
"""frameworks_test.py ELASTRUN: --goodput auto with Lightning's and Hugging Face's trainers, against
scripts that clock themselves, with two crashes and a resume each. Each bucket is within 5 % or
0.3 s of what the script says in one of three runs; the differences are printed.
"""
from __future__ import annotations

import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from repeated import always_wrong

ELASTRUN = str(Path(sys.argv[1]).resolve()) if len(sys.argv) > 1 else "elastrun"
HERE = Path(__file__).resolve().parent
SHARE, SECONDS = 0.05, 0.3
RESUMED = {0: 0, 1: 10, 2: 20}  # after how many steps each attempt goes on


class Clock:
    def __init__(self, path: Path) -> None:
        self.lines = [json.loads(line) for line in path.read_text().splitlines()]

    def spent(self, begin: str, end: str, since: float = 0.0, until: float = 1e12) -> float:
        """All spans of an attempt from one to the other within these times."""
        total, start = 0.0, None
        for what, _, when, _ in self.lines:
            if what in (begin, "spawned"):
                start = when if what == begin else None
            elif what == end and start is not None and since <= start and when <= until:
                total += when - start
        return total

    def times(self, what: str, attempt: int) -> list[float]:
        return [when for name, number, when, _ in self.lines if (name, number) == (what, attempt)]

    def training(self, since: float, until: float) -> float:
        return until - since - sum(self.spent(*ends, since, until) for ends in (
            ("evaluate", "evaluated"), ("save", "saved"), ("fetch", "fetched")))


class Frameworks(unittest.TestCase):
    def run_script(self, script: str) -> tuple[dict, Clock]:
        at = Path(self.enterContext(tempfile.TemporaryDirectory()))
        env = dict(os.environ, TMPDIR=str(at), OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1",
                   PYTHONDONTWRITEBYTECODE="1", PYTHONWARNINGS="ignore", HOME=str(at))
        done = subprocess.run(
            [ELASTRUN, "--nproc-per-node=1", "--max-restarts=2", "--goodput=auto",
             "--report=report.json", str(HERE / script)],
            env=env, cwd=at, text=True, capture_output=True, timeout=800)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        report = json.loads((at / "report.json").read_text())["goodput"]
        return report, Clock(at / "clock.jsonl")

    def compare(self, script: str) -> None:
        self.assertEqual(always_wrong(lambda: self.measure(script)), set())

    def measure(self, script: str) -> set[str]:
        report, clock = self.run_script(script)
        made = max(step or 0 for what, *_, step in clock.lines if what == "step")
        self.assertEqual((report["restarts"], report["last_step"], report["loss_known"]),
                         (2, made - 1, True))
        said = {"evaluation": clock.spent("evaluate", "evaluated"),
                "checkpoint": clock.spent("save", "saved") + clock.spent("load", "loaded"),
                "lost": 0.0, "productive": 0.0,
                "data_loading": clock.spent("fetch", "fetched")}
        for attempt in RESUMED:
            first = clock.times("step", attempt)[0]
            end = clock.times("step", attempt)[-1]
            said["productive"] += clock.training(first, end)
            if attempt + 1 in RESUMED:
                kept = next(when for what, number, when, step in clock.lines
                            if (what, number, step) == ("saved", attempt, RESUMED[attempt + 1]))
                # Of the step that the crash broke off, what a usual one takes; the rest is restart.
                told = clock.times("step", attempt)
                broken_off = clock.training(end, clock.times("crash", attempt)[0])
                usual = statistics.median(map(clock.training, told, told[1:]))
                broken_off = min(broken_off, usual)
                said["lost"] += clock.training(kept, end) + broken_off
                said["productive"] += broken_off
        said["productive"] -= said["lost"]
        seen = report["buckets_s"]
        far = set()
        for name, seconds in said.items():
            print(f"{name:11} {seen[name]:7.3f} s, the script saw {seconds:7.3f}")
            if abs(seen[name] - seconds) > max(SHARE * seconds, SECONDS):
                far.add(name)
        return far

    @unittest.skipUnless(importlib.util.find_spec("lightning"), "this Python has no lightning")
    def test_lightning(self) -> None:
        self.compare("measured_lightning.py")

    @unittest.skipUnless(importlib.util.find_spec("transformers")
                         and importlib.util.find_spec("accelerate"),
                         "this Python has no transformers and accelerate")
    def test_hugging_face(self) -> None:
        self.compare("measured_hf.py")


if __name__ == "__main__":
    if not any(map(importlib.util.find_spec, ("lightning", "transformers"))):
        print("skipped: python3 has neither lightning nor transformers")
        sys.exit(77)
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
