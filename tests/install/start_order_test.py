# SPDX-License-Identifier: Apache-2.0
"""start_order_test.py PROGRAM LIST: the functions of a start lie side by side in the program."""
from __future__ import annotations

import subprocess
import sys
import unittest
from pathlib import Path

PROGRAM, LIST = (Path(word) for word in sys.argv[1:])


class StartOrder(unittest.TestCase):
    def test_the_functions_of_a_start_lie_side_by_side(self) -> None:
        wanted = {line[len(".text."):] for line in LIST.read_text().splitlines()
                  if line.startswith(".text._Z")}
        lines = subprocess.run(["nm", "-n", "--defined-only", PROGRAM], check=True,
                               capture_output=True, text=True).stdout.splitlines()
        code = [(int(row[0], 16), row[2]) for row in map(str.split, lines)
                if len(row) == 3 and row[1] in "tTwW"]
        there = [at for at, name in code if name in wanted]
        self.assertGreater(len(wanted), 1000)
        self.assertGreater(len(there), len(wanted) / 2)
        whole = code[-1][0] - code[0][0]
        # All but a few: the linker has folded a function, or another file has one of that name.
        first, last = there[len(there) // 20], there[-len(there) // 20]
        self.assertLess(last - first, whole / 5)
