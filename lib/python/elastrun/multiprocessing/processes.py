# SPDX-License-Identifier: Apache-2.0
"""Copies of a function or of a program as children of this process, without an agent: no other
nodes, no restarts. torch.distributed.elastic.multiprocessing.start_processes.

    context = start_processes("trainer", train, args={0: (1,), 1: (2,)}, envs={0: {}, 1: {}},
                              logs_specs=DefaultLogsSpecs(tee=Std.ALL))
    result = context.wait()

Each process is the first of a new session: with it, what it has started is ended.
"""
from __future__ import annotations

import atexit
import logging
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import ExitStack, suppress
from multiprocessing.connection import Connection, wait as wait_for_any
from typing import Any, TextIO

from elastrun import errors
from elastrun.forkserver import die_with
from elastrun.multiprocessing.api import (LogsSpecs, RunProcsResult, signal_exception,
                                          signals_to_handle)
from elastrun.multiprocessing.errors import ProcessFailure
from elastrun.multiprocessing.fork import refuse_fork

__all__ = ["MultiprocessContext", "PContext", "SubprocessContext", "start_processes"]

_log = logging.getLogger(__name__)
_INTERVAL = 0.1  # seconds between two looks for output
_LATE = 1.0  # seconds until a process that can be killed has ended then
_open: set[PContext] = set()  # between start() and close()


def _raise(number: int, _: object) -> None:
    # A program that does not catch this ends, and multiprocessing then waits for its children for
    # as long as they run. What is registered last is called first.
    for context in list(_open):
        atexit.register(context.close, signal.Signals(number))
    raise signal_exception(number)


def _validate_full_rank(by_rank: dict[int, Any], count: int, what: str) -> None:
    if set(by_rank) != set(range(count)):
        raise RuntimeError(f"{what}, local rank mapping mismatch, expected: {set(range(count))}, "
                           f"actual: {set(by_rank)}")


def _die_with(parent: int) -> None:
    """Asks, in a child, for SIGTERM at the death of `parent`; 0: none. The kernel means the thread
    that started it, so one that may end before its process must not ask for this.
    """
    if parent and not die_with(parent, signal.SIGTERM):
        os._exit(128 + signal.SIGTERM)


def _parent_to_die_with() -> int:
    return os.getpid() if threading.current_thread() is threading.main_thread() else 0


class _Tail:
    """Shows the lines of files in `dst`, each behind the prefix of its file; a file may come later.
    `words`: only lines with one of these, and `dst` is its own.
    """

    def __init__(self, prefixes: dict[str, str], dst: TextIO, words: list[str] | None = None
                 ) -> None:
        self._prefixes = prefixes
        self._dst = dst
        self._words = words
        self._open: dict[str, TextIO] = {}
        self._rest: dict[str, str] = {}
        self._finished = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="elastrun tail", daemon=True)

    def start(self) -> None:
        if self._prefixes and self._dst:
            self._thread.start()

    def stop(self) -> None:
        """Shows what is there, and ends."""
        self._finished.set()
        if self._thread.ident is not None:
            self._thread.join()
        if self._words:
            self._dst.close()

    def _follow(self) -> None:
        try:
            while not self._finished.wait(_INTERVAL):
                self._look()
            self._look()  # what was written since, and a last line without its end
            for path, rest in self._rest.items():
                self._show(path, rest)
        except Exception:  # a console that is closed ends what is shown, and nothing else
            _log.exception("cannot show the output of %s", ", ".join(self._prefixes))
        finally:
            for file in self._open.values():
                file.close()

    def _look(self) -> None:
        for path in self._prefixes:
            if path not in self._open:
                try:
                    self._open[path] = open(path, encoding="utf-8", errors="replace")
                except OSError:
                    continue  # the process has not opened it yet
            for line in self._open[path]:
                line = self._rest.pop(path, "") + line
                if line.endswith("\n"):
                    self._show(path, line)
                else:
                    self._rest[path] = line
        self._dst.flush()

    def _show(self, path: str, line: str) -> None:
        if line and (not self._words or any(one in line for one in self._words)):
            self._dst.write(self._prefixes[path] + line)


