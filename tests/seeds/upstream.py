#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs PyTorch's own tests of what elastrun takes the place of, with the imports replaced.

    tests/seeds/upstream.py PYTORCH/test             # a checkout, or a folder with these files
    tests/seeds/upstream.py PYTORCH/test --original  # against torch, to see that they are sound

They are not in this repository. Each file runs in a process; of its imports only
torch.testing._internal.common_utils is not elastrun's but a stand-in of a few lines, so that no
torch is needed. All pass; those of BY_THE_CLOCK need a machine that is not loaded, with torch too,
and are told.
"""
from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "lib" / "python"
FILES = ("test_monitor.py", "distributed/elastic/metrics/api_test.py",
         "distributed/elastic/events/lib_test.py", "distributed/elastic/timer/api_test.py",
         "distributed/elastic/timer/local_timer_test.py",
         "distributed/elastic/timer/file_based_local_timer_test.py")
BY_THE_CLOCK = {
    "LocalTimerServerTest.test_watchdog_call_count": "10 passes, or 9 or 11, in 0.1 s",
    "FileTimerServerTest.test_watchdog_call_count": "10 passes, or 9 or 11, in 0.1 s",
    "MultiprocessingRequestQueueTest.test_get_size": "a fork and 10 sleeps of 0.1 s in 1.1 s",
    "LocalTimerTest.test_get_timer_recursive": "a sleep of 0.05 s ends before a timer of 0.1 s",
    "FileTimerTest.test_get_timer_recursive": "a sleep of 0.05 s ends before a timer of 0.1 s",
}
STAND_IN = """
import unittest
from unittest import TestCase, main as run_tests
IS_MACOS = IS_WINDOWS = TEST_WITH_TSAN = TEST_WITH_DEV_DBG_ASAN = False
class HardwareClassification:
    GENERIC = None
def skipIfTorchDynamo(reason):
    return lambda test: test
"""
# The cases in the order of the file, as PyTorch runs them; how each ended, as JSON on stdout.
RUNNER = """
import json, sys, unittest, the_tests
class Ends(unittest.TextTestResult):
    ends = {}
    def addSuccess(self, test):
        self.ends[name(test)] = "passed"
        super().addSuccess(test)
    def addError(self, test, err):
        self.ends[name(test)] = "failed"
        super().addError(test, err)
    def addFailure(self, test, err):
        self.ends[name(test)] = "failed"
        super().addFailure(test, err)
    def addSkip(self, test, reason):
        self.ends[name(test)] = "skipped: " + reason
        super().addSkip(test, reason)
def name(test):
    return ".".join(test.id().split(".")[-2:])
suite = unittest.TestSuite(unittest.defaultTestLoader.loadTestsFromTestCase(case)
    for case in vars(the_tests).values() if isinstance(case, type)
    and issubclass(case, unittest.TestCase) and case.__module__ == "the_tests")
result = unittest.TextTestRunner(resultclass=Ends).run(suite)
print(json.dumps(Ends.ends))
"""
REPLACED = (("torch.distributed.elastic", "elastrun"), ("torch.monitor", "elastrun.monitor"),
            ("torch.testing._internal.common_utils", "pytorch_stand_in"))


def run(text: str, original: bool) -> tuple[dict[str, str], str]:
    """How each test of a file ended, by CLASS.TEST, and what was printed."""
    for old, new in REPLACED[2 if original else 0:]:
        text = text.replace(old, new)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "pytorch_stand_in.py").write_text(STAND_IN)
        Path(folder, "the_tests.py").write_text(text)
        env = {k: v for k, v in os.environ.items()
               if not k.startswith(("ELASTRUN_", "TORCHELASTIC_"))}
        done = subprocess.run([sys.executable, "-B", "-c", RUNNER], cwd=folder, text=True,
                              capture_output=True, timeout=540,
                              env=dict(env, PYTHONPATH=f"{PACKAGE}{os.pathsep}{folder}"))
    lines = done.stdout.splitlines()
    return (json.loads(lines[-1]) if lines else {"import": "failed"}), done.stderr


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("folder", type=Path, help="PyTorch's folder `test`")
    parser.add_argument("--original", action="store_true", help="against torch")
    args = parser.parse_args()
    missing = [name for name in FILES if not (args.folder / name).is_file()]
    if missing:
        parser.error(f"{args.folder}: {', '.join(missing)} is not there; expected: the folder "
                     "`test` of a checkout of pytorch/pytorch")
    wrong = 0
    for name in FILES:
        ends, said = run((args.folder / name).read_text(), args.original)
        unexpected = [f"{test}: {how}" for test, how in ends.items()
                      if how == "failed" and test not in BY_THE_CLOCK]
        print(f"{name}: {sum(how == 'passed' for how in ends.values())} of {len(ends)} passed")
        for test in ends.keys() & BY_THE_CLOCK.keys():
            if ends[test] == "failed":
                print(f"  {test} failed, which is by the clock: {BY_THE_CLOCK[test]}")
        if unexpected and not args.original:
            wrong += len(unexpected)
            print(said, "  unexpected: " + "; ".join(unexpected), sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
