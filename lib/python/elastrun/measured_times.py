# SPDX-License-Identifier: Apache-2.0
"""Where the time of a measured job went: the calculation of ml-goodput-measurement 0.2.3 with all
that is odd about it, so that whoever compares gets its numbers. What is true is said by the ledger
of elastrun. Pure; O(n log n), where the original is O(n * custom events). All times in seconds.
"""
from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator
from enum import Enum
from itertools import islice
from typing import NamedTuple

from elastrun.measurement_log import Kind, MeasurementLog


class BadputType(Enum):
    TPU_INITIALIZATION = 1
    TRAINING_PREP = 2
    PROGRAM_STARTUP = 3
    DATA_LOADING_SYNC = 4
    DATA_LOADING_ASYNC = 5
    UNPRODUCTIVE_CHECKPOINT_SAVE_TIME = 6
    UNPRODUCTIVE_CHECKPOINT_RESTORE_TIME = 7
    WASTED_PROGRESS_FROM_DISRUPTION = 8
    INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION = 9
    CUSTOM_BADPUT_EVENTS = 10  # a dict by name
    OTHER = 11
    ELASTIC_SLICE_DOWN = 12
    ELASTIC_SCALE_UP = 13
    ELASTIC_REINITIALIZATION = 14


class Span(NamedTuple):
    begin: float
    end: float


def merged(spans: list[Span]) -> list[Span]:
    """Sorted, with those that overlap or touch made one."""
    apart: list[Span] = []
    for span in sorted(spans):
        if apart and span.begin <= apart[-1].end:
            apart[-1] = Span(apart[-1].begin, max(apart[-1].end, span.end))
        else:
            apart.append(span)
    return apart


def overlap(begin: float, end: float, spans: list[Span]) -> float:
    """How long it lies within `spans`, which are as merged() returns them."""
    first = max(bisect_right(spans, (begin,)) - 1, 0)
    seconds = 0.0
    for span in islice(spans, first, None):
        if span.begin >= end:
            break
        seconds += max(0.0, min(end, span.end) - max(begin, span.begin))
    return seconds


class MeasuredTimes:
    """What one pass over a log finds. Its buckets may overlap, as there; OTHER is none of them."""

    def __init__(self) -> None:
        self.productive = 0.0
        self.badput: defaultdict[BadputType, float] = defaultdict(float)
        self.custom: defaultdict[str, float] = defaultdict(float)
        self.max_productive_step = 0
        self.disruptions = 0  # how often a step number was there already
        self.excluded = 0.0
        self.step_times: dict[int, float] = {}  # by step, of a pass with exclusions


def pairs_of(log: MeasurementLog, start: Kind, end: Kind) -> Iterator[tuple[str, Span]]:
    """Spans by name; a start without an end is lost, and so is what ends before it begins."""
    open_since: dict[str, float] = {}
    for index in log.details:
        kind = log.kinds[index]
        if kind == start:
            open_since[log.details[index]] = log.times[index]
        elif kind == end:
            since = open_since.pop(log.details[index], None)
            if since is not None and since < log.times[index]:
                yield log.details[index], Span(since, log.times[index])


class CustomEvents:
    """Closed custom events of a log, so that those of a step are found at once."""

    def __init__(self, log: MeasurementLog) -> None:
        found = sorted(pairs_of(log, Kind.CUSTOM_START, Kind.CUSTOM_END), key=lambda one: one[1])
        self._names = [name for name, _ in found]
        self._spans = [span for _, span in found]
        self._begins = array("d", (span.begin for span in self._spans))
        self._longest = max((span.end - span.begin for span in self._spans), default=0.0)

    def __bool__(self) -> bool:
        return bool(self._names)

    def within(self, begin: float, end: float) -> Iterator[tuple[str, float]]:
        """Those that lie entirely within, with their lengths."""
        for index in range(bisect_left(self._begins, begin), bisect_right(self._begins, end)):
            span = self._spans[index]
            if span.end <= end:
                yield self._names[index], span.end - span.begin

    def parts(self, begin: float, end: float) -> Iterator[tuple[str, float]]:
        """Those that lie partly within, with the length of that part."""
        first = bisect_left(self._begins, begin - self._longest)
        for index in range(first, bisect_left(self._begins, end)):
            part = min(end, self._spans[index].end) - max(begin, self._spans[index].begin)
            if part > 0:
                yield self._names[index], part


