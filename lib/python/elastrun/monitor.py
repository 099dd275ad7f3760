# SPDX-License-Identifier: Apache-2.0
"""torch.monitor (RFC-0018) without torch: events, and values summarised in windows.

    from datetime import timedelta
    from elastrun.monitor import Aggregation, Stat

    loss = Stat("train.loss", [Aggregation.MEAN, Aggregation.MAX], timedelta(minutes=1))
    loss.add(0.5)

A window that ends is the event "torch.monitor.Stat" with the data NAME.AGGREGATION. Handlers get
each event, and so does the agent under elastrun.

What the reviewers of RFC-0018 asked for, and torch does not have:

    batch = Stat("batch", [Aggregation.MEAN, Aggregation.P99], max_samples=20, unit="s",
                 help="a training step")            # a window of 20 values: none is dropped
    with batch.add_time(): train()
    memory = Stat("memory", [Aggregation.MAX], timedelta(seconds=10), unit="By")
    memory.observe(torch.cuda.memory_allocated)     # asked when values are collected
    monitor.stats("train.*")                        # those that exist, by name
    collector = monitor.Collector("train.*")        # collector.report(), collector.reset()
    if monitor.is_enabled("epoch"):
        log_event(Event("epoch", data={"number": 3}, severity="warn"))
    with monitor.span("epoch", number=3): ...       # two events, inner ones know their parent
    monitor.sample("data.*", 0.01)                  # one event of a hundred

Other than with torch: VALUE is the last value; STDDEV and percentiles exist; windows end on time
under elastrun, also when no value comes; get() keeps the last window that had values; NaN and
infinities count as dropped; a handler may do anything, and one that raises loses only its own event
(`failures()`); a Stat of the same name and specification is the same Stat, with another one a
ValueError; so is a window below 1 ms.
"""
from __future__ import annotations

import contextlib
import json
import math
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from datetime import datetime, timedelta
from enum import Enum
from fnmatch import fnmatchcase
from typing import Any, TypeVar, Union

from elastrun.channel import is_configured, linger, lost, send_event, send_object, text
from elastrun.outbox import Outbox, at_end, at_fork
from elastrun.page import page
from elastrun.sketch import Sketch

__all__ = ["STAT_EVENT", "Aggregation", "Collector", "Event", "EventHandlerHandle", "Stat",
           "StatType",
           "TensorboardEventHandler", "close_due", "data_value_t", "failures", "is_enabled",
           "log", "log_event", "register_event_handler", "sample", "span", "stats",
           "unregister_event_handler", "wait_counter_values"]

STAT_EVENT = "torch.monitor.Stat"
data_value_t = Union[str, int, float, bool]


_SEVERITIES = ("trace", "debug", "info", "warn", "error", "fatal")
_OTHER_WORDS = {"warning": "warn", "critical": "fatal"}


