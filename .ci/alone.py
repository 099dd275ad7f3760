# SPDX-License-Identifier: Apache-2.0
"""Which headers one run of the compiler can check together, each as if it stood alone.

Nearly all of that time the compiler reads the headers of libraries. So it reads several of ours in
a row, in an order in which none meets a header of a library that it does not include anyway, itself
or by way of ours: what it forgot stays missing. Of ours, a header may see more: those before it in
its row. The source of the same name includes it first, and so sees none of them.
"""
from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

Names = frozenset[str]


@dataclass(frozen=True)
class Reads:
    """What one header includes, itself or by way of others."""
    libraries: Names
    ours: Names

    def before(self, other: Reads) -> bool:
        """Adds nothing of a library to what the other one sees, and of ours only itself."""
        return self.libraries <= other.libraries and self.ours <= other.ours


def rows_of(headers: dict[str, Reads]) -> list[list[str]]:
    """As few rows as can hold all headers (Dilworth: a largest matching of neighbours)."""
    order = sorted(headers, key=lambda one: (len(headers[one].libraries),
                                             len(headers[one].ours), one))
    after = {one: [other for other in order[place + 1:] if headers[one].before(headers[other])]
             for place, one in enumerate(order)}
    previous: dict[str, str] = {}

    def find_next(one: str, tried: set[str]) -> bool:
        for other in after[one]:
            if other in tried:
                continue
            tried.add(other)
            if other not in previous or find_next(previous[other], tried):
                previous[other] = one
                return True
        return False
    for one in order:
        find_next(one, set())
    rows: dict[str, list[str]] = {}
    for one in order:  # by its last header; the neighbour before it comes earlier in this order
        rows[one] = [*rows.pop(previous[one], []), one] if one in previous else [one]
    return list(rows.values())


def libraries_of(files: Iterable[str], read: Callable[[str], str]) -> Names:
    """The headers of libraries that these files of ours include."""
    return frozenset(name for path in files
                     for name in re.findall(r"^\s*#\s*include\s+<([^>]+)>", read(path), re.M))
