# SPDX-License-Identifier: Apache-2.0
"""How threads of this package are woken."""
from __future__ import annotations

import contextlib
import queue


class Wake:
    """As threading.Event, but a signal handler may set it at any point of a set() of the same
    thread, where an Event waits for itself. To be made when its thread is: gevent, which a script
    may import later than us, replaces what both are made of, and else stands still.
    """

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[None] = queue.SimpleQueue()

    def set(self) -> None:
        if self._queue.empty():
            self._queue.put(None)

    def wait(self, seconds: float | None) -> None:
        """Until it is set, for so long at most; it is not set any more then."""
        with contextlib.suppress(queue.Empty):
            self._queue.get(seconds != 0, seconds)
            while True:
                self._queue.get(False)
