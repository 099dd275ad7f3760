# SPDX-License-Identifier: Apache-2.0
"""Run one case with one launcher and keep everything that can be observed."""
from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .cases import Case
from .normal import Normaliser

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "system"))
from harness import alive_with, end_all  # noqa: E402
from ports import free_port  # noqa: E402

KEPT_VARIABLES = (
    "PATH", "HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "TZ",
    "ASAN_OPTIONS", "LSAN_OPTIONS", "TSAN_OPTIONS", "UBSAN_OPTIONS",
    "ELASTRUN_TEST_FORKSERVER",
)
ORPHAN_GRACE = 2.0  # seconds that processes may take to vanish after their agent


@dataclass
class Agent:
    exit: int | str | None = None
    stdout: list[str] = field(default_factory=list)
    stderr: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)


@dataclass
class Worker:
    facts: dict[str, Any]
    events: list[dict[str, Any]]
    start: int = 0  # how many workers had this agent and local rank before

    @property
    def agent(self) -> int:
        return int(self.facts["env"].get("CONFORM_AGENT", "0"))

    @property
    def key(self) -> str:
        return f"start {self.start} rank {self.facts['env'].get('RANK', '?')}"


@dataclass
class Observed:
    """Everything seen in one run, not yet normalised."""

    agents: list[Agent]
    workers: list[Worker]
    left: list[str]
    logs: Path
    scratch: Path
    normaliser: Normaliser
    problems: list[str]


class ActionFailed(Exception):
    """An action of the case could not be carried out in time."""


_active: set[str] = set()  # the runs in progress


def processes_of(run_id: str) -> set[int]:
    """The pids of all live processes of the run: they have its unique value in their environment,
    and no other is touched."""
    return alive_with("CONFORM_RUN=" + run_id)


