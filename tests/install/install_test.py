# SPDX-License-Identifier: Apache-2.0
"""install_test.py BUILD CMAKE COMPILER GENERATOR: installs into a temporary folder and uses what
is there."""
from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from commands import succeed as run

ROOT = Path(__file__).resolve().parents[2]
BUILD, CMAKE, COMPILER, GENERATOR = (sys.argv + ["", "", "", ""])[1:5]
EXPECTED = """
bin/elastrun
bin/elastrunctl
lib/systemd/system/elastrun-store.service
share/doc/elastrun/LICENSE
share/doc/elastrun/README.md
share/man/man1/elastrun.1
share/man/man1/elastrunctl.1
share/man/man5/elastrun.toml.5
share/man/man7/elastrun-design.7
share/man/man7/elastrun-protocol.7
share/man/man7/elastrun-python.7
share/man/man7/elastrun-telemetry.7
share/man/man7/elastrun-seeds.7
share/man/man7/elastrun-timers.7
share/man/man7/elastrun-restarts.7
share/man/man7/elastrun-preemption.7
share/bash-completion/completions/elastrun
share/zsh/site-functions/_elastrun
share/fish/vendor_completions.d/elastrun.fish
share/bash-completion/completions/elastrunctl
share/zsh/site-functions/_elastrunctl
share/fish/vendor_completions.d/elastrunctl.fish
share/elastrun/python/elastrun/__init__.py
share/elastrun/python/elastrun/program.py
share/elastrun/python/elastrun/launcher/api.py
share/elastrun/python/elastrun/multiprocessing/worker.py
share/elastrun/config/records.schema.json
share/elastrun/observability/elastrun-dashboard.json
share/elastrun/observability/elastrun.rules.yml
share/elastrun/config/examples/ddp/train.py
include/elastrun/worker/elastrun.hpp
include/elastrun/agent/
""".split()

WORKER = """
import os, sys
rank, attempt = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
if rank == "1" and attempt == "0":
    sys.exit(9)
sys.stdout.write(f"rank {rank} of {os.environ['TORCHELASTIC_RUN_ID']}, attempt {attempt}\\n")
"""


class InstallTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.folder = Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        cls.prefix = cls.folder / "prefix"
        run(CMAKE, "--install", BUILD, "--prefix", cls.prefix)

    def test_everything_is_in_its_place(self) -> None:
        missing = [name for name in EXPECTED if not (self.prefix / name).exists()]
        self.assertEqual(missing, [])

    def test_the_unit_starts_the_installed_program(self) -> None:
        unit = (self.prefix / "lib/systemd/system/elastrun-store.service").read_text()
        started = re.findall(r"^ExecStart=(\S+)", unit, re.M)
        self.assertEqual(started, [str(self.prefix / "bin/elastrunctl")])

    @unittest.skipUnless(GENERATOR == "Ninja", "only Ninja tells what a target is made of")
    def test_one_target_builds_what_is_installed(self) -> None:
        made = run("ninja", "-C", BUILD, "-t", "commands", "elastrun_installed").split()
        for script in Path(BUILD).rglob("cmake_install.cmake"):
            for name in re.findall(r'FILES "([^"]+)"', script.read_text()):
                part = os.path.relpath(name, Path(BUILD).resolve())
                if Path(name).suffix == ".a" or os.access(name, os.X_OK) and Path(name).is_file():
                    self.assertIn(part, made)

    def test_the_program_needs_libc_alone(self) -> None:
        for program in (self.prefix / "bin").iterdir():
            libraries = re.findall(r"^\s*(\S+)", run("ldd", program), re.M)
            more = [name for name in libraries if not re.search(
                r"linux-vdso\.so|ld-linux[^/]*\.so|/?libc\.so\.6", name)]
            self.assertEqual(more, [], program.name)

    def test_completions_offer_options(self) -> None:
        names = [name for name in EXPECTED if "completions" in name or "site-functions" in name]
        self.assertEqual(len(names), 6)
        for name in names:
            word = "coordinator-only" if "elastrunctl" in name else "nproc-per-node"
            self.assertIn(word, (self.prefix / name).read_text(), name)

    def test_the_package_has_no_path_of_this_machine(self) -> None:
        for file in self.prefix.rglob("*.cmake"):
            text = file.read_text()
            self.assertEqual(re.findall(r"[\s;\"](/[^\s;\"$]+)", text), [], file.name)
            for place in (str(ROOT), str(Path(BUILD).resolve()), str(self.prefix)):
                self.assertNotIn(place, text, file.name)

    def test_the_python_package_is_found_by_its_path(self) -> None:
        env = dict(os.environ, PYTHONPATH=str(self.prefix / "share/elastrun/python"),
                   PYTHONDONTWRITEBYTECODE="1")
        said = run("python3", "-c", "import elastrun; print(elastrun.__file__)", env=env)
        self.assertTrue(said.startswith(str(self.prefix)), said)

    def test_workers_may_import_what_is_installed_with_the_program(self) -> None:
        (self.folder / "lib.py").write_text("import elastrun\nprint(elastrun.__file__)\n")
        env = dict(os.environ, PYTHON_EXEC=sys.executable, PYTHONDONTWRITEBYTECODE="1")
        said = run(self.prefix / "bin/elastrun", "--worker-lib", self.folder / "lib.py", env=env)
        self.assertIn("/share/elastrun/python/elastrun/__init__.py", said)

    def test_the_python_entry_finds_the_program_of_its_prefix(self) -> None:
        entry = self.prefix / "share/elastrun/python/elastrun/program.py"
        env = dict(os.environ, PATH="/usr/bin:/bin")
        self.assertTrue(run(sys.executable, entry, "--version", env=env).startswith("elastrun "))

    def test_a_worker_in_cpp_needs_one_header(self) -> None:
        source = self.folder / "worker.cpp"
        source.write_text('#include <elastrun/worker/elastrun.hpp>\n'
                          'int main() { elastrun::worker::step(1); }\n')
        run(COMPILER, "-std=c++17", "-I", self.prefix / "include", source, "-o",
            self.folder / "worker")
        run(self.folder / "worker")

    def test_the_example_in_cpp_runs_under_the_program(self) -> None:
        run(COMPILER, "-std=c++17", "-Wall", "-Wextra", "-Werror", "-I", self.prefix / "include",
            self.prefix / "share/elastrun/config/examples/cpp_worker/worker.cpp",
            "-o", self.folder / "example")
        done = subprocess.run(
            [self.prefix / "bin/elastrun", "--worker-lib", f"--report={self.folder}/cpp.json",
             "--no-python", self.folder / "example"], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertNotIn("Ignored", done.stderr)  # its last timers are read after its end
        report = json.loads((self.folder / "cpp.json").read_text())
        self.assertEqual(report["goodput"]["last_step"], 999)

    def test_the_example_of_a_program_for_metrics_writes_what_workers_report(self) -> None:
        (self.folder / "loss.py").write_text(
            "from elastrun import channel\nchannel.metric('loss', 0.5, 'model')\n")
        env = dict(os.environ, PYTHON_EXEC=sys.executable, PYTHONDONTWRITEBYTECODE="1")
        program = self.prefix / "share/elastrun/config/examples/exec/loss_watch.py"
        run(self.prefix / "bin/elastrun", "--worker-lib", "--nproc-per-node=2",
            f"--metrics=exec:{sys.executable} {program} {self.folder}/loss.csv;window=0",
            self.folder / "loss.py", env=env)
        lines = (self.folder / "loss.csv").read_text().splitlines()
        self.assertEqual(sorted(line.split(",", 1)[1] for line in lines if ",loss," in line),
                         ["model,loss,0,0.5", "model,loss,1,0.5"])

    def build_launchers(self) -> Path:
        build = self.folder / "launchers"
        if not build.exists():
            run(CMAKE, "-G", GENERATOR, "-S",
                self.prefix / "share/elastrun/config/examples/custom_launcher", "-B", build,
                f"-DCMAKE_PREFIX_PATH={self.prefix}", f"-DCMAKE_CXX_COMPILER={COMPILER}",
                "-DCMAKE_BUILD_TYPE=Debug", "-DCMAKE_CXX_FLAGS=-Wall -Wextra -Werror")
            run(CMAKE, "--build", build)
        return build

    def test_a_custom_launcher_restarts_its_workers_once(self) -> None:
        script = self.folder / "worker.py"
        script.write_text(WORKER)
        done = subprocess.run([self.build_launchers() / "my_launcher", script], cwd=self.folder,
                              capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(sorted(done.stdout.split("\n"))[-2:],
                         ["rank 0 of my-run, attempt 1", "rank 1 of my-run, attempt 1"])
        said = done.stderr.splitlines()
        self.assertEqual([line for line in said if line.startswith("round ")],
                         ["round 1", "round 2"])
        self.assertEqual(said.count("event torchelastic.worker.status.START"), 4)
        self.assertEqual(said.count("event torchelastic.worker.status.SUCCEEDED"), 3)
        self.assertEqual(said.count("metric workers.default.run_success_with_retries"), 1)
        self.assertEqual(said[-1], "all 2 workers succeeded")

    def test_a_custom_launcher_fails_with_its_workers(self) -> None:
        done = subprocess.run([self.build_launchers() / "my_launcher", "-c", "exit(3)"],
                              capture_output=True, text=True)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("event torchelastic.worker.status.FAILED", done.stderr)

    def test_a_registered_back_end_is_an_option_of_the_whole_program(self) -> None:
        program = self.build_launchers() / "my_elastrun"
        words = ["--nproc-per-node", "2", "--rdzv-id", "seven", "--no-python", "sh", "-c",
                 "echo $RANK of $TORCHELASTIC_RUN_ID"]
        done = subprocess.run([program, "--rdzv-backend", "one-node", *words],
                              capture_output=True, text=True, check=True)
        self.assertEqual(sorted(done.stdout.split("\n")), ["", "0 of seven", "1 of seven"])
        self.assertEqual(done.stderr.count("metric workers.default.run_total\n"), 1)
        wrong = subprocess.run([program, "--rdzv-backend", "two-nodes", *words],
                               capture_output=True, text=True)
        self.assertEqual(wrong.returncode, 1)
        self.assertIn("did you mean one-node?", wrong.stderr)
