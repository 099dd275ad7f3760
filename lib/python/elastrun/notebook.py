# SPDX-License-Identifier: Apache-2.0
"""Workers from a notebook.

    import elastrun

    def train(learning_rate):
        ...
        return loss

    losses = elastrun.notebook_launcher(train, (1e-3,), num_processes=2)     # {0: ..., 1: ...}

A function that a cell defines goes to the workers by value, with what it uses of the notebook, for
which the package cloudpickle has to be installed; one of a module goes by its name. In an
interpreter without other threads, which Jupyter's kernel is not, the workers of a function that is
defined there are its forks. The cell shows what the worker with local rank 0 prints. The interrupt
button ends the workers, and then the cell.
"""
from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from typing import Any

from elastrun.agent.server import LocalElasticAgent, WorkerSpec
from elastrun.launcher.api import entrypoint_name
from elastrun.multiprocessing.api import DefaultLogsSpecs, SignalException
from elastrun.multiprocessing.errors import ChildFailedError
from elastrun.multiprocessing.fork import obstacle
from elastrun.multiprocessing.payload import is_of_main
from elastrun.rendezvous import RendezvousParameters, get_rendezvous_handler

__all__ = ["notebook_launcher"]


def _show(descriptor: int) -> None:
    """Shows in the cell what comes through the pipe, as it comes."""
    with open(descriptor, encoding="utf-8", errors="replace", newline="") as lines:
        for line in lines:
            sys.stdout.write(line)
            sys.stdout.flush()


def notebook_launcher(function: Callable[..., Any], args: tuple[Any, ...] = (),
                      num_processes: int = 1, *, by_value: bool | None = None,
                      max_restarts: int = 0, options: dict[str, Any] | None = None
                      ) -> dict[int, Any]:
    """Runs `function(*args)` in so many workers of this machine; what it returned, by rank.
    `by_value`: None is for what the notebook itself defines, if it cannot be forked. `options`: see
    LocalElasticAgent. Fails with ChildFailedError, with KeyboardInterrupt, and as
    LocalElasticAgent.run does.
    """
    start_method = "spawn"
    if by_value is None:
        by_value = is_of_main(function)
        if by_value and obstacle() is None:
            by_value, start_method = False, "fork"
    handler = get_rendezvous_handler(RendezvousParameters(
        "c10d", "localhost:0", f"notebook-{os.getpid()}", 1, 1))
    spec = WorkerSpec(role="default", local_world_size=num_processes, entrypoint=function,
                      args=args, rdzv_handler=handler, max_restarts=max_restarts)
    agent = LocalElasticAgent(spec, DefaultLogsSpecs(local_ranks_filter={0}), start_method,
                              by_value=by_value, options=options)
    ours, theirs = os.pipe()
    shown = threading.Thread(target=_show, args=(ours,), name="elastrun-notebook", daemon=True)
    try:
        result = agent._run(theirs, shown.start)
    except SignalException as end:
        raise KeyboardInterrupt(str(end)) from None
    finally:
        os.close(theirs)  # the last of it, so that the reader sees the end
        if shown.ident is None:  # nothing has been started
            os.close(ours)
        else:
            shown.join(5)  # a process that has left the job may keep the pipe
    if result.is_failed():
        raise ChildFailedError(entrypoint_name(function, []), result.failures)
    return result.return_values
