# SPDX-License-Identifier: Apache-2.0
"""torch.distributed.elastic.multiprocessing.api: the output of workers, how they end, and copies of
a function or of a program as children of this process, without an agent: no other nodes, no
restarts.

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
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from enum import IntFlag
from typing import TYPE_CHECKING, Any, TextIO, Union

from elastrun.multiprocessing.errors import ProcessFailure, record

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

__all__ = ["DefaultLogsSpecs", "LogsDest", "LogsSpecs", "MultiprocessContext", "PContext",
           "RunProcsResult", "SignalException", "Std", "SubprocessContext", "start_processes",
           "to_map"]

_log = logging.getLogger(__name__)
_INTERVAL = 0.1  # seconds between two looks for output
_LATE = 1.0  # seconds until a process that can be killed has ended then
_open: set[PContext] = set()  # between start() and close()


class SignalException(Exception):
    """A signal has ended the job. `sigval`: which one."""

    def __init__(self, msg: str, sigval: signal.Signals) -> None:
        super().__init__(msg)
        self.sigval = sigval

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.sigval)


def signal_exception(number: int) -> SignalException:
    """The exception for a signal of this process, as torch words it."""
    name = signal.Signals(number)
    return SignalException(f"Process {os.getpid()} got signal: {name}", name)


def names_to_handle() -> list[str]:
    """The signals that end workers first, by TORCHELASTIC_SIGNALS_TO_HANDLE."""
    return os.environ.get("TORCHELASTIC_SIGNALS_TO_HANDLE",
                          "SIGTERM,SIGINT,SIGHUP,SIGQUIT").split(",")


def signals_to_handle() -> list[signal.Signals]:
    """Those of them that this system has."""
    found = (getattr(signal, name.strip(), None) for name in names_to_handle())
    return [one for one in found if isinstance(one, signal.Signals)]


class Std(IntFlag):
    """Standard streams of a worker."""

    NONE = 0
    OUT = 1
    ERR = 2
    ALL = OUT | ERR

    @classmethod
    def from_str(cls, vm: str) -> Union[Std, dict[int, Std]]:
        """"3" is ALL, "0:3,1:0" that of local rank 0 alone. Fails with ValueError on others."""
        if re.fullmatch("[0-3]", vm):
            return cls(int(vm))
        if not re.fullmatch(r"\d+:[0-3](,\d+:[0-3])*", vm):
            raise ValueError(f"{vm} is neither 0, 1, 2 or 3 nor a list of LOCAL_RANK:N with one of "
                             "those, as 0:3,1:0")
        pairs = (one.split(":") for one in vm.split(","))
        return {int(rank): cls(int(value)) for rank, value in pairs}


def to_map(val_or_map: Std | Mapping[int, Std], local_world_size: int) -> dict[int, Std]:
    """Maps each local rank; those that a mapping does not name have NONE."""
    if isinstance(val_or_map, Mapping):
        return {rank: val_or_map.get(rank, Std.NONE) for rank in range(local_world_size)}
    return dict.fromkeys(range(local_world_size), val_or_map)


@dataclass
class LogsDest:
    """Log files by local rank."""

    stdouts: dict[int, str] = field(default_factory=dict)
    stderrs: dict[int, str] = field(default_factory=dict)
    tee_stdouts: dict[int, str] = field(default_factory=dict)
    tee_stderrs: dict[int, str] = field(default_factory=dict)
    error_files: dict[int, str] = field(default_factory=dict)
    filtered_stdout: str = ""
    filtered_stderr: str = ""


class LogsSpecs(ABC):
    """The ways of the workers' output. `log_dir`: a base directory, in which the agent makes
    one for each run. `redirects`: streams that go to files instead of the console; `tee`: to both.
    `local_ranks_filter`: whose output the console shows; None or empty: all.
    """

    def __init__(self, log_dir: str | None = None, redirects: Std | dict[int, Std] = Std.NONE,
                 tee: Std | dict[int, Std] = Std.NONE,
                 local_ranks_filter: set[int] | None = None) -> None:
        self._root_log_dir = log_dir
        self._redirects = redirects
        self._tee = tee
        self._local_ranks_filter = local_ranks_filter

    @abstractmethod
    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Names the files of start_processes. The agent has its own layout of them."""

    @property
    @abstractmethod
    def root_log_dir(self) -> str | None: ...


