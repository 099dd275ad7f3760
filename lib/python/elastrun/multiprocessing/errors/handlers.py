# SPDX-License-Identifier: Apache-2.0
"""torch.distributed.elastic.multiprocessing.errors.handlers."""
from __future__ import annotations

from elastrun.multiprocessing.errors.error_handler import ErrorHandler

__all__ = ["get_error_handler"]


def get_error_handler() -> ErrorHandler:
    return ErrorHandler()