class PContext(ABC):
    """A group of processes. All but `nprocs` and `name` are by local rank; `stdouts`, `stderrs`:
    paths, "" for the streams of this process.
    """

    def __init__(self, name: str, entrypoint: Callable[..., Any] | str,
                 args: dict[int, tuple[Any, ...]], envs: dict[int, dict[str, str]],
                 logs_specs: LogsSpecs, log_line_prefixes: dict[int, str] | None = None,
                 numa_options: Any = None, duplicate_stdout_filters: list[str] | None = None,
                 duplicate_stderr_filters: list[str] | None = None) -> None:
        if numa_options is not None:
            raise ValueError("numa_options: the agent binds workers to NUMA nodes "
                             "(LocalElasticAgent), start_processes does not")
        self.name = name
        self.entrypoint = entrypoint
        self.args = args
        self.envs = envs
        self.nprocs = len(args)
        logs = logs_specs.reify(envs)
        _validate_full_rank(logs.stdouts, self.nprocs, "stdouts")
        _validate_full_rank(logs.stderrs, self.nprocs, "stderrs")
        self.stdouts, self.stderrs = logs.stdouts, logs.stderrs
        self.error_files = logs.error_files
        self._tails: list[_Tail] = []
        given = log_line_prefixes or {}
        for files, stream, words, path in (
                (logs.tee_stdouts, sys.stdout, duplicate_stdout_filters, logs.filtered_stdout),
                (logs.tee_stderrs, sys.stderr, duplicate_stderr_filters, logs.filtered_stderr)):
            prefixes = {file: given.get(rank, f"[{name}{rank}]:") for rank, file in files.items()}
            self._tails.append(_Tail(prefixes, stream))
            if words:
                copy = open(path, "w", encoding="utf-8", errors="replace")
                self._tails.append(_Tail(prefixes, copy, words))
        self._before: dict[int, Any] = {}
        self._processes: dict[int, Any] = {}
        self._ends: dict[int, int] = {}  # of programs: descriptors that become readable then
        self._done: RunProcsResult | None = None

    def start(self) -> None:
        """Starts them. Until close() the signals in TORCHELASTIC_SIGNALS_TO_HANDLE raise
        SignalException, if this is the main thread; close() then comes at this program's exit at
        the latest.
        """
        if self._processes:
            raise ValueError("these processes have been started already")
        if threading.current_thread() is threading.main_thread():
            for number in signals_to_handle():
                self._before[number] = signal.signal(number, _raise)
        _open.add(self)
        self._start()
        for tail in self._tails:
            tail.start()

    def wait(self, timeout: float = -1, period: float = 1) -> RunProcsResult | None:
        """Waits `timeout` seconds, without end if that is negative, until all processes have ended
        or one has failed; then ends the others. None: they run. An end is seen at once, a signal
        after `period` at the latest. Fails with what unpickling a return value fails with.
        """
        until = None if timeout < 0 else time.monotonic() + timeout
        while True:
            before = self._alive()
            try:
                result = self._poll()
            except Exception:
                self.close()
                raise
            left = None if until is None else until - time.monotonic()
            if result is not None or (left is not None and left <= 0):
                return result
            alive = self._alive()
            if alive.keys() == before.keys():  # else one has ended beside the look, or after it
                # A signal that comes just before the call does not end it: its handler runs after.
                wait_for_any(self._awaited(alive), period if left is None else min(left, period))

    def close(self, death_sig: signal.Signals | None = None, timeout: float = 30) -> None:
        """Sends `death_sig` (SIGTERM) to each session, and SIGKILL after `timeout` seconds."""
        try:
            self._end(death_sig or signal.SIGTERM, timeout)
        finally:
            _open.discard(self)
            for tail in self._tails:
                tail.stop()
            for number, before in self._before.items():
                if signal.getsignal(number) is _raise:  # else another has it by now
                    signal.signal(number, signal.SIG_DFL if before is None else before)
            self._before.clear()

    def _end(self, number: signal.Signals, timeout: float) -> None:
        """A process that SIGKILL does not end is stuck in the kernel: it is told, and left."""
        self._signal(number)
        for harder, limit in ((signal.SIGKILL, timeout), (None, max(timeout, _LATE))):
            until = time.monotonic() + limit
            while (alive := self._alive()) and time.monotonic() < until:
                wait_for_any([*alive.values()], until - time.monotonic())
            if harder is not None:
                self._signal(harder)
        for rank in self._alive():
            _log.error("process %s (local rank %s) has not ended after SIGKILL; it may be stuck in "
                       "the kernel, on a device or a file system", self.pids()[rank], rank)

    def _signal(self, number: signal.Signals) -> None:
        for rank in self._alive():
            pid = self.pids()[rank]
            with suppress(ProcessLookupError):
                # One that has not come so far is still of our session, and alone.
                os.killpg(pid, number) if os.getsid(pid) == pid else os.kill(pid, number)

    def pids(self) -> dict[int, int]:
        return {rank: one.pid for rank, one in self._processes.items()}

    @abstractmethod
    def _start(self) -> None: ...

    @abstractmethod
    def _poll(self) -> RunProcsResult | None: ...

    @abstractmethod
    def _alive(self) -> dict[int, int]:
        """Lists descriptors of those that have not ended, which become readable then."""

    def _awaited(self, alive: dict[int, int]) -> list[Any]:
        return [*alive.values()]

    def _result(self, failures: dict[int, int], values: dict[int, Any]) -> RunProcsResult:
        pids = self.pids()
        return RunProcsResult(
            {} if failures else values,
            {rank: ProcessFailure(rank, pids[rank], code, self.error_files[rank])
             for rank, code in failures.items()}, self.stdouts, self.stderrs)


