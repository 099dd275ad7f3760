# SPDX-License-Identifier: Apache-2.0
"""goodput_test.py ELASTRUN: the buckets of --goodput auto, against a script that clocks itself.

Two workers with gloo, two crashes, a hang. Each bucket of the report has to be what the script saw,
within 2 % or a third of a second: the cores are shared with other tests, and a bucket may lie
between what two processes see. The differences are printed.
"""
from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path
from typing import Any

ELASTRUN = str(Path(sys.argv[1]).resolve()) if len(sys.argv) > 1 else "elastrun"
SCRIPT = Path(__file__).resolve().parent / "measured_ddp.py"
SHARE, SECONDS = 0.02, 0.3
# What the launcher sees alone; it is small, and their sum is compared.
LAUNCHER = ("startup", "rendezvous", "restart", "stopping", "queued", "custom")
RESUMED = {0: 0, 1: 10, 2: 30}  # the first step of each attempt
CRASHED, HANG = {0: 16, 1: 30}, 42  # the last step before it; the step that waits


class Clock:
    """What both ranks have written."""

    def __init__(self, folder: Path) -> None:
        self.lines = [[(what, attempt, when) for what, attempt, when in
                       map(json.loads, (folder / f"clock-{rank}.jsonl").read_text().splitlines())]
                      for rank in range(2)]

    def at(self, what: str, attempt: int, rank: int = 0) -> float:
        return next(when for name, number, when in self.lines[rank]
                    if (name, number) == (what, attempt))

    def between(self, begin: str, end: str, since: float = 0, until: float = 1e12) -> float:
        """Of rank 0, all spans from one to the other, which begin and end within these times."""
        total, start = 0.0, None
        for what, _, when in self.lines[0]:
            if what == begin:
                start = when
            elif what == end and start is not None and since <= start and when <= until:
                total += when - start
        return total


def wanted(clock: Clock, ended: float, hung: bool) -> dict[str, float]:
    """The buckets, from the script's clock; `ended` is when its processes had gone. What follows
    the last step, the end of the interpreter too, is productive.
    """
    attempts = sorted(RESUMED)
    of = dict.fromkeys(("setting up", "running", "productive", "lost", "hang"), 0.0)
    saves, loads = clock.between("save", "saved"), clock.between("load", "loaded")
    for attempt in attempts:
        first = clock.at(f"step {RESUMED[attempt]}", attempt)
        initialised = max(clock.at("initialised", attempt, rank) for rank in range(2))
        fetch, fetched = clock.at("fetch", attempt), clock.at("fetched", attempt)
        of["setting up"] += initialised - clock.at("spawned", attempt) + first - fetched
        of["running"] += fetch - initialised - clock.between(
            "load", "loaded", clock.at("spawned", attempt), fetch)
        end = clock.at("crash", attempt, 1) if attempt in CRASHED else ended
        of["productive"] += end - first - clock.between("fetch", "fetched", first, end) \
            - clock.between("save", "saved", first, end)
    for attempt, crashed in CRASHED.items():
        begin = max(when for what, number, when in clock.lines[0]
                    if what == "saved" and number == attempt)
        end = clock.at("crash", attempt, 1)
        of["lost"] += end - begin - clock.between("fetch", "fetched", begin, end)
    of["productive"] -= of["lost"]
    of["data_loading"] = clock.between("fetch", "fetched")
    if hung:
        begin, end = clock.at(f"step {HANG - 1}", 2), clock.at(f"step {HANG}", 2)
        waited = clock.between("fetch", "fetched", begin, end)
        of["hang"] = end - begin
        of["productive"] -= end - begin - waited
        of["data_loading"] -= waited
    of["checkpoint"] = saves + loads
    ends = [clock.at("crash", attempt, 1) for attempt in CRASHED]
    of["launcher"] = sum(clock.at("spawned", attempt + 1) - end
                         for attempt, end in enumerate(ends))
    return of


class Buckets(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        (self.folder / "tmp").mkdir()

    def import_seconds(self) -> float:
        begin = time.monotonic()
        subprocess.run([sys.executable, "-c", "import torch, torch._dynamo"], check=True,
                       timeout=300)
        return time.monotonic() - begin

    def test_each_bucket_is_what_the_script_saw(self) -> None:
        # Shorter than the hang, and longer than any import of two at a time.
        limit = max(3.0, 3 * self.import_seconds())
        env = dict(os.environ, TMPDIR=str(self.folder / "tmp"), OMP_NUM_THREADS="1",
                   PYTHONDONTWRITEBYTECODE="1")
        done = subprocess.run(
            [ELASTRUN, "--nproc-per-node=2", "--max-restarts=2", "--goodput=auto",
             f"--hang-timeout={limit:.1f}", "--report=report.json", str(SCRIPT),
             f"{limit + 2:.1f}"],
            env=env, cwd=self.folder, text=True, capture_output=True, timeout=500)
        ended = time.time()
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        report = json.loads((self.folder / "report.json").read_text())
        goodput = report["goodput"]
        self.assertEqual((goodput["restarts"], goodput["last_step"], goodput["loss_known"]),
                         (2, 49, True))
        hangs = done.stderr.count("the job hangs:")
        if hangs != 1:  # an import that took longer than the limit is one, too
            self.skipTest(f"{hangs} hangs were seen: this machine is too slow just now")
        self.compare(goodput, wanted(Clock(self.folder), ended, hung=True))

    def compare(self, goodput: dict[str, Any], script: dict[str, float]) -> None:
        seen = dict(goodput["buckets_s"])
        self.assertAlmostEqual(sum(seen.values()), goodput["elapsed_s"], places=6)
        # Where imports end and initialisation begins only the store knows.
        seen["setting up"] = seen.pop("preparation") + seen.pop("device_init")
        seen["launcher"] = sum(seen.pop(one) for one in LAUNCHER)
        self.assertEqual(set(seen), set(script))
        far = []
        for name, seconds in sorted(script.items()):
            away = seen[name] - seconds
            line = f"{name:12} {seen[name]:8.3f} s, the script saw {seconds:8.3f}: {away:+.3f}"
            print(line)
            if abs(away) > max(SHARE * seconds, SECONDS):
                far.append(line)
        self.assertEqual(far, [])


if __name__ == "__main__":
    if importlib.util.find_spec("torch") is None:
        print("skipped: python3 has no torch")
        sys.exit(77)
    unittest.main(argv=sys.argv[:1])
