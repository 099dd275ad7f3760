#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The account of a job with a million steps, from its journal, cold: `elastrunctl goodput report`.
And its memory with ten times as many, through a pipe. Beside it, the same steps in
ml-goodput-measurement, if a Python that has it is given.

    goodput_bench.py --ctl ELASTRUNCTL [--steps 1000000] [--reps 5] [--reference PYTHON]

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

STEP_NS = 2_000_000_000
START = 1_700_000_000
STEPS_PER_PIECE = 10_000
# What the reference needs: the log of the same steps, in the form of its own calls.
REFERENCE = """
import datetime, json, resource, sys, tempfile, time
from ml_goodput_measurement.src import goodput
steps = int(sys.argv[1])
def at(seconds):
    return datetime.datetime.fromtimestamp(1_700_000_000 + seconds, datetime.timezone.utc)
class Log:
    def __init__(self):
        self.entries = [{"job_name": "night", "job_start_time": at(0).timestamp()}] + [
            {"job_name": "night", "step_count": i, "step_start_time": at(10 + 2 * i).timestamp()}
            for i in range(steps)]
    def write_cloud_logging_entry(self, entry): pass
    def flush(self): pass
    def read_cloud_logging_entries(self, *args, **kwargs):
        entries, self.entries = self.entries, []
        return entries, None
log, folder = Log(), tempfile.TemporaryDirectory()
calculator = goodput.GoodputCalculator("night", "log", cloud_logger=log, cache_dir=folder.name)
before, cpu = time.monotonic(), time.process_time()
percent = calculator.get_job_goodput(include_badput_breakdown=True)[0]
print(json.dumps({"wall_s": time.monotonic() - before, "cpu_s": time.process_time() - cpu,
                  "goodput": percent / 100,
                  "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))
"""


def line(ns: int, scope: str, name: str, rest: str) -> str:
    return (f'{{"time":{START + ns // 10**9}.{ns % 10**9:09},"mono_ns":{ns},"kind":"event",'
            f'"scope":"{scope}","name":"{name}"{rest}}}\n')


def journal(steps: int) -> Iterator[bytes]:
    """Steps of rank 0 as an agent writes them, a checkpoint after every thousand."""
    agent, worker = "elastrun.agent", "elastrun.worker"
    yield (line(0, agent, "job.started", ',"attributes":{"run_id":"night","max_nodes":1}')
           + line(1, agent, "phase", ',"attributes":{"phase":"starting"}')
           + line(2, agent, "phase", ',"attributes":{"phase":"running"}')).encode()
    for first in range(0, steps, STEPS_PER_PIECE):
        piece = []
        for step in range(first, min(first + STEPS_PER_PIECE, steps)):
            ns = 10**10 + STEP_NS * step
            piece.append(line(ns, worker, "step",
                              f',"value":{step},"attributes":{{"rank":0,"local_rank":0}}'))
            if step % 1000 == 999:
                piece.append(line(ns, worker, "checkpoint",
                                  f',"attributes":{{"rank":0,"local_rank":0,"step":{step}}}'))
        yield "".join(piece).encode()


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
    parser.add_argument("--reference", help="a Python that has ml-goodput-measurement 0.2.3")
    options = parser.parse_args()
    steps = options.steps
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "journal.jsonl")
        with path.open("wb") as file:
            file.writelines(journal(steps))
        for _ in range(options.reps):
            print(json.dumps({"what": "cold file", "steps": steps, "mb": path.stat().st_size >> 20,
                              **cold_file(options.ctl, str(path))}), flush=True)
    # Its time is that of whoever writes the lines; what counts is the memory.
    print(json.dumps({"what": "pipe", "steps": 10 * steps,
                      **through_a_pipe(options.ctl, 10 * steps)}), flush=True)
    if not options.reference:
        return
    done = subprocess.run([options.reference, "-c", REFERENCE, str(steps)], capture_output=True,
                          text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"the reference failed:\n{done.stderr[-2000:]}")
    print(json.dumps({"what": "ml-goodput-measurement", "steps": steps,
                      **json.loads(done.stdout.splitlines()[-1])}), flush=True)


if __name__ == "__main__":
    main()
