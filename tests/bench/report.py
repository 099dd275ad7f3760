#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""report.py FILE [--write]: Markdown tables of the JSON lines that launch_bench.py, store_bench.py
and bench_rendezvous --json have left there.

With --write they also replace those in tests/bench/README.md, and the five rows with the highest
ratios those in the project's README.md, between the marks <!-- bench --> and <!-- /bench -->.
"""
from __future__ import annotations

import json
import os
import platform
import re
import statistics
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
HEAD = "| Work | elastrun | torchrun 2.13 | floor | ratio | target |"
SHOWN = 5  # rows of the project's README.md
# Targets by the floor of the same run: so much above it (there, the interpreter's own start), or so
# many times what it takes.
FLOOR, TIMES = "floor + ", "floor x "

# Row, key, unit, words, target and the least ratio to torchrun.
ROWS = [
    ("two", "ms", "ms", "launch 2 workers that exit at once, wall time", TIMES + "2.2", 330),
    ("many", "ms", "ms", "the same, 64 workers", TIMES + "1.3", None),
    ("fail", "ms", "ms", "a worker fails -> launcher has reported and ended", TIMES + "3", None),
    ("restart", "ms", "ms", "a worker dies -> whole new group started", TIMES + "3", None),
    ("python", "ms", "ms", "a Python worker dies -> its successor runs its first line", FLOOR + "5",
     None),
    ("term", "ms", "ms", "SIGTERM -> everything gone", 4, None),
    ("memory", "mb", "MB", "peak memory of the launcher, 8 workers", 6.5, None),
    ("idle", "cpu_ms", "ms", "CPU in 10 s of idling", None, None),
    ("idle", "wakeups_per_s", "/s", "wake-ups while idle", 0, None),
    ("idle", "threads", "", "threads (of all its processes)", None, None),
]
AGENTS = [
    ("join", "ms", "ms", "2 agents: the second one starts -> workers of both started", 50, None),
    ("refail", "beyond_ms", "ms", "2 agents: a worker fails -> all started again, beyond the stop",
     50, None),
    ("refail", "others_ms", "ms", "2 agents: a worker fails -> the other's workers have stopped",
     100, None),
    ("lost", "ms", "ms", "2 agents: one is killed -> its spare's and the other's workers started",
     100, None),
]
AGAIN = [
    ("again", "first_ms", "ms", "forked again: death -> first line with torch imported", 20, None),
    ("again", "step_ms", "ms", "forked again: death -> end of the first step on a CPU", 60, None),
    ("again", "private_mb", "MB", "forked again: a worker's private memory before its script", 10,
     None),
]
POLICY = [
    ("preempt", "ended_ms", "ms", "preemption, a save of 1 s: request -> 2 agents have ended", 1100,
     None),
    ("preempt", "lost", "steps", "preemption: steps lost", 0, None),
    ("decision", "cpu_us", "us", "a decision of the restart policy after 100,000 others", 10, None),
]
STORE = [
    ("server_us_per_op", "us", "store: server CPU per answered request, 1,000 connections", 3.5),
    ("p99_us", "us", "store: 99th percentile of the latency", None),
    ("connect_per_s", "/s", "store: connects", 8000),
]

# Name of bench_rendezvous, title of the column, and what it may be with 1,000, 4,000 and 12,500.
SCALE = [
    ("connect, join, all have the round", "all have the round", (250, 1000, 3000)),
    ("one lost, all others have the next round", "one lost, next round", (None, 500, None)),
    ("one fails: stop heard by 99 %", "stop heard by 99 %", (None, 100, None)),
    ("coordinator's peak memory", "coordinator's memory", (200, 200, 200)),
    ("coordinator's share of one core", "its share of a core", (100, 100, 100)),
    ("floor: as many bare connections, a message each way", "bare connections", (None,) * 3),
]
SIZES = (1000, 4000, 12500)


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


def by_floor(target: str, floor: list[float]) -> float | None:
    """The target of this run, None without a floor."""
    if not floor:
        return None
    middle = statistics.median(floor)
    return round(middle * float(target.removeprefix(TIMES)) if target.startswith(TIMES)
                 else middle + float(target.removeprefix(FLOOR)), 2)


def launch_lines(rows: list[dict[str, Any]], table: list[Any]) -> list[str]:
    out = []
    for row, key, unit, words, target, least in table:
        ours, theirs, floor = (values(rows, row, n, key) for n in ("elastrun", "torchrun", "floor"))
        ratio = aim = ""
        if ours and theirs and statistics.median(ours) > 0:
            times = statistics.median(theirs) / statistics.median(ours)
            ratio = f"{number(times)} x"
        if isinstance(target, str):
            target = by_floor(target, floor)
        if ours and target is not None:
            met = statistics.median(ours) <= target and (
                not least or not theirs or times >= least)
            aim = f"<= {target} {unit}" + (f", >= {least} x" if least else "") + f": {verdict(met)}"
        out.append(f"| {words} | {cell(ours, unit)} | {cell(theirs, unit)} | {cell(floor, unit)} | "
                   f"{ratio} | {aim} |")
    return out


def tee_line(rows: list[dict[str, Any]]) -> list[str]:
    """The whole run counts, with the writing of the workers and of the two files: what a run
    without tee takes varies more from one to the next than what tee adds."""
    rates = {name: [200 / s for s in values(rows, "tee", name, "s")]
             for name in ("elastrun", "torchrun", "floor")}
    if not rates["elastrun"] or not rates["torchrun"]:
        return []
    middle = {name: statistics.median(found) for name, found in rates.items() if found}
    torn = sum(r.get("torn", 0) for r in rows if r["row"] == "tee" and r["launcher"] == "elastrun")
    met = middle["elastrun"] >= 800 and torn == 0
    cells = [cell(found, "MB/s") for found in rates.values()]
    return [f"| tee of 200 MB from 2 workers to a file each and to stdout; {torn} lines torn "
            f"| {' | '.join(cells)} | {number(middle['elastrun'] / middle['torchrun'])} x "
            f"| >= 800 MB/s: {verdict(met)} |"]


def store_lines(rows: list[dict[str, Any]]) -> list[str]:
    out = []
    for key, unit, words, target in STORE:
        ours, theirs, floor = (values(rows, "store", name, key)
                               for name in ("elastrun", "torch", "floor"))
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
        cells = " | ".join(cell(each, unit) for each in (ours, theirs, floor))
        out.append(f"| {words} | {cells} | {ratio} | {aim} |")
    return out


def scale_lines(figures: list[dict[str, Any]]) -> list[str]:
    """Simulated agents: a line for each size, and how the figures grow from the first to the
    last."""
    if not figures:
        return []
    found = {(f["name"], f["agents"]): f for f in figures}
    out = ["", "| Agents | " + " | ".join(title for _, title, _ in SCALE) + " |",
           "|" + "---|" * (len(SCALE) + 1)]
    sizes = [size for size in SIZES if any(f["agents"] == size for f in figures)]
    for size in sizes:
        cells = [f"{size:,}"]
        for name, _, targets in SCALE:
            figure, target = found[name, size], targets[SIZES.index(size)]
            met = f" (<= {target:,}: {verdict(figure['value'] <= target)})" if target else ""
            cells.append(f"{number(figure['value'])} {figure['unit']}{met}")
        out.append(f"| {' | '.join(cells)} |")
    if len(sizes) > 1:
        grown = [found[name, sizes[-1]]["value"] / found[name, sizes[0]]["value"]
                 for name, _, _ in SCALE]
        out.append(f"| growth, {sizes[-1] / sizes[0]:.3g} x as many | " +
                   " | ".join(f"{number(times)} x" for times in grown) + " |")
    return out


def machine() -> str:
    info = Path("/proc/cpuinfo").read_text()
    model = re.search(r"model name\s*:\s*(.*)", info)
    memory = re.search(r"MemTotal:\s*(\d+)", Path("/proc/meminfo").read_text())
    return (f"{os.cpu_count()} cores ({model[1] if model else platform.machine()}), "
            f"{round(int(memory[1]) / 2**20)} GB, Linux {platform.release().split('-')[0]}, "
            f"load {os.getloadavg()[0]:.1f} at the end")


def ratio_of(line: str) -> float:
    """How many times better than torchrun a row of the table is; 0 where nothing is compared."""
    cell = line.split("|")[5].strip()
    return float(cell.removesuffix(" x").replace(",", "")) if cell.endswith(" x") else 0


def strongest(lines: list[str]) -> str:
    """The rows with the highest ratios, without targets, which mean something to us alone."""
    best = sorted(lines, key=ratio_of, reverse=True)[:SHOWN]
    rows = [HEAD, "|---|---|---|---|---|---|"] + best
    return "\n".join("|".join(row.split("|")[:6]) + "|" for row in rows)


def between_marks(page: str, tables: str) -> str:
    """The page with these tables instead of its own."""
    begin, end = "<!-- bench -->\n", "<!-- /bench -->"
    before, found, rest = page.partition(begin)
    _, also, after = rest.partition(end)
    if not found or not also:
        raise ValueError(f"the marks {begin.strip()} and {end} are not there")
    return f"{before}{begin}{tables}\n{end}{after}"


def main() -> int:
    lines = [json.loads(line) for line in open(sys.argv[1])]
    rows = [line for line in lines if isinstance(line, dict)]
    figures = [figure for line in lines if isinstance(line, list) for figure in line]
    failed = [r for r in rows if "error" in r]
    where = (f"Machine: {machine()}. Minimum / median; "
             "ratios are of medians, to torchrun or torch.\n")
    table = (launch_lines(rows, ROWS) + tee_line(rows) + store_lines(rows) +
             launch_lines(rows, AGENTS) + launch_lines(rows, AGAIN) + launch_lines(rows, POLICY))
    whole = "\n".join([where, HEAD, "|---|---|---|---|---|---|", *table, *scale_lines(figures)])
    print(whole)
    for row in failed:
        print(f"\nNo value: {row['row']}, {row['launcher']}: {row['error'].strip()[-200:]}")
    if "--write" in sys.argv:
        for path, tables in ((ROOT / "README.md", f"{where}\n{strongest(table)}"),
                             (ROOT / "tests/bench/README.md", whole)):
            path.write_text(between_marks(path.read_text(), tables))
    return 1 if any(r["launcher"] == "elastrun" for r in failed) else 0


if __name__ == "__main__":
    sys.exit(main())
