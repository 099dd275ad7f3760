# SPDX-License-Identifier: Apache-2.0
"""The agent of one node, for launchers in Python: torch.distributed.elastic.agent.server.

    from elastrun.agent.server import LocalElasticAgent, WorkerSpec
    from elastrun.multiprocessing import DefaultLogsSpecs

    spec = WorkerSpec(role="trainer", local_world_size=8, entrypoint=train, args=(config,),
                      rdzv_handler=handler)
    result = LocalElasticAgent(spec, DefaultLogsSpecs()).run()
    if result.is_failed():
        print(result.failures[0])
    else:
        print(result.return_values[0])

See elastrun-python(7).
"""
from elastrun.agent.server import api
from elastrun.agent.server.api import *  # noqa: F403
from elastrun.agent.server.local_elastic_agent import LocalElasticAgent

__all__ = ["LocalElasticAgent"]
__all__ += api.__all__
