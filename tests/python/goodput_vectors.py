# SPDX-License-Identifier: Apache-2.0
"""Scenarios of ml-goodput-measurement and its answers, replayed against elastrun.goodput.

    goodput_vectors.py FILE...

Prints each answer that differs by more than 1e-6, then how many there were; exit status 1 if one
differs. The calculators that are asked are those in C++: of a process of elastrunctl.
"""
from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

PACKAGE = str(Path(__file__).resolve().parents[2] / "lib" / "python")
if PACKAGE not in sys.path:
    sys.path.insert(0, PACKAGE)
from elastrun import goodput_calculator, goodput_utils  # noqa: E402
from elastrun.goodput import ElasticGoodputCalculator, GoodputCalculator  # noqa: E402

CLASSES = {"base": GoodputCalculator, "elastic": ElasticGoodputCalculator}


def when(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, timezone.utc)


def named(answer: Any) -> Any:
    """As the recorded answers are: members of enums by name."""
    if isinstance(answer, dict):
        return {getattr(key, "name", str(key)): named(value) for key, value in answer.items()}
    return answer


def summed_up(deviations: dict[int, float]) -> dict[str, Any]:
    pairs = [[step, value] for step, value in deviations.items()]
    if not pairs:
        return {}
    return {"count": len(pairs), "sum": sum(deviations.values()), "max": max(deviations.values()),
            "first": pairs[:3], "last": pairs[-2:], "all": named(deviations)}


def close(one: float, other: float) -> bool:
    return abs(one - other) <= 1e-6 * max(1e-3, abs(one), abs(other))


def differences(wanted: Any, got: Any, path: str = "") -> Iterator[str]:
    """A number that only one of both has must be 0; other things that only we have are ignored."""
    if isinstance(wanted, dict) and isinstance(got, dict):
        for name in {**wanted, **got}:
            one, other = wanted.get(name, 0.0), got.get(name, 0.0)
            if name in wanted or isinstance(other, (int, float)):
                yield from differences(one, other, f"{path}.{name}")
    elif isinstance(wanted, list) and isinstance(got, list) and len(wanted) == len(got):
        for index, (one, other) in enumerate(zip(wanted, got)):
            yield from differences(one, other, f"{path}[{index}]")
    elif isinstance(wanted, (int, float)) and isinstance(got, (int, float)):
        if not close(wanted, got):
            yield f"{path}: {got!r}, not {wanted!r}"
    elif wanted != got:
        yield f"{path}: {got!r}, not {wanted!r}"


class Log:
    """The entries of a scenario in a file, which grows as the calls say."""

    def __init__(self, entries: list[dict[str, Any]], folder: str, number: int) -> None:
        self.entries = entries
        self.path = Path(folder) / f"{number}.jsonl"
        self.path.touch()
        self.count = 0

    def grow(self, until: float) -> None:
        with open(self.path, "a") as file:
            while self.count < len(self.entries) and self.entries[self.count]["log_time"] <= until:
                file.write(json.dumps(self.entries[self.count]) + "\n")
                self.count += 1


