# SPDX-License-Identifier: Apache-2.0
"""Expiration timers: this process is ended, with its stack in the agent's report, unless a block
of code comes to its end in time.

    import elastrun.timer

    with elastrun.timer.expires(after=60):
        torch.distributed.all_reduce(...)

Under elastrun nothing has to be configured; elsewhere configure() names the client, or expires()
fails with RuntimeError. The interfaces are those of torch.distributed.elastic.timer(.api).
"""
from __future__ import annotations

import contextlib
import itertools
import os
import signal
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextvars import ContextVar

from elastrun.channel import is_configured, is_connected, send_object
from elastrun.page import has_ended
from elastrun.stacks import offer_stacks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from logging import Logger
    from typing import Any

__all__ = ["ChannelTimerClient", "RequestQueue", "TimerClient", "TimerRequest", "TimerServer",
           "configure", "expires"]

_LONGEST_SCOPE = 256  # bytes, for the agent


class TimerRequest:
    """A timer that is acquired or, with a negative `expiration_time`, released. `worker_id`: what
    client and server know a worker by. `expiration_time`: seconds since the epoch.
    """

    __slots__ = ["expiration_time", "scope_id", "worker_id"]

    def __init__(self, worker_id: Any, scope_id: str, expiration_time: float) -> None:
        self.worker_id = worker_id
        self.scope_id = scope_id
        self.expiration_time = expiration_time

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TimerRequest) and (
            self.worker_id, self.scope_id, self.expiration_time) == (
            other.worker_id, other.scope_id, other.expiration_time)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return (f"{type(self).__name__}({self.worker_id!r}, {self.scope_id!r}, "
                f"{self.expiration_time!r})")


class TimerClient(ABC):
    """A worker's side."""

    @abstractmethod
    def acquire(self, scope_id: str, expiration_time: float) -> None:
        """This process is to be ended at that time (as time.time()) unless `scope_id` is released.
        """

    @abstractmethod
    def release(self, scope_id: str) -> None:
        """The timer of that scope means nothing any more."""


class ChannelTimerClient(TimerClient):
    """Timers of the elastrun agent. `signal_number` ends the process; 0: the agent only tells."""

    def __init__(self, signal_number: int = signal.SIGKILL) -> None:
        self._signal = int(signal_number)

    def acquire(self, scope_id: str, expiration_time: float) -> None:
        self.arm(0, scope_id, expiration_time - time.time())

    def release(self, scope_id: str) -> None:
        self.disarm(0, scope_id)

    def arm(self, number: int, scope: str, after: float) -> bool:
        """Timers of one scope with different numbers are different timers. False: this
        process has no agent, or the agent is behind and does not hear of this one.
        """
        # By the monotonic clock: a wall clock that is set neither ends nor spares anybody.
        deadline = time.monotonic() + after
        if is_connected():
            offer_stacks()
        return send_object({"kind": "timer", "id": number, "scope": _short(scope),
                            "deadline": deadline, "after": after, "signal": self._signal})

    def disarm(self, number: int, scope: str) -> None:
        # One that is lost would cost the life of a process that is well.
        send_object({"kind": "timer", "id": number, "scope": _short(scope)}, surely=True)


def _short(scope: str) -> str:
    """Its end, which tells more of a path."""
    return scope.encode("utf-8", "replace")[-_LONGEST_SCOPE:].decode("utf-8", "ignore")


_agent = ChannelTimerClient()
_client: TimerClient | None = None


def configure(timer_client: TimerClient | None = None) -> None:
    """Whom `expires` talks to from now on; None: the elastrun agent, where there is one, as in the
    beginning.
    """
    global _client
    _client = timer_client


class _Block:
    """A block that has begun."""

    def __init__(self, scope: str, after: float) -> None:
        self.number = next(_numbers)
        self.scope = scope
        self.after = after
        self.ended = self.armed = False
        self.inside = 0  # blocks of the same scope inside it that have not ended


_numbers = itertools.count(1)
# The blocks around the code that runs, in this thread or task. A task that a block has begun has
# that block around it, but may end after it.
_around: ContextVar[tuple[_Block, ...]] = ContextVar("elastrun_timers", default=())


def expires(after: float, scope: str | None = None,
            client: TimerClient | None = None) -> contextlib.AbstractContextManager[None]:
    """Ends this process unless the block has ended `after` seconds from now.

    `scope` names the timer in the agent's report; None: file and line of the caller. Blocks inside
    each other have separate timers; only a function that calls itself arms the timer of its scope
    again, with the whole time once the inner call has returned.

    Fails with TypeError or ValueError if `after` is not a number: a timer that is not set protects
    nothing. The block fails with RuntimeError at its begin where neither `client` nor
    configure() names a client and no elastrun agent is there.
    """
    if scope is None:
        caller = sys._getframe(1)
        scope = f"{caller.f_code.co_filename}#{caller.f_lineno}"
    chosen = _client if client is None else client
    if chosen is None and is_configured():
        chosen = _agent
    seconds = float(after)
    if seconds != seconds:
        raise ValueError(f"expires({after!r}): not a number of seconds")
    if isinstance(chosen, ChannelTimerClient):
        return _expires_in_channel(seconds, scope, chosen)
    return _expires(seconds, scope, chosen)


