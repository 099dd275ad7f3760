# SPDX-License-Identifier: Apache-2.0
"""python -m elastrun.install_torchrun [--remove]: everything in this environment that launches by
torch gets elastrun: `torchrun`, `python -m torch.distributed.run`, and programs that call torch's
launcher as a library, such as accelerate. `ELASTRUN_TORCHRUN=0` gives torch's own for once.
Standard library only; torch need not be there yet.
"""
from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import site
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

from elastrun.program import find_program
from elastrun.torchrun_hook import LINE

HOOK = "elastrun-torchrun.pth"
PACKAGE = "elastrun-torchrun"  # cmake/torchrun, of which the hook may be, too
KEPT = "torchrun.torch"  # torch's own command, while ours has its name


def _replace(files: dict[str, Callable[[str], object]]) -> None:
    """Makes each of these files, by what is to make it under a path. First all of them beside their
    places, so that a full disk or a folder that cannot be written to changes nothing; then each
    gets its place in one step: a program that starts meanwhile sees the old one or the new one."""
    drafts = {path: f"{path}.{os.getpid()}" for path in files}
    try:
        for path, make in files.items():
            make(drafts[path])
        for path, draft in drafts.items():
            os.replace(draft, path)
    finally:
        for draft in drafts.values():
            if os.path.lexists(draft):
                os.unlink(draft)


def _is_ours(path: str) -> bool:
    """A link to elastrun, wherever that is or was."""
    return os.path.islink(path) and os.path.basename(os.readlink(path)) == "elastrun"


def install(packages: str, programs: str) -> list[str]:
    """Into these two folders, of modules and of commands. Returns what was done, as sentences.
    OSError where a folder cannot be written to, or the program elastrun is missing: then all is as
    it was."""
    found = find_program("elastrun")
    if found is None:
        raise OSError("the program elastrun is neither beside this package nor in PATH")
    program = os.path.realpath(found)
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    # With a line for the folder of this package, if it is not in the environment itself.
    text = LINE if os.path.realpath(here) == os.path.realpath(packages) else f"{here}\n{LINE}"
    hook, command = os.path.join(packages, HOOK), os.path.join(programs, "torchrun")
    kept = os.path.join(programs, KEPT)
    files: dict[str, Callable[[str], object]] = {}
    done = []
    if os.path.lexists(command) and not _is_ours(command):
        # A copy, so that a command has that name all the time. Not a hard link, which the kernel
        # refuses for the files of another user.
        files[kept] = lambda draft: shutil.copy2(command, draft, follow_symlinks=False)
        done.append(f"{kept}: torch's own command")
    beside = os.path.dirname(program) == os.path.realpath(programs)
    files[command] = lambda draft: os.symlink("elastrun" if beside else program, draft)
    files[hook] = lambda draft: Path(draft).write_text(text, encoding="utf-8")
    _replace(files)
    return [*done, f"{command}: elastrun", f"{hook}: torch's launcher is replaced when it is "
            "imported"]


def remove(packages: str, programs: str) -> list[str]:
    """Undoes install(), which may not have been called. Returns what was done."""
    done = []
    hook, command = os.path.join(packages, HOOK), os.path.join(programs, "torchrun")
    kept = os.path.join(programs, KEPT)
    if os.path.lexists(hook):
        os.unlink(hook)
        done.append(f"{hook}: removed")
    if _is_ours(command):
        os.unlink(command)
        done.append(f"{command}: removed")
    if os.path.lexists(kept):
        if os.path.lexists(command) or importlib.util.find_spec("torch") is None:
            os.unlink(kept)  # torch has been installed again, or is gone
        else:
            os.replace(kept, command)
            done.append(f"{command}: torch's own again")
    return done or ["nothing was installed here"]


def _folders() -> tuple[str, str]:
    """The folders for modules and commands that pip would take: those of the environment, or of
    the user where it is installed with --user."""
    here = os.path.realpath(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    if site.ENABLE_USER_SITE and here == os.path.realpath(site.getusersitepackages()):
        return (sysconfig.get_path("purelib", f"{os.name}_user"),
                sysconfig.get_path("scripts", f"{os.name}_user"))
    return sysconfig.get_path("purelib"), sysconfig.get_path("scripts")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m elastrun.install_torchrun",
        description="Lets elastrun run whatever this Python environment launches by torch: "
                    "torchrun, python -m torch.distributed.run, accelerate, fabric and others.")
    parser.add_argument("--remove", action="store_true", help="undo it")
    asked = parser.parse_args()
    packages, programs = _folders()
    import importlib.metadata  # takes longer than all else

    # The hook there may belong to that package.
    if any(file.name == HOOK for one in importlib.metadata.distributions(
            name=PACKAGE, path=[packages]) for file in one.files or ()):
        if asked.remove:
            sys.exit("install_torchrun: error: pip has installed the hook, with the package "
                     f"{PACKAGE}\n  expected one that this module has installed; pip uninstall "
                     f"{PACKAGE} removes it, with the command torchrun. Torch's own comes back "
                     "with pip install --force-reinstall --no-deps torch")
        print(f"pip has installed the hook, with the package {PACKAGE}: nothing is left to do")
        return
    try:
        done = remove(packages, programs) if asked.remove else install(packages, programs)
    except OSError as error:
        sys.exit(f"install_torchrun: error: {error}\n"
                 f"  expected to write to {packages} and {programs}; use a virtual environment, or "
                 "the account that installed this Python")
    print("\n".join(done))


if __name__ == "__main__":
    main()
