# SPDX-License-Identifier: Apache-2.0
"""Histograms with buckets that grow by 2^(1/32), as in the agent: quantiles are within 1.09 %.

A bucket is known by the sign of its values (-1, 0, 1) and, but for zero, its index: bucket i of
positive values holds those above 2^(i/32), up to 2^((i+1)/32).
"""
from __future__ import annotations

import math
from typing import Any

_SCALE = 5  # 2^5 buckets for each doubling
_BUCKETS = 1 << _SCALE
_LAST_BUCKET = 1024 * _BUCKETS - 1  # its end is a double still; it also has what is beyond
_MOST_BUCKETS = 400  # of a packet


def _end_of(sign: int, index: int) -> float:
    """The end of a bucket that is away from zero."""
    return sign * math.pow(2, (index + 1) / _BUCKETS)


class Sketch:
    """Counts of the finite numbers in each bucket."""

    __slots__ = ("counts",)

    def __init__(self) -> None:
        self.counts: dict[tuple[int, int], int] = {}  # by sign and index

    def add(self, number: float) -> None:
        sign = (number > 0) - (number < 0)
        index = math.ceil(math.log2(abs(number)) * _BUCKETS) if sign else 1
        key = (sign, min(index, _LAST_BUCKET) - 1)
        self.counts[key] = self.counts.get(key, 0) + 1

    def _rising(self) -> list[tuple[int, int, int]]:
        """Sign, index and count, from the lowest values on."""
        rising = sorted(self.counts, key=lambda key: (key[0], key[0] * key[1]))
        return [(*key, self.counts[key]) for key in rising]

    def buckets(self) -> list[tuple[float, int]]:
        """The end of each one that has values, away from zero, and how many; from the lowest."""
        return [(_end_of(sign, index), count) for sign, index, count in self._rising()]

    def at(self, rank: float) -> float:
        left = max(math.ceil(rank * sum(self.counts.values())), 1)
        for sign, index, count in self._rising():
            left -= count
            if left <= 0:
                return _end_of(sign, index) * (2 / (math.pow(2, 1 / 32) + 1))
        return 0.0

    def members(self) -> dict[str, Any]:
        """Members of a packet of type histogram. Where there are too many buckets, or they lie too
        far apart, each two become one, and again.
        """
        scale = _SCALE
        while True:
            told: dict[int, dict[int, int]] = {1: {}, -1: {}, 0: {}}
            for (sign, index), count in self.counts.items():
                place = index >> (_SCALE - scale)
                told[sign][place] = told[sign].get(place, 0) + count
            widths = [max(part) - min(part) + 1 for sign, part in told.items() if sign and part]
            if scale == -8 or (sum(len(part) for part in told.values()) <= _MOST_BUCKETS
                               and max(widths, default=0) <= 640):
                break
            scale -= 1
        fields: dict[str, Any] = {"type": "histogram", "scale": scale}
        if told[0]:
            fields["zeros"] = told[0][0]
        for sign, name in ((1, "buckets"), (-1, "negative")):
            if told[sign]:
                fields[name] = sorted([index, count] for index, count in told[sign].items())
        return fields
