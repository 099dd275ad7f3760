# SPDX-License-Identifier: Apache-2.0
"""wheel_test.py COMPILER: `pip install .` in a new virtual environment, and what is there then.
ELASTRUN_OLD_ROOTS names folders with systems of another age, with Python and pip, where root
installs the same wheel and runs a job of two workers."""
from __future__ import annotations

import functools
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest
import zipfile
from pathlib import Path

import commands

ROOT = Path(__file__).resolve().parents[2]
COMPILER = (sys.argv + ["c++"])[1]
ROOTS = [Path(name) for name in os.environ.get("ELASTRUN_OLD_ROOTS", "").split(":") if name]
ENVIRONMENT = {k: v for k, v in os.environ.items()
               if k not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PYTHON_EXEC")}
WORKER = "import elastrun, sys\nprint(sys.executable, elastrun.is_connected())\n"
# In a root, in a separate mount namespace: rank 1 fails once, and both are started again.
IN_ROOT = r"""
set -e
mount -t proc proc /proc
cd "$(dirname "$0")"
python3 -m pip install --no-index --no-deps --prefix "$PWD/there" elastrun-*.whl >&2
PATH=$PWD/there/bin:$PWD/there/local/bin:$PATH
elastrun --nproc-per-node 2 --max-restarts 1 --worker-lib worker.py
elastrunctl --version >&2
"""
TWICE = """
import elastrun, os, sys
rank, attempt = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
print(rank + " of " + os.environ["WORLD_SIZE"], attempt, elastrun.is_connected(), flush=True)
sys.exit(rank + attempt == "10")
"""
IN_ENVIRONMENT = """
share/man/man1/elastrun.1
share/man/man5/elastrun.toml.5
share/man/man7/elastrun-design.7
include/elastrun/worker/elastrun.hpp
share/bash-completion/completions/elastrun
share/zsh/site-functions/_elastrunctl
share/fish/vendor_completions.d/elastrun.fish
share/doc/elastrun/LICENSE
share/elastrun/config/examples/ddp/train.py
share/elastrun/observability/elastrun.rules.yml
share/elastrun/python/elastrun/metrics/api.py
""".split()


def run(*words: object, **more: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(w) for w in words], capture_output=True, text=True,
                          **{"env": ENVIRONMENT, "timeout": 1500, **more})


succeed = functools.partial(commands.succeed, env=ENVIRONMENT, timeout=1500)


