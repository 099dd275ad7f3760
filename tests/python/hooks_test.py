# SPDX-License-Identifier: Apache-2.0
"""How --goodput auto gets into a Python process and to the modules it waits for, and what is
remembered of checkpoints and their steps, without torch.
"""
from __future__ import annotations

import ast
import gzip
import os
import random
import shutil
import subprocess
import sys
import types
import unittest
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parent))
from agent_end import PACKAGE, AgentEnd, folder_for  # noqa: E402
from elastrun import computation  # noqa: E402
from elastrun.checkpoint_steps import CheckpointSteps  # noqa: E402

START = Path(PACKAGE) / "elastrun" / "start"


class Hooks(AgentEnd):
    def run_code(self, code: str, python: str = sys.executable, **env: str) -> str:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("ELASTRUN_", "PYTHON"))}
        kept |= {"PYTHONPATH": f"{START}:{self.folder}:{PACKAGE}",
                 "PYTHONDONTWRITEBYTECODE": "1"} | env
        done = subprocess.run([python, "-c", code], env=kept, cwd=self.folder, text=True,
                              capture_output=True, timeout=60)
        self.assertEqual((done.stderr, done.returncode), ("", 0))
        return done.stdout

    def test_a_process_below_the_worker_is_left_alone_and_the_worker_is_not(self) -> None:
        (self.folder / "sitecustomize.py").write_text("import builtins\nbuiltins.mine = 7\n")
        here = "import sys\nprint('elastrun' in sys.modules, mine)\n"
        child = f"import subprocess\nsubprocess.run([sys.executable, '-c', {here!r}])\n"
        execute = f"import os\nos.execv(sys.executable, [sys.executable, '-c', {here!r}])\n"
        for code, mode, wanted in (("", "auto", ""), (child, "auto", "False 7\n"),
                                   (execute, "auto", "True 7\n")):
            with self.subTest(code):
                told = self.run_code(f"{here}sys.stdout.flush()\n{code}", ELASTRUN_GOODPUT=mode,
                                     ELASTRUN_CHANNEL=self.listener.path)
                self.assertEqual(told, "True 7\n" + wanted)
        for mode in ("", "auto/1", "autos", "off"):
            self.assertEqual(self.run_code(here, ELASTRUN_GOODPUT=mode), "False 7\n")

    def test_pythons_of_any_version_can_read_what_they_start_with(self) -> None:
        tree = ast.parse((START / "sitecustomize.py").read_text())
        new = (ast.JoinedStr, ast.NamedExpr, ast.AnnAssign, ast.AsyncFunctionDef, ast.Nonlocal)
        self.assertEqual([one for one in ast.walk(tree) if isinstance(one, new)
                          or getattr(one, "returns", None) or getattr(one, "annotation", None)], [])
        (self.folder / "sitecustomize.py").write_text("import sys\nsys.mine = 7\n")
        for name in ("python2.7", "python3.6"):
            python = shutil.which(name) or ""
            if python and subprocess.run([python, "-c", ""], capture_output=True).returncode == 0:
                with self.subTest(name):
                    told = self.run_code("import sys; print(sys.mine)", python,
                                         ELASTRUN_GOODPUT="auto/1")
                    self.assertEqual(told, "7\n")

    def test_a_module_is_told_once_and_its_loader_is_as_it_was(self) -> None:
        (self.folder / "waited.py").write_text("value = 1\n")
        (self.folder / "other.py").write_text("value = 2\n")
        told = self.run_code("""
from elastrun.imports import after_import
after_import("waited", lambda module: print("waited", module.value))
after_import("other", lambda module: 1 / 0)
after_import("os", lambda module: print(module.__name__))
import logging
logging.disable()
import waited, other, importlib
importlib.reload(waited)
print(vars(waited.__loader__).keys() - {"name", "path"})
""")
        self.assertEqual(told, "os\nwaited 1\nset()\n")

    def test_another_finder_that_lets_others_find_is_no_endless_loop(self) -> None:
        (self.folder / "waited.py").write_text("value = 1\n")
        told = self.run_code("""
import sys
from elastrun import imports
class Asking:
    def find_spec(self, name, path, target=None):
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None: return spec
imports.after_import("waited", lambda module: print("told"))
for second in (imports._Finder(), Asking()): sys.meta_path.insert(0, second)
sys.setrecursionlimit(200)
try:
    import waited
    print(waited.value)
except RecursionError:
    print("endless")
""")
        self.assertEqual(told.splitlines()[-1], "1")
        self.assertEqual(told.count("told"), 1)

    def test_a_loader_that_cannot_be_changed_or_loads_many_modules_works_as_ever(self) -> None:
        told = self.run_code("""
import sys
from importlib.machinery import ModuleSpec
from elastrun.imports import after_import
class Loader:
    def create_module(self, spec): return None
    def exec_module(self, module): module.value = module.__name__
class Fixed:
    __slots__ = ()
    create_module, exec_module = Loader.create_module, Loader.exec_module
shared, fixed = Loader(), Fixed()
class Finder:
    def find_spec(self, name, path, target=None):
        loader = {"one": shared, "two": shared, "three": fixed}.get(name)
        return ModuleSpec(name, loader) if loader else None
sys.meta_path.insert(0, Finder())
after_import("one", lambda module: print("told of", module.value))
after_import("three", lambda module: print("told of", module.value))
import importlib.util
importlib.util.find_spec("one")
import two, one, three
print(two.value, one.value, three.value, vars(shared))
""")
        self.assertEqual(told, "told of one\ntwo one three {}\n")

    def test_batches_that_come_fast_are_told_once_a_second(self) -> None:
        told = self.run_code("""
from elastrun import auto
clock = [5000.0]
auto.time = lambda: clock[0]
class Iterator:
    def __next__(self): return None
watch = auto.Watch()
watch._journal.start = lambda: None  # no thread takes anything away
Iterator.__next__ = watch._fetching(Iterator.__next__)
def evaluate():
    watch._journal.waiting.clear()
    for _ in range(40):
        clock[0] += 0.25
        next(Iterator())
    return [(entry[0].split('"')[1], entry[1][0]) for entry in watch._journal.waiting]
evaluate()  # preparation begins with the first one
print(all(begin == ("data_loading_start_time", end[1]) and end[0] == "data_loading_end_time"
          for told in [evaluate()] for begin, end in zip(told[::2], told[1::2])))
print(len(evaluate()))
clock[0] = 1000.0  # set back
print(len(evaluate()))
""", ELASTRUN_CHANNEL=str(self.folder / "none"))
        self.assertEqual(told, "True\n20\n20\n")

    def test_saves_and_loads_may_name_their_arguments(self) -> None:
        told = self.run_code("""
import sys
from types import ModuleType
from elastrun import auto
module = sys.modules["files"] = ModuleType("files")
def save_file(tensors, filename, metadata=None): print("saved", filename)
def load_file(filename, device="cpu"): return filename
module.save_file, module.load_file = save_file, load_file
watch = auto.Watch()
watch._hook_files("files", "save_file", "load_file", "tensors", "filename")
module.save_file(filename="a", tensors={})
print(module.load_file(device="cpu", filename="a"), module.load_file is not load_file)
""", ELASTRUN_CHANNEL=str(self.folder / "none"))
        self.assertEqual(told, "saved a\na True\n")

    def test_without_torch_nothing_waits_for_a_thread_that_never_ran(self) -> None:
        told = self.run_code("""
import sys, time
from elastrun.checkpoint_steps import CheckpointSteps
def sleep(_): raise SystemExit("slept")
time.sleep = sleep
print(CheckpointSteps(".").step_of("."), "elastrun.auto" in sys.modules)  # and the end
""", ELASTRUN_GOODPUT="auto", ELASTRUN_CHANNEL=self.listener.path)
        self.assertEqual(told, "-1 True\n")

    def test_threads_of_the_package_are_known_by_their_names(self) -> None:
        for path in sorted(START.parent.glob("*.py")):
            for call in ast.walk(ast.parse(path.read_text())):
                if isinstance(call, ast.Call) and ast.unparse(call.func).endswith("Thread"):
                    name = [ast.unparse(one.value) for one in call.keywords if one.arg == "name"]
                    with self.subTest(f"{path.name}:{call.lineno}"):
                        self.assertRegex(name[0] if name else "", "^f?'elastrun-")


