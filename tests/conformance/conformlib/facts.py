# SPDX-License-Identifier: Apache-2.0
"""The facts that a case can declare as contract, taken from one observed run.

Every fact is a JSON value that is the same in each correct run. A selector is NAME or NAME:DETAIL.
"""
from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .cases import BadCase, Case
from .normal import names_this_machine
from .report import parse_report, report_blocks
from .runner import Agent, Observed

CONTRACT_VARIABLES = (
    "RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME", "LOCAL_WORLD_SIZE", "WORLD_SIZE",
    "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE",
    "TORCHELASTIC_SIGNALS_TO_HANDLE", "TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCHELASTIC_ERROR_FILE",
    "OMP_NUM_THREADS",
)
LOG_FILES = {
    "stdout.log", "stderr.log", "error.json", "filtered_stdout.log", "filtered_stderr.log",
}
UNSET = "<unset>"
_USAGE_ERROR = re.compile(r"\S+: error: (.*)")

Fact = Callable[[Case, Observed, str], Any]


def extract(case: Case, seen: Observed) -> dict[str, Any]:
    """All facts that the case compares."""
    facts: dict[str, Any] = {}
    for selector in case.compare:
        name, _, detail = selector.partition(":")
        if name not in FACTS:
            raise BadCase(f"{case.name}: unknown fact {selector!r}")
        facts[selector] = FACTS[name](case, seen, detail)
    if seen.problems:
        facts["problems"] = seen.problems
    return facts


def _per_agent(seen: Observed, take: Callable[[Agent], Any]) -> Any:
    """The value itself with one agent, a list with several."""
    values = [take(agent) for agent in seen.agents]
    return values[0] if len(values) == 1 else values


def _per_worker(seen: Observed, take: Callable[[Any], Any]) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for worker in seen.workers:
        key, number = worker.key, 2
        while key in table:
            key, number = f"{worker.key} #{number}", number + 1
        table[key] = take(worker)
    return table


def exit_code(case: Case, seen: Observed, detail: str) -> Any:
    """Exit code or ending signal of each agent; with `exit:any order` sorted."""
    if detail:
        return sorted(str(agent.exit) for agent in seen.agents)
    return _per_agent(seen, lambda agent: agent.exit)


def env(case: Case, seen: Observed, detail: str) -> Any:
    """Variables of each worker: the named ones, or all that torchrun promises."""
    names = [n.strip() for n in detail.split(",")] if detail else list(CONTRACT_VARIABLES)

    def of(worker: Any) -> dict[str, str]:
        have = worker.facts["env"]
        return {
            n: seen.normaliser.variable(n, have[n]) if n in have else UNSET for n in names
        }

    return _per_worker(seen, of)


def inherited(case: Case, seen: Observed, detail: str) -> Any:
    """Whether each worker has the agent's own variables unchanged; else the names that differ."""

    def of(worker: Any) -> list[str]:
        given = seen.agents[worker.agent].env
        have = worker.facts["env"]
        return sorted(n for n, v in given.items() if have.get(n) != v and n != detail)

    return _per_worker(seen, of)


def master(case: Case, seen: Observed, detail: str) -> Any:
    """Whether all workers of a start agree on one master that is this machine."""
    table: dict[str, Any] = {}
    for worker in seen.workers:
        have = worker.facts["env"]
        pair = (have.get("MASTER_ADDR", ""), have.get("MASTER_PORT", ""))
        table.setdefault(f"start {worker.start}", set()).add(pair)
    return {
        start: {
            "agreed": len(pairs) == 1,
            "this machine": all(names_this_machine(a) for a, _ in pairs),
            "port is a number": all(p.isdigit() and 0 < int(p) < 65536 for _, p in pairs),
        }
        for start, pairs in table.items()
    }


def workers(case: Case, seen: Observed, detail: str) -> Any:
    return list(_per_worker(seen, lambda worker: None))


def argv(case: Case, seen: Observed, detail: str) -> Any:
    return _per_worker(seen, lambda worker: seen.normaliser.deep(worker.facts["argv"]))


def process(case: Case, seen: Observed, detail: str) -> Any:
    """How the process was made: session, group, working directory, descriptors, signal masks."""
    names = [n.strip() for n in detail.split(",")]
    return _per_worker(
        seen, lambda worker: seen.normaliser.deep({n: worker.facts[n] for n in names})
    )


def signals(case: Case, seen: Observed, detail: str) -> Any:
    """Signals that each worker caught, in order."""
    return _per_worker(seen, lambda w: [e["signal"] for e in w.events if "signal" in e])


