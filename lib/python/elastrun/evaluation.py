# SPDX-License-Identifier: Apache-2.0
"""For --goodput auto: when the main thread evaluates, by what it does and not by its names.

It begins when a batch is fetched, or Module.eval() is called, while torch keeps no gradients; or
when eval() is called on the module that the optimizer trains, once there was a step. It ends when
that module is told to train(), at the next step, when the training's data are fetched again, or at
the next fetch or save with gradients if it began without. Frameworks say both themselves. A step
right after one batch, or after batches of the training's data, was made with these: from then on
they are fetched to train, also without gradients.
"""
from __future__ import annotations

import contextlib
import functools
import sys
import threading
import weakref
from collections.abc import Callable
from time import time
from types import ModuleType
from typing import Any

from elastrun.computation import Computation

_BEGIN = '{"custom_badput_event_start_time":%r,"custom_badput_event_type":"eval"}'
_END = '{"custom_badput_event_end_time":%r,"custom_badput_event_type":"eval"}'

_ONE_BATCH = 2  # looks at the most: a loop over one batch looks a third time


def _trains(optimizer: Any, module: Any) -> bool:
    """Whether it steps a parameter of the module: the first one that has gradients."""
    with contextlib.suppress(Exception):
        first = next(one for one in module.parameters() if one.requires_grad)
        return any(one is first for group in optimizer.param_groups for one in group["params"])
    return False


class Evaluation:
    """Of the main thread. `is_out`: nothing is to be told now, `leader`: the optimizer whose steps
    count, if it has made one.
    """

    def __init__(self, put: Callable[[Any], None], is_out: Callable[[], bool],
                 leader: Callable[[], Any], computation: Computation) -> None:
        self._computation = computation
        self._put = put
        self._is_out = is_out
        self._leader = leader
        self.is_open = False
        self._said = False  # by a framework, which says the end, too
        self._without_gradients = False
        self._module: Callable[[], Any] = lambda: None  # on which eval() was called
        self.data = 0  # id of the training's: while it is fetched with gradients, look() is idle
        self._without = 0  # the same of what it fetches without gradients
        self._fetched = 0  # what an evaluation began with
        self._looks = 0  # fetches since: to make the iterator is one, too
        self._trusted = True  # eval() alone: no step was made in what it began
        self.keeps_gradients: Callable[[], bool] = lambda: True
        self._class: Any = None  # torch.nn.Module
        self._train: Any = None  # its method, while ours is in its place

    def begin(self, said: bool = False) -> bool:
        """False: it is part of one, or not to be told."""
        if self.is_open or self._is_out():
            return False
        now = time()
        self._computation.explain(now)
        self.is_open, self._said = True, said
        self._without_gradients = not self.keeps_gradients()
        self._watch_train()
        self._put((_BEGIN, (now,)))
        return True

    def end(self) -> None:
        if not self.is_open:
            return
        self.is_open = self._said = False
        self._fetched = 0
        self._module = lambda: None
        if self._class is not None and self._train is not None:
            self._class.train, self._train = self._train, None
        now = time()
        self._put((_END, (now,)))
        self._computation.resume(now)

    def stepped(self) -> None:
        """An optimizer's step: not an evaluation, so eval() has meant something else."""
        if not self._said and not self._without_gradients:
            self._trusted = False
        if self._fetched and (self._looks <= _ONE_BATCH or self._fetched == self.data):
            self._without = self._fetched
        self.end()

    def look(self, data: Any = None) -> None:
        """At the begin of a fetch of `data`, or of a save, in the main thread."""
        keeps = self.keeps_gradients()
        trains = data is not None and id(data) == (self.data if keeps else self._without)
        if self.is_open:
            self._looks += data is not None
            if not self._said and (trains or (keeps and self._without_gradients)):
                self.end()
            elif not keeps:
                self._without_gradients = True
        elif data is None or trains:
            return
        elif keeps:
            self.data = id(data)
        elif self.begin():
            self._fetched, self._looks = id(data), 1

    def said_by(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps what a framework calls an evaluation."""
        def run(*args: Any, **kwargs: Any) -> Any:
            mine = self.begin(said=True)
            try:
                return method(*args, **kwargs)
            finally:
                if mine:
                    self.end()
        return run

    def hook_modules(self, module: ModuleType) -> None:
        self._class = module.Module
        self.keeps_gradients = sys.modules["torch._C"].is_grad_enabled
        evaluate = module.Module.eval

        @functools.wraps(evaluate)
        def eval_and_tell(mine: Any) -> Any:
            if not self.is_open and not self._is_out() and self._is_meant(mine) and self.begin():
                self._module = weakref.ref(mine)
            return evaluate(mine)

        module.Module.eval = eval_and_tell

    def _is_meant(self, module: Any) -> bool:
        if not self.keeps_gradients():
            return module.training is True
        leader = self._leader()
        return (self._trusted and leader is not None and module.training is True
                and _trains(leader, module))

    def _watch_train(self) -> None:
        """While an evaluation lasts: train() calls itself for each part of a module."""
        if self._class is None or self._said or self._train is not None:
            return
        self._train = train = self._class.train
        main = threading.get_ident()

        @functools.wraps(train)
        def train_and_tell(mine: Any, mode: bool = True) -> Any:
            if mode and mine is self._module() and threading.get_ident() == main:
                self.end()
            return train(mine, mode)

        self._class.train = train_and_tell
