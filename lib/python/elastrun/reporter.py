# SPDX-License-Identifier: Apache-2.0
"""Sums up the samples of this process and tells them to the agent once a second: one packet for
each series, however many samples it had. The last values go into the page at once.
"""
from __future__ import annotations

import atexit
import collections
import json
import math
import os
import threading
import time
from collections.abc import Callable
from typing import Any

from elastrun import channel, page

_INTERVAL = 1.0  # seconds
_MOST_PENDING = 4096  # samples that wait to be summed up
_MOST_SERIES = 2000  # others are told as one, so that names made of numbers cannot fill the memory
_LONGEST = 256  # bytes of a group or a name, for the agent
_OVERFLOW = ("worker", "otel.metric.overflow")


class Cell:
    """What a series did since it was told."""

    __slots__ = ("count", "largest", "last", "not_finite", "smallest", "total")

    def __init__(self) -> None:
        self.last = self.total = 0.0
        self.count = self.not_finite = 0
        self.smallest, self.largest = math.inf, -math.inf

    def add(self, number: float) -> None:
        self.last = number
        if number - number != 0:  # NaN and infinities spoil no sum
            self.not_finite += 1
            return
        self.count += 1
        self.total += number
        if number < self.smallest:
            self.smallest = number
        if number > self.largest:
            self.largest = number

    def packet(self, group: str, name: str) -> bytes:
        fields: dict[str, Any] = {"kind": "metric", "name": name, "value": _short(self.last),
                                  "group": group}
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


class Reporter:
    """For all threads. `put` neither waits nor raises; samples that could not be told yet, because
    the agent is behind, are told with later ones of their series.
    """

    def __init__(self) -> None:
        self.refused = 0  # samples that are no number, or whose name is too long
        self._due: list[Callable[[], float | None]] = []
        self._forget()
        os.register_at_fork(after_in_child=self._forget)
        atexit.register(self.flush)

    def _forget(self) -> None:
        # What the parent has not told yet is the parent's to tell.
        self._pending: collections.deque[tuple[tuple[str, str], float]] = collections.deque()
        self._cells: dict[tuple[str, str], Cell] = {}
        self._lock = threading.RLock()  # a signal handler may report, too
        self._wake = threading.Event()
        self._asleep = True
        self._thread: threading.Thread | None = None
        self._page = page.page()

    def put(self, key: tuple[str, str], value: Any) -> None:
        """One sample of the series (group, name)."""
        if type(value) is not float:
            try:
                value = float(value)  # also whole numbers, numpy and torch scalars
            except Exception:
                self.refused += 1
                return
        if self._page is not None:
            self._page.put(key, value)
        pending = self._pending
        pending.append((key, value))
        if self._asleep or len(pending) >= _MOST_PENDING:
            self._turn()

    def call(self, due: Callable[[], float | None]) -> None:
        """At each pass of the thread; `due` tells in how many seconds it has something to do."""
        self._due.append(due)

    def wake(self) -> None:
        """Somebody has something to do later."""
        if self._thread is None:
            with self._lock:
                if self._thread is None:
                    thread = threading.Thread(target=self._run, name="elastrun", daemon=True)
                    self._thread = thread
                    try:
                        thread.start()
                    except RuntimeError:  # the interpreter ends: flush() is called then
                        pass
        self._wake.set()

    def _turn(self) -> None:
        if self._asleep:
            self._asleep = False
            self.wake()
        if len(self._pending) >= _MOST_PENDING:
            with self._lock:
                self._sum_up()

    def _sum_up(self) -> None:
        for _ in range(len(self._pending)):
            try:
                key, number = self._pending.popleft()
                cell = self._cells.get(key) or self._add(key)
            except IndexError:  # a signal handler was faster
                return
            except TypeError:  # a name that is no name
                self.refused += 1
                continue
            if cell is not None:
                cell.add(number)

    def _add(self, key: tuple[str, str]) -> Cell | None:
        try:
            fits = all(0 < len(part.encode()) <= _LONGEST for part in key)
        except (AttributeError, UnicodeError):
            fits = False
        if not fits:
            self.refused += 1
            return None
        if len(self._cells) >= _MOST_SERIES:
            key = _OVERFLOW
        return self._cells.setdefault(key, Cell())

    def flush(self) -> None:
        """Tells the agent what it has not heard yet."""
        with self._lock:
            self._sum_up()
            for key in list(self._cells):
                if not channel.offer(self._cells[key].packet(*key)):
                    return  # it is behind; its socket holds what it has not read
                del self._cells[key]

    def _next_due(self) -> float | None:
        waits = [wait for wait in (due() for due in self._due) if wait is not None]
        return max(min(waits), 0.001) if waits else None

    def _run(self) -> None:
        wake, pending = self._wake, self._pending
        while pending is self._pending:  # a forked child has another one, and not this thread
            self.flush()
            due = self._next_due()
            if not (self._cells or pending):
                self._asleep = True
                if pending:
                    continue
                wake.wait(due)
                wake.clear()
            if not self._asleep:  # there are samples, and more may come
                time.sleep(_INTERVAL if due is None else min(due, _INTERVAL))


_reporter = Reporter() if os.environ.get("ELASTRUN_CHANNEL") else None


def reporter() -> Reporter | None:
    """None: outside elastrun."""
    return _reporter
