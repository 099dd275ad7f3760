# SPDX-License-Identifier: Apache-2.0
"""Obstacles to a fork of this process: it has one thread, with the locks that others held, and
an accelerator's context of which nothing works.
"""
from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
import warnings

from elastrun import stacks

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


def _used_device() -> str | None:
    cuda = sys.modules.get("torch.cuda")
    if cuda is not None and cuda.is_initialized():
        return "CUDA"
    for one in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{one}")
        except OSError:
            continue  # of the list itself
        if target.startswith(_DEVICES):
            return target
    return None


def obstacle() -> str | None:
    """Says what is against a fork of this process, and what to do; None: nothing is."""
    threads = _count_threads()
    if threads > 1:
        named = ", ".join(one.name for one in threading.enumerate()
                          if one is not threading.main_thread())
        return (f"this process has {threads} threads ({named or 'of libraries'}), whose locks a "
                "fork may wait for without end; use spawn, or start the processes before the "
                "threads")
    device = _used_device()
    if device is not None:
        return (f"this process has used {device}, which does not work in a fork; use spawn, or "
                "start the processes before")
    return None


def refuse_fork() -> None:
    """Fails with RuntimeError that says what is against it."""
    why = obstacle()
    if why is not None:
        raise RuntimeError(f"start_method 'fork': {why}")
