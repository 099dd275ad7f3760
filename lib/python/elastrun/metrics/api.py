# SPDX-License-Identifier: Apache-2.0
"""Metrics with the interface of torch.distributed.elastic.metrics.

    metrics = elastrun.metrics
    metrics.put_metric("loss", loss.item(), "model")
    metrics.count_metric("tokens", batch.numel(), "model")    # a total: adds up
    metrics.observe_metric("step", seconds, "model", unit="s")    # a histogram

    @metrics.prof                          # MODULE.train.success, .failure, .duration.ms
    def train(): ...

Under elastrun each metric reaches the agent once a second, summed up for each series and, where a
sink shows single samples (console, jsonl), one by one with its own time; its last value can be read
when this process hangs or has been killed. A handler, if one is configured, gets each metric at
once. Elsewhere, and without a handler, nothing happens.

Other than with torch, a handler that raises loses only that metric (`failures()`),
and `@prof` measures by the monotonic clock.
"""
from __future__ import annotations

import functools
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar, overload

from elastrun import reporter

__all__ = ["ConsoleMetricHandler", "ConsoleMetricsHandler", "MetricData", "MetricHandler",
           "MetricStream", "MetricsConfig", "NullMetricHandler", "NullMetricsHandler", "configure",
           "count_metric", "failures", "getStream", "get_elapsed_time_ms", "initialize_metrics",
           "observe_metric", "prof", "profile", "publish_metric", "put_metric"]

_Function = TypeVar("_Function", bound=Callable[..., Any])


class MetricData(NamedTuple):
    """A metric for a handler. `timestamp`: seconds since the epoch."""

    timestamp: float
    group_name: str
    name: str
    value: float


class MetricsConfig:
    __slots__ = ["params"]

    def __init__(self, params: dict[str, str] | None = None) -> None:
        self.params = {} if params is None else params


class MetricHandler(ABC):
    @abstractmethod
    def emit(self, metric_data: MetricData) -> None: ...


class ConsoleMetricHandler(MetricHandler):
    """Prints [TIMESTAMP][GROUP]: NAME=VALUE on stdout."""

    def emit(self, metric_data: MetricData) -> None:
        print(f"[{metric_data.timestamp}][{metric_data.group_name}]: "
              f"{metric_data.name}={metric_data.value}")


class NullMetricHandler(MetricHandler):
    def emit(self, metric_data: MetricData) -> None:
        pass


# The names that torchelastic's documentation uses.
ConsoleMetricsHandler = ConsoleMetricHandler
NullMetricsHandler = NullMetricHandler

_default: MetricHandler = NullMetricHandler()
_of_group: dict[str, MetricHandler] = {}
_handled = False  # whether a metric would reach a handler that is not the null one
_failures = 0


def configure(handler: MetricHandler, group: str | None = None) -> None:
    """`handler` gets the metrics of `group`; without a group those of all groups that have no
    handler of their own. Looked up when a metric is put.
    """
    global _default, _handled
    if group is None:
        _default = handler
    else:
        _of_group[group] = handler
    handlers = (_default, *_of_group.values())
    _handled = any(not isinstance(one, NullMetricHandler) for one in handlers)


def hand_on(data: MetricData, handler: MetricHandler | None = None) -> None:
    """A metric, also of the agent that this process has started, for `handler` or its group's."""
    global _failures
    try:
        (_of_group.get(data.group_name, _default) if handler is None else handler).emit(data)
    except Exception:
        _failures += 1


def failures() -> int:
    """The number of metrics that handlers have refused by raising."""
    return _failures


def put_metric(metric_name: str, metric_value: float, metric_group: str = "torchelastic", *,
               step: int | None = None, labels: Mapping[str, object] | None = None,
               unit: str = "", help: str = "") -> None:
    """One sample of a number: int, float, or a numpy or torch scalar. Beyond torch's arguments:

    step        the training step it is of; None: the last one that elastrun.step() was told
    labels      what tells series of one name apart, at most 16: {"layer": 3}. All of one name have
                the same keys; 2,000 sets of values count for the workers of a node, others are one
    unit        UCUM: "s", "By", "1", "{token}"
    help        one sentence. The first unit and the first help of a name count
    """
    if (mine := reporter.reporter) is not None:
        if step is None and labels is None and not unit and not help:
            mine.put((metric_group, metric_name), metric_value)
        elif (key := mine.key(metric_group, metric_name, labels, unit, help)) is not None:
            if step is None:
                mine.put(key, metric_value)
            else:
                mine.put_at(key, metric_value, step)
    if _handled:
        _emit(metric_group, metric_name, metric_value)


