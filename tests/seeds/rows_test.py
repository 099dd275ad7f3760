# SPDX-License-Identifier: Apache-2.0
"""elastrun-seeds(7): each row has a state and a test that exists; its names are in the package,
with these parameters, or in the C++ libraries.
"""
from __future__ import annotations

import functools
import importlib
import inspect
import re
import sys
import unittest
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve()
ROOT = HERE.parents[2]
sys.path.insert(0, str(ROOT / "lib" / "python"))
PAGE = ROOT / "man" / "elastrun-seeds.7"
STATES = {"Same", "Better", "Differs", "Missing"}
TITLE = re.compile(r"""def (test_\w+)|TEST_CASE(?:_FIXTURE\(\s*\w+,|\()\s*"([^"]*)"|"""
                   r"""^    "([^"]+)": """, re.M)


class Row(NamedTuple):
    thing: str
    state: str
    said: list[str]
    test: str


def rows() -> list[Row]:
    """Those of the lists below the chapters of the documents."""
    found: list[Row] = []
    chapter = ""
    for line in PAGE.read_text().splitlines():
        if line.startswith(".Sh "):
            chapter = line[4:]
        if chapter in ("NAME", "DESCRIPTION", "SEE ALSO"):
            continue
        if line.startswith(".It "):
            found.append(Row(line[4:], "", [], ""))
        elif found and line.startswith(".Sy "):
            found[-1] = found[-1]._replace(state=line.split()[1])
        elif found and line.startswith(".Pq Pa "):
            found[-1] = found[-1]._replace(test=line[7:])
        elif found and not line.startswith((".Sh ", ".Bl ", ".El")):
            found[-1].said.append(line)
    return found


@functools.cache
def titles(file: str) -> str:
    """The names of the tests of all files of that name, and the text of what has no such names."""
    texts = [one.read_text() for one in (ROOT / "tests").rglob(file)]
    if not file.endswith((".py", ".cpp")) or file == "upstream.py":
        return "\n".join(texts)
    return "\n".join(" ".join(part for part in found if part)
                     for text in texts for found in TITLE.findall(text))


def resolve(name: str) -> Any:
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        for part in parts[end:]:
            found = getattr(found, part)
        return found
    raise ModuleNotFoundError(name)


class Rows(unittest.TestCase):
    def test_each_row_has_a_state_and_a_test_that_exists(self) -> None:
        self.assertGreaterEqual(len(rows()), 228)
        for row in rows():
            with self.subTest(row.thing):
                self.assertIn(row.state, STATES)
                if row.state == "Missing":
                    continue
                file, _, words = row.test.partition(" : ")
                self.assertTrue(list((ROOT / "tests").rglob(file)), f"no file {file}")
                self.assertIn(words, titles(file), f"no test of {file} is called so")

    def test_each_name_is_in_the_package_with_its_parameters(self) -> None:
        checked = 0
        for row in rows():
            for line in row.said:
                if not line.startswith(".Li elastrun"):
                    continue
                name, _, parameters = line.split()[1].partition("(")
                with self.subTest(line):
                    found = resolve(name)
                    checked += 1
                    names = [one for one in parameters.rstrip(")").split(",") if one]
                    if names:
                        known = inspect.signature(found).parameters
                        self.assertEqual([one for one in names if one not in known], [])
        self.assertGreater(checked, 100)

    def test_each_name_of_cpp_is_in_a_header(self) -> None:
        headers = "\n".join(one.read_text() for one in (ROOT / "lib").rglob("*.hpp"))
        for row in rows():
            for names in re.findall(r"C\+\+: ([\w:, ]+)", " ".join(row.said)):
                for name in re.findall(r"[\w:]*[A-Z_:]\w*", names):
                    with self.subTest(name):
                        self.assertRegex(headers, rf"\b{name.rsplit('::', 1)[-1]}\b")