class DefaultLogsSpecs(LogsSpecs):
    """DIR/RUNID_x/attempt_N/LOCAL_RANK/{stdout.log,stderr.log,error.json}. Without `log_dir` the
    agent makes a temporary directory, and keeps it only if it holds something of use. Fails with
    NotADirectoryError if `log_dir` is a file.
    """

    def __init__(self, log_dir: str | None = None, redirects: Std | dict[int, Std] = Std.NONE,
                 tee: Std | dict[int, Std] = Std.NONE,
                 local_ranks_filter: set[int] | None = None) -> None:
        if log_dir and log_dir != os.devnull:
            if os.path.isfile(log_dir):
                raise NotADirectoryError(f"log_dir: {log_dir} is a file")
            os.makedirs(log_dir, exist_ok=True)
        super().__init__(log_dir, redirects, tee, local_ranks_filter)
        self._run_log_dir: str | None = None

    @property
    def root_log_dir(self) -> str | None:
        return self._root_log_dir

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Makes the directories for start_processes, and sets TORCHELASTIC_ERROR_FILE in `envs`.
        With os.devnull as `log_dir` nothing is kept, and nothing shown by tee.
        """
        count = len(envs)
        tee = to_map(self._tee, count)
        files = {rank: std | tee[rank] for rank, std in to_map(self._redirects, count).items()}
        folder = self._attempt_folder(envs.get(0, {}))
        dest = LogsDest(filtered_stdout=os.path.join(folder, "filtered_stdout.log"),
                        filtered_stderr=os.path.join(folder, "filtered_stderr.log"))
        for rank in range(count):
            kept = folder != os.devnull
            if kept:
                os.mkdir(os.path.join(folder, str(rank)))
            dest.error_files[rank] = os.path.join(folder, str(rank), "error.json") if kept \
                else os.devnull
            envs[rank]["TORCHELASTIC_ERROR_FILE"] = dest.error_files[rank] if kept else ""
            hidden = self._local_ranks_filter and rank not in self._local_ranks_filter
            for std, name, paths, tees in (
                    (Std.OUT, "stdout.log", dest.stdouts, dest.tee_stdouts),
                    (Std.ERR, "stderr.log", dest.stderrs, dest.tee_stderrs)):
                paths[rank] = os.path.join(folder, str(rank), name) if kept and files[rank] & std \
                    else os.devnull if kept and hidden else ""
                if not kept:
                    tees[rank] = os.devnull
                elif tee[rank] & std and not hidden:
                    tees[rank] = paths[rank]
        return dest

    def _attempt_folder(self, env: Mapping[str, str]) -> str:
        if self._root_log_dir == os.devnull:
            return os.devnull
        if self._run_log_dir is None:
            base = self._root_log_dir or tempfile.mkdtemp(prefix="elastrun_")
            run_id = env.get("TORCHELASTIC_RUN_ID", "run")
            self._run_log_dir = tempfile.mkdtemp(prefix=f"{run_id}_", dir=base)
        attempt = env.get("TORCHELASTIC_RESTART_COUNT", "0")
        folder = os.path.join(self._run_log_dir, f"attempt_{attempt}")
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(folder)
        return folder

    def __repr__(self) -> str:
        return (f"DefaultLogsSpecs(root_log_dir={self._root_log_dir}, redirects={self._redirects}, "
                f"tee={self._tee}, local_ranks_filter={self._local_ranks_filter})")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DefaultLogsSpecs) and repr(self) == repr(other)

    __hash__ = None  # type: ignore[assignment]


@dataclass
class RunProcsResult:
    """The end of a group of processes, by local rank."""

    return_values: dict[int, Any] = field(default_factory=dict)
    failures: dict[int, ProcessFailure] = field(default_factory=dict)
    stdouts: dict[int, str] = field(default_factory=dict)
    stderrs: dict[int, str] = field(default_factory=dict)

    def is_failed(self) -> bool:
        return bool(self.failures)


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
    from elastrun.forkserver import die_with

    if parent and not die_with(parent, signal.SIGTERM):
        os._exit(128 + signal.SIGTERM)


def _parent_to_die_with() -> int:
    import elastrun.forkserver  # noqa: F401  # for its children, which are not to load anything

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
        from multiprocessing.connection import wait

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
                wait(self._awaited(alive), period if left is None else min(left, period))

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
        from multiprocessing.connection import wait

        self._signal(number)
        for harder, limit in ((signal.SIGKILL, timeout), (None, max(timeout, _LATE))):
            until = time.monotonic() + limit
            while (alive := self._alive()) and time.monotonic() < until:
                wait([*alive.values()], until - time.monotonic())
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

    record(run)()
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
        from elastrun.multiprocessing.fork import refuse_fork

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
