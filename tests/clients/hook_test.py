# SPDX-License-Identifier: Apache-2.0
"""hook_test.py ELASTRUN: the import hook in an environment of its own, whose torch is a few lines
that say when they run. What the hook does to released programs is clients_test.py.
"""
from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else Path("elastrun")
PLAIN = {name: value for name, value in os.environ.items()
         if not name.startswith(("PYTHON", "PET_", "ELASTRUN_", "VIRTUAL_ENV"))}
RUN = "import sys\nprint('torch runs', *sys.argv[1:])\n"
TORCH = {
    "__init__.py": """
import sys
sys.stderr.write('torch is imported\\n')
__version__ = "2.99"
class npu:
    is_available = staticmethod(lambda: print("an extension prints") or True)
    device_count = staticmethod(lambda: 3)
class hpu:
    is_available = staticmethod(lambda: False)
    device_count = staticmethod(lambda: 0)
""",
    "distributed/__init__.py": "",
    "distributed/run.py": RUN,
    "distributed/launch.py": RUN,
    "distributed/launcher/__init__.py": "from .api import launch_agent\n",
    "distributed/elastic/__init__.py": "",
    "distributed/elastic/multiprocessing/__init__.py": "",
    "distributed/elastic/multiprocessing/errors.py": """
class ChildFailedError(Exception):
    def __init__(self, name, failures):
        self.name, self.failures = name, failures
class ProcessFailure:
    def __init__(self, local_rank, pid, exitcode, error_file):
        self.local_rank, self.exitcode = local_rank, exitcode
""",
    "distributed/elastic/rendezvous/__init__.py": "",
    "distributed/elastic/rendezvous/api.py": "class RendezvousError(Exception): ...\n",
    "distributed/elastic/metrics/__init__.py": "",
    "distributed/elastic/metrics/api.py": """
class NullMetricHandler: ...
_default_metrics_handler, _metrics_map = NullMetricHandler(), {}
""",
    "distributed/launcher/api.py": """
from dataclasses import dataclass, field
from typing import Any, Dict, Optional

class DefaultLogsSpecs:  # as in 2.4, the attributes that an agent reads
    _root_log_dir, _redirects, _tee, _local_ranks_filter = None, 0, 0, None

@dataclass
class LaunchConfig:  # the fields of 2.4 to 2.8; later ones append theirs
    min_nodes: int
    max_nodes: int
    nproc_per_node: int
    logs_specs: Optional[DefaultLogsSpecs] = None
    run_id: str = ""
    role: str = "default_role"
    rdzv_endpoint: str = ""
    rdzv_backend: str = "etcd"
    rdzv_configs: Dict[str, Any] = field(default_factory=dict)
    rdzv_timeout: int = -1
    max_restarts: int = 3
    monitor_interval: float = 0.1
    start_method: str = "spawn"
    log_line_prefix_template: Optional[str] = None
    metrics_cfg: Dict[str, str] = field(default_factory=dict)
    local_addr: Optional[str] = None

    def __post_init__(self):
        self.rdzv_configs["timeout"] = 900
        if self.logs_specs is None:
            self.logs_specs = DefaultLogsSpecs()

class LocalElasticAgent:
    def run(self): ...
def launch_agent(config, entrypoint, args, health_check_server=None):
    '''Of torch.'''
    return 'torch launches'
""",
}
# As in its releases, in a few lines. The last import stands for what another release may have.
ACCELERATE = {
    "__init__.py": "",
    "commands/__init__.py": "",
    "commands/accelerate_cli.py": """
from accelerate.commands.env import env_command_parser
from accelerate.commands.launch import launch_command_parser
from accelerate.commands.tpu import tpu_command_parser
from accelerate.commands.utils import CustomArgumentParser


def main():
    parser = CustomArgumentParser("tool", usage="accelerate <command> [<args>]", allow_abbrev=False)
    subparsers = parser.add_subparsers()
    env_command_parser(subparsers=subparsers)
    launch_command_parser(subparsers=subparsers)
    tpu_command_parser(subparsers=subparsers).set_defaults(quota=1)
    args = parser.parse_args()
    args.func(args)


if __name__ == "__main__":
    main()
""",
    "commands/utils.py": "from argparse import ArgumentParser as CustomArgumentParser\n",
    **{f"commands/{name}.py": f"""
import inspect, sys
print('imports {name}')
def {name}_command_parser(subparsers):
    parser = subparsers.add_parser('{name}')
    parser.add_argument('--steps', type=int)
    parser.set_defaults(func=run)
    return parser
def run(args):
    line = inspect.getframeinfo(sys._getframe(1)).code_context[0].strip()
    print('{name} runs', args.steps, line)
""" for name in ("env", "launch", "tpu")},
}
# In one write: print() makes one for each word, and those of two workers may mingle.
WORKER = """
import os, sys
words = [os.environ["RANK"], os.environ["WORLD_SIZE"], *sys.argv[1:]]
sys.stdout.write(" ".join(words) + "\\n")
"""
COMMAND = """
import sys
from accelerate.commands.accelerate_cli import main
sys.exit(main())
"""
OLDER = """
import sys
from dataclasses import dataclass
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher import api
def config(made=api.LaunchConfig, **more):
    return made(min_nodes=1, max_nodes=1, nproc_per_node=2, rdzv_backend="c10d", max_restarts=0,
                rdzv_endpoint="localhost:0", run_id="old", **more)
print(api.launch_agent(config(), sys.executable, ["worker.py", "--lr=1"]), flush=True)
try:
    api.launch_agent(config(), "sh", ["-c", "exit 3"])
except ChildFailedError as error:
    print(*{failure.exitcode for failure in error.failures.values()})  # of one, or of both
try:
    api.launch_agent(config(), "no-such-program", [])
except FileNotFoundError as error:
    print("missing", error.filename, flush=True)
@dataclass
class Newer(api.LaunchConfig):
    teleport: str = "off"
print(api.launch_agent(config(Newer), sys.executable, ["worker.py"]), flush=True)
for _ in range(2):
    print(api.launch_agent(config(Newer, teleport="on"), sys.executable, ["worker.py"]))
"""
OWN_AGENT = """
from types import SimpleNamespace
import torch.distributed.launcher as launcher
from torch.distributed.launcher import api
assert launcher.launch_agent is api.launch_agent and api.launch_agent.__doc__ == 'Of torch.'
assert 'SourceFileLoader' in repr(api.__loader__) and api.__spec__.loader is api.__loader__
class Own(api.LocalElasticAgent): ...
api.LocalElasticAgent = Own
config = SimpleNamespace(logs_specs=None, start_method='spawn')
print(api.launch_agent(config, 'train.py', []))
print(api.launch_agent(config, 'train.py', [], health_check_server=None))
"""


