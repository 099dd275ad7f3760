#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Restarts of a worker that trains with torch, on the CPU: from the death of one to the successor's
first line with torch imported (`first_ms`) and to the end of its first step (`step_ms`), and the
memory that only the successor has before its script (`private_mb`). One JSON line a restart.

    again_bench.py --reps 5 --out FILE --launcher 'elastrun=PATH --nproc-per-node 1
        --max-restarts {r} --start-method forkserver {cmd}' ...

Each launcher runs one job, of which the worker dies --reps times, after a pause in which a fork
server is ready. The first restart is not counted: nothing has been learnt for it.
"""
from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from launch_bench import shown  # noqa: E402

LIMIT = 600
WORKER = """\
import time
def private():
    with open("/proc/self/smaps_rollup") as sizes:
        return sum(int(line.split()[1]) for line in sizes if line.startswith("Private")) / 1000
asked = time.time_ns()
before = private()
spent = time.time_ns() - asked  # ten milliseconds that no job has: a walk through 300 MB of pages
import os, sys, torch
first = time.time_ns() - spent
attempt, last, mark, pause = (*map(int, (os.environ["TORCHELASTIC_RESTART_COUNT"], sys.argv[1])),
                              sys.argv[2], float(sys.argv[3]))
layer = torch.nn.Linear(64, 64)
optimizer = torch.optim.Adam(layer.parameters())
layer(torch.randn(8, 64)).sum().backward()
optimizer.step()
step = time.time_ns() - spent
with open(mark, "a") as out:
    print("start", attempt, first, step, before, file=out)
if attempt < last:
    time.sleep(pause * (4 if attempt < 2 else 1))
    with open(mark, "a") as out:
        print("die", attempt, time.time_ns(), file=out)
    os._exit(1)
"""


def measure(command: str, reps: int, pause: float) -> list[dict[str, float]]:
    with tempfile.TemporaryDirectory() as folder:
        script, mark = Path(folder) / "worker.py", Path(folder) / "mark"
        script.write_text(WORKER)
        last = reps + 1
        words = [word for one in command.split() for word in (
            [str(script), str(last), str(mark), str(pause)] if one == "{cmd}"
            else [one.replace("{r}", str(last))])]
        subprocess.run(words, timeout=LIMIT, check=True, stderr=subprocess.DEVNULL, env={
            **os.environ, "OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": folder})
        said = [line.split() for line in mark.read_text().splitlines()]
    died = {int(one[1]): int(one[2]) for one in said if one[0] == "die"}
    return [{"first_ms": (int(one[2]) - died[int(one[1]) - 1]) / 1e6,
             "step_ms": (int(one[3]) - died[int(one[1]) - 1]) / 1e6, "private_mb": float(one[4])}
            for one in said if one[0] == "start" and int(one[1]) > 1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--launcher", action="append", required=True, help="NAME=COMMAND")
    parser.add_argument("--reps", type=int, default=5)
    parser.add_argument("--pause", type=float, default=2.0, help="seconds from a step to a death")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    names = []
    with args.out.open("a") as out:
        for name, command in (one.split("=", 1) for one in args.launcher):
            names.append(name)
            for found in measure(command, args.reps, args.pause):
                row = {"row": "again", "launcher": name, **found, "ms": found["step_ms"]}
                out.write(json.dumps(row) + "\n")
    print("  again: " + ", ".join(shown(args.out, "again", name) for name in names))
    return 0


if __name__ == "__main__":
    sys.exit(main())
