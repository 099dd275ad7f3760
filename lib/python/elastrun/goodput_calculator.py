# SPDX-License-Identifier: Apache-2.0
"""GoodputCalculator and its elastic subclass, with the interface and the numbers of
ml-goodput-measurement 0.2.3 (see elastrun.goodput).
"""
from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterable, Sequence
from datetime import datetime
from enum import Enum
from typing import Any, NamedTuple, Union

from elastrun import channel
from elastrun.journal import own_file
from elastrun.measured_times import (BadputType, MeasuredTimes, Span, add_elastic, measure, merged,
                                     overlap)
from elastrun.measurement_log import Kind, LogFiles, MeasurementLog, Path, Slices
from elastrun.step_times import compute_ideal_step_time

__all__ = ["BadputType", "ElasticGoodputCalculator", "GoodputCalculator", "GoodputType",
           "IntervalMetricType", "MetricType", "default_path"]

_now = time.time
_log = logging.getLogger("elastrun.goodput")

Breakdown = dict[BadputType, Union[float, dict[str, float]]]


class GoodputType(Enum):
    TOTAL = 1


class MetricType(Enum):
    """The members of get_job_goodput_details()."""

    GOODPUT_TIME = "goodput_time"
    BADPUT_TIME = "badput_time"
    MAX_PRODUCTIVE_STEP = "max_productive_step"
    TOTAL_ELAPSED_TIME = "total_elapsed_time"
    DISRUPTION_COUNT = "disruption_count"
    STEP_TIME_DEVIATION = "step_time_deviation"
    IDEAL_STEP_TIME = "ideal_step_time"
    TOTAL_EXCLUDED_TIME = "total_excluded_time"


class IntervalMetricType(Enum):
    """The members of get_interval_metric_details()."""

    INTERVAL_GOODPUT = "interval_goodput"
    INTERVAL_BADPUT = "interval_badput"
    INTERVAL_SIZE = "interval_size"


_BUCKETS = tuple(one for one in BadputType if one.value < BadputType.ELASTIC_SLICE_DOWN.value)
_UNSUMMED = (BadputType.DATA_LOADING_ASYNC, BadputType.OTHER)  # the first one overlaps with steps


def default_path(job_name: str) -> str:
    """Where a recorder of that job writes: the journal of this node under elastrun, else a file."""
    folder = os.environ.get("ELASTRUN_RUN_DIR", "")
    if channel.is_configured() and folder:
        run = os.path.dirname(os.path.dirname(os.path.abspath(folder)))
        return os.path.join(run, "journal.jsonl")
    return own_file(job_name)


class _Answer(NamedTuple):
    """Seconds of the last calculation."""

    productive: float
    badput: Breakdown
    max_step: int
    total: float
    disruptions: int


class _Deviations(NamedTuple):
    steps: int  # of the log, when they were computed
    ideal: float
    seconds: dict[int, float]


class _Window(NamedTuple):
    span: Span
    read_from: float  # where the first of a series of windows that move forward began
    found: bool


def _closed_books(times: MeasuredTimes, total: float, buckets: Iterable[BadputType]) -> Breakdown:
    """Seconds by bucket, without those that cannot be; OTHER is what is left of `total`."""
    def possible(seconds: float) -> float:
        return seconds if 0 <= seconds <= total else 0.0

    books: Breakdown = {one: possible(times.badput[one]) for one in buckets}
    custom = {name: possible(seconds) for name, seconds in times.custom.items()}
    known = times.productive + sum(custom.values())
    known += sum(times.badput[one] for one in buckets
                 if one not in _UNSUMMED and 0 <= times.badput[one] <= total)
    books[BadputType.CUSTOM_BADPUT_EVENTS] = custom
    books[BadputType.OTHER] = max(0.0, total - known)
    return books


def _between(begin: float, end: float) -> float:
    """Seconds, of times in whole microseconds, as those of datetimes are."""
    return round(end, 6) - round(begin, 6)


def _percent(seconds: float, total: float) -> float:
    return seconds / total * 100 if 0 < seconds < total else 0.0  # as there: the whole is none


def _percents(books: Breakdown, total: float) -> Breakdown:
    return {bucket: ({name: _percent(one, total) for name, one in seconds.items()}
                     if isinstance(seconds, dict) else _percent(seconds, total))
            for bucket, seconds in books.items()}


def _step_times(log: MeasurementLog) -> dict[int, float]:
    """By step, of neighbours whose numbers follow each other; the last pass over a step counts."""
    durations: dict[int, float] = {}
    step_kind, last, since = int(Kind.STEP), 0, float("nan")
    for kind, step, begin in zip(log.kinds, log.steps, log.times):
        if kind == step_kind:
            if step == last + 1 and since == since:
                durations[last] = begin - since
            last, since = step, begin
    return durations


