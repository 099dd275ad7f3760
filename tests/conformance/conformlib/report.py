# SPDX-License-Identifier: Apache-2.0
"""Read the failure report that a launcher prints on stderr."""
from __future__ import annotations

import re
from typing import Any

_BORDER = re.compile(r"={10,}$")
_SECTION = re.compile(r"-{10,}$")
_TITLE = re.compile(r"(.*) FAILED$")
_INDEX = re.compile(r"\[(\d+)\]:$")
_RANK = re.compile(r"(-?\d+) \(local_rank: (-?\d+)\)$")
_EXIT = re.compile(r"(-?\d+) \(pid: [^)]*\) ?(?: \((\w+|<N/A>)\))? ?$")
_FIELD = re.compile(r"  (time|host|rank|exitcode|error_file|traceback) *: ?(.*)$")


def report_blocks(lines: list[str]) -> list[list[str]]:
    """The line blocks from border to border that carry a `NAME FAILED` title."""
    blocks: list[list[str]] = []
    start: int | None = None
    for number, line in enumerate(lines):
        if not _BORDER.match(line):
            continue
        if start is None:
            if number + 1 < len(lines) and _TITLE.match(lines[number + 1]):
                start = number
        else:
            blocks.append(lines[start : number + 1])
            start = None
    return blocks


def parse_report(block: list[str]) -> dict[str, Any]:
    """Title, other failures and root cause of one block."""
    title = _TITLE.match(block[1])
    report: dict[str, Any] = {"title": title.group(1) if title else block[1], "others": []}
    entries: list[dict[str, Any]] = report["others"]
    entry: dict[str, Any] | None = None
    for line in block[2:-1]:
        if line.startswith("Failures:"):
            continue
        if line.startswith("Root Cause (first observed failure):"):
            entries = report["root"] = []
        elif _SECTION.match(line) or line.strip() == "<NO_OTHER_FAILURES>":
            entry = None
        elif match := _INDEX.match(line):
            entry = {"index": int(match.group(1))}
            entries.append(entry)
        elif entry is not None:
            _add_line(entry, line)
    root = report.get("root") or [None]
    report["root"] = root[0]
    return report


def _add_line(entry: dict[str, Any], line: str) -> None:
    """One line of a failure; after `traceback` everything belongs to the traceback."""
    if "traceback" in entry:
        if line.strip():
            entry["traceback"].append(line.strip())
        return
    match = _FIELD.match(line)
    if not match:
        entry.setdefault("unreadable", []).append(line)
        return
    name, value = match.groups()
    if name == "rank" and (ranks := _RANK.match(value)):
        entry["rank"], entry["local_rank"] = int(ranks.group(1)), int(ranks.group(2))
    elif name == "exitcode" and (code := _EXIT.match(value)):
        entry["exitcode"], entry["signal"] = int(code.group(1)), code.group(2)
    elif name == "traceback":
        entry["traceback"] = [value]
    elif name in ("time", "host"):
        entry[name] = "<given>" if value else "<missing>"
    else:
        entry[name] = value
