# SPDX-License-Identifier: Apache-2.0
"""Destinations of events: "console" is stderr, the others are nowhere."""
from __future__ import annotations

import logging

__all__ = ["get_logging_handler"]

_log_handlers: dict[str, logging.Handler] = {
    "console": logging.StreamHandler(), "dynamic_rendezvous": logging.NullHandler(),
    "null": logging.NullHandler()}


def get_logging_handler(destination: str = "null") -> logging.Handler:
    """Fails with KeyError on an unknown destination."""
    try:
        return _log_handlers[destination]
    except KeyError:
        raise KeyError(f"event destination '{destination}': known are "
                       f"{', '.join(sorted(_log_handlers))}") from None
