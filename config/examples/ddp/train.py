#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A small but real DistributedDataParallel training that survives a crash.

    elastrun --nproc-per-node 2 --max-restarts 1 config/examples/ddp/train.py

Learns to tell the three arms of a spiral apart; the data is made here. Rank 0 writes a checkpoint
after each epoch, and every start resumes from the last one. In the first attempt rank 1 crashes on
purpose (--crash-epoch 0: it does not). Runs under torchrun as well.
"""
from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

# In a clone the worker library lies here; where it is installed, PYTHONPATH names its folder.
sys.path.append(str(Path(__file__).resolve().parents[3] / "lib" / "python"))
try:
    import elastrun
    from elastrun import record
except ImportError:  # the library is optional: without it, the launcher just knows less
    elastrun = None
    from torch.distributed.elastic.multiprocessing.errors import record

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
ATTEMPT = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=64, help="per worker")
    parser.add_argument("--crash-epoch", type=int, default=4,
                        help="rank 1 crashes in this epoch of the first attempt; 0: never")
    parser.add_argument("--checkpoints", type=Path,
                        help="folder; by default a temporary one, removed at the end")
    return parser.parse_args()


def spiral(points: int, seed: int) -> TensorDataset:
    """Three arms of a spiral with some noise: easy to look at, impossible for a linear model."""
    generator = torch.Generator().manual_seed(seed)
    arm = torch.randint(3, (points,), generator=generator)
    radius = torch.rand(points, generator=generator)
    noise = 0.12 * torch.randn(points, generator=generator)
    angle = 4.0 * radius + arm * (2 * torch.pi / 3) + noise
    return TensorDataset(torch.stack([radius * angle.sin(), radius * angle.cos()], 1), arm)


def say(text: str) -> None:
    if RANK == 0:
        print(text, flush=True)


def save(path: Path, state: dict) -> None:
    """Replaces the checkpoint whole: a crash while writing leaves the old one."""
    unfinished = path.with_suffix(".unfinished")
    torch.save(state, unfinished)
    os.replace(unfinished, path)


def accuracy(model: nn.Module, data: TensorDataset) -> float:
    with torch.no_grad():
        points, arms = data.tensors
        return (model(points).argmax(1) == arms).float().mean().item()


@record
def main() -> None:
    args = options()
    folder = args.checkpoints or (
        Path(tempfile.gettempdir()) / f"spiral-{os.environ.get('TORCHELASTIC_RUN_ID', 'none')}")
    checkpoint = folder / "last.pt"
    dist.init_process_group("gloo")
    torch.manual_seed(1)

    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3)))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    data, unseen = spiral(32_000, seed=2), spiral(2000, seed=3)
    sampler = DistributedSampler(data, num_replicas=WORLD, rank=RANK, seed=4)
    loader = DataLoader(data, batch_size=args.batch_size, sampler=sampler)

    first_epoch, step, mean = 1, 0, float("nan")
    if checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True)
        model.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first_epoch, step = state["epoch"] + 1, state["step"]
        say(f"attempt {ATTEMPT}: resume after epoch {state['epoch']}, step {step}")
    else:
        folder.mkdir(parents=True, exist_ok=True)
        say(f"attempt {ATTEMPT}: {WORLD} workers, {len(data)} points, {len(loader)} steps an epoch")

    for epoch in range(first_epoch, args.epochs + 1):
        sampler.set_epoch(epoch)
        total, begin = 0.0, time.perf_counter()
        for number, (points, arms) in enumerate(loader, 1):
            loss = nn.functional.cross_entropy(model(points), arms)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
            step += 1
            if elastrun and RANK == 0:
                elastrun.step(step)
            if (RANK, ATTEMPT, epoch, number) == (1, 0, args.crash_epoch, len(loader) // 2):
                raise RuntimeError(f"crash on purpose in epoch {epoch}, step {step}")
        mean = torch.tensor(total / len(loader))
        dist.all_reduce(mean)
        mean = mean.item() / WORLD
        if RANK == 0:
            save(checkpoint, {"model": model.module.state_dict(), "epoch": epoch, "step": step,
                              "optimizer": optimizer.state_dict()})
            if elastrun:
                elastrun.checkpoint_done(step)
                elastrun.metric("loss", mean)
        rate = len(loader) / (time.perf_counter() - begin)
        say(f"epoch {epoch}/{args.epochs}  loss {mean:.4f}  {rate:4.0f} steps/s  checkpoint saved")

    right = accuracy(model.module, unseen)
    say(f"done: loss {mean:.4f}, {right:.1%} of {len(unseen)} unseen points right")
    dist.barrier()
    dist.destroy_process_group()
    if RANK == 0 and not args.checkpoints:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
