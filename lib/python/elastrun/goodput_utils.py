# SPDX-License-Identifier: Apache-2.0
"""Types and statistics of ml-goodput-measurement 0.2.3, as it defines them; times in seconds."""
from __future__ import annotations

import logging
import os
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from enum import Enum
from typing import Any, TypedDict, Union

ACTIVITY_EXCLUSION_LIST = ["DATA_LOADING_ASYNC"]  # not badput: nothing waits for it

_SHORTEST = 1.0  # shorter steps have no statistics
_SPREAD = 3.0  # in median absolute deviations, not scaled
_RECENT, _BASELINE = 100, 1000  # steps
_SPIKE = 90  # percentile
_log = logging.getLogger("elastrun.goodput")


@dataclass
class GCPOptions:
    """Taken as the original takes it, and not used: nothing is sent to a cloud."""

    project_id: str | None = None
    location: str | None = None
    replica_id: str = "0"
    acc_type: str | None = None
    cluster_name: str | None = None
    enable_gcp_goodput_metrics: bool = True
    enable_gcp_step_deviation_metrics: bool = True


# By the first of these that a machine type has in its name.
MACHINE_TYPE_TO_ACCELERATOR_TYPE_MAPPING = {
    "tpu7x": "TPU-7x", "ct6e": "TPU-v6e", "ct5p": "TPU-v5p", "ct5lp": "TPU-v5e", "ct5l": "TPU-v5e",
    "ct4p": "TPU-v4p", "ct3p": "TPU-v3", "ct3": "TPU-v3", "tpu-v2": "TPU-v2", "tpu": "TPU",
    "a3-edgegpu": "NVIDIA-H100", "a3-highgpu": "NVIDIA-H100", "a3-megagpu": "NVIDIA-H100",
    "a3-ultragpu": "NVIDIA-H200", "a2": "NVIDIA-A100", "gpu": "GPU"}


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


class MonitoringWindowType(Enum):
    CUMULATIVE = "cumulative"
    INTERVAL = "interval"


UnproductiveTimeDict = dict[BadputType, Union[float, dict[str, float]]]


@dataclass
class GoodputInfo:
    """Seconds of a job until now."""

    total_productive_time: float = 0.0
    total_elapsed_time: float = 0.0
    total_unproductive_time: UnproductiveTimeDict | None = None
    max_productive_step: int = 0
    last_recorded_step: int = 0
    last_updated_timestamp: datetime = field(default_factory=lambda: datetime.now(timezone.utc))
    number_of_disruptions: int = 0
    total_excluded_time: float = 0.0

    def __post_init__(self) -> None:
        self.total_unproductive_time = self.total_unproductive_time or {}


@dataclass
class StepInfo:
    """What get_step_deviation() gives, and from which step time."""

    ideal_step_time: float
    step_deviations: dict[int, float]


class WorkloadMetricDetails(TypedDict):
    goodput_time: dict[GoodputType, float]
    badput_time: UnproductiveTimeDict
    max_productive_step: int
    total_elapsed_time: float
    disruption_count: int
    step_time_deviation: dict[int, float]
    ideal_step_time: float
    total_excluded_time: float


class IntervalWorkloadMetricDetails(TypedDict):
    interval_goodput: dict[GoodputType, float]
    interval_badput: UnproductiveTimeDict
    interval_size: int


class ElasticWorkloadMetricDetails(WorkloadMetricDetails, total=False):
    stepping_slice_efficiency: float
    available_slice_efficiency: float


class ElasticIntervalWorkloadMetricDetails(IntervalWorkloadMetricDetails, total=False):
    stepping_slice_efficiency: float
    available_slice_efficiency: float


def compute_percentile(values: Sequence[float], percentile: float) -> float:
    """Linear between order statistics, at (n - 1) * percentile / 100; 0 of no values."""
    if not values:
        return 0.0
    ordered = sorted(values)
    place = (len(ordered) - 1) * percentile / 100
    low = int(place)
    above = ordered[min(low + 1, len(ordered) - 1)]
    return ordered[low] + (above - ordered[low]) * (place - low)


def _normal_limit(step_times: Sequence[float]) -> float:
    """Beyond it a step is anomalous."""
    middle = compute_percentile(step_times, 50)
    return middle + _SPREAD * compute_percentile([abs(one - middle) for one in step_times], 50)


def compute_ideal_step_time(step_times: Sequence[float]) -> float | None:
    """The mean of those at most median + 3 * MAD; those below 1 s are left out. None: none left."""
    times = [one for one in step_times if one >= _SHORTEST]
    if not times:
        return None
    limit = _normal_limit(times)
    normal = [one for one in times if one <= limit]
    return sum(normal) / len(normal) if normal else None


