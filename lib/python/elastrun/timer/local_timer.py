# SPDX-License-Identifier: Apache-2.0
"""A timer server and its client over a multiprocessing queue: both know a worker by its pid."""
from __future__ import annotations

import os
import signal
import time
from queue import Empty
from typing import TYPE_CHECKING, Any

from elastrun.timer.api import RequestQueue, TimerClient, TimerRequest, TimerServer, reap

if TYPE_CHECKING:
    from multiprocessing.queues import Queue

__all__ = ["LocalTimerClient", "LocalTimerServer", "MultiprocessingRequestQueue"]


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


class LocalTimerClient(TimerClient):
    """Sends requests of this process through a multiprocessing queue that the server made."""

    def __init__(self, mp_queue: Queue[TimerRequest]) -> None:
        self._queue = mp_queue

    def acquire(self, scope_id: str, expiration_time: float) -> None:
        self._queue.put(TimerRequest(os.getpid(), scope_id, expiration_time))

    def release(self, scope_id: str) -> None:
        self._queue.put(TimerRequest(os.getpid(), scope_id, -1))


class LocalTimerServer(TimerServer):
    """A server for children of this process, which are known by pid and ended by SIGKILL."""

    def __init__(self, mp_queue: Queue[TimerRequest],
                 max_interval: float = 60, daemon: bool = True) -> None:
        super().__init__(MultiprocessingRequestQueue(mp_queue), max_interval, daemon)

    def _reap_worker(self, worker_id: Any) -> bool:
        return reap(worker_id, signal.SIGKILL)
