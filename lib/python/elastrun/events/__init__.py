# SPDX-License-Identifier: Apache-2.0
"""Events with the interface of torch.distributed.elastic.events.

    from elastrun import events

    events.record(events.Event("data.epoch", events.EventSource.WORKER, metadata={"epoch": 3}))

Under elastrun each event reaches the agent, whatever its destination; elsewhere only that.
"""
from __future__ import annotations

import contextlib
import logging
import os
import socket
import sys
import traceback
from dataclasses import asdict
from typing import Any

from elastrun.channel import lost, send_event
from elastrun.events import api
from elastrun.events.api import *  # noqa: F403
from elastrun.events.api import Event, EventHandler, NodeState, RdzvEvent
from elastrun.events.handlers import get_logging_handler

__all__ = ["configure", "construct_and_record_rdzv_event", "get_logging_handler", "record",
           "record_rdzv_event"]
__all__ += api.__all__

_RDZV = "dynamic_rendezvous"
_handlers: dict[str, EventHandler] = {}
_loggers: dict[str, logging.Logger] = {}
_failures = 0


def configure(handler: EventHandler, destination: str = "null") -> None:
    """Gives `handler` the events of `destination`, known before or not, from now on."""
    _handlers[destination] = handler


def _get_or_create_logger(destination: str = "null") -> logging.Logger:
    if destination not in _loggers:
        handler = get_logging_handler(destination)
        # Not torch's name for it, which torch hangs its own handler on.
        logger = logging.getLogger(f"elastrun-events-{destination}")
        with contextlib.suppress(ValueError):  # a level that only others know
            logger.setLevel(logging.INFO)
            level = os.environ.get("LOGLEVEL", "").strip().upper() or "INFO"
            logger.setLevel(int(level) if level.isdigit() else level)
        logger.propagate = False
        logger.addHandler(handler)
        _loggers[destination] = logger
    return _loggers[destination]


def has_handler(destination: str) -> bool:
    """Tells if a handler of this process gets the events of an agent with that destination."""
    return destination in _handlers or _RDZV in _handlers


def failures() -> int:
    """The number of events that their destinations have refused by raising."""
    return _failures


def hand_on(event: Event | RdzvEvent, destination: str) -> None:
    """Gives an event, also one of the agent that this process has started, to its destination."""
    global _failures
    handler = _handlers.get(destination)
    logger = _get_or_create_logger(destination) if handler is None else None
    try:
        if handler is not None:
            handler.record(event)
        elif logger is not None:
            logger.info(event.serialize())
    except Exception:
        _failures += 1
        logging.getLogger(__name__).debug("an event was not recorded", exc_info=True)


def record(event: Event, destination: str = "null") -> None:
    """Tells the agent, and the destination: "console" (stderr), "null", or one that was configured.
    Fails with KeyError on an unknown one.
    """
    try:
        at = event.timestamp / 1000 if event.timestamp else None
    except Exception:
        lost()
        at = None  # it happened all the same
    try:
        source = getattr(event.source, "value", event.source)
        send_event(event.name, {**event.metadata, "source": source}, at)
    except Exception:
        lost()
    hand_on(event, destination)


def record_rdzv_event(event: RdzvEvent) -> None:
    try:
        attributes: dict[str, Any] = asdict(event)
        attributes["node_state"] = getattr(event.node_state, "value", event.node_state)
        send_event(attributes.pop("name"), attributes)
    except Exception:
        lost()
    hand_on(event, _RDZV)


def construct_and_record_rdzv_event(
        run_id: str, message: str, node_state: NodeState, name: str = "", hostname: str = "",
        pid: int | None = None, master_endpoint: str = "", local_id: int | None = None,
        rank: int | None = None) -> None:
    """Builds the event, named FILE:NAME after the caller, and records it; nothing of that while
    the destination "dynamic_rendezvous" is the null one.
    """
    if _RDZV not in _handlers and isinstance(get_logging_handler(_RDZV), logging.NullHandler):
        return
    caller = sys._getframe().f_back  # None: the interpreter, at its exit or in a thread
    file = os.path.basename(caller.f_code.co_filename) if caller else "no_file"
    name = name or (caller.f_code.co_name if caller else "")
    error_trace = traceback.format_exc() if node_state == NodeState.FAILED else ""
    record_rdzv_event(RdzvEvent(
        f"{file}:{name}", run_id, message, hostname or socket.getfqdn(), pid or os.getpid(),
        node_state, master_endpoint, rank, local_id, error_trace))
