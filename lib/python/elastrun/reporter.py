# SPDX-License-Identifier: Apache-2.0
"""Sums up the samples of this process and tells them to the agent once a second: one packet for
each series, however many samples it had. The last values go into the page at once.
"""
from __future__ import annotations

import atexit
import json
import math
import os
import threading
import time
from collections.abc import Callable
from typing import Any

from elastrun import channel, page

_INTERVAL = 1.0  # seconds
_MOST_PENDING = 1024  # samples of a series that wait to be summed up
_MOST_SERIES = 2000  # others are told as one, so that names made of numbers cannot fill the memory
_LONGEST = 256  # bytes of a group or a name, for the agent
_OVERFLOW = ("worker", "otel.metric.overflow")


class Cell:
    """What a series did since it was told."""

    __slots__ = ("count", "largest", "last", "not_finite", "smallest", "step", "total")

    def __init__(self) -> None:
        self.step: int | None = None  # of training, about the last sample
        self.last = self.total = 0.0
        self.count = self.not_finite = 0
        self.smallest, self.largest = math.inf, -math.inf

    def add(self, numbers: list[float]) -> None:
        self.last = numbers[-1]
        self.step = channel.last_step()
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

    def packet(self, group: str, name: str) -> bytes:
        fields: dict[str, Any] = {"kind": "metric", "name": name, "value": _short(self.last),
                                  "group": group}
        if self.step is not None:
            fields["step"] = self.step
        if self.count + self.not_finite > 1:
            fields["count"] = self.count
            fields["sum"] = _short(self.total)
            if self.count:
                fields["min"], fields["max"] = _short(self.smallest), _short(self.largest)
        if self.not_finite:
            fields["not_finite"] = self.not_finite
        return json.dumps(fields, separators=(",", ":")).encode()


def _short(number: float) -> float | int | str:
    if not math.isfinite(number):
        return str(number)
    return int(number) if number.is_integer() and abs(number) < 2**53 else number


def _counter_packet(group: str, name: str, risen: float) -> bytes:
    fields = {"kind": "metric", "type": "counter", "name": name, "value": _short(risen),
              "group": group}
    return json.dumps(fields, separators=(",", ":")).encode()


def _clean(key: tuple[str, str]) -> tuple[str, str]:
    """Without lone surrogates, which JSON for others must not hold. ValueError: not a name."""
    group, name = key
    if not (isinstance(group, str) and isinstance(name, str)):
        raise ValueError("no text")
    key = channel.text(group), channel.text(name)
    if not all(0 < len(part.encode()) <= _LONGEST for part in key):
        raise ValueError("empty or too long")
    return key


