#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Preemption of 4 workers on 2 agents whose save takes a second: from the request to the end of
both agents (`ended_ms`) and of it what the save did not take (`beyond_ms`), and how many steps were
lost. One JSON line a repetition.

    preempt_bench.py --reps 5 --out FILE --elastrun PATH
"""
from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LIMIT = 120
SAVE = 1.0  # seconds
# Ranks that train together are at the same step, as here by the clock: one that started later
# joins at the step of the others.
WORKER = f"""\
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


def measure(elastrun: Path, folder: Path) -> dict[str, float]:
    (folder / "train.py").write_text(WORKER)
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
    parser.add_argument("--elastrun", type=Path, required=True)
    parser.add_argument("--reps", type=int, default=5)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    rows = []
    with args.out.open("a") as out:
        for _ in range(args.reps):
            with tempfile.TemporaryDirectory() as folder:
                rows.append(measure(args.elastrun.resolve(), Path(folder)))
            out.write(json.dumps({"row": "preempt", "launcher": "elastrun", **rows[-1]}) + "\n")
    ended = [row["ended_ms"] for row in rows]
    print(f"  preempt: {min(ended):.0f} / {statistics.median(ended):.0f} ms, "
          f"{max(row['lost'] for row in rows)} steps lost")
    return 0


if __name__ == "__main__":
    sys.exit(main())
