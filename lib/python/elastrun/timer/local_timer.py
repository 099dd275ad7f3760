# SPDX-License-Identifier: Apache-2.0
"""A timer server and its client over a multiprocessing queue: both know a worker by its pid."""
from __future__ import annotations

import logging
import os
import signal
import time
from queue import Empty
from typing import TYPE_CHECKING, Any

from elastrun.timer.api import RequestQueue, TimerClient, TimerRequest, TimerServer

if TYPE_CHECKING:
    from multiprocessing.queues import Queue

__all__ = ["LocalTimerClient", "LocalTimerServer", "MultiprocessingRequestQueue"]

_log = logging.getLogger(__name__)


def _has_ended(worker_id: Any) -> bool:
    if not isinstance(worker_id, int) or worker_id < 1:  # not a pid: of another server's choice
        return False
    try:
        os.getpgid(worker_id)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        pass
    return False


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
        """Those of these workers, and of all that have ended: another process may get the pid."""
        self._timers = {key: timer for key, timer in self._timers.items()
                        if key[0] not in worker_ids and not _has_ended(key[0])}

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
