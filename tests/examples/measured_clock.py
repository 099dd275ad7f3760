# SPDX-License-Identifier: Apache-2.0
"""For measured_*.py: writes what happened into clock.jsonl, of rank 1 into clock-1.jsonl, with the
attempt, the time in seconds since the epoch, and a step where there is one. Imports no torch before
the clock runs: how long that takes is measured, too.
"""
import json
import os
import time

ATTEMPT = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
CRASHES = {0: 17, 1: 26}  # by attempt: after so many steps
_LINES = open("clock-1.jsonl" if os.environ["RANK"] == "1" else "clock.jsonl", "a", buffering=1)
# Of this process, by the kernel: within a clock tick, 10 ms.
_TICKS = int(open("/proc/self/stat").read().rpartition(")")[2].split()[19]) + 0.5
_SPAWNED = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + _TICKS / os.sysconf("SC_CLK_TCK")


def clock(what, step=None, when=None):
    _LINES.write(json.dumps([what, ATTEMPT, when or time.time(), step]) + "\n")


def stepped(step):
    clock("step", step)
    if step == CRASHES.get(ATTEMPT):
        time.sleep(0.3)  # until the last step is told
        clock("crash")
        os._exit(5)


clock("spawned", when=_SPAWNED)
from torch import full  # noqa: E402
from torch.utils.data import Dataset  # noqa: E402


class Numbers(Dataset):
    def __init__(self, length, seconds, clocked=False):
        self.length, self.seconds, self.clocked = length, seconds, clocked

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        if self.clocked:
            clock("fetch")
        time.sleep(self.seconds)
        if self.clocked:
            clock("fetched")
        return full((4,), float(index % 5))
