#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What `scripts/test quick` checks: from the files that changed, the tests they can break first.

    .ci/affected.py [FILE...]    prints three lines: files for .ci/check, targets, tests

Without FILE: what differs from the main branch, or from HEAD where that is the main branch; after
a commit there, what the commit changed. Of the unit tests those whose module changed, or includes
a header of the same name as a changed source; of the others those that are named after the place.
"""
from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MOST_UNITS = 6  # programs; what is above them is for the whole of scripts/test
# Places, and the process tests that show a fault there soonest. The first fitting row is taken.
PLACES = (
    ("lib/agent/hang|lib/hangs|hang", "system_hangs"),
    ("lib/agent/web|lib/http", "system_http"),
    ("lib/agent/(?:telemetry|goodput)|lib/export|lib/telemetry", "system_metrics|oracle_"),
    ("lib/goodput|goodput", "system_goodput|python_worker_goodput_calculator|elastrunctl_goodput$"),
    ("lib/rendezvous", "elastic_agreement"),
    ("lib/store", "tcpstore_vectors|hostile_test"),
    ("lib/timer", "system_timers"),
    ("lib/logs", "system_output"),
    ("lib/process|lib/workers", "system_workers|system_ending"),
    ("lib/spec|apps/elastrun/", "system_bad_input"),
    ("apps/elastrunctl|lib/runs", "elastrunctl_local"),
    ("lib/launcher|lib/agent", "system_report"),
    ("lib/worker/", "worker_header"),
    ("man/", "style_manual"),
    ("scripts/", "scripts"),
    (r"\.ci/", "style_check"),
)
# What they start; every process test starts the programs.
PROGRAMS = ["elastrun", "elastrunctl", "stub_worker", "fake_nvml", "clock_step", "stuck_write"]
OTHERS = {"tcpstore": ["store_host"], "hostile": ["store_host", "store_file"],
          "oracle": ["oracle_samples"],
          "python_worker_goodput_calculator": ["elastrunctl"],
          "worker_header": ["worker_header"], "store_torch": ["store_host", "store_file"]}


def git(*words: str) -> list[str]:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.splitlines()


def changed_files() -> list[str]:
    branch = "".join(git("rev-parse", "--abbrev-ref", "HEAD"))
    base = "HEAD"
    for main in ("main", "master"):
        if branch != main and git("rev-parse", "--verify", "-q", main):
            base = "".join(git("merge-base", main, "HEAD")) or base
    new = git("ls-files", "--others", "--exclude-standard")
    changed = git("diff", "--name-only", base) + new
    return changed or git("diff", "--name-only", "HEAD~1", "HEAD")


def module_of(path: str) -> str:
    found = re.match(r"(?:lib|tests/unit)/(\w+)/.*\.[ch]pp$", path)
    return found[1] if found else ""


def unit_modules(changed: list[str]) -> list[str]:
    """The modules that changed, then those that include what a changed source declares."""
    modules = list(dict.fromkeys(filter(None, map(module_of, changed))))
    for path in changed:
        header = re.sub(r"\.cpp$", ".hpp", path.removeprefix("lib/"))
        if path.startswith("lib/") and header.endswith(".hpp"):
            users = git("grep", "-lF", f'#include "{header}"', "--", "lib", "tests/unit")
            modules += [name for name in map(module_of, users) if name and name not in modules]
    with_tests = [name for name in dict.fromkeys(modules)
                  if list((ROOT / "tests" / "unit" / name).glob("*_test.cpp"))]
    return with_tests[:MOST_UNITS]


def of_python(name: str) -> str:
    """The CTest of tests/python/NAME_test.py, or those that a source of the package may break."""
    if name in ("agent", "launcher", "multiprocessing", "notebook", "rendezvous"):
        return "^launcher$"
    if name != "channel" and (ROOT / f"tests/python/{name}_test.py").exists():
        return f"python_worker_{name}"
    return "python_worker_(package|metrics|monitor|goodput)$"


def other_tests(changed: list[str]) -> list[str]:
    tests = []
    for path in changed:
        path = re.sub(r"^(lib/python/elastrun/\w+)/[\w/]+\.py$", r"\1.py", path)  # of a subpackage
        found = re.match(r"(tests/\w+|lib/python/elastrun)/(\w+?)(_test)?\.py$", path)
        if found and found[1] in ("tests/python", "lib/python/elastrun"):
            tests.append(of_python(found[2]))
        elif found and found[3]:
            folder = found[1].removeprefix("tests/")
            tests.append(f"^{folder}_{found[2]}$|^{folder}$|^{found[2]}(_test)?$")
        else:
            tests += [some for place, some in PLACES if re.match(place, path)][:1]
            if re.match(r"(lib|apps|cmake)/|CMake", path):
                tests.append("^system_restart$")
    return list(dict.fromkeys(tests))


def main() -> int:
    changed = [path for path in sys.argv[1:] or changed_files() if (ROOT / path).is_file()]
    modules, tests = unit_modules(changed), other_tests(changed)
    targets = [f"unit_{name}" for name in modules]
    if any(not re.match(r"\^?(python_worker|style|scripts|check)", some) for some in tests):
        targets += PROGRAMS
    for word, programs in OTHERS.items():
        targets += programs if word in "|".join(tests) else []
    print(*changed)
    print(*dict.fromkeys(targets))
    print("|".join(tests + [f"^unit_{name}(_|$)" for name in modules]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
