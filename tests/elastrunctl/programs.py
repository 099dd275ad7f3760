# SPDX-License-Identifier: Apache-2.0
"""What the tests of this folder have in common: the programs, from their arguments, and a job."""
from __future__ import annotations

import json
import subprocess
import tempfile
import unittest
from pathlib import Path
from typing import Any

import harness
from harness import ENVIRONMENT

ELASTRUN, CTL = str(harness.PROGRAM), str(harness.CTL)
LIBRARY = {"PYTHONPATH": harness.PACKAGE}  # for workers that import elastrun
LIMIT = 120.0
# Steps 1 to 4, a checkpoint of 2; the first start fails then, the second one goes on at 3.
TRAINER = """
import os, sys, time, elastrun
again = os.environ["TORCHELASTIC_RESTART_COUNT"] != "0"
for step in range(3 if again else 1, 7 if again else 5):
    time.sleep(0.05)
    elastrun.step(step)
    if step == 2: elastrun.checkpoint_done(2)
sys.exit(0 if again else 7)
"""


class Programs(unittest.TestCase):
    """Each test has a folder for its programs, and ends those that still run."""

    def setUp(self) -> None:
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.environment = ENVIRONMENT

    def start(self, *words: str, env: dict[str, str] | None = None,
              **more: object) -> subprocess.Popen[str]:
        more = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | more
        child = subprocess.Popen(words, text=True, cwd=self.folder,
                                 env=self.environment | (env or {}), **more)
        self.addCleanup(self.end, child)
        return child

    def end(self, child: subprocess.Popen[str]) -> None:
        if child.poll() is None:
            child.terminate()
        child.wait(LIMIT)
        for stream in (child.stdin, child.stdout, child.stderr):
            if stream is not None and not stream.closed:
                stream.close()

    def ctl(self, *words: str, env: dict[str, str] | None = None) -> tuple[int, str, str]:
        done = subprocess.run([CTL, *words], capture_output=True, text=True, timeout=60,
                              env=self.environment | (env or {}), check=False)
        return done.returncode, done.stdout, done.stderr

    def goodput(self, *words: object, text: str = "", **more: Any
                ) -> subprocess.CompletedProcess[str]:
        """What `elastrunctl goodput` makes of these words, in the folder of the test."""
        return subprocess.run([CTL, "goodput", *map(str, words)], input=text, capture_output=True,
                              timeout=60, env=self.environment, check=False, cwd=self.folder,
                              **{"text": True} | more)

    def account(self, *files: object, text: str = "") -> dict[str, Any]:
        """What `goodput report --json` says: its buckets are all of the time."""
        got = self.goodput("report", "--json", *files, text=text)
        self.assertEqual((got.returncode, got.stderr), (0, ""))
        account: dict[str, Any] = json.loads(got.stdout)
        self.assertAlmostEqual(sum(account["buckets_s"].values()), account["elapsed_s"], places=6)
        return account

    def run_job(self, *options: str, script: str = TRAINER) -> Path:
        """A job "night" that succeeds after a restart; its journal."""
        (self.folder / "train.py").write_text(script)
        before = set(self.folder.glob("logs/*/journal.jsonl"))
        done = subprocess.run(
            [ELASTRUN, "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "--rdzv-id=night",
             "--max-restarts=1", "--log-dir=logs", "--report=report.json", *options, "train.py"],
            cwd=self.folder, timeout=LIMIT, capture_output=True, text=True,
            env=ENVIRONMENT | LIBRARY)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.said = done.stderr
        (journal,) = set(self.folder.glob("logs/*/journal.jsonl")) - before
        return journal
