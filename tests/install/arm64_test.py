# SPDX-License-Identifier: Apache-2.0
"""arm64_test.py ELASTRUN COMPILER EMULATOR...: workers of ARM64 under qemu-user, with the agent of
this machine, and the part of it that is written in assembler. scripts/cross has all of it."""
from __future__ import annotations

import functools
import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from commands import succeed

ROOT = Path(__file__).resolve().parents[2]
ELASTRUN, COMPILER, *EMULATOR = sys.argv[1:]
# qemu-user has no clone3(2), and a kernel that has it refuses the flags: what shows here is that
# the call arrives, with its number and arguments, and that its error comes back.
STARTS = r"""
#include "process/vfork_into.hpp"
#include <cerrno>
#include <cstdio>
int main() {
  int pidfd = -1;
  elastrun::process::CloneArguments arguments(-1, false, pidfd);
  arguments.flags = ~std::uint64_t{0};
  const long pid = elastrun_vfork_into(&arguments, sizeof arguments);
  std::puts(pid == -ENOSYS ? "no clone3" : pid == -EINVAL ? "refused" : "something else");
}
"""


run = functools.partial(succeed, stderr=subprocess.STDOUT, timeout=900)


class Arm64(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        folder = tempfile.TemporaryDirectory(prefix="arm64.")
        cls.addClassCleanup(folder.cleanup)
        cls.folder = Path(folder.name)
        (cls.folder / "elastrun").symlink_to(ROOT / "lib")  # as installed
        (cls.folder / "doctest").symlink_to("/usr/include/doctest")

    def compile(self, name: str, *words: object) -> Path:
        run(COMPILER, "-Wall", "-Wextra", "-Werror", "-isystem", self.folder, "-I", ROOT / "lib",
            "-I", ROOT / "tests", *words, "-o", self.folder / name)
        return self.folder / name

    def test_two_workers_tell_their_agent_of_steps_and_a_checkpoint(self) -> None:
        worker = self.compile("worker", "-std=c++17",
                              ROOT / "config/examples/cpp_worker/worker.cpp")
        run(ELASTRUN, "--nproc-per-node=2", "--worker-lib", f"--report={self.folder}/report.json",
            "--no-python", *EMULATOR, worker)
        report = json.loads((self.folder / "report.json").read_text())
        told = report["goodput"]
        self.assertEqual((told["last_step"], told["last_checkpoint"]), (999, 999))

    def test_the_header_for_workers_passes_its_tests(self) -> None:
        header = self.compile("header", "-std=c++20", "-DDOCTEST_CONFIG_IMPLEMENT_WITH_MAIN",
                              ROOT / "tests/worker/header_test.cpp")
        self.assertIn("Status: SUCCESS", run(*EMULATOR, header))

    def test_a_process_is_asked_of_the_kernel(self) -> None:
        (self.folder / "starts.cpp").write_text(STARTS)
        starts = self.compile("starts", "-std=c++20", self.folder / "starts.cpp",
                              ROOT / "lib/process/vfork_into.cpp")
        self.assertIn(run(*EMULATOR, starts), ("no clone3\n", "refused\n"))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
