# SPDX-License-Identifier: Apache-2.0
"""The error file by which a worker tells why it ended, as torch's `@record` writes it."""
from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Callable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeVar

    _Function = TypeVar("_Function", bound=Callable[..., Any])


def _left_in(path: str, exit_code: int) -> dict[str, Any]:
    import json

    with open(path, encoding="utf-8") as file:
        left: dict[str, Any] = json.load(file)
    if exit_code and isinstance(left.get("message"), dict):
        left["message"]["errorCode"] = exit_code  # of a signal, it could not write itself
    return left


def _told(error: BaseException) -> dict[str, Any]:
    import traceback  # which takes as long as all else, and is seldom needed

    # The file of the worker that a ChildFailedError is about.
    if (first := getattr(error, "get_first_failure", None)) is not None:
        failure = first()[1]
        with contextlib.suppress(OSError, ValueError):
            if left := _left_in(failure.error_file, failure.exitcode):
                return left
    return {"message": {
        "message": f"{type(error).__name__}: {error}",
        "extraInfo": {
            # With three arguments: the only form before Python 3.10.
            "py_callstack": "".join(
                traceback.format_exception(type(error), error, error.__traceback__)),
            "timestamp": str(int(time.time())),
        },
    }}


def _write(tell: Callable[[], dict[str, Any]]) -> None:
    path = os.environ.get("TORCHELASTIC_ERROR_FILE", "")
    if not path:
        return
    import json

    said = tell()
    # Whole or not at all: a worker that is killed while it writes must not leave half a file.
    unfinished = f"{path}.{os.getpid()}"
    with open(unfinished, "w", encoding="utf-8", errors="backslashreplace") as file:
        json.dump(said, file)
    os.replace(unfinished, path)


class ErrorHandler:
    """Does what @record does with an exception. Derive from it to do more."""

    def initialize(self) -> None:
        """Before the function runs: crashes in C leave the Python stacks in stderr."""
        with contextlib.suppress(AttributeError, ImportError, OSError, RuntimeError, ValueError):
            import faulthandler  # which not every subinterpreter has

            faulthandler.enable(all_threads=True)  # unless stderr is closed or no real file

    def record_exception(self, e: BaseException) -> None:
        """Writes it to TORCHELASTIC_ERROR_FILE, if that is set. Never fails."""
        # The exception itself matters more than its file, whatever its str() does.
        with contextlib.suppress(Exception):
            _write(lambda: _told(e))

    def dump_error_file(self, rootcause_error_file: str, error_code: int = 0) -> None:
        """Copies that file of a worker to TORCHELASTIC_ERROR_FILE, with the worker's exit code.
        Fails with OSError, and with ValueError for a file without JSON."""
        _write(lambda: _left_in(rootcause_error_file, error_code))

    def maybe_enrich_signal_failure_message(self, message: str, error_file: str) -> str:
        """The text that ChildFailedError shows for a worker that a signal has ended."""
        return message


def record(fn: _Function, error_handler: Any = None) -> _Function:
    """Writes the exception that leaves `fn` to TORCHELASTIC_ERROR_FILE, and lets it pass on.

    Of a ChildFailedError, the file of the worker that failed first is written again.
    `sys.exit()` and Ctrl+C write nothing; `sys.exit(0)` becomes a normal return, as with torch.
    Also switches the faulthandler on, so that a crash in C leaves the Python stacks in stderr.
    `error_handler`, an elastrun.multiprocessing.errors.ErrorHandler, does both otherwise.
    """
    handler = ErrorHandler() if error_handler is None else error_handler

    @functools.wraps(fn)
    def recorded(*args: Any, **kwargs: Any) -> Any:
        handler.initialize()
        try:
            return fn(*args, **kwargs)
        except SystemExit as end:
            if end.code in (0, None):
                return None
            raise
        except Exception as error:
            handler.record_exception(error)
            raise

    return recorded  # type: ignore[return-value]
