# SPDX-License-Identifier: Apache-2.0
"""Under the module name of ml-goodput-measurement; see elastrun.goodput."""
from __future__ import annotations

from elastrun.monitoring import ElasticGoodputMonitor
from elastrun.goodput_utils import GCPOptions

__all__ = ["ElasticGoodputMonitor", "GCPOptions"]