class Reporter:
    """For all threads. `put` neither waits nor raises; samples that could not be told yet, because
    the agent is behind, are told with later ones of their series.
    """

    def __init__(self) -> None:
        self.refused = 0  # samples that are not numbers, or whose name is too long
        self._due: list[Callable[[], float | None]] = []
        self._forget()
        os.register_at_fork(after_in_child=self._forget)
        atexit.register(self._finish)

    def _forget(self) -> None:
        # What the parent has not told yet is the parent's to tell.
        # By (group, name): samples that are not summed up yet, and the place in the page.
        self._series: dict[tuple[str, str], tuple[list[float], int]] = {}
        self._cells: dict[tuple[str, str], Cell] = {}
        # Of what samples are, where that was said, until they are summed up.
        self._steps: dict[tuple[str, str], int] = {}
        # Of counters: amounts that are not summed up yet, and by how much each has risen.
        self._amounts: dict[tuple[str, str], list[float]] = {}
        self._risen: dict[tuple[str, str], float] = {}
        self._lock = threading.RLock()  # a signal handler may report, too
        self._wake = threading.Event()
        self._asleep = True
        self._thread: threading.Thread | None = None
        self._page = page.page()
        if self._page is not None:
            self._words, self._numbers = self._page.words, self._page.numbers

    def put_at(self, key: tuple[str, str], value: Any, step: Any) -> None:
        """One sample that is of training step `step`."""
        try:
            value, number, key = float(value), channel.whole(step), _clean(key)
            if key not in self._series:
                self._add(key)
            if key in self._series:  # and not one of those that are told as one
                self._steps[key] = number
        except Exception:
            self.refused += 1
            return
        self.put(key, value)

    def put(self, key: tuple[str, str], value: Any) -> None:
        """One sample of the series (group, name)."""
        if type(value) is not float:
            try:
                value = float(value)  # also whole numbers, numpy and torch scalars
            except Exception:
                self.refused += 1
                return
        try:
            series = self._series.get(key) or self._add(key)
        except Exception:  # no name
            series = None
        if series is None:
            self.refused += 1
            return
        values, place = series
        values.append(value)
        if place:  # what Page.put does; one more call would cost a tenth of the whole
            words = self._words
            lock = words[place] | 1
            words[place] = lock
            self._numbers[place + 1] = value
            words[place + 2] += 1
            words[place] = lock + 1
        if self._asleep or len(values) >= _MOST_PENDING:
            self._turn()

    def _add(self, key: tuple[str, str]) -> tuple[list[float], int] | None:
        try:
            key = _clean(key)
        except ValueError:
            return None
        with self._lock:
            if len(self._series) >= _MOST_SERIES:
                key = _OVERFLOW
            known = self._series.get(key)
            if known is None:
                known = self._series[key] = ([], 0 if self._page is None else self._page.find(key))
            return known

    def count(self, key: tuple[str, str], amount: Any) -> None:
        """The counter (group, name) has risen by `amount`."""
        try:
            number = float(amount)
            amounts = self._amounts.get(key)
            if amounts is None:
                amounts = self._add_counter(key)
        except Exception:  # no number, or no name
            amounts, number = None, 0.0
        if amounts is None or not 0 <= number < math.inf:
            self.refused += 1
            return
        amounts.append(number)
        if self._asleep or len(amounts) >= _MOST_PENDING:
            self._turn()

    def _add_counter(self, key: tuple[str, str]) -> list[float] | None:
        key = _clean(key)
        with self._lock:
            if len(self._amounts) >= _MOST_SERIES:
                return None
            return self._amounts.setdefault(key, [])

    def call(self, due: Callable[[], float | None]) -> None:
        """At each pass of the thread; `due` tells in how many seconds it has something to do."""
        self._due.append(due)

    def wake(self) -> None:
        """Something is due later."""
        if self._thread is None:
            with self._lock:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name="elastrun-reporter",
                                                    daemon=True)
                    try:
                        self._thread.start()
                    except RuntimeError:  # no more threads, or the interpreter ends: then flush()
                        self._thread = None
        self._wake.set()

    def _turn(self) -> None:
        if self._asleep:
            self._asleep = False
            self.wake()
            return
        with self._lock:
            self._sum_up()
        if self._thread is None:  # it could not be started
            self.wake()

    def _sum_up(self) -> None:
        for key, (values, _) in list(self._series.items()):
            if values:
                some = values[:]
                del values[:len(some)]  # others may have added to it meanwhile
                cell = self._cells.get(key)
                if cell is None:
                    cell = self._cells[key] = Cell()
                cell.add(some)
                if key in self._steps:
                    cell.step = self._steps.pop(key)
        for key, amounts in list(self._amounts.items()):
            if amounts:
                some = amounts[:]
                del amounts[:len(some)]
                self._risen[key] = self._risen.get(key, 0.0) + sum(some)

    def flush(self) -> None:
        """Tells the agent what it has not heard yet."""
        with self._lock:
            self._sum_up()
            for key in list(self._cells):
                if not channel.offer(self._cells[key].packet(*key)):
                    return  # it is behind; its socket holds what it has not read
                del self._cells[key]
            for key in list(self._risen):
                if not channel.offer(_counter_packet(*key, self._risen[key])):
                    return
                del self._risen[key]

    def _finish(self) -> None:
        channel.linger()
        self.flush()
        channel.lost(len(self._cells) + len(self._risen))

    def _next_due(self) -> float | None:
        waits = []
        for due in self._due:
            try:
                wait = due()
            except Exception:  # what it had to tell is lost, and the samples of others are not
                channel.lost()
                wait = _INTERVAL
            if wait is not None:
                waits.append(wait)
        return max(min(waits), 0.001) if waits else None

    def _has_more(self) -> bool:
        return (bool(self._cells or self._risen) or any(list(self._amounts.values()))
                or any(values for values, _ in list(self._series.values())))

    def _run(self) -> None:
        wake, mine = self._wake, self._series
        while mine is self._series:  # a forked child has another one, and not this thread
            self.flush()
            due = self._next_due()
            if not self._has_more():
                self._asleep = True
                if self._has_more():
                    self._asleep = False  # or nothing slows this loop while the agent is behind
                    continue
                wake.wait(due)
                wake.clear()
            if not self._asleep:  # there are samples, and more may come
                time.sleep(_INTERVAL if due is None else min(due, _INTERVAL))


_reporter = Reporter() if os.environ.get("ELASTRUN_CHANNEL") else None


def reporter() -> Reporter | None:
    """None: outside elastrun."""
    return _reporter
