# SPDX-License-Identifier: Apache-2.0
"""What the tests of this folder have in common: the programs, from their arguments, and a job."""
from __future__ import annotations

import os
import sys
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
