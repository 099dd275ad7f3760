# SPDX-License-Identifier: Apache-2.0
"""The names, fields and defaults of torch.distributed.elastic.agent.server.api."""
from __future__ import annotations

import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from elastrun.multiprocessing.errors import ProcessFailure
from elastrun.rendezvous.api import RendezvousHandler

__all__ = ["ElasticAgent", "RunResult", "Worker", "WorkerGroup", "WorkerSpec", "WorkerState"]

DEFAULT_ROLE = "default"


@dataclass
class WorkerSpec:
    """The workers of this node. `entrypoint`: a function, or the name of a program; with a
    program, `args` are its words. `monitor_interval`: seconds between two questions to a handler of
    your own for waiting nodes; the end of a worker is seen at once. Fails with AssertionError.
    """

    role: str
    local_world_size: int
    rdzv_handler: RendezvousHandler
    fn: Callable[..., Any] | None = None  # deprecated, as in torch: `entrypoint`
    entrypoint: Callable[..., Any] | str | None = None
    args: tuple[Any, ...] = ()
    max_restarts: int = 3
    monitor_interval: float = 0.1
    master_port: int | None = None
    master_addr: str | None = None
    local_addr: str | None = None
    event_log_handler: str = "null"
    numa_options: Any = None  # with an affinity_mode, as torch's NumaOptions, or its name
    duplicate_stdout_filters: list[str] | None = None
    duplicate_stderr_filters: list[str] | None = None
    virtual_local_rank: bool = False

    def __post_init__(self) -> None:
        if self.local_world_size <= 0:
            raise AssertionError(f"local_world_size has to be above 0, not {self.local_world_size}")
        if self.monitor_interval <= 0:
            raise AssertionError(f"monitor_interval has to be above 0, not {self.monitor_interval}")
        if self.fn:
            warnings.warn("WorkerSpec.fn will be deprecated, please use WorkerSpec.entrypoint "
                          "instead", stacklevel=2, category=DeprecationWarning)
            self.entrypoint = self.fn
        if not self.entrypoint:
            raise AssertionError("entrypoint has to be a function or the name of a program")

    def get_entrypoint_name(self) -> str:
        """The qualified name of a function, the base name of a program."""
        if isinstance(self.entrypoint, str):
            return os.path.basename(self.entrypoint)
        return getattr(self.entrypoint, "__qualname__", repr(self.entrypoint))


@dataclass(eq=False, repr=False)
class Worker:
    """One worker. `id`: its process id; -1 ranks are not known yet."""

    local_rank: int
    global_rank: int = -1
    role_rank: int = -1
    world_size: int = -1
    role_world_size: int = -1
    id: Any = field(default=None, init=False)

    def __repr__(self) -> str:
        return (f"local_rank={self.local_rank},global_rank={self.global_rank},"
                f"role_rank={self.role_rank},world_size={self.world_size},"
                f"role_world_size={self.role_world_size}")


class WorkerState(str, Enum):
    """The state of a group of workers, which change it as one."""

    UNKNOWN = "UNKNOWN"
    INIT = "INIT"
    HEALTHY = "HEALTHY"
    UNHEALTHY = "UNHEALTHY"
    STOPPED = "STOPPED"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"

    @staticmethod
    def is_running(state: WorkerState) -> bool:
        return state in (WorkerState.HEALTHY, WorkerState.UNHEALTHY)


@dataclass(eq=False)
class WorkerGroup:
    """The workers of this node. Ranks and places are those of the last round, known at its end."""

    spec: WorkerSpec
    workers: list[Worker] = field(init=False)
    store: Any = field(default=None, init=False)
    group_rank: int | None = field(default=None, init=False)
    group_world_size: int | None = field(default=None, init=False)
    master_addr: str | None = field(default=None, init=False)
    master_port: int | None = field(default=None, init=False)
    state: WorkerState = field(default=WorkerState.INIT, init=False)

    def __post_init__(self) -> None:
        self.workers = [Worker(local_rank) for local_rank in range(self.spec.local_world_size)]


@dataclass
class RunResult:
    """The end of a run, by global ranks of this node: what functions returned, or who failed."""

    state: WorkerState
    return_values: dict[int, Any] = field(default_factory=dict)
    failures: dict[int, ProcessFailure] = field(default_factory=dict)

    def is_failed(self) -> bool:
        return self.state == WorkerState.FAILED


class ElasticAgent(ABC):
    """The calls that every agent has."""

    @abstractmethod
    def run(self, role: str = DEFAULT_ROLE) -> RunResult:
        """Runs the workers to their end, with restarts. Failed workers are a result."""

    @abstractmethod
    def get_worker_group(self, role: str = DEFAULT_ROLE) -> WorkerGroup: ...
