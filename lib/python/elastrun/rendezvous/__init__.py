# SPDX-License-Identifier: Apache-2.0
"""The meeting of the nodes of a job: torch.distributed.elastic.rendezvous.

    class MyHandler(rendezvous.RendezvousHandler):
        def next_rendezvous(self):
            return rendezvous.RendezvousInfo(store, rank, world_size, None)
        ...
    spec = WorkerSpec(rdzv_handler=MyHandler(), ...)

A handler of your own is asked by the agent, in a thread of this process, one call at a time. The
back ends c10d, static, etcd, etcd-v2 and file are the agent's own.
"""
from elastrun.rendezvous import api
from elastrun.rendezvous.api import *  # noqa: F403
from elastrun.rendezvous.registry import BuiltInHandler, get_rendezvous_handler

__all__ = ["BuiltInHandler", "get_rendezvous_handler"]
__all__ += api.__all__
