# SPDX-License-Identifier: Apache-2.0
"""The thread of all modules that tell the agent something, and one answer to the moments at which
a process becomes a worker, forks and ends.
"""
from __future__ import annotations

import atexit
import contextlib
import math
import os
import sys
import threading
import time
from collections.abc import Callable

TYPE_CHECKING = False
if TYPE_CHECKING:
    import queue

_BEHIND = -1  # what scripts have registered with multiprocessing comes first, mostly
_AGAIN = 1.0  # seconds until what has failed is called again
_begins: list[Callable[[], object]] = []
_forks: list[Callable[[], object]] = []
_ends: list[Callable[[], object]] = []


def at_begin(call: Callable[[], object]) -> None:
    """Calls now, and again in a launcher's fork that becomes a worker, whose environment says what
    it is. A module that needs another one comes after it, by importing it first."""
    _begins.append(call)
    call()


def at_fork(call: Callable[[], object]) -> None:
    """Calls in each forked child: it has no other thread, and finds locks as these held them."""
    _forks.append(call)


def at_end(call: Callable[[], object]) -> None:
    """Calls when the process ends, what was registered last first. A child of multiprocessing (a
    data loader, a pool) ends without atexit, and may call twice."""
    _ends.append(call)


def begin_again() -> None:
    """The environment is a worker's from now on."""
    atexit.unregister(_end)
    atexit.register(_end)
    for call in _begins:
        call()


def _end() -> None:
    for call in reversed(_ends):
        with contextlib.suppress(Exception):  # it may not keep the others from their end
            call()


def _await_end(end: Callable[[], None]) -> None:
    with contextlib.suppress(Exception):  # a module that is half imported, or of other insides
        sys.modules["multiprocessing.util"].Finalize(None, end, exitpriority=_BEHIND)


def _forked() -> None:
    for call in _forks:
        with contextlib.suppress(Exception):  # nor the others from theirs
            call()
    # The child forgets what was registered for the end of its parent, and calls back then.
    with contextlib.suppress(Exception):
        sys.modules["multiprocessing.util"].register_after_fork(_end, _await_end)


atexit.register(_end)
os.register_at_fork(after_in_child=_forked)
with contextlib.suppress(Exception):  # such a child imports us itself
    if sys.modules["multiprocessing.process"].parent_process() is not None:
        _await_end(_end)


class Duty:
    """Something that the thread of an outbox does when it is due. `call` returns in how many
    seconds it is due again; None: `delay` seconds after it is woken."""

    def __init__(self, outbox: Outbox, call: Callable[[], float | None], delay: float) -> None:
        self.outbox = outbox
        self.call = call
        self.delay = delay
        self.due = math.inf  # time.monotonic(); written by the thread alone
        self.woken = False

    def wake(self) -> bool:
        """Makes it due; a signal handler may call it at any point. False: there can be no more
        threads, or the interpreter ends."""
        self.woken = True
        return self.outbox.wake()


class Outbox:
    """A thread that begins with the first duty, and sleeps while none is due. `failed` is called
    for a duty that raises, which is due again later.

    A queue wakes it, which a signal handler may fill at any point of a put() of the same thread,
    where an Event waits for itself. It is made when the thread is: gevent, which a script may
    import later than us, replaces what both are made of, and else stands still.
    """

    def __init__(self, name: str, failed: Callable[[], object] = lambda: None) -> None:
        self._name = name
        self._failed = failed
        self._duties: list[Duty] = []
        self._forget()
        at_fork(self._forget)

    def _forget(self) -> None:
        self._starting = threading.Lock()
        self._wakes: queue.SimpleQueue[None] | None = None
        self._thread: threading.Thread | None = None
        self._is_busy = False
        for duty in self._duties:
            duty.due, duty.woken = math.inf, False

    def duty(self, call: Callable[[], float | None], delay: float = 0) -> Duty:
        self._duties.append(Duty(self, call, delay))
        return self._duties[-1]

    def is_alive(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def await_rest(self, seconds: float) -> None:
        """Waits until no duty is being done, for so long at most."""
        end = time.monotonic() + seconds
        while self._is_busy and time.monotonic() < end:
            time.sleep(0.001)

    def wake(self) -> bool:
        if self._thread is None and self._starting.acquire(blocking=False):
            try:
                if self._thread is None:
                    import queue  # which takes as long as all this

                    self._wakes = queue.SimpleQueue()
                    thread = threading.Thread(target=self._run, args=(self._wakes, queue.Empty),
                                              name=f"elastrun-{self._name}", daemon=True)
                    thread.start()
                    self._thread = thread
            except RuntimeError:
                return False
            finally:
                self._starting.release()
        if self._wakes is not None and self._wakes.empty():
            self._wakes.put(None)
        return True

    def _run(self, wakes: queue.SimpleQueue[None], empty: type[Exception]) -> None:
        while wakes is self._wakes:  # a forked child has another one, and not this thread
            self._is_busy = True
            for duty in self._duties:
                if duty.woken:
                    duty.woken = False  # first: who wakes it meanwhile wants another call
                    duty.due = min(duty.due, time.monotonic() + duty.delay)
                if duty.due <= time.monotonic():
                    try:
                        seconds = duty.call()
                    except Exception:
                        seconds = _AGAIN
                        self._failed()
                    duty.due = math.inf if seconds is None else time.monotonic() + seconds
            self._is_busy = False
            due = min(0.0 if duty.woken else duty.due for duty in self._duties)
            with contextlib.suppress(empty):
                wakes.get(True, None if due == math.inf else max(due - time.monotonic(), 0.001))
                while True:
                    wakes.get(False)
