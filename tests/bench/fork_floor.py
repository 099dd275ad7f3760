#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The least that a restart by fork can cost: `fork_floor.py SCRIPT [ARGUMENT ...]`, for
training_bench.py. An interpreter that has torch imported forks the next worker ahead, waits for the
end of this one, and lets the next run the script. No log, no journal, no rendezvous, no sweep, and
the worker is set apart from nothing. Ends when one exits with 0.
"""
import gc
import os
import runpy
import sys

import torch._dynamo  # noqa: F401
import torch.distributed  # noqa: F401


def fork(attempt: int) -> tuple[int, int]:
    """A child that waits until a byte is written to the descriptor."""
    waiting, go = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(go)
        if not os.read(waiting, 1):
            os._exit(0)
        os.environ["TORCHELASTIC_RESTART_COUNT"] = str(attempt)
        sys.argv[:] = sys.argv[1:]
        runpy.run_path(sys.argv[0], run_name="__main__")
        os._exit(0)
    os.close(waiting)
    return pid, go


def main() -> None:
    gc.collect()
    gc.freeze()
    attempt, worker = 0, fork(0)
    code = 1
    while code:
        os.write(worker[1], b"x")
        attempt += 1
        following = fork(attempt)
        code = os.waitpid(worker[0], 0)[1]
        os.close(worker[1])
        worker = following
    os.close(worker[1])


main()
