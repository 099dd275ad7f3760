# SPDX-License-Identifier: Apache-2.0
"""Expiration timers with the interface of torch.distributed.elastic.timer: see elastrun.timer.api.

The servers and clients for launchers and scripts without elastrun's agent are imported when they
are first used: elastrun.timer.local_timer, elastrun.timer.file_based_local_timer.
"""
from __future__ import annotations

import importlib

from elastrun.timer.api import (ChannelTimerClient, RequestQueue, TimerClient, TimerRequest,
                                TimerServer, configure, expires)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from elastrun.timer.debug_info_logging import *  # noqa: F403
    from elastrun.timer.file_based_local_timer import *  # noqa: F403
    from elastrun.timer.local_timer import *  # noqa: F403

__all__ = ["ChannelTimerClient", "FileTimerClient", "FileTimerRequest", "FileTimerServer",
           "LocalTimerClient", "LocalTimerServer", "MultiprocessingRequestQueue", "RequestQueue",
           "TimerClient", "TimerRequest", "TimerServer", "configure", "expires",
           "log_debug_info_for_expired_timers"]

_MODULES = ("debug_info_logging", "file_based_local_timer", "local_timer")


def __getattr__(name: str) -> Any:
    for module in _MODULES if name in (*__all__, *_MODULES) else ():
        found = importlib.import_module(f"elastrun.timer.{module}")
        if name == module or hasattr(found, name):
            return found if name == module else getattr(found, name)
    raise AttributeError(f"module 'elastrun.timer' has no attribute '{name}'")
