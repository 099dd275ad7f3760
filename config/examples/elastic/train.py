# SPDX-License-Identifier: Apache-2.0
"""A small DDP training (gloo, CPU) that may lose and gain nodes at any step.

Each step works on one global batch, made from the step's number and shared out over the ranks there
are, so the same steps are trained whatever the world looks like. Rank 0 writes a checkpoint every
few steps (complete or not at all: written aside, then renamed); each start goes on from the last.
"""
from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

try:  # progress for the launcher's goodput summary; nothing is lost without it
    import elastrun
except ImportError:
    elastrun = None

GLOBAL_BATCH, FEATURES = 96, 16


def batch(step: int, rank: int, world: int) -> tuple[torch.Tensor, torch.Tensor]:
    """This rank's share of the batch of a step: samples of a fixed, slightly noisy function."""
    source = torch.Generator().manual_seed(step)
    x = torch.randn(GLOBAL_BATCH, FEATURES, generator=source)
    noise = 0.05 * torch.randn(GLOBAL_BATCH, 1, generator=source)
    y = torch.sin(x[:, :1]) + 0.5 * x[:, 1:2] * x[:, 2:3] + noise
    return x[rank::world], y[rank::world]


def save(path: Path, model: torch.nn.Module, optimiser: torch.optim.Optimizer, step: int) -> None:
    aside = path.with_suffix(".part")
    state = {"model": model.state_dict(), "optimiser": optimiser.state_dict(), "step": step}
    torch.save(state, aside)
    os.replace(aside, path)
    if elastrun:
        elastrun.checkpoint_done(step)


def note(folder: Path, **facts: object) -> None:
    """One line of the history: appended in one write, so that a kill tears no line."""
    fd = os.open(folder / "history.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.write(fd, (json.dumps(facts) + "\n").encode())
    os.close(fd)


def train(folder: Path, steps: int, every: int, pause: float) -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(FEATURES, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1)
    )
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
    path, done = folder / "checkpoint.pt", 0
    if path.exists():
        state = torch.load(path)
        model.load_state_dict(state["model"])
        optimiser.load_state_dict(state["optimiser"])
        done = state["step"]
    if rank == 0:
        note(folder, kind="start", step=done, world=world)
        print(f"start at step {done} with {world} workers", flush=True)
    parallel = DistributedDataParallel(model)
    for step in range(done + 1, steps + 1):
        x, y = batch(step, rank, world)
        loss = torch.nn.functional.mse_loss(parallel(x), y)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        time.sleep(pause)
        if rank == 0 and elastrun:
            elastrun.step(step)
        if step % every == 0 or step == steps:
            dist.all_reduce(loss.detach_(), dist.ReduceOp.SUM)
            if rank == 0:
                save(path, model, optimiser, step)
                note(folder, kind="checkpoint", step=step, loss=loss.item() / world, world=world)
                print(f"step {step:4}  loss {loss.item() / world:.4f}  {world} workers", flush=True)
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("."), help="checkpoint and history")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--every", type=int, default=10, help="steps between checkpoints")
    parser.add_argument("--pause", type=float, default=0.02, help="seconds a step takes at least")
    args = parser.parse_args()
    torch.set_num_threads(1)
    train(args.folder, args.steps, args.every, args.pause)


if __name__ == "__main__":
    main()
