#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trainings that start again and that are preempted: one JSON line a measurement, for report.py.

    training_bench.py --reps 5 --out FILE --elastrun PATH --launcher 'elastrun=PATH
        --nproc-per-node 1 --max-restarts {r} --start-method forkserver {cmd}' ...

    again    restarts of a worker that trains with torch, on the CPU: from the death of one to the
             successor's first line with torch imported (`first_ms`) and to the end of its first
             step (`step_ms`), and the memory that only the successor has before its script
             (`private_mb`). Each launcher runs one job, of which the worker dies --reps times,
             after a pause in which a fork server is ready. The first restart is not counted:
             nothing has been learnt for it
    preempt  4 workers on 2 agents of elastrun whose save takes a second: from the request to the
             end of both agents (`ended_ms`) and of it what the save did not take (`beyond_ms`),
             and how many steps were lost
"""
from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from launch_bench import shown  # noqa: E402

LIMIT = 600
AGAIN = """\
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


SAVE = 1.0  # seconds
# Ranks that train together are at the same step, as here by the clock: one that started later
# joins at the step of the others.
PREEMPTED = f"""\
import itertools, os, time
import elastrun
print("runs", flush=True)
begun = float(os.environ["BEGUN"])
for step in itertools.count(int((time.monotonic() - begun) / 0.01)):
    time.sleep(max(0, begun + 0.01 * (step + 1) - time.monotonic()))
    elastrun.step(step)
    if elastrun.should_save(step):
        time.sleep({SAVE})
        elastrun.checkpoint_done(step)
        break
"""


def again(command: str, reps: int, pause: float) -> list[dict[str, float]]:
    with tempfile.TemporaryDirectory() as folder:
        script, mark = Path(folder) / "worker.py", Path(folder) / "mark"
        script.write_text(AGAIN)
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


def preempt(elastrun: Path, folder: Path) -> dict[str, float]:
    (folder / "train.py").write_text(PREEMPTED)
    agents = []
    begun = str(time.monotonic())
    for number in range(2):
        report = folder / f"report{number}.json"
        agents.append(subprocess.Popen(
            [elastrun, "--worker-lib", "--nnodes=2", "--nproc-per-node=2", "--rdzv-backend=file",
             f"--rdzv-endpoint={folder}", "--rdzv-id=bench", "--preempt-signals=SIGTERM",
             "--preempt-ack=all", f"--report={report}", "--local-addr=127.0.0.1", "train.py"],
            cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHON_EXEC": sys.executable, "BEGUN": begun}))
    for agent in agents:
        for _ in range(2):
            assert agent.stdout.readline() == "runs\n", agent.communicate()
    time.sleep(0.5)  # steps have a pace by then
    asked = time.monotonic()
    agents[1].send_signal(signal.SIGTERM)
    codes = [agent.wait(LIMIT) for agent in agents]
    ended = time.monotonic() - asked
    errors = [agent.communicate()[1] for agent in agents]
    assert codes == [75, 75], errors
    # Each node puts its number into the name.
    lost = [json.loads(report.read_text())["preemption"]["lost_steps"]
            for report in folder.glob("report*.json")]
    return {"ended_ms": 1000 * ended, "beyond_ms": 1000 * (ended - SAVE), "lost": max(lost)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--launcher", action="append", required=True, help="NAME=COMMAND")
    parser.add_argument("--elastrun", type=Path, required=True)
    parser.add_argument("--reps", type=int, default=5)
    parser.add_argument("--pause", type=float, default=2.0, help="seconds from a step to a death")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    launchers = dict(one.split("=", 1) for one in args.launcher)
    with args.out.open("a") as out:
        def write(row: str, launcher: str, found: dict[str, float], shown_by: str) -> None:
            line = {"row": row, "launcher": launcher, **found, "ms": found[shown_by]}
            out.write(json.dumps(line) + "\n")
            out.flush()

        for name, command in launchers.items():
            for found in again(command, args.reps, args.pause):
                write("again", name, found, "step_ms")
        for _ in range(args.reps):
            with tempfile.TemporaryDirectory() as folder:
                write("preempt", "elastrun", preempt(args.elastrun.resolve(), Path(folder)),
                      "ended_ms")
    print("  again: " + ", ".join(shown(args.out, "again", name) for name in launchers))
    print("  preempt: " + shown(args.out, "preempt", "elastrun"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