def _bounds(start: datetime, end: datetime) -> Span:
    if start is None or end is None:
        raise ValueError("a window has a start and an end")
    if start.tzinfo is None or end.tzinfo is None:
        raise TypeError("the start and the end of a window are datetimes with a time zone")
    return Span(start.timestamp(), end.timestamp())


def _spans(intervals: Sequence[tuple[datetime, datetime]]) -> list[Span]:
    spans = []
    for start, end in intervals:
        if start.tzinfo is None or end.tzinfo is None or start >= end:
            _log.warning("the span from %s to %s is not excluded: it has no time zone, or ends "
                         "before it begins", start, end)
        else:
            spans.append(Span(start.timestamp(), end.timestamp()))
    return merged(spans)


class _Logger:
    """What a program keeps itself: an object with the methods of the original's cloud logger."""

    def __init__(self, job_name: str, logger: Any) -> None:
        self.log = MeasurementLog()
        self.skipped = self.other_jobs = self.lost = 0
        self.paths = [f"the logger of job {job_name}"]
        self._logger = logger
        self._last: Any = None  # time and id of the newest entry

    def read(self) -> None:
        if self._last is None or self._last[0] is None:
            entries, last = self._logger.read_cloud_logging_entries()
        else:
            entries, last = self._logger.read_cloud_logging_entries(
                self._last[0], datetime.now(self._last[0].tzinfo), self._last)
        for entry in entries:
            if not isinstance(entry, dict) or not self.log.add(entry):
                self.skipped += 1
        if last is not None and last[0] is not None:
            self._last = last