class Hook(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        scratch = cls.enterClassContext(tempfile.TemporaryDirectory(prefix="hook."))
        cls.folder = Path(scratch).resolve()
        cls.place = cls.folder / "env"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", cls.place], check=True)
        [cls.packages] = cls.place.glob("lib/python*/site-packages")
        for package, files in (("torch", TORCH), ("accelerate", ACCELERATE)):
            for name, text in files.items():
                path = cls.packages / package / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
        cls.accelerate = cls.place / "bin/accelerate"
        cls.accelerate.write_text(COMMAND)
        (cls.place / "bin/elastrun").symlink_to(PROGRAM)
        (cls.folder / "worker.py").write_text(WORKER)
        cls.torchs_own = cls.place / "bin/torchrun"
        cls.torchs_own.write_text("#!/bin/sh\necho torch\n")
        cls.torchs_own.chmod(0o755)
        cls.said = cls.install()

    @classmethod
    def python(cls, *words: object, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([str(one) for one in (cls.place / "bin/python3", *words)],
                              capture_output=True, text=True, cwd=cls.folder, timeout=120,
                              env=PLAIN | {"PYTHONDONTWRITEBYTECODE": "1"} | env)

    @classmethod
    def install(cls, *words: str) -> str:
        done = cls.python("-m", "elastrun.install_torchrun", *words,
                          PYTHONPATH=str(ROOT / "lib/python"))
        assert done.returncode == 0, done.stderr
        return done.stdout

    def workers(self, *words: object, **env: str) -> list[str]:
        """What two workers say that are launched so; torch was not imported for it."""
        done = self.python(*words, **env)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertNotIn("torch is imported", done.stderr)
        self.assertEqual(done.stderr.count("elastrun: runs in place of torch.distributed."), 1,
                         done.stderr)
        return sorted(done.stdout.splitlines())

    def hide_the_package(self) -> tuple[Path, str]:
        """The hook without the line for the package's folder; its file, and its text before."""
        hook = self.packages / "elastrun-torchrun.pth"
        text = hook.read_text()
        self.addCleanup(hook.write_text, text)
        hook.write_text(text.splitlines()[-1] + "\n")
        return hook, text

    def test_the_command_is_elastrun_and_torchs_is_kept(self) -> None:
        self.assertIn("elastrun-torchrun.pth", self.said)
        done = subprocess.run([self.place / "bin/torchrun", "--version"], capture_output=True,
                              text=True, check=True)
        self.assertTrue(done.stdout.startswith("elastrun "), done.stdout)
        self.assertEqual((self.place / "bin/torchrun.torch").read_text(), "#!/bin/sh\necho torch\n")

    def test_installed_twice_and_removed_torchs_own_is_back(self) -> None:
        self.addCleanup(self.install)
        self.install()
        self.assertIn("torch's own again", self.install("--remove"))
        self.assertEqual(self.torchs_own.read_text(), "#!/bin/sh\necho torch\n")
        self.assertFalse((self.packages / "elastrun-torchrun.pth").exists())
        self.assertEqual(sorted(one.name for one in self.torchs_own.parent.glob("*torchrun*")),
                         ["torchrun"])
        self.assertEqual(self.install("--remove"), "nothing was installed here\n")
        done = self.python("-m", "torch.distributed.run", "train.py")
        self.assertEqual(done.stdout, "torch runs train.py\n")

    def test_the_manual_s_way_back_once_elastrun_is_gone(self) -> None:
        self.addCleanup(self.install)
        self.hide_the_package()
        (self.place / "bin/elastrun").unlink()
        self.addCleanup((self.place / "bin/elastrun").symlink_to, PROGRAM)
        page = (ROOT / "man/elastrun-clients.7").read_text()
        [way] = [line for line in page.splitlines() if line.startswith(".Ql mv ")]
        subprocess.run(way.split()[1:], cwd=self.place / "bin", check=True)
        done = subprocess.run([self.torchs_own], capture_output=True, text=True)
        self.assertEqual((done.stdout, done.stderr), ("torch\n", ""))
        done = self.python("-m", "torch.distributed.run", "train.py")
        self.assertEqual((done.stdout, done.stderr), ("torch runs train.py\n",
                                                      "torch is imported\n"))

    def test_a_torch_that_is_installed_again_is_kept_again(self) -> None:
        self.addCleanup(self.install)
        original = self.place / "bin/original"
        shutil.copy(self.place / "bin/torchrun.torch", original)  # for the tests after this one
        self.addCleanup(original.rename, self.torchs_own)
        self.torchs_own.unlink()
        self.torchs_own.write_text("newer")
        self.install()
        self.assertEqual((self.place / "bin/torchrun.torch").read_text(), "newer")
        self.torchs_own.unlink()
        self.torchs_own.write_text("newest")
        self.install("--remove")
        self.assertEqual(self.torchs_own.read_text(), "newest")
        self.assertFalse((self.place / "bin/torchrun.torch").exists())
        self.torchs_own.write_text("#!/bin/sh\necho torch\n")

    def test_a_user_s_package_goes_into_the_folders_of_the_user(self) -> None:
        home = self.folder / "home"
        env = {"HOME": str(home), "PYTHONNOUSERSITE": ""}
        python = sys.executable if sys.prefix == sys.base_prefix else os.path.realpath(
            Path(sys.base_prefix) / "bin/python3")
        def run(*words: object) -> subprocess.CompletedProcess[str]:
            return subprocess.run([python, *map(str, words)], capture_output=True, text=True,
                                  cwd=self.folder, env=PLAIN | env, timeout=120)
        users = Path(run("-m", "site", "--user-site").stdout.strip())
        self.assertTrue(users.is_relative_to(home), users)
        users.mkdir(parents=True)
        (users / "elastrun").symlink_to(ROOT / "lib/python/elastrun")
        (home / ".local/bin").mkdir()
        env["PATH"] = f"{self.place / 'bin'}:{PLAIN['PATH']}"
        text = "from elastrun import install_torchrun as it; it.__file__ = {!r}; it.main()".format(
            str(users / "elastrun/install_torchrun.py"))
        said = run("-c", text)
        self.assertIn(f"{users}/elastrun-torchrun.pth: ", said.stdout, said.stderr)
        self.assertTrue((home / ".local/bin/torchrun").is_symlink())
        said = run("-c", f"import sys; sys.argv.append('--remove'); {text}")
        self.assertIn(f"{home}/.local/bin/torchrun: removed", said.stdout, said.stderr)

    def test_what_pip_has_installed_is_left_to_pip(self) -> None:
        info = self.packages / "elastrun_torchrun-0.1.0.dist-info"
        info.mkdir()
        self.addCleanup(shutil.rmtree, info)
        (info / "METADATA").write_text("Name: elastrun-torchrun\nVersion: 0.1.0\n")
        (info / "RECORD").write_text("elastrun-torchrun.pth,,\n../../../bin/torchrun,,\n")
        self.assertIn("nothing is left to do", self.install())
        done = self.python("-m", "elastrun.install_torchrun", "--remove")
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertIn("pip uninstall elastrun-torchrun", done.stderr)
        self.assertTrue((self.packages / "elastrun-torchrun.pth").exists())

    def test_a_folder_that_cannot_be_written_to_is_named(self) -> None:
        (self.packages / "elastrun-torchrun.pth").unlink()
        (self.packages / "elastrun-torchrun.pth").mkdir()
        self.addCleanup(self.install)
        self.addCleanup((self.packages / "elastrun-torchrun.pth").rmdir)
        done = self.python("-m", "elastrun.install_torchrun", PYTHONPATH=str(ROOT / "lib/python"))
        self.assertEqual(done.returncode, 1)
        self.assertIn("install_torchrun: error: ", done.stderr)
        self.assertIn(str(self.packages), done.stderr)
        self.assertEqual([one for one in os.listdir(self.packages) if one.startswith("elastrun-")],
                         ["elastrun-torchrun.pth"])

    def test_a_failure_half_way_changes_nothing(self) -> None:
        place = self.folder / "half"
        (place / "bin").mkdir(parents=True)
        (place / "bin/torchrun").write_text("torch's")
        for folder in (place / "gone", place):
            done = self.python("-c", f"""
import errno, os
from elastrun import install_torchrun
def refuse(*_):
    raise OSError(errno.ENOSPC, "no space")
if {folder == place}:
    os.symlink = refuse
try:
    install_torchrun.install({str(folder)!r}, {str(place / "bin")!r})
except OSError as error:
    print(errno.errorcode[error.errno])
""", PYTHONPATH=str(ROOT / "lib/python"), PATH=f"{self.place / 'bin'}:{PLAIN['PATH']}")
            expected = "ENOSPC\n" if folder == place else "ENOENT\n"
            self.assertEqual(done.stdout, expected, done.stderr)
            self.assertEqual([str(one.relative_to(place)) for one in place.rglob("*")],
                             ["bin", "bin/torchrun"])
            self.assertEqual((place / "bin/torchrun").read_text(), "torch's")

    def test_programs_that_never_launch_import_nothing_more(self) -> None:
        names = "import sys\n{}print(sorted(sys.modules))"
        for program in (names.format(""), names.format("import torch\n"), names.format(
                "import accelerate.commands, torch.distributed\n")):
            self.assertEqual(self.python("-c", program).stdout,
                             self.python("-S", "-c", "import sys, site\n"
                                         "site.execsitecustomize()\n"  # Debian has one
                                         f"sys.path += [{str(self.packages)!r}]\n"
                                         + program).stdout)

    def test_the_module_is_recognised_before_torch_is_imported(self) -> None:
        words = ("--nproc-per-node=2", "worker.py", "-m", "torch.distributed.run", "--lr=1")
        expected = [f"{rank} 2 -m torch.distributed.run --lr=1" for rank in (0, 1)]
        for spelled in (("-m", "torch.distributed.run"), ("-mtorch.distributed.run",),
                        ("-X", "dev", "-um", "torch.distributed.run")):
            self.assertEqual(self.workers(*spelled, *words), expected)
        # As the operator of PyTorchJob gives it to the launcher.
        self.assertEqual(self.workers("-m", "torch.distributed.run", *words, RANK="1",
                                      WORLD_SIZE="9"), expected)

    def test_a_torch_that_is_installed_later_brings_a_command_that_is_recognised(self) -> None:
        self.addCleanup(self.install)
        self.addCleanup(shutil.copy, self.torchs_own.with_suffix(".torch"), self.torchs_own)
        self.addCleanup(self.torchs_own.unlink)
        self.torchs_own.unlink()  # a link to the program
        torchs = (f"#!{self.place}/bin/python3\nimport sys\n"
                  "from torch.distributed.run import main\nmain()\n")
        self.torchs_own.write_text(torchs)
        words = (self.torchs_own, "--nproc-per-node=2", "worker.py", "--lr=1")
        self.assertEqual(self.workers(*words), ["0 2 --lr=1", "1 2 --lr=1"])
        done = self.python(*words, ELASTRUN_TORCHRUN="0")
        self.assertTrue(done.stdout.startswith("torch runs --nproc"), done.stderr)
        # Another program of that name, and a process of multiprocessing with the arguments of its
        # parent, may import torch.
        self.torchs_own.write_text("import torch\nprint('of a user')\n")
        self.assertEqual(self.python(*words).stdout, "of a user\n")
        self.torchs_own.write_text(torchs)
        elsewhere = "import os, sys; os.chdir('/'); sys.argv[0] = __import__('pathlib').Path({!r})"
        self.torchs_own.write_text(elsewhere.format("torchrun") + "; import torch; print('fine')\n")
        self.assertEqual(self.python(*words).stdout, "fine\n")
        self.torchs_own.write_text(torchs)
        spawned = f"import sys; sys.argv = {list(map(str, words))}; import torch; print('spawned')"
        self.assertEqual(self.python("-c", spawned).stdout, "spawned\n")

    def test_the_old_module_gives_the_local_rank(self) -> None:
        old = ("-m", "torch.distributed.launch")
        self.assertEqual(self.workers(*old, "--nproc_per_node", "2", "worker.py", "--lr", "1"),
                         ["0 2 --local-rank=0 --lr 1", "1 2 --local-rank=1 --lr 1"])
        self.assertEqual(
            self.workers(*old, "--nproc_per_node=2", "--use_env", "-t", "0", "worker.py",
                         "--use-env"), ["0 2 --use-env", "1 2 --use-env"])
        self.assertEqual(self.workers(*old, "--nproc_per_node=2", "-m", "--stand", "worker"),
                         ["0 2 --local-rank=0", "1 2 --local-rank=1"])
        done = self.python(*old, "--no-python", "true")
        self.assertEqual(done.returncode, 1)
        self.assertIn("you must also set the '--use-env' flag", done.stderr)

    def test_it_is_off_when_the_user_says_so(self) -> None:
        done = self.python("-m", "torch.distributed.run", "train.py", ELASTRUN_TORCHRUN="0")
        self.assertEqual((done.stdout, done.stderr), ("torch runs train.py\n",
                                                      "torch is imported\n"))
        done = self.python("-c", "from torch.distributed.launcher import api\n"
                           "print(api.launch_agent(1, 2, 3))", ELASTRUN_TORCHRUN="0")
        self.assertEqual(done.stdout, "torch launches\n", done.stderr)

    def accelerates(self, *words: object, **env: str) -> list[str]:
        done = self.python(*words, **env)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout.splitlines()

    def test_accelerate_launch_imports_no_command_but_its_own(self) -> None:
        module = ("-m", "accelerate.commands.accelerate_cli")
        ran = "launch runs 3 args.func(args)"
        for command in ((self.accelerate,), module):
            self.assertEqual(self.accelerates(*command, "launch", "--steps=3"),
                             ["imports launch", "imports tpu", ran])
            self.assertEqual(
                self.accelerates(*command, "launch", "--steps=3", ELASTRUN_TORCHRUN="0"),
                ["imports env", "imports launch", "imports tpu", ran])
            self.assertEqual(
                self.accelerates(*command, "env"), ["imports env", "imports launch", "imports tpu",
                                                    "env runs None args.func(args)"])
        mine = self.folder / "of_a_user.py"
        mine.write_text("import accelerate.commands.accelerate_cli\n")
        self.assertEqual(self.accelerates(mine, "launch"),
                         ["imports env", "imports launch", "imports tpu"])

    def test_a_release_of_accelerate_that_looks_otherwise_is_left_alone(self) -> None:
        program = self.packages / "accelerate/commands/accelerate_cli.py"
        text = program.read_text()
        self.addCleanup(program.write_text, text)
        whole = ["imports env", "imports launch", "imports tpu", "launch runs 3 "]
        for old, new in (("import env_command_parser", "import env_command_parser as other"),
                         ("    env_command_parser(subparsers=subparsers)", "    env_command_parser("
                          "\n        subparsers)"),
                         ("    args =", "    print(end=env_command_parser and '')\n    args =")):
            changed = text.replace(old, new)
            if " as other" in new:
                changed = changed.replace("    env_command_parser(", "    other(")
            self.assertNotEqual(changed, text)
            program.write_text(changed)
            said = self.accelerates(self.accelerate, "launch", "--steps=3")
            self.assertEqual([*said[:-1], said[-1][:14]], whole, new)
        program.write_text("raise ImportError('a release that is broken')\n")
        done = self.python(self.accelerate, "launch")
        self.assertIn("a release that is broken", done.stderr)

    def test_other_modules_that_import_torch_are_left_alone(self) -> None:
        (self.folder / "mine.py").write_text("import sys, torch\nprint(*sys.argv[1:])\n")
        done = self.python("-m", "mine", "-m", "torch.distributed.run")
        self.assertEqual((done.stdout, done.stderr), ("-m torch.distributed.run\n",
                                                      "torch is imported\n"))

    def test_what_has_the_packages_name_does_not_break_torch(self) -> None:
        self.hide_the_package()
        source = self.folder / "source"
        (source / "elastrun").mkdir(parents=True)  # as a clone of the repository
        (source / "train.py").write_text("import torch.distributed.launcher.api\nprint('fine')\n")
        self.assertEqual(self.python(source / "train.py").stdout, "fine\n")
        (source / "elastrun.py").write_text("import torch.distributed.launcher.api\n"
                                            "print('of the user')\n")
        self.assertEqual(self.python(source / "elastrun.py").stdout, "of the user\n")

    def test_without_the_package_or_the_program_torchs_own_runs(self) -> None:
        hook, text = self.hide_the_package()
        done = self.python("-m", "torch.distributed.run", "train.py")
        self.assertEqual(done.stdout, "torch runs train.py\n", done.stderr)
        hook.write_text(text)
        (self.place / "bin/elastrun").unlink()
        self.addCleanup((self.place / "bin/elastrun").symlink_to, PROGRAM)
        done = self.python("-m", "torch.distributed.run", "train.py", PATH="/usr/bin:/bin")
        self.assertEqual(done.stdout, "torch runs train.py\n", done.stderr)
        self.assertIn("the program elastrun is missing", done.stderr)

    def test_accelerators_are_counted_by_the_torch_of_the_interpreter(self) -> None:
        def launch(name: str) -> subprocess.CompletedProcess[str]:
            return subprocess.run([self.place / "bin/elastrun", f"--nproc-per-node={name}",
                                   "worker.py"], capture_output=True, text=True, cwd=self.folder,
                                  timeout=120, env=PLAIN)
        done = launch("npu")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(sorted(done.stdout.splitlines()), ["0 3", "1 3", "2 3"])
        done = launch("hpu")
        self.assertEqual(done.returncode, 1)
        self.assertIn("error: hpu is not available.\n", done.stderr)
        done = launch("gpus")
        self.assertEqual(done.returncode, 1)
        self.assertIn("error: Unsupported nproc_per_node value: gpus\n", done.stderr)
        self.assertIn("\n  torch 2.99 knows no accelerator", done.stderr)
        shadow = self.folder / "torch"  # as where torch's source lies
        shadow.mkdir()
        self.addCleanup(shutil.rmtree, shadow)
        (shadow / "__init__.py").write_text("raise ImportError('not built')\n")
        done = launch("npu")
        self.assertEqual(done.returncode, 0, done.stderr)
        (self.packages / "torch/__init__.py").rename(self.packages / "torch/init")
        self.addCleanup((self.packages / "torch/init").rename, self.packages / "torch/__init__.py")
        (self.packages / "torch/__init__.py").write_text("raise ImportError('no library')\n")
        done = launch("npu")
        self.assertEqual(done.returncode, 1)
        self.assertIn("cannot import torch: no library", done.stderr)

    def test_a_config_of_another_release_has_defaults_for_what_it_lacks(self) -> None:
        """What it has that elastrun does not know goes to torch's own launcher, said once."""
        done = self.python("-c", OLDER)
        self.assertEqual(done.returncode, 0, done.stderr)
        out = done.stdout.splitlines()
        self.assertEqual(sorted(out[:2]), ["0 2 --lr=1", "1 2 --lr=1"])
        self.assertEqual(out[2:5], ["{0: None, 1: None}", "3", "missing no-such-program"])
        self.assertEqual(sorted(out[5:7]), ["0 2", "1 2"])
        self.assertEqual(out[7:], ["{0: None, 1: None}", "torch launches", "torch launches"])
        self.assertEqual(done.stderr.count("elastrun: torch's own launcher runs: elastrun does not "
                                           "know LaunchConfig.teleport of this torch"), 1)
        self.assertEqual(done.stderr.count("elastrun: launches in place of"), 1, done.stderr)

    def test_a_program_with_an_agent_of_its_own_gets_torchs_launcher(self) -> None:
        done = self.python("-c", OWN_AGENT)
        self.assertEqual(done.stdout, "torch launches\ntorch launches\n", done.stderr)
        self.assertEqual(
            done.stderr, "torch is imported\nelastrun: torch's own launcher runs: the program has "
            "its own LocalElasticAgent (ELASTRUN_TORCHRUN=0: torch's own)\n")
