#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A DistributedDataParallel training that is preempted, has a bug, or runs on a bad node.

README.md beside it has the three commands. Each start resumes from the last checkpoint.
"""
from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset

# In a clone the worker library lies here; where it is installed, --worker-lib names its folder.
sys.path.append(str(Path(__file__).resolve().parents[3] / "lib" / "python"))
import elastrun  # noqa: E402

RANK = int(os.environ["RANK"])


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--every", type=int, default=10, help="steps from a checkpoint to the next")
    parser.add_argument("--pace", type=float, default=0.01, help="seconds of a step, at least")
    parser.add_argument("--loaders", type=int, default=0, help="DataLoader's worker processes")
    parser.add_argument("--checkpoint", type=Path, default=Path("checkpoint.pt"))
    parser.add_argument("--bug-at", type=int, help="a bug that shows at this step, each time")
    parser.add_argument("--bad-node", action="store_true",
                        help="crash at step 5 where THIS_NODE_IS_BAD is set")
    return parser.parse_args()


def save(path: Path, model: nn.Module, step: int) -> None:
    """As a whole or not at all: a job may be killed in the middle of it."""
    if RANK == 0:
        part = path.with_suffix(".part")
        torch.save({"model": model.state_dict(), "step": step}, part)
        part.rename(path)
        elastrun.checkpoint_done(step)
    dist.barrier()


class Rows(IterableDataset):
    def __iter__(self) -> Iterator[torch.Tensor]:
        while True:
            yield torch.randn(8)


def train(args: argparse.Namespace) -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(8, 1))
    first = 0
    if args.checkpoint.exists():
        state = torch.load(args.checkpoint)
        model.load_state_dict(state["model"])
        first = state["step"] + 1
    print(f"rank {RANK} begins at step {first}", flush=True)
    batches = iter(DataLoader(Rows(), batch_size=4, num_workers=args.loaders))
    for step in range(first, args.steps):
        time.sleep(args.pace)
        if step == args.bug_at:
            raise ValueError(f"a bug at step {step}")
        if args.bad_node and step == 5 and "THIS_NODE_IS_BAD" in os.environ:
            os.abort()
        loss = model(next(batches)).square().mean()
        loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.01 * parameter.grad
                parameter.grad = None
        elastrun.step(step)
        if elastrun.should_save(step):  # preempted: true at the same step on all ranks
            save(args.checkpoint, model, step)
            print(f"rank {RANK} leaves after step {step}", flush=True)
            break
        if step % args.every == 0:
            save(args.checkpoint, model, step)
    dist.destroy_process_group()


if __name__ == "__main__":
    train(options())
