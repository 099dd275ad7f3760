# SPDX-License-Identifier: Apache-2.0
"""The agent of one node, for launchers in Python: torch.distributed.elastic.agent."""