def count_metric(metric_name: str, amount: float = 1, metric_group: str = "torchelastic", *,
                 labels: Mapping[str, object] | None = None, unit: str = "",
                 help: str = "") -> None:
    """Something countable has grown by `amount`, which is not below 0: tokens, samples, retries.

    What torch does not have: the agent adds it up, over restarts, and Prometheus and others see a
    counter (NAME_total). A handler gets the amount. `labels`, `unit`, `help`: as for put_metric.
    """
    if (mine := reporter.reporter) is not None and (
            key := mine.key(metric_group, metric_name, labels, unit, help)) is not None:
        mine.collect("counter", key, amount)
    if _handled:
        _emit(metric_group, metric_name, amount)


def observe_metric(metric_name: str, value: float, metric_group: str = "torchelastic", *,
                   labels: Mapping[str, object] | None = None, unit: str = "",
                   help: str = "") -> None:
    """One value of a histogram, such as the seconds of a step.

    What torch does not have: Prometheus sees a histogram, OTLP an exponential one, TensorBoard the
    distribution, others count, sum and quantiles within 1.09 %. A handler gets the value. `labels`,
    `unit`, `help`: as for put_metric.
    """
    if (mine := reporter.reporter) is not None and (
            key := mine.key(metric_group, metric_name, labels, unit, help)) is not None:
        mine.collect("histogram", key, value)
    if _handled:
        _emit(metric_group, metric_name, value)


def _emit(group: str, name: str, value: float) -> None:
    hand_on(MetricData(time.time(), group, name, value))


class MetricStream:
    """A group as it was when it was asked for: with the handler of that moment."""

    def __init__(self, group_name: str, handler: MetricHandler) -> None:
        self.group_name = group_name
        self.handler = handler

    def add_value(self, metric_name: str, metric_value: float) -> None:
        if (mine := reporter.reporter) is not None:
            mine.put((self.group_name, metric_name), metric_value)
        hand_on(MetricData(time.time(), self.group_name, metric_name, metric_value), self.handler)


def getStream(group: str) -> MetricStream:
    return MetricStream(group, _of_group.get(group, _default))


def get_elapsed_time_ms(start_time_in_seconds: float) -> int:
    """Whole milliseconds since then, as time.time()."""
    return int((time.time() - start_time_in_seconds) * 1000)


def _profiled(function: _Function, base: str, group: str) -> _Function:
    success, failure, duration = (f"{base}.{end}" for end in ("success", "failure", "duration.ms"))

    @functools.wraps(function)
    def measured(*args: Any, **kwargs: Any) -> Any:
        begin = time.monotonic()
        try:
            result = function(*args, **kwargs)
            getStream(group).add_value(success, 1)
        except Exception:
            getStream(group).add_value(failure, 1)
            raise
        finally:
            took = int((time.monotonic() - begin) * 1000)
            getStream(group).add_value(duration, took)
        return result

    return measured  # type: ignore[return-value]


@overload
def prof(fn: _Function, group: str = ...) -> _Function: ...
@overload
def prof(fn: None = ..., group: str = ...) -> Callable[[_Function], _Function]: ...


def prof(fn: Any = None, group: str = "torchelastic") -> Any:
    """Decorates a function: BASE.success or, on an Exception, BASE.failure is 1, then
    BASE.duration.ms in whole milliseconds. BASE is Class.method, or MODULE.function with the last
    part of the module's name.
    """
    def wrap(function: _Function) -> _Function:
        name, module = function.__qualname__, function.__module__
        if module and "." not in name:
            name = module.rpartition(".")[2] + "." + name
        return _profiled(function, name, group)
    return wrap(fn) if fn else wrap


def _deprecated(use: str) -> None:
    warnings.warn(f"Deprecated, use `{use}` instead", FutureWarning, stacklevel=3)


def profile(group: str = "torchelastic") -> Callable[[_Function], _Function]:
    """Does as prof, under the bare name of the function."""
    _deprecated("@prof")
    return lambda function: _profiled(function, function.__name__, group)


def publish_metric(metric_group: str, metric_name: str, metric_value: float) -> None:
    _deprecated("put_metric")
    put_metric(metric_name, metric_value, metric_group)


def initialize_metrics(cfg: MetricsConfig | None = None) -> None:
    """Does nothing, as in torch."""
