# SPDX-License-Identifier: Apache-2.0
"""A job in one call, for launchers in Python: torch.distributed.launcher.

    from elastrun.launcher import LaunchConfig, elastic_launch

    config = LaunchConfig(min_nodes=1, max_nodes=1, nproc_per_node=8, rdzv_backend="c10d",
                          rdzv_endpoint="localhost:0", max_restarts=0)
    returned = elastic_launch(config, train)(learning_rate)     # {0: ..., 1: ...}, by rank
"""
from elastrun.launcher.api import LaunchConfig, elastic_launch, launch_agent

__all__ = ["LaunchConfig", "elastic_launch", "launch_agent"]
