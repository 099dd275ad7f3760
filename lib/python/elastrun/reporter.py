# SPDX-License-Identifier: Apache-2.0
"""Sums up the samples of this process and tells them to the agent once a second: one packet for
each series, however many samples it had. The last values go into the page at once.
"""
from __future__ import annotations

import contextlib
import json
import math
import os
import threading
import time
from typing import Any

from elastrun import channel, page
from elastrun.outbox import at_begin, at_end, at_fork
from elastrun.sketch import Sketch

_INTERVAL = 1.0  # seconds
_MOST_PENDING = 1024  # samples of a series that wait to be summed up
_MOST_SERIES = 2000  # others are told as one, so that names made of numbers cannot fill the memory
_LONGEST = 256  # bytes of a group or a name, for the agent
_MOST_LABELS = 16  # of a series
_LONGEST_HELP = 1024  # bytes
_MOST_GROUPS = 16  # that are told apart in what is not told one by one
_MOST_OF_PACKET = 12_000  # bytes, for samples that are told one by one
_OVERFLOW = ("worker", "otel.metric.overflow")


Key = tuple[Any, ...]  # (group, name), and where there are labels these, sorted, as the third


class Series:
    """What was said of a series, and is not told yet. `kind`: as in a packet, or empty."""

    __slots__ = ("count", "kind", "largest", "last", "not_finite", "of_step", "pending", "place",
                 "sketch", "smallest", "step", "total")

    def __init__(self, kind: str = "", place: int = 0) -> None:
        self.kind = kind
        self.place = place  # in the page
        self.pending: list[float] = []  # not summed up yet
        self.of_step: int | None = None  # the last one of these, where that was said
        self.clear()

    def clear(self) -> None:
        self.step: int | None = None  # of training, about the last sample
        self.last = self.total = 0.0
        self.count = self.not_finite = 0
        self.smallest, self.largest = math.inf, -math.inf
        self.sketch = Sketch() if self.kind == "histogram" else None

    def is_told(self) -> bool:
        return self.count == self.not_finite == 0

    def sum_up(self) -> None:
        if not self.pending:
            return
        numbers = self.pending[:]
        del self.pending[:len(numbers)]  # others may have added to it meanwhile
        self.last = numbers[-1]
        self.step = channel._step if self.of_step is None else self.of_step
        self.of_step = None
        total = sum(numbers)
        if total - total != 0:  # NaN and infinities spoil no sum
            finite = [number for number in numbers if math.isfinite(number)]
            self.not_finite += len(numbers) - len(finite)
            numbers, total = finite, sum(finite)
        if numbers:
            self.count += len(numbers)
            self.total += total
            self.smallest = min(self.smallest, min(numbers))
            self.largest = max(self.largest, max(numbers))
        if self.sketch is not None:
            for number in numbers:
                self.sketch.add(number)

    def fields(self) -> dict[str, Any]:
        if self.kind == "counter":
            return {"type": "counter", "value": _short(self.total)}
        fields: dict[str, Any] = {"value": _short(self.last)}
        if self.step is not None:
            fields["step"] = self.step
        if self.count + self.not_finite > 1 or self.sketch is not None:
            fields["count"] = self.count
            fields["sum"] = _short(self.total)
            if self.count:
                fields["min"], fields["max"] = _short(self.smallest), _short(self.largest)
        if self.not_finite:
            fields["not_finite"] = self.not_finite
        if self.sketch is not None:
            fields.update(self.sketch.members())
        return fields


def _short(number: float) -> float | int | str:
    if not math.isfinite(number):
        return str(number)
    return int(number) if number.is_integer() and abs(number) < 2**53 else number


def _text(value: object) -> str:
    said = channel.text(value)
    if not 0 < len(said.encode()) <= _LONGEST:
        raise ValueError("empty or too long")
    return said


def _clean(key: Key) -> Key:
    """Replaces lone surrogates, which JSON for others must not hold. ValueError: no name."""
    if not (isinstance(key[0], str) and isinstance(key[1], str)):
        raise ValueError("no text")
    return (_text(key[0]), _text(key[1]), *key[2:])


