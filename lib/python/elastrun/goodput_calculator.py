# SPDX-License-Identifier: Apache-2.0
"""GoodputCalculator and its elastic subclass, with the interface and the numbers of
ml-goodput-measurement 0.2.3 (see elastrun.goodput). They are a part of the program elastrunctl,
which comes with this package: one process of it answers all questions of one calculator,
`elastrunctl goodput calculate`.
"""
from __future__ import annotations

import base64
import contextlib
import json
import logging
import os
import socket
import subprocess
import threading
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice
from typing import Any, Union

from elastrun.goodput_utils import (BadputType, GoodputType, IntervalMetricType, MetricType,
                                    UnproductiveTimeDict, normalize_intervals)
from elastrun.journal import flush_all, of_agent, own_file
from elastrun.program import find_program

__all__ = ["ElasticGoodputCalculator", "GoodputCalculator"]

Path = Union[str, "os.PathLike[str]"]

LIMIT = 120.0  # seconds for an answer: it reads what is new in the log
_END_LIMIT = 5.0
_AT_ONCE = 10_000  # entries
_now = time.time  # the tests' clock stands here
_log = logging.getLogger("elastrun.goodput")


def _end(process: subprocess.Popen[bytes], files: Sequence[Any], owner: int) -> None:
    if os.getpid() != owner:
        return  # a fork, which must not wait for a child of another
    # It holds nothing of value, and the end of its input does not come while a fork has the socket.
    process.kill()
    files[1].shutdown(socket.SHUT_RDWR)  # a thread that waits for an answer keeps the other one
    for one in files:
        one.close()
    with contextlib.suppress(subprocess.TimeoutExpired):  # one that reads a disk that hangs
        process.wait(_END_LIMIT)


class CalculatorProgram:
    """Starts with the first question, and again where it has ended or this process is a fork. Ends
    with this object, and with this process, whatever ends that. One thread at a time.
    """

    def __init__(self, job_name: str, path: Path | Sequence[Path] | None,
                 elastic: bool = False) -> None:
        if path is None:  # where recorders of the job write: the agent's journal, if it keeps one
            path = of_agent() or own_file(job_name)
        self.paths = [os.fspath(one) for one in (
            [path] if isinstance(path, (str, os.PathLike)) else path)]
        self._words = ["goodput", "calculate", f"--job={job_name}",
                       *(["--elastic"] if elastic else []), "--", *self.paths]
        self.process: subprocess.Popen[bytes] | None = None
        self._owner = 0
        self._ended: Any = None

    def started(self) -> bool:
        """Whether it had to be: it knows no entries yet that do not come from files."""
        if self.process is not None and self._owner == os.getpid():
            if self.process.poll() is None:
                return False
            self._close()
        program = find_program("elastrunctl")
        if program is None:
            raise FileNotFoundError("the calculator of goodput is part of the program elastrunctl, "
                                    "which is neither beside this package nor in PATH")
        self._socket, theirs = socket.socketpair()
        self._socket.settimeout(LIMIT)
        self._lines = self._socket.makefile("rb")
        with theirs:
            self.process = subprocess.Popen([program, *self._words], stdin=theirs.fileno(),
                                             stdout=theirs.fileno())
        self._owner = os.getpid()
        self._ended = weakref.finalize(self, _end, self.process, (self._lines, self._socket),
                                       self._owner)
        return True

    def _close(self) -> None:
        self._ended()
        self.process = None

    def ask(self, question: dict[str, Any], entries: Iterator[str] = iter(())) -> dict[str, Any]:
        """`entries` come first, a line each, and what this process has recorded. ValueError: why
        it has no answer. OSError: the log cannot be read, or the program gives none.
        """
        if self.paths:
            flush_all(self.paths)
        self.started()
        try:
            while lines := list(islice(entries, _AT_ONCE)):
                self._exchange(lines)
            answer: dict[str, Any] = json.loads(self._exchange([json.dumps(question)], True))
        except OSError:  # also of the entries
            self._close()
            raise
        if "errno" in answer:
            raise OSError(answer["errno"], answer["error"])
        return answer

    def _exchange(self, lines: list[str], answered: bool = False) -> bytes:
        try:
            self._socket.sendall("\n".join([*lines, ""]).encode())
            line = self._lines.readline() if answered else b"\n"
        except socket.timeout:
            raise TimeoutError(f"elastrunctl has not answered within {LIMIT:g} s") from None
        except ConnectionError:  # a reset: it had not read all
            line = b""
        if not line.endswith(b"\n"):
            raise BrokenPipeError("elastrunctl has ended without an answer")
        return line


