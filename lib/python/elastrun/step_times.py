# SPDX-License-Identifier: Apache-2.0
"""Statistics of step times as ml-goodput-measurement 0.2.3 defines them. All times in seconds."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum

_SHORTEST = 1.0  # shorter steps have no statistics
_SPREAD = 3.0  # in median absolute deviations, not scaled
_RECENT = 100  # steps
_BASELINE = 1000


class MonitoringWindowType(Enum):
    CUMULATIVE = "cumulative"
    INTERVAL = "interval"


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


def get_extra_time_from_anomalous_steps(step_times: Sequence[float]) -> float:
    """How much longer the anomalous steps took than as many normal ones."""
    times = [one for one in step_times if one >= _SHORTEST]
    if not times:
        return 0.0
    limit = _normal_limit(times)
    anomalous = [one for one in step_times if one > limit]
    normal = [one for one in step_times if one <= limit]  # short ones, too: as in the original
    mean = sum(normal) / len(normal) if normal else 0.0
    return sum(anomalous) - len(anomalous) * mean


def compute_step_deviation_from_baseline(
        step_time_deviation: Mapping[int, float],
        mode: MonitoringWindowType = MonitoringWindowType.CUMULATIVE) -> float:
    """One number for a dashboard, from the deviations of all steps in order: the mean of fewer than
    100; the 90th percentile of the last 100; of a job of at least 1,100 less the median of the
    1,000 before.
    """
    values = [abs(one) for one in step_time_deviation.values()]
    if not values:
        return 0.0
    if len(values) < _RECENT:
        return sum(values) / len(values)
    recent = compute_percentile(values[-_RECENT:], 90)
    if mode is MonitoringWindowType.INTERVAL or len(values) < _RECENT + _BASELINE:
        return recent
    return recent - compute_percentile(values[-_RECENT - _BASELINE:-_RECENT], 50)
