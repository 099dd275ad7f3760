# SPDX-License-Identifier: Apache-2.0
"""What a worker may tell its elastrun agent. Optional: without it nothing is lost.

    import elastrun

    for step, batch in enumerate(loader, first_step):
        train(batch)
        elastrun.step(step)                      # rank 0 is enough
    elastrun.checkpoint_done(step)               # from here on these steps cannot be lost
    elastrun.metric("loss", loss.item())
    elastrun.event("data.epoch", epoch=3)

    with elastrun.timer.expires(after=60):       # or this worker is ended, with its stack reported
        dist.all_reduce(gradients)

    @elastrun.record                             # writes the error file the verdict is made from
    def main(): ...

Nothing here blocks, and nothing raises because of the channel: under another launcher, with an
agent that has gone or cannot keep up, messages are dropped and counted (`elastrun.dropped()`).
Standard library only. The bytes are described in elastrun-protocol(7).
"""
from elastrun import timer
from elastrun.channel import checkpoint_done, dropped, event, is_connected, metric, step
from elastrun.errors import record
from elastrun.stacks import offer_stacks

__all__ = ["checkpoint_done", "dropped", "event", "is_connected", "metric", "offer_stacks",
           "record", "step", "timer"]
