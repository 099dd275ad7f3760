#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Sum the ranks over all workers with gloo; with the argument `fail` rank 1 ends attempt 0."""
import os
import sys

import torch
import torch.distributed as dist

import act
import facts

facts.dump()
dist.init_process_group("gloo")
total = torch.tensor([float(dist.get_rank())])
dist.all_reduce(total)
act.tell({"note": "sum of ranks", "value": int(total.item())})
act.tell({"note": "world", "value": dist.get_world_size()})
if "fail" in sys.argv and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    act.play("exit" if dist.get_rank() == 1 else "hold", "4")
dist.barrier()
dist.destroy_process_group()