class Reporter:
    """The samples of all threads. `put` neither waits nor raises; what could not be told yet,
    because the agent is behind, is told with later samples of the series.
    """

    def __init__(self, single: int = 0) -> None:
        """`single`: how many samples a second are told one by one, too."""
        self.refused = 0  # samples that are not numbers, or whose name is too long
        self._most_single = single
        # The unit and the help of series for which these were given, by key.
        self._meanings: dict[Key, tuple[str, str]] = {}
        self._duty = channel.outbox.duty(self._pass, _INTERVAL)
        self._forget()
        at_fork(self._forget)
        at_end(self._finish)
        if single:
            self.put = self._put_single  # type: ignore[method-assign]

    def _forget(self) -> None:
        # What the parent has not told yet is the parent's to tell.
        self._kinds: dict[str, dict[Key, Series]] = {"": {}, "histogram": {}, "counter": {}}
        self._series = self._kinds[""]
        # In order: when, of which series, what, and of which step; and of each group how many more.
        self._single: list[tuple[float, Key, float, int | None]] = []
        self._more: dict[str, int] = {}
        self._lock = threading.RLock()  # a signal handler may report, too
        self._asleep = True
        self._page = page.page()
        if self._page is not None:
            self._words, self._numbers = self._page.words, self._page.numbers

    def key(self, group: str, name: str, labels: Any, unit: str, help: str) -> Key | None:
        """The key of a series, whose unit and help it keeps; None: refused."""
        if labels is None and not unit and not help:
            return group, name
        try:
            if labels and len(labels) > _MOST_LABELS:
                raise ValueError("too many labels")
            key: Key = (group, name) if not labels else (group, name, tuple(sorted(
                (_text(one), channel.cut(channel.text(value))) for one, value in labels.items())))
            if (unit or help) and key not in self._meanings:
                key = _clean(key)
                if len(self._meanings) < _MOST_SERIES:
                    self._meanings[key] = (channel.text(unit)[:_LONGEST // 4],
                                           channel.text(help)[:_LONGEST_HELP // 4])
            return key
        except Exception:
            self.refused += 1
            return None

    def put_at(self, key: Key, value: Any, step: Any) -> None:
        """One sample of training step `step`."""
        try:
            value, number, key = float(value), channel.whole(step), _clean(key)
            self._series.get(key) or self._add("", key)
            if key in self._series:  # and not one of those that are told as one
                self._series[key].of_step = number
        except Exception:
            self.refused += 1
            return
        self.put(key, value)

    def put(self, key: Key, value: Any) -> None:
        """One sample of the series (group, name)."""
        if type(value) is not float:
            try:
                value = float(value)  # also whole numbers, numpy and torch scalars
            except Exception:
                self.refused += 1
                return
        try:
            series = self._series.get(key) or self._add("", key)
        except Exception:  # no name
            self.refused += 1
            return
        values = series.pending
        values.append(value)
        if place := series.place:  # what Page.put does; one more call would cost a tenth of all
            words = self._words
            lock = words[place] | 1
            words[place] = lock
            self._numbers[place + 1] = value
            words[place + 2] += 1
            words[place] = lock + 1
        if self._asleep or len(values) >= _MOST_PENDING:
            self._turn()

    def _put_single(self, key: Key, value: Any) -> None:
        """Takes put's place where a sink shows samples one by one."""
        try:
            value = float(value)
            if len(self._single) < self._most_single:
                # Else it is a new one, or one whose name is no text.
                series = self._series.get(key) or self._series.get(key := _clean(key))
                step = None if series is None else series.of_step
                self._single.append((_now(), key, value, channel._step if step is None else step))
            else:
                more = self._more
                group = key[0] if key[0] in more or len(more) < _MOST_GROUPS else "worker"
                more[group] = more.get(group, 0) + 1
        except Exception:  # no number or name: put() counts it
            pass
        Reporter.put(self, key, value)

    def _add(self, kind: str, key: Key) -> Series:
        """Makes a series. ValueError: it has no name, or there are too many of its kind."""
        key, where = _clean(key), self._kinds[kind]
        with self._lock:
            if len(where) >= _MOST_SERIES and key not in where:
                if kind:
                    raise ValueError("too many")
                key = _OVERFLOW
            if key not in where:
                where[key] = Series(kind, 0 if kind or self._page is None
                                    else self._page.find(page.shown(key)))
            return where[key]

    def collect(self, kind: str, key: Key, value: Any) -> None:
        """The counter (group, name) has risen, or one value of a histogram."""
        try:
            number = float(value)
            if kind == "counter" and not 0 <= number < math.inf:
                raise ValueError("no amount")
            values = (self._kinds[kind].get(key) or self._add(kind, key)).pending
        except Exception:  # no number, or no name
            self.refused += 1
            return
        values.append(number)
        if self._asleep or len(values) >= _MOST_PENDING:
            self._turn()

    def _turn(self) -> None:
        if self._asleep:
            self._asleep = False
            self._duty.wake()
            return
        with self._lock:
            self._sum_up()
        if not channel.outbox.is_alive():  # it could not be started; else flush() at the end
            self._duty.wake()

    def _all(self) -> list[tuple[Key, Series]]:
        return [one for where in self._kinds.values() for one in list(where.items())]

    def _sum_up(self) -> None:
        for _, series in self._all():
            series.sum_up()

    def flush(self) -> None:
        """Tells the agent what it has not heard yet."""
        with self._lock:
            self._sum_up()
            for key, series in self._all():
                if series.is_told():
                    continue
                # NaN alone: no histogram, and another kind of its name.
                if series.sketch is not None and series.count == 0:
                    channel.lost(series.not_finite)
                else:
                    told = {"kind": "metric", "name": key[1], **series.fields(), "group": key[0]}
                    if self._most_single and not series.kind:
                        told["each"] = True
                    if len(key) > 2:
                        told["labels"] = dict(key[2])
                    for name, said in zip(("unit", "help"), self._meanings.get(key, ())):
                        if said:
                            told[name] = said
                    if not channel.offer(json.dumps(told, separators=(",", ":")).encode()):
                        return  # it is behind; its socket holds what it has not read
                series.clear()
            # After the sums, which matter more where not all have room.
            if self._single or self._more:
                self._tell_single()

    def _tell_single(self) -> None:
        """Sends packets that the agent takes. Where it is behind the rest stays, and what comes
        meanwhile is counted.
        """
        while self._single or self._more:
            some = self._single[:]
            series: dict[Key, int] = {}
            names: list[list[Any]] = []
            rows: list[list[Any]] = []
            size = 0
            for at, key, value, step in some:
                if key not in series:
                    series[key] = len(names)
                    names.append(self._series_row(key))
                    size += len(json.dumps(names[-1])) + 40
                size += 60
                if rows and size > _MOST_OF_PACKET:
                    break
                told: list[Any] = [series[key], round(at, 6), _short(value)]
                rows.append(told if step is None else [*told, step])
            fields: dict[str, Any] = {"kind": "samples", "series": names, "samples": rows}
            last = len(rows) == len(some)
            more = self._more
            if more and last:
                fields["suppressed"] = {channel.text(group): count
                                        for group, count in list(more.items())}
                self._more = {}
            if not channel.offer(json.dumps(fields, separators=(",", ":")).encode()):
                self._more = more
                return
            del self._single[:len(rows)]
            if last:
                return

    def _series_row(self, key: Key) -> list[Any]:
        unit, help = self._meanings.get(key, ("", ""))
        row: list[Any] = [key[0], key[1], dict(key[2]) if len(key) > 2 else {}, unit, help]
        return row if unit or help else row[:3] if len(key) > 2 else row[:2]

    def _finish(self) -> None:
        channel.linger()
        self.flush()
        with self._lock:
            untold = [series for _, series in self._all() if not series.is_told()]
            channel.lost(len(untold) + len(self._single))
            self._single = []  # and counted once
            for series in untold:
                series.clear()

    def _has_more(self) -> bool:
        return bool(self._single) or any(series.pending or not series.is_told()
                                         for _, series in self._all())

    def _pass(self) -> float | None:
        self.flush()
        self._asleep = not self._has_more()
        if self._asleep and self._has_more():
            self._asleep = False  # it did not wake us
        return None if self._asleep else _INTERVAL


_now = time.time
reporter: Reporter | None = None  # of this process; None: outside elastrun


def _begin() -> None:
    global reporter
    reporter = None
    if os.environ.get("ELASTRUN_CHANNEL"):
        single = 0
        with contextlib.suppress(ValueError):
            single = max(int(os.environ.get("ELASTRUN_SAMPLES", "0")), 0)
        reporter = Reporter(single)


at_begin(_begin)
