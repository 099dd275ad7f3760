# SPDX-License-Identifier: Apache-2.0
"""Losses of this process: of metrics, events and entries, by cause."""
from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from elastrun import channel, page

__all__ = ["losses"]


def _count(module: str, of: Callable[[Any], int]) -> int:
    """Asks a module; one that this process has not used has lost nothing."""
    found = sys.modules.get(f"elastrun.{module}")
    return 0 if found is None else of(found)


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
    return {
        "messages": channel.dropped(),
        "samples": _count("reporter", lambda one: getattr(one.reporter, "refused", 0)),
        "metric_handlers": _count("metrics.api", lambda one: one.failures()),
        "event_handlers": sum(
            _count(one, lambda found: found.failures()) for one in ("monitor", "events")),
        "stat_values": _count(
            "monitor", lambda one: sum(stat.dropped for stat in one.stats().values())),
        "goodput_entries": _count(
            "journal", lambda one: sum(each.lost for each in list(one._journals.values()))),
        "agent": 0 if (mine := page.page()) is None else mine.refused(),
    }
