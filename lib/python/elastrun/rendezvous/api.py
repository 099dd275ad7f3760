# SPDX-License-Identifier: Apache-2.0
"""The names, fields and errors of torch.distributed.elastic.rendezvous.api."""
from __future__ import annotations

import socket
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

__all__ = ["RendezvousClosedError", "RendezvousConnectionError", "RendezvousError",
           "RendezvousGracefulExitError", "RendezvousHandler", "RendezvousHandlerCreator",
           "RendezvousHandlerRegistry", "RendezvousInfo", "RendezvousParameters",
           "RendezvousStateError", "RendezvousStoreInfo", "RendezvousTimeoutError",
           "rendezvous_handler_registry"]


class RendezvousError(Exception):
    """The nodes could not agree, or one of the errors below."""


class RendezvousClosedError(RendezvousError):
    """The rendezvous is closed: the job is over."""


class RendezvousTimeoutError(RendezvousError):
    """Too few nodes came in time."""


class RendezvousConnectionError(RendezvousError):
    """The back end cannot be reached."""


class RendezvousStateError(RendezvousError):
    """The back end holds something that makes no sense."""


class RendezvousGracefulExitError(RendezvousError):
    """This node is not needed, and ends well."""


@dataclass
class RendezvousStoreInfo:
    """The place where the workers meet."""

    MASTER_ADDR_KEY: ClassVar[str] = "MASTER_ADDR"
    MASTER_PORT_KEY: ClassVar[str] = "MASTER_PORT"
    master_addr: str
    master_port: int

    @staticmethod
    def build(rank: int, store: Any, local_addr: str | None,
              server_port: int | None = None) -> RendezvousStoreInfo:
        """Node 0 says by `store` where its workers' store is: `local_addr` or the name of this
        machine, and `server_port` or a port that is free now. All others wait for it.
        """
        if rank == 0:
            if not server_port:
                with socket.create_server(("", 0)) as server:
                    server_port = int(server.getsockname()[1])
            store.set(RendezvousStoreInfo.MASTER_ADDR_KEY,
                      (local_addr or socket.getfqdn()).encode())
            store.set(RendezvousStoreInfo.MASTER_PORT_KEY, str(server_port).encode())
        address = store.get(RendezvousStoreInfo.MASTER_ADDR_KEY).decode()
        return RendezvousStoreInfo(
            address, int(store.get(RendezvousStoreInfo.MASTER_PORT_KEY).decode()))


@dataclass(eq=False)
class RendezvousInfo:
    """One complete round, as this node sees it.

    `store`: through which the agents of several nodes agree: a torch TCPStore, FileStore, or a
    PrefixStore on one. None in a world of one node.
    `bootstrap_store_info`: where the workers meet. None: the agent of rank 0 serves their store.
    """

    store: Any
    rank: int  # of this node
    world_size: int  # in nodes
    bootstrap_store_info: RendezvousStoreInfo | None = None


class RendezvousHandler(ABC):
    """Derive from it to bring a rendezvous of your own. Calls come from one thread, one at a time,
    and may wait as long as they must; the agent does not wait for them when it is told to end.
    """

    @abstractmethod
    def get_backend(self) -> str:
        """Its name, which stands in events."""

    @property
    def use_agent_store(self) -> bool:
        """Tells, with bootstrap_store_info, if a server listens there already."""
        return False

    @abstractmethod
    def next_rendezvous(self) -> RendezvousInfo:
        """Waits for the next complete round. Fails with the errors of this module, of which
        RendezvousGracefulExitError ends the job well on this node.
        """

    @abstractmethod
    def is_closed(self) -> bool: ...

    @abstractmethod
    def set_closed(self) -> None: ...

    @abstractmethod
    def num_nodes_waiting(self) -> int:
        """Asked in every monitor interval: above 0, the workers are started again with them."""

    @abstractmethod
    def get_run_id(self) -> str: ...

    @abstractmethod
    def shutdown(self) -> bool:
        """The job is over on this node. Not called when a signal has ended it."""


class RendezvousParameters:
    """Parameters of a handler. Fails with ValueError."""

    def __init__(self, backend: str, endpoint: str, run_id: str, min_nodes: int, max_nodes: int,
                 local_addr: str | None = None, **kwargs: Any) -> None:
        if not backend:
            raise ValueError("The rendezvous backend name must be a non-empty string.")
        if min_nodes < 1:
            raise ValueError(f"The minimum number of rendezvous nodes ({min_nodes}) must be "
                             "greater than zero.")
        if max_nodes < min_nodes:
            raise ValueError(f"The maximum number of rendezvous nodes ({max_nodes}) must be "
                             "greater than or equal to the minimum number of rendezvous nodes "
                             f"({min_nodes}).")
        self.backend = backend
        self.endpoint = endpoint
        self.run_id = run_id
        self.min_nodes = min_nodes
        self.max_nodes = max_nodes
        self.config = kwargs
        self.local_addr = local_addr

    def get(self, key: str, default: Any = None) -> Any:
        return self.config.get(key, default)

    def get_as_bool(self, key: str, default: bool | None = None) -> bool | None:
        """Fails with ValueError on what is neither a truth value, 0, 1, nor a word for them."""
        value = self.get(key, default)
        if value is None:
            return None
        said = (str(int(value)) if isinstance(value, int) else
                value.lower() if isinstance(value, str) else "")
        if said in ("1", "true", "t", "yes", "y"):
            return True
        if said in ("0", "false", "f", "no", "n"):
            return False
        raise ValueError(f"The rendezvous configuration option '{key}' does not represent a valid "
                         "boolean value.")

    def get_as_int(self, key: str, default: int | None = None) -> int | None:
        """Fails with ValueError."""
        value = self.get(key, default)
        try:
            return value if value is None else int(value)
        except ValueError as error:
            raise ValueError(f"The rendezvous configuration option '{key}' does not represent a "
                             "valid integer value.") from error


RendezvousHandlerCreator = Callable[[RendezvousParameters], RendezvousHandler]


class RendezvousHandlerRegistry:
    """Handlers by the name of their back end."""

    def __init__(self) -> None:
        self._registry: dict[str, RendezvousHandlerCreator] = {}

    def register(self, backend: str, creator: RendezvousHandlerCreator) -> None:
        """Fails with ValueError if the name is empty or another's."""
        if not backend:
            raise ValueError("The rendezvous backend name must be a non-empty string.")
        present = self._registry.get(backend)
        if present is not None and present != creator:
            raise ValueError(f"The rendezvous backend '{backend}' cannot be registered with "
                             f"'{creator}' as it is already registered with '{present}'.")
        self._registry[backend] = creator

    def create_handler(self, params: RendezvousParameters) -> RendezvousHandler:
        """Fails with ValueError on an unknown back end, and with RuntimeError if its creator gives
        the handler of another.
        """
        creator = self._registry.get(params.backend)
        if creator is None:
            raise ValueError(f"The rendezvous backend '{params.backend}' is not registered. Did "
                             f"you forget to call `{self.register.__name__}`?")
        handler = creator(params)
        if handler.get_backend() != params.backend:
            raise RuntimeError(f"The rendezvous backend '{handler.get_backend()}' does not match "
                               f"the requested backend '{params.backend}'.")
        return handler


rendezvous_handler_registry = RendezvousHandlerRegistry()
