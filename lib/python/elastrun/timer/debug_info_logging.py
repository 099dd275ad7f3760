# SPDX-License-Identifier: Apache-2.0
"""The log of a timer server before it ends workers, under the name that torch has for it."""
from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

__all__ = ["log_debug_info_for_expired_timers"]

_log = logging.getLogger(__name__)


def log_debug_info_for_expired_timers(run_id: str,
                                      expired_timers: Mapping[int, Sequence[str]]) -> None:
    """Logs the expired timers of a run, as JSON texts by pid; without any nothing."""
    if expired_timers:
        _log.info("Timers expired for run:[%s] [%s].", run_id, expired_timers)
