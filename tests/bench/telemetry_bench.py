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
import importlib.util
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROUNDS = 5
# Name in bench_telemetry, words, target in ns.
OURS = [
    ("counter", "counter", 3), ("gauge", "gauge", None), ("stat", "stat", 6),
    ("histogram", "histogram", None),
    ("put_metric_null_1", "put_metric without a handler", 10),
    ("put_metric_null_2", "put_metric without a handler, two threads", None),
    ("put_metric_handler", "put_metric with a handler", None),
    ("collect_1000_series", "collection of 1,000 stats", 2e6),
    ("page_10000_series", "Prometheus page of 10,000 series", 1e7),
]
# Of bench_channel, in ns of the agent's CPU: 200,000 a second on one core are 5,000 ns each; and of
# the worker's.
CHANNEL = [
    ("channel_step", "a step of a worker, into the agent", 5000),
    ("channel_metric", "a sample of a worker, into the agent and a sink", 5000),
    ("record_event", "record_event of a worker in C++, with an agent", 200),
]
Row = tuple[str, float, "float | None"]  # words, nanoseconds, target
PACKAGE = Path(__file__).resolve().parents[2] / "lib" / "python"


def per_call(call: Callable[[], object], calls: int) -> float:
    best = float("inf")
    for _ in range(ROUNDS):
        begin = time.thread_time_ns()
        for _ in range(calls):
            call()
        best = min(best, (time.thread_time_ns() - begin) / calls)
    return best


def auto_row(calls: int) -> Row:
    """What --goodput auto adds to a step and to a batch of a loader."""
    import torch
    from elastrun import auto, journal
    journal._MOST = 10**7  # nothing is dropped, which would be cheaper

    class Empty:
        _dataset = ()

        def __next__(self) -> None:
            return None

    optimizer = torch.optim.SGD(torch.nn.Linear(4, 1).parameters(), lr=0.1)
    batches, watch = Empty(), auto.Watch()
    plain = per_call(lambda: next(batches), calls)
    setattr(Empty, "__next__", watch._fetching(Empty.__next__))
    watch._computation.keeps_gradients = torch.is_grad_enabled  # as of know_modules
    step = per_call(lambda: watch._stepped(optimizer, (), {}), calls)
    batch = per_call(lambda: next(batches), calls) - plain
    return "--goodput auto, a step and a batch (Python)", step + batch, 1000.0


def auto_in_a_worker(calls: int) -> list[Row]:
    """In a process of its own with a channel, whose packets this one reads."""
    with tempfile.TemporaryDirectory() as folder, \
            socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(folder + "/channel")
        listener.listen(8)
        env = dict(os.environ, ELASTRUN_CHANNEL=folder + "/channel", PYTHONPATH=str(PACKAGE),
                   PYTHONDONTWRITEBYTECODE="1")
        with subprocess.Popen([sys.executable, __file__, "--worker", "--calls", str(calls)],
                              env=env, stdout=subprocess.PIPE, text=True) as process:
            connection, _ = listener.accept()
            with connection:
                while connection.recv(65536):
                    pass
            words, value, target = json.load(process.stdout)
    return [(words, value, target)]


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
    parser.add_argument("--bin", type=Path)
    parser.add_argument("--calls", type=int, default=200_000)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.worker:
        print(json.dumps(auto_row(min(chosen.calls, 20_000))), flush=True)
        os._exit(0)  # what still waits to be sent is of no interest
    if chosen.bin is None:
        parser.error("--bin is required")
    ran = subprocess.run([chosen.bin / "bench_telemetry"], check=True, capture_output=True,
                         text=True, timeout=300)
    ours = json.loads(ran.stdout)
    print("| Call | ns | target |\n|---|---|---|")
    for name, words, target in OURS:
        print(f"| elastrun {words} | {ours[name]:,.2f} | {verdict(ours[name], target)} |")
    channel = json.loads(subprocess.run([chosen.bin / "bench_channel"], check=True, text=True,
                                        capture_output=True, timeout=300).stdout)
    for name, words, target in CHANNEL:
        print(f"| elastrun {words} | {channel[name]:,.0f} | {verdict(channel[name], target)} |")
    lost = channel["channel_lost_20000"]
    print(f"| elastrun: lost of 40,000 samples at 20,000 a second | {lost} (packets) | "
          f"{verdict(lost, 0)} |")
    if importlib.util.find_spec("torch"):
        for words, value, target in auto_in_a_worker(chosen.calls):
            print(f"| {words} | {value:,.0f} | {verdict(value, target)} |")
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