class _Segment:
    """The steps between two disruptions, in order of arrival: none has a number twice."""

    def __init__(self) -> None:
        self.steps = array("q")
        self.times = array("d")
        self._known: set[int] | None = None  # None: each number is higher than the one before

    def add(self, step: int, time: float) -> bool:
        """False if there is such a step already; nothing is added then."""
        if self.steps and (self._known is not None or step <= self.steps[-1]):
            if self._known is None:
                self._known = set(self.steps)
            if step in self._known:
                return False
            self._known.add(step)
        self.steps.append(step)
        self.times.append(time)
        return True

    def highest(self) -> tuple[int, float]:
        step = max(self.steps)
        return step, self.times[self.steps.index(step)]

    def gaps(self) -> Iterator[tuple[int, float, int, float]]:
        """Of neighbours: step and time, and the next step and time."""
        return zip(self.steps, self.times, islice(self.steps, 1, None), islice(self.times, 1, None))


class _Closed(NamedTuple):
    productive: float
    startup: float
    max_step: int


def _split(total: float, first: float, others: int, last: int) -> _Closed:
    """The first step's time beyond the mean of the others is start-up."""
    startup = max(0.0, first - (total - first) / others) if others else 0.0
    return _Closed(total - startup, startup, last)


class _Pass:
    """Over a log once, without or with exclusions."""

    def __init__(self, log: MeasurementLog, excluded: list[Span] | None) -> None:
        self._log = log
        self._excluded = excluded
        self._customs = CustomEvents(log)
        self._segment = _Segment()
        self._starts: dict[int, float] = {}  # of phases, by the kind of their end
        self._pending_load: float | None = None
        self._next_load_is_sync = True
        self._loads = 0.0
        self._job_start: float | None = None
        self._job_end: float | None = None
        self.times = MeasuredTimes()

    def run(self) -> MeasuredTimes:
        log, step_kind = self._log, int(Kind.STEP)
        for kind, step, time in zip(log.kinds, log.steps, log.times):
            if kind == step_kind:
                if not self._segment.add(step, time):
                    self._disrupted(step, time)
            elif kind <= Kind.LOADING_END:
                self._take(kind, time)
        self._finish()
        return self.times

    def _length(self, begin: float, end: float) -> float:
        """Without what is excluded, which is added up."""
        if self._excluded is None:
            return end - begin
        cut = overlap(begin, end, self._excluded)
        self.times.excluded += cut
        return max(0.0, end - begin - cut)

    def _take(self, kind: int, time: float) -> None:
        if kind == Kind.JOB_START:
            self._job_start = time
        elif kind == Kind.JOB_END:
            self._job_end = time
        elif kind in (Kind.INIT_START, Kind.PREPARATION_START, Kind.LOADING_START):
            self._starts[kind + 1] = time  # a start without an end is lost
        elif kind in self._starts:
            length = self._length(self._starts.pop(kind), time)
            if kind == Kind.INIT_END:
                self.times.badput[BadputType.TPU_INITIALIZATION] += length
            elif kind == Kind.PREPARATION_END:
                self.times.badput[BadputType.TRAINING_PREP] += length
            else:
                self._loaded(length)

    def _loaded(self, length: float) -> None:
        self._loads += length
        self._pending_load = length
        if self._next_load_is_sync:
            self._next_load_is_sync = False
            self.times.badput[BadputType.DATA_LOADING_SYNC] += length

    def _disrupted(self, step: int, time: float) -> None:
        self.times.disruptions += 1
        self._close(step)
        if self._pending_load is not None and self._excluded is None:
            self.times.badput[BadputType.DATA_LOADING_SYNC] += self._pending_load
            self._pending_load = None
        self._next_load_is_sync = True
        last = self._segment.times[-1]
        if self._job_start is not None and self._job_start > last:
            recovery = self._length(last, self._job_start)
            self.times.badput[BadputType.INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION] += recovery
        self._segment = _Segment()
        self._segment.add(step, time)

    def _close(self, cut: int) -> None:
        """Steps beyond `cut` are wasted."""
        if self._excluded is not None:
            closed = self._close_excluding(cut, self._excluded)
            highest = max(self.times.max_productive_step, closed.max_step)
        elif cut == 0:
            closed, highest = _Closed(0.0, 0.0, 0), 0
        else:
            closed = self._close_plainly(cut)
            highest = closed.max_step
        self.times.productive += closed.productive
        self.times.badput[BadputType.PROGRAM_STARTUP] += closed.startup
        self.times.max_productive_step = highest

    def _close_plainly(self, cut: int) -> _Closed:
        customs, lowest = self._customs, min(self._segment.steps)
        total = first = wasted = 0.0
        last = counted = firsts = 0
        for step, begin, after, end in self._segment.gaps():
            if after > cut:
                wasted += end - begin
            elif after == step + 1:
                length = end - begin
                if customs:
                    for name, seconds in customs.within(begin, end):
                        self.times.custom[name] += seconds
                        length -= seconds
                if length > 0:
                    total += length
                counted += 1
                last = step
                if step == lowest:
                    first, firsts = max(length, 0.0), 1
        self.times.badput[BadputType.WASTED_PROGRESS_FROM_DISRUPTION] += wasted
        return _split(total, first, counted - firsts, last)

    def _close_excluding(self, cut: int, excluded: list[Span]) -> _Closed:
        lowest = min(self._segment.steps)
        total = first = wasted = 0.0
        last = counted = 0
        for step, begin, after, end in self._segment.gaps():
            cut_out = overlap(begin, end, excluded)
            self.times.excluded += cut_out
            if after > cut:
                wasted += max(0.0, end - begin - cut_out)
            elif after == step + 1:
                length = end - begin - cut_out
                for name, seconds in self._customs.parts(begin, end):
                    self.times.custom[name] += seconds
                    length -= seconds
                length = max(0.0, length)
                total += length
                counted += 1
                last = step
                first = length if step == lowest else first
                self.times.step_times[step] = length
        self.times.badput[BadputType.WASTED_PROGRESS_FROM_DISRUPTION] += wasted
        closed = _split(total, first, counted - 1, last)
        if counted and lowest in self.times.step_times:
            self.times.step_times[lowest] = first - closed.startup
        return closed

    def _finish(self) -> None:
        times = self.times
        if self._segment.steps:
            step, begin = self._segment.highest()
            self._close(step)
            if self._job_end is not None:
                times.productive += self._length(begin, self._job_end)
                times.max_productive_step = step
        asynchronous = self._loads - times.badput[BadputType.DATA_LOADING_SYNC]
        times.badput[BadputType.DATA_LOADING_ASYNC] = asynchronous
        if self._excluded is None:
            self._add_checkpoints()
            if not self._segment.steps:
                times.productive = 0.0

    def _add_checkpoints(self) -> None:
        """Of several reports of one checkpoint (several hosts) the mean counts; an emergency
        restore is a report as others are.
        """
        reports: dict[tuple[bool, int, bool], list[float]] = {}
        for index, checkpoint in self._log.details.items():
            kind = self._log.kinds[index]
            if kind >= Kind.SAVE:
                key = kind == Kind.SAVE, self._log.steps[index], checkpoint.persistent
                reports.setdefault(key, []).append(checkpoint.seconds)
        badput = self.times.badput
        for (save, _, _), seconds in reports.items():
            mean = sum(seconds) / len(seconds)
            if save:
                badput[BadputType.UNPRODUCTIVE_CHECKPOINT_SAVE_TIME] += mean
            else:
                badput[BadputType.UNPRODUCTIVE_CHECKPOINT_RESTORE_TIME] += mean
        self.times.productive -= badput[BadputType.UNPRODUCTIVE_CHECKPOINT_SAVE_TIME]


