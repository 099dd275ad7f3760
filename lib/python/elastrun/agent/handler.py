# SPDX-License-Identifier: Apache-2.0
"""Answers what the agent asks of a rendezvous handler in this process."""
from __future__ import annotations

import json
import os
import socket
import threading
import uuid
from typing import Any

from elastrun.multiprocessing.payload import socket_pair

__all__ = ["HandlerServer"]

_LEAVING = 0.5  # seconds that close() waits for the thread
# By the names of the exceptions: a handler may raise torch's own.
_KINDS = {"RendezvousClosedError": "closed", "RendezvousTimeoutError": "timeout",
          "RendezvousGracefulExitError": "graceful_exit"}


def _kind(error: BaseException) -> str:
    return next((_KINDS[one.__name__] for one in type(error).__mro__ if one.__name__ in _KINDS),
                "rendezvous")


def _bottom(store: Any) -> Any:
    """A prefix store is its own client of the store below it."""
    while True:
        below = getattr(store, "underlying_store", None)
        if below is None:
            return store
        store = below


def _place(store: Any, rank: int) -> dict[str, Any]:
    """The place of the store, and the prefix under which the agents of this round meet there:
    they agree on it by the store itself, because torch does not tell the prefix of one.
    """
    below = _bottom(store)
    if getattr(below, "path", None) and not getattr(below, "port", None):
        place: dict[str, Any] = {"path": os.fspath(below.path)}
    elif getattr(below, "host", None) and getattr(below, "port", None):
        place = {"host": below.host, "port": int(below.port)}
    else:
        raise TypeError(f"the store of a rendezvous with several nodes has to be a TCPStore or a "
                        f"FileStore, or a PrefixStore on one, not a {type(below).__name__}")
    key = "elastrun/agents"
    if rank == 0:
        store.set(key, uuid.uuid4().hex)
    said = store.get(key)
    place["prefix"] = f"elastrun/{said.decode() if isinstance(said, bytes) else said}"
    return place


def _round(handler: Any) -> dict[str, Any]:
    info = handler.next_rendezvous()
    if isinstance(info, tuple):  # torch before 2.4
        store, rank, world_size = info
        bootstrap = None
    else:
        store, rank, world_size = info.store, info.rank, info.world_size
        bootstrap = info.bootstrap_store_info
    answer: dict[str, Any] = {"rank": rank, "world_size": world_size,
                              "use_agent_store": int(bool(handler.use_agent_store))}
    if bootstrap is not None:
        answer["bootstrap"] = {"host": bootstrap.master_addr, "port": bootstrap.master_port}
    if world_size > 1:
        answer["store"] = _place(store, rank)
    return answer


class HandlerServer:
    """`theirs`: the descriptor for the agent. A second thread asks the handler: a wait in it keeps
    neither signals nor the agent's end.
    """

    def __init__(self, handler: Any) -> None:
        self._handler = handler
        self.ours, self.theirs = socket_pair()
        self.failure: BaseException | None = None  # the last exception of next_rendezvous
        self._thread = threading.Thread(target=self._serve, name="elastrun-rendezvous", daemon=True)

    def start(self) -> None:
        """Starts the thread; after a fork of this process, which has to have one thread."""
        self._thread.start()

    def _serve(self) -> None:
        try:
            with self.ours.makefile("rwb") as stream:
                for line in stream:
                    answer = self._answer(json.loads(line)["call"])
                    stream.write(json.dumps(answer).encode() + b"\n")
                    stream.flush()
        except (OSError, ValueError):
            pass  # the agent has gone

    def _answer(self, call: str) -> dict[str, Any]:
        try:
            if call == "next_rendezvous":
                self.failure = None
                return {"answer": _round(self._handler)}
            if call not in ("is_closed", "num_nodes_waiting", "set_closed", "shutdown"):
                raise ValueError(f"no handler knows {call}")
            return {"answer": {"value": int(getattr(self._handler, call)() or 0)}}
        except BaseException as error:
            if call == "next_rendezvous":
                self.failure = error
            return {"error": {"kind": _kind(error), "text": f"{type(error).__name__}: {error}"}}

    def close(self) -> None:
        self.theirs.close()
        try:
            self.ours.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self.ours.close()
        if self._thread.ident is not None:
            # The next launch may fork this process, which has to have one thread then. No longer
            # than this: the handler may be in a call that never returns.
            self._thread.join(_LEAVING)
