# SPDX-License-Identifier: Apache-2.0
"""Logs of goodput: what recorders have written into files, and the agent into its journal.

Lines that are no entry, or one of another job, are counted and passed over: torn ones, numbers that
are none, members that are missing. Memory is about 30 bytes an entry.
"""
from __future__ import annotations

import json
import os
import re
from array import array
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import Any, NamedTuple, Union

_LONGEST_LINE = 1 << 20  # bytes; what is longer is no entry
_FARTHEST_STEP = 9e15  # doubles below it name every whole number
_FARTHEST_TIME = 1e300
_SCOPE = "elastrun.goodput"  # of records of the journal that are entries

Path = Union[str, "os.PathLike[str]"]


class Kind(IntEnum):
    """What one entry says."""

    OTHER = 0  # nothing that the calculation reads
    STEP = 1
    JOB_START = 2
    JOB_END = 3
    INIT_START = 4
    INIT_END = 5
    PREPARATION_START = 6
    PREPARATION_END = 7
    LOADING_START = 8
    LOADING_END = 9
    CUSTOM_START = 10
    CUSTOM_END = 11
    WAIT_START = 12
    WAIT_END = 13
    REINIT_START = 14
    REINIT_END = 15
    SLICES = 16
    SAVE = 17
    RESTORE = 18
    EMERGENCY_RESTORE = 19


# The member that makes an entry what it is, and holds its time.
_TIME_MEMBERS = {
    "step_start_time": Kind.STEP,
    "job_start_time": Kind.JOB_START,
    "job_end_time": Kind.JOB_END,
    "tpu_init_start_time": Kind.INIT_START,
    "tpu_init_end_time": Kind.INIT_END,
    "training_prep_start_time": Kind.PREPARATION_START,
    "training_prep_end_time": Kind.PREPARATION_END,
    "data_loading_start_time": Kind.LOADING_START,
    "data_loading_end_time": Kind.LOADING_END,
    "custom_badput_event_start_time": Kind.CUSTOM_START,
    "custom_badput_event_end_time": Kind.CUSTOM_END,
    "elastic_wait_start_time": Kind.WAIT_START,
    "elastic_wait_end_time": Kind.WAIT_END,
    "elastic_reinit_start_time": Kind.REINIT_START,
    "elastic_reinit_end_time": Kind.REINIT_END,
    "elastic_slice_counts_timestamp": Kind.SLICES,
}
_CHECKPOINTS = {"save": Kind.SAVE, "restore": Kind.RESTORE,
                "emergency_restore": Kind.EMERGENCY_RESTORE}


class Checkpoint(NamedTuple):
    persistent: bool  # its directory begins with gs://
    seconds: float  # for which the checkpoint manager blocked


class Slices(NamedTuple):
    active: float
    available: float
    total: float


def _number(value: Any) -> float | None:
    """None: missing, no number, NaN, or far beyond any time."""
    if type(value) is float:
        return value if -_FARTHEST_TIME < value < _FARTHEST_TIME else None
    if type(value) is int and -_FARTHEST_TIME < value < _FARTHEST_TIME:
        return float(value)
    return None


def _step(value: Any) -> int | None:
    number = _number(value)
    return int(number) if number is not None and abs(number) <= _FARTHEST_STEP else None


def _first_time(payload: Mapping[str, Any]) -> float:
    for name, value in payload.items():
        if "time" in name and (number := _number(value)) is not None:
            return number
    return float("nan")


