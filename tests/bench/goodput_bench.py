#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The account of a job with a million steps, from its journal, cold: `elastrunctl goodput report`.
And with ten times as many, or --streamed, through a pipe; and what a question about the running job
costs after so many steps, if the program for it is given. ml-goodput-measurement is beside it in
goodput_calculator_bench.py.

    goodput_bench.py --ctl ELASTRUNCTL [--steps 1000000] [--reps 5] [--streamed 100000000]
                     [--query BENCH_GOODPUT]

One JSON line a measurement on stdout.
"""
from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

START = 1_700_000_000
# Numbers that keep their width: the lines of a piece differ in digits alone.
UP, FIRST_STEP = 10**8, 10**9  # seconds since the machine's start; the first step's number
PIECE = 1000  # steps of a second each, until the next checkpoint


def line(second: int, ns: int, scope: str, name: str, rest: str) -> str:
    return (f'{{"time":{START + second}.{ns:09},"mono_ns":{UP + second}{ns:09},"kind":"event",'
            f'"scope":"{scope}","name":"{name}"{rest}}}\n')


def step_line(second: int) -> str:
    return line(second, 0, "elastrun.worker", "step",
                f',"value":{FIRST_STEP + second},"attributes":{{"rank":0,"local_rank":0}}')


def journal(steps: int) -> Iterator[bytes]:
    """Steps of rank 0 as an agent writes them, a checkpoint after every thousand. Fast enough not
    to be what is measured: of a piece that is copied only the digits that change are set.
    """
    agent, worker = "elastrun.agent", "elastrun.worker"
    yield (line(0, 0, agent, "job.started", ',"attributes":{"run_id":"night","max_nodes":1}')
           + line(0, 1, agent, "phase", ',"attributes":{"phase":"starting"}')
           + line(0, 2, agent, "phase", ',"attributes":{"phase":"running"}')).encode()
    piece = bytearray("".join(map(step_line, range(PIECE))).encode())
    width = len(piece) // PIECE
    sample = step_line(0)
    columns = [sample.index(f":{START}") + 1, sample.index(f":{UP}") + 1,
               sample.index(f":{FIRST_STEP},") + 1]
    for first in range(PIECE, steps + PIECE, PIECE):
        for column, base in zip(columns, (START, UP, FIRST_STEP)):
            for place, digit in enumerate(str(base + first)[:-3], column):
                piece[place::width] = digit.encode() * PIECE
        last = first + PIECE - 1
        yield bytes(piece[:width * (steps + PIECE - first)])
        yield line(last, 1, worker, "checkpoint", f',"attributes":{{"rank":0,"local_rank":0,'
                   f'"step":{FIRST_STEP + last}}}').encode()


def told(process: subprocess.Popen[bytes], before: float) -> dict:
    assert process.stdout
    answer = json.loads(process.stdout.read())
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise SystemExit(f"elastrunctl ended with {process.returncode}")
    return {"wall_s": round(time.monotonic() - before, 3),
            "cpu_s": round(usage.ru_utime + usage.ru_stime, 3),
            "peak_mb": round(usage.ru_maxrss / 1024, 1), "goodput": answer["goodput"]}


def cold_file(ctl: str, path: str) -> dict:
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    before = time.monotonic()
    return told(subprocess.Popen([ctl, "goodput", "report", "--json", path],
                                 stdout=subprocess.PIPE), before)


def through_a_pipe(ctl: str, steps: int) -> dict:
    before = time.monotonic()
    process = subprocess.Popen([ctl, "goodput", "report", "--json", "-"], stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE)
    assert process.stdin
    for piece in journal(steps):
        process.stdin.write(piece)
    process.stdin.close()
    return told(process, before)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ctl", required=True)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--reps", type=int, default=5)
    parser.add_argument("--streamed", type=int, help="how many steps go through the pipe")
    parser.add_argument("--query", help="the program bench_goodput, of an optimised build")
    options = parser.parse_args()
    steps = options.steps
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "journal.jsonl")
        with path.open("wb") as file:
            file.writelines(journal(steps))
        for _ in range(options.reps):
            print(json.dumps({"what": "cold file", "steps": steps, "mb": path.stat().st_size >> 20,
                              **cold_file(options.ctl, str(path))}), flush=True)
    streamed = options.streamed or 10 * steps
    print(json.dumps({"what": "pipe", "steps": streamed,
                      **through_a_pipe(options.ctl, streamed)}), flush=True)
    if options.query:
        subprocess.run([options.query], check=True)


if __name__ == "__main__":
    main()
