#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What one call of an instrument costs: ours in C++, torch.monitor, torchelastic's put_metric,
prometheus-client and opentelemetry-sdk, one after the other on this machine. A Markdown table.

    telemetry_bench.py --bin BUILD/tests/bench [--calls 200000]

A library that this Python does not have is left out, with a word on stderr. The others are called
from Python, which is how they are used; a call of an empty function is there for comparison. Ours
is CPU time of the thread, the others' too.
"""
from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROUNDS = 5
# Name in bench_telemetry, words, target in ns.
OURS = [
    ("counter_1", "counter, one thread", 3), ("counter_2", "counter, two threads", None),
    ("gauge_1", "gauge", None), ("stat_1", "stat, one thread", 6),
    ("stat_2", "stat, two threads", 15), ("histogram_1", "histogram, one thread", None),
    ("event_off_1", "event that nobody hears", 2),
    ("put_metric_null_1", "put_metric without a handler", 10),
    ("put_metric_handler", "put_metric with a handler", None),
    ("collect_1000_series_16", "collection of 1,000 stats of 16 threads", 2e6),
    ("page_10000_series", "Prometheus page of 10,000 series", 1e7),
]


def per_call(call: Callable[[], object], calls: int) -> float:
    best = float("inf")
    for _ in range(ROUNDS):
        begin = time.thread_time_ns()
        for _ in range(calls):
            call()
        best = min(best, (time.thread_time_ns() - begin) / calls)
    return best


def torch_calls() -> dict[str, Callable[[], object]]:
    from datetime import timedelta

    import torch.distributed.elastic.metrics as metrics
    from torch.monitor import Aggregation, Event, Stat, data_value_t, log_event  # noqa: F401
    stat = Stat("bench", [Aggregation.MEAN, Aggregation.COUNT], timedelta(hours=1))
    from datetime import datetime
    event = Event("bench", datetime.now(), {})
    return {"torch.monitor Stat.add": lambda: stat.add(1.0),
            "torch.monitor log_event, no handler": lambda: log_event(event),
            "torchelastic put_metric, no handler": lambda: metrics.put_metric("bench", 1)}


def prometheus_calls() -> dict[str, Callable[[], object]]:
    from prometheus_client import CollectorRegistry, Counter, Histogram
    registry = CollectorRegistry()
    counter = Counter("bench", "Help.", registry=registry)
    histogram = Histogram("bench_seconds", "Help.", registry=registry)
    return {"prometheus-client Counter.inc": counter.inc,
            "prometheus-client Histogram.observe": lambda: histogram.observe(1.0)}


def opentelemetry_calls() -> dict[str, Callable[[], object]]:
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    meter = MeterProvider(metric_readers=[InMemoryMetricReader()]).get_meter("bench")
    counter, histogram = meter.create_counter("c"), meter.create_histogram("h")
    return {"opentelemetry-sdk Counter.add": lambda: counter.add(1),
            "opentelemetry-sdk Histogram.record": lambda: histogram.record(1.0)}


def nothing() -> None:
    pass


def verdict(value: float, target: float | None) -> str:
    if target is None:
        return ""
    return f"<= {target:,.0f}: {'met' if value <= target else '**missed**'}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", type=Path, required=True)
    parser.add_argument("--calls", type=int, default=200_000)
    chosen = parser.parse_args()
    ran = subprocess.run([chosen.bin / "bench_telemetry"], check=True, capture_output=True,
                         text=True, timeout=300)
    ours = json.loads(ran.stdout)
    print("| Call | ns | target |\n|---|---|---|")
    for name, words, target in OURS:
        print(f"| elastrun {words} | {ours[name]:,.2f} | {verdict(ours[name], target)} |")
    print(f"| (Python: an empty function) | {per_call(nothing, chosen.calls):,.0f} | |")
    for library in (torch_calls, prometheus_calls, opentelemetry_calls):
        try:
            calls = library()
        except ImportError as error:
            print(f"left out: {error}", file=sys.stderr)
            continue
        for name, call in calls.items():
            print(f"| {name} | {per_call(call, chosen.calls):,.0f} | |")


if __name__ == "__main__":
    main()
