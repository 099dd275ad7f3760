#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two agents of one job on this machine, met on loopback, each launcher in its turn as in
launch_bench.py. One JSON line a measurement, for report.py.

    agents_bench.py --bin BUILD/tests/bench --reps 5 --few 2 --out FILE
        --launcher 'elastrun=PATH --nnodes 2 --rdzv-backend c10d
                    --rdzv-endpoint 127.0.0.1:{port} --nproc-per-node {n} --max-restarts {r}
                    --no-python {cmd}' ...

    join     the second agent's start -> all workers of both have started; the first one waits for
             it since more than a second, as in a job where the last host is late
    refail   rank 0 dies -> workers of the other agent have ended (`others_ms`; they end by the stop
             signal), all workers that were left have ended (`stop_ms`), all have started again
             (`ms`), and by how much that is later than the last end (`beyond_ms`)
    lost     the second agent is killed with all that is its launcher -> all workers have started
             again, those of a spare that waits in place of its

The first launcher has --reps turns, the others --few: they may take seconds for each.
"""
from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "system")]
from launch_bench import Row, Run, ends, milliseconds, shown, tree  # noqa: E402
from ports import free_port, listens  # noqa: E402

WORKERS = 2  # of each agent


class Pair:
    """Two agents whose workers write to one file. Use as a context."""

    def __init__(self, words: list[str], mark: Path, mode: str, life: int = 500) -> None:
        self.words, self.mark, self.mode, self.life = words, mark, mode, life
        self.port = free_port()
        self.runs = [self.agent()]

    def agent(self, file: Path | None = None) -> Run:
        return Run(self.words, [str(self.mark)], WORKERS, self.mode, restarts=3, life=self.life,
                   port=self.port, file=file)

    def __enter__(self) -> Pair:
        until = time.monotonic() + 30
        while not listens(self.port) and time.monotonic() < until:
            time.sleep(0.02)
        time.sleep(1 + random.random())  # no poll is met in the same phase each time
        self.runs.append(self.agent(self.runs[0].file))
        return self

    def __exit__(self, *_: object) -> None:
        for run in reversed(self.runs):
            run.close()

    def end(self) -> bool:
        return all(run.wait(60) and run.code == 0 for run in self.runs)

    def trouble(self) -> Row:
        return {"error": " / ".join(run.trouble()["error"] for run in self.runs)}


def join(words: list[str], mark: Path) -> Row:
    with Pair(words, mark, "exit") as pair:
        if not pair.end():
            return pair.trouble()
        started = [at for _, _, at in pair.runs[0].events("start")]
        if len(started) != 2 * WORKERS:
            return pair.trouble()
        return {"ms": milliseconds(max(started) - pair.runs[1].began)}


def refail(words: list[str], mark: Path) -> Row:
    with Pair(words, mark, "once", life=1200 + random.randrange(200)) as pair:
        run = pair.runs[0]
        if not run.until("start", 2 * WORKERS):
            return pair.trouble()
        ranks = run.ranks("start")
        at = ends(list(ranks), 20)
        if len(at) < len(ranks) or not run.until("again", 2 * WORKERS) or not pair.end():
            return pair.trouble()
        died = run.events("die")[0][2]
        again = max(when for _, _, when in run.events("again"))
        others = [at[pid] for pid, rank in ranks.items() if rank >= WORKERS]
        return {"ms": milliseconds(again - died), "others_ms": milliseconds(max(others) - died),
                "stop_ms": milliseconds(max(at.values()) - died),
                "beyond_ms": milliseconds(again - max(at.values()))}


def lost(words: list[str], mark: Path) -> Row:
    with Pair(words, mark, "sleep") as pair:
        host, victim = pair.runs
        if not host.until("start", 2 * WORKERS):
            return pair.trouble()
        pair.runs.append(pair.agent(host.file))
        time.sleep(1 + random.random())  # it is known as a spare
        workers = host.ranks("start")
        died = time.time_ns()
        for pid in tree(victim.pid):
            if pid not in workers:
                os.kill(pid, signal.SIGKILL)
        if not host.until("start", 4 * WORKERS):
            return pair.trouble()
        return {"ms": milliseconds(max(at for _, _, at in host.events("start")) - died)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--bin", type=Path, required=True, help="folder of bench_mark")
    parser.add_argument("--launcher", action="append", required=True, help="NAME=COMMAND")
    parser.add_argument("--reps", type=int, default=5)
    parser.add_argument("--few", type=int, default=2, help="repetitions of all but the first")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    launchers = [text.split("=", 1) for text in args.launcher]
    with args.out.open("a") as out:
        for row in (join, refail, lost):
            for repetition in range(max(args.reps, args.few)):
                for place, (name, command) in enumerate(launchers):
                    if repetition >= (args.few if place else args.reps):
                        continue
                    found = row(command.split(), args.bin / "bench_mark")
                    found = {"row": row.__name__, "launcher": name, "repetition": repetition,
                             **found}
                    out.write(json.dumps(found) + "\n")
                    out.flush()
            print(f"  {row.__name__}: " + ", ".join(shown(args.out, row.__name__, name)
                                                    for name, _ in launchers))
    return 0


if __name__ == "__main__":
    sys.exit(main())
