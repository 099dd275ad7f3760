#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""GoodputCalculator and GoodputRecorder of elastrun beside those of ml-goodput-measurement 0.2.3,
on logs of the same entries. A Markdown table.

    goodput_calculator_bench.py [--steps 1000000] [--runs 3]

Each figure is of a process of its own, and the best of all runs. The original reads a logger in
memory, as it has no file to read, and copies what it reads into a file of its own; ours reads a
file of JSON lines, in a process of elastrunctl (in PATH), whose time and memory count. The
original's rows are left out, with a word on stderr, where this Python has no such package.
"""
from __future__ import annotations

import argparse
import datetime
import importlib.util
import json
import logging
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "lib" / "python"))
JOB = "bench"
T0 = 1_700_000_000.0
CALLS = 1000  # of the recorder at a time, so that its queue is never full
ROWS = [("first_s", "first get_job_goodput", "s"),
        ("again_s", "the next one, after one more step", "s"),
        ("idle_us", "the next one, nothing new", "us"),
        ("window_s", "get_job_goodput_interval over all", "s"),
        ("deviation_s", "get_step_deviation (the original has it from the first call)", "s"),
        ("memory_mb", "peak memory beyond the imports", "MB"),
        ("record_us", "record_step_start_time", "us")]


def entries(steps: int) -> Iterator[dict[str, Any]]:
    yield {"job_name": JOB, "job_start_time": T0}
    for step in range(steps):
        yield {"job_name": JOB, "step_count": step, "step_start_time": T0 + 5 + 2.125 * step}


class Memory:
    """A logger in memory, with what the original asks of it."""

    def __init__(self) -> None:
        self.entries: list[dict[str, Any]] = []
        self.read = 0

    def write_cloud_logging_entry(self, entry: dict[str, Any]) -> None:
        self.entries.append(entry)

    def read_cloud_logging_entries(self, start_time: Any = None, end_time: Any = None,
                                   last_entry_info: Any = None) -> Any:
        new = self.entries[self.read:] if start_time is None or last_entry_info else self.entries
        self.read = len(self.entries)
        return list(new), (datetime.datetime.fromtimestamp(T0, datetime.timezone.utc), "id")

    def flush(self) -> None:
        pass


def program_of(calculator: Any) -> str | None:
    """The folder in /proc of the process that calculates for ours."""
    pid = getattr(getattr(calculator, "_program", None), "pid", None)
    return None if pid is None else f"/proc/{pid}"


def resident_mb(calculator: Any) -> float:
    """The most that this process has had, and its program."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if program := program_of(calculator):
        most += int(Path(program, "status").read_text().split("VmHWM:")[1].split()[0])
    return most / 1024


def cpu_seconds(calculator: Any) -> float:
    used = time.process_time()
    if program := program_of(calculator):
        used += int(Path(program, "schedstat").read_text().split()[0]) / 1e9
    return used


def ours(steps: int, folder: str) -> tuple[Any, Any, Any]:
    """The calculator, how one more step comes into its log, and a recorder."""
    from elastrun.goodput import GoodputCalculator, GoodputRecorder
    path = f"{folder}/log"
    if not os.path.exists(path):
        with open(path, "w") as file:
            file.writelines(json.dumps(one, separators=(",", ":")) + "\n" for one in entries(steps))

    def one_more() -> None:
        with open(path, "a") as file:
            file.write(json.dumps(list(entries(steps + 1))[-1]) + "\n")

    recorder = GoodputRecorder(JOB, "log", True, path=f"{folder}/record")
    return GoodputCalculator(JOB, "log", path=path), one_more, recorder


def theirs(steps: int, folder: str) -> tuple[Any, Any, Any]:
    from ml_goodput_measurement.src.goodput import GoodputCalculator, GoodputRecorder
    kept = Memory()
    kept.entries = list(entries(steps))

    def one_more() -> None:
        kept.entries.append(list(entries(steps + 1))[-1])

    calculator = GoodputCalculator(JOB, "log", kept, cache_dir=folder)
    return calculator, one_more, GoodputRecorder(JOB, "log", True, Memory())


def seconds(call: Any, *arguments: Any) -> float:
    begin = cpu_seconds(call.__self__)
    call(*arguments)
    return cpu_seconds(call.__self__) - begin


def measure(who: str, steps: int) -> dict[str, float]:
    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as folder:
        make = {"elastrun": ours, "original": theirs}[who]
        make(1, tempfile.mkdtemp(dir=folder))  # imports
        calculator, one_more, recorder = make(steps, folder)
        before = resident_mb(calculator)
        took = {"first_s": seconds(calculator.get_job_goodput)}
        took["memory_mb"] = resident_mb(calculator) - before
        one_more()
        took["again_s"] = seconds(calculator.get_job_goodput)
        took["idle_us"] = seconds(calculator.get_job_goodput) * 1e6
        took["deviation_s"] = seconds(calculator.get_step_deviation)
        begin, end = (datetime.datetime.fromtimestamp(at, datetime.timezone.utc)
                      for at in (T0 - 1, T0 + 5 + 2.125 * steps))
        took["window_s"] = seconds(calculator.get_job_goodput_interval, begin, end)
        best = float("inf")
        for _ in range(10):
            begin_ns = time.thread_time_ns()
            for step in range(CALLS):
                recorder.record_step_start_time(step)
            best = min(best, (time.thread_time_ns() - begin_ns) / CALLS / 1e3)
            recorder.flush()
        took["record_us"] = best
    return took


def best_of(who: str, steps: int, runs: int) -> dict[str, float]:
    found = [json.loads(subprocess.run(
        [sys.executable, __file__, "--measure", who, "--steps", str(steps)], check=True,
        capture_output=True, text=True, timeout=900).stdout) for _ in range(runs)]
    return {name: min(one[name] for one in found) for name in found[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--measure", choices=["elastrun", "original"], help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.measure:
        print(json.dumps(measure(chosen.measure, chosen.steps)))
        return
    mine = best_of("elastrun", chosen.steps, chosen.runs)
    other: dict[str, float] = {}
    if importlib.util.find_spec("ml_goodput_measurement") is None:
        print("left out: ml-goodput-measurement is not installed for this Python", file=sys.stderr)
    else:
        other = best_of("original", chosen.steps, chosen.runs)
    print(f"| {chosen.steps:,} steps, CPU time | elastrun | ml-goodput-measurement 0.2.3 | ratio |"
          "\n|---|---|---|---|")
    for name, words, unit in ROWS:
        beside = "- |"
        if other:
            beside = f"{other[name]:,.3g} {unit} | {other[name] / mine[name]:,.3g} x"
        print(f"| {words} | {mine[name]:,.3g} {unit} | {beside} |")


if __name__ == "__main__":
    main()
