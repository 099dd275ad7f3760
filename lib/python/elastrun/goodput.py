# SPDX-License-Identifier: Apache-2.0
"""Recorders, calculators and a monitor of goodput with the interface of ml-goodput-measurement.

    from elastrun.goodput import GoodputRecorder

    recorder = GoodputRecorder("night", "goodput_night", logging_enabled=rank == 0)
    recorder.record_job_start_time()
    ...
    for step in range(first_step, last_step):
        recorder.record_step_start_time(step)
        train(step)
    recorder.record_job_end_time()

or, with its Event, `with recorder.record_event(Event.STEP, step): train(step)`.

Under elastrun the entries reach the agent: its summary, its journal, `elastrunctl goodput report`.
Where no agent keeps a journal (--log-dir), they go into a file of JSON lines, which
`elastrunctl goodput report FILE` and calculators read: `path`, or ELASTRUN_GOODPUT_FILE, or
JOB_NAME.goodput.jsonl in the working directory. A job that starts again goes on with its file; one
process at a time writes it.

A recorder's call costs about a microsecond and never waits. Up to 10,000 entries wait for an agent
or a file that is behind; others are counted, `recorder.lost`, and the count is written and logged.

A call that cannot be recorded (a step that is NaN, an invalid time) is counted as lost; the
original raises.

As with the original a recorder without `logging_enabled` does nothing, meant for all processes but
one, and a naive datetime is local time.

    from elastrun.goodput import GoodputCalculator

    calculator = GoodputCalculator("night", "goodput_night")
    percent, badput, last_step = calculator.get_job_goodput(include_badput_breakdown=True)

The calculator reads what recorders of that job have written, there or in `path=`, and gives the
numbers of ml-goodput-measurement 0.2.3, with what is odd about them; what is true is said by
`elastrunctl goodput report`. GoodputMonitor tells them as metrics while the job runs.
CheckpointBadputCalculator tells how long the saves and restores took that Orbax has logged.
"""
from __future__ import annotations

import contextlib
import datetime
import functools
import importlib
import json
import math
import os
import time
from collections.abc import Callable, Iterator
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeVar

from elastrun import channel
from elastrun.journal import INIT, LOADING, PREPARATION, Entry, Journal, journal, own_file

if TYPE_CHECKING:
    from elastrun.checkpoint_badput_calculator import *  # noqa: F403
    from elastrun.goodput_calculator import *  # noqa: F403
    from elastrun.goodput_utils import *  # noqa: F403
    from elastrun.monitoring import *  # noqa: F403

__all__ = [
    "BadputType", "CheckpointBadputCalculator", "CheckpointLoggerOptions",
    "ElasticGoodputCalculator", "ElasticGoodputMonitor", "ElasticGoodputRecorder", "Event",
    "GCPOptions", "GoodputCalculator", "GoodputInfo", "GoodputMonitor", "GoodputRecorder",
    "GoodputType", "IntervalMetricType", "IntervalWorkloadMetricDetails", "MetricType",
    "MonitoringWindowType", "OPERATION_TYPE_EMERGENCY_RESTORE", "OPERATION_TYPE_LOCAL",
    "OPERATION_TYPE_PERSISTENT", "OPERATION_TYPE_PERSISTENT_AND_LOCAL", "OPERATION_TYPE_RESTORE",
    "OPERATION_TYPE_SAVE", "RestoreCheckpointManagerVerticalStepStats",
    "SaveCheckpointManagerVerticalStepStats", "StepInfo", "UnproductiveTimeDict",
    "WorkloadMetricDetails", "compute_ideal_step_time", "get_extra_time_from_anomalous_steps",
    "get_timestamp_from_log_entry"]
# What a training that only records need not import.
_MODULES = ("goodput_utils", "goodput_calculator", "monitoring", "checkpoint_badput_calculator")

_JOB_START = '{"job_start_time":%r}'
_JOB_END = '{"job_end_time":%r}'
_STEP_START = '{"step_count":%d,"step_start_time":%r}'
_CUSTOM = '{"custom_badput_event_type":%s,"custom_badput_event_%%s_time":%%%%r}'
_SLICES = ('{"active_slices":%d,"total_slices":%d,"available_slices":%d,'
           '"elastic_slice_counts_timestamp":%r}')
