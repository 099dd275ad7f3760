# SPDX-License-Identifier: Apache-2.0
"""The end of a process; also of a child of multiprocessing (a data loader, a pool), which ends
without what was registered with atexit, and with it what the child has told last.
"""
from __future__ import annotations

import atexit
import contextlib
import os
import sys
from collections.abc import Callable

_BEHIND = -1  # what scripts have registered with multiprocessing comes first, mostly
_calls: list[Callable[[], object]] = []


def at_end(call: Callable[[], object]) -> None:
    """As atexit.register. In a child of multiprocessing it may be called twice."""
    atexit.register(call)
    _calls.append(call)


def _end() -> None:
    for call in reversed(_calls):
        with contextlib.suppress(Exception):  # it may not keep the others from their end
            call()


def _await_end(end: Callable[[], None]) -> None:
    with contextlib.suppress(Exception):  # a module that is half imported, or of other insides
        sys.modules["multiprocessing.util"].Finalize(None, end, exitpriority=_BEHIND)


def _forked() -> None:
    """The child forgets what was registered for the end of its parent, and calls back then."""
    with contextlib.suppress(Exception):
        sys.modules["multiprocessing.util"].register_after_fork(_end, _await_end)


os.register_at_fork(after_in_child=_forked)
with contextlib.suppress(Exception):  # such a child imports us itself
    if sys.modules["multiprocessing.process"].parent_process() is not None:
        _await_end(_end)
