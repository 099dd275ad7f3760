# SPDX-License-Identifier: Apache-2.0
"""The words of a worker to its elastrun agent. Optional: without it nothing is lost.

    import elastrun

    for step, batch in enumerate(loader, first_step):
        train(batch)
        elastrun.step(step)                      # rank 0 is enough
    elastrun.checkpoint_done(step)               # from here on these steps cannot be lost
    if elastrun.should_save(step): ...           # preempted: save, checkpoint_done, return
    elastrun.metric("loss", loss.item())
    elastrun.event("data.epoch", epoch=3)

    with elastrun.phase("eval", at_most=1800):   # hang detection waits for its end so long
        evaluate(model)

    with elastrun.timer.expires(after=60):       # or this worker is ended, with its stack reported
        dist.all_reduce(gradients)

    @elastrun.record                             # writes the error file the verdict is made from
    def main(): ...

    elastrun.metrics.put_metric("loss", 0.5)     # torchelastic's metrics, below a microsecond
    elastrun.events, elastrun.monitor            # its events, and torch.monitor without torch
    elastrun.goodput.GoodputRecorder             # as ml-goodput-measurement's, without a cloud;
    elastrun.goodput.GoodputCalculator           # so are this one, CheckpointBadputCalculator
                                                 # and GoodputMonitor
    elastrun.control_plane.WorkerServer          # torch's worker server: handlers over HTTP
    elastrun.notebook_launcher(train, (1e-3,), num_processes=2)   # from a notebook
    elastrun.bridge.torch()                      # what is told to torch's own reaches the agent

In a worker this import also offers the stacks of the process to the agent (`offer_stacks`), which
takes them when the job hangs or a user asks (elastrunctl stacks).

Nothing here blocks, and nothing raises because of the channel or of what it is told: under another
launcher, with an agent that has gone or cannot keep up, or with a step that is NaN, messages are
dropped and counted: `elastrun.dropped()`, and `elastrun.telemetry.losses()` by cause. A metric is
one of the last step, or of `step=`.
Standard library only. The bytes are described in elastrun-protocol(7).
"""
from __future__ import annotations

import importlib
from elastrun import timer
from elastrun.outbox import at_begin
from elastrun.channel import checkpoint_done, dropped, event, is_connected, metric, phase, step
from elastrun.errors import record
from elastrun.page import should_save
from elastrun.stacks import offer_stacks

TYPE_CHECKING = False  # the import of typing takes as long as that of all this
if TYPE_CHECKING:
    from typing import Any

    from elastrun import (bridge, control_plane, events, goodput, measurement, metrics, monitor,
                          monitoring, telemetry)
    from elastrun.notebook import notebook_launcher

__all__ = ["bridge", "checkpoint_done", "control_plane", "dropped", "event", "events", "goodput",
           "is_connected", "measurement", "metric", "metrics", "monitor", "monitoring",
           "notebook_launcher", "offer_stacks", "phase", "record", "should_save", "step",
           "telemetry", "timer"]


def __getattr__(name: str) -> Any:
    """Modules that not every worker needs are imported when they are first used."""
    if name == "notebook_launcher":
        return importlib.import_module("elastrun.notebook").notebook_launcher
    if name in __all__:  # and not here yet
        return importlib.import_module(f"elastrun.{name}")
    raise AttributeError(f"module 'elastrun' has no attribute '{name}'")


at_begin(offer_stacks)