def measure(log: MeasurementLog, excluded: list[Span] | None = None) -> MeasuredTimes:
    """`excluded` as merged() returns them; None: the pass without exclusions, which is another."""
    return _Pass(log, excluded).run()


def _phases(log: MeasurementLog, start: Kind) -> list[Span]:
    spans: list[Span] = []
    since: float | None = None
    for kind, time in zip(log.kinds, log.times):
        if kind == start:
            since = time
        elif kind == start + 1 and since is not None:
            if since < time:
                spans.append(Span(since, time))
            since = None
    return spans


def add_elastic(times: MeasuredTimes, log: MeasurementLog) -> None:
    """Waits for slices, and starting over within the process. None of it leaves what is productive,
    as there; initialisation and preparation leave out what starting over has.
    """
    for name, span in pairs_of(log, Kind.WAIT_START, Kind.WAIT_END):
        up = "scale_up" in name.lower()
        times.badput[BadputType.ELASTIC_SCALE_UP if up else BadputType.ELASTIC_SLICE_DOWN] += (
            span.end - span.begin)
    reinits = _phases(log, Kind.REINIT_START)
    if not reinits:
        return
    times.badput[BadputType.ELASTIC_REINITIALIZATION] += sum(one.end - one.begin for one in reinits)
    reinits = merged(reinits)
    for kind, bucket in ((Kind.INIT_START, BadputType.TPU_INITIALIZATION),
                         (Kind.PREPARATION_START, BadputType.TRAINING_PREP)):
        inside = sum(overlap(*span, reinits) for span in _phases(log, kind))
        if inside > 0:
            times.badput[bucket] = max(0.0, times.badput[bucket] - inside)
