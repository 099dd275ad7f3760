# SPDX-License-Identifier: Apache-2.0
"""Measurements that another program on the machine may disturb."""
from __future__ import annotations

from collections.abc import Callable

RUNS = 3


def always_wrong(measure: Callable[[], set[str]]) -> set[str]:
    """Which figures are wrong in each run; `measure` makes one, and names those that are. A pause
    between two readings of a clock moves seconds from one figure to another, and hits others in the
    next run. A fault of ours is in all of them."""
    wrong = measure()
    for _ in range(RUNS - 1):
        if not wrong:
            break
        print("measured again:", ", ".join(sorted(wrong)), flush=True)
        wrong &= measure()
    return wrong