@contextlib.contextmanager
def _expires(after: float, scope: str, client: TimerClient | None) -> Iterator[None]:
    if client is None:
        raise RuntimeError("no timer client: call elastrun.timer.configure(client) before the "
                           "first expires(), or run under elastrun")
    client.acquire(scope, time.time() + after)
    try:
        yield
    finally:
        client.release(scope)


@contextlib.contextmanager
def _expires_in_channel(after: float, scope: str, client: ChannelTimerClient) -> Iterator[None]:
    around = _around.get()
    outer = next((one for one in reversed(around) if one.scope == scope and not one.ended), None)
    mine = _Block(scope, after)
    mine.armed = client.arm(mine.number, scope, after) is not False
    if outer is not None:
        outer.inside += 1
        _disarm(outer, client)
    _around.set((*around, mine))
    try:
        yield
    finally:
        _around.set(around)
        mine.ended = True
        _disarm(mine, client)
        if outer is not None:
            outer.inside -= 1
            if not outer.ended and outer.inside == 0:
                outer.armed = client.arm(outer.number, scope, outer.after) is not False


def _disarm(block: _Block, client: ChannelTimerClient) -> None:
    """Ends an armed timer. Of one that the agent has not heard of nothing is said: kept until it
    can be said, as the end of the others, it would cost memory for as long as the agent stands
    still.
    """
    if block.armed:
        block.armed = False
        client.disarm(block.number, block.scope)


def _log() -> Logger:
    import logging  # only servers log; a worker need not wait for this import
    return logging.getLogger(__name__)


def reap(worker_id: Any, signal_number: int) -> bool:
    """False: the process cannot be ended, and another try may follow."""
    try:
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker_id, signal_number)
    except OSError as error:
        _log().error("Cannot end process %s: %s. Another try follows.", worker_id, error)
        return False
    return True


class RequestQueue(ABC):
    @abstractmethod
    def size(self) -> int:
        """The number of requests that wait. Only `get` lowers it."""

    @abstractmethod
    def get(self, size: int, timeout: float) -> list[TimerRequest]:
        """Up to `size` requests; waits no longer than `timeout` seconds for them."""


class TimerServer(ABC):
    """Reaps workers whose timers have expired, on a thread. A pass at least each `max_interval`
    seconds, and whenever a request comes.
    """

    def __init__(self, request_queue: RequestQueue | None, max_interval: float,
                 daemon: bool = True) -> None:
        self._queue = request_queue
        self._max_interval = max_interval
        self._daemon = daemon
        self._timers: dict[tuple[Any, str], Any] = {}  # a TimerRequest, by worker and scope
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()

    def register_timers(self, timer_requests: list[Any]) -> None:
        for request in timer_requests:
            key = (request.worker_id, request.scope_id)
            if request.expiration_time < 0:
                self._timers.pop(key, None)
            else:
                self._timers[key] = request

    def get_expired_timers(self, deadline: float) -> dict[Any, list[Any]]:
        """Lists, by worker, those that expire until `deadline` (seconds since the epoch)."""
        expired: dict[Any, list[Any]] = {}
        for timer in self._timers.values():
            if timer.expiration_time <= deadline:
                expired.setdefault(timer.worker_id, []).append(timer)
        return expired

    def clear_timers(self, worker_ids: set[Any]) -> None:
        """Forgets those of these workers, and of all that have ended: another process may get the
        pid."""
        self._timers = {key: timer for key, timer in self._timers.items()
                        if key[0] not in worker_ids and not self._has_ended(key[0])}

    @staticmethod
    def _has_ended(worker_id: Any) -> bool:
        # Others are a server's own choice, and never end.
        return isinstance(worker_id, int) and worker_id > 0 and has_ended(worker_id)

    @abstractmethod
    def _reap_worker(self, worker_id: Any) -> bool:
        """False: try again in the next pass. An exception counts as True."""

    def _run_watchdog(self) -> None:
        assert self._queue is not None
        self.register_timers(self._queue.get(max(1, self._queue.size()), self._max_interval))
        reaped = set()
        for worker, timers in self.get_expired_timers(time.time()).items():
            _log().info("Reaping worker_id=[%s]. Expired timers: %s", worker,
                      [timer.scope_id for timer in timers])
            try:
                done = self._reap_worker(worker)
            except Exception:
                _log().exception("Reaping worker %s failed", worker)
                done = True
            if done:
                _log().info("Successfully reaped worker=[%s]", worker)
                reaped.add(worker)
            else:
                _log().error("Error reaping worker=[%s]. Will retry on next watchdog.", worker)
        self.clear_timers(reaped)

    def _watch(self) -> None:
        while not self._stopping.is_set():
            try:
                self._run_watchdog()
            except Exception:
                _log().exception("Error running watchdog")
                self._stopping.wait(min(self._max_interval, 1))  # a queue that is closed, say

    def start(self) -> None:
        self._stopping.clear()
        self._thread = threading.Thread(target=self._watch, name="elastrun-timers",
                                        daemon=self._daemon)
        self._thread.start()

    def stop(self) -> None:
        """Waits for the pass that runs, one interval at most."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(self._max_interval)
            self._thread = None
