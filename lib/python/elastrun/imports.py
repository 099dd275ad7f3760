# SPDX-License-Identifier: Apache-2.0
"""Calls back when the script imports a module; imports none itself."""
from __future__ import annotations

import contextlib
import functools
import logging
import sys
import threading
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_Call = Callable[[ModuleType], None]
Around = Callable[[Callable[..., Any]], Callable[..., Any]]
_calls: dict[str, list[_Call]] = {}


def _tell(name: str, module: ModuleType) -> None:
    for call in _calls.pop(name, []):
        try:
            call(module)
        except Exception:  # a module whose insides are others
            logging.getLogger(__name__).warning("elastrun cannot use %s", name, exc_info=True)


class _Finder:
    """Lets others find a module, and calls when it has been executed."""

    def __init__(self) -> None:
        self._busy: set[tuple[str, int]] = set()  # what is looked for, and by which thread

    def find_spec(self, fullname: str, path: Sequence[str] | None,
                  target: ModuleType | None = None) -> ModuleSpec | None:
        mine = (fullname, threading.get_ident())
        if fullname not in _calls or mine in self._busy:
            return None
        self._busy.add(mine)  # another finder that lets others find asks us in turn
        try:
            spec = found_by_others(self, fullname, path, target)
            if spec is not None:
                after_execution(spec.loader, fullname, functools.partial(_tell, fullname))
            return spec
        finally:
            self._busy.discard(mine)


def found_by_others(me: object, name: str, path: Sequence[str] | None,
                    target: ModuleType | None = None) -> ModuleSpec | None:
    """Asks the other finders, but for torchrun_hook.LINE, for the spec of a module."""
    for finder in list(sys.meta_path):
        find = getattr(finder, "find_spec", None)
        if find not in (None, finder) and finder is not me:
            spec: ModuleSpec | None = find(name, path, target)
            if spec is not None:
                return spec
    return None


def after_execution(loader: Any, name: str, call: _Call) -> None:
    """Calls `call` when the module has been executed. The loader is as it was after that, and if it
    cannot be changed."""
    execute = getattr(loader, "exec_module", None)
    if execute is None or "exec_module" in getattr(loader, "__dict__", {}):
        return

    def exec_module(module: ModuleType) -> None:
        if module.__name__ != name:  # it loads others, too
            execute(module)
            return
        with contextlib.suppress(AttributeError):
            del loader.exec_module
        execute(module)
        call(module)

    with contextlib.suppress(AttributeError, TypeError):
        loader.exec_module = exec_module


def after_import(name: str, call: _Call) -> None:
    """At once if the module is there. Before anybody can use what it defines otherwise."""
    _calls.setdefault(name, []).append(call)
    module = sys.modules.get(name)
    if module is not None and not getattr(
            getattr(module, "__spec__", None), "_initializing", False):
        _tell(name, module)
        return
    if not any(isinstance(one, _Finder) for one in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def before(call: Callable[..., object]) -> Around:
    """For wrap(): calls `call` first, with the same arguments."""
    def around(method: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            call(*args, **kwargs)
            return method(*args, **kwargs)
        return run
    return around


def wrap(place: str, around: Around, optional: bool = False) -> None:
    """Puts what `around` makes of it in place of a function or method, "MODULE:NAME" or
    "MODULE:CLASS.NAME", when its module is imported. `optional`: there may be none.
    """
    module, _, path = place.partition(":")
    holder, _, name = path.rpartition(".")

    def hook(imported: ModuleType) -> None:
        owner = getattr(imported, holder, None) if holder else imported
        method = getattr(owner, "__dict__", {}).get(name)
        if callable(method) and not hasattr(method, "_elastrun"):
            wrapped = functools.wraps(method)(around(method))
            wrapped.__dict__["_elastrun"] = True  # under another module's name it is the same
            # Others have it under the same name if they were imported before us.
            others = map(sys.modules.get, (
                "torch", "torch.distributed", "torch.distributed.checkpoint"))
            for one in (owner, *others):
                if getattr(one, name, None) is method:
                    setattr(one, name, wrapped)
        elif method is None and not optional:
            raise AttributeError(place)

    after_import(module, hook)
