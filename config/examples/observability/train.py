# SPDX-License-Identifier: Apache-2.0
"""Stands for a training: reports a loss, a step and an epoch, with or without elastrun."""
import os
import time

try:
    from elastrun import channel
except ImportError:  # not started by elastrun, or its library is not installed
    channel = None

rank = int(os.environ.get("RANK", "0"))
for step in range(1, 6):
    time.sleep(0.02)
    loss = (rank + 1) / step
    if channel is not None:
        channel.metric("loss", loss, "model")
        channel.step(step)
if channel is not None:
    channel.event("epoch", number=1, loss=loss)
print(f"rank {rank}: loss {loss}")
