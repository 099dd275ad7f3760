# SPDX-License-Identifier: Apache-2.0
"""A timer server and its client over a FIFO, with the interface and the bytes of torch's: torch's
clients may talk to this server, and this client to torch's servers and to the elastrun agent
(TORCHELASTIC_TIMER_FILE).

A request is one JSON object on a line of at most PIPE_BUF bytes, so that writes are atomic:

    {"version": 1, "pid": 17, "scope_id": "load", "expiration_time": 1790000000.5, "signal": 9}
"""
from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import select
import signal as signals
import time
from collections.abc import Callable
from typing import Any

from elastrun.timer.api import TimerClient, TimerRequest, TimerServer, reap
from elastrun.timer.debug_info_logging import log_debug_info_for_expired_timers

__all__ = ["FileTimerClient", "FileTimerRequest", "FileTimerServer"]

_log = logging.getLogger(__name__)
_TRIES = 10  # as torch's, for a server that has not started yet
_BETWEEN_TRIES = 0.1  # seconds
_LONGEST_LINE = 65536  # bytes; more without a newline is not a request
_PIDS = 1 << 22  # those of Linux are smaller, proc_sys_kernel(5)


class FileTimerRequest(TimerRequest):
    """`signal` ends the process `worker_pid`; 0 or less: the server only logs."""

    __slots__ = ["signal", "version"]

    def __init__(self, worker_pid: int, scope_id: str, expiration_time: float,
                 signal: int = 0) -> None:
        super().__init__(worker_pid, scope_id, expiration_time)
        self.version = 1
        self.signal = signal

    @property
    def worker_pid(self) -> int:
        return int(self.worker_id)

    def __eq__(self, other: object) -> bool:
        return (isinstance(other, FileTimerRequest) and super().__eq__(other)
                and (self.version, self.signal) == (other.version, other.signal))

    __hash__ = None

    def to_json(self) -> str:
        return json.dumps({"version": self.version, "pid": self.worker_pid,
                           "scope_id": self.scope_id, "expiration_time": self.expiration_time,
                           "signal": self.signal})


def _parse(line: bytes) -> FileTimerRequest:
    """Fails with ValueError, KeyError or TypeError on an invalid request: also one that kill(2)
    would take for a group or for all processes, or not at all, and a time that never comes.
    """
    fields = json.loads(line)
    request = FileTimerRequest(int(fields["pid"]), str(fields["scope_id"]),
                               float(fields["expiration_time"]), int(fields["signal"]))
    if not 0 < request.worker_pid < _PIDS or request.signal > signals.SIGRTMAX:
        raise ValueError("no process, or no signal")
    if math.isnan(request.expiration_time):
        raise ValueError("no time")
    return request


