#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""elastic_launch of functions, beside what their interpreters take alone: one JSON line.

    functions_bench.py ELASTRUN [--workers 2] [--reps 20] [--torch]

The workers' interpreters start at once, on as many processors as there are: so the floor is as many
interpreters that import the same and end. Forks (fork_*) are none. --torch: this process imports
torch first, and torch's elastic_launch is measured, too.
"""
from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "lib" / "python"


def nothing() -> int:
    return 1


def measured(work: Callable[[], object]) -> tuple[float, float]:
    """Milliseconds that passed, and those of all processors together."""
    begin, before = time.perf_counter(), os.times()
    work()
    after = os.times()
    return (time.perf_counter() - begin) * 1000, sum(after[:4]) * 1000 - sum(before[:4]) * 1000


def in_turn(works: dict[str, Callable[[], object]], reps: int) -> dict[str, float]:
    """Medians. Each takes its turn, so that the noise of the machine hits all of them alike."""
    took: dict[str, list[float]] = {}
    for _ in range(reps):
        for name, work in works.items():
            for kind, value in zip(("ms", "cpu_ms"), measured(work)):
                took.setdefault(f"{name}_{kind}", []).append(value)
    return {name: round(statistics.median(values), 1) for name, values in took.items()}


def interpreters(workers: int) -> None:
    """As many at once as there are workers: what any launcher of functions has to start."""
    command = [sys.executable, "-u", "-c", "import multiprocessing.spawn, elastrun"]
    started = [subprocess.Popen(command) for _ in range(workers)]
    for one in started:
        one.wait()


def config(module: object, workers: int, start_method: str = "spawn") -> object:
    return module.LaunchConfig(  # type: ignore[attr-defined]
        start_method=start_method,
        min_nodes=1, max_nodes=1, nproc_per_node=workers, run_id="bench", rdzv_backend="c10d",
        rdzv_endpoint="localhost:0", max_restarts=0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("elastrun")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--reps", type=int, default=20)
    parser.add_argument("--torch", action="store_true")
    args = parser.parse_args()
    os.environ |= {"ELASTRUN_BINARY": os.path.abspath(args.elastrun), "PYTHONPATH": str(PACKAGE),
                   "OMP_NUM_THREADS": "1"}
    sys.path.insert(0, str(PACKAGE))
    begin = time.perf_counter()
    from elastrun import launcher
    row = {"row": "functions", "workers": args.workers,
           "import_ms": round((time.perf_counter() - begin) * 1000, 1)}
    launch = launcher.elastic_launch(config(launcher, args.workers), nothing)
    assert launch() == dict.fromkeys(range(args.workers), 1)
    fork = launcher.elastic_launch(config(launcher, args.workers, "fork"), nothing)
    works: dict[str, Callable[[], object]] = {
        "interpreters": lambda: interpreters(args.workers), "elastrun": launch, "fork": fork}
    if args.torch:
        from torch.distributed import launcher as torchs

        works["torch"] = torchs.elastic_launch(config(torchs, args.workers), nothing)
    row |= in_turn(works, args.reps)
    row["over_ms"] = round(row["elastrun_ms"] - row["interpreters_ms"], 1)
    row["over_cpu_ms"] = round(row["elastrun_cpu_ms"] - row["interpreters_cpu_ms"], 1)
    print(json.dumps(row))


if __name__ == "__main__":
    main()
