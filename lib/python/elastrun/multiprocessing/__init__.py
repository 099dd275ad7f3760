# SPDX-License-Identifier: Apache-2.0
"""Workers as processes of this machine: torch.distributed.elastic.multiprocessing."""
from elastrun.multiprocessing.api import (DefaultLogsSpecs, LogsDest, LogsSpecs, RunProcsResult,
                                          SignalException, Std, to_map)
from elastrun.multiprocessing.errors import ChildFailedError, ProcessFailure, record

__all__ = ["ChildFailedError", "DefaultLogsSpecs", "LogsDest", "LogsSpecs", "ProcessFailure",
           "RunProcsResult", "SignalException", "Std", "record", "to_map"]
