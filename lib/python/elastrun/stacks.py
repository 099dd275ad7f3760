# SPDX-License-Identifier: Apache-2.0
"""Offers the Python stacks of this process to the agent, for the moment when it hangs."""
from __future__ import annotations

import faulthandler
import os
import signal

from elastrun.channel import is_connected, send_object

_file: int | None = None
_offered_by = 0  # the process; a forked child offers its own


def _free_signal() -> int | None:
    """A real-time signal that nobody in this process handles."""
    for number in range(signal.SIGRTMAX - 1, signal.SIGRTMIN, -1):
        if signal.getsignal(number) is signal.SIG_DFL:
            return number
    return None


def offer_stacks() -> bool:
    """From now on the agent can get the stacks of all threads of this process, also while it hangs
    in C: at a real-time signal that nobody uses, `faulthandler` writes them to a file in memory.
    The import of this package does that; a forked child has to call it. False without an agent.
    """
    global _file, _offered_by
    if _offered_by == os.getpid():
        return True
    number = _free_signal() if is_connected() else None
    if number is None:
        return False
    try:
        file = os.memfd_create("elastrun-stacks", os.MFD_CLOEXEC)
        faulthandler.register(number, file=file, all_threads=True, chain=False)
    except (AttributeError, OSError, RuntimeError, ValueError):
        return False
    if not send_object({"kind": "stacks", "signal": number, "descriptor": file}):
        faulthandler.unregister(number)
        os.close(file)
        return False
    # That of the parent is shared with it; its own handler keeps to it.
    _file, _offered_by = file, os.getpid()
    return True
