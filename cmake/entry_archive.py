#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""entry_archive.py SOURCE ARCHIVE: a zip file with SOURCE as __main__.py, and nothing of the
machine that makes it: no time, no owner, so that a program with it at its end is the same."""
from __future__ import annotations

import sys
import zipfile
from pathlib import Path


def main(source: str, archive: str) -> None:
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as made:
        entry = zipfile.ZipInfo("__main__.py")  # of 1980
        entry.compress_type = zipfile.ZIP_DEFLATED
        entry.create_system = 3  # Unix
        entry.external_attr = 0o100644 << 16
        made.writestr(entry, Path(source).read_bytes())


if __name__ == "__main__":
    main(*sys.argv[1:])
