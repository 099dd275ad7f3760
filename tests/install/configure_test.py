# SPDX-License-Identifier: Apache-2.0
"""configure_test.py CMAKE: what `cmake -S . -B b` makes of machines where something is missing."""
from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CMAKE = (sys.argv + ["cmake"])[1]


@unittest.skipUnless(shutil.which("ninja"), "no ninja, which tells the commands of a build")
class Configuration(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.build = self.folder / "build"

    def configure(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [CMAKE, "-G", "Ninja", "-S", str(ROOT), "-B", str(self.build), *words],
            env=dict(os.environ, CI="true"), capture_output=True, text=True)

    def configured(self, *words: str) -> str:
        done = self.configure(*words)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def ninja(self, *words: str) -> str:
        done = subprocess.run(["ninja", "-C", str(self.build), *words], capture_output=True,
                              text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def compilations(self) -> list[str]:
        return re.findall(r"^.* -c .*\.c(?:pp|xx)\b.*$", self.ninja("-t", "commands"), re.M)

    def test_no_ccache_and_flags_of_a_packager(self) -> None:
        self.configured("-DELASTRUN_CCACHE=OFF", "-DCMAKE_CXX_FLAGS_RELEASE=-O1 -DPACKAGED")
        commands = self.compilations()
        self.assertTrue(commands)
        for command in commands:  # what was not found was run as a command once
            self.assertNotRegex(command, r"(^|&& )OFF ")
        ours = [c for c in commands if "/elastrun_core.dir/" in c and ".gch" not in c]
        self.assertIn(" -O1 -DPACKAGED ", ours[0])
        self.assertNotIn(" -O2", ours[0])

    def test_no_tests_are_wanted(self) -> None:
        self.configured("-DBUILD_TESTING=OFF")
        self.assertNotIn("unit_core", self.ninja("-t", "targets", "all"))
        ours = [c for c in self.compilations() if "/elastrun_core.dir/" in c and ".gch" not in c]
        self.assertIn(" -O2 ", ours[0])
        self.assertNotIn("NDEBUG", ours[0], "asserts stay on")

    def test_no_doctest(self) -> None:
        said = self.configured("-DCMAKE_DISABLE_FIND_PACKAGE_doctest=ON")
        self.assertIn("the tests are left out", said)

    def test_no_python_and_no_runtime_of_clang(self) -> None:
        compiler = self.folder / "clang++-99"
        compiler.write_text("#!/bin/sh\necho no libclang_rt.fuzzer.a >&2\nexit 1\n")
        compiler.chmod(0o755)
        said = self.configured("-DCMAKE_DISABLE_FIND_PACKAGE_Python3=ON",
                               f"-DELASTRUN_FUZZ_COMPILER={compiler}")
        self.assertIn("the tests written in it are left out", said)
        self.assertIn("Debian: libclang-rt-19-dev", said)
        self.assertNotIn("fuzz_store_current", self.ninja("-t", "targets", "all"))
        listed = subprocess.run(["ctest", "--test-dir", str(self.build), "-N"],
                                capture_output=True, text=True).stdout
        self.assertIn("unit_core", listed)
        self.assertNotIn("install", listed)

    def test_a_missing_library_is_told_by_name(self) -> None:
        found = {"CLI11": "libcli11-dev", "toml++": "libtomlplusplus-dev", "fmt": "libfmt-dev",
                 "spdlog": "libspdlog-dev"}
        for name, package in found.items():
            with self.subTest(name):
                shutil.rmtree(self.build, ignore_errors=True)
                done = self.configure(
                    "-DCMAKE_IGNORE_PATH=/usr/include",
                    *[f"-DELASTRUN_{n}_INCLUDE=/usr/include" for n in found if n != name])
                self.assertNotEqual(done.returncode, 0)
                self.assertIn(f"elastrun needs {name}", done.stderr)
                self.assertIn(package, done.stderr)

    def test_all_that_is_missing_is_told_at_once(self) -> None:
        done = self.configure("-DCMAKE_IGNORE_PATH=/usr/include;/usr/lib/x86_64-linux-gnu",
                              "-DCMAKE_DISABLE_FIND_PACKAGE_Boost=ON")
        self.assertNotEqual(done.returncode, 0)
        said = " ".join(done.stderr.split())
        self.assertIn("elastrun needs CLI11, toml++, fmt, spdlog, Boost 1.81", said)
        self.assertIn("apt-get install libcli11-dev libtomlplusplus-dev libfmt-dev libspdlog-dev "
                      "libboost1.81-dev", said)

    @unittest.skipUnless(shutil.which("clang++-19"), "no clang++-19 (Debian: clang-19)")
    def test_clang_takes_the_flags_of_ci(self) -> None:
        self.configured("-DCMAKE_CXX_COMPILER=clang++-19", "-DCMAKE_BUILD_TYPE=Debug")
        self.ninja("lib/CMakeFiles/elastrun_spec.dir/spec/schedulers.cpp.o",
                   "lib/CMakeFiles/elastrun_goodput.dir/goodput/reports/summary.cpp.o")
