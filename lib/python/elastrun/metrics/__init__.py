# SPDX-License-Identifier: Apache-2.0
"""Metrics with the interface of torch.distributed.elastic.metrics: see elastrun.metrics.api."""
from __future__ import annotations

from elastrun.metrics.api import (ConsoleMetricHandler, ConsoleMetricsHandler, MetricData,
                                  MetricHandler, MetricsConfig, MetricStream, NullMetricHandler,
                                  NullMetricsHandler, configure, count_metric, failures,
                                  get_elapsed_time_ms, getStream, initialize_metrics,
                                  observe_metric, prof, profile, publish_metric, put_metric)

__all__ = ["ConsoleMetricHandler", "ConsoleMetricsHandler", "MetricData", "MetricHandler",
           "MetricStream", "MetricsConfig", "NullMetricHandler", "NullMetricsHandler", "configure",
           "count_metric", "failures", "getStream", "get_elapsed_time_ms", "initialize_metrics",
           "observe_metric", "prof", "profile", "publish_metric", "put_metric"]
