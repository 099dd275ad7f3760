# SPDX-License-Identifier: Apache-2.0
"""What this process is by its environment: a worker, and of which agent. Modules ask when they are
imported; in a launcher's fork that becomes a worker, they are asked to look again.
"""
from __future__ import annotations

from collections.abc import Callable

_calls: list[Callable[[], object]] = []


def at_begin(call: Callable[[], object]) -> None:
    """Now, and in a fork that becomes a worker. A module that needs another one comes after it, by
    importing it first."""
    _calls.append(call)
    call()


def begin_again() -> None:
    """The environment is a worker's from now on."""
    for call in _calls:
        call()