def notes(case: Case, seen: Observed, detail: str) -> Any:
    """What each worker noted with the steps stdin, dial and store."""
    return _per_worker(
        seen,
        lambda w: seen.normaliser.deep({e["note"]: e["value"] for e in w.events if "note" in e}),
    )


def stdout(case: Case, seen: Observed, detail: str) -> Any:
    """Lines on stdout: as they came, `stdout:sorted`, or `stdout:count`."""
    if detail == "count":
        return _per_agent(seen, lambda agent: len(agent.stdout))
    lines = _per_agent(seen, lambda agent: seen.normaliser.deep(agent.stdout))
    return sorted(lines) if detail == "sorted" else lines


def stderr(case: Case, seen: Observed, detail: str) -> Any:
    """Sorted lines of stderr that contain the given text, but for names of our own folders."""

    def of(agent: Agent) -> list[str]:
        return sorted(line for line in map(seen.normaliser.text, agent.stderr) if detail in line)

    return _per_agent(seen, of)


def usage_error(case: Case, seen: Observed, detail: str) -> Any:
    """The text after `PROGRAM: error: `."""
    lines = [line for agent in seen.agents for line in agent.stderr]
    found = [match.group(1) for line in lines if (match := _USAGE_ERROR.match(line))]
    return found[-1] if found else None


def says(case: Case, seen: Observed, detail: str) -> Any:
    """Which of the case's texts stand on stderr, or stdout with `says:stdout`."""
    lines = [line for a in seen.agents for line in (a.stdout if detail == "stdout" else a.stderr)]
    text = seen.normaliser.text("\n".join(lines))
    return {wanted: wanted in text for wanted in case.says}


def report(case: Case, seen: Observed, detail: str) -> Any:
    """The failure reports: all fields, or with `report:text` the normalised lines."""

    def of(agent: Agent) -> Any:
        blocks = report_blocks(agent.stderr)
        if detail == "text":
            return [[_plain(seen, line) for line in block] for block in blocks]
        return [seen.normaliser.deep(_with_short_paths(parse_report(block))) for block in blocks]

    return _per_agent(seen, of)


def _plain(seen: Observed, line: str) -> str:
    line = re.sub(r"^(=|-){10,}$", r"\1\1\1\1", line)  # the width follows the longest line
    line = re.sub(r"^(  host +: ).*", r"\1<host>", line)
    line = re.sub(r"^(  error_file: ).*(/attempt_)", r"\1...\2", line)
    return seen.normaliser.text(line)


def _with_short_paths(parsed: dict[str, Any]) -> dict[str, Any]:
    for entry in [*parsed["others"], parsed["root"] or {}]:
        if "/attempt_" in entry.get("error_file", ""):
            entry["error_file"] = ".../attempt_" + entry["error_file"].rsplit("/attempt_", 1)[1]
    return parsed


def logs(case: Case, seen: Observed, detail: str) -> Any:
    """Tree of the known files and all folders below {logs}; with `logs:text` the files' lines."""
    base = seen.logs
    if not base.exists():
        return "no log folder"
    found: dict[str, Any] = {}
    for path in sorted(base.rglob("*")):
        name = seen.normaliser.text(str(path) + "/attempt_").removesuffix("/attempt_")
        name = name.removeprefix("{scratch}/logs/")
        if path.is_dir():
            found[name + "/"] = None
        elif path.name in LOG_FILES:
            found[name] = seen.normaliser.deep(_lines_of(path))
    if detail == "text":
        return {name: lines for name, lines in found.items() if lines is not None}
    return sorted(found)


def _lines_of(path: Path) -> list[str]:
    lines = path.read_bytes().decode(errors="replace").splitlines()
    return sorted(lines) if path.name.startswith("filtered_") else lines


def left(case: Case, seen: Observed, detail: str) -> Any:
    """Processes of the run that outlived all agents by two seconds."""
    return seen.left


def own_error_file(case: Case, seen: Observed, detail: str) -> Any:
    """The launcher's own error file: its message without times and stacks."""
    path = seen.scratch / detail
    if not path.exists():
        return "no file"
    try:
        data = json.loads(path.read_text())
    except ValueError:
        return "not JSON"
    message = data.get("message")
    if isinstance(message, dict):
        message.pop("extraInfo", None)
    return seen.normaliser.deep({"message": message})


FACTS: dict[str, Fact] = {"exit": exit_code} | {fact.__name__: fact for fact in (
    env, inherited, master, workers, argv, process, signals, notes, stdout, stderr, usage_error,
    says, report, logs, left, own_error_file)}
