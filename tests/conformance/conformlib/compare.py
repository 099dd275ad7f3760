# SPDX-License-Identifier: Apache-2.0
"""Differences between two JSON values, as lines for people."""
from __future__ import annotations

import json
from typing import Any


def differences(expected: Any, actual: Any, path: str = "") -> list[str]:
    """One line per place where the two values differ; empty when they are equal."""
    if isinstance(expected, dict) and isinstance(actual, dict):
        lines: list[str] = []
        for key in [*expected, *(k for k in actual if k not in expected)]:
            here = f"{path} > {key}" if path else str(key)
            if key not in actual:
                lines.append(f"{here}: missing, expected {_short(expected[key])}")
            elif key not in expected:
                lines.append(f"{here}: not expected, got {_short(actual[key])}")
            else:
                lines += differences(expected[key], actual[key], here)
        return lines
    if isinstance(expected, list) and isinstance(actual, list) and len(expected) == len(actual):
        lines = []
        for number, (want, got) in enumerate(zip(expected, actual)):
            lines += differences(want, got, f"{path}[{number}]")
        return lines
    if type(expected) is type(actual) and expected == actual:
        return []
    return [f"{path}: expected {_short(expected)}, got {_short(actual)}"]


def _short(value: Any, limit: int = 300) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= limit else text[: limit - 3] + "..."
