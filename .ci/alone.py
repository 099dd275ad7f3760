# SPDX-License-Identifier: Apache-2.0
"""Which headers one run of the compiler can check together, each as if it stood alone.

Nearly all of that time the compiler reads the headers of libraries. So it reads several of ours in
a row, in which none meets a header of a library that it does not include anyway, itself or by way
of others, or a declaration of ours that it mentions and does not include: what it forgot stays
missing.
"""
from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

Names = frozenset[str]


@dataclass(frozen=True)
class Reads:
    """What one header includes, itself or by way of others, and the words in it."""
    libraries: Names
    ours: Names  # itself, too
    words: Names


def rows_of(headers: dict[str, Reads], declared: dict[str, set[str]]) -> list[list[str]]:
    """Each header at the end of that row, of those that it can follow, that has read most."""
    rows: list[list[str]] = []
    for one, reads in sorted(headers.items(), key=lambda item: (len(item[1].libraries),
                                                                len(item[1].ours), item[0])):
        def can_follow(row: list[str]) -> bool:
            others = Names().union(*(headers[path].ours for path in row)) - reads.ours
            return (headers[row[-1]].libraries <= reads.libraries
                    and all(reads.words.isdisjoint(declared.get(path, ())) for path in others))
        fitting = filter(can_follow, rows)
        best = max(fitting, key=lambda row: len(headers[row[-1]].libraries), default=None)
        if best is None:
            rows.append([one])
        else:
            best.append(one)
    return rows


def words_of(text: str) -> Names:
    """Those of the code: without comments, texts and the names of what is included."""
    code = re.sub(r'"(?:\\.|[^"\\\n])*"|//[^\n]*|^\s*#\s*include.*$', "", text, flags=re.M)
    return Names(re.findall(r"\b[A-Za-z_]\w*\b", code))


def declared_in(paths: Iterable[str], tags: Iterable[dict[str, Any]],
                read: Callable[[str], str]) -> dict[str, set[str]]:
    """By header: the names that it brings into its namespace, and its macros. `tags`: of these
    headers, by ctags, which leaves out classes that are declared alone."""
    names = {path: set(re.findall(r"\b(?:class|struct) (\w+);", read(path))) for path in paths}
    for tag in tags:
        if tag.get("scopeKind", "namespace") in ("namespace", "enum"):
            names[tag["path"]].add(tag["name"])
    return names


def libraries_of(files: Iterable[str], read: Callable[[str], str]) -> Names:
    """The headers of libraries that these files of ours include."""
    return frozenset(name for path in files
                     for name in re.findall(r"^\s*#\s*include\s+<([^>]+)>", read(path), re.M))


def with_all_it_includes(name: str, compiler: list[str]) -> Names:
    """The files of a library's header; its name, where the compiler does not find it."""
    said = subprocess.run([*compiler, "-M", "-x", "c++", "-"], input=f"#include <{name}>\n",
                          capture_output=True, text=True)
    return Names(said.stdout.replace("\\\n", " ").split()[1:]) or Names([name])
