# SPDX-License-Identifier: Apache-2.0
"""Under the module name of ml-goodput-measurement; see elastrun.goodput."""
from __future__ import annotations

from elastrun.goodput import ElasticGoodputRecorder, GoodputRecorder
from elastrun.goodput_calculator import ElasticGoodputCalculator

__all__ = ["ElasticGoodputCalculator", "ElasticGoodputRecorder", "GoodputRecorder"]