class GoodputCalculator:
    """Of one job, over a log that may grow between calls; for all threads.

    `path`: a file, or several, as recorders and the agent's journal are; by default where a
    recorder of that job writes. Each entry is read once and costs about 30 bytes. `cloud_logger`:
    an object whose read_cloud_logging_entries() is asked instead. The other arguments change
    nothing here: there is no cloud to look back into, and no copy that needs a cache.

    Where there is no answer it is a ValueError, as there; a file that cannot be read is an OSError,
    a window without time zone a TypeError. Lines that are no entry are passed over (`skipped`).
    """

    _buckets = _BUCKETS

    def __init__(self, job_name: str, logger_name: str, cloud_logger: Any = None,
                 using_pathways: bool = False, max_logs_retention_period: Any = None,
                 gcs_path: str | None = None, cache_dir: str = "/tmp", *,
                 path: Path | Sequence[Path] | None = None) -> None:
        self.job_name = job_name
        self.using_pathways = using_pathways
        if path is None:
            path = default_path(job_name)
        paths = [path] if isinstance(path, (str, os.PathLike)) else list(path)
        self._source: Any = (LogFiles(job_name, paths) if cloud_logger is None
                             else _Logger(job_name, cloud_logger))
        self._lock = threading.RLock()
        self._forget()

    def _forget(self) -> None:
        self._log = self._source.log
        self._measured: tuple[int, MeasuredTimes] | None = None  # of so many entries
        self._disruptions = 0  # of the last calculation, be it of the job or of a window
        self._answer: _Answer | None = None
        self._deviations: _Deviations | None = None
        self._owed: list[float | None] = []  # the ideal step time of deviations to be computed
        self._window: _Window | None = None
        self._of_window = MeasurementLog()

    def _read(self) -> None:
        self._source.read()
        if self._source.log is not self._log:
            self._forget()

    @property
    def skipped(self) -> int:
        """Lines that were no entry."""
        return int(self._source.skipped)

    @property
    def lost(self) -> int:
        """Entries that recorders say they could not write."""
        return int(self._source.lost)

    def sync_to_gcs(self) -> None:
        """Nothing: the log itself is the only copy."""

    def _measure(self, log: MeasurementLog) -> MeasuredTimes:
        return measure(log)

    def _measure_job(self) -> MeasuredTimes:
        if self._measured is None or self._measured[0] != len(self._log):
            self._measured = len(self._log), self._measure(self._log)
            self._disruptions = self._measured[1].disruptions
        return self._measured[1]

    def _elapsed(self) -> float:
        """Seconds from the first start of the job to its last end, or now; 0: no start."""
        if self._log.job_start is None:
            return 0.0
        end = _now() if self._log.job_end is None else self._log.job_end
        return _between(self._log.job_start, end)

    def _books(self, times: MeasuredTimes, total: float) -> Breakdown:
        if not 0 <= times.productive <= total:
            raise ValueError(f"the productive time, {times.productive:g} s, is not within the "
                             f"total time, {total:g} s: the log of the job contradicts itself")
        return _closed_books(times, total, self._buckets)

    def get_job_goodput(self, include_badput_breakdown: bool = False,
                        configured_ideal_step_time: float | None = None,
                        ) -> tuple[float, Breakdown, int]:
        """Goodput until now in percent, buckets in percent (empty unless asked for), and the last
        productive step.
        """
        with self._lock:
            self._read()
            total = self._elapsed()
            if not total > 0:
                raise ValueError("the total time of the job is zero: no start of job "
                                 f"'{self.job_name}' in {', '.join(self._source.paths)}"
                                 if self._log.job_start is None else
                                 "the total time of the job is zero: it ends before it begins")
            times = self._measure_job()
            books = self._books(times, total)
            self._answer = _Answer(times.productive, books, times.max_productive_step, total,
                                   self._disruptions)
            self._owe_deviations(configured_ideal_step_time)
            return (times.productive / total * 100,
                    _percents(books, total) if include_badput_breakdown else {},
                    times.max_productive_step)

    def get_job_goodput_interval(self, interval_start: datetime, interval_end: datetime,
                                 ) -> tuple[float, Breakdown, int, float, int]:
        """Of the entries in a window: goodput, buckets, last productive step, the seconds from the
        first to the last of them, and how many disruptions.
        """
        bounds = _bounds(interval_start, interval_end)
        with self._lock:
            self._read()
            log = self._of_window = self._entries_in(bounds)
            if not len(log):
                raise ValueError(f"no entry from {interval_start} to {interval_end}")
            total = _between(max(bounds.begin, log.times[0]), min(bounds.end, log.times[-1]))
            if not total > 0:
                raise ValueError(f"the entries from {interval_start} to {interval_end} span no "
                                 "time")
            times = self._measure(log)
            self._disruptions = times.disruptions
            books = self._books(times, total)
            return (times.productive / total * 100, _percents(books, total),
                    times.max_productive_step, total, times.disruptions)

    def _entries_in(self, bounds: Span) -> MeasurementLog:
        """Those that came after the begin of the window and until its end; of windows that move
        forward, from the begin of the first on. The entry's own time decides as well.
        """
        before = self._window
        forward = (before is not None and before.found and bounds.end > before.span.end
                   and bounds.begin >= before.span.begin)
        read_from = before.read_from if before is not None and forward else bounds.begin
        part = self._log.part([
            index for index, (arrival, begin) in enumerate(zip(self._log.arrivals, self._log.times))
            if read_from < arrival <= bounds.end and begin > bounds.begin])
        self._window = _Window(bounds, read_from, len(part) > 0)
        return part

    def get_job_goodput_with_exclusions(
            self, exclusion_intervals: Sequence[tuple[datetime, datetime]],
            include_badput_breakdown: bool = False,
            configured_ideal_step_time: float | None = None,
            ) -> tuple[float, Breakdown, int, float]:
        """As get_job_goodput, with spans of time left out, and how many seconds these were."""
        excluded = _spans(exclusion_intervals)
        with self._lock:
            self._read()
            times = measure(self._log, excluded)
            self._disruptions = times.disruptions
            self._measured = None
            total = self._elapsed() - times.excluded
            if not total > 0:
                return 0.0, {}, times.max_productive_step, times.excluded
            books = _closed_books(times, total, self._buckets)
            self._deviate(times.step_times, configured_ideal_step_time or None, signed=True)
            self._answer = _Answer(times.productive, books, times.max_productive_step, total,
                                   times.disruptions)
            return (times.productive / total * 100,
                    _percents(books, total) if include_badput_breakdown else {},
                    times.max_productive_step, times.excluded)

    def get_step_deviation(self, configured_ideal_step_time: float | None = None,
                           ) -> dict[int, float]:
        """By step, how many seconds it was away from the ideal step time, which is computed unless
        it is given; what is given is honoured where steps are new since the last call, as there.
        """
        with self._lock:
            self._settle()
            self._read()
            self._owe_deviations(configured_ideal_step_time)
            if not self._settle():
                raise ValueError("no step of at least 1 s, from which an ideal step time could be "
                                 "computed")
            return dict(self._deviations.seconds) if self._deviations is not None else {}

    def _owe_deviations(self, ideal: float | None) -> None:
        """They are computed when somebody asks: a number for each step is much."""
        if self._owed and self._owed != [ideal]:
            self._settle()
        known = self._deviations
        if known is None or known.steps != self._log.count_of_steps:
            self._owed = [ideal]

    def _settle(self) -> bool:
        """False: there were none to compute."""
        if not self._owed:
            return True
        ideal = self._owed.pop()
        return self._deviate(_step_times(self._log), ideal)

    def _deviate(self, step_times: dict[int, float], ideal: float | None,
                 signed: bool = False) -> bool:
        if ideal is None:
            ideal = compute_ideal_step_time(list(step_times.values()))
        if not step_times or not ideal:
            if self._deviations is not None:  # they stand until there are new steps, as there
                self._deviations = self._deviations._replace(steps=self._log.count_of_steps)
            return False
        seconds = {step: one - ideal for step, one in step_times.items()}
        if not signed:
            seconds = {step: abs(one) for step, one in seconds.items()}
        self._owed = []
        self._deviations = _Deviations(self._log.count_of_steps, ideal, seconds)
        return True

    def get_job_goodput_details(self) -> dict[str, Any]:
        """Seconds of the last calculation of the job, by the values of MetricType."""
        with self._lock:
            self._settle()
            answer, known = self._answer, self._deviations
            if answer is None:
                _log.warning("no goodput of job '%s' has been computed yet", self.job_name)
                answer = _Answer(0.0, {}, 0, 0.0, 0)
            return {
                MetricType.GOODPUT_TIME.value:
                    {} if self._answer is None else {GoodputType.TOTAL: answer.productive},
                MetricType.BADPUT_TIME.value: dict(answer.badput),
                MetricType.MAX_PRODUCTIVE_STEP.value: answer.max_step,
                MetricType.TOTAL_ELAPSED_TIME.value: answer.total,
                MetricType.DISRUPTION_COUNT.value: answer.disruptions,
                MetricType.STEP_TIME_DEVIATION.value:
                    {} if known is None or self._answer is None else dict(known.seconds),
                MetricType.IDEAL_STEP_TIME.value:
                    0.0 if known is None or self._answer is None else known.ideal,
                MetricType.TOTAL_EXCLUDED_TIME.value: 0.0}  # as there, always

    def get_interval_metric_details(self, interval_start: datetime, interval_end: datetime,
                                    ) -> dict[str, Any]:
        """By the values of IntervalMetricType; empty dicts where there is no answer."""
        goodput: dict[GoodputType, float] = {}
        badput: Breakdown = {}
        try:
            percent, badput, *_ = self.get_job_goodput_interval(interval_start, interval_end)
            goodput = {GoodputType.TOTAL: percent}
        except ValueError as error:
            _log.warning("no goodput of job '%s': %s", self.job_name, error)
        size = 0
        if interval_start is not None and interval_end is not None:
            size = int((interval_end - interval_start).total_seconds())
        return {IntervalMetricType.INTERVAL_GOODPUT.value: goodput,
                IntervalMetricType.INTERVAL_BADPUT.value: badput,
                IntervalMetricType.INTERVAL_SIZE.value: size}


