#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Launchers side by side. Repetition by repetition each takes its turn, so that the noise of the
machine hits all of them alike; lives of workers are random, because a life that is a multiple of a
poll interval always meets a polling launcher in the same phase. One JSON line a measurement, for
report.py.

    launch_bench.py --bin BUILD/tests/bench --rows two,fail --reps 5 --out FILE
        --launcher 'elastrun=PATH --nproc-per-node {n} --max-restarts {r} --no-python {cmd}' ...

Words in a launcher: {n} workers, {r} restarts, {cmd} command of the worker, {tee} --tee-option,
{port} of the rendezvous. Rows of two agents, which meet on loopback:

    join     the second agent's start -> all workers of both have started; the first one waits for
             it since more than a second, as in a job where the last host is late
    refail   rank 0 dies -> workers of the other agent have ended (`others_ms`; they end by the stop
             signal), all workers that were left have ended (`stop_ms`), all have started again
             (`ms`), and by how much that is later than the last end (`beyond_ms`)
    lost     the second agent is killed with all that is its launcher -> all workers have started
             again, those of a spare that waits in place of its
"""
from __future__ import annotations

import argparse
import json
import os
import random
import re
import select
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1] / "system"))
from harness import stat_of  # noqa: E402
from ports import free_port, listens  # noqa: E402

Row = dict[str, Any]
TEE_BYTES = 200_000_000
WORKERS = 2  # of each of two agents


def milliseconds(ns: float) -> float:
    return round(ns / 1e6, 3)


def tree(root: int) -> list[int]:
    """All live descendants of a process, itself first."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (found := stat_of(int(entry))) and found[0] != "Z":
            children.setdefault(int(found[1]), []).append(int(entry))
    out = [root]
    for pid in out:
        out += children.get(pid, [])
    return out


def ends(pids: list[int], limit: float) -> dict[int, int]:
    """When each process ended, by pidfd; those that did not are left out."""
    out, fds, poll = {}, {}, select.poll()
    for pid in pids:
        try:
            fd = os.pidfd_open(pid)
        except OSError:
            out[pid] = time.time_ns()
            continue
        fds[fd] = pid
        poll.register(fd, select.POLLIN)
    until, waiting = time.monotonic() + limit, set(fds)
    while waiting and (left := until - time.monotonic()) > 0:
        for fd, _ in poll.poll(left * 1000):
            out[fds[fd]] = time.time_ns()
            poll.unregister(fd)
            waiting.discard(fd)
    for fd in fds:
        os.close(fd)
    return out


