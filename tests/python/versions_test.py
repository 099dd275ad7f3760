# SPDX-License-Identifier: Apache-2.0
"""The worker package runs with Python 3.9 and imports nothing but the standard library: by what its
sources say, and by a Python 3.9 itself where there is one.
"""
from __future__ import annotations

import ast
import importlib.util
import shutil
import subprocess
import sys
import tempfile
import unittest
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "lib" / "python" / "elastrun"
OLDEST = (3, 9)
# What later versions have brought, by name, as far as a worker library could want it.
LATER = {"ExceptionGroup", "ParamSpec", "Self", "StrEnum", "TaskGroup", "TypeAlias", "UTC",
         "add_note", "aiter", "anext", "batched", "bit_count", "chdir", "enterContext", "eventfd",
         "get_annotations", "kw_only", "override", "pairwise", "process_cpu_count", "slots",
         "tomllib"}


def is_type(node: ast.expr) -> bool:
    """Whether `X | Y` with this operand is a union, which only annotations may have."""
    return (isinstance(node, ast.Constant) and node.value is None) or (
        isinstance(node, ast.Name) and node.id in ("int", "str", "float", "bool", "bytes"))


def annotations(tree: ast.AST) -> set[ast.AST]:
    """All that is never evaluated, with `from __future__ import annotations`."""
    roots: list[ast.AST | None] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign):
            roots.append(node.annotation)
        elif isinstance(node, ast.arg):
            roots.append(node.annotation)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            roots.append(node.returns)
    return {inner for root in roots if root is not None for inner in ast.walk(root)}


def problems(path: Path) -> Iterator[str]:
    tree = ast.parse(path.read_text(), path.name, feature_version=OLDEST)
    unevaluated = annotations(tree)
    for node in ast.walk(tree):
        where = f"{path.name}:{getattr(node, 'lineno', 0)}"
        if node in unevaluated:
            continue
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
            if is_type(node.left) or is_type(node.right):
                yield f"{where}: a union at run time: since 3.10"
        names = [node.attr] if isinstance(node, ast.Attribute) else []
        if isinstance(node, ast.keyword) and node.arg is not None:
            names = [node.arg]
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names = [alias.name for alias in node.names]
            modules = names if isinstance(node, ast.Import) else [node.module or ""]
            for module in modules:
                top = module.partition(".")[0]
                if top not in sys.stdlib_module_names and top not in ("elastrun", "__future__"):
                    yield f"{where}: {module} is not of the standard library"
        for name in names:
            if name in LATER or (name == "strict" and isinstance(node, ast.keyword)):
                yield f"{where}: {name}: since Python 3.10 or later"
        if isinstance(node, (ast.Match if hasattr(ast, "Match") else ())):
            yield f"{where}: match: since 3.10"
    first = [node for node in tree.body if isinstance(node, ast.ImportFrom)][:1]
    if "|" in path.read_text() and (not first or first[0].module != "__future__"):
        yield f"{path.name}:1: no `from __future__ import annotations`"


def oldest() -> str | None:
    """A Python 3.9 that runs; a shim of pyenv may not."""
    kept = (Path.home() / ".pyenv" / "versions").glob("3.9*/bin/python3.9")
    for program in filter(None, (shutil.which("python3.9"), *map(str, kept))):
        if subprocess.run([program, "-c", ""], capture_output=True, timeout=60).returncode == 0:
            return program
    return None


class Versions(unittest.TestCase):
    def test_the_sources_need_no_later_python_and_no_other_package(self) -> None:
        files = sorted(one for one in PACKAGE.rglob("*.py") if one.parent.name != "start")
        self.assertGreater(len(files), 8)
        self.assertEqual([one for file in files for one in problems(file)], [])

    def test_the_check_finds_what_it_looks_for(self) -> None:
        bad = PACKAGE.parent / "bad.py"
        sources = ("X = int | None\n", "import numpy\n", "zip([], strict=True)\n",
                   "from itertools import pairwise\n")
        for source in sources:
            with self.subTest(source):
                fake = type("Source", (), {"read_text": lambda self, s=source: s, "name": bad.name})
                self.assertEqual(len(list(problems(fake()))), 2 if "|" in source else 1)

    def test_python_39_imports_and_tests_it(self) -> None:
        program = oldest()
        if program is None:
            self.skipTest("no Python 3.9 here")
        files = [file.relative_to(PACKAGE).with_suffix("") for file in PACKAGE.rglob("[a-z]*.py")]
        names = ", ".join(".".join(("elastrun", *file.parts)) for file in files
                          if file.parts[0] != "start")
        done = subprocess.run([program, "-Bc", f"import elastrun, {names}"], text=True,
                              cwd=PACKAGE.parent, capture_output=True, timeout=60)
        self.assertEqual((done.stderr, done.returncode), ("", 0))
        for test in ("goodput_test.py", "metrics_test.py", "monitor_test.py"):
            done = subprocess.run([program, "-B", Path(__file__).with_name(test)], text=True,
                                  capture_output=True, timeout=130)
            self.assertEqual(done.returncode, 0, done.stderr)

    def test_the_import_takes_along_nothing_that_is_slow(self) -> None:
        done = subprocess.run(
            [sys.executable, "-S", "-c", "import elastrun, sys; print(*sys.modules)"],
            env={"PYTHONPATH": str(PACKAGE.parent), "PYTHONDONTWRITEBYTECODE": "1"}, text=True,
            capture_output=True, timeout=60)
        self.assertEqual(done.stderr, "")
        slow = {"asyncio", "dataclasses", "inspect", "json", "logging", "multiprocessing", "re",
                "subprocess", "tempfile", "traceback", "typing", "elastrun.goodput"}
        self.assertEqual(set(done.stdout.split()) & slow, set())


class Types(unittest.TestCase):
    """As mypy --strict reads the package for users: it says py.typed."""

    def test_mypy_strict_finds_nothing(self) -> None:
        program = shutil.which("mypy")
        words = [program] if program is not None else [sys.executable, "-m", "mypy"]
        if program is None and importlib.util.find_spec("mypy") is None:
            self.skipTest("no mypy here: pip install mypy")
        self.assertTrue((PACKAGE / "py.typed").is_file())
        with tempfile.TemporaryDirectory() as cache:
            done = subprocess.run([*words, "--strict", f"--cache-dir={cache}", "elastrun"],
                                  cwd=PACKAGE.parent, text=True, capture_output=True, timeout=280)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


if __name__ == "__main__":
    unittest.main()
