# SPDX-License-Identifier: Apache-2.0
"""Workers as processes of this machine: torch.distributed.elastic.multiprocessing."""
from __future__ import annotations

import importlib

TYPE_CHECKING = False  # a worker that runs a function needs none of these, nor what they import
if TYPE_CHECKING:
    from typing import Any

    from elastrun.multiprocessing import api, errors
    from elastrun.multiprocessing.api import *  # noqa: F403
    from elastrun.multiprocessing.errors import *  # noqa: F403

__all__ = ["ChildFailedError", "DefaultLogsSpecs", "LogsDest", "LogsSpecs", "MultiprocessContext",
           "PContext", "ProcessFailure", "RunProcsResult", "SignalException", "Std",
           "SubprocessContext", "api", "errors", "record", "start_processes", "to_map"]


def __getattr__(name: str) -> Any:
    for module in ("errors", "api") if name in __all__ else ():
        found = importlib.import_module(f"elastrun.multiprocessing.{module}")
        if name == module or hasattr(found, name):
            return found if name == module else getattr(found, name)
    raise AttributeError(f"module 'elastrun.multiprocessing' has no attribute '{name}'")
