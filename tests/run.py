# SPDX-License-Identifier: Apache-2.0
"""run.py FILE [WORD ...]: runs the tests of one file, as CTest does (tests/CMakeLists.txt).

Words that name a class of the file, or one test of it, choose among its tests; the others are its
arguments, which it finds in sys.argv. Beside its own folder it can import from those of SHARED. A
file that raises SkipTest, or whose tests are all skipped, ends with 77 and the reason. One with
SIDE_BY_SIDE = N, whose tests wait most of the time and share nothing, has so many of them run at a
time, each in a process.
"""
from __future__ import annotations

import ast
import concurrent.futures
import importlib.util
import os
import subprocess
import sys
import unittest
from pathlib import Path
from types import ModuleType

SHARED = ("system", "netns", "web", "seeds")
SKIPPED = 77


def has_its_own_main(file: Path) -> bool:
    return any(isinstance(one, ast.If) and ast.unparse(one.test).startswith("__name__")
               for one in ast.parse(file.read_text()).body)


def load(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec and spec.loader
    module = sys.modules[file.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def tests_of(module: ModuleType) -> list[unittest.TestCase]:
    """Those of its own classes; what it imports is a base of theirs."""
    own = (one for one in vars(module).values() if isinstance(one, type)
           and issubclass(one, unittest.TestCase) and one.__module__ == module.__name__)
    return [test for one in own for test in unittest.defaultTestLoader.loadTestsFromTestCase(one)]


def passes(test: unittest.TestCase) -> bool:
    """In a process of its own."""
    name = test.id().partition(".")[2]
    try:
        done = subprocess.run([*sys.orig_argv, name], text=True, timeout=300,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    except subprocess.TimeoutExpired as late:
        print(f"{name} hangs: {late.output!r}", flush=True)
        return False
    print(done.stdout, flush=True)
    return done.returncode in (0, SKIPPED)


def main() -> int:
    file = Path(sys.argv[1]).resolve()
    if has_its_own_main(file):
        os.execv(sys.executable, [sys.executable, "-B", *sys.argv[1:]])
    sys.argv[:] = [str(file), *sys.argv[2:]]
    sys.path[:1] = [str(file.parent), *(str(Path(__file__).with_name(one)) for one in SHARED)]
    try:
        module = load(file)
    except unittest.SkipTest as why:
        print(f"SKIP: {why}")
        return SKIPPED
    chosen = [word for word in sys.argv[1:] if hasattr(module, word.partition(".")[0])]
    tests = tests_of(module)
    if hasattr(module, "SIDE_BY_SIDE") and not chosen:
        with concurrent.futures.ThreadPoolExecutor(module.SIDE_BY_SIDE) as pool:
            passed = list(pool.map(passes, tests))
        print(f"{sum(passed)} of {len(tests)} cases passed")
        return int(not tests or not all(passed))
    suite = unittest.TestSuite(tests)
    if chosen:
        suite = unittest.defaultTestLoader.loadTestsFromNames(chosen, module)
    result = unittest.TextTestRunner(verbosity=2).run(suite)
    if result.wasSuccessful() and len(result.skipped) == result.testsRun > 0:
        return SKIPPED
    return int(not result.testsRun or not result.wasSuccessful())


if __name__ == "__main__":
    sys.exit(main())
