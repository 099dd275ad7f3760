# SPDX-License-Identifier: Apache-2.0
"""Monitors of goodput under the module name of ml-goodput-measurement; see elastrun.goodput."""
from __future__ import annotations

from elastrun.goodput_monitor import ElasticGoodputMonitor, GCPOptions, GoodputMonitor

__all__ = ["ElasticGoodputMonitor", "GCPOptions", "GoodputMonitor"]
