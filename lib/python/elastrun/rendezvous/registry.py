# SPDX-License-Identifier: Apache-2.0
"""The back ends that the agent has itself, and how a handler is found by its name."""
from __future__ import annotations

import logging

from elastrun.rendezvous.api import (RendezvousError, RendezvousHandler, RendezvousInfo,
                                     RendezvousParameters, rendezvous_handler_registry)

_BUILT_IN = ("c10d", "static", "etcd", "etcd-v2", "file")


class BuiltInHandler(RendezvousHandler):
    """A back end of the agent, by its parameters. It works inside an agent only: the others of the
    job are met by the process that also starts the workers.
    """

    def __init__(self, params: RendezvousParameters) -> None:
        self.parameters = params

    def get_backend(self) -> str:
        return self.parameters.backend

    @property
    def use_agent_store(self) -> bool:
        return self.parameters.backend != "static"

    def next_rendezvous(self) -> RendezvousInfo:
        raise RendezvousError(f"the rendezvous backend {self.parameters.backend} works inside an "
                              "agent only: give its handler to a WorkerSpec")

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        pass

    def num_nodes_waiting(self) -> int:
        return 0

    def get_run_id(self) -> str:
        return self.parameters.run_id

    def shutdown(self) -> bool:
        return True


for _name in _BUILT_IN:
    rendezvous_handler_registry.register(_name, BuiltInHandler)

_discovered = False


def get_rendezvous_handler(params: RendezvousParameters) -> RendezvousHandler:
    """A new handler of the back end that the parameters name. Fails with ValueError on an unknown
    one.
    """
    global _discovered
    if params.backend not in _BUILT_IN and not _discovered:
        # Registers those of installed packages, entry points of the group torchrun.handlers.
        _discovered = True
        from importlib.metadata import entry_points

        found = entry_points()
        group = (found.select(group="torchrun.handlers") if hasattr(found, "select")
                 else found.get("torchrun.handlers", ()))
        for point in group:
            try:
                rendezvous_handler_registry.register(point.name, point.load()())
            except Exception:
                logging.getLogger(__name__).warning(
                    "Exception while registering out of tree plugin %s: ", point.name,
                    exc_info=True)
    return rendezvous_handler_registry.create_handler(params)
