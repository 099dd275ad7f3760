# SPDX-License-Identifier: Apache-2.0
"""Histograms with buckets that grow by 2^(1/32), as in the agent: quantiles are within 1.09 %.

A bucket is known by the sign of its values (-1, 0, 1) and, but for zero, its index: bucket i of
positive values holds those above 2^(i/32), up to 2^((i+1)/32).
"""
from __future__ import annotations

import math
from typing import Any

__all__ = ["bucket_of", "end_of", "members"]

SCALE = 5  # 2^5 buckets for each doubling
_BUCKETS = 1 << SCALE
_LAST_BUCKET = 1024 * _BUCKETS - 1  # its end is a double still; it also has what is beyond
_MOST_BUCKETS = 400  # of a packet


def bucket_of(number: float) -> tuple[int, int]:
    """Of a number that is finite."""
    sign = (number > 0) - (number < 0)
    if not sign:
        return (0, 0)
    return (sign, min(math.ceil(math.log2(abs(number)) * _BUCKETS), _LAST_BUCKET) - 1)


def end_of(sign: int, index: int) -> float:
    """The end of a bucket that is away from zero."""
    return sign * math.pow(2, (index + 1) / _BUCKETS)


def members(buckets: dict[tuple[int, int], int]) -> dict[str, Any]:
    """Of a packet of type histogram. Where there are too many buckets, or they lie too far apart,
    each two become one, and again.
    """
    scale = SCALE
    while True:
        told: dict[int, dict[int, int]] = {1: {}, -1: {}, 0: {}}
        for (sign, index), count in buckets.items():
            place = index >> (SCALE - scale)
            told[sign][place] = told[sign].get(place, 0) + count
        widths = [max(part) - min(part) + 1 for sign, part in told.items() if sign and part]
        if scale == -8 or (sum(len(part) for part in told.values()) <= _MOST_BUCKETS
                           and max(widths, default=0) <= 640):
            break
        scale -= 1
    fields: dict[str, Any] = {"scale": scale}
    if told[0]:
        fields["zeros"] = told[0][0]
    for sign, name in ((1, "buckets"), (-1, "negative")):
        if told[sign]:
            fields[name] = sorted([index, count] for index, count in told[sign].items())
    return fields
