# SPDX-License-Identifier: Apache-2.0
"""How elastrun is called: by which path, by which name, by which Python, in which environment."""
from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from harness import PACKAGE
from launched import ELASTRUN, STUB, Case


class Called(Case):
    def call(self, *words: object, **env: str) -> subprocess.CompletedProcess[str]:
        return self.run_words(*words, env=env)

    def environment_of_its_own(self) -> Path:
        """A folder bin with torchrun, a link, and a python3 that says so."""
        folder = self.folder / "venv" / "bin"
        folder.mkdir(parents=True)
        (folder / "torchrun").symlink_to(ELASTRUN)
        (folder / "python3").write_text("#!/bin/sh\necho the one beside\n")
        (folder / "python3").chmod(0o755)
        return folder

    def test_by_its_path_it_runs_the_interpreter_beside_it(self) -> None:
        folder = self.environment_of_its_own()
        for program in (folder / "torchrun", "venv/bin/torchrun"):
            done = self.call(program, "train.py", PATH="/usr/bin:/bin")
            self.assertEqual((done.returncode, done.stdout), (0, "the one beside\n"), done.stderr)

    def test_by_python_it_runs_that_python(self) -> None:
        (self.folder / "train.py").write_text("import sys; print(sys.executable, *sys.argv[1:])\n")
        here = os.path.dirname(ELASTRUN)
        link = self.folder / "torchrun"
        link.symlink_to(f"{PACKAGE}/elastrun/program.py")
        ways: dict[str, list[object]] = {"file": [link], "module": ["-m", "elastrun"]}
        for name, words in ways.items():
            with self.subTest(name):
                done = self.call(sys.executable, *words, "train.py", "--lr", "1",
                                 PATH=f"/usr/bin:/bin:{here}", PYTHONPATH=PACKAGE)
                self.assertEqual(done.returncode, 0, done.stderr)
                said, *words_of_script = done.stdout.split()
                self.assertTrue(os.path.samefile(said, sys.executable), said)
                self.assertEqual(words_of_script, ["--lr", "1"])

    def test_by_python_of_another_version_than_python3_it_runs_that_python(self) -> None:
        folder = self.environment_of_its_own()
        (folder / "python3.99").symlink_to(os.path.realpath(sys.executable))
        (self.folder / "train.py").write_text("import sys; print(sys.executable)\n")
        done = self.call(folder / "python3.99", f"{PACKAGE}/elastrun/program.py", "train.py",
                         PATH=f"{os.path.dirname(ELASTRUN)}:/usr/bin:/bin")
        self.assertEqual((done.returncode, done.stdout), (0, f"{folder / 'python3.99'}\n"),
                         done.stderr)

    def test_errors_of_use_have_the_name_of_the_program_that_was_called(self) -> None:
        torchrun = self.environment_of_its_own() / "torchrun"
        (self.folder / "plain").touch()
        for program, name in ((torchrun, "torchrun"), (ELASTRUN, "elastrun")):
            for words in (["--nonesuch", "train.py"], ["--nnodes=2:1", STUB], ["./gone"],
                          ["--log-dir=plain", STUB]):
                with self.subTest(name, words=words):
                    done = self.call(program, "--no-python", *words)
                    self.assertNotEqual(done.returncode, 0)
                    errors = [x for x in done.stderr.splitlines() if ": error: " in x]
                    self.assertEqual(len(errors), 1, done.stderr)
                    self.assertTrue(errors[0].startswith(name + ": error: "), done.stderr)

    def test_a_temporary_folder_that_cannot_be_used_is_passed_over(self) -> None:
        (self.folder / "plain").touch()
        for place in ("/nowhere/at/all", str(self.folder / "plain"), "/proc"):
            with self.subTest(place):
                done = self.call(ELASTRUN, "-r", "3", "--no-python", STUB, "say=x", "exit=0",
                                 TMPDIR=place, TMP=str(self.folder))
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertIn(f"; files are in {self.folder}/elastrun_", done.stderr)
                self.assertRegex(done.stderr, f"files of this run are in {self.folder}/elastrun_")

    def test_windows_line_ends_are_named(self) -> None:
        for line, said in (("#!/bin/sh", "the kernel looks for '/bin/sh\\r'"),
                           ("#!/usr/bin/env sh", "ends in CR LF, as Windows writes it")):
            self.write("x.sh", line + "\r\necho no\r\n")
            done = self.call(ELASTRUN, "--no-python", "./x.sh")
            self.assertEqual(done.returncode, 1)
            self.assertIn(said, done.stderr)