_WAIT_START = '{"elastic_wait_event_type":%s,"elastic_wait_start_time":%r}'
_WAIT_END = '{"elastic_wait_event_type":%s,"elastic_wait_end_time":%r}'
_REINIT_START = '{"elastic_reinit_start_time":%r}'
_REINIT_END = '{"elastic_reinit_end_time":%r}'
_LONGEST_NAME = 256  # characters; a longer one is cut
_now = time.time


def __getattr__(name: str) -> Any:
    for module in _MODULES if name in __all__ else ():
        if hasattr(found := importlib.import_module(f"elastrun.{module}"), name):
            return getattr(found, name)
    raise AttributeError(f"module 'elastrun.goodput' has no attribute '{name}'")


def _seconds(when: datetime.datetime | None) -> float:
    if when is None:
        return _now()
    seconds = float(when.timestamp())
    if not math.isfinite(seconds):
        raise ValueError("no time")
    return seconds


def _name(text: object) -> str:
    """As JSON, and as part of a template."""
    return json.dumps(channel.text(text)[:_LONGEST_NAME]).replace("%", r"\u0025")


_Method = TypeVar("_Method", bound=Callable[..., None])


def _never_raises(method: _Method) -> _Method:
    """What cannot be recorded (a step that is NaN, an invalid time) is counted as lost."""

    @functools.wraps(method)
    def recorded(self: GoodputRecorder, *args: Any, **kwargs: Any) -> None:
        if self._put is not None:
            try:
                method(self, *args, **kwargs)
            except Exception:
                self._refuse()

    return recorded  # type: ignore[return-value]


class Event(Enum):
    """What a recorder can record; the value is that of its methods record_VALUE_start_time."""

    JOB = "job"
    ACCELERATOR_INIT = "tpu_init"
    TRAINING_PREP = "training_preparation"
    DATA_LOADING = "data_loading"
    STEP = "step"
    CUSTOM = "custom_badput_event"


