# SPDX-License-Identifier: Apache-2.0
"""Losses of this process: of metrics, events and entries, by cause."""
from __future__ import annotations

import sys
from typing import Any

from elastrun import channel, page

__all__ = ["losses"]


def _of(module: str) -> Any:
    """The module; None: this process has not used it, so it has lost nothing."""
    return sys.modules.get(f"elastrun.{module}")


def losses() -> dict[str, int]:
    """Counts of each, since this process began; zeros too:

    messages            to the agent: it was behind or had gone, or they could not be told
    samples             of metrics that are not numbers, or whose names are empty or too long
    metric_handlers     metrics that a handler of elastrun.metrics has refused by raising
    event_handlers      events that a handler of elastrun.monitor, or a destination of
                        elastrun.events, has refused by raising
    stat_values         of Stats that still exist: a full window, NaN, infinities
    goodput_entries     of recorders
    agent               of what reached the agent, this worker in all: beyond its limits, or in a
                        separate group; 0 where this process has no page (without --worker-lib,
                        or a child of a worker)

    The agent tells in its log what it has refused first, and counts all in its metrics,
    elastrun-telemetry(7).
    """
    reporter, metrics = _of("reporter"), _of("metrics.api")
    monitor, journal, events = _of("monitor"), _of("journal"), _of("events")
    told = None if reporter is None else reporter.reporter()
    return {
        "messages": channel.dropped(),
        "samples": 0 if told is None else told.refused,
        "metric_handlers": 0 if metrics is None else metrics.failures(),
        "event_handlers": sum(one.failures() for one in (monitor, events) if one is not None),
        "stat_values": 0 if monitor is None else sum(
            stat.dropped for stat in monitor.stats().values()),
        "goodput_entries": 0 if journal is None else sum(
            one.lost for one in list(journal._journals.values())),
        "agent": 0 if (mine := page.page()) is None else mine.refused(),
    }