def wait_for(condition: Callable[[], bool], seconds: float) -> bool:
    """True as soon as the condition holds, false when it does not within the time."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= end:
            return False
        time.sleep(0.02)
    return True


def kill_all(run_id: str) -> None:
    """SIGKILL every process of the run until none is left."""
    def none_left() -> bool:
        pids = processes_of(run_id)
        end_all(pids)
        return not pids

    wait_for(none_left, 10)


def abort_all() -> None:
    """End the processes of all runs in progress; the runs then end by themselves."""
    for run_id in list(_active):
        kill_all(run_id)


def port_is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
            return True
        except OSError:
            return False


class Runner:
    """One run of one case. `scratch` must not exist yet."""

    def __init__(self, case: Case, launcher: str, scratch: Path, workers: list[Path]) -> None:
        self._case = case
        self._launcher = launcher
        self._scratch = scratch
        self._run_id = uuid.uuid4().hex
        self._deadline = 0.0
        self._started: dict[int, subprocess.Popen[bytes]] = {}
        self._environments: dict[int, dict[str, str]] = {}
        words = " ".join(w for a in case.agents for w in [*a.argv, *a.env.values()])
        self._ports = {n: free_port("") for n in ("port", "port2") if "{" + n + "}" in words}
        for name in ("work", "tmp", "facts", "marks", "go"):
            (scratch / name).mkdir(parents=True)
        for folder in workers:
            for path in folder.iterdir():
                if path.is_file():
                    shutil.copy(path, scratch / "work" / path.name)
        for name, text in case.files.items():
            (scratch / "work" / name).write_text(text)

    def execute(self) -> Observed:
        _active.add(self._run_id)
        try:
            return self._observe()
        finally:
            kill_all(self._run_id)
            _active.discard(self._run_id)

    def _observe(self) -> Observed:
        problems: list[str] = []
        self._deadline = time.monotonic() + self._case.timeout
        try:
            for number, plan in enumerate(self._case.agents):
                if not plan.late:
                    self._start(number)
            for action in self._case.do:
                self._act(action)
        except (ActionFailed, OSError) as error:
            problems.append(str(error))
            self._deadline = min(self._deadline, time.monotonic() + 5)
        agents = [self._finish(n) for n in range(len(self._case.agents))]
        wait_for(lambda: not processes_of(self._run_id), ORPHAN_GRACE)
        left = processes_of(self._run_id)
        workers = self._workers()
        return Observed(
            agents=agents,
            workers=workers,
            left=sorted(self._name_of(pid, workers) for pid in left),
            logs=self._scratch / "logs",
            scratch=self._scratch,
            normaliser=Normaliser(str(self._scratch), self._ports),
            problems=problems,
        )

    # --- agents

    def _start(self, number: int) -> None:
        plan = self._case.agents[number]
        env = {k: os.environ[k] for k in KEPT_VARIABLES if k in os.environ}
        env |= {
            "TMPDIR": str(self._scratch / "tmp"),
            "CONFORM_RUN": self._run_id,
            "CONFORM_AGENT": str(number),
            "CONFORM_FACTS": str(self._scratch / "facts"),
            "CONFORM_MARKS": str(self._scratch / "marks"),
            "CONFORM_GO": str(self._scratch / "go"),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        env |= {name: self._fill(value) for name, value in plan.env.items()}
        command = [self._launcher, *(self._fill(word) for word in plan.argv)]
        if self._case.cpus is not None:
            code = (
                "import os, sys; os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))"
                f"[:{self._case.cpus}]); os.execvp(sys.argv[1], sys.argv[1:])"
            )
            command = [sys.executable, "-c", code, *command]
        stdin = self._scratch / f"agent{number}.in"
        stdin.write_text(self._case.stdin or "")
        with (
            stdin.open("rb") as source,
            (self._scratch / f"agent{number}.out").open("wb") as out,
            (self._scratch / f"agent{number}.err").open("wb") as err,
        ):
            self._started[number] = subprocess.Popen(
                command, env=env, cwd=self._scratch / "work", start_new_session=True,
                stdin=source, stdout=out, stderr=err,
            )
        self._environments[number] = env

    def _fill(self, text: str) -> str:
        for name, port in self._ports.items():
            text = text.replace("{" + name + "}", str(port))
        text = text.replace("{logs}", str(self._scratch / "logs"))
        return text.replace("{scratch}", str(self._scratch))

    def _finish(self, number: int) -> Agent:
        process = self._started.get(number)
        if process is None:
            return Agent(exit="never started")
        try:
            code = process.wait(max(0.0, self._deadline - time.monotonic()))
            ending: int | str = code if code >= 0 else "killed by " + signal.Signals(-code).name
        except subprocess.TimeoutExpired:
            ending = "still running after the time limit"
            process.kill()
            process.wait()
        return Agent(
            ending, self._lines(number, "out"), self._lines(number, "err"),
            self._environments[number],
        )

    def _lines(self, number: int, stream: str) -> list[str]:
        data = (self._scratch / f"agent{number}.{stream}").read_bytes()
        return data.decode(errors="replace").splitlines()

    # --- actions

    def _act(self, action: str) -> None:
        """Carry out one action; README.md lists them."""
        words = shlex.split(action)
        match words:
            case ["wait", mark, count]:
                self._await(action, lambda: self._marks(mark) >= int(count))
            case ["line", number, pattern]:
                self._await(action, lambda: self._has_line(int(number), pattern))
            case ["signal", "agent", number, name]:
                self._started[int(number)].send_signal(getattr(signal, name))
            case ["signal", "rank", rank, name]:
                os.kill(self._pid_of_rank(rank), getattr(signal, name))
            case ["go", name]:
                (self._scratch / "go" / name).touch()
            case ["start", number]:
                self._start(int(number))
            case ["exited", number]:
                self._await(action, lambda: self._started[int(number)].poll() is not None)
            case _:
                raise ActionFailed(f"unknown action {action!r}")

    def _await(self, action: str, condition: Callable[[], bool]) -> None:
        def done() -> bool:
            return condition() or all(p.poll() is not None for p in self._started.values())

        wait_for(done, self._deadline - time.monotonic())
        if not condition():
            raise ActionFailed(f"the action {action!r} waited in vain")

    def _marks(self, name: str) -> int:
        return sum(p.name.startswith(name + ".") for p in (self._scratch / "marks").iterdir())

    def _has_line(self, number: int, pattern: str) -> bool:
        lines = self._lines(number, "out") + self._lines(number, "err")
        return any(re.search(pattern, line) for line in lines)

    def _pid_of_rank(self, rank: str) -> int:
        own = processes_of(self._run_id)
        for worker in reversed(self._workers()):
            pid = int(worker.facts["pid"])
            if worker.facts["env"].get("RANK") == rank and pid in own:
                return pid
        raise ActionFailed(f"no live worker has rank {rank}")

    # --- workers

    def _workers(self) -> list[Worker]:
        """All workers that wrote facts, in the order of starts and ranks."""
        folder = self._scratch / "facts"
        workers = []
        for path in folder.glob("*.json"):
            record = path.with_suffix(".events")
            lines = record.read_text().splitlines() if record.exists() else []
            facts = json.loads(path.read_text())
            workers.append(Worker(facts, [json.loads(line) for line in lines]))
        workers.sort(key=lambda w: w.facts["started"])
        starts: dict[tuple[int, int], int] = {}
        for worker in workers:
            slot = (worker.agent, self._local_slot(worker))
            worker.start = starts.get(slot, 0)
            starts[slot] = worker.start + 1
        return sorted(workers, key=lambda w: (w.start, _number(w.facts["env"].get("RANK"))))

    @staticmethod
    def _local_slot(worker: Worker) -> int:
        """The real local rank; with --virtual-local-rank the variable is always 0."""
        env = worker.facts["env"]
        match = re.search(r"/(\d+)/error\.json$", env.get("TORCHELASTIC_ERROR_FILE", ""))
        return int(match.group(1)) if match else _number(env.get("LOCAL_RANK", env.get("RANK")))

    def _name_of(self, pid: int, workers: list[Worker]) -> str:
        for worker in workers:
            if worker.facts["pid"] == pid:
                return worker.key
            if any(event.get("child") == pid for event in worker.events):
                return "child of " + worker.key
        command = Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
        return "process " + command.replace("\0", " ").strip()


def _number(text: str | None) -> int:
    try:
        return int(text or "")
    except ValueError:
        return -1
