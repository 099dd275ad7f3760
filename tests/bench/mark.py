#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""bench_mark's mode `once` as a Python worker: mark.py FILE once. The first life writes "start";
rank 0 lives MARK_LIFE_MS, writes "die" and raises; the successor's first line is "again"."""
import time
now = time.time_ns()
import os  # noqa: E402
import signal  # noqa: E402
import sys  # noqa: E402

file, rank = sys.argv[1], os.environ.get("RANK", "0")


def event(name: str, at: int) -> None:
    fd = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.write(fd, f"{name} {rank} {os.getpid()} {at}\n".encode())


if os.path.exists(file + ".died"):
    event("again", now)
    sys.exit()
event("start", now)
if rank != "0":
    signal.pause()
time.sleep(int(os.environ.get("MARK_LIFE_MS", "500")) / 1000)
open(file + ".died", "w").close()
event("die", time.time_ns())
raise ValueError("the end of the first life")