class Run:
    """One start of one launcher in a fresh folder; whatever is left of it is ended by pid."""

    def __init__(self, words: list[str], mark: list[str], workers: int, mode: str,
                 restarts: int = 0, life: int = 500, output: str = "log", tee: str = "",
                 port: int = 0, file: Path | None = None) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="bench."))
        self.file = file or self.folder / "events"
        command = [*mark, str(self.file), *mode.split()]
        argv = []
        for word in words:
            if word in ("{cmd}", "{tee}"):
                argv += command if word == "{cmd}" else tee.format(d=self.folder).split()
            else:
                argv.append(word.format(n=workers, r=restarts, port=port))
        env = dict(os.environ, MARK_LIFE_MS=str(life), OMP_NUM_THREADS="1", PYTHONWARNINGS="ignore")
        self.output, self.errors = self.folder / output, self.folder / "errors"
        opened = [(os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
                  (os.POSIX_SPAWN_OPEN, 1, str(self.output), os.O_WRONLY | os.O_CREAT, 0o644),
                  (os.POSIX_SPAWN_OPEN, 2, str(self.errors), os.O_WRONLY | os.O_CREAT, 0o644)]
        program = shutil.which(argv[0]) or argv[0]
        self.began = time.time_ns()
        self.pid = os.posix_spawn(program, argv, env, file_actions=opened, setsid=True)
        self.code: int | None = None
        self.ended = 0

    def events(self, what: str | None = None) -> list[tuple[str, int, int]]:
        """Name, pid and time of what the workers wrote."""
        try:
            lines = self.file.read_text().splitlines()
        except FileNotFoundError:
            return []
        found = [line.split() for line in lines if line.count(" ") == 3]
        return [(f[0], int(f[2]), int(f[3])) for f in found if what in (None, f[0])]

    def ranks(self, what: str) -> dict[int, int]:
        """The rank that each pid had when it wrote this."""
        lines = [line.split() for line in self.file.read_text().splitlines()]
        return {int(f[2]): int(f[1]) for f in lines if f[0] == what}

    def wait(self, limit: float) -> bool:
        """Whether the launcher ended in time. Its pidfd tells to the microsecond when."""
        if self.code is None and self.pid in (at := ends([self.pid], limit)):
            self.ended = at[self.pid]
            self.code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.code is not None

    def until(self, what: str, count: int, limit: float = 40) -> bool:
        until = time.monotonic() + limit
        while len(self.events(what)) < count:
            if time.monotonic() > until or self.wait(0):
                return len(self.events(what)) >= count
            time.sleep(0.005)
        return True

    def close(self) -> None:
        for pid in tree(self.pid) if self.code is None else []:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        for _, pid, _ in self.events():
            try:  # only what is still our own worker
                if str(self.file).encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(pid, signal.SIGKILL)
            except OSError:
                pass
        self.wait(10)
        shutil.rmtree(self.folder, ignore_errors=True)

    def trouble(self) -> Row:
        return {"error": self.errors.read_text(errors="replace")[-400:]}


class Pair:
    """Two agents whose workers write to one file. Use as a context."""

    def __init__(self, bench: Bench, mode: str, life: int = 500) -> None:
        self.bench, self.mode, self.life = bench, mode, life
        self.port = free_port()
        self.runs = [self.agent()]

    def agent(self, file: Path | None = None) -> Run:
        return self.bench.start(WORKERS, self.mode, restarts=3, life=self.life, port=self.port,
                                file=file)

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


class Bench:
    def __init__(self, mark: Path, words: list[str], tee: str) -> None:
        self.mark, self.words, self.tee = mark, words, tee

    def start(self, workers: int, mode: str, **more: Any) -> Run:
        return Run(self.words, [str(self.mark)], workers, mode, **more)

    def start_python(self, workers: int, mode: str, **more: Any) -> Run:
        """As a script, because launchers may treat Python workers in a way of their own."""
        script = str(Path(__file__).with_name("mark.py"))
        if "--no-python" in self.words:
            words = [word for word in self.words if word != "--no-python"]
            return Run(words, [script], workers, mode, **more)
        return Run(self.words, ["python3", script], workers, mode, **more)

    def launch(self, run: Run) -> Row:
        if not run.wait(60) or run.code != 0:
            return run.trouble()
        return {"ms": milliseconds(run.ended - run.began),
                "all_started_ms": milliseconds(max(e[2] for e in run.events("start")) - run.began)}

    def fail(self, run: Run) -> Row:
        if not run.until("die", 1) or not run.wait(20):
            return run.trouble()
        died = run.events("die")[0][2]
        left = len(run.events()) - 1 - len(ends([e[1] for e in run.events("start")], 0.2))
        return {"ms": milliseconds(run.ended - died), "code": run.code, "left": left}

    def restart(self, run: Run) -> Row:
        if not run.until("die", 1) or not run.until("again", 2, 20):
            return run.trouble()
        died = run.events("die")[0][2]
        run.wait(20)
        return {"ms": milliseconds(max(e[2] for e in run.events("again")) - died)}

    def python(self, run: Run) -> Row:
        """From the line that raises to the first line of the same rank's next life."""
        if not run.until("die", 1) or not run.until("again", 2, 20):
            return run.trouble()
        ranks, died = run.ranks("again"), run.events("die")[0][2]
        run.wait(20)
        first = next(at for _, pid, at in run.events("again") if ranks[pid] == 0)
        return {"ms": milliseconds(first - died)}

    def term(self, run: Run) -> Row:
        if not run.until("start", 2):
            return run.trouble()
        time.sleep(0.3)
        workers, ours = {e[1] for e in run.events("start")}, tree(run.pid)
        sent = time.time_ns()
        os.kill(run.pid, signal.SIGTERM)
        at = ends(ours, 20)
        if len(at) < len(ours):
            return run.trouble()
        run.wait(5)
        return {"ms": milliseconds(max(at.values()) - sent), "code": run.code,
                "workers_ms": milliseconds(max(at[p] for p in workers) - sent)}

    def memory(self, run: Run) -> Row:
        """Peak resident memory of the launcher and its helpers together, workers excluded."""
        if not run.until("start", 8):
            return run.trouble()
        time.sleep(0.5)
        workers, peaks = {e[1] for e in run.events("start")}, []
        for pid in set(tree(run.pid)) - workers:
            said = Path(f"/proc/{pid}/status").read_text()
            peaks.append(int(re.search(r"VmHWM:\s*(\d+)", said)[1]) / 1024)
        return {"mb": round(sum(peaks), 2), "largest_mb": round(max(peaks), 2)}

    def idle(self, run: Run) -> Row:
        if not run.until("start", 2):
            return run.trouble()
        time.sleep(2)
        workers = {e[1] for e in run.events("start")}
        ours = [p for p in tree(run.pid) if p not in workers]

        def used() -> tuple[int, int, int]:
            ns = threads = switches = 0
            for pid in ours:
                for task in os.listdir(f"/proc/{pid}/task"):
                    base = Path(f"/proc/{pid}/task/{task}")
                    ns += int((base / "schedstat").read_text().split()[0])
                    said = (base / "status").read_text()
                    switches += sum(int(n) for n in re.findall(r"ctxt_switches:\s*(\d+)", said))
                    threads += 1
            return ns, switches, threads
        first = used()
        time.sleep(10)
        last = used()
        return {"cpu_ms": milliseconds(last[0] - first[0]), "threads": last[2],
                "wakeups_per_s": round((last[1] - first[1]) / 10, 1), "processes": len(ours)}

    def tee_rate(self, run: Run) -> Row:
        """Two workers write 100 MB each through the launcher; no line may be torn or lost."""
        if not run.wait(60) or run.code != 0:
            return run.trouble()
        took = (run.ended - run.began) / 1e9
        line = re.compile(rb"(?:\[default\d\]:)?[01] \d{12} x{84,85}")
        torn = lines = 0
        with open(run.output, "rb") as file:
            for text in file:
                lines += 1
                torn += not line.fullmatch(text.rstrip(b"\n"))
        return {"s": round(took, 3), "lines": lines, "torn": torn}

    def join(self) -> Row:
        with Pair(self, "exit") as pair:
            if not pair.end():
                return pair.trouble()
            started = [at for _, _, at in pair.runs[0].events("start")]
            if len(started) != 2 * WORKERS:
                return pair.trouble()
            return {"ms": milliseconds(max(started) - pair.runs[1].began)}

    def refail(self) -> Row:
        with Pair(self, "once", life=1200 + random.randrange(200)) as pair:
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

    def lost(self) -> Row:
        with Pair(self, "sleep") as pair:
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

    def measure(self, row: str) -> Row:
        life = 500 + random.randrange(200)
        half = f"blast {TEE_BYTES // 2}"
        alone: dict[str, tuple[Callable[[], Run], Callable[[Run], Row]]] = {
            "two": (lambda: self.start(2, "exit"), self.launch),
            "many": (lambda: self.start(64, "exit"), self.launch),
            "fail": (lambda: self.start(2, "fail", life=life), self.fail),
            "restart": (lambda: self.start(2, "once", restarts=3, life=life + 700), self.restart),
            "python": (lambda: self.start_python(2, "once", restarts=3, life=life + 700),
                       self.python),
            "term": (lambda: self.start(2, "sleep"), self.term),
            "memory": (lambda: self.start(8, "sleep"), self.memory),
            "idle": (lambda: self.start(2, "sleep"), self.idle),
            "tee": (lambda: self.start(2, half, tee=self.tee), self.tee_rate),
        }
        if row not in alone:
            return {"join": self.join, "refail": self.refail, "lost": self.lost}[row]()
        start, look = alone[row]
        run = start()
        try:
            return look(run)
        finally:
            run.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--bin", type=Path, required=True, help="folder of bench_mark")
    parser.add_argument("--launcher", action="append", required=True, help="NAME=COMMAND")
    parser.add_argument("--tee-option", default="--tee 3 --log-dir {d}/logs")
    parser.add_argument("--rows", default="two,many,fail,restart,python,term,memory,idle,tee")
    parser.add_argument("--reps", type=int, default=5)
    parser.add_argument("--few", type=int, help="repetitions of all launchers but the first")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    launchers = {}
    for text in args.launcher:
        name, command = text.split("=", 1)
        launchers[name] = command.split()
    with open(args.out, "a") as out:
        for row in args.rows.split(","):
            for repetition in range(1 if row == "idle" else args.reps):
                for place, (name, words) in enumerate(launchers.items()):
                    if row == "tee" and "{tee}" not in words:
                        continue
                    if place and args.few is not None and repetition >= args.few:
                        continue
                    found = Bench(args.bin / "bench_mark", words, args.tee_option).measure(row)
                    found = {"row": row, "launcher": name, "repetition": repetition, **found}
                    out.write(json.dumps(found) + "\n")
                    out.flush()
            print(f"  {row}: " + ", ".join(shown(args.out, row, name) for name in launchers))
    return 0


def shown(path: Path, row: str, name: str) -> str:
    """The median so far, for the person who waits."""
    rows = [r for r in map(json.loads, open(path)) if (r["row"], r["launcher"]) == (row, name)]
    for key in ("ms", "mb", "cpu_ms", "s"):
        if values := [r[key] for r in rows if key in r]:
            return f"{name} {statistics.median(values):g} {key}"
    return f"{name} -"


if __name__ == "__main__":
    sys.exit(main())
