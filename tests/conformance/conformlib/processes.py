# SPDX-License-Identifier: Apache-2.0
"""Find and end the processes of one run, and only those.

Every process of a run carries a unique CONFORM_RUN value in its environment; a process is
touched only when that value is read back from it.
"""
from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

TICK = 0.02


def processes_of(run_id: str) -> dict[int, str]:
    """pid -> command line of all live (not zombie) processes of the run."""
    mark = b"CONFORM_RUN=" + run_id.encode()
    found: dict[int, str] = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        base = Path("/proc") / entry
        try:
            if mark in (base / "environ").read_bytes().split(b"\0") and not _is_zombie(base):
                words = (base / "cmdline").read_bytes().split(b"\0")
                found[int(entry)] = " ".join(w.decode(errors="replace") for w in words if w)
        except OSError:
            continue  # gone meanwhile, or not ours
    return found


def _is_zombie(base: Path) -> bool:
    stat = (base / "stat").read_text(errors="replace")
    return stat.rsplit(")", 1)[1].split()[0] in "ZX"


def wait_for(condition: Callable[[], bool], seconds: float) -> bool:
    """True as soon as the condition holds, false when it does not within the time."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= end:
            return False
        time.sleep(TICK)
    return True


def kill_all(run_id: str) -> None:
    """SIGKILL every process of the run until none is left."""

    def none_left() -> bool:
        pids = processes_of(run_id)
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        return not pids

    wait_for(none_left, 10)