class FileTimerClient(TimerClient):
    """Sends the requests of this process into the FIFO `file_path`, which a server has made.
    `signal` ends this process when a timer expires; 0 or less: nothing does.

    Both calls fail with BrokenPipeError if no server has it open for a second, and with
    RuntimeError for a scope that is too long.
    """

    def __init__(self, file_path: str, signal: int = signals.SIGKILL) -> None:
        self._file_path = file_path
        self.signal = signal

    def _send_request(self, request: FileTimerRequest) -> None:
        line = request.to_json().encode() + b"\n"
        if len(line) > select.PIPE_BUF:
            raise RuntimeError(f"a timer request of {len(line)} bytes; at most {select.PIPE_BUF} "
                               f"are possible: {request.scope_id[:60]}...")
        for tried in range(1, _TRIES + 1):
            try:
                descriptor = os.open(self._file_path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
                try:
                    os.write(descriptor, line)
                finally:
                    os.close(descriptor)
                return
            except OSError as error:  # no file, no reader, or full
                if tried == _TRIES:
                    raise BrokenPipeError(
                        f"no timer server takes requests at {self._file_path}: {error}") from error
            time.sleep(_BETWEEN_TRIES)

    def acquire(self, scope_id: str, expiration_time: float) -> None:
        self._send_request(
            FileTimerRequest(os.getpid(), scope_id, expiration_time, int(self.signal)))

    def release(self, scope_id: str) -> None:
        self._send_request(FileTimerRequest(os.getpid(), scope_id, -1, 0))


class FileTimerServer(TimerServer):
    """Makes the FIFO `file_path`, in place of what is there, and ends processes of this host whose
    timers expire, on a thread. Requests are registered when they come and timers expire on time;
    `max_interval` (seconds) is how long it may take until timers of processes that have ended are
    forgotten. `log_event` is called with what happens, and the request that it is about or None.

    Other than torch's, it does not end its own process along with a worker; it goes on after an
    invalid request, and tries again in the next pass to end a process if that failed. A timer
    without a signal ends alone: the others of its process stay.
    """

    def __init__(self, file_path: str, run_id: str, max_interval: float = 10, daemon: bool = True,
                 log_event: Callable[[str, FileTimerRequest | None], None] | None = None) -> None:
        super().__init__(None, max_interval, daemon)
        self._file_path = file_path
        self._run_id = run_id
        self._log_event_to = log_event
        self._request_count = 0
        self._again = False  # a process could not be ended in the last pass
        self._fifo = -1
        self._rest = b""  # of a line
        self._run_once = False
        self._last_progress_time = int(time.time())
        with contextlib.suppress(FileNotFoundError):
            os.remove(file_path)
        os.mkfifo(file_path, 0o600)

    def _log_event(self, name: str, request: FileTimerRequest | None) -> None:
        try:
            if self._log_event_to is not None:
                self._log_event_to(name, request)
        except Exception:  # it must not keep a process alive whose time is over
            _log.exception("log_event failed")

    def start(self) -> None:
        """Fails with OSError if the FIFO has gone."""
        self._run_once, self._rest = False, b""
        # For writing too: without an own writer, poll() would return at once for ever after
        # the first client has closed its end, fifo(7).
        self._fifo = os.open(self._file_path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        super().start()
        self._log_event("watchdog started", None)

    def stop(self) -> None:
        """Waits for the pass that runs, and removes the FIFO."""
        self._stopping.set()
        self._end_thread()
        self._log_event("watchdog stopped", None)

    def run_once(self) -> None:
        """Reads what has been sent, makes one more pass, and ends without the event of stop()."""
        self._run_once = True
        self._end_thread()

    def _end_thread(self) -> None:
        if self._thread is not None:
            with contextlib.suppress(OSError):  # a full one wakes it, too
                os.write(self._fifo, b"\n")
            self._thread.join()  # of a pass, which waits for nothing once it is woken
            self._thread = None
            os.close(self._fifo)
        with contextlib.suppress(FileNotFoundError):
            os.remove(self._file_path)

    _reap_worker = staticmethod(reap)  # type: ignore[assignment]

    @staticmethod
    def is_process_running(pid: int) -> bool:
        """False also for a process that this one may not signal."""
        try:
            os.kill(pid, 0)
            return True
        except OSError:
            return False

    def _has_ended(self, worker_id: Any) -> bool:  # type: ignore[override]
        return not self.is_process_running(worker_id)

    def get_last_progress_time(self) -> int:
        """When the last pass ended, in seconds since the epoch; now, before the first request."""
        return self._last_progress_time if self._request_count else int(time.time())

    def _next_wait(self) -> float:
        if self._run_once:
            return 0
        if self._again:  # what is due and cannot be done must not spin
            return self._max_interval
        due: float = min((one.expiration_time for one in self._timers.values()), default=math.inf)
        return min(self._max_interval, due - time.time())

    def _get_requests(self) -> list[FileTimerRequest]:
        """Takes what has come; waits for the first, or until a timer is due."""
        poll = select.poll()
        poll.register(self._fifo, select.POLLIN)
        poll.poll(max(self._next_wait(), 0) * 1000)
        with contextlib.suppress(BlockingIOError):
            while True:
                self._rest += os.read(self._fifo, _LONGEST_LINE)
        *lines, self._rest = self._rest.split(b"\n")
        if len(self._rest) > _LONGEST_LINE:
            self._rest = b""
        requests = []
        for line in filter(None, lines):  # what wakes is an empty one
            try:
                requests.append(_parse(line))
            except (ValueError, KeyError, TypeError, OverflowError):
                _log.warning("not a timer request, ignored: %r", line[:200])
        return requests

    def _run_watchdog(self) -> None:
        last = self._run_once  # before the FIFO is read: what came until then is in this pass
        try:
            self.register_timers(self._get_requests())
            expired = self.get_expired_timers(time.time())
            log_debug_info_for_expired_timers(self._run_id, {
                pid: [timer.to_json() for timer in timers] for pid, timers in expired.items()})
            done = {pid: self._expire(pid, timers) for pid, timers in expired.items()}
            self._again = False in done.values()
            self.clear_timers({pid for pid, ended in done.items() if ended})
        finally:
            self._last_progress_time = int(time.time())
            if last:
                self._stopping.set()

    def _expire(self, pid: int, timers: list[FileTimerRequest]) -> bool | None:
        """The first one with a signal counts. False: try again in the next pass. None: it is let
        run, and its other timers are kept.
        """
        for timer in sorted(timers, key=lambda one: one.expiration_time):
            self._log_event("timer expired", timer)
            if timer.signal > 0:
                if not self._reap_worker(pid, timer.signal):
                    return False
                _log.info("Ended process %s by signal %s: timer '%s' has expired", pid,
                          timer.signal, timer.scope_id)
                self._log_event("kill worker process", timer)
                return True
        _log.info("No signal for process %s, whose timers have expired. It is let run.", pid)
        for timer in timers:
            self._timers.pop((timer.worker_pid, timer.scope_id), None)
        return None

    def register_timers(self, timer_requests: list[Any]) -> None:
        self._request_count += len(timer_requests)
        super().register_timers(timer_requests)
