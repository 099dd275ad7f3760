# SPDX-License-Identifier: Apache-2.0
"""The import hook that lets elastrun run what is launched by torch's launcher.

`python -m elastrun.install_torchrun` writes LINE into a .pth file, which Python runs at each start.
The line imports nothing and costs some 50 microseconds: a function that looks at the names of
modules. It calls `find_spec` below in two cases alone: a program imports the module of torch in
which every launcher ends, or torch is imported in the course of `python -m`. Standard library only.
"""
from __future__ import annotations

import os
import re
import sys
from typing import Any

API = "torch.distributed.launcher.api"
# What it does then is a text, which costs nothing until it is evaluated: compiling the line is most
# of what it takes. The module is looked for first: the package may have been removed and the .pth
# file left, or a script or a folder of the same name may hide it, and torch must be importable.
LINE = (
    "import sys; f = lambda n, *a: eval(\""
    "(n != 'torch' or __import__('sys').argv[:1] == ['-m']) and "
    "(lambda find: getattr(find('elastrun'), 'submodule_search_locations', 0) and "
    "find('elastrun.torchrun_hook'))(__import__('importlib.util', fromlist=['_']).find_spec) and "
    "__import__('elastrun.torchrun_hook', fromlist=['_']).find_spec(n, *a[:1]) or None\") "
    "if n in ('torch', 'torch.distributed.launcher.api') else None; "
    "f.find_spec = f; sys.meta_path.insert(0, f)\n")
_RUNS = re.compile(r"(?:-[A-Za-z]*m)?(torch\.distributed\.(?:run|launch))")


def find_spec(name: str, path: Any = None) -> Any:
    """None, or the module with launch_agent replaced. Does not return where this interpreter was
    started to be torch's launcher: it becomes elastrun, before torch is imported."""
    if os.environ.get("ELASTRUN_TORCHRUN") == "0":
        return None
    if name == API:
        return _replacing(name, path)
    module = _called_module()
    if module is not None:
        from elastrun import torchrun
        torchrun.become_launcher(module, sys.argv[1:])
    return None


def _called_module() -> str | None:
    """torch.distributed.run or .launch, if that is what `python -m` was asked for. While it looks
    for the module, sys.argv is "-m" and what follows the name."""
    words = getattr(sys, "orig_argv", None)  # since Python 3.10
    if words is None:
        with open("/proc/self/cmdline", "rb") as file:
            words = [os.fsdecode(word) for word in file.read().split(b"\0")[:-1]]
    found = _RUNS.fullmatch(words[-len(sys.argv)]) if len(sys.argv) <= len(words) else None
    return found[1] if found else None


def _replacing(name: str, path: Any) -> Any:
    for finder in list(sys.meta_path):
        find = getattr(finder, "find_spec", None)
        if find is None or find is finder:  # the latter is LINE's
            continue
        spec = find(name, path)
        if spec is not None:
            if hasattr(spec.loader, "exec_module"):
                spec.loader = _Loader(spec.loader)
            return spec
    return None


class _Loader:
    """Loads by the loader that was found, and puts that back in its place."""

    def __init__(self, found: Any) -> None:
        self._found = found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._found, name)

    def create_module(self, spec: Any) -> Any:
        return self._found.create_module(spec)

    def exec_module(self, module: Any) -> None:
        module.__spec__.loader = module.__loader__ = self._found
        self._found.exec_module(module)
        from elastrun import torchrun
        torchrun.replace_launch_agent(module)
