# SPDX-License-Identifier: Apache-2.0
"""Offers the Python stacks of this process to the agent, for the moment when it hangs.

One signal, two ways. Sent to a thread of ours, it lets that thread write the stacks of all threads
while it holds the interpreter lock, so that none of them moves. Sent to the process, which the
agent does where that thread cannot get the lock, it lets faulthandler write the stack of the main
thread alone, from inside the signal handler: one that walked the frames of threads that run would
crash the process.
"""
from __future__ import annotations

import _thread
import contextlib
import os
import signal
import sys
import threading

from elastrun.channel import is_connected, send_object

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_OWN_FAULTS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL}

_offer: dict[str, Any] | None = None
_made_by = 0  # the process; a forked child makes its own
_is_told = False


def _stacks() -> bytes:
    """Collects all threads but this one, as faulthandler writes them: the main thread last."""
    import faulthandler  # see _make_offer()

    file = os.memfd_create("elastrun-stacks-now", os.MFD_CLOEXEC)
    try:
        faulthandler.dump_traceback(file, all_threads=True)
        text = os.pread(file, os.fstat(file).st_size, 0)
    finally:
        os.close(file)
    sections = text.strip().split(b"\n\n")
    return b"\n\n".join(one for one in sections if not one.startswith(b"Current thread ")) + b"\n"


def _start_answering(number: int, file: int) -> int:
    """The kernel's number of the thread. It is none of `threading`: scripts that join all of those
    would wait for it. Fails with RuntimeError if there can be no more threads. 0: there are none;
    what gevent puts in their place runs in the thread that asks, which must not wait for a signal.
    """
    begun: list[int] = []
    ready = threading.Event()
    asker = threading.get_native_id()

    def run() -> None:
        begun.append(threading.get_native_id())
        ready.set()
        while begun[0] != asker:
            signal.sigwait({number})
            with contextlib.suppress(OSError):  # no memory left: the agent asks the main thread
                os.write(file, _stacks())  # at once: the agent sees the whole or nothing

    # A signal that the script blocks, to wait for it, must not find a thread that takes it.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - _OWN_FAULTS)
    try:
        _thread.start_new_thread(run, ())
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    ready.wait()
    return begun[0] if begun[0] != asker else 0


def _make_offer() -> dict[str, Any] | None:
    number = next((one for one in range(signal.SIGRTMAX - 1, signal.SIGRTMIN, -1)
                   if signal.getsignal(one) is signal.SIG_DFL), None)
    # Without the interpreter lock nothing keeps the other threads still.
    if number is None or not getattr(sys, "_is_gil_enabled", lambda: True)():
        return None
    try:
        import faulthandler  # which subinterpreters with a lock each refuse

        file = os.memfd_create("elastrun-stacks", os.MFD_CLOEXEC)
        faulthandler.register(number, file=file, all_threads=False, chain=False)
        thread = _start_answering(number, file)
    except (AttributeError, ImportError, OSError, RuntimeError, ValueError):
        return None
    return {"kind": "stacks", "signal": number, "descriptor": file, "thread": thread}


def own_thread() -> int:
    """The kernel's number of the thread that this process has for that; 0: none."""
    return _offer["thread"] if _offer is not None and _made_by == os.getpid() else 0


def offer_stacks() -> bool:
    """Lets the agent get the stacks of all threads of this process, from now on; also while it
    hangs in C, then of the main thread alone if that holds the interpreter lock. They are written
    to a file in memory. The import of this package does that; a forked child has to call it. False
    without an agent, or if there can be none.
    """
    global _offer, _made_by, _is_told
    mine = _made_by == os.getpid()
    if mine and _is_told:
        return True
    if not is_connected():
        return False
    if not mine:
        # That of the parent is shared with it; its own handler and thread keep to it.
        _offer, _made_by, _is_told = _make_offer(), os.getpid(), False
    _is_told = _offer is not None and send_object(_offer)
    return _is_told
