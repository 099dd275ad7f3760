# SPDX-License-Identifier: Apache-2.0
"""In a worker: runs its function, and gives the caller what that returned."""
from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import Any

from elastrun.multiprocessing.payload import send_value

__all__ = ["run_function"]


def _wait_for_the_others() -> None:
    """As torch's: a worker that ends early takes down what others still use. The agent ends the
    connection when the functions of all workers of this node have returned.
    """
    channel = os.environ.get("ELASTRUN_CHANNEL")
    if not channel:
        return
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as agent:
            agent.connect(os.path.abspath(channel))
            agent.send(b'{"kind":"returned"}')
            agent.recv(1)
    except OSError:
        pass


def run_function(function: Callable[..., Any], args: tuple[Any, ...], results: int, by_value: bool,
                 rank: int) -> None:
    """`results`: the socket for what it returned. Fails as the function and send_value() do."""
    worker = os.getpid()
    value = function(*args)
    if os.getpid() != worker:  # a child that it forked, and that came back
        return
    name = getattr(function, "__qualname__", repr(function))
    send_value(results, rank, name, value, by_value)
    _wait_for_the_others()