class MeasurementLog:
    """The entries of one job in order of arrival. Times are POSIX seconds."""

    def __init__(self) -> None:
        self.kinds = bytearray()
        self.steps = array("q")
        self.times = array("d")  # NaN: the entry has none
        self.arrivals = array("d")  # when the log got it; what says nothing came when it was
        self.details: dict[int, Any] = {}  # by index: a name, a Checkpoint, Slices
        self.count_of_steps = 0
        self.job_start: float | None = None  # the first one
        self.job_end: float | None = None  # the last one

    def __len__(self) -> int:
        return len(self.kinds)

    def add(self, payload: Mapping[str, Any], arrival: float | None = None) -> bool:
        """False, and nothing is changed: a member that is needed is missing or wrong."""
        kind: int = Kind.OTHER
        step: int | None = 0
        time: float | None
        detail: Any = None
        event = payload.get("event_type")
        if isinstance(event, str) and event in _CHECKPOINTS:
            kind = _CHECKPOINTS[event]
            time, step = _first_time(payload), _step(payload.get("step"))
            detail = _checkpoint(payload, kind)
        elif "step_start_time" in payload:
            kind = Kind.STEP
            time, step = _number(payload["step_start_time"]), _step(payload.get("step_count"))
        else:
            name = next((one for one in _TIME_MEMBERS if one in payload), None)
            if name is None:
                time = _first_time(payload)
            else:
                kind = _TIME_MEMBERS[name]
                time = _number(payload[name])
                detail = _detail(payload, kind)
        if time is None or step is None or (detail is None and kind >= Kind.CUSTOM_START
                                            and kind not in (Kind.REINIT_START, Kind.REINIT_END)):
            return False
        self._append(kind, step, time, time if arrival is None else arrival, detail)
        return True

    def add_step(self, step: int, time: float) -> None:
        """As add(), of a step that is right."""
        self.kinds.append(1)  # Kind.STEP
        self.steps.append(step)
        self.times.append(time)
        self.arrivals.append(time)
        self.count_of_steps += 1

    def _append(self, kind: int, step: int, time: float, arrival: float, detail: Any) -> None:
        if detail is not None:
            self.details[len(self.kinds)] = detail
        self.kinds.append(kind)
        self.steps.append(step)
        self.times.append(time)
        self.arrivals.append(arrival)
        if kind == Kind.STEP:
            self.count_of_steps += 1
        elif kind == Kind.JOB_START and self.job_start is None:
            self.job_start = time
        elif kind == Kind.JOB_END:
            self.job_end = time

    def part(self, chosen: Sequence[int]) -> MeasurementLog:
        """A log of these entries, by index; job_start, job_end and count_of_steps are not set."""
        part = MeasurementLog()
        part.kinds.extend(map(self.kinds.__getitem__, chosen))
        part.steps.extend(map(self.steps.__getitem__, chosen))
        part.times.extend(map(self.times.__getitem__, chosen))
        part.arrivals.extend(map(self.arrivals.__getitem__, chosen))
        part.details = {place: self.details[index] for place, index in enumerate(chosen)
                        if index in self.details}
        return part


def _checkpoint(payload: Mapping[str, Any], kind: int) -> Checkpoint | None:
    blocking = "blocking_" if kind == Kind.SAVE else ""
    seconds = _number(payload.get(f"checkpoint_manager_{blocking}duration_secs"))
    directory = payload.get("directory")
    if seconds is None or not isinstance(directory, str):
        return None
    return Checkpoint(directory.startswith("gs://"), seconds)


def _detail(payload: Mapping[str, Any], kind: int) -> Any:
    """None if there is none, or no right one."""
    if kind in (Kind.CUSTOM_START, Kind.CUSTOM_END):
        name = payload.get("custom_badput_event_type")
        return name.upper() if isinstance(name, str) else None
    if kind in (Kind.WAIT_START, Kind.WAIT_END):
        name = payload.get("elastic_wait_event_type", "unknown")
        return name if isinstance(name, str) else None
    if kind == Kind.SLICES:
        numbers = [_number(payload.get(f"{one}_slices"))
                   for one in ("active", "available", "total")]
        return None if None in numbers else Slices(*numbers)  # type: ignore[arg-type]
    return None


class _File:
    """How far one file has been read, and which one it was."""

    def __init__(self, path: Path) -> None:
        self.path = os.fspath(path)
        self.offset = 0
        self.identity: tuple[int, int] | None = None
        self.skipping = False  # the rest of a line that is too long

    def replaced(self) -> bool:
        """Whether what was read is not there any more."""
        try:
            found = os.stat(self.path)
        except FileNotFoundError:
            return self.identity is not None
        return self.identity is not None and (
            self.identity != (found.st_dev, found.st_ino) or found.st_size < self.offset)


