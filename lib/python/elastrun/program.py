#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The launcher for those who call it by Python: `python -m elastrun`, `python $(which elastrun)`,
debuggers and wrappers that want a Python file. Becomes the program elastrun at once, whose workers
then get this interpreter. Standard library only.

The installed program carries this file as an archive at its end, which makes the binary a file that
Python runs, too: it starts without Python, and `python VENV/bin/elastrun` works all the same.
"""
from __future__ import annotations

import os
import sys
from collections.abc import Iterator

_HERE = os.path.dirname(os.path.realpath(__file__))


def _candidates(name: str) -> Iterator[str]:
    if name == "elastrun":
        yield os.environ.get("ELASTRUN_BINARY", "")
        yield _HERE  # the program itself, which this file is a part of
    elif "elastrun.channel" in sys.modules:  # of a worker: the agent's version
        yield os.path.join(sys.modules["elastrun.channel"].agent_folder(), name)
    # Four levels above the package is what holds bin: PREFIX/share/elastrun/python/elastrun,
    # VENV/lib/python3.X/site-packages/elastrun, /usr/lib/python3/dist-packages/elastrun. With
    # pip install --target it is the folder that the package lies in.
    for levels in (4, 1):
        yield os.path.normpath(os.path.join(_HERE, *[".."] * levels, "bin", name))
    yield os.path.join(os.path.dirname(sys.executable), name)
    for folder in os.get_exec_path():
        yield os.path.join(folder, name)


def _is_program(path: str) -> bool:
    """Tells if it is the program itself, not a Python file of the same name (like this one). A
    wheel's elastrunctl is a script of the shell that becomes the program."""
    try:
        with open(path, "rb") as file:
            begin = file.read(9)
            return (begin[:4] == b"\x7fELF" or begin == b"#!/bin/sh") and os.access(path, os.X_OK)
    except OSError:
        return False


def find_program(name: str) -> str | None:
    """elastrun or elastrunctl: beside this package or, in a worker, beside its agent; of this
    interpreter, or in PATH."""
    return next(filter(_is_program, _candidates(name)), None)


def main() -> None:
    """Does not return."""
    name = os.path.basename(sys.argv[0])
    if name in ("__main__.py", "program.py", "-c", ""):
        name = "elastrun"
    program = find_program("elastrun")
    if program is None:
        sys.exit(f"{name}: error: the program elastrun is neither in this package nor in PATH")
    # It looks for an interpreter beside the program that was called, so it was called beside ours.
    # Outside of an environment it may prefer another one, and python3 may be another version.
    folder = os.path.dirname(sys.executable)
    beside = os.path.realpath(os.path.join(folder, "python3"))
    if sys.prefix == sys.base_prefix or beside != os.path.realpath(sys.executable):
        if "PYTHON_EXEC" not in os.environ:  # workers do not inherit it then
            os.environ["PYTHON_EXEC"] = os.environ["ELASTRUN_CALLED_BY"] = sys.executable
    os.execv(program, [os.path.join(folder, name), *sys.argv[1:]])


if __name__ == "__main__":
    main()