def _severity(name: str, said: str | int) -> str:
    """One of _SEVERITIES, also from a level of logging or a word in capitals."""
    if isinstance(said, int) and not isinstance(said, bool):
        return _SEVERITIES[min(max(said // 10, 0), len(_SEVERITIES) - 1)]
    word = str(said).lower()
    word = _OTHER_WORDS.get(word, word)
    if word not in _SEVERITIES:
        raise ValueError(f"event '{name}': severity '{said}' is none of {', '.join(_SEVERITIES)}, "
                         "and no level of logging")
    return word


def _data_of(name: str, data: Mapping[str, Any]) -> dict[str, data_value_t]:
    """Takes numbers of numpy and torch, too, and bytes, which torch's takes."""
    found: dict[str, data_value_t] = {}
    for key, value in data.items():
        try:
            if not isinstance(key, str):
                raise TypeError
            if isinstance(value, bytes):
                value = value.decode("utf-8", "replace")
            elif not isinstance(value, (str, int, float)):
                try:
                    value = int(value.__index__())
                except Exception:
                    value = float(value)
            found[key] = value
        except Exception:
            raise TypeError(f"event '{name}': data must be text, number or bool by text, "
                            f"not {key!r}: {value.__class__.__name__}") from None
    return found


class Event:
    """`name`: like the qualified name of a class. `timestamp`: None is now; or seconds since the
    epoch. RFC-0018 calls them `type`, and the data `metadata` and `message`. `severity`: trace,
    debug, info, warn, error or fatal, in capitals as well, or a level of logging (30 is warn); an
    attribute of the record. `span` is the id of the block that the event is from, `parent` that of
    the one around it; inside span() both are given.

    Fails with TypeError on data other than text, number or bool, and with ValueError on another
    severity.
    """

    def __init__(self, name: str = "", timestamp: datetime | float | None = None,
                 data: Mapping[str, data_value_t] | None = None, *,
                 severity: str | int = "info", id: str | None = None, span: str | None = None,
                 parent: str | None = None, type: str = "", message: str | None = None,
                 metadata: Mapping[str, data_value_t] | None = None) -> None:
        name = name or type
        if not name:
            raise TypeError("an event needs a name")
        if metadata is not None or message is not None:
            data = {**(data or {}), **(metadata or {})}
            if message is not None:
                data["message"] = message
        if isinstance(timestamp, (int, float)):
            timestamp = datetime.fromtimestamp(timestamp)
        self.name = name
        self.timestamp = datetime.now() if timestamp is None else timestamp
        self.data = _data_of(name, {} if data is None else data)
        self.severity = _severity(name, severity)
        self._id = id
        self._meaning: dict[str, str] = {}  # of a Stat, for the agent
        around = _span.get()
        self.span = around[0] if span is None else span
        self.parent = around[1] if span is None and parent is None else parent

    @property
    def id(self) -> str:
        """The id of this event, made when it is first asked for."""
        if self._id is None:
            self._id = os.urandom(8).hex()
        return self._id

    @property
    def type(self) -> str:
        """RFC-0018's word for the name, as `metadata` is for data."""
        return self.name

    @property
    def metadata(self) -> dict[str, data_value_t]:
        return self.data

    @property
    def message(self) -> data_value_t | None:
        """The member `message` of the data."""
        return self.data.get("message")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Event) and (self.name, self.timestamp, self.data) == (
            other.name, other.timestamp, other.data)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Event({self.name!r}, {self.timestamp!r}, {self.data!r})"


# The ids of the block that the code runs in and of the one around that, in this thread or task.
_span: ContextVar[tuple[str | None, str | None]] = ContextVar("elastrun_span", default=(None, None))


@contextlib.contextmanager
def span(name: str, severity: str | int = "info", **data: data_value_t) -> Iterator[str]:
    """The block is a span: an event at its start with `span.phase` start, and one at its end with
    stop, `span.seconds`, and `span.error` where an exception ends it. Events in it know it by
    `span`, and spans in it by `parent`. Gives its id.
    """
    mine, before = os.urandom(8).hex(), _span.get()
    around = before[0]
    ends: dict[str, data_value_t] = {"span.phase": "stop"}
    first = Event(name, data={**data, "span.phase": "start"}, severity=severity, span=mine,
                  parent=around)
    told = _passes(name)  # both ends, or neither
    if told:
        _hand_out(first)
    _span.set((mine, around))
    begin = time.monotonic()
    try:
        yield mine
    except BaseException as error:
        ends["span.error"] = type(error).__name__
        raise
    finally:
        ends["span.seconds"] = took = time.monotonic() - begin
        if _span.get()[0] == mine:  # a generator may be closed elsewhere, as asyncio does
            _span.set(before)
        if told:
            # Its time is that of the start and what was measured: of the two a span is made, and
            # what is in it must not seem to begin before it.
            _hand_out(Event(name, first.timestamp + timedelta(seconds=took), {**data, **ends},
                            severity=severity, span=mine, parent=around))


class _Sampling:
    """A part of the events whose name matches, evenly spread: 0.25 is each fourth one."""

    def __init__(self, pattern: str, rate: float) -> None:
        self.pattern = pattern
        self.rate = rate
        self.credit = 1.0  # the first one passes

    def passes(self) -> bool:
        passes = self.credit >= 1
        self.credit += self.rate - passes
        return passes


_sampling: list[_Sampling] = []


def sample(pattern: str, rate: float) -> None:
    """Lets a part of the events and spans that match `pattern` (with * and ?) pass from now on, in
    (0, 1]; 0: none. Windows of a Stat always pass. Of several patterns the last one counts. Fails
    with ValueError on another rate.
    """
    if not 0 <= rate <= 1:
        raise ValueError(f"sample('{pattern}'): rate ({rate}) must be between 0 and 1")
    _sampling.insert(0, _Sampling(pattern, rate))


def _sampled(name: str) -> _Sampling | None:
    return next((one for one in _sampling if fnmatchcase(name, one.pattern)), None)


def is_enabled(name: str) -> bool:
    """Tells if an event of that name may reach a handler or an agent: cheap, to be asked before an
    event that is expensive to make.
    """
    if not _handles and not is_configured():
        return False
    found = _sampled(name)
    return found is None or found.rate > 0


class EventHandlerHandle:
    """The handle that register_event_handler gives and unregister_event_handler takes."""

    def __init__(self, handler: Callable[[Event], object]) -> None:
        self._handler = handler


_change = threading.RLock()
_handles: dict[EventHandlerHandle, None] = {}
_failures = 0


def register_event_handler(handler: Callable[[Event], object]) -> EventHandlerHandle:
    handle = EventHandlerHandle(handler)
    _handles[handle] = None
    return handle


def unregister_event_handler(handle: EventHandlerHandle) -> bool:
    """False if it is not registered, or not any more."""
    return _handles.pop(handle, False) is None


def failures() -> int:
    """The number of events that handlers have refused by raising."""
    return _failures


def _passes(name: str) -> bool:
    """Takes its turn, where such events are sampled."""
    if not _sampling or name == STAT_EVENT or (found := _sampled(name)) is None:
        return True
    with _change:
        return found.rate > 0 and found.passes()


def log_event(event: Event) -> None:
    """Handlers get it now, in this thread; without any, and outside elastrun, nothing happens."""
    if _passes(event.name):
        _hand_out(event)


def _hand_out(event: Event) -> None:
    global _failures
    for handle in list(_handles):  # others may register and unregister meanwhile
        try:
            handle._handler(event)
        except Exception:
            _failures += 1
    forward(event)


def log(event: Event | str, message: str | None = None) -> None:
    """log_event under the name that RFC-0018 has for it; also log(type, message)."""
    log_event(Event(event, message=message) if isinstance(event, str) else event)


def forward(event: Any) -> None:
    """Tells the agent of an event of ours, or of torch's."""
    try:
        at = event.timestamp.timestamp()
    except Exception:  # a year of another calendar, or no datetime
        at = None
    data = event.data
    if event.name == STAT_EVENT and (mine := page()) is not None:
        for key, value in data.items():
            with contextlib.suppress(Exception):  # no number; the agent hears of it below
                mine.put(("torch.monitor", key), float(value))
    if getattr(event, "_meaning", None):
        data = {**data, **event._meaning}
    severity, span = getattr(event, "severity", "info"), getattr(event, "span", None)
    if severity != "info" or span is not None or getattr(event, "_id", None) is not None:
        data = {**data, "severity": severity}
        if event._id is not None:
            data["event.id"] = event._id
        if span is not None:
            data["span.id"] = span
        if event.parent is not None:
            data["span.parent"] = event.parent
    send_event(event.name, data, at)


class Aggregation(Enum):
    NONE = "none"
    VALUE = "value"
    MEAN = "mean"
    COUNT = "count"
    SUM = "sum"
    MAX = "max"
    MIN = "min"
    STDDEV = "stddev"  # of all values, not of a sample of them
    P50 = "p50"
    P90 = "p90"
    P95 = "p95"
    P99 = "p99"
    P999 = "p999"
    HISTOGRAM = "histogram"  # in an event: JSON, [[end of a bucket, count], ...]


StatType = Aggregation  # in RFC-0018

_RANKS = {Aggregation.P50: 0.5, Aggregation.P90: 0.9, Aggregation.P95: 0.95,
          Aggregation.P99: 0.99, Aggregation.P999: 0.999}
_SKETCHED = {*_RANKS, Aggregation.HISTOGRAM}


class _Window:
    """A summary of values of one name."""

    def __init__(self, chosen: tuple[Aggregation, ...]) -> None:
        self.chosen = chosen
        self.count = 0
        self.last = self.total = self.mean = self.squares = 0.0
        self.smallest = self.largest = 0.0
        self.sketch = None if _SKETCHED.isdisjoint(chosen) else Sketch()
        self._more = self.sketch is not None or Aggregation.STDDEV in chosen  # than sums

    def add(self, number: float) -> None:
        self.last = number
        self.total += number
        if self.count == 0:
            self.smallest = self.largest = number
        elif number < self.smallest:
            self.smallest = number
        elif number > self.largest:
            self.largest = number
        self.count += 1
        if self._more:
            self._add_more(number)

    def _add_more(self, number: float) -> None:
        away = number - self.mean
        self.mean += away / self.count
        self.squares += away * (number - self.mean)
        if self.sketch is not None:
            self.sketch.add(number)

    def get(self, aggregation: Aggregation) -> float:
        if self.count == 0 or aggregation is Aggregation.HISTOGRAM:
            return float(self.count)
        if aggregation in _RANKS:
            # A bucket may be wider than what is in it.
            found = self.sketch.at(_RANKS[aggregation]) if self.sketch is not None else 0.0
            return min(max(found, self.smallest), self.largest)
        # The squares may be beyond what a double holds.
        deviation = math.sqrt(self.squares / self.count) if self.squares >= 0 else math.nan
        return {Aggregation.VALUE: self.last, Aggregation.COUNT: float(self.count),
                Aggregation.SUM: self.total, Aggregation.MEAN: self.total / self.count,
                Aggregation.MAX: self.largest, Aggregation.MIN: self.smallest,
                Aggregation.STDDEV: deviation}[aggregation]

    def buckets(self) -> list[tuple[float, int]]:
        return [] if self.sketch is None else self.sketch.buckets()

    def told(self, aggregation: Aggregation) -> float | str:
        """The value for an event, which cannot be a list."""
        if aggregation is Aggregation.HISTOGRAM:
            return json.dumps([[float(f"{end:.6g}"), count] for end, count in self.buckets()],
                              separators=(",", ":"))
        return self.get(aggregation)


_GRACE = 1.0  # seconds that the end of the process waits for handlers at most
_now = time.monotonic


def _overridden(name: str) -> frozenset[Aggregation] | None:
    """Reads --aggregations: PATTERN=NAME[+NAME...], with commas between them."""
    for given in os.environ.get("ELASTRUN_AGGREGATIONS", "").split(","):
        pattern, _, names = given.rpartition("=")
        with contextlib.suppress(ValueError):  # from another version of the launcher
            if fnmatchcase(name, pattern):
                return frozenset(map(Aggregation, names.split("+")))
    return None


class Stat:
    """Values of one name, summarised in windows of `window_size`, which begin together for all
    Stats. A window with `max_samples` values ends, and later ones are dropped until its time is
    over, as with torch. Without a `window_size` each `max_samples` values are a window, and none is
    dropped; a `window_size` that is a number is RFC-0018's, so many values. What is open when the
    last Stat of a name ends is logged then. `unit` (UCUM: "s", "By") and `help` are for those who
    list the stats, and of its series. A window of time without values is nothing, with `on_empty`
    "zero" an event of zeros, with "no_data" one that has NAME.count, which is 0, alone; under
    elastrun on time, elsewhere with the next value. `key`, the name in RFC-0018, stands for a
    window of a minute. Gives the Stat of that name, if there is one. Fails with ValueError.
    """

    def __new__(cls, name: str = "", aggregations: Iterable[Aggregation] = (),
                window_size: timedelta | int | None = None, max_samples: int | None = None, *,
                key: str = "", unit: str = "", help: str = "", on_empty: str = "skip") -> Stat:
        if key and window_size is None and max_samples is None:  # as RFC-0018's examples
            window_size = timedelta(minutes=1)
        name, aggregations = name or key, frozenset(aggregations)
        if not name:
            raise TypeError("a Stat needs a name")
        if isinstance(window_size, int) and max_samples is None:
            window_size, max_samples = None, window_size
        if isinstance(window_size, (int, float)):
            raise ValueError(f"Stat '{name}': window_size ({window_size}) must be a timedelta, or "
                             "a whole number of values without max_samples")
        if window_size is None and max_samples is None:
            raise ValueError(f"Stat '{name}': give a window_size, max_samples or both")
        window = math.inf if window_size is None else window_size.total_seconds()
        if window < 0.001 or (max_samples is not None and max_samples < 1):
            raise ValueError(f"Stat '{name}': window_size ({window_size}) must be at least 1 ms "
                             f"and max_samples ({max_samples}) at least 1")
        aggregations = _overridden(name) or aggregations
        if on_empty not in ("skip", "zero", "no_data"):
            raise ValueError(f"Stat '{name}': on_empty '{on_empty}' is none of skip, zero, no_data")
        made = super().__new__(cls)
        made._make(name, tuple(one for one in Aggregation
                               if one in aggregations and one is not Aggregation.NONE),
                   window, (1 << 63) - 1 if max_samples is None else max_samples, on_empty)
        with _change:
            stat = _stats.setdefault(name, made)
        if stat._spec != made._spec:
            raise ValueError(f"Stat '{name}': there is one of that name with other aggregations, "
                             "window_size, max_samples or on_empty")
        stat.unit, stat.help = unit or stat.unit, help or stat.help
        for collector in _living(_collectors):
            collector._notice(stat)
        if stat._tells_empty:
            _wake()
        return stat

    def _make(self, name: str, chosen: tuple[Aggregation, ...], window: float, most: int,
              on_empty: str) -> None:
        self.name = name
        self.aggregations = chosen
        self.unit = self.help = ""
        self.dropped = 0  # values that were not counted in any window
        self._spec = (frozenset(chosen), window, most, on_empty)
        self._tells_empty = on_empty != "skip" and not math.isinf(window)
        self._window = window
        self._most = most
        self._callbacks: list[Callable[[], float]] = []
        self._taps: tuple[_Window, ...] = ()  # of collectors
        self._id = 0
        self._until = -1.0  # the end of that window; before now: unknown
        self._observed = -math.inf
        self._forget()
        self._closed = self._open

    def _forget(self) -> None:
        """Starts over in a forked child: a thread that it does not have may hold the lock, and the
        values of the open window are the parent's to tell.
        """
        self._lock = threading.RLock()
        self._open = _Window(self.aggregations)
        self._full = False

    @contextlib.contextmanager
    def add_time(self) -> Iterator[None]:
        """Adds how many seconds the block took, by the monotonic clock, also if it raises."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.add(time.perf_counter() - begin)

    def observe(self, callback: Callable[[], float]) -> None:
        """Its result is added whenever a Collector reports, and once a second under elastrun. One
        that raises is counted in `dropped`.
        """
        self._callbacks.append(callback)
        _wake()

    def add(self, v: float) -> None:
        """Dropped if the window is full, or the value not finite."""
        try:
            number = float(v)
        except OverflowError:  # a whole number of 400 digits
            number = math.inf
        now = _now()
        full = None
        with self._lock:
            window = self._open
            if now < self._until and 0 < window.count < self._most - 1 and number - number == 0:
                window.add(number)
                for tap in self._taps:
                    tap.add(number)
                return
            over = self._advance(now)
            if self._full or not math.isfinite(number):
                self.dropped += 1
            else:
                first = self._open.count == 0
                self._open.add(number)
                for tap in self._taps:
                    tap.add(number)
                if self._open.count >= self._most:
                    full = self._turn(self._id)
                    self._full = not math.isinf(self._window)
                elif first:
                    _wake()
        self._log(over)
        self._log(full)

    def get(self) -> dict[Aggregation, float]:
        """The chosen aggregations of the last window that had values; zeros before the first. That
        of HISTOGRAM is how many values there were: histogram() has the buckets.
        """
        with self._lock:
            return {one: self._closed.get(one) for one in self.aggregations}

    def histogram(self) -> list[tuple[float, int]]:
        """The last window that had values, if HISTOGRAM or a percentile was chosen: the end of each
        bucket (2.2 % wide) and how many values are in it.
        """
        with self._lock:
            return self._closed.buckets()

    @property
    def count(self) -> int:
        """Values in the open window."""
        with self._lock:
            return self._open.count

    def _turn(self, to: int) -> _Window | None:
        """Under the lock: the window that is over, if it had values, or is to be told without; one
        that was full has been told.
        """
        over, self._open = self._open, _Window(self.aggregations)
        (began, self._id), (full, self._full) = (self._id, to), (self._full, False)
        if over.count == 0:
            return over if self._tells_empty and began != 0 and not full else None
        self._closed = over
        return over

    def _advance(self, now: float) -> _Window | None:
        number = 0 if math.isinf(self._window) else math.floor(now / self._window)
        self._until = (number + 1) * self._window
        return None if number == self._id else self._turn(number)

    def _close_due(self) -> float | None:
        """Seconds until the open window ends, if it has values or is observed."""
        now = _now()
        if self._callbacks and now >= self._observed + 1:
            self._observed = now
            self._ask()
        with self._lock:
            over = self._advance(now)
            ends = (self._open.count or self._tells_empty) and not math.isinf(self._window)
            open_until = (self._id + 1) * self._window if ends else None
            if self._callbacks:
                open_until = min(open_until or math.inf, self._observed + 1)
        self._log(over)
        return None if open_until is None else open_until - now

    def _ask(self) -> None:
        """Adds what the callbacks say; one that raises costs its own value."""
        for callback in list(self._callbacks):  # one may add others
            try:
                value = float(callback())
            except Exception:
                self.dropped += 1
            else:
                self.add(value)

    def _finish(self) -> None:
        with self._lock:
            over = self._turn(self._id) if self._open.count else None
        self._log(over)

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # the interpreter ends
            self._finish()

    def _log(self, over: _Window | None) -> None:
        """Tells of a window; without the lock, since a handler may use this Stat."""
        if over is None:
            return
        data: dict[str, data_value_t] = {f"{self.name}.count": 0.0}
        if over.count or self._spec[-1] == "zero":
            data = {f"{self.name}.{one.value}": over.told(one) if over.count else 0.0
                    for one in self.aggregations}
        event = Event(STAT_EVENT, datetime.now(), data)
        event._meaning = {key: said for key, said in (("stat.unit", self.unit),
                                                      ("stat.help", self.help)) if said}
        log_event(event)
        if Aggregation.HISTOGRAM in self.aggregations and over.sketch and over.count:
            send_object({  # the agent has the same buckets
                "kind": "metric", "group": "torch.monitor", "name": text(self.name),
                "value": over.last, "count": over.count, "sum": over.total, "min": over.smallest,
                "max": over.largest, "unit": text(self.unit), "help": text(self.help),
                **over.sketch.members()})


_Kind = TypeVar("_Kind")
_stats: weakref.WeakValueDictionary[str, Stat] = weakref.WeakValueDictionary()


def _living(all_made: weakref.WeakValueDictionary[Any, _Kind]) -> list[_Kind]:
    """Taken at once: a loop over values() fails when another thread makes one meanwhile."""
    return [found for one in all_made.valuerefs() if (found := one()) is not None]


def stats(pattern: str = "*") -> dict[str, Stat]:
    """Lists those that exist and match `pattern` (with * and ?), by name."""
    return {stat.name: stat for stat in sorted(_living(_stats), key=lambda one: one.name)
            if fnmatchcase(stat.name, pattern)}


def close_due() -> float | None:
    """Ends windows whose time is over, also when no value comes. Returns in how many seconds
    the next one ends, if any has values. Under elastrun a thread calls it.
    """
    waits = (stat._close_due() for stat in _living(_stats))
    return min((wait for wait in waits if wait is not None), default=None)


class Collector:
    """A sum over all Stats since the last question, whatever their own windows are (RFC-0018):

        collector = monitor.Collector("train.*", {"train.step": [Aggregation.P95]})
        while True:
            for name, value in collector.report().items():
                writer.add_scalar(name, value)
            collector.reset()
            time.sleep(60)

    Of the Stats whose name matches `pattern` (with * and ?), those that exist and those that are
    made later. `aggregations` by name or pattern take the place of a Stat's own; the first that
    matches counts.
    """

    def __init__(self, pattern: str = "*",
                 aggregations: Mapping[str, Sequence[Aggregation]] | None = None) -> None:
        self._pattern = pattern
        self._instead = dict(aggregations or {})
        self._seen: dict[str, _Window] = {}
        _collectors[id(self)] = self
        for stat in _living(_stats):
            self._notice(stat)

    def _notice(self, stat: Stat) -> None:
        if not fnmatchcase(stat.name, self._pattern):
            return
        with stat._lock:
            window = self._seen.setdefault(stat.name, _Window(next(
                (tuple(given) for name, given in self._instead.items()
                 if fnmatchcase(stat.name, name)), stat.aggregations)))
            if not any(tap is window for tap in stat._taps):
                stat._taps = (*stat._taps, window)

    def report(self) -> dict[str, float]:
        """NAME.AGGREGATION of what was added since reset(). NAME.count is always there, and 0 where
        nothing was added; then COUNT and SUM are all there is, as the others have no value. That of
        HISTOGRAM is how many values there were, as all of it may go to a writer of scalars:
        histogram() has the buckets.
        """
        for stat in _living(_stats):
            if stat.name in self._seen:
                stat._ask()
        told: dict[str, float] = {}
        for name, window in sorted(self._seen.items()):
            told[f"{name}.count"] = float(window.count)
            for one in window.chosen:
                if window.count or one is Aggregation.SUM:
                    told[f"{name}.{one.value}"] = window.get(one)
        return told

    def histogram(self, name: str) -> list[tuple[float, int]]:
        """The values added to that Stat since reset(), if HISTOGRAM or a percentile is chosen: the
        end of each bucket (2.2 % wide) and how many are in it; empty for one unknown.
        """
        return self._seen[name].buckets() if name in self._seen else []

    def reset(self) -> None:
        """Forgets what was added, not which Stats there are."""
        for name, window in list(self._seen.items()):
            stat = _stats.get(name)
            if stat is None:  # it has ended, and has been reported
                del self._seen[name]
                continue
            with stat._lock:
                fresh = self._seen[name] = _Window(window.chosen)
                stat._taps = (*(tap for tap in stat._taps if tap is not window), fresh)


_collectors: weakref.WeakValueDictionary[int, Collector] = weakref.WeakValueDictionary()


class TensorboardEventHandler:
    """Writes Stat events as scalars by `writer.add_scalar` (a SummaryWriter of torch or
    tensorboardX), with a step that is counted for each name: torch's puts every point at step 0.
    """

    def __init__(self, writer: Any) -> None:
        self._writer = writer
        self._steps: dict[str, int] = {}

    def __call__(self, event: Event) -> None:
        if event.name != STAT_EVENT:
            return
        for key, value in event.data.items():
            step = self._steps[key] = self._steps.get(key, -1) + 1
            self._writer.add_scalar(key, value, global_step=step,
                                    walltime=event.timestamp.timestamp())


class _WaitCounter:
    """Counts how often, and for how long, something is waited for."""

    _all: dict[str, dict[str, int]] = {}

    def __init__(self, key: str) -> None:
        self._values = self._all.setdefault(
            key, {"active_count": 0, "total_calls": 0, "total_time_us": 0, "max_time_us": 0})

    @contextlib.contextmanager
    def guard(self) -> Iterator[None]:
        values = self._values
        begin = time.monotonic_ns()
        with _change:
            values["active_count"] += 1
            values["total_calls"] += 1
        try:
            yield
        finally:
            took = (time.monotonic_ns() - begin) // 1000
            with _change:
                values["active_count"] -= 1
                values["total_time_us"] += took
                values["max_time_us"] = max(values["max_time_us"], took)


def wait_counter_values() -> dict[str, dict[str, int]]:
    """Gives by key active_count, total_calls, total_time_us and max_time_us (microseconds)."""
    with _change:
        return {key: dict(values) for key, values in _WaitCounter._all.items()}


def _forget() -> None:
    global _change
    _change = threading.RLock()
    for stat in _living(_stats):
        stat._forget()
    for collector in _living(_collectors):
        collector.reset()


# Apart from what goes to the agent: handlers and callbacks of the script may hang.
_windows = Outbox("monitor", lost).duty(close_due)


def _wake() -> None:
    if is_configured():
        _windows.wake()


def _finish_all() -> None:
    linger()
    _windows.outbox.await_rest(_GRACE)  # a window that is over is with a handler, and told then
    for stat in _living(_stats):
        stat._finish()


at_fork(_forget)
at_end(_finish_all)
