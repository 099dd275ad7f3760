# SPDX-License-Identifier: Apache-2.0
"""What the text of a script says to a fork server: which modules it imports, which variables it
sets, and whether it changes where modules are found. The text may be hostile.
"""
from __future__ import annotations

import ast
import contextlib
import os
from collections.abc import Iterator
from typing import NamedTuple

# What a first step imports, whatever the script does.
_WITH_TORCH = ("torch._dynamo", "torch.distributed", "torch.nn.parallel")
_MOST_FILES = 200  # of the script's own that are searched for imports


def _imports_of(tree: ast.AST) -> list[str]:
    """As `module` or `module:name`; what functions import is left out: it may never be."""
    pending = [tree]
    found: list[str] = []
    while pending:
        node = pending.pop(0)
        if isinstance(node, ast.Import):
            found += [one.name for one in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            found += [f"{node.module}:{one.name}" for one in node.names if one.name != "*"]
        elif not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            pending += ast.iter_child_nodes(node)
    return found


def file_of(name: str, folder: str) -> str:
    base = os.path.join(folder, *name.split("."))
    tries = (base + ".py", os.path.join(base, "__init__.py"), os.path.join(base, "__main__.py"))
    return next((one for one in tries if os.path.isfile(one)), "")


def _is_environment(node: ast.AST) -> bool:
    return (isinstance(node, ast.Name) and node.id == "environ"
            or isinstance(node, ast.Attribute) and node.attr == "environ")


def _changes_path(node: ast.AST) -> bool:
    """By sys.path.insert(), or an assignment; not by append(): what comes last hides nothing."""
    place: ast.AST | None = None
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        place = node.func.value if node.func.attr == "insert" else None
    elif isinstance(getattr(node, "ctx", None), ast.Store):
        place = node.value if isinstance(node, ast.Subscript) else node
    return (isinstance(place, ast.Attribute) and place.attr == "path"
            and isinstance(place.value, ast.Name) and place.value.id == "sys")


def _variables_set_in(tree: ast.AST) -> Iterator[str]:
    """Names that stand where a variable is set; wherever that is, as order is hard to tell."""
    for node in ast.walk(tree):
        places: list[ast.AST] = []
        if isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
            places = [node.slice] if _is_environment(node.value) else []
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            of, does = node.func.value, node.func.attr
            if does in ("setdefault", "pop") and _is_environment(of) or does == "putenv":
                places = list(node.args[:1])
            elif does == "update" and _is_environment(of):
                places = [one for given in node.args for one in ast.walk(given)]
                yield from (one.arg for one in node.keywords if one.arg)
        yield from (one.value for one in places
                    if isinstance(one, ast.Constant) and isinstance(one.value, str))


class Text(NamedTuple):
    """What the text of a script and of the modules in its folder says."""
    imports: list[str]
    variables: dict[str, str]  # that it sets, with the file's name
    changes_path: str  # the file that puts folders before the others, or ""
    files: dict[str, tuple[int, int]]  # with their time and size

    def is_as_read(self) -> bool:
        return all(_state_of(one) == state for one, state in self.files.items())


def _state_of(path: str) -> tuple[int, int]:
    with contextlib.suppress(OSError):
        about = os.stat(path)
        return about.st_mtime_ns, about.st_size
    return 0, 0


def read_text(path: str, folder: str) -> Text:
    """Hostile text costs what it would say."""
    names: dict[str, None] = {}
    variables: dict[str, str] = {}
    changes_path = ""
    files = [path]
    states: dict[str, tuple[int, int]] = {}
    for file in files:  # grows
        states[file] = _state_of(file)
        with contextlib.suppress(OSError, SyntaxError, ValueError, RecursionError):
            with open(file, "rb") as text:
                tree = ast.parse(text.read())
            for one in _variables_set_in(tree):
                variables.setdefault(one, os.path.basename(file))
            if any(map(_changes_path, ast.walk(tree))):
                changes_path = changes_path or os.path.basename(file)
            for name in _imports_of(tree):
                own = file_of(name.partition(":")[0], folder)
                if not own:
                    names[name] = None
                elif own not in files and len(files) < _MOST_FILES:
                    files.append(own)
    if any(one.partition(":")[0].split(".")[0] in ("torch", "lightning", "transformers")
           for one in names):
        names.update(dict.fromkeys(_WITH_TORCH))
    return Text(list(names), variables, changes_path, states)