def _redirect(path: str, stream: TextIO | None, target: int) -> None:
    if path:
        if stream is not None:
            stream.flush()
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        os.dup2(file, target)
        os.close(file)


def _child(parent: int, mask: set[int] | None, entrypoint: Callable[..., Any],
           args: tuple[Any, ...], env: dict[str, str], streams: tuple[str, str],
           pipe: Connection) -> None:
    """`mask`: signals that were blocked before the fork, in a fork."""
    _die_with(parent)
    os.setsid()
    if mask is not None:
        for number in signal.valid_signals():
            if signal.getsignal(number) is _raise:  # our parent's
                interrupt = number == signal.SIGINT
                signal.signal(number, signal.default_int_handler if interrupt else signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    os.environ.update({name: str(value) for name, value in env.items()})
    _redirect(streams[0], sys.stdout, 1)
    _redirect(streams[1], sys.stderr, 2)
    worker = os.getpid()

    def run() -> None:
        value = entrypoint(*args)
        if os.getpid() == worker:  # not a child that it forked, and that came back
            pipe.send(value)

    errors.record(run)()
    if os.getpid() == worker:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        with suppress(EOFError, OSError):
            pipe.recv_bytes()  # as torch's: one that ends early takes down what others use


class MultiprocessContext(PContext):
    """Processes that run a function, by a start method of multiprocessing."""

    def __init__(self, name: str, entrypoint: Callable[..., Any], args: dict[int, tuple[Any, ...]],
                 envs: dict[int, dict[str, str]], start_method: str, logs_specs: LogsSpecs,
                 log_line_prefixes: dict[int, str] | None = None, numa_options: Any = None,
                 *filters: list[str] | None, **named_filters: list[str] | None) -> None:
        self.start_method = start_method
        self._context: Any = multiprocessing.get_context(start_method)
        super().__init__(name, entrypoint, args, envs, logs_specs, log_line_prefixes,
                         numa_options, *filters, **named_filters)
        self._pipes: dict[int, Connection] = {}
        self._values: dict[int, Any] = {}

    def _start(self) -> None:
        if self.start_method != "fork":
            self._start_each(None)
            return
        refuse_fork()
        # A signal that comes to a fork before it has its handlers would raise our
        # exception where Python ignores exceptions, and be lost.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, self._before)
        try:
            self._start_each({int(one) for one in mask})
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def _start_each(self, mask: set[int] | None) -> None:
        # What multiprocessing's fork server forks ends with that one by itself.
        parent = 0 if self.start_method == "forkserver" else _parent_to_die_with()
        for rank in range(self.nprocs):
            self._pipes[rank], theirs = self._context.Pipe()
            process = self._context.Process(
                target=_child, name=f"{self.name}{rank}",
                args=(parent, mask, self.entrypoint, self.args[rank], self.envs[rank],
                      (self.stdouts[rank], self.stderrs[rank]), theirs))
            process.start()
            theirs.close()
            self._processes[rank] = process

    def _alive(self) -> dict[int, int]:
        return {rank: one.sentinel for rank, one in self._processes.items() if one.is_alive()}

    def _awaited(self, alive: dict[int, int]) -> list[Any]:
        waiting = [pipe for rank, pipe in self._pipes.items() if rank not in self._values]
        return [*waiting, *alive.values()]

    def _poll(self) -> RunProcsResult | None:
        if self._done is not None:
            return self._done
        ended = {rank: one.exitcode for rank, one in self._processes.items()
                 if one.exitcode is not None}  # before its value is looked for
        self._take_values()
        for rank, code in ended.items():
            if code == 0:
                self._values.setdefault(rank, None)  # os._exit(0)
        failures = {rank: code for rank, code in ended.items() if code}
        if not failures and len(self._values) < self.nprocs:
            return None
        if not failures:
            self._let_go()
        self.close()
        late = {rank: one.exitcode for rank, one in self._processes.items() if one.exitcode}
        self._done = self._result(failures or late, dict(sorted(self._values.items())))
        for pipe in self._pipes.values():
            pipe.close()
        return self._done

    def _take_values(self) -> None:
        for rank, pipe in list(self._pipes.items()):
            try:
                said = pipe.recv_bytes() if rank not in self._values and pipe.poll() else None
            except (EOFError, OSError):  # also in the midst of a value
                self._pipes.pop(rank).close()  # how it ended says the rest
                continue
            if said is not None:
                self._values[rank] = pickle.loads(said)

    def _let_go(self) -> None:
        """All have returned: they may end, however long that takes, as with torch."""
        for pipe in self._pipes.values():
            with suppress(OSError):
                pipe.send_bytes(b"")
        for process in self._processes.values():
            process.join()


class SubprocessContext(PContext):
    """Processes that run a program; arguments that are not text become text."""

    def _start(self) -> None:
        parent = _parent_to_die_with()
        for rank in range(self.nprocs):
            words = [str(self.entrypoint), *(str(one) for one in self.args[rank])]
            env = {name: str(value) for name, value in self.envs[rank].items()}
            with ExitStack() as files:
                out, err = (files.enter_context(open(path, "wb")) if path else None
                            for path in (self.stdouts[rank], self.stderrs[rank]))
                self._processes[rank] = subprocess.Popen(
                    words, env={**os.environ, **env}, stdout=out, stderr=err,
                    start_new_session=True, preexec_fn=lambda: _die_with(parent))
            self._ends[rank] = os.pidfd_open(self._processes[rank].pid)

    def _alive(self) -> dict[int, int]:
        for rank in [*self._ends]:
            if self._processes[rank].poll() is not None:
                os.close(self._ends.pop(rank))
        return dict(self._ends)

    def _poll(self) -> RunProcsResult | None:
        if self._done is None:
            running = self._alive()
            if running and not self._failures():
                return None
            self.close()
            self._done = self._result(self._failures(), {})  # with those that were ended
        return self._done

    def _failures(self) -> dict[int, int]:
        return {rank: one.returncode for rank, one in self._processes.items() if one.returncode}


def start_processes(name: str, entrypoint: Callable[..., Any] | str,
                    args: dict[int, tuple[Any, ...]], envs: dict[int, dict[str, str]],
                    logs_specs: LogsSpecs, log_line_prefixes: dict[int, str] | None = None,
                    start_method: str = "spawn", numa_options: Any = None,
                    duplicate_stdout_filters: list[str] | None = None,
                    duplicate_stderr_filters: list[str] | None = None) -> PContext:
    """Starts one process for each key of `args` and `envs`, which are the local ranks 0, 1, ...:
    of a function, or of a program with words. `name`: in front of lines that tee shows.
    `start_method`: of a function; "fork" if this process has one thread and has not used CUDA.
    Fails with RuntimeError, which says what is against a fork, ValueError, OSError.
    """
    _validate_full_rank(args, len(args), "args")
    _validate_full_rank(envs, len(args), "envs")
    more = (logs_specs, log_line_prefixes, numa_options, duplicate_stdout_filters,
            duplicate_stderr_filters)
    context: PContext
    if isinstance(entrypoint, str):
        context = SubprocessContext(name, entrypoint, args, envs, *more)
    else:
        context = MultiprocessContext(name, entrypoint, args, envs, start_method, *more)
    try:
        context.start()
    except BaseException:
        context.close()
        raise
    return context
