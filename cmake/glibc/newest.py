#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""newest.py FLOOR FILE...: whether programs, or those of a wheel, run with glibc FLOOR (2.28).
Tells what each needs of it; exit code 1 if that is newer, or if it needs another library."""
from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

OF_GLIBC = re.compile(r"lib(c|m|pthread|dl)\.so\.\d+|ld-linux[\w-]*\.so\.\d+")


def numbers(version: str) -> tuple[int, ...]:
    return tuple(int(n) for n in version.split("."))


def readelf(option: str, program: Path) -> str:
    return subprocess.run(["readelf", "-W", option, str(program)], check=True, capture_output=True,
                          text=True).stdout


def problems(program: Path, floor: str) -> Iterator[str]:
    for library in re.findall(r"\(NEEDED\).*\[(.+)\]", readelf("--dynamic", program)):
        if not OF_GLIBC.fullmatch(library):
            yield f"needs {library}, which is not part of glibc"
    # With what needs them: `arc4random@GLIBC_2.36`.
    for name, version in re.findall(r"UND (\S+)@GLIBC_([\d.]+)", readelf("--dyn-syms", program)):
        if numbers(version) > numbers(floor):
            yield f"needs {name} of glibc {version}"
    for version in re.findall(r"Name: GLIBC_(\S+)", readelf("--version-info", program)):
        if not version[0].isdigit():
            yield f"needs GLIBC_{version}, of which there is none before"
        elif numbers(version) > numbers(floor):
            yield f"needs glibc {version}"


def programs(file: Path, folder: Path) -> Iterator[Path]:
    if file.suffix != ".whl":
        yield file
        return
    with zipfile.ZipFile(file) as archive:
        for name in archive.namelist():
            if archive.read(name)[:4] == b"\x7fELF":
                yield Path(archive.extract(name, folder))


def main(floor: str, *files: str) -> int:
    wrong = seen = 0
    with tempfile.TemporaryDirectory() as folder:
        for file in files:
            for program in programs(Path(file), Path(folder)):
                seen += 1
                versions = re.findall(r"GLIBC_([\d.]+)", readelf("--version-info", program))
                newest = max(versions, key=numbers, default="of any age")
                print(f"  {program.name} needs glibc {newest}")
                for problem in sorted(set(problems(program, floor))):
                    print(f"newest.py: error: {program.name} {problem}", file=sys.stderr)
                    wrong += 1
    if not seen:
        print(f"newest.py: error: no program in {' '.join(files)}", file=sys.stderr)
    return 0 if seen and not wrong else 1


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
