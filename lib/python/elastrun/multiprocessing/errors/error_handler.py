# SPDX-License-Identifier: Apache-2.0
"""torch.distributed.elastic.multiprocessing.errors.error_handler."""
from __future__ import annotations

from elastrun import errors

__all__ = ["ErrorHandler"]


class ErrorHandler:
    """Does what @record does with an exception. Derive from it to do more."""

    def initialize(self) -> None:
        """Before the function runs: crashes in C leave the Python stacks in stderr."""
        errors.enable_faulthandler()

    def record_exception(self, e: BaseException) -> None:
        """Writes it to TORCHELASTIC_ERROR_FILE, if that is set. Never fails."""
        errors.write_error_file(e)

    def dump_error_file(self, rootcause_error_file: str, error_code: int = 0) -> None:
        """Copies that file of a worker to TORCHELASTIC_ERROR_FILE, with the worker's exit code."""
        errors.copy_error_file(rootcause_error_file, error_code)

    def maybe_enrich_signal_failure_message(self, message: str, error_file: str) -> str:
        """The text that ChildFailedError shows for a worker that a signal has ended."""
        return message
