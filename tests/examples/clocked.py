# SPDX-License-Identifier: Apache-2.0
"""Trainings that clock themselves, and how far an account of goodput is from what they say."""
from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from pathlib import Path

RUNS = 3
FETCH, SAVE, LOAD = ("fetch", "fetched"), ("save", "saved"), ("load", "loaded")
EVALUATION = ("evaluate", "evaluated")


class Clock:
    """What each rank has written into a file: what, in which attempt, when, and of which step."""

    def __init__(self, *files: Path) -> None:
        self.ranks = [[json.loads(line) for line in file.read_text().splitlines()]
                      for file in files]
        self.lines = self.ranks[0]

    def times(self, what: str, attempt: int, step: int | None = None) -> list[float]:
        return [when for name, number, when, told in self.lines
                if (name, number) == (what, attempt) and step in (None, told)]

    def at(self, what: str, attempt: int, step: int | None = None) -> float:
        return self.times(what, attempt, step)[0]

    def last(self, what: str, attempt: int, step: int | None = None) -> float:
        """When the last of all ranks was there."""
        return max(when for lines in self.ranks for name, number, when, told in lines
                   if (name, number) == (what, attempt) and step in (None, told))

    def spent(self, begin: str, end: str, since: float = 0.0, until: float = 1e12) -> float:
        """All spans of an attempt from one to the other within these times."""
        total, start = 0.0, None
        for what, _, when, _ in self.lines:
            if what in (begin, "spawned"):
                start = when if what == begin else None
            elif what == end and start is not None and since <= start and when <= until:
                total += when - start
        return total

    def training(self, since: float, until: float) -> float:
        return until - since - sum(self.spent(*ends, since, until)
                                   for ends in (FETCH, SAVE, EVALUATION))

    def beyond_a_step(self, attempt: int) -> float:
        """What the step that a crash broke off took beyond a usual one: that is restart."""
        told = self.times("step", attempt)
        usual = statistics.median(map(self.training, told, told[1:]))
        return max(0.0, self.training(told[-1], self.at("crash", attempt)) - usual)


def far_off(seen: dict[str, float], said: dict[str, float], share: float, seconds: float
            ) -> set[str]:
    """The buckets that are further than that from what the script has said; prints all."""
    for name, of in sorted(said.items()):
        print(f"{name:13} {seen[name]:8.3f} s, the script saw {of:8.3f}: {seen[name] - of:+.3f}")
    return {name for name, of in said.items() if abs(seen[name] - of) > max(share * of, seconds)}


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