class ElasticGoodputCalculator(GoodputCalculator):
    """For jobs with slices: three buckets more, and both details have `stepping_slice_efficiency`
    and `available_slice_efficiency`, active or available over total slices, where these are known.
    """

    _buckets = tuple(BadputType)

    def _measure(self, log: MeasurementLog) -> MeasuredTimes:
        times = measure(log)
        add_elastic(times, log)
        return times

    def get_job_goodput_details(self) -> dict[str, Any]:
        with self._lock:
            details = super().get_job_goodput_details()
            if self._log.job_start is not None:
                end = self._log.job_start + details[MetricType.TOTAL_ELAPSED_TIME.value]
                details.update(_efficiencies(self._log, Span(self._log.job_start, end)))
            return details

    def get_interval_metric_details(self, interval_start: datetime, interval_end: datetime,
                                    ) -> dict[str, Any]:
        with self._lock:
            self._of_window = MeasurementLog()
            details = super().get_interval_metric_details(interval_start, interval_end)
            details.update(_efficiencies(self._of_window, _bounds(interval_start, interval_end)))
            return details


def _efficiencies(log: MeasurementLog, span: Span) -> dict[str, float]:
    """The counts are a step function; the time before the first of them weighs nothing. Empty: no
    counts.
    """
    counts: list[tuple[float, Slices]] = sorted(
        ((log.times[index], detail) for index, detail in log.details.items()
         if log.kinds[index] == Kind.SLICES), key=lambda one: one[0])
    if not counts:
        return {}
    stepping = available = 0.0
    ends = [begin for begin, _ in counts[1:]] + [span.end]
    for (begin, slices), end in zip(counts, ends):
        seconds = overlap(begin, max(begin, end), [span]) if span.end > span.begin else 0.0
        total = max(slices.total, 1.0)
        stepping += slices.active / total * seconds
        available += slices.available / total * seconds
    length = span.end - span.begin
    return {"stepping_slice_efficiency": stepping / length if length > 0 else 0.0,
            "available_slice_efficiency": available / length if length > 0 else 0.0}
