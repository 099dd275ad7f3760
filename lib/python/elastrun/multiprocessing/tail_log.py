# SPDX-License-Identifier: Apache-2.0
"""Shows what processes write to their log files, line by line, while they write it."""
from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TextIO

__all__ = ["TailLog"]

_log = logging.getLogger(__name__)


class TailLog:
    """`log_files`: by local rank, followed from their beginning, also if they come later. Each line
    that `log_line_filter` lets pass goes to `dst`, behind `log_line_prefixes` of its rank, or
    behind "[NAME RANK]:" without the space. Looks each `interval_sec` seconds.
    """

    def __init__(self, name: str, log_files: dict[int, str], dst: TextIO,
                 log_line_prefixes: dict[int, str] | None = None, interval_sec: float = 0.1,
                 log_line_filter: Callable[[str], bool] = lambda _: True) -> None:
        prefixes = log_line_prefixes or {}
        self._files = {path: prefixes.get(rank, f"[{name}{rank}]:")
                       for rank, path in log_files.items()}
        self._dst = dst
        self._interval = interval_sec
        self._passes = log_line_filter
        self._open: dict[str, TextIO] = {}
        self._rest: dict[str, str] = {}
        self._finished = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> TailLog:
        if self._files and self._dst:
            self._thread = threading.Thread(target=self._follow, name="elastrun tail", daemon=True)
            self._thread.start()
        return self

    def stop(self) -> None:
        """Shows what is there, and ends."""
        self._finished.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def stopped(self) -> bool:
        return self._finished.is_set()

    def _follow(self) -> None:
        try:
            while not self._finished.wait(self._interval):
                self._look()
            self._look()  # what was written since, and a last line without its end
            for path, rest in self._rest.items():
                self._show(path, rest)
        except Exception:  # a console that is closed ends what is shown, and nothing else
            _log.exception("cannot show the output of %s", ", ".join(self._files))
        finally:
            for file in self._open.values():
                file.close()

    def _look(self) -> None:
        for path in self._files:
            if path not in self._open:
                try:
                    self._open[path] = open(path, encoding="utf-8", errors="replace")
                except OSError:
                    continue  # the process has not opened it yet
            for line in self._open[path]:
                line = self._rest.pop(path, "") + line
                if line.endswith("\n"):
                    self._show(path, line)
                else:
                    self._rest[path] = line
        self._dst.flush()

    def _show(self, path: str, line: str) -> None:
        if line and self._passes(line):
            self._dst.write(self._files[path] + line)
