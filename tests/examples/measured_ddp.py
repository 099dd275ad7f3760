# SPDX-License-Identifier: Apache-2.0
"""A DistributedDataParallel training that knows nothing of elastrun and clocks itself, for
goodput_test.py beside it.

    elastrun ... measured_ddp.py SECONDS

Crashes in two attempts, and hangs for SECONDS in its data in the last one.
"""
import os
import select
import signal
import sys
import time

from measured_clock import ATTEMPT, clock  # whose import starts the clock
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

RANK = int(os.environ["RANK"])
CRASHES = {0: 17, 1: 31}  # by attempt: after so many steps
HANG, LAST = 42, 50  # the step that waits, and how many there are
with open(f"pid-{RANK}", "w") as file:
    file.write(str(os.getpid()))


class Numbers(Dataset):
    def __init__(self, first):
        self.first = first

    def __len__(self):
        return LAST - self.first

    def __getitem__(self, index):
        time.sleep(float(sys.argv[1]) if self.first + index == HANG else 0.03)
        return torch.full((4,), float(index % 7))


clock("init")
dist.init_process_group("gloo")
clock("initialised")
if RANK == 0:
    OTHER = os.pidfd_open(int(open("pid-1").read()))
print("initialised", flush=True)  # a sign of life, while nothing has been learnt
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
step = 0
if os.path.exists("checkpoint.pt"):
    clock("load")
    loaded = torch.load("checkpoint.pt")
    clock("loaded")
    model.load_state_dict(loaded["model"])
    step = loaded["step"]
clock("fetch")
batches = iter(DataLoader(Numbers(step), batch_size=1))
clock("fetched")
while step < LAST:
    clock("fetch")
    batch = next(batches)
    clock("fetched")
    optimizer.zero_grad()
    model(batch).pow(2).mean().backward()
    time.sleep(0.06)
    optimizer.step()
    clock("step", step)
    step += 1
    if step == CRASHES.get(ATTEMPT):
        dist.barrier()
        time.sleep(0.3)  # until rank 0 has told its last step
        if RANK == 1:
            os._exit(4)
        # A process with torch in it takes a while to go: by the kernel's word, as the agent's.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        select.select([OTHER], [], [])
        clock("crash")
        os._exit(5)
    if step % 10 == 5:
        clock("evaluate")
        model.eval()
        with torch.no_grad():
            for batch in DataLoader(torch.ones(4, 4)):
                model(batch)
                time.sleep(0.05)
        model.train()
        clock("evaluated")
    if step % 10 == 0:
        if RANK == 0:
            clock("save")
            torch.save({"model": model.state_dict(), "step": step}, "checkpoint.new")
            clock("saved")
            os.replace("checkpoint.new", "checkpoint.pt")
        dist.barrier()
dist.barrier()
dist.destroy_process_group()
