# SPDX-License-Identifier: Apache-2.0
"""Keeps torch.compile from tracing this package: a loop that is compiled with breaks calls it."""
from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

from elastrun.imports import after_import

_PACKAGE = __name__.partition(".")[0]


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for inner in code.co_consts:
        # What stands in place of Module.__call__ calls it at once while that is compiled.
        if isinstance(inner, CodeType) and inner.co_name != "__call__":
            yield from _nested(inner)


def _codes(namespace: dict[str, Any], module: str) -> Iterator[CodeType]:
    for value in list(namespace.values()):
        value = getattr(value, "__func__", value)  # of a class method
        value = getattr(value, "__wrapped__", value)
        if getattr(value, "__module__", None) != module:
            continue
        if isinstance(value, FunctionType):
            yield from _nested(value.__code__)
        elif isinstance(value, type):
            yield from _codes(vars(value), module)  # type: ignore[arg-type]


def _skip(module: ModuleType) -> None:
    """Frames of ours run as they are; what they call is the compiler's as ever."""
    skip: Callable[[CodeType], None] | None = getattr(module, "skip_code", None)
    if skip is not None:
        for name, ours in list(sys.modules.items()):
            if name.partition(".")[0] == _PACKAGE:
                for code in _codes(vars(ours), name):
                    skip(code)


def stay_out() -> None:
    """When the script begins to compile. What is imported of this package by then is skipped."""
    after_import("torch._dynamo.eval_frame", _skip)
