# SPDX-License-Identifier: Apache-2.0
"""Compiles each header alone, which finds what it forgot to include.

Nearly all of that time the compiler reads the same headers of libraries. So it reads a few sets of
them once, precompiled, and a header begins with the best set that holds nothing but what the header
includes anyway, itself or by way of ours: what it forgot stays missing.
"""
from __future__ import annotations

import hashlib
import os
import re
import subprocess
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations
from pathlib import Path

SETS = 8
BOOST = 10  # what reading one of its headers costs, in headers of the standard library
Includes = frozenset[str]


def cost(includes: Includes) -> int:
    return sum(BOOST if name.startswith("boost/") else 1 for name in includes)


def candidates(all_includes: Iterable[Includes]) -> set[Includes]:
    """For each header of a library, and each two: what all that include them include."""
    with_it: dict[tuple[str, ...], Includes] = {}
    for includes in all_includes:
        for some in [(name,) for name in includes] + list(combinations(sorted(includes), 2)):
            with_it[some] = with_it.get(some, includes) & includes
    return set(with_it.values())


def choose_sets(all_includes: Iterable[Includes]) -> list[Includes]:
    """At most SETS sets, each time the one that saves most."""
    users = list(all_includes)
    saved, pool, chosen = [0] * len(users), candidates(users), []
    fits = {one: [i for i, user in enumerate(users) if one <= user] for one in pool}

    def gain(one: Includes) -> int:
        return sum(max(0, cost(one) - saved[i]) for i in fits[one]) - 2 * cost(one)
    while pool and len(chosen) < SETS:
        best = max(pool, key=lambda one: (gain(one), sorted(one)))
        if gain(best) <= 0:
            break
        chosen.append(best)
        pool.remove(best)
        for i in fits[best]:
            saved[i] = max(saved[i], cost(best))
    return chosen


class Beginnings:
    """Sets of headers of libraries, precompiled into a folder."""

    def __init__(self, headers: dict[str, Includes], compiler: list[str], folder: Path) -> None:
        self.sets = choose_sets(headers.values())
        self.files = [folder / f"{hashlib.sha256(repr(sorted(one)).encode()).hexdigest()}.hpp"
                      for one in self.sets]
        self.compiler = compiler
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(self.precompile, self.sets, self.files))

    def precompile(self, names: Includes, file: Path) -> None:
        # A set that does not compile is not used: its headers then tell the error.
        file.write_text("".join(f"#include <{name}>\n" for name in sorted(names)))
        subprocess.run([*self.compiler, "-x", "c++-header", str(file), "-o", f"{file}.gch"],
                       capture_output=True)

    def of(self, includes: Includes) -> list[str]:
        """The compiler's words for the best one that holds nothing else."""
        fitting = [(cost(one), str(file)) for one, file in zip(self.sets, self.files)
                   if one <= includes and Path(f"{file}.gch").exists()]
        return ["-include", max(fitting)[1]] if fitting else []

    def remove(self) -> None:
        for file in self.files:
            file.unlink(missing_ok=True)
            Path(f"{file}.gch").unlink(missing_ok=True)


def includes_of(files: Iterable[str], read: Callable[[str], str]) -> Includes:
    """The headers of libraries that these files of ours include."""
    return frozenset(name for path in files
                     for name in re.findall(r"^\s*#\s*include\s+<([^>]+)>", read(path), re.M))
