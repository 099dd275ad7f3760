# SPDX-License-Identifier: Apache-2.0
"""GoodputMonitor and its elastic subclass, with the module name and the interface of
ml-goodput-measurement (see elastrun.goodput): goodput, step deviations and rolling windows as
metrics, while the job runs.
"""
from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

from elastrun import reporter
from elastrun.goodput_calculator import ElasticGoodputCalculator, GoodputCalculator, Path
from elastrun.goodput_utils import (ACTIVITY_EXCLUSION_LIST, BadputType, GCPOptions,
                                    IntervalMetricType, IntervalWorkloadMetricDetails, MetricType,
                                    MonitoringWindowType, UnproductiveTimeDict,
                                    WorkloadMetricDetails)
from elastrun.metrics import api as metrics

__all__ = ["ACTIVITY_EXCLUSION_LIST", "BadputType", "ElasticGoodputMonitor", "GCPOptions",
           "GoodputCalculator", "GoodputMonitor", "IntervalMetricType",
           "IntervalWorkloadMetricDetails", "MetricType", "MonitoringWindowType",
           "UnproductiveTimeDict", "WorkloadMetricDetails"]

_GROUP = "goodput"
_NOT_YET = ("the log has no start of the job", "no step of at least 1 s")
_log = logging.getLogger("elastrun.goodput")


class EventFile:
    """Scalars for TensorBoard, as SummaryWriter writes them, in a new file in `folder`, which is
    made as well; for all threads. `records` makes them. OSError: it cannot be.
    """

    def __init__(self, folder: str, records: Callable[[list[Any], bool], bytes]) -> None:
        os.makedirs(folder, exist_ok=True)
        name = f"events.out.tfevents.{int(time.time()):010}.{socket.gethostname()}.{os.getpid()}."
        number = 0
        while os.path.exists(os.path.join(folder, name + str(number))):
            number += 1
        self.path = os.path.join(folder, name + str(number))
        self._records = records
        self._writing = threading.Lock()
        self._rows: list[dict[str, Any]] = []
        open(self.path, "xb").close()

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        """It is in the file with the next flush()."""
        with self._writing:
            self._rows.append({"time": time.time(), "tag": tag, "value": value, "step": step})

    def flush(self) -> None:
        with self._writing, open(self.path, "ab", buffering=0) as file:
            size, done = file.tell(), 0
            data = self._records(self._rows, size == 0)
            try:
                while done < len(data):
                    done += file.write(data[done:])
            except OSError:  # a full disk: readers would stop for good at half a record
                file.truncate(size)
                raise
            self._rows = []


def _flat(books: UnproductiveTimeDict, separator: str) -> Iterator[tuple[str, float]]:
    for bucket, value in books.items():
        if isinstance(value, dict):
            yield from ((f"{bucket.name}{separator}{one.upper()}", each)
                        for one, each in value.items())
        else:
            yield bucket.name, value


