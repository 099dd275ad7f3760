# SPDX-License-Identifier: Apache-2.0
"""The start method "fork": workers that are forks of the process that launches them, and what is
against such a fork: it has one thread, with the locks that others held, and an accelerator's
context of which nothing works.

Workers have to be children of the agent, which reaps and contains them, and forks of the caller,
which an agent cannot start as a program. So the caller forks the guardian, that one the agent,
and the agent a copy of the caller, which stays what it is and forks the workers (those of one start
by one process in between), while the other two execute the program elastrun (elastrun-design(7),
"The fork server").
"""
from __future__ import annotations

import atexit
import contextlib
import gc
import json
import multiprocessing
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Mapping
from multiprocessing import process, util
from typing import Any, NoReturn

from elastrun import forkserver as child
from elastrun import stacks
from elastrun.errors import record
from elastrun.multiprocessing.payload import above_streams, run_function, socket_pair
from elastrun.outbox import begin_again

_PAIR = "ELASTRUN_PAIR"
_JOINED = 0.2  # seconds that a thread which has been joined may be seen by the kernel
# What is open while a driver is in use; a look by NVML leaves other files open.
_DEVICES = ("/dev/nvidia-uvm", "/dev/kfd", "/dev/dri/render", "/dev/accel", "/dev/davinci",
            "/dev/habana")


def kill_and_reap(pid: int) -> None:
    """A child, whose status another one may have taken: the kernel where SIGCHLD is ignored, a
    handler that waits for all children."""
    with contextlib.suppress(ProcessLookupError, ChildProcessError):
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _threads() -> int:
    """Counts without the one that a worker has for its stacks: it waits, and holds no lock."""
    return len(set(os.listdir("/proc/self/task")) - {str(stacks.own_thread())})


def _end_pools() -> None:
    """Ends those of libraries that are prepared for a fork, as numpy's OpenBLAS is:
    they end before one, and begin again when they are next used."""
    with warnings.catch_warnings():  # Python 3.12 warns of a fork beside threads
        warnings.simplefilter("ignore")
        pid = os.fork()
    if pid == 0:
        os._exit(0)
    kill_and_reap(pid)  # whatever a library does there


def _count_threads() -> int:
    """Counts those that a fork would not have, and this one."""
    if _threads() > 1 and threading.active_count() == 1:
        _end_pools()
    until = time.monotonic() + _JOINED
    while _threads() > 1 and threading.active_count() == 1 and time.monotonic() < until:
        time.sleep(0.001)
    return _threads()


def obstacle() -> str | None:
    """Says what is against a fork of this process, and what to do; None: nothing is."""
    threads = _count_threads()
    if threads > 1:
        named = ", ".join(one.name for one in threading.enumerate()
                          if one is not threading.main_thread())
        return (f"this process has {threads} threads ({named or 'of libraries'}), whose locks a "
                "fork may wait for without end; use spawn, or start the processes before the "
                "threads")
    device = None
    cuda = sys.modules.get("torch.cuda")
    if cuda is not None and cuda.is_initialized():
        device = "CUDA"
    for one in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # of the list itself
            target = os.readlink(f"/proc/self/fd/{one}")
            if target.startswith(_DEVICES):
                device = device or target
    if device is not None:
        return (f"this process has used {device}, which does not work in a fork; use spawn, or "
                "start the processes before")
    return None


def refuse_fork() -> None:
    """Fails with RuntimeError that says what is against it."""
    why = obstacle()
    if why is not None:
        raise RuntimeError(f"start_method 'fork': {why}")


def _flush() -> None:
    """Writes what is buffered: it is not the forks' to write."""
    with contextlib.suppress(OSError, ValueError):
        util._flush_std_streams()  # type: ignore[attr-defined]
    child.libc.fflush(None)