class Player:
    """A calculator with a log of its own. One that was opened over the cache of another never reads
    on: an artefact of the original's cache that three scenarios record, and ours has not.
    """

    def __init__(self, scenario: dict[str, Any], folder: str, number: int) -> None:
        self.log = Log(scenario["entries"], folder, number)
        self.reads_on = True
        self.calculator = CLASSES[scenario["calculator"]](
            scenario["name"], "log", path=self.log.path)

    def call(self, call: dict[str, Any]) -> dict[str, Any]:
        if self.reads_on:
            self.log.grow(call.get("upto", float("inf")))
        now = call.get("now", call.get("upto", 1e12))
        goodput_calculator._now = lambda: now
        calculator, ideal = self.calculator, call.get("ideal")
        if call["call"] == "job":
            percent, badput, step = calculator.get_job_goodput(True, ideal)
            details = named(calculator.get_job_goodput_details())
            deviations = calculator.get_job_goodput_details()["step_time_deviation"]
            details["step_deviation_metric"] = (
                goodput_utils.compute_step_deviation_from_baseline(deviations))
            details["step_time_deviation"] = summed_up(deviations)
            return {"goodput_pct": percent, "badput_pct": named(badput),
                    "max_productive_step": step, "details": details}
        if call["call"] == "deviation":
            return {"step_time_deviation": summed_up(calculator.get_step_deviation(ideal))}
        if call["call"] == "exclude":
            percent, badput, step, seconds = calculator.get_job_goodput_with_exclusions(
                [(when(begin), when(end)) for begin, end in call["spans"]], True, ideal)
            return {"goodput_pct": percent, "badput_pct": named(badput),
                    "max_productive_step": step, "excluded_time": seconds}
        return self.window(when(call["a"]), when(call["b"]))

    def window(self, begin: datetime, end: datetime) -> dict[str, Any]:
        percent, badput, step, seconds, disruptions = (
            self.calculator.get_job_goodput_interval(begin, end))
        answer = {"goodput_pct": percent, "badput_pct": named(badput), "max_productive_step": step,
                  "total_job_time": seconds, "disruptions": disruptions}
        if isinstance(self.calculator, ElasticGoodputCalculator):
            details = self.calculator.get_interval_metric_details(begin, end)
            answer["slice_efficiency"] = {name: details[name] for name in details
                                          if name.endswith("efficiency")}
        return answer


def play(scenario: dict[str, Any], folder: str) -> Iterator[tuple[str, list[str]]]:
    """For each call its name, and what differs."""
    made = 0

    def fresh() -> Player:
        nonlocal made
        made += 1
        return Player(scenario, folder, made)

    current, other = fresh(), None
    for call in scenario["calls"]:
        what = call["call"]
        if what == "swap":
            current, other = other, current  # type: ignore[assignment]
            continue
        if what == "reopen":
            opened = fresh()
            opened.log.entries = current.log.entries[:current.log.count]
            opened.log.grow(float("inf"))
            opened.reads_on = False
            if call.get("keep"):
                other = current
            current = opened
            continue
        if what in ("reset", "exclude"):
            current = fresh()
            if what == "reset":
                continue
        try:
            got: Any = current.call(call)
        except Exception as error:
            got = type(error).__name__
        yield what, list(differences(call.get("result", call.get("raises")), got))


def helped(name: str, one: dict[str, Any]) -> Any:
    if name == "ideal_step_time":
        return goodput_utils.compute_ideal_step_time(one["step_times"])
    if name == "anomaly_extra_time":
        return goodput_utils.get_extra_time_from_anomalous_steps(one["step_times"])
    if name == "percentile":
        return goodput_utils.compute_percentile(one["values"], one["p"])
    deviations = {i: (37 * i % 101) / 64 for i in range(one["n"])}  # the file states the formula
    return goodput_utils.compute_step_deviation_from_baseline(
        deviations, goodput_utils.MonitoringWindowType[one["mode"]])


def replay(vectors: dict[str, Any]) -> tuple[int, list[str]]:
    """How many answers are the same, and what differs in the others."""
    passed, wrong = 0, []
    with tempfile.TemporaryDirectory() as folder:
        for scenario in vectors["scenarios"]:
            own = Path(folder) / scenario["name"]
            own.mkdir()
            for what, lines in play(scenario, str(own)):
                passed += not lines
                wrong += [f"{scenario['name']} {what}: {line}" for line in lines]
    for name, cases in vectors.get("helpers", {}).items():
        for one in cases:
            lines = list(differences(one["value"], helped(name, one)))
            passed += not lines
            wrong += [f"helper {name}: {line}" for line in lines]
    return passed, wrong


def main() -> int:
    passed, wrong = 0, []
    for path in sys.argv[1:]:
        found = replay(json.loads(Path(path).read_text()))
        passed += found[0]
        wrong += found[1]
    print("\n".join([*(f"FAILED {line}" for line in wrong),
                     f"{passed} passed, {len(wrong)} lines differ"]))
    return 1 if wrong or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
