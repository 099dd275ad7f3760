# SPDX-License-Identifier: Apache-2.0
"""The import hook that lets elastrun run what is launched by torch's launcher.

`python -m elastrun.install_torchrun` writes LINE into a .pth file, which Python runs at each start.
The line imports nothing and costs some 50 microseconds: a function that looks at the names of
modules. It calls `find_spec` below in three cases alone: a program imports the module of torch in
which every launcher ends, torch is imported in the course of `python -m` or by a command of the
name torchrun, or accelerate's command is imported, most of which `accelerate launch` does not need.
Standard library only.
"""
from __future__ import annotations

import os
import re
import sys
from typing import Any

API = "torch.distributed.launcher.api"
ACCELERATE = "accelerate.commands.accelerate_cli"
# What it does then is a text, which costs nothing until it is evaluated: compiling the line is most
# of what it takes, and takes a fifth less with one text of names than with a tuple. So it is also
# evaluated for parts of these names, and looks closer. The module is looked for first: the package
# may have been removed and the .pth file left, or a script or a folder of the same name may hide
# it, and torch must be importable.
LINE = (
    f"import sys; f = lambda n, *a: n in 'torch {API} {ACCELERATE}' and eval(\""
    "(n[-4:] in ('.api', '_cli') or n == 'torch' and "
    "str(*__import__('sys').argv[:1])[-8:] in ('-m', 'torchrun')) and "
    "(lambda find: getattr(find('elastrun'), 'submodule_search_locations', 0) and "
    "find('elastrun.torchrun_hook'))(__import__('importlib.util', fromlist=['_']).find_spec) and "
    "__import__('elastrun.torchrun_hook', fromlist=['_']).find_spec(n, *a[:1])\") or None; "
    "f.find_spec = f; sys.meta_path.insert(0, f)\n")
_WORD = re.compile(r"(?:-[A-Za-z]*m)?([\w.]+)")
_COMMAND = re.compile(r"^from accelerate\.commands\.(?!launch )[\w.]+ import (\w+)$", re.MULTILINE)


def find_spec(name: str, path: Any = None) -> Any:
    """Finds nothing, or the module with launch_agent replaced, or the command accelerate without
    what its launch does not need. Does not return where this interpreter was started to be torch's
    launcher: it becomes elastrun, before torch is imported."""
    if os.environ.get("ELASTRUN_TORCHRUN") == "0":
        return None
    if name == API or name == ACCELERATE and _is_accelerate_launch():
        from elastrun import imports
        spec = imports.found_by_others(None, name, path)
        if name == ACCELERATE:
            return _launch_alone(name, spec)
        imports.after_execution(getattr(spec, "loader", None), name, _replace_launch_agent)
        return spec
    if name != "torch":
        return None
    module = "torch.distributed.run" if _is_torchs_command() else _called_module()
    if module in ("torch.distributed.run", "torch.distributed.launch"):
        from elastrun import torchrun
        torchrun.become_launcher(module, sys.argv[1:])
    return None


def _called() -> str:
    """The word before the arguments, as this interpreter was given it: -m's module, a script."""
    words = getattr(sys, "orig_argv", None)  # since Python 3.10
    if words is None:
        with open("/proc/self/cmdline", "rb") as file:
            words = [os.fsdecode(word) for word in file.read().split(b"\0")[:-1]]
    return words[-len(sys.argv)] if len(sys.argv) <= len(words) else ""


def _called_module() -> str | None:
    """The module that `python -m` was asked for. While it looks for that, sys.argv is "-m" and what
    follows the name."""
    found = _WORD.fullmatch(_called())
    return found[1] if found and sys.argv[0] == "-m" else None


def _is_torchs_command() -> bool:
    """Tells if the script of this interpreter is the torchrun that torch brings: it is there when
    torch was installed after us. Processes started by multiprocessing have sys.argv of others."""
    program = str(sys.argv[0])
    if os.path.basename(program) != "torchrun" or _called() != program:
        return False
    try:
        with open(program, "rb") as file:
            return b"from torch.distributed.run import main" in file.read(4096)
    except OSError:  # a relative name, and the program has gone elsewhere
        return False


def _is_accelerate_launch() -> bool:
    program, command = (*sys.argv, "", "")[:2]
    return command == "launch" and (os.path.basename(str(program)) == "accelerate"
                                    or program == "-m" and _called_module() == ACCELERATE)


def _replace_launch_agent(module: Any) -> None:
    from elastrun import torchrun
    torchrun.replace_launch_agent(module)


def _launch_alone(name: str, spec: Any) -> Any:
    """The command accelerate imports those of all its commands first, which takes as long as torch.
    This is its own program without the others; what does not look as expected stays in it."""
    try:
        text = spec.loader.get_source(name)
        shorter = without_other_commands(text)
        if shorter != text:
            code = compile(shorter, spec.origin, "exec", dont_inherit=True)
            spec.loader.get_code = lambda _: code
            spec.loader.exec_module = lambda module: exec(code, module.__dict__)
    except Exception:  # a release, or a loader, that has not been seen yet
        pass
    return spec


def without_other_commands(text: str) -> str:
    """The program of the command accelerate without the import and the registration, one line each,
    of every command but launch. Lines keep their numbers."""
    for name in _COMMAND.findall(text):
        uses = re.compile(rf"^(?:from .* import {name}$|(    ){name}\(subparsers=subparsers\)$)",
                          re.MULTILINE)
        if len(uses.findall(text)) == 2 == len(re.findall(rf"\b{name}\b", text)):
            text = uses.sub(lambda use: "    pass" if use[1] else "", text)
    return text
