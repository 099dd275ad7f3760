#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""report.py FILE: the Markdown table of launch_bench.py's and store_bench.py's JSON lines."""
from __future__ import annotations

import json
import os
import platform
import re
import statistics
import sys
from pathlib import Path
from typing import Any

# Row, key, unit, words, target and the least ratio to torchrun.
ROWS = [
    ("two", "ms", "ms", "launch 2 workers that exit at once, wall time", 5, 250),
    ("many", "ms", "ms", "the same, 64 workers", 40, None),
    ("fail", "ms", "ms", "a worker fails -> launcher has reported and ended", 12, None),
    ("restart", "ms", "ms", "a worker dies -> whole new group started", 5, None),
    ("term", "ms", "ms", "SIGTERM -> everything gone", 4, None),
    ("memory", "mb", "MB", "peak memory of the launcher, 8 workers", 8, None),
    ("idle", "cpu_ms", "ms", "CPU in 10 s of idling", None, None),
    ("idle", "wakeups_per_s", "/s", "wake-ups while idle", 0, None),
    ("idle", "threads", "", "threads (of all its processes)", None, None),
]
STORE = [
    ("server_us_per_op", "us", "store: server CPU per answered request, 1,000 connections", 3.5),
    ("p99_us", "us", "store: 99th percentile of the latency", None),
    ("connect_per_s", "/s", "store: connects", 8000),
]


def values(rows: list[dict[str, Any]], row: str, launcher: str, key: str) -> list[float]:
    return [r[key] for r in rows if r["row"] == row and r["launcher"] == launcher and key in r]


def number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def cell(found: list[float], unit: str) -> str:
    if not found:
        return "-"
    low, middle = number(min(found)), number(statistics.median(found))
    return f"{middle} {unit}" if len(found) == 1 else f"{low} / {middle} {unit}"


def verdict(met: bool) -> str:
    return "met" if met else "**missed**"


def launch_lines(rows: list[dict[str, Any]]) -> list[str]:
    out = []
    for row, key, unit, words, target, least in ROWS:
        ours, theirs, floor = (values(rows, row, n, key) for n in ("elastrun", "torchrun", "floor"))
        ratio = aim = ""
        if ours and theirs and statistics.median(ours) > 0:
            times = statistics.median(theirs) / statistics.median(ours)
            ratio = f"{number(times)} x"
        if ours and target is not None:
            met = statistics.median(ours) <= target and (
                not least or not theirs or times >= least)
            aim = f"<= {target} {unit}" + (f", >= {least} x" if least else "") + f": {verdict(met)}"
        out.append(f"| {words} | {cell(ours, unit)} | {cell(theirs, unit)} | {cell(floor, unit)} | "
                   f"{ratio} | {aim} |")
    return out


def tee_line(rows: list[dict[str, Any]]) -> list[str]:
    """200 MB by what tee costs above a plain run, as the target is worded."""
    cells, rates = [], {}
    for name in ("elastrun", "torchrun"):
        tee, plain = values(rows, "tee", name, "s"), values(rows, "plain", name, "s")
        if not tee or not plain:
            return []
        above = statistics.median(tee) - statistics.median(plain)
        rates[name] = 200 / max(above, 1e-3)
        cells.append(f"{number(rates[name])} MB/s")
    torn = sum(r.get("torn", 0) for r in rows if r["row"] == "tee" and r["launcher"] == "elastrun")
    met = rates["elastrun"] >= 800 and torn == 0
    ratio = f"{number(rates['elastrun'] / rates['torchrun'])} x"
    return [f"| tee of 200 MB from 2 workers, above plain; {torn} lines torn "
            f"| {' | '.join(cells)} | - | {ratio} | >= 800 MB/s: {verdict(met)} |"]


def store_lines(rows: list[dict[str, Any]]) -> list[str]:
    out = []
    for key, unit, words, target in STORE:
        ours, theirs = (values(rows, "store", n, key) for n in ("elastrun", "torch"))
        if not ours:
            continue
        aim, better = "", key == "connect_per_s"
        if target is not None:
            met = statistics.median(ours) >= target if better else statistics.median(ours) <= target
            aim = f"{'>=' if better else '<='} {target} {unit}: {verdict(met)}"
        elif theirs:
            aim = f"below torch's: {verdict(statistics.median(ours) < statistics.median(theirs))}"
        ratio = ""
        if theirs:
            times = statistics.median(theirs) / statistics.median(ours)
            ratio = f"{number(1 / times if better else times)} x"
        out.append(f"| {words} | {cell(ours, unit)} | {cell(theirs, unit)} | - | {ratio} | {aim} |")
    return out


def machine() -> str:
    info = Path("/proc/cpuinfo").read_text()
    model = re.search(r"model name\s*:\s*(.*)", info)
    memory = re.search(r"MemTotal:\s*(\d+)", Path("/proc/meminfo").read_text())
    return (f"{os.cpu_count()} cores ({model[1] if model else platform.machine()}), "
            f"{round(int(memory[1]) / 2**20)} GB, Linux {platform.release().split('-')[0]}, "
            f"load {os.getloadavg()[0]:.1f} at the end")


def main() -> int:
    rows = [json.loads(line) for line in open(sys.argv[1])]
    failed = [r for r in rows if "error" in r]
    print(f"Machine: {machine()}. Minimum / median; ratios are of medians, to torchrun or torch.\n")
    print("| Work | elastrun | torchrun 2.13 | floor | ratio | target |\n|---|---|---|---|---|---|")
    print("\n".join(launch_lines(rows) + tee_line(rows) + store_lines(rows)))
    for row in failed:
        print(f"\nNo value: {row['row']}, {row['launcher']}: {row['error'].strip()[-200:]}")
    return 1 if any(r["launcher"] == "elastrun" for r in failed) else 0


if __name__ == "__main__":
    sys.exit(main())