class _Uploader:
    """A thread that does something once a period, and once more when it is stopped."""

    def __init__(self, name: str, period: float, upload: Callable[[], None]) -> None:
        self._upload = upload
        self._period = period
        self._over = threading.Event()
        self._last = False
        self._warned = ""
        self.thread = threading.Thread(target=self._run, name=f"elastrun-{name}", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        while not self._over.wait(self._period):
            self._once()
        if self._last:
            self._once(True)

    def _once(self, last: bool = False) -> None:
        try:
            self._upload()
        except Exception as error:
            said, level = str(error), logging.WARNING
            # Once. While the job begins, nothing can be told yet; at its end it should.
            if said == self._warned or (not last and said.startswith(_NOT_YET)):
                level = logging.INFO
            else:
                self._warned = said
            _log.log(level, "no goodput is told this time: %s", said)

    def stop(self, last: bool, seconds: float | None) -> None:
        """Waits for so long at most; None: for ever."""
        self._last = last
        self._over.set()
        self.thread.join(seconds)
        if self.thread.is_alive():
            _log.warning("%s has not ended within %s s and is left alone", self.thread.name,
                         seconds)


class GoodputMonitor:
    """Tells what the calculator of a job says as metrics of the group "goodput" (elastrun.metrics):
    under elastrun they reach the agent and its sinks, with the original's names, units and labels:
    badput_time{badput_source="TRAINING_PREP"}, interval_goodput{rolling_window_size="3600",
    goodput_source="TOTAL"}. `prefix` stands before the names: "compute.googleapis.com/workload/" is
    the original's. Elsewhere the handlers that are configured get them, with the labels after dots:
    "badput_time.CUSTOM_BADPUT_EVENTS.EVAL_STEP", "interval_goodput.3600".
    An event file below `tensorboard_dir`, in "goodput" as there, gets scalars with the original's
    tags, or a SummaryWriter, `writer`. `path`: as for GoodputCalculator.

    As there nothing happens without `monitoring_enabled`, meant for all processes but one; values
    come one period after the start for the first time, and once more at the stop, within
    `final_flush_timeout_seconds`. An uploader goes on until it is stopped or the process ends, also
    if the script keeps no monitor. Threads do it, where the original needs processes: each entry is
    read once, and three uploaders share one calculator. Nothing is sent to a cloud: `gcp_options`,
    `gcs_sync_interval_seconds`, `cache_dir` and `max_logs_retention_period` change nothing.
    """

    _calculator_class: type[GoodputCalculator] = GoodputCalculator

    def __init__(self, job_name: str, logger_name: str, tensorboard_dir: str,
                 upload_interval: float, monitoring_enabled: bool = False,
                 pathway_enabled: bool = False, include_badput_breakdown: bool = False,
                 include_step_deviation: bool = False,
                 configured_ideal_step_time: float | None = None,
                 step_deviation_interval_seconds: float = 10,
                 gcp_options: GCPOptions | None = None, skip_final_flush: bool = False,
                 final_flush_timeout_seconds: float | None = 10,
                 gcs_sync_interval_seconds: int = 3600, cache_dir: str = "/tmp",
                 max_logs_retention_period: timedelta | None = None, *,
                 path: Path | Sequence[Path] | None = None, writer: Any = None,
                 prefix: str = "") -> None:
        self._prefix = prefix
        self._enabled = monitoring_enabled
        self._uploaders: dict[str, _Uploader] = {}
        self._period = upload_interval
        self._breakdown = include_badput_breakdown
        self._with_deviation = include_step_deviation
        self._ideal = configured_ideal_step_time
        self._deviation_period = step_deviation_interval_seconds
        self._skip_last = skip_final_flush
        self._patience = final_flush_timeout_seconds
        self._newest_step = -1  # whose deviation the writer has
        self._windows: list[float] = []
        self._writer = writer
        if not monitoring_enabled:
            return
        self._calculator = self._calculator_class(job_name, logger_name, path=path)
        if writer is None and tensorboard_dir:
            try:
                self._writer = EventFile(os.path.join(tensorboard_dir, "goodput"),
                                         self._calculator._tensorboard)
            except OSError as error:
                _log.warning("nothing is written into %s: %s", tensorboard_dir, error)

    def _start(self, name: str, period: float, upload: Callable[[], None]) -> None:
        if name in self._uploaders and self._uploaders[name].thread.is_alive():
            _log.warning("the %s uploader runs already", name)
        elif self._enabled:
            self._uploaders[name] = _Uploader(name, period, upload)

    def _stop(self, name: str, skip_last: bool | None, upload: Callable[[], None]) -> None:
        if not self._enabled:
            return
        last = not (self._skip_last if skip_last is None else skip_last)
        running = self._uploaders.pop(name, None)
        if running is None and last:  # the final values are told although it was never started
            running = _Uploader(name, 3600, upload)
        if running is not None:
            running.stop(last, self._patience if last else 10)

    def start_goodput_uploader(self) -> None:
        self._start("goodput", self._period, self._upload_goodput)

    def stop_goodput_uploader(self, skip_final_flush: bool | None = None) -> None:
        self._stop("goodput", skip_final_flush, self._upload_goodput)

    def start_step_deviation_uploader(self) -> None:
        """Nothing without `include_step_deviation`."""
        if self._with_deviation:
            self._start("step deviation", self._deviation_period, self._upload_deviation)

    def stop_step_deviation_uploader(self, skip_final_flush: bool | None = None) -> None:
        if self._with_deviation:
            self._stop("step deviation", skip_final_flush, self._upload_deviation)

    def start_rolling_window_goodput_uploader(
            self, rolling_windows_seconds: float | Sequence[float]) -> None:
        """Windows until now, of so many seconds each; or one."""
        if self._enabled:
            self._windows = ([rolling_windows_seconds]
                             if isinstance(rolling_windows_seconds, (int, float))
                             else list(rolling_windows_seconds))
            self._start("rolling window", self._period, self._upload_windows)

    def stop_rolling_window_goodput_uploader(self, skip_final_flush: bool | None = None) -> None:
        self._stop("rolling window", skip_final_flush, self._upload_windows)

    def _put(self, name: str, value: float, unit: str, dotted: str = "", **labels: str) -> None:
        """`dotted`: the name for handlers, which know no labels."""
        if (mine := reporter.reporter) is not None and (
                key := mine.key(_GROUP, self._prefix + name, labels, unit, "")) is not None:
            mine.put(key, value)
        if metrics._handled:
            metrics._emit(_GROUP, self._prefix + (dotted or name), value)

    def _upload_goodput(self) -> None:
        percent, percents, step, details = self._calculator._summary(self._breakdown, self._ideal)
        self._put("goodput_time", sum(details["goodput_time"].values()), "s",
                  goodput_source="TOTAL")
        for name, seconds in _flat(details["badput_time"], "."):
            if name not in ACTIVITY_EXCLUSION_LIST:
                self._put("badput_time", seconds, "s", f"badput_time.{name}", badput_source=name)
        self._put("total_elapsed_time", details["total_elapsed_time"], "s",
                  window_type="cumulative")
        self._put("disruptions", details["disruption_count"], "{disruption}",
                  window_type="cumulative")
        self._put("max_productive_steps", details["max_productive_step"], "{step}")
        for name in ("stepping_slice_efficiency", "available_slice_efficiency"):
            if name in details:
                self._put(name, details[name], "1", window_type="CUMULATIVE",
                          rolling_window_size="0")
        if details["ideal_step_time"]:
            self._put("step_time_deviation", details["step_time_deviation"], "s")
            self._put("performance", details["ideal_step_time"], "s")
        if self._writer is not None:
            self._writer.add_scalar("goodput/goodput", percent, step)
            for name, value in _flat(percents, "/"):
                self._writer.add_scalar(f"badput/{name}".lower(), value, step)
            self._writer.flush()

    def _upload_deviation(self) -> None:
        deviations = self._calculator.get_step_deviation(self._ideal)
        if deviations:
            self._put("mean_step_deviation", sum(deviations.values()) / len(deviations), "s")
        if self._writer is not None:
            for step, seconds in deviations.items():
                if step > self._newest_step:  # the original writes all of them again
                    self._writer.add_scalar("step_deviation", seconds, step)
            self._newest_step = max(deviations, default=self._newest_step)
            self._writer.flush()

    def _upload_windows(self) -> None:
        end = datetime.now(timezone.utc)
        for seconds in self._windows:
            size = f"{seconds:g}"
            details = self._calculator.get_interval_metric_details(
                end - timedelta(seconds=seconds), end)
            for percent in details["interval_goodput"].values():
                self._put("interval_goodput", percent, "%", f"interval_goodput.{size}",
                          rolling_window_size=size, goodput_source="TOTAL")
            for name, percent in _flat(details["interval_badput"], "."):
                if name not in ACTIVITY_EXCLUSION_LIST:
                    self._put("interval_badput", percent, "%", f"interval_badput.{size}.{name}",
                              rolling_window_size=size, badput_source=name)


class ElasticGoodputMonitor(GoodputMonitor):
    """With the buckets and efficiencies of ElasticGoodputCalculator."""

    _calculator_class = ElasticGoodputCalculator

    def __init__(self, job_name: str, logger_name: str, tensorboard_dir: str,
                 upload_interval: float, monitoring_enabled: bool = False,
                 include_badput_breakdown: bool = False,
                 include_step_deviation: bool = False, include_slice_efficiency: bool = False,
                 **others: Any) -> None:
        super().__init__(job_name, logger_name, tensorboard_dir, upload_interval,
                         monitoring_enabled, True, include_badput_breakdown,
                         include_step_deviation, **others)
        self._with_slices = include_slice_efficiency

    def _put(self, name: str, value: float, unit: str, dotted: str = "", **labels: str) -> None:
        if self._with_slices or not name.endswith("_slice_efficiency"):
            super()._put(name, value, unit, dotted, **labels)
