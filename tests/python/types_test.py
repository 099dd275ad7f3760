#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The types of the package, as mypy --strict reads them for users: it says py.typed."""
from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "lib" / "python"


class Types(unittest.TestCase):
    def test_mypy_strict_finds_nothing(self) -> None:
        program = shutil.which("mypy")
        words = [program] if program is not None else [sys.executable, "-m", "mypy"]
        if program is None and importlib.util.find_spec("mypy") is None:
            self.skipTest("no mypy here: pip install mypy")
        self.assertTrue((PACKAGE / "elastrun" / "py.typed").is_file())
        with tempfile.TemporaryDirectory() as cache:
            done = subprocess.run([*words, "--strict", f"--cache-dir={cache}", "elastrun"],
                                  cwd=PACKAGE, text=True, capture_output=True, timeout=280)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


if __name__ == "__main__":
    unittest.main()
