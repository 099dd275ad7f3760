# SPDX-License-Identifier: Apache-2.0
"""Expiration timers: this process is ended, with its stack in the agent's report, unless a block
of code comes to its end in time.

    import elastrun.timer

    with elastrun.timer.expires(after=60):
        torch.distributed.all_reduce(...)

Outside elastrun nothing happens. The interfaces are those of torch.distributed.elastic.timer.
"""
from __future__ import annotations

import contextlib
import itertools
import logging
import os
import signal
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextvars import ContextVar
from queue import Empty
from typing import TYPE_CHECKING, Any, NamedTuple

from elastrun.channel import is_connected, send_object
from elastrun.stacks import offer_stacks

if TYPE_CHECKING:
    from multiprocessing.queues import Queue

__all__ = ["ChannelTimerClient", "LocalTimerClient", "LocalTimerServer",
           "MultiprocessingRequestQueue", "RequestQueue", "TimerClient", "TimerRequest",
           "TimerServer", "configure", "expires"]

_log = logging.getLogger(__name__)
_LONGEST_SCOPE = 256  # bytes, for the agent


class TimerRequest(NamedTuple):
    """A timer that is acquired or, with a negative expiration time, released."""

    worker_id: Any
    scope_id: str
    expiration_time: float  # as time.time()


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

    def arm(self, number: int, scope: str, after: float) -> None:
        """Timers of one scope with different numbers are different timers."""
        # By the monotonic clock: a wall clock that is set neither ends nor spares anybody.
        deadline = time.monotonic() + after
        if is_connected():
            offer_stacks()
        send_object({"kind": "timer", "id": number, "scope": _short(scope), "deadline": deadline,
                     "after": after, "signal": self._signal})

    def disarm(self, number: int, scope: str) -> None:
        # One that is lost would cost the life of a process that is well.
        send_object({"kind": "timer", "id": number, "scope": _short(scope)}, surely=True)


def _short(scope: str) -> str:
    """Its end, which tells more of a path."""
    return scope.encode("utf-8", "replace")[-_LONGEST_SCOPE:].decode("utf-8", "ignore")


_client: TimerClient = ChannelTimerClient()


def configure(client: TimerClient | None = None) -> None:
    """Whom `expires` talks to from now on; None: the elastrun agent, as in the beginning."""
    global _client
    _client = ChannelTimerClient() if client is None else client