class CallerCopy:
    """The task of the copy: fork workers that run `function(*args)` and send what that returned
    to `results`. `apart`: sockets of the caller, of which a copy would hide its end. Fails with
    RuntimeError where this process may not be forked.
    """

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...], results: socket.socket,
                 apart: Iterable[socket.socket]) -> None:
        refuse_fork()
        self._function = function
        self._args = args
        self._results = results
        self._apart = list(apart)
        self.name = str(getattr(function, "__qualname__", None) or type(function).__qualname__)
        self._ours, self.theirs = socket_pair(socket.SOCK_SEQPACKET)

    def close(self) -> None:
        """Ends the part of the caller, once it has been forked."""
        self._ours.close()
        self.theirs.close()

    def begin(self, agent: int, mask: set[int], apart: Iterable[socket.socket],
              collects: bool) -> NoReturn:
        """Runs in the copy, a child of `agent`, all signals blocked. `mask`: those that were."""
        try:
            if not child.die_with(agent):
                os._exit(127)
            os.setsid()  # a terminal's Ctrl+C is not for us
            for one in (*self._apart, *apart, self.theirs):
                one.close()
            # Their numbers are not for what comes from the agent, where a daemon has none open.
            while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
                os.set_inheritable(fd, True)
            os.close(fd)
            self._ours.send(f"born {os.getpid()}".encode())
            order = child.Server(self._ours, agent).serve()
            if order is None:
                os._exit(0)
        except BaseException:
            os._exit(127)  # the agent says that it has ended
        try:
            self._work(order, mask, collects)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)

    def _work(self, order: child.Order, mask: set[int], collects: bool) -> NoReturn:
        """Runs as a child of multiprocessing, with a worker's streams and environment."""
        with open("/proc/self/cmdline", "rb") as file:
            title = file.read().split(b"\0")[:-1]
        child.take_place(order, title, {}, len(os.sched_getaffinity(0)))
        _write_lines()
        if collects:
            gc.enable()
        atexit._clear()  # what the caller has registered is for its own end
        atexit.register(util._exit_function)  # type: ignore[attr-defined]
        signal.set_wakeup_fd(-1)  # of the caller's event loop
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        stdin, sys.stdin = sys.stdin, None  # else it is replaced
        one = multiprocessing.Process(target=self._run, args=(stdin,), name=self.name,
                                      daemon=False)
        try:
            code = one._bootstrap()  # type: ignore[attr-defined]
        finally:
            atexit._run_exitfuncs()
        _flush()
        os._exit(code)

    def _run(self, stdin: Any) -> None:
        sys.stdin = stdin
        process._parent_process = None  # type: ignore[attr-defined]  # the agent is none of those
        begin_again()
        child.start_hooks()
        rank = int(os.environ["RANK"])
        record(run_function)(self._function, self._args, self._results.detach(), False, rank)


def _write_lines() -> None:
    """Keeps what a worker printed before it was killed: as python -u, but for half lines."""
    for name, fd in (("stdout", 1), ("stderr", 2)):
        stream = getattr(sys, name)
        if stream is None:
            stream = open(fd, "w", encoding="utf-8", errors="backslashreplace", closefd=False)
            setattr(sys, name, stream)
        if hasattr(stream, "reconfigure"):
            with contextlib.suppress(ValueError):  # the caller has closed it
                stream.reconfigure(line_buffering=True)


class Forked(subprocess.Popen[bytes]):
    """The guardian of an agent, and that agent, forked from this process. `caller`: the agent's end
    of the connection to this process, `apart` ours; `kept`: descriptors that the agent inherits,
    too. Fails with OSError.
    """

    def __init__(self, words: list[str], environment: Mapping[str, str], caller: socket.socket,
                 apart: socket.socket, kept: Iterable[int], stdout: int | None,
                 copy: CallerCopy) -> None:
        if shutil.which(words[0]) is None:
            raise FileNotFoundError(2, os.strerror(2), words[0])
        self._words = words
        self._environment = environment
        self._caller = caller
        self._apart = apart
        self._kept = {caller.fileno(), *kept}
        self._stdout = stdout
        self._copy = copy
        super().__init__(words)

    def _execute_child(self, *_: Any) -> None:
        """Replaces Popen's fork and exec."""
        self._board = above_streams(os.memfd_create("elastrun-board", os.MFD_CLOEXEC))
        self.pid = 0
        try:
            self._fork()
        except BaseException:  # a Ctrl+C meanwhile: nothing has begun that has to be ended first
            if self.pid:
                kill_and_reap(self.pid)
            raise
        finally:
            os.close(self._board)
            self._copy.close()
        self._child_created = True

    def _fork(self) -> None:
        _flush()
        self._collects = gc.isenabled()
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        try:
            gc.disable()  # what it finds has finalizers, which are the caller's to run
            # Signals wait until the one that they are for can take them.
            signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())
            self.pid = os.fork()
            if self.pid == 0:
                self._begin()
        finally:
            if self._collects:
                gc.enable()
            # Last: the handler of one that has come meanwhile may raise.
            signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)

    def _begin(self) -> NoReturn:
        """Runs in the guardian."""
        try:
            guardian, agent = os.getpid(), os.fork()
            kept = {self._board}
            if agent == 0:
                kept |= self._kept
                agent = os.getpid()
                os.setpgid(0, 0)  # a terminal signals the guardian alone
                if os.fork() == 0:
                    os.close(self._board)
                    self._copy.begin(agent, {int(one) for one in self._mask},
                                     (self._caller, self._apart), self._collects)
            self._execute(f"{self._board} {guardian} {agent}", kept)
        except OSError as error:  # the last words of an agent; one without the other ends by itself
            text = f"cannot start the agent: {error}"
            said = {"ended": {"error": {"kind": "spawn", "text": text}}}
            self._caller.send(json.dumps(said).encode() + b"\n")
        finally:
            os._exit(127)

    def _execute(self, pair: str, kept: set[int]) -> NoReturn:
        if self._stdout is not None:
            os.dup2(self._stdout, 1)
        for name in os.listdir("/proc/self/fd"):
            if int(name) > 2:
                with contextlib.suppress(OSError):  # of the list itself
                    os.set_inheritable(int(name), int(name) in kept)
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)  # Python has them ignored
        os.execvpe(self._words[0], self._words, {**self._environment, _PAIR: pair})