def _parts_of(path: str) -> list[str]:
    """A journal goes on in journal.1.jsonl, journal.2.jsonl, ...; the first one need not exist."""
    folder, name = os.path.split(path)
    stem, ending = os.path.splitext(name)
    part = re.compile(rf"{re.escape(stem)}\.([1-9]\d{{0,4}}){re.escape(ending)}\Z").match
    try:
        found = [match for match in map(part, os.listdir(folder or ".")) if match]
    except OSError:
        found = []
    found.sort(key=lambda match: int(match[1]))
    return [path, *(os.path.join(folder, match[0]) for match in found)]


class LogFiles:
    """Reads what is new in `paths`: files of recorders, journals of elastrun, entries that other
    programs have kept as JSON lines, also as {"log_time": ..., "payload": ...}. A file that is not
    there yet is empty; another OSError is passed on. `make_log` makes what keeps the entries.
    """

    def __init__(self, job_name: str, paths: Sequence[Path],
                 make_log: Callable[[], Any] = MeasurementLog) -> None:
        self._job = job_name
        self._make_log = make_log
        self._paths = [os.fspath(path) for path in paths]
        self._files: dict[str, _File] = {}  # with the further parts of each path
        self._decode = json.JSONDecoder().raw_decode
        # Nearly all lines are steps as recorders write them; they cost a third this way.
        self._match_step = re.compile(
            rb'\{"job_name": ?%s, ?"step_count": ?(\d{1,15}), ?"step_start_time": ?'
            rb'(\d{1,15}\.\d{1,15})\}\n?' % re.escape(json.dumps(job_name)).encode()).fullmatch
        self._begin_again()

    def _begin_again(self) -> None:
        self.log = self._make_log()
        self.skipped = 0  # lines that are no entry
        self.other_jobs = 0  # entries
        self.lost = 0  # entries that recorders could not write

    @property
    def paths(self) -> list[str]:
        return self._paths

    def read(self) -> None:
        if any(one.replaced() for one in self._files.values()):
            self._begin_again()
            self._files = {}
        for path in self._paths:
            for part in _parts_of(path):
                self._read_file(self._files.setdefault(part, _File(part)))

    def _read_file(self, one: _File) -> None:
        try:
            file = open(one.path, "rb")
        except FileNotFoundError:
            return
        with file:
            found = os.fstat(file.fileno())
            one.identity = found.st_dev, found.st_ino
            file.seek(one.offset)
            while line := file.readline(_LONGEST_LINE):
                step = None if one.skipping else self._match_step(line)
                if step is not None:
                    self.log.add_step(int(step[1]), float(step[2]))
                    one.offset += len(line)
                    continue
                ended = line.endswith(b"\n")
                if one.skipping or (not ended and len(line) == _LONGEST_LINE):
                    self.skipped += not one.skipping
                    one.skipping = not ended
                elif not self._take(line, ended):
                    return  # the rest of the line is still to come
                one.offset += len(line)

    def _take(self, line: bytes, ended: bool) -> bool:
        """False: half a line, which the next look reads again."""
        try:
            text = str(line, "utf-8").strip()
            value, end = self._decode(text)
            if end != len(text):
                raise ValueError
        except (ValueError, RecursionError):
            self.skipped += ended and not line.isspace()
            return ended
        if not self._take_value(value):
            self.skipped += 1
        return True

    def _take_value(self, value: Any) -> bool:
        if not isinstance(value, dict):
            return False
        payload, arrival = value, None
        if "payload" in value:
            payload, arrival = value["payload"], _number(value.get("log_time"))
        elif "job_name" not in value:
            if value.get("scope") != _SCOPE:
                return isinstance(value.get("scope"), str)  # a record about something else
            payload = value.get("attributes")
            if isinstance(payload, dict) and value.get("name") in ("lost", "left_out"):
                count = max(_step(payload.get("count")) or 0, 0)
                if value["name"] == "lost":
                    self.lost += count
                else:
                    self.skipped += count
                return True
        if not isinstance(payload, dict):
            return False
        if payload.get("job_name", self._job) != self._job:
            self.other_jobs += 1
            return True
        self.lost += max(_step(payload.get("lost_entries")) or 0, 0)
        return bool(self.log.add(payload, arrival))
