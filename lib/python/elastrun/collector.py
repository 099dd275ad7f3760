# SPDX-License-Identifier: Apache-2.0
"""What all Stats have seen since the last question, whatever their own windows are (RFC-0018):

    collector = elastrun.monitor.Collector("train.*", {"train.step": [Aggregation.P95]})
    while True:
        for name, value in collector.report().items():
            writer.add_scalar(name, value)
        collector.reset()
        time.sleep(60)
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from elastrun import monitor
from elastrun.monitor import Aggregation

if TYPE_CHECKING:
    from elastrun.monitor import _Core, _Window

__all__ = ["Collector"]


class Collector:
    """Of the Stats whose name matches `pattern` (with * and ?), those that exist and those that are
    made later. `aggregations` by name or pattern take the place of a Stat's own; the first that
    matches counts.
    """

    def __init__(self, pattern: str = "*",
                 aggregations: Mapping[str, Sequence[Aggregation]] | None = None) -> None:
        self._pattern = pattern
        self._instead = dict(aggregations or {})
        self._seen: dict[str, tuple[tuple[Aggregation, ...], _Window]] = {}
        monitor.add_collector(self)
        for core in monitor.living():
            self.notice(core)

    def notice(self, core: _Core) -> None:
        """For elastrun.monitor: there is such a Stat."""
        if not fnmatchcase(core.name, self._pattern):
            return
        with core._lock:
            chosen = next((tuple(given) for name, given in self._instead.items()
                           if fnmatchcase(core.name, name)), core.chosen)
            _, window = self._seen.get(core.name) or (chosen, self._window(chosen))
            self._seen[core.name] = (chosen, window)
            if not any(tap is window for tap in core.taps):
                core.taps = (*core.taps, window)

    @staticmethod
    def _window(chosen: tuple[Aggregation, ...]) -> _Window:
        return monitor._Window(monitor.needs_sketch(chosen), Aggregation.STDDEV in chosen)

    def report(self) -> dict[str, float]:
        """NAME.AGGREGATION of what was added since reset(). NAME.count is always there, and 0 where
        nothing was added; then COUNT and SUM are all there is, as the others have no value. That of
        HISTOGRAM is how many values there were, as all of it may go to a writer of scalars:
        histogram() has the buckets.
        """
        for core in monitor.living():
            if core.name in self._seen:
                core.observe()
        told: dict[str, float] = {}
        for name, (chosen, window) in sorted(self._seen.items()):
            told[f"{name}.count"] = float(window.count)
            for one in chosen:
                if window.count or one is Aggregation.SUM:
                    told[f"{name}.{one.value}"] = window.get(one)
        return told

    def histogram(self, name: str) -> list[tuple[float, int]]:
        """Of what was added to that Stat since reset(), if HISTOGRAM or a percentile is chosen: the
        end of each bucket (2.2 % wide) and how many values are in it; empty for one unknown.
        """
        seen = self._seen.get(name)
        return [] if seen is None else seen[1].buckets()

    def reset(self) -> None:
        """Forgets what was added, not which Stats there are."""
        for name, (chosen, window) in list(self._seen.items()):
            fresh = self._window(chosen)
            core = monitor._cores.get(name)
            if core is None:  # it has ended, and has been reported
                del self._seen[name]
                continue
            with core._lock:
                core.taps = (*(tap for tap in core.taps if tap is not window), fresh)
                self._seen[name] = (chosen, fresh)
