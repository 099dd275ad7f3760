#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""stubs.py COMPILER FLOOR FOLDER: shared libraries to link against, which have the names and
versions that the C library of this machine has since FLOOR (2.28) or longer, and no code. What is
linked against them runs wherever a C library of FLOOR or later is; what needs a newer name is not
linked, and the linker tells that name."""
from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

# Loaded by name where they hold code (before 2.34), and empty elsewhere.
ONCE_APART = ("libpthread.so.0", "libdl.so.2")


class Symbol(NamedTuple):
    name: str
    version: str
    address: int
    size: int
    is_data: bool
    binding: str


def numbers(version: str) -> tuple[int, ...]:
    return tuple(int(n) for n in version.split("."))


def symbols(library: Path, floor: str) -> list[Symbol]:
    """For each name, the newest version that `floor` has: that of a program linked there."""
    words = [os.environ.get("READELF", "readelf"), "-W", "--dyn-syms", str(library)]
    said = subprocess.run(words, check=True, capture_output=True, text=True,
                          env=dict(os.environ, LC_ALL="C"))
    best: dict[str, Symbol] = {}
    for line in said.stdout.splitlines():
        words = line.split()
        if len(words) < 8 or words[6] in ("UND", "ABS", "Ndx"):
            continue
        matched = re.fullmatch(r"(\w+)@@?GLIBC_([\d.]+)", words[7])
        if not matched or words[3] == "TLS" or numbers(matched[2]) > numbers(floor):
            continue
        name, version = matched.groups()
        found = Symbol(name, version, int(words[1], 16), int(words[2], 0), words[3] == "OBJECT",
                       "weak" if words[4] == "WEAK" else "globl")
        if name not in best or numbers(best[name].version) < numbers(version):
            best[name] = found
    return sorted(best.values())


def assembly(names: list[Symbol]) -> str:
    """Data of one address stays at one address, and weak names stay weak: of what a program copies
    because it is not position independent, all names (environ, __environ) must mean the copy."""
    lines = [".text"]
    for s in names:
        if not s.is_data:
            lines += [f".{s.binding} {s.name}", f".type {s.name}, %function", f"{s.name}:"]
    lines += [".byte 0", ".bss"]
    places: dict[int, list[Symbol]] = defaultdict(list)
    for s in names:
        if s.is_data:
            places[s.address].append(s)
    for address, aliases in sorted(places.items()):
        # As far apart from a round address as the real one, from which the linker takes alignment.
        lines += [".balign 64"] + [f".skip {address % 64}"] * (address % 64 != 0)
        for s in aliases:
            lines += [f".{s.binding} {s.name}", f".type {s.name}, %object",
                      f".size {s.name}, {s.size}", f"{s.name}:"]
        lines.append(f".skip {max(s.size for s in aliases) or 1}")
    return "\n".join(lines) + '\n.section .note.GNU-stack,"",%progbits\n'


def version_script(names: list[Symbol]) -> str:
    versions: dict[str, list[str]] = defaultdict(list)
    for s in names:
        versions[s.version].append(s.name)
    text, before = "", ""
    for version in sorted(versions, key=numbers):
        text += f"GLIBC_{version} {{ global: {'; '.join(versions[version])}; }}{before};\n"
        before = f" GLIBC_{version}"
    return text + ("" if text else "{ local: *; };\n")


def make(compiler: str, soname: str, names: list[Symbol], folder: Path) -> None:
    source, script = folder / f"{soname}.s", folder / f"{soname}.map"
    source.write_text(assembly(names))
    script.write_text(version_script(names))
    subprocess.run([compiler, "-shared", "-nostdlib", f"-Wl,-soname,{soname}",
                    f"-Wl,--version-script,{script}", "-o", folder / soname, source], check=True)


def real(compiler: str, name: str) -> Path:
    return Path(subprocess.run([compiler, f"-print-file-name={name}"], check=True,
                               capture_output=True, text=True).stdout.strip())


def main(compiler: str, floor: str, place: str) -> None:
    folder = Path(place)
    folder.mkdir(parents=True, exist_ok=True)
    script = real(compiler, "libc.so").read_text(errors="replace")
    found = re.search(r"(\S+libc\.so\.6) (\S+libc_nonshared\.a)\s+AS_NEEDED \( (\S+) \)", script)
    if not found:
        sys.exit(f"stubs.py: error: {real(compiler, 'libc.so')} is not that of glibc")
    libc, rest, loader = found.groups()
    libraries = {"libc.so.6": Path(libc), "libm.so.6": real(compiler, "libm.so.6"),
                 Path(loader).name: Path(loader)}
    for soname, library in libraries.items():
        make(compiler, soname, symbols(library, floor), folder)
    for soname in ONCE_APART:
        make(compiler, soname, [], folder)
    (folder / "libc.so").write_text(f"GROUP ( {folder}/libc.so.6 {rest} AS_NEEDED ( "
                                    f"{folder}/{Path(loader).name} ) )\n")
    (folder / "libm.so").write_text(f"INPUT ( {folder}/libm.so.6 )\n")


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    main(*sys.argv[1:])