def get_anomalous_and_normal_step_times(
        step_times: Sequence[float]) -> tuple[list[float], list[float]]:
    limit = _normal_limit(step_times)
    return [one for one in step_times if one > limit], [one for one in step_times if one <= limit]


def get_extra_time_from_anomalous_steps(step_times: Sequence[float]) -> float:
    """How much longer the anomalous steps took than as many normal ones."""
    anomalous, normal = get_anomalous_and_normal_step_times(step_times)
    return sum(anomalous) - len(anomalous) * sum(normal) / (len(normal) or 1)


def compute_step_deviation_from_baseline(
        step_time_deviation: Mapping[int, float],
        mode: MonitoringWindowType = MonitoringWindowType.CUMULATIVE,
        recent_window_size: int = _RECENT, baseline_window_size: int = _BASELINE,
        spike_percentile: int = _SPIKE) -> float:
    """One number for a dashboard, from the deviations of all steps in order: the mean of fewer than
    100; a percentile of the recent ones; of a job with enough of them less the median of those
    before.
    """
    values = [abs(one) for one in step_time_deviation.values()]
    if len(values) < _RECENT:
        return sum(values) / (len(values) or 1)
    recent = compute_percentile(values[-recent_window_size:], spike_percentile)
    both = recent_window_size + baseline_window_size
    if mode is MonitoringWindowType.INTERVAL or len(values) < both:
        return recent
    return recent - compute_percentile(values[-both:-recent_window_size], 50)


def get_timestamp_from_log_entry(entry: Mapping[str, Any]) -> datetime | None:
    """Of its first member whose name has a "time" in it."""
    for name, value in entry.items():
        if "time" in name:
            return datetime.fromtimestamp(value, timezone.utc)
    return None


def normalize_intervals(intervals: Sequence[tuple[datetime, datetime]],
                        ) -> list[tuple[float, float]]:
    """In order, those that overlap as one, in seconds since the epoch. Those without a time zone,
    and those that end before they begin, are left out with a warning.
    """
    spans: list[tuple[float, float]] = []
    valid = []
    for start, end in intervals:
        if start.tzinfo is not None and end.tzinfo is not None and start < end:
            valid.append((start, end))
        else:
            _log.warning("the span from %s to %s is not excluded: it has no time zone, or ends "
                         "before it begins", start, end)
    for start, end in sorted(valid):
        begin, until = start.timestamp(), end.timestamp()
        if spans and begin <= spans[-1][1]:
            begin, until = spans[-1][0], max(spans.pop()[1], until)
        spans.append((begin, until))
    return spans


def get_exclusion_overlap(start: float, end: float,
                          exclusions: Iterable[tuple[float, float]]) -> float:
    """How many seconds from `start` to `end` are excluded."""
    return sum(max(0.0, min(end, until) - max(start, begin)) for begin, until in exclusions)


def get_gcp_metadata(category: str, attribute: str, timeout: float = 5,
                     retries: int = 3) -> str | None:
    """What the metadata server of a Google Cloud machine says (at GCE_METADATA_HOST); None, with a
    warning: it does not, or this is another machine.
    """
    host = os.environ.get("GCE_METADATA_HOST") or "metadata.google.internal"
    request = urllib.request.Request(f"http://{host}/computeMetadata/v1/{category}/{attribute}",
                                     headers={"Metadata-Flavor": "Google"})
    for left in range(retries, -1, -1):
        try:
            with urllib.request.urlopen(request, timeout=timeout) as answer:
                return str(answer.read().decode())
        except OSError as error:
            passes = not isinstance(error, urllib.error.HTTPError) or error.code in (
                429, 500, 502, 503, 504)
            if not (left and passes):
                _log.warning("no metadata of %s/%s: %s", category, attribute, error)
                return None
            time.sleep(0.5 * 2 ** (retries - left))
    return None


def get_gcp_project_id() -> str | None:
    return get_gcp_metadata("project", "project-id")


def get_node_zone() -> str | None:
    """Of "projects/1/zones/us-central1-a" the last part."""
    zone = get_gcp_metadata("instance", "zone")
    return zone.rpartition("/")[2] if zone else None


def get_accelerator_type() -> str:
    """"UNKNOWN" where the machine type names none."""
    machine = (get_gcp_metadata("instance", "machine-type") or "").rpartition("/")[2].lower()
    return next((kind for name, kind in MACHINE_TYPE_TO_ACCELERATOR_TYPE_MAPPING.items()
                 if name in machine), "UNKNOWN")


def get_cluster_name() -> str | None:
    return get_gcp_metadata("instance", "attributes/cluster-name")