class GoodputRecorder:
    """`cloud_logger`: an object whose write_cloud_logging_entry(entry) gets each entry instead, as
    it is called. `background_grace_period_s` is how long flush() waits at most; the other two
    settings of the original's transport change nothing here. `path`: see the module.
    """

    def __init__(self, job_name: str, logger_name: str, logging_enabled: bool = False,
                 cloud_logger: Any = None, *, background_grace_period_s: float = 5.0,
                 background_batch_size: int = 100, background_max_latency_s: float = 2.0,
                 path: str | os.PathLike[str] | None = None) -> None:
        self.job_name = job_name
        self.logger_name = logger_name
        self._grace = background_grace_period_s
        self._cloud_logger: Any = cloud_logger if logging_enabled else None
        self._journal: Journal | None = None
        self._phases: set[str] = set()  # that are open
        self._told: set[str] = set()  # open or ended
        self._refused = 0
        self._put: Any = None  # takes an Entry; None: disabled
        if not logging_enabled:
            return
        if cloud_logger is not None:
            self._put = self._hand_over
            return
        if path is None and channel.is_configured():
            self._journal = journal(channel.text(job_name))
        else:
            file = own_file(job_name) if path is None else os.fspath(path)
            self._journal = journal(channel.text(job_name), os.path.abspath(file))
        self._put, self._phases = self._journal.put, self._journal.phases
        self._told = self._journal.told

    def _begin(self, phase: str, when: datetime.datetime | None) -> None:
        seconds = _seconds(when)
        self._phases.add(phase)
        self._told.add(phase)
        self._put((phase % "start", (seconds,)))

    def _end(self, phase: str, when: datetime.datetime | None) -> None:
        seconds = _seconds(when)
        self._phases.discard(phase)
        self._put((phase % "end", (seconds,)))

    def _hand_over(self, entry: Entry) -> None:
        template, values = entry
        self._cloud_logger.write_cloud_logging_entry(
            {"job_name": self.job_name, **json.loads(template % values)})

    def _refuse(self) -> None:
        if self._journal is not None:
            self._journal.lost += 1
        else:
            self._refused += 1

    @property
    def lost(self) -> int:
        """How many entries could not be kept."""
        return self._refused if self._journal is None else self._journal.lost

    @_never_raises
    def record_job_start_time(self, start_time: datetime.datetime | None = None) -> None:
        self._put((_JOB_START, (_seconds(start_time),)))

    @_never_raises
    def record_job_end_time(self, end_time: datetime.datetime | None = None) -> None:
        self._put((_JOB_END, (_seconds(end_time),)))

    @_never_raises
    def record_step_start_time(self, step: int,
                               start_time: datetime.datetime | None = None) -> None:
        """The step lasts until the next one, or the end of the job."""
        entry = (_STEP_START, (
            channel.whole(step), _now() if start_time is None else _seconds(start_time)))
        if self._journal is not None:
            self._journal.step = entry[1][0]
        self._phases.clear()
        self._put(entry)

    @_never_raises
    def record_tpu_init_start_time(self, start_time: datetime.datetime | None = None) -> None:
        """Of accelerators of any kind."""
        self._begin(INIT, start_time)

    @_never_raises
    def record_tpu_init_end_time(self, end_time: datetime.datetime | None = None) -> None:
        self._end(INIT, end_time)

    @_never_raises
    def record_training_preparation_start_time(
            self, start_time: datetime.datetime | None = None) -> None:
        self._begin(PREPARATION, start_time)

    @_never_raises
    def record_training_preparation_end_time(
            self, end_time: datetime.datetime | None = None) -> None:
        self._end(PREPARATION, end_time)

    @_never_raises
    def record_data_loading_start_time(
            self, start_time: datetime.datetime | None = None) -> None:
        self._begin(LOADING, start_time)

    @_never_raises
    def record_data_loading_end_time(self, end_time: datetime.datetime | None = None) -> None:
        self._end(LOADING, end_time)

    @_never_raises
    def record_custom_badput_event_start_time(
            self, start_time: datetime.datetime | None = None,
            custom_badput_event_type: str = "unknown") -> None:
        self._begin(_CUSTOM % _name(custom_badput_event_type), start_time)

    @_never_raises
    def record_custom_badput_event_end_time(
            self, end_time: datetime.datetime | None = None,
            custom_badput_event_type: str = "unknown") -> None:
        self._end(_CUSTOM % _name(custom_badput_event_type), end_time)

    @contextlib.contextmanager
    def record_event(self, event: Event, detail: int | str | None = None) -> Iterator[None]:
        """The block is an `event`: its start is recorded, and its end, also that by an exception.
        `detail`: the number of a STEP, which lasts until the next one, and the name of a CUSTOM.

            with recorder.record_event(Event.STEP, step):
                train(step)
        """
        kind = str(getattr(event, "value", event))
        start: Any = getattr(self, f"record_{kind}_start_time", None)
        end: Any = getattr(self, f"record_{kind}_end_time", None)
        named: dict[str, Any] = {}
        if kind == "custom_badput_event":
            named["custom_badput_event_type"] = detail or "unknown"
        if start is None:
            self._refuse()
        else:
            start(*([detail] if kind == "step" else ()), **named)
        try:
            yield
        finally:
            if end is not None:
                end(**named)

    def record_checkpoint_progress(self, step: int, checkpoint_start_time: Any) -> None:
        """Records nothing, as the original: elastrun.checkpoint_done(step) says that steps are
        safe.
        """

    def flush(self) -> None:
        """Waits until what was recorded is with the agent or in the file, for the grace period at
        most.
        """
        if self._journal is not None:
            self._journal.flush(self._grace)
        elif hasattr(self._cloud_logger, "flush"):
            self._cloud_logger.flush()


class ElasticGoodputRecorder(GoodputRecorder):
    """For jobs that go on with fewer slices, wait for others, and start over within the process."""

    @_never_raises
    def record_elastic_slice_counts(self, active_slices: int, total_slices: int,
                                    available_slices: int,
                                    timestamp: datetime.datetime | None = None) -> None:
        self._put((_SLICES, (channel.whole(active_slices), channel.whole(total_slices),
                             channel.whole(available_slices),
                                  _seconds(timestamp))))

    @_never_raises
    def record_elastic_wait_start_time(self, event_type: str,
                                       start_time: datetime.datetime | None = None) -> None:
        self._put((_WAIT_START, (_name(event_type), _seconds(start_time))))

    @_never_raises
    def record_elastic_wait_end_time(self, event_type: str,
                                     end_time: datetime.datetime | None = None) -> None:
        self._put((_WAIT_END, (_name(event_type), _seconds(end_time))))

    @_never_raises
    def record_elastic_reinit_start_time(
            self, start_time: datetime.datetime | None = None) -> None:
        self._put((_REINIT_START, (_seconds(start_time),)))

    @_never_raises
    def record_elastic_reinit_end_time(self, end_time: datetime.datetime | None = None) -> None:
        self._put((_REINIT_END, (_seconds(end_time),)))
