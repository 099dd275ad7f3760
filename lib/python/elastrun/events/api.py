# SPDX-License-Identifier: Apache-2.0
"""The events of torch.distributed.elastic.events; elastrun.events records them."""
from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import TypeVar, Union

__all__ = ["Event", "EventHandler", "EventMetadataValue", "EventSource", "NodeState",
           "NullEventHandler", "RdzvEvent"]

EventMetadataValue = Union[str, int, float, bool, None]


class EventSource(str, Enum):
    AGENT = "AGENT"
    WORKER = "WORKER"


class NodeState(str, Enum):
    """The states that a node can be in during a rendezvous."""

    INIT = "INIT"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"


_Kind = TypeVar("_Kind", bound="_AsJson")


class _AsJson:
    def __str__(self) -> str:
        return self.serialize()

    def serialize(self) -> str:
        return json.dumps(asdict(self))  # type: ignore[call-overload]

    @classmethod
    def deserialize(cls: type[_Kind], data: str | _Kind) -> _Kind:
        """Fails with ValueError, KeyError or TypeError on what serialize() does not write."""
        if isinstance(data, cls):
            return data
        fields = json.loads(data)  # type: ignore[arg-type]
        for name, kind in (("source", EventSource), ("node_state", NodeState)):
            if name in cls.__dataclass_fields__:  # type: ignore[attr-defined]
                fields[name] = kind[fields[name]]
        return cls(**fields)


@dataclass
class Event(_AsJson):
    """Something that happened. `timestamp`: milliseconds since the epoch; 0: now."""

    name: str
    source: EventSource
    timestamp: int = 0
    metadata: dict[str, EventMetadataValue] = field(default_factory=dict)


@dataclass
class RdzvEvent(_AsJson):
    """Something that happened in a rendezvous."""

    name: str
    run_id: str
    message: str
    hostname: str
    pid: int
    node_state: NodeState
    master_endpoint: str = ""
    rank: int | None = None
    local_id: int | None = None
    error_trace: str = ""


class EventHandler:
    """Gets the events of a destination, see elastrun.events.configure()."""

    def record(self, event: Event | RdzvEvent) -> None:
        raise NotImplementedError


class NullEventHandler(EventHandler):
    def record(self, event: Event | RdzvEvent) -> None:
        pass