class Wheel(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.folder = Path(cls.enterClassContext(tempfile.TemporaryDirectory(prefix="wheel.")))
        cls.place = cls.folder / "venv"
        succeed(sys.executable, "-m", "venv", cls.place)
        cls.pip = [cls.place / "bin/pip", "--disable-pip-version-check"]
        # For the source distribution, and to tell an unreachable registry from a build that fails.
        backend = run(*cls.pip, "install", "scikit-build-core>=0.10,<1", "--retries", "1")
        if backend.returncode != 0:
            raise unittest.SkipTest("scikit-build-core cannot be installed here: "
                                    + backend.stderr.strip().splitlines()[-1])
        # By the name of the compiler ccache knows the objects of the build that is tested.
        succeed(*cls.pip, "wheel", "--no-deps", "--wheel-dir", cls.folder, ROOT,
                env=ENVIRONMENT | {"CXX": COMPILER})
        [cls.wheel] = cls.folder.glob("*.whl")
        succeed(*cls.pip, "install", "--no-index", cls.wheel)
        (cls.folder / "worker.py").write_text(WORKER)
        (cls.folder / "elsewhere").mkdir()

    def calls(self, *words: object) -> str:
        """What a worker says that is started so by somebody who has not activated anything."""
        env = ENVIRONMENT | {"PATH": "/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1"}
        return succeed(*words, self.folder / "worker.py", cwd=self.folder, env=env)

    def expected(self) -> str:
        return f"{self.place}/bin/python3 True\n"

    def test_one_wheel_serves_every_python_and_has_what_people_run(self) -> None:
        self.assertTrue(self.wheel.name.endswith(f"-py3-none-linux_{platform.machine()}.whl"),
                        self.wheel.name)
        names = zipfile.ZipFile(self.wheel).namelist()
        self.assertEqual(sorted(n.partition("/include/")[2] for n in names if "/include/" in n),
                         sorted(f"elastrun/worker/{one.name}"
                                for one in (ROOT / "lib/worker").glob("*.hpp")))
        for wrong in (".a", "cmake", "_test.py", "__pycache__", ".service"):
            self.assertEqual([n for n in names if wrong in n and "CMakeLists" not in n
                              and "data/share" not in n], [], wrong)
        self.assertIn("elastrun/channel.py", names)
        missing = [name for name in IN_ENVIRONMENT if not (self.place / name).exists()]
        self.assertEqual(missing, [])

    @unittest.skipUnless(platform.libc_ver()[0] == "glibc", "another C library than glibc")
    def test_the_programs_need_no_newer_glibc_than_manylinux_2_28(self) -> None:
        said = succeed(sys.executable, "-B", ROOT / "cmake/glibc/newest.py", "2.28", self.wheel)
        self.assertEqual([line.split()[0] for line in said.splitlines()], ["elastrun"])
        self.assertLess(self.wheel.stat().st_size, 8_000_000)

    @unittest.skipUnless(ROOTS, "ELASTRUN_OLD_ROOTS is not set")
    def test_it_is_installed_and_runs_on_systems_of_another_age(self) -> None:
        for root in ROOTS:
            with self.subTest(root.name), tempfile.TemporaryDirectory(dir=root / "tmp") as place:
                shutil.copy(self.wheel, place)
                (Path(place) / "worker.py").write_text(TWICE)
                (Path(place) / "try").write_text(IN_ROOT)
                said = succeed("unshare", "-m", "chroot", root, "sh",
                               f"/tmp/{Path(place).name}/try")
                self.assertLessEqual({"0 of 2 1 True", "1 of 2 1 True"}, set(said.splitlines()))

    def test_elastrunctl_is_a_script_that_is_found_by_links_and_by_python(self) -> None:
        link = self.folder / "control"
        link.symlink_to(self.place / "bin/elastrunctl")
        self.assertTrue(succeed(link, "--version").startswith("elastrunctl "))
        wrong = run(link, "stauts")
        self.assertEqual(wrong.returncode, 2)
        self.assertTrue(wrong.stderr.startswith("elastrunctl: "), wrong.stderr)
        said = succeed(self.place / "bin/python3", "-c", "from elastrun.program import "
                       "find_program; print(find_program('elastrunctl'))")
        self.assertEqual(said.strip(), str(self.place / "bin/elastrunctl"))

    def test_the_command_runs_the_python_of_its_environment(self) -> None:
        self.assertEqual(self.calls(self.place / "bin/elastrun"), self.expected())
        self.assertIn("Usage", succeed(self.place / "bin/elastrunctl", "--help"))

    def test_python_runs_the_module_and_the_command(self) -> None:
        python = self.place / "bin/python3"
        self.assertEqual(self.calls(python, "-m", "elastrun"), self.expected())
        self.assertEqual(self.calls(python, self.place / "bin/elastrun"), self.expected())
        for tool in (("pdb", "-c", "continue"), ("cProfile",)):  # for which the module is named
            self.assertEqual(self.calls(python, "-m", *tool, "-m", "elastrun"), self.expected())

    def test_workers_of_another_python_get_the_package_alone(self) -> None:
        here = str(self.place.resolve())
        (self.folder / "other.py").write_text(
            "import elastrun, sys\nprint(elastrun.__file__)\n"
            f"print([p for p in sys.path if p.startswith({here!r})])\n")
        env = ENVIRONMENT | {"PYTHON_EXEC": sys.executable, "PYTHONDONTWRITEBYTECODE": "1"}
        said = succeed(self.place / "bin/elastrun", "--worker-lib", self.folder / "other.py",
                       env=env)
        place = f"{here}/share/elastrun/python"
        self.assertEqual(said, f"{place}/elastrun/__init__.py\n['{place}']\n")

    def test_a_link_called_torchrun_is_torchrun(self) -> None:
        link = self.place / "bin/torchrun"
        link.symlink_to("elastrun")
        self.addCleanup(link.unlink)
        for words in ([link], [self.place / "bin/python3", link]):
            self.assertEqual(self.calls(*words), self.expected())
            wrong = run(*words, "--nproc_per_node=many", "worker.py")
            self.assertEqual(wrong.returncode, 1)
            self.assertTrue(wrong.stderr.startswith("torchrun: error: "), wrong.stderr)

    def test_the_extra_brings_the_hook_and_the_command(self) -> None:
        done = run(*self.pip, "wheel", "--no-deps", "--wheel-dir", self.folder,
                   ROOT / "cmake/torchrun")
        if done.returncode != 0 and "hatchling" in done.stderr:
            self.skipTest("hatchling cannot be installed here")
        self.assertEqual(done.returncode, 0, done.stderr)
        [extra] = self.folder.glob("elastrun_torchrun-*.whl")
        self.assertIn(f"-{self.wheel.name.split('-')[1]}-py3-none-any", extra.name)
        place = self.folder / "with_extra"
        succeed(sys.executable, "-m", "venv", place)
        succeed(place / "bin/pip", "--disable-pip-version-check", "install", "--no-index",
                "--find-links", self.folder, "elastrun[torchrun]")
        [packages] = place.glob("lib/python*/site-packages")
        from_source = {"PYTHONPATH": str(ROOT / "lib/python"), "PYTHONDONTWRITEBYTECODE": "1"}
        line = succeed(sys.executable, "-c", "from elastrun.torchrun_hook import LINE; "
                       "print(end=LINE)", env=ENVIRONMENT | from_source)
        self.assertEqual((packages / "elastrun-torchrun.pth").read_text(), line)
        self.assertIn("elastrun ", succeed(place / "bin/torchrun", "--version"))
        (packages / "torch").mkdir()
        (packages / "torch/__init__.py").write_text("raise SystemExit('torch is imported')\n")
        said = succeed(place / "bin/python3", "-m", "torch.distributed.run", "--version")
        self.assertIn("elastrun ", said)

    def test_the_program_is_found_beside_a_package_in_a_folder(self) -> None:
        target = self.folder / "target"
        succeed(*self.pip, "install", "--no-index", "--target", target, self.wheel)
        env = ENVIRONMENT | {"PYTHONPATH": str(target), "PATH": "/usr/bin:/bin"}
        self.assertIn("elastrun ", succeed(sys.executable, "-m", "elastrun", "--version", env=env))

    def test_the_source_distribution_has_all_that_is_built_and_nothing_more(self) -> None:
        script = (f"import os; os.chdir({str(ROOT)!r}); from scikit_build_core.build import "
                  f"build_sdist; print(build_sdist({str(self.folder)!r}))")
        name = succeed(self.place / "bin/python3", "-c", script).split()[-1]
        with tarfile.open(self.folder / name) as archive:
            names = {n.partition("/")[2] for n in archive.getnames()}
        self.assertEqual([n for n in names if n.split("/")[0] in (
            "build", ".venv", ".git", ".cache", ".ci", "tests")], [])
        if not shutil.which("git") or not (ROOT / ".git").exists():
            self.skipTest("no clone here, whose files could be compared")
        tracked = succeed("git", "-C", ROOT, "ls-files", "lib", "apps", "cmake", "man", "config",
                          "scripts", "CMakeLists.txt", "LICENSE", "README.md").split()
        self.assertEqual([n for n in tracked if n not in names and (ROOT / n).exists()], [])

    def test_a_missing_compiler_is_named_by_pip(self) -> None:
        done = run(*self.pip, "wheel", "--no-deps", "--wheel-dir", self.folder / "none",
                   f"--config-settings=build-dir={self.folder / 'failing'}", ROOT,
                   env=ENVIRONMENT | {"CXX": "no-such-c++"})
        self.assertNotEqual(done.returncode, 0)
        said = " ".join((done.stdout + done.stderr).split())
        self.assertIn("elastrun needs a C++23 compiler, and no-such-c++ is not found", said)
        self.assertIn("apt-get install g++", said)
