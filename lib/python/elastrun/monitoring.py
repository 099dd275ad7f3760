# SPDX-License-Identifier: Apache-2.0
"""Monitors of goodput under the module name of ml-goodput-measurement; see elastrun.goodput."""
from __future__ import annotations

from elastrun.goodput_calculator import GoodputCalculator
from elastrun.goodput_monitor import ElasticGoodputMonitor, GoodputMonitor
from elastrun.goodput_utils import (ACTIVITY_EXCLUSION_LIST, BadputType, GCPOptions,
                                    IntervalMetricType, IntervalWorkloadMetricDetails, MetricType,
                                    MonitoringWindowType, UnproductiveTimeDict,
                                    WorkloadMetricDetails)

__all__ = ["ACTIVITY_EXCLUSION_LIST", "BadputType", "ElasticGoodputMonitor", "GCPOptions",
           "GoodputCalculator", "GoodputMonitor", "IntervalMetricType",
           "IntervalWorkloadMetricDetails", "MetricType", "MonitoringWindowType",
           "UnproductiveTimeDict", "WorkloadMetricDetails"]
