# SPDX-License-Identifier: Apache-2.0
"""Under the module name of ml-goodput-measurement; see elastrun.goodput."""
from __future__ import annotations

from elastrun.goodput_monitor import ElasticGoodputMonitor

__all__ = ["ElasticGoodputMonitor"]