class _Block:
    """A block that has begun."""

    def __init__(self, scope: str, after: float) -> None:
        self.number = next(_numbers)
        self.scope = scope
        self.after = after
        self.ended = False
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
    """
    if scope is None:
        caller = sys._getframe(1)
        scope = f"{caller.f_code.co_filename}#{caller.f_lineno}"
    chosen = _client if client is None else client
    if isinstance(chosen, ChannelTimerClient):
        return _expires_in_channel(float(after), scope, chosen)
    return _expires(float(after), scope, chosen)


@contextlib.contextmanager
def _expires(after: float, scope: str, client: TimerClient) -> Iterator[None]:
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
    client.arm(mine.number, scope, after)
    if outer is not None:
        outer.inside += 1
        client.disarm(outer.number, scope)
    _around.set((*around, mine))
    try:
        yield
    finally:
        _around.set(around)
        mine.ended = True
        client.disarm(mine.number, scope)
        if outer is not None:
            outer.inside -= 1
            if not outer.ended and outer.inside == 0:
                client.arm(outer.number, scope, outer.after)


class RequestQueue(ABC):
    @abstractmethod
    def size(self) -> int:
        """How many requests wait. Only `get` makes them less."""

    @abstractmethod
    def get(self, size: int, timeout: float) -> list[TimerRequest]:
        """Up to `size` requests; waits no longer than `timeout` seconds for them."""


class MultiprocessingRequestQueue(RequestQueue):
    def __init__(self, mp_queue: Queue[TimerRequest]) -> None:
        self._queue = mp_queue

    def size(self) -> int:
        return self._queue.qsize()

    def get(self, size: int, timeout: float) -> list[TimerRequest]:
        end = time.monotonic() + timeout
        requests: list[TimerRequest] = []
        while len(requests) < size:
            left = end - time.monotonic()
            try:
                requests.append(self._queue.get(left > 0, max(left, 0)))
            except Empty:
                break
        return requests


class TimerServer(ABC):
    """Reaps workers whose timers have expired, on a thread. A pass at least each `max_interval`
    seconds, and whenever a request comes.
    """

    def __init__(self, request_queue: RequestQueue, max_interval: float,
                 daemon: bool = True) -> None:
        self._queue = request_queue
        self._max_interval = max_interval
        self._daemon = daemon
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()

    @abstractmethod
    def register_timers(self, timer_requests: list[TimerRequest]) -> None: ...

    @abstractmethod
    def clear_timers(self, worker_ids: set[Any]) -> None: ...

    @abstractmethod
    def get_expired_timers(self, deadline: float) -> dict[Any, list[TimerRequest]]:
        """By worker, those whose expiration time is not after `deadline`."""

    @abstractmethod
    def _reap_worker(self, worker_id: Any) -> bool:
        """False: try again in the next pass. An exception counts as True."""

    def _run_watchdog(self) -> None:
        requests = self._queue.get(max(1, self._queue.size()), self._max_interval)
        self.register_timers(requests)
        reaped = set()
        for worker, timers in self.get_expired_timers(time.time()).items():
            _log.info("Reaping worker_id=[%s]. Expired timers: %s", worker,
                      [timer.scope_id for timer in timers])
            try:
                done = self._reap_worker(worker)
            except Exception:
                _log.exception("Reaping worker %s failed", worker)
                done = True
            if done:
                _log.info("Successfully reaped worker=[%s]", worker)
                reaped.add(worker)
            else:
                _log.error("Error reaping worker=[%s]. Will retry on next watchdog.", worker)
        self.clear_timers(reaped)

    def _watch(self) -> None:
        while not self._stopping.is_set():
            try:
                self._run_watchdog()
            except Exception:
                _log.exception("Error running watchdog")

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


class LocalTimerClient(TimerClient):
    """Sends requests of this process through a multiprocessing queue that the server made."""

    def __init__(self, mp_queue: Queue[TimerRequest]) -> None:
        self._queue = mp_queue

    def acquire(self, scope_id: str, expiration_time: float) -> None:
        self._queue.put(TimerRequest(os.getpid(), scope_id, expiration_time))

    def release(self, scope_id: str) -> None:
        self._queue.put(TimerRequest(os.getpid(), scope_id, -1))


class LocalTimerServer(TimerServer):
    """For workers that are children of this process; they are known by pid and ended by SIGKILL."""

    def __init__(self, mp_queue: Queue[TimerRequest],
                 max_interval: float = 60, daemon: bool = True) -> None:
        super().__init__(MultiprocessingRequestQueue(mp_queue), max_interval, daemon)
        self._timers: dict[tuple[Any, str], TimerRequest] = {}

    def register_timers(self, timer_requests: list[TimerRequest]) -> None:
        for request in timer_requests:
            key = (request.worker_id, request.scope_id)
            if request.expiration_time < 0:
                self._timers.pop(key, None)
            else:
                self._timers[key] = request

    def clear_timers(self, worker_ids: set[Any]) -> None:
        self._timers = {key: timer for key, timer in self._timers.items()
                        if key[0] not in worker_ids}

    def get_expired_timers(self, deadline: float) -> dict[Any, list[TimerRequest]]:
        expired: dict[Any, list[TimerRequest]] = {}
        for timer in self._timers.values():
            if timer.expiration_time <= deadline:
                expired.setdefault(timer.worker_id, []).append(timer)
        return expired

    def _reap_worker(self, worker_id: Any) -> bool:
        try:
            os.kill(worker_id, signal.SIGKILL)
        except ProcessLookupError:
            pass
        except OSError:
            _log.exception("Cannot end process %s", worker_id)
            return False
        return True