class GoodputCalculator:
    """Of one job, over a log that may grow between calls; for all threads. A process of the program
    elastrunctl reads and calculates; it starts with the first call and ends with this object.

    `path`: a file, or several, as recorders and the agent's journal are; by default where a
    recorder of that job writes. Each entry is read once. A call knows nothing of entries that are
    dated later. `cloud_logger`: an object whose read_cloud_logging_entries() is asked instead. The
    other arguments change nothing here, without a cloud to look back into or a copy to cache.

    Without an answer it raises ValueError, as the original; a file that cannot be read, or a
    program that is missing or does not answer, is an OSError, a window without time zone a
    TypeError. Lines that are not entries are skipped (`skipped`).
    """

    _elastic = False
    _last_bucket = BadputType.OTHER

    def __init__(self, job_name: str, logger_name: str, cloud_logger: Any = None,
                 using_pathways: bool = False, max_logs_retention_period: Any = None,
                 gcs_path: str | None = None, cache_dir: str = "/tmp", *,
                 path: Path | Sequence[Path] | None = None) -> None:
        self.job_name = job_name
        self.using_pathways = using_pathways
        self._logger = cloud_logger
        self._last: Any = None  # time and id of its newest entry
        self._skipped = 0  # of its entries
        self._program = CalculatorProgram(job_name, path if cloud_logger is None else [],
                                          self._elastic)
        self._place = (", ".join(self._program.paths) if cloud_logger is None
                       else f"the logger of job {job_name}")
        self._lock = threading.RLock()
        self._counts: dict[str, int] = {}
        self._known: dict[str, Any] = {}  # the last answer of the job

    def _ask(self, what: str, **details: Any) -> dict[str, Any]:
        if self._program.started():
            self._last, self._skipped = None, 0
        answer = self._program.ask({"ask": what, "now": _now(), **details},
                                   iter(()) if self._logger is None else self._logged())
        self._counts = answer
        if answer.get("began_again"):
            self._known = {}
        if "error" in answer:
            raise ValueError(f"{answer['error']}: job '{self.job_name}' in {self._place}")
        return answer

    def _tensorboard(self, rows: list[Any], begins: bool) -> bytes:
        """Records for an event file; `begins`: it is empty."""
        with self._lock:
            return base64.b64decode(self._ask("tensorboard", rows=rows, begins=begins)["records"])

    def _logged(self) -> Iterator[str]:
        """New entries of a logger that the program keeps itself, with the original's methods."""
        if self._last is None:
            entries, last = self._logger.read_cloud_logging_entries()
        else:
            entries, last = self._logger.read_cloud_logging_entries(
                self._last[0], datetime.now(self._last[0].tzinfo), self._last)
        if last is not None and last[0] is not None:
            self._last = last
        for entry in entries:
            if isinstance(entry, Mapping):
                yield json.dumps({"payload": {**entry, "job_name": self.job_name}}, default=str)
            else:
                self._skipped += 1

    @property
    def skipped(self) -> int:
        """Lines that were no entry."""
        return int(self._counts.get("skipped", 0)) + self._skipped

    @property
    def lost(self) -> int:
        """Entries that recorders say they could not write."""
        return int(self._counts.get("lost", 0))

    def sync_to_gcs(self) -> None:
        """Nothing: the log itself is the only copy."""

    def _books(self, named: Mapping[str, Any]) -> UnproductiveTimeDict:
        return {bucket: named[bucket.name] for bucket in BadputType
                if bucket.value <= self._last_bucket.value}

    def get_job_goodput(self, include_badput_breakdown: bool = False,
                        configured_ideal_step_time: float | None = None,
                        ) -> tuple[float, UnproductiveTimeDict, int]:
        """Goodput until now in percent, buckets in percent (empty unless asked for), and the last
        productive step.
        """
        with self._lock:
            return self._summary(include_badput_breakdown, configured_ideal_step_time)[:3]

    def _summary(self, with_breakdown: bool, ideal: float | None,
                 ) -> tuple[float, UnproductiveTimeDict, int, dict[str, Any]]:
        """And the details, with one number for the deviations of all steps."""
        with self._lock:
            answer = self._ask("job", ideal=ideal)
            self._known = answer
            details = self._details({})
            details[MetricType.STEP_TIME_DEVIATION.value] = answer["deviation_s"]
            details[MetricType.IDEAL_STEP_TIME.value] = answer["ideal_s"]
            return (answer["percent"], self._books(answer["percents"]) if with_breakdown else {},
                    answer["max_step"], details)

    def get_job_goodput_interval(self, interval_start: datetime, interval_end: datetime,
                                 ) -> tuple[float, UnproductiveTimeDict, int, float, int]:
        """Of the entries in a window: goodput, buckets, last productive step, the seconds from the
        first to the last of them, and how many disruptions.
        """
        return self._window(interval_start, interval_end)[0]

    def _window(self, start: datetime, end: datetime,
                ) -> tuple[tuple[float, UnproductiveTimeDict, int, float, int], dict[str, float]]:
        """And how the slices were used."""
        if start is None or end is None:
            raise ValueError("a window has a start and an end")
        if start.tzinfo is None or end.tzinfo is None:
            raise TypeError("the start and the end of a window are datetimes with a time zone")
        with self._lock:
            answer = self._ask("window", begin=start.timestamp(), end=end.timestamp())
        return ((answer["percent"], self._books(answer["percents"]), answer["max_step"],
                 answer["total_s"], answer["disruptions"]), answer.get("slices", {}))

    def get_job_goodput_with_exclusions(
            self, exclusion_intervals: Sequence[tuple[datetime, datetime]],
            include_badput_breakdown: bool = False,
            configured_ideal_step_time: float | None = None,
            ) -> tuple[float, UnproductiveTimeDict, int, float]:
        """As get_job_goodput, with spans of time left out, and how many seconds these were."""
        spans = normalize_intervals(exclusion_intervals)
        with self._lock:
            answer = self._ask("without", spans=spans, ideal=configured_ideal_step_time or None)
            known = answer["total_s"] > 0
            if known:
                self._known = answer
            return (answer["percent"],
                    self._books(answer["percents"]) if include_badput_breakdown and known else {},
                    answer["max_step"], answer["excluded_s"])

    def get_step_deviation(self, configured_ideal_step_time: float | None = None,
                           ) -> dict[int, float]:
        """By step, how many seconds it was away from the ideal step time, which is computed unless
        it is given; what is given is honoured where steps are new since the last call, as there.
        """
        with self._lock:
            answer = self._ask("deviations", ideal=configured_ideal_step_time)
        if not answer["steps"]:
            raise ValueError("no step of at least 1 s, from which an ideal step time could be "
                             "computed")
        return dict(zip(answer["steps"], answer["seconds"]))

    def get_job_goodput_details(self) -> dict[str, Any]:
        """Seconds of the last calculation of the job, by the values of MetricType."""
        with self._lock:
            if self._known:
                return self._details(self._ask("known_deviations"))
            _log.warning("no goodput of job '%s' has been computed yet", self.job_name)
            return self._details({})

    def _details(self, deviations: Mapping[str, Any]) -> dict[str, Any]:
        known = self._known
        return {
            MetricType.GOODPUT_TIME.value:
                {GoodputType.TOTAL: known["productive_s"]} if known else {},
            MetricType.BADPUT_TIME.value: self._books(known["badput_s"]) if known else {},
            MetricType.MAX_PRODUCTIVE_STEP.value: known.get("max_step", 0),
            MetricType.TOTAL_ELAPSED_TIME.value: known.get("total_s", 0.0),
            MetricType.DISRUPTION_COUNT.value: known.get("disruptions", 0),
            MetricType.STEP_TIME_DEVIATION.value:
                dict(zip(deviations.get("steps", ()), deviations.get("seconds", ()))),
            MetricType.IDEAL_STEP_TIME.value: deviations.get("ideal_s", 0.0),
            MetricType.TOTAL_EXCLUDED_TIME.value: 0.0,  # as there, always
            **known.get("slices", {})}

    def get_interval_metric_details(self, interval_start: datetime, interval_end: datetime,
                                    ) -> dict[str, Any]:
        """By the values of IntervalMetricType; empty dicts without an answer."""
        goodput: dict[GoodputType, float] = {}
        badput: UnproductiveTimeDict = {}
        slices: dict[str, float] = {}
        try:
            (percent, badput, *_), slices = self._window(interval_start, interval_end)
            goodput = {GoodputType.TOTAL: percent}
        except ValueError as error:
            _log.warning("no goodput of job '%s': %s", self.job_name, error)
        size = 0
        if interval_start is not None and interval_end is not None:
            size = int((interval_end - interval_start).total_seconds())
        return {IntervalMetricType.INTERVAL_GOODPUT.value: goodput,
                IntervalMetricType.INTERVAL_BADPUT.value: badput,
                IntervalMetricType.INTERVAL_SIZE.value: size, **slices}


class ElasticGoodputCalculator(GoodputCalculator):
    """For jobs with slices: three buckets more, and both details have `stepping_slice_efficiency`
    and `available_slice_efficiency`, active or available over total slices, where these are known.
    """

    _elastic = True
    _last_bucket = BadputType.ELASTIC_REINITIALIZATION
