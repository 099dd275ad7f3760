# SPDX-License-Identifier: Apache-2.0
"""Metrics with the interface of torch.distributed.elastic.metrics: see elastrun.metrics.api."""
from __future__ import annotations

from elastrun.metrics import api
from elastrun.metrics.api import *  # noqa: F403

__all__: list[str] = []
__all__ += api.__all__