class Device(unittest.TestCase):
    """A CUDA device that does what is enqueued, in the time of a clock of this test."""

    def setUp(self) -> None:
        self.now = self.free_at = 1000.0
        device = self

        class Event:
            def __init__(self, enable_timing: bool) -> None:
                self.at = 0.0

            def record(self) -> None:
                self.at = max(device.now, device.free_at)

            def query(self) -> bool:
                return device.now >= self.at

            def elapsed_time(self, other: Event) -> float:
                assert self.query() and other.query()
                return (other.at - self.at) * 1000

        cuda = types.SimpleNamespace(_initialized=True, Event=Event,
                                     is_current_stream_capturing=lambda: False)
        self.enterContext(mock.patch.dict(sys.modules, {"torch.cuda": cuda}))
        self.enterContext(mock.patch.object(computation, "time", lambda: self.now))
        self.told: list[float] = []
        self.computation = computation.Computation(
            lambda entry: self.told.extend(entry[1]), lambda: False)

    def step(self, launch: float, work: float) -> None:
        self.computation._begin()
        self.now += launch
        self.free_at = max(self.now, self.free_at) + work
        self.computation.stepped(self.now)

    def unexplained(self) -> list[float]:
        return [round(end - begin, 6) for begin, end in zip(self.told[::2], self.told[1::2])]

    def test_a_script_that_waits_for_its_device_has_worked_until_that_was_done(self) -> None:
        for _ in range(4):
            self.step(0.02, 0.1)
            self.now = self.free_at  # as loss.item()
            self.now += 0.05
        self.computation._begin()
        # Since when the device is idle is not known of the first one.
        self.assertEqual(self.unexplained(), [0.15] + [0.05] * 3)

    def test_a_device_that_is_never_idle_leaves_nothing_unexplained(self) -> None:
        for _ in range(4):
            self.step(0.02, 0.1)
            self.now += 0.05
        self.assertEqual(self.unexplained(), [])

    def test_an_idle_device_explains_nothing(self) -> None:
        for _ in range(3):
            self.step(0.1, 0)
            self.now += 0.05
        self.computation._begin()
        self.assertEqual(self.unexplained(), [0.05] * 3)


