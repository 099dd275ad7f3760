# SPDX-License-Identifier: Apache-2.0
"""What the tests of this folder have in common: the programs, from their arguments, and a job."""
from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ELASTRUN, CTL = (os.path.abspath(word) for word in sys.argv[1:3])
ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {k: v for k, v in os.environ.items()
               if not k.startswith(("PET_", "SLURM_", "ELASTRUN_", "TORCHELASTIC"))}
# For workers that import elastrun.
LIBRARY = {"PYTHONPATH": str(ROOT / "lib/python"), "PYTHONDONTWRITEBYTECODE": "1"}
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

    def end(self, child: subprocess.Popen[str]) -> tuple[str, str]:
        if child.poll() is None:
            child.terminate()
        return child.communicate(timeout=60)

    def ctl(self, *words: str, env: dict[str, str] | None = None) -> tuple[int, str, str]:
        done = subprocess.run([CTL, *words], capture_output=True, text=True, timeout=60,
                              env=self.environment | (env or {}), check=False)
        return done.returncode, done.stdout, done.stderr
