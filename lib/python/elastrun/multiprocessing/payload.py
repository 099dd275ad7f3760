# SPDX-License-Identifier: Apache-2.0
"""A function and its arguments on their way to the workers, and what it returned on its way back.

Both are pickles in sealed memory files, which no other process can change or find by a name. The
first is inherited by the workers; each worker sends a descriptor of the second over a socket that
it has inherited, so a large value costs no copy through a pipe and cannot block anything.
"""
from __future__ import annotations

import copyreg
import errno
import fcntl
import functools
import importlib
import io
import mmap
import os
import pickle
import socket
import struct
import sys
from collections import ChainMap
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import context, process, reduction, resource_tracker, spawn
from multiprocessing.popen_spawn_posix import _DupFd
from typing import Any

RETURN_LIMIT = 1 << 30  # bytes of one return value
_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


def above_streams(fd: int) -> int:
    """Gives the file a number that no standard stream has, and closes `fd`. A process without
    its streams (a daemon) gets their numbers for new files, and a worker has its own there."""
    if fd > 2:
        return fd
    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    finally:
        os.close(fd)


def socket_pair(kind: int = socket.SOCK_STREAM) -> tuple[socket.socket, socket.socket]:
    """Makes a pair with numbers above those of the standard streams."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, kind)
    return (socket.socket(fileno=above_streams(ours.detach())),
            socket.socket(fileno=above_streams(theirs.detach())))


def _cloudpickle() -> Any:
    try:
        return importlib.import_module("cloudpickle")
    except ImportError:
        raise TypeError("a function by value needs the package cloudpickle: pip install "
                        "cloudpickle") from None


def _pickler(file: io.BytesIO, by_value: bool) -> pickle.Pickler:
    base: Any = pickle.Pickler
    table: Any = copyreg.dispatch_table
    if by_value:
        cloudpickle = _cloudpickle()
        base, table = cloudpickle.CloudPickler, cloudpickle.CloudPickler.dispatch_table
    # The way multiprocessing pickles what it can share with a child that is being started. Not
    # what others have taught ForkingPickler: torch would share a tensor's memory with this process,
    # where each start of the workers, also a later one, is to have the tensor as it was.
    extra = getattr(reduction.ForkingPickler, "_extra_reducers", {})
    shared = {kind: how for kind, how in extra.items()
              if getattr(how, "__module__", "").startswith("multiprocessing")}
    # Of the class: CPython's pickler looks for it when it is made.
    kind = type("_Pickler", (base,), {"dispatch_table": ChainMap(shared, table)})
    made: pickle.Pickler = kind(file, pickle.HIGHEST_PROTOCOL)
    return made


class Payload:
    """Descriptors that the workers inherit, of which `descriptor` is the pickle."""

    DupFd = _DupFd

    def __init__(self) -> None:
        self.descriptors: list[int] = []
        self.descriptor = -1
        # The one of multiprocessing, if it runs, knows the semaphores of a queue among the
        # arguments; started for this alone, it would be a process more, for nothing.
        running = getattr(resource_tracker._resource_tracker, "_fd", None)
        self.tracker = -1 if running is None else self.duplicate_for_child(running)

    # multiprocessing asks this of what is starting a child.
    def duplicate_for_child(self, fd: int) -> int:
        self.descriptors.append(fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3))
        return self.descriptors[-1]

    def close(self) -> None:
        while self.descriptors:
            os.close(self.descriptors.pop())


def _sealed(contents: memoryview | bytes) -> int:
    fd = above_streams(os.memfd_create("elastrun-pickle",
                                       os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
    try:
        view = memoryview(contents)
        while view:
            view = view[os.write(fd, view):]
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
    except BaseException:
        os.close(fd)
        raise
    return fd


def is_of_main(function: Callable[..., Any]) -> bool:
    """Tells if the main module defines it, or what it is a functools.partial of."""
    while isinstance(function, functools.partial):
        function = function.func
    return getattr(function, "__module__", "") == "__main__"


def pack(function: Callable[..., Any], args: tuple[Any, ...], by_value: bool = False) -> Payload:
    """Pickles them once. Fails with TypeError that says what cannot be pickled, and what to do, and
    with RuntimeError in a worker that imports a main module without its guard.
    """
    name = getattr(function, "__qualname__", repr(function))
    main = sys.modules["__main__"]
    importable = (getattr(getattr(main, "__spec__", None), "name", None) is not None
                  or os.path.isfile(getattr(main, "__file__", None) or ""))
    if not by_value and is_of_main(function) and not importable:
        raise TypeError(
            f"{name} is defined in a notebook or an interactive session, which workers cannot "
            "import: put it into a module, or give it by value (elastrun.notebook_launcher, or "
            "by_value=True), for which cloudpickle has to be installed")
    data = spawn.get_preparation_data(name)
    if by_value:
        data.pop("init_main_from_path", None)
        data.pop("init_main_from_name", None)
    payload = Payload()
    file = io.BytesIO()
    context.set_spawning_popen(payload)  # type: ignore[arg-type, unused-ignore]
    try:
        pickle.dump((data, by_value), file)
        _pickler(file, by_value).dump((function, args))
    except BaseException as error:
        payload.close()
        if not isinstance(error, Exception):
            raise
        raise TypeError(
            f"{name} or its arguments cannot be pickled for the workers: "
            f"{type(error).__name__}: {error}. A function has to be at the top level of a module, "
            "or given by value (by_value=True, with cloudpickle), and arguments have to be data"
        ) from error
    finally:
        context.set_spawning_popen(None)
    try:
        payload.descriptor = _sealed(file.getbuffer())
    except BaseException:
        payload.close()
        raise
    payload.descriptors.append(payload.descriptor)
    return payload


def load(descriptor: int, tracker: int) -> tuple[Callable[..., Any], tuple[Any, ...], bool]:
    """Prepares a worker's process as multiprocessing prepares a child, imports the main
    module of the caller as __mp_main__, and gives the function, its arguments, and whether they
    came by value: then without that import.
    """
    if tracker >= 0:
        resource_tracker._resource_tracker._fd = tracker  # type: ignore[attr-defined]
    current: Any = process.current_process()
    with mmap.mmap(descriptor, 0, prot=mmap.PROT_READ) as file:
        current._inheriting = True
        try:
            data, by_value = pickle.load(file)  # type: ignore[arg-type, unused-ignore]
            spawn.prepare(data)
            function, args = pickle.load(file)  # type: ignore[arg-type, unused-ignore]
        finally:
            del current._inheriting
    os.close(descriptor)
    return function, args, by_value


def send_value(channel: int, rank: int, function: str, value: Any, by_value: bool) -> None:
    """Sends a worker's value to the caller. Fails with TypeError on one that cannot be pickled, and
    with ValueError on one above RETURN_LIMIT.
    """
    try:
        # By value it may be of a class that the function has brought along.
        contents: bytes = (_cloudpickle() if by_value else pickle).dumps(
            value, pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        raise TypeError(
            f"the return value of {function}, of type {type(value).__name__}, cannot be pickled: "
            f"{type(error).__name__}: {error}. Return data, or None") from error
    if len(contents) > RETURN_LIMIT:
        raise ValueError(
            f"the return value of {function} has {len(contents)} bytes, more than the "
            f"{RETURN_LIMIT} that can be returned: write it to a file, and return its name")
    with socket.socket(fileno=channel) as out:
        fd = _sealed(contents)
        try:
            with suppress(BrokenPipeError):  # the caller has gone; the agent ends this job
                socket.send_fds(out, [struct.pack("=qq", rank, os.getpid())], [fd])
        finally:
            os.close(fd)


def run_function(function: Callable[..., Any], args: tuple[Any, ...], results: int, by_value: bool,
                 rank: int) -> None:
    """Runs it in a worker. `results`: the socket for what it returned. Fails as the function and
    send_value() do."""
    worker = os.getpid()
    value = function(*args)
    if os.getpid() != worker:  # a child that it forked, and that came back
        return
    name = getattr(function, "__qualname__", repr(function))
    send_value(results, rank, name, value, by_value)
    # Waits, as torch: a worker that ends early takes down what others still use. The agent ends the
    # connection when the functions of all workers of this node have returned.
    if channel := os.environ.get("ELASTRUN_CHANNEL"):
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as agent:
            agent.connect(os.path.abspath(channel))
            agent.send(b'{"kind":"returned"}')
            agent.recv(1)


def receive_value(channel: socket.socket) -> tuple[int, int, int] | None:
    """Receives, in the caller, a worker's rank, its process number and the descriptor of what it
    returned; None: nothing is there. Another message is ignored. Fails with OSError where this
    process can have no descriptor more.
    """
    channel.setblocking(False)  # recv_fds does not pass its flags on, before Python 3.13
    while True:
        try:
            said, descriptors, flags, _ = socket.recv_fds(channel, 64, 1)
        except (BlockingIOError, InterruptedError):
            return None
        if not said and not descriptors:
            return None
        for fd in descriptors:
            os.set_inheritable(fd, False)
        if len(said) == 16 and len(descriptors) == 1:
            rank, pid = struct.unpack("=qq", said)
            return int(rank), int(pid), descriptors[0]
        if len(said) == 16 and flags & socket.MSG_CTRUNC:
            raise OSError(errno.EMFILE, "no descriptor is left for what a worker has returned; "
                          "ulimit -n shows how many this process may have, and raises it")
        for fd in descriptors:
            os.close(fd)


def value_in(descriptor: int) -> Any:
    """Closes it. Fails as unpickling does: with ImportError, AttributeError, ..."""
    try:
        size = os.fstat(descriptor).st_size
        if not 0 < size <= RETURN_LIMIT:
            raise ValueError(f"a return value of {size} bytes")
        with mmap.mmap(descriptor, 0, prot=mmap.PROT_READ, flags=mmap.MAP_PRIVATE) as file:
            return pickle.load(file)  # type: ignore[arg-type, unused-ignore]
    finally:
        os.close(descriptor)