CONTENT = random.Random(1).randbytes(200_000)


class Remembered(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = Path(folder_for(self))
        self.file = self.folder / "a.pt"
        self.steps = CheckpointSteps(f"{self.folder}/attempt_0/0")

    def test_processes_that_are_killed_leave_one_unfinished_list(self) -> None:
        for process in (1, 2):
            with mock.patch("os.getpid", return_value=process), \
                    mock.patch("os.replace", side_effect=KeyboardInterrupt), \
                    self.assertRaises(KeyboardInterrupt):
                self.steps._write("1:2", 3)
        self.assertEqual(len(list(self.folder.iterdir())), 1)


class Marked(Remembered):
    """By the attribute alone: no list was read."""

    def setUp(self) -> None:
        super().setUp()
        try:
            os.setxattr(self.folder, "user.elastrun.test", b"1")
        except OSError:
            self.skipTest("the file system of temporary files keeps no attributes")

    def save(self, file: Any) -> None:
        """As torch.save does with a file that is open."""
        file.write(CONTENT)
        file.flush()
        self.steps.saved(file, 7)

    def test_a_file_that_grows_after_it_was_saved(self) -> None:
        for opened in (open, gzip.open):
            with self.subTest(opened.__module__):
                with opened(self.file, "wb") as file:  # type: ignore[operator]
                    self.save(file)
                    file.write(b"and more")
                self.assertEqual(self.steps.step_of(self.file), 7)
                with opened(self.file, "rb") as file:  # type: ignore[operator]
                    self.assertEqual(self.steps.step_of(file), 7)
                    self.assertEqual(file.read(), CONTENT + b"and more")
                self.file.unlink()

    def test_what_is_written_over_it_is_another_file(self) -> None:
        other = bytearray(CONTENT)
        other[-1000] ^= 1
        for content in (bytes(other), CONTENT[:-1], b"", CONTENT[1:] + b"x"):
            with self.file.open("wb") as file:
                self.save(file)
            self.assertEqual(self.steps.step_of(self.file), 7)
            self.file.write_bytes(content)
            self.assertIsNone(self.steps.step_of(self.file))

    def test_a_file_of_another_job_tells_nothing(self) -> None:
        with mock.patch.dict(os.environ, TORCHELASTIC_RUN_ID="base"), self.file.open("wb") as file:
            self.save(file)
        for job, step in (("tuned", None), ("base", 7), ("base 7", None)):
            with mock.patch.dict(os.environ, TORCHELASTIC_RUN_ID=job):
                self.assertEqual(self.steps.step_of(self.file), step, job)

    def test_one_of_which_nothing_is_written_yet_has_no_mark_of_another(self) -> None:
        self.file.write_bytes(CONTENT)
        self.steps.saved(self.file, 3)
        with self.file.open("r+b", buffering=1000) as file:
            file.truncate()
            self.steps.saved(file, 4)
        self.assertNotIn("user.elastrun.step", os.listxattr(self.file))


if __name__ == "__main__":
    unittest.main()
