# SPDX-License-Identifier: Apache-2.0
"""Workers as processes of this machine: torch.distributed.elastic.multiprocessing."""
from __future__ import annotations

import importlib

TYPE_CHECKING = False  # a worker that runs a function needs none of these, nor what they import
if TYPE_CHECKING:
    from typing import Any

    from elastrun.multiprocessing import api, errors
    from elastrun.multiprocessing.api import (DefaultLogsSpecs, LogsDest, LogsSpecs,
                                              MultiprocessContext, PContext, RunProcsResult,
                                              SignalException, Std, SubprocessContext,
                                              start_processes, to_map)
    from elastrun.multiprocessing.errors import ChildFailedError, ProcessFailure, record

__all__ = ["ChildFailedError", "DefaultLogsSpecs", "LogsDest", "LogsSpecs", "MultiprocessContext",
           "PContext", "ProcessFailure", "RunProcsResult", "SignalException", "Std",
           "SubprocessContext", "api", "errors", "record", "start_processes", "to_map"]


def __getattr__(name: str) -> Any:
    if name in ("api", "errors"):
        return importlib.import_module(f"elastrun.multiprocessing.{name}")
    if name not in __all__:
        raise AttributeError(f"module 'elastrun.multiprocessing' has no attribute '{name}'")
    found = importlib.import_module("elastrun.multiprocessing.errors")
    if not hasattr(found, name):
        found = importlib.import_module("elastrun.multiprocessing.api")
    return getattr(found, name)
