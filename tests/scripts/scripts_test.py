# SPDX-License-Identifier: Apache-2.0
"""scripts_test.py: the scripts of a newcomer's first hour, with apt, CMake and CTest played."""
from __future__ import annotations

import contextlib
import os
import pty
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "bench"))
import report

TOOLS = ("awk basename bash cat chmod cut date dirname find grep head mkdir rm sed sleep tail "
         "tr").split()
INSTALLED = 'printf installed'
CTEST = """
results=build/release/Testing/Temporary
case "$*" in
*'-R ^sound$'*) exit 0 ;;
*'-R ^bro\\.ken$'*) exit 8 ;;
*) mkdir -p $results; printf '1:sound\\n2:bro.ken\\n' >$results/LastTestsFailed.log; exit 8 ;;
esac
"""
APT = """
sh /usr/sbin/policy-rc.d; echo "policy $?" >>"$MARK"
cd /etc/systemd/system/multi-user.target.wants && touch etcd.service cron.service
"""
# The folders that packages change, replaced for this process and its children alone.
PLACES = """
mount --bind "$FOLDER/units" /etc/systemd/system && mount --bind "$FOLDER/sbin" /usr/sbin &&
. scripts/prepare.sh && need_packages etcd-server && ls /usr/sbin
"""


class Scripts(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        shutil.copytree(ROOT / "scripts", self.folder / "scripts")
        (self.folder / "bin").mkdir()
        for tool in TOOLS:
            (self.folder / "bin" / tool).symlink_to(shutil.which(tool) or f"/no/{tool}")
        self.play("nproc", "echo 2")
        self.play("cmake", "exit 0")
        self.play("python3", "echo 2.13.0")
        self.play("apt-get", 'echo "apt-get $*" >>"$MARK"')
        self.play("dpkg-query", INSTALLED)

    def play(self, name: str, text: str) -> None:
        path = self.folder / "bin" / name
        path.unlink(missing_ok=True)  # never through a link to the tool of this machine
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    def play_checks_and_builds(self) -> None:
        (self.folder / ".ci").mkdir()
        (self.folder / ".ci" / "check").symlink_to("/bin/true")
        self.play("ninja", "exit 0")

    def run_in_folder(self, *words: str, more: str = "") -> subprocess.CompletedProcess[str]:
        env = {"PATH": f"{self.folder}/bin{more}", "MARK": f"{self.folder}/mark",
               "FOLDER": str(self.folder)}
        return subprocess.run(words, cwd=self.folder, env=env, capture_output=True, text=True)

    def marks(self) -> str:
        path = self.folder / "mark"
        return path.read_text() if path.exists() else ""

    def test_help_runs_nothing(self) -> None:
        self.play("dpkg-query", "exit 1")
        for name in ("quickstart", "test", "bench", "wheel", "cross"):
            done = self.run_in_folder("bash", f"scripts/{name}", "--help")
            self.assertEqual((done.returncode, done.stderr), (0, ""), name)
            self.assertIn(f"scripts/{name}", done.stdout)
        self.assertEqual(self.marks(), "")

    def test_the_compiler_shows_how_far_it_is(self) -> None:
        self.play("cmake", "case $1 in --build) echo '[7/404] Building'; sleep 2.5 ;; esac")
        self.play("step", '. scripts/prepare.sh && build release elastrun')
        done = self.run_in_folder("bash", "-c", "PROGRESS_SECONDS=1 bash bin/step")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertRegex(done.stdout,
                         r"compile release +(\n    \[7/404\] +)+\d+\.\d s\n")
        # On a terminal it stays one line.
        with self.subTest("terminal"):
            shown = self.on_a_terminal("bash", "bin/step")
            self.assertRegex(shown, r"\r  compile release +\[7/404\]")
            self.assertRegex(shown.split("\r")[-2], r"compile release +\S* +\d+\.\d s\S*$")

    def test_without_a_network_that_is_said_once(self) -> None:
        for words in ("W: Failed to fetch http://a/b  Temporary failure resolving 'a'",
                      "WARNING: Retrying: Failed to establish a new connection: [Errno -3]"):
            self.play("apt-get", f'for i in $(seq 50); do echo "{words}"; done; exit 100')
            (self.folder / "bin" / "seq").unlink(missing_ok=True)
            (self.folder / "bin" / "seq").symlink_to(shutil.which("seq") or "/no/seq")
            done = self.run_in_folder("bash", "-c",
                                      ". scripts/prepare.sh && step 'install it' apt-get install x")
            self.assertEqual((done.returncode, done.stderr), (100, ""))
            self.assertEqual(len(done.stdout.splitlines()), 2, done.stdout)
            self.assertIn("  No network: ", done.stdout)
        self.play("apt-get", "echo 'E: Unable to locate package x'; exit 100")
        done = self.run_in_folder("bash", "-c",
                                  ". scripts/prepare.sh && step 'install it' apt-get install x")
        self.assertNotIn("No network", done.stdout)
        self.assertIn("Unable to locate", done.stdout)

    def on_a_terminal(self, *words: str) -> str:
        master, terminal = pty.openpty()
        env = {"PATH": f"{self.folder}/bin", "FOLDER": str(self.folder)}
        child = subprocess.Popen(words, cwd=self.folder, env=env, stdin=terminal, stdout=terminal,
                                 stderr=terminal)
        os.close(terminal)
        shown = b""
        with contextlib.suppress(OSError):  # of a terminal whose last user has gone
            while piece := os.read(master, 65536):
                shown += piece
        os.close(master)
        self.assertEqual(child.wait(), 0)
        return shown.decode()

    def test_an_unknown_word_is_refused(self) -> None:
        for name in ("quickstart", "test", "bench", "wheel", "cross"):
            done = self.run_in_folder("bash", f"scripts/{name}", "relaese")
            self.assertEqual((done.returncode, done.stdout), (2, ""), name)
            self.assertIn("'relaese' is not known", done.stderr)

    def test_without_root_and_sudo_it_says_what_is_missing(self) -> None:
        self.play("dpkg-query", "exit 1")
        self.play("id", "echo 1000")
        done = self.run_in_folder("bash", "scripts/quickstart")
        self.assertEqual(done.returncode, 1)
        self.assertIn("needs root or sudo", done.stderr)
        self.assertIn("apt-get install --no-install-recommends g++ cmake", done.stderr)
        self.assertEqual(self.marks(), "")

    def test_each_script_installs_what_it_builds(self) -> None:
        self.play("dpkg-query", "exit 1")
        self.play("id", "echo 0")
        self.play("apt-get", 'echo "$*" >>"$MARK"; [ "$1" != install ]')
        for name, builds_tests in (("quickstart", False), ("bench", True), ("cross", True),
                                   ("test", True)):
            (self.folder / "mark").unlink(missing_ok=True)
            done = self.run_in_folder("bash", f"scripts/{name}", more=":/usr/bin:/bin")
            self.assertNotEqual(done.returncode, 0, name)
            self.assertIn(" libboost1.81-dev ", self.marks(), done.stdout + done.stderr)
            # CMakeLists.txt leaves all of tests out where there is no doctest.
            self.assertEqual(" doctest-dev" in self.marks(), builds_tests, name)

    def test_the_next_steps_are_those_of_this_machine(self) -> None:
        program = self.folder / "build/release/apps/elastrun"
        program.parent.mkdir(parents=True)
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
        self.play("du", "exit 0")
        done = self.run_in_folder("bash", "scripts/quickstart")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        steps = done.stdout.partition("Next")[2]
        self.assertIn("--target elastrun_installed", steps)
        self.assertIn("cmake --install build/release", steps)
        self.assertNotIn("pip", steps)
        (self.folder / ".venv").mkdir()
        steps = self.run_in_folder("bash", "scripts/quickstart").stdout.partition("Next")[2]
        self.assertIn("source .venv/bin/activate", steps)
        self.assertIn("pip install .", steps)
        self.assertNotIn("cmake", steps)

    def test_each_failed_test_is_told(self) -> None:
        self.play("ctest", CTEST)
        done = self.run_in_folder("bash", "scripts/test", "release", more=":/usr/bin:/bin")
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertIn("AGAIN   release, sound only when tried alone: sound\n", done.stdout)
        self.assertIn("TWICE   release, failed alone, too: bro.ken\n", done.stdout)
        self.assertIn("Failed: release tests", done.stderr)

    def test_each_build_runs_the_tests_that_tell_most_there(self) -> None:
        self.play_checks_and_builds()
        self.play("ctest", 'echo "$*" >>"$MARK"')
        self.play("../scripts/cross", "exit 0")
        for word, parts in (("", [("build/release", "bench"), ("build/debug", "|sources|system")]),
                            ("release", [("build/release", "bench")]),
                            ("debug", [("build/debug", "|install|netns")])):
            (self.folder / "mark").unlink(missing_ok=True)
            done = self.run_in_folder("bash", "scripts/test", *[word][:bool(word)],
                                      more=":/usr/bin:/bin")
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            lines = self.marks().splitlines()
            self.assertEqual(len(lines), len(parts), lines)
            for line, (build, left_out) in zip(lines, parts):
                self.assertIn(f"--test-dir {build} ", line)
                self.assertTrue(line.endswith(left_out), line)

    def test_all_of_it_has_arm64_where_its_libraries_can_be_fetched(self) -> None:
        self.play_checks_and_builds()
        self.play("ctest", "exit 0")
        for code, expected, said in ((0, 0, "ok      ARM64, "), (1, 1, "FAILED  ARM64, "),
                                     (3, 0, "SKIPPED ARM64: this machine's package servers")):
            self.play("../scripts/cross", f'echo "cross $*" >"$MARK"; exit {code}')
            done = self.run_in_folder("bash", "scripts/test", more=":/usr/bin:/bin")
            self.assertEqual((done.returncode, self.marks()), (expected, "cross quick\n"))
            self.assertIn(said, done.stdout)

    def test_arm64_without_its_packages_says_so(self) -> None:
        self.play("apt-get", "exit 100")
        done = self.run_in_folder("bash", "scripts/cross", "quick", more=":/usr/bin:/bin")
        self.assertEqual(done.returncode, 3, done.stdout + done.stderr)
        self.assertRegex(done.stdout, r"fetch libraries of ARM64 +failed")

    def test_quick_runs_what_the_change_can_break(self) -> None:
        (self.folder / ".ci").mkdir()
        plan = self.folder / ".ci" / "affected.py"
        for name, text in (("check", 'echo "check $*" >>"$MARK"'),
                           ("affected.py", 'echo a.hpp b.cpp; echo unit_a; echo "^unit_a$"')):
            (self.folder / ".ci" / name).write_text(f"#!/bin/sh\n{text}\n")
            (self.folder / ".ci" / name).chmod(0o755)
        self.play("cmake", 'echo "cmake $*" >>"$MARK"')
        self.play("ctest", 'echo "ctest $*" >>"$MARK"')
        done = self.run_in_folder("bash", "scripts/test", "quick", more=":/usr/bin:/bin")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        check, configure, compile_, tests = self.marks().splitlines()
        self.assertEqual(check, "check a.hpp b.cpp")
        self.assertIn("--preset dev", configure)
        self.assertIn("--preset dev --parallel 2 --target unit_a", compile_)
        self.assertIn("--test-dir build/dev ", tests)
        self.assertIn("-R ^unit_a$", tests)
        plan.write_text("#!/bin/sh\n")
        done = self.run_in_folder("bash", "scripts/test", "quick", more=":/usr/bin:/bin")
        self.assertEqual(done.returncode, 1)
        self.assertIn("Nothing has changed", done.stderr)

    def test_installed_servers_start_neither_now_nor_at_boot(self) -> None:
        if subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode != 0 or \
                not Path("/etc/systemd/system").is_dir():
            self.skipTest("mounts of its own need root, and /etc/systemd/system must be there")
        links = self.folder / "units" / "multi-user.target.wants"
        links.mkdir(parents=True)
        (links / "munge.service").touch()
        (self.folder / "sbin").mkdir()
        self.play("dpkg-query", "exit 1")
        self.play("apt-get", f'case $1 in install) {APT};; esac')
        self.play("deb-systemd-helper",
                  '[ -n "$DPKG_MAINTSCRIPT_PACKAGE" ] || exit 0  # as the real one\n'
                  "rm /etc/systemd/system/multi-user.target.wants/$2")
        done = self.run_in_folder("unshare", "-m", "bash", "-c", PLACES, more=":/usr/bin:/bin")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(self.marks(), "policy 101\n")
        self.assertIn("start neither now nor at boot", done.stdout)
        # What was there before, and what is no server of the tests, stays.
        self.assertEqual(sorted(os.listdir(links)), ["cron.service", "munge.service"])
        self.assertEqual(os.listdir(self.folder / "sbin"), [])


class BenchReport(unittest.TestCase):
    def test_the_strongest_rows_go_into_the_readme(self) -> None:
        rows = [f"| work {n} | 1 / 2 ms | 3 / 4 ms | - | {ratio} | <= 5 ms: met |"
                for n, ratio in enumerate(("2 x", "1,300 x", "", "40.5 x", "3 x", "0.9 x", "7 x"))]
        shown = report.strongest(rows).splitlines()
        self.assertEqual([row.split("|")[1].strip() for row in shown[2:]],
                         ["work 1", "work 3", "work 6", "work 4", "work 0"])
        self.assertEqual(shown[2], "| work 1 | 1 / 2 ms | 3 / 4 ms | - | 1,300 x |")

    def test_tables_are_replaced_and_prose_stays(self) -> None:
        page = "before\n<!-- bench -->\nold\nold\n<!-- /bench -->\nafter\n"
        new = report.between_marks(page, "new")
        self.assertEqual(new, "before\n<!-- bench -->\nnew\n<!-- /bench -->\nafter\n")
        with self.assertRaisesRegex(ValueError, "marks"):
            report.between_marks("no tables here", "new")
        for path in ("README.md", "tests/bench/README.md"):
            self.assertIn("| elastrun |", (ROOT / path).read_text(), path)
            report.between_marks((ROOT / path).read_text(), "new")
