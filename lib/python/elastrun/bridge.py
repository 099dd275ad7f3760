# SPDX-License-Identifier: Apache-2.0
"""Forwards what a script tells torch's own interfaces to the agent: events of torch.monitor, and
metrics and events of torch.distributed.elastic. One line in the script,

    elastrun.bridge.torch()

or none: elastrun --worker-lib -m elastrun.bridge SCRIPT [ARGUMENT ...]

Handlers that the script configures get theirs as ever. Does not import torch: a module is bridged
when the script has imported it. Outside elastrun nothing happens.
"""
from __future__ import annotations

import atexit
import contextlib
import json
import logging
import os
import runpy
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from elastrun import reporter
from elastrun.channel import send_event
from elastrun.imports import after_import, before, wrap

__all__ = ["torch"]


def _bridge_monitor(module: ModuleType) -> None:
    from elastrun.monitor import forward

    # torch holds a lock of the whole process meanwhile: nothing of torch may be called here.
    def tell(event: Any) -> None:
        with contextlib.suppress(Exception):  # it would keep the event from other handlers
            forward(event)

    # A handler that is still registered when the interpreter ends crashes torch 2.13.
    atexit.register(module.unregister_event_handler, module.register_event_handler(tell))


def _put(stream: Any, metric_name: str, metric_value: Any) -> None:
    if (mine := reporter.reporter) is not None:
        mine.put((stream.group_name, metric_name), metric_value)


class _Forward(logging.Handler):
    """On the loggers of torchelastic's events, whose records are the JSON of an event."""

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(Exception):  # no event
            fields = json.loads(record.getMessage())
            name = fields.pop("name")
            metadata = fields.pop("metadata", {})
            milliseconds = fields.pop("timestamp", 0)
            send_event(name, {**fields, **metadata}, milliseconds / 1000 if milliseconds else None)


def _forwarding(of_destination: Callable[..., Any]) -> Callable[..., Any]:
    forward = _Forward()

    def get_or_create_logger(destination: str = "null") -> Any:
        logger = of_destination(destination)
        if forward not in logger.handlers:
            logger.addHandler(forward)
        return logger

    return get_or_create_logger


_bridged = False


def torch() -> bool:
    """Lets torch's monitor events and torchelastic's metrics and events reach the agent, too, from
    now on. May be called again. False outside elastrun.
    """
    global _bridged
    if reporter.reporter is None:
        return False
    if not _bridged:
        _bridged = True
        elastic = "torch.distributed.elastic"
        after_import("torch.monitor", _bridge_monitor)
        # Below put_metric, which scripts import by name, and above handlers, which they replace.
        wrap(f"{elastic}.metrics.api:MetricStream.add_value", before(_put))
        wrap(f"{elastic}.events:_get_or_create_logger", _forwarding)
    return True


def main() -> None:
    if len(sys.argv) < 2:
        sys.exit("usage: python -m elastrun.bridge SCRIPT [ARGUMENT ...]")
    torch()
    del sys.argv[0]
    if not getattr(sys.flags, "safe_path", False):  # since Python 3.11
        sys.path[0] = os.path.dirname(os.path.realpath(sys.argv[0]))
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    # Under its own name: the script may import it, and must find that it is done.
    from elastrun import bridge
    bridge.main()
