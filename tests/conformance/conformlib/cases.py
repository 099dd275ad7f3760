# SPDX-License-Identifier: Apache-2.0
"""Cases as data: what to run, what to do meanwhile, what to compare."""
from __future__ import annotations

import tomllib
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class AgentPlan:
    """One launcher process of a case."""

    argv: tuple[str, ...]
    env: dict[str, str]
    late: bool = False  # started by the action `start N`, not at once


@dataclass(frozen=True)
class Better:
    """Facts that are accepted in place of torchrun's, because torchrun's are a defect."""

    why: str
    facts: dict[str, Any]


@dataclass(frozen=True)
class Case:
    name: str
    about: str
    agents: tuple[AgentPlan, ...]
    compare: tuple[str, ...]
    timeout: float
    do: tuple[str, ...] = ()
    says: tuple[str, ...] = ()
    better: tuple[Better, ...] = ()
    expect: dict[str, Any] | None = None  # written by hand; torchrun is not asked
    torchrun: str = ""  # what torchrun does instead
    stdin: str | None = None
    cpus: int | None = None
    needs_torch: bool = False
    needs_port: int | None = None
    files: dict[str, str] = field(default_factory=dict)


class BadCase(ValueError):
    """A case file that cannot be understood."""


_AGENTS = {"argv", "env", "agents", "agent", "late"}  # of which `agents` of a case is made
_KEYS = {one.name for one in fields(Case)} | _AGENTS


def load_cases(folder: Path) -> list[Case]:
    """All cases of the TOML files in `folder`, in file and then table order."""
    cases: list[Case] = []
    names: set[str] = set()
    for path in sorted(folder.glob("*.toml")):
        with path.open("rb") as stream:
            tables = tomllib.load(stream).get("case", [])
        for table in tables:
            case = _case(table, path)
            if case.name in names:
                raise BadCase(f"{path.name}: the name {case.name!r} is used twice")
            names.add(case.name)
            cases.append(case)
    return cases


def _case(table: dict[str, Any], path: Path) -> Case:
    where = f"{path.name}: {table.get('name', '(no name)')}"
    unknown = set(table) - _KEYS
    if unknown:
        raise BadCase(f"{where}: unknown keys {sorted(unknown)}")
    for key in ("name", "about", "compare"):
        if not table.get(key):
            raise BadCase(f"{where}: {key} is missing")
    if "expect" in table and set(table["expect"]) != set(table["compare"]):
        raise BadCase(f"{where}: expect and compare name different facts")
    if ("expect" in table) != ("torchrun" in table):
        raise BadCase(f"{where}: expect and torchrun need each other")
    given = {key: tuple(value) if isinstance(value, list) else value
             for key, value in table.items() if key not in _AGENTS}
    given["better"] = tuple(Better(**one) for one in table.get("better", ()))
    # It ends what hangs. Four imports of torch, on processors that others use, take a minute.
    given.setdefault("timeout", 180.0 if table.get("needs_torch") else 60.0)
    return Case(agents=_agents(table, where), **given)


def _agents(table: dict[str, Any], where: str) -> tuple[AgentPlan, ...]:
    """`agent` tables if there are any, else `agents` copies of argv with {agent} filled in."""
    late = set(table.get("late", ()))
    shared_env = table.get("env", {})
    if "agent" in table:
        return tuple(
            AgentPlan(tuple(a["argv"]), {**shared_env, **a.get("env", {})}, n in late)
            for n, a in enumerate(table["agent"])
        )
    if "argv" not in table:
        raise BadCase(f"{where}: neither argv nor agent tables")
    count = table.get("agents", 1)
    return tuple(
        AgentPlan(
            tuple(word.replace("{agent}", str(n)) for word in table["argv"]),
            {k: v.replace("{agent}", str(n)) for k, v in shared_env.items()},
            n in late,
        )
        for n in range(count)
    )
