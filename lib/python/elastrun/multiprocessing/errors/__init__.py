# SPDX-License-Identifier: Apache-2.0
"""Failures of workers: torch.distributed.elastic.multiprocessing.errors."""
from __future__ import annotations

import json
import logging
import signal
import socket
import time
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from elastrun.errors import record
from elastrun.multiprocessing.errors.error_handler import ErrorHandler
from elastrun.multiprocessing.errors.handlers import get_error_handler

__all__ = ["ChildFailedError", "ErrorHandler", "ProcessFailure", "get_error_handler", "record"]

_NOT_AVAILABLE = "<N/A>"
_log = logging.getLogger(__name__)
_ADVICE = "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html"


def _seconds(said: Any) -> int:
    """Takes it as given, or now where it is none that has a date, such as a time in ms."""
    try:
        seconds = int(said)
        datetime.fromtimestamp(seconds)
    except (OSError, OverflowError, ValueError):
        return int(time.time())
    return seconds


@dataclass
class ProcessFailure:
    """A worker that failed. What it left in `error_file` is read at once; `timestamp` is in seconds
    since the epoch, of the failure, or now where it left none. `exitcode`: negative for a signal.
    """

    local_rank: int
    pid: int
    exitcode: int
    error_file: str
    error_file_data: dict[str, Any] = field(init=False)
    message: Any = field(init=False)
    timestamp: int = field(init=False)

    def __post_init__(self) -> None:
        if not self._read():
            self.error_file = _NOT_AVAILABLE
            self.error_file_data = {"message": "<NONE>"}
            self.message = ""
            self.timestamp = int(time.time())
        if self.message:
            return
        if self.exitcode < 0:
            self.message = (f"Signal {-self.exitcode} ({self.signal_name()}) "
                            f"received by PID {self.pid}")
        else:
            self.error_file_data["errorTraits"] = {
                "category": "system_terminated_error", "retryability": "False"}
            self.message = _ADVICE

    def _read(self) -> bool:
        """Other than with torch, a file that a dying worker left half written costs nothing but
        its contents.
        """
        try:
            with open(self.error_file, encoding="utf-8", errors="replace") as file:
                data = json.load(file)
            message = data["message"]
            said = data.get("timestamp", 0) if isinstance(message, str) else \
                message["extraInfo"]["timestamp"]
            self.error_file_data, self.message, self.timestamp = data, message, _seconds(said)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return False
        return True

    def signal_name(self) -> str:
        try:
            return signal.Signals(-self.exitcode).name if self.exitcode < 0 else _NOT_AVAILABLE
        except ValueError:
            return _NOT_AVAILABLE

    def timestamp_isoformat(self) -> str:
        """YYYY-MM-DD_HH:MM:SS, local time."""
        return datetime.fromtimestamp(self.timestamp).isoformat(sep="_")


class ChildFailedError(Exception):
    """Workers have failed. `failures`: by global rank; at least one.

    A function with @record that lets it pass leaves the error file of the first failure as its own.
    """

    def __init__(self, name: str, failures: dict[int, ProcessFailure]) -> None:
        if not failures:
            raise AssertionError("a ChildFailedError needs failures")
        self.name = name
        self.failures = failures
        super().__init__(self.format_msg())

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.name, self.failures)

    def get_first_failure(self) -> tuple[int, ProcessFailure]:
        """The global rank and what is known of the one that failed first."""
        return min(self.failures.items(), key=lambda one: one[1].timestamp)

    def error_file(self) -> str:
        """The file of the first failure; empty if it left none."""
        path = self.get_first_failure()[1].error_file
        return "" if path == _NOT_AVAILABLE else path

    def format_msg(self, boarder_delim: str = "=", section_delim: str = "-") -> str:
        """The block that torchrun prints."""
        title = f"{self.name} FAILED"
        first, _ = self.get_first_failure()
        blocks = {rank: _block(index, rank, failure)
                  for index, (rank, failure) in enumerate(self.failures.items())}
        lines = [title, *"\n".join(blocks.values()).split("\n")]
        width = min(max(map(len, lines)), 60)
        others = [block for rank, block in blocks.items() if rank != first]
        return "\n".join([
            "", boarder_delim * width, title, section_delim * width, "Failures:",
            *(others or ["  <NO_OTHER_FAILURES>"]), section_delim * width,
            "Root Cause (first observed failure):", blocks[first], boarder_delim * width])


def _block(index: int, rank: int, failure: ProcessFailure) -> str:
    message = failure.message
    if isinstance(message, dict):
        extra = message.get("extraInfo", {})
        message = extra.get("py_callstack", message.get("message", _NOT_AVAILABLE))
        message = str(message).replace("\n", "\n  ")
    if failure.exitcode < 0:
        try:
            message = get_error_handler().maybe_enrich_signal_failure_message(message,
                                                                              failure.error_file)
        except Exception:
            _log.warning("Failed to enrich signal failure message", exc_info=True)
    name = failure.signal_name()
    return "\n".join([
        f"[{index}]:",
        f"  time      : {failure.timestamp_isoformat()}",
        f"  host      : {socket.getfqdn()}",
        f"  rank      : {rank} (local_rank: {failure.local_rank})",
        f"  exitcode  : {failure.exitcode} (pid: {failure.pid}) "
        + (f" ({name})" if name != _NOT_AVAILABLE else ""),
        f"  error_file: {failure.error_file}",
        f"  traceback : {message}"])
