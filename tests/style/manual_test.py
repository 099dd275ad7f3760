# SPDX-License-Identifier: Apache-2.0
"""What elastrun(1) and its neighbours say of variables and exit codes, held against the sources."""
from __future__ import annotations

import re
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = {path: path.read_text() for folder in ("lib", "apps")
           for pattern in ("*.cpp", "*.hpp", "*.py")
           for path in sorted((ROOT / folder).rglob(pattern))}
# Without comments, on lines of their own or after two blanks.
CODE = "\n".join(re.sub(r"(^\s*|  )(//|# ).*", "", text, flags=re.M) for text in SOURCES.values())
PAGES = {path.name: path.read_text() for path in sorted((ROOT / "man").iterdir())}
BADPUT = SOURCES[ROOT / "lib/python/elastrun/checkpoint_badput_calculator.py"]
OTHERS = {
    "ACTIVITY_EXCLUSION_LIST",  # a name of ml-goodput-measurement
    "ASSIGN_WORKER_RANKS",  # a state of torchelastic's events
    "F_ADD_SEALS", "F_SEAL_GROW", "F_SEAL_SEAL", "F_SEAL_SHRINK", "F_SEAL_WRITE",  # of fcntl(2)
    "RETURN_LIMIT",         # a name that elastrun.multiprocessing.payload exports
    # OpenBLAS's, which a forked worker heeds as OpenBLAS does.
    "OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS",
    "ELASTRUN_FORKSERVER_SKIP",  # what a fork server tells the one that takes its place
    "ELASTRUN_CALLED_BY",  # what python -m elastrun tells the program; workers do not get it
    "ELASTRUN_TEST_FORKSERVER",  # of our tests
    "PET_ROLE",             # an example of PET_NAME
    "STAT_EVENT",           # a name that elastrun.monitor exports
    # Buckets of ml-goodput-measurement.
    *(name for source in ("compat/goodput_calculator.cpp", "ledger/ledger.cpp", "ledger/ledger.hpp")
      for name in re.findall(r'"([A-Z_]+)"', SOURCES[ROOT / "lib/goodput" / source])),
    # What it calls its operations on checkpoints, also without the first two words.
    *re.findall(r"^OPERATION_TYPE_([A-Z_]+) =", BADPUT, re.M),
    *re.findall(r"^(OPERATION_TYPE_[A-Z_]+) =", BADPUT, re.M),
}


def section(page: str, name: str) -> str:
    found = re.search(rf"^\.Sh {name}\n(.*?)(?=^\.Sh |\Z)", PAGES[page], re.M | re.S)
    assert found, f"{page} has no {name}"
    return found[1]


def variables_of(text: str) -> set[str]:
    """The names that a piece of manual marks up as variables."""
    found = set()
    for line in re.findall(r"^\.(?:It )?Ev (.*)$", text, re.M):
        found |= set(re.findall(r"\b[A-Z][A-Z0-9_]+\b", line.split(" Ns ")[0]))
    return found


class Variables(unittest.TestCase):
    def test_each_one_in_the_code_is_in_the_manual(self) -> None:
        asked = set(re.findall(r'getenv\("([A-Z0-9_]+)"', CODE))
        literal = set(re.findall(r'"([A-Z][A-Z0-9]*_[A-Z0-9_]*[A-Z0-9])=?"', CODE))
        self.assertGreater(len(asked), 5)
        self.assertGreater(len(literal), 30)
        told = set().union(*map(variables_of, PAGES.values()))
        self.assertEqual(sorted((asked | literal) - told - OTHERS), [])

    def test_each_one_in_the_manual_is_in_the_code(self) -> None:
        told = (variables_of(section("elastrun.1", "ENVIRONMENT"))
                | variables_of(section("elastrun.1", "SCHEDULERS"))
                | variables_of(section("elastrunctl.1", "ENVIRONMENT")))
        self.assertGreater(len(told), 30)
        missing = [name for name in sorted(told)
                   if not name.startswith("PET_") and not re.search(rf'"{name}\b', CODE)]
        self.assertEqual(missing, [])


class References(unittest.TestCase):
    def test_each_page_that_a_page_names_is_in_its_see_also(self) -> None:
        for page, text in PAGES.items():
            own = tuple(page.rsplit(".", 1))
            told = re.findall(r"^\.Xr (elastrun[\w.-]*) (\d)", section(page, "SEE ALSO"), re.M)
            named = set(re.findall(r"\bXr (elastrun[\w.-]*) (\d)", text)) - {own}
            self.assertEqual(told, sorted(named, key=lambda one: (one[1], one[0])), page)
            self.assertEqual([one for one in told if ".".join(one) not in PAGES], [], page)


class ExitCodes(unittest.TestCase):
    def codes(self, source: str) -> set[int]:
        text = (ROOT / source).read_text()
        return {int(code) for code in re.findall(r"\bkExit\w+ = (\d+)", text)}

    def listed(self, page: str) -> set[int]:
        return {int(code) for code in
                re.findall(r"^\.It (\d+)$", section(page, "EXIT STATUS"), re.M)}

    def test_the_manual_lists_what_the_programs_return(self) -> None:
        self.assertEqual(self.codes("apps/elastrun/end_of_run.hpp") | {0},
                         self.listed("elastrun.1"))
        self.assertEqual(self.codes("apps/elastrunctl/command_line.hpp"),
                         self.listed("elastrunctl.1"))


class Files(unittest.TestCase):
    def test_the_files_of_a_run_are_those_that_the_code_names(self) -> None:
        text = section("elastrun.1", "FILES")
        names = set(re.findall(r"[\w-]+\.(?:jsonl?|log)\b", text))
        self.assertGreater(len(names), 3)
        missing = [name for name in sorted(names) if not re.search(rf'["/]{name}"', CODE)]
        self.assertEqual(missing, [])
