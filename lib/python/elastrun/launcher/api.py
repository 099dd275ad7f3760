# SPDX-License-Identifier: Apache-2.0
"""The names, fields and defaults of torch.distributed.launcher.api."""
from __future__ import annotations

import copy
import logging
import os
import sys
import uuid
from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

from elastrun.agent.server import LocalElasticAgent, WorkerSpec
from elastrun.multiprocessing.api import DefaultLogsSpecs
from elastrun.multiprocessing.errors import ChildFailedError
from elastrun.rendezvous import RendezvousParameters, get_rendezvous_handler

__all__ = ["LaunchConfig", "elastic_launch", "launch_agent"]

_log = logging.getLogger(__name__)


@dataclass
class LaunchConfig:
    """A job on this node: how many nodes and workers, how the nodes meet, how often workers are
    started again. Times in seconds. `elastrun`: what torch has no field for, as the options of the
    command by their names, and by_value, see LocalElasticAgent. Fails with ValueError.
    """

    min_nodes: int
    max_nodes: int
    nproc_per_node: int
    logs_specs: Any = None
    run_id: str = ""
    role: str = "default_role"
    rdzv_endpoint: str = ""
    rdzv_backend: str = "etcd"
    rdzv_configs: dict[str, Any] = field(default_factory=dict)
    rdzv_timeout: int = -1
    max_restarts: int = 3
    monitor_interval: float = 0.1
    start_method: str = "spawn"
    log_line_prefix_template: str | None = None
    metrics_cfg: dict[str, str] = field(default_factory=dict)
    local_addr: str | None = None
    event_log_handler: str = "null"
    numa_options: Any = None
    signals_to_handle: str = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"
    duplicate_stdout_filters: list[str] | None = None
    duplicate_stderr_filters: list[str] | None = None
    virtual_local_rank: bool = False
    shutdown_timeout: int | None = None
    elastrun: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.rdzv_timeout != -1:
            self.rdzv_configs["timeout"] = self.rdzv_timeout
        else:
            self.rdzv_configs.setdefault("timeout", 900)
        if self.logs_specs is None:
            self.logs_specs = DefaultLogsSpecs()
        if self.shutdown_timeout is None:
            self.shutdown_timeout = int(os.environ.get("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "30"))
        elif self.shutdown_timeout < 0:
            raise ValueError(f"shutdown_timeout must be non-negative, got {self.shutdown_timeout}")


def completed(config: Any) -> Any:
    """A copy with the default of each field that an older torch's LaunchConfig does not have."""
    config = copy.copy(config)
    for one in fields(LaunchConfig):
        if not hasattr(config, one.name):
            made = one.default_factory
            setattr(config, one.name, one.default if made is MISSING else made())
    return config


class elastic_launch:
    """`elastic_launch(config, entrypoint)(*args)` runs a function, or a program with its words, in
    every worker, and gives what the functions returned, by global rank. See launch_agent.
    """

    def __init__(self, config: Any, entrypoint: Callable[..., Any] | str | None,
                 health_check_server: Any = None) -> None:
        self._config = config
        self._entrypoint = entrypoint
        self._health_check_server = health_check_server

    def __call__(self, *args: Any) -> dict[int, Any]:
        return launch_agent(self._config, self._entrypoint, list(args), self._health_check_server)

    async def arun(self, *args: Any) -> dict[int, Any]:
        """Launches without keeping the event loop; cancelled, it ends the workers first."""
        agent, name = _agent(self._config, self._entrypoint, list(args), self._health_check_server)
        return _returned(await agent.arun(), name)


def entrypoint_name(entrypoint: Any, args: list[Any]) -> str:
    """The name that torch gives it: the script and not the interpreter."""
    if callable(entrypoint):
        return getattr(entrypoint, "__name__", repr(entrypoint))
    if entrypoint == sys.executable:
        return next((str(one) for one in args if not str(one).startswith("-")), "")
    return entrypoint or ""


def _agent(config: Any, entrypoint: Any, args: list[Any], health_check_server: Any
           ) -> tuple[LocalElasticAgent, str]:
    if not config.run_id:
        config.run_id = str(uuid.uuid4().int)
        _log.warning("config has no run_id, generated a random run_id: %s", config.run_id)
    config = completed(config)
    master_addr, master_port = None, None
    if config.rdzv_backend == "static":  # it has to be told where the nodes meet
        endpoint = config.rdzv_endpoint.strip()
        if not endpoint:
            raise ValueError("Endpoint is missing in endpoint. Try to add --master-addr and "
                             "--master-port")
        host, _, port = endpoint.rpartition(":")
        if not host or not port.isdigit():
            raise ValueError(f"port is missing in endpoint: {endpoint}. Try to specify "
                             "--master-port")
        master_addr, master_port = host.strip("[]"), int(port)
    parameters = RendezvousParameters(
        backend=config.rdzv_backend, endpoint=config.rdzv_endpoint, run_id=config.run_id,
        min_nodes=config.min_nodes, max_nodes=config.max_nodes, local_addr=config.local_addr,
        **config.rdzv_configs)
    os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = config.signals_to_handle
    spec = WorkerSpec(
        local_world_size=config.nproc_per_node, entrypoint=entrypoint, args=tuple(args),
        rdzv_handler=get_rendezvous_handler(parameters), master_addr=master_addr,
        master_port=master_port, **{
            one.name: getattr(config, one.name) for one in fields(WorkerSpec)
            if one.name in LaunchConfig.__dataclass_fields__})
    own = dict(config.elastrun)
    agent = LocalElasticAgent(
        spec, config.logs_specs, config.start_method,
        log_line_prefix_template=config.log_line_prefix_template,
        shutdown_timeout=30 if config.shutdown_timeout is None else config.shutdown_timeout,
        health_check_server=health_check_server, by_value=bool(own.pop("by_value", False)),
        options=own)
    return agent, entrypoint_name(entrypoint, args)


def _returned(result: Any, name: str) -> dict[int, Any]:
    if result.is_failed():
        raise ChildFailedError(name, result.failures)
    values: dict[int, Any] = result.return_values
    return values


def launch_agent(config: Any, entrypoint: Callable[..., Any] | str | None, args: list[Any],
                 health_check_server: Any = None) -> dict[int, Any]:
    """Runs the job on this node; what the functions returned, by the global ranks of its workers.
    `config`: a LaunchConfig, torch's or ours. Fails with ChildFailedError when workers have failed,
    and as LocalElasticAgent.run does.
    """
    agent, name = _agent(config, entrypoint, args, health_check_server)
    return _returned(agent.run(), name)
