# SPDX-License-Identifier: Apache-2.0
"""A worker that trains a step with DDP over gloo, as torch's examples do, and says "trained N"."""
import os

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
model(torch.full((1, 2), float(dist.get_rank()))).sum().backward()
# The mean of all ranks' inputs: their gradients have met.
ranks = dist.get_world_size()
assert torch.allclose(model.module.weight.grad, torch.full((1, 2), (ranks - 1) / 2))
print(f"MASTER_ADDR={os.environ['MASTER_ADDR']}\ntrained {ranks}", flush=True)
dist.destroy_process_group()
