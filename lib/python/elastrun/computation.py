# SPDX-License-Identifier: Apache-2.0
"""For --goodput auto: when a step's computation begins, what lies before it unexplained, and when
the main thread evaluates, by what it does and not by its names.

A step's computation begins with the first call of a module that has something to train and keeps
gradients, in the main thread, since the last step, or with the training step of a trainer that we
know; in a script that calls none, with backward(). What the script did between the step before and
this begin, or between a backward() and the next call where gradients add up, may be work or not: it
is told as the phase "unexplained", without what other hooks tell of, and without the time in which
a CUDA device was still at work. A gap below 2 % of a step is part of it.

An evaluation begins when a batch is fetched, or Module.eval() is called, while torch keeps no
gradients; or when eval() is called on the module that the optimizer trains, once there was a step.
It ends when that module is told to train(), at the next step, when the training's data are fetched
again, or at the next fetch or save with gradients if it began without. Frameworks say both
themselves. A step right after one batch, or after batches of the training's data, was made with
these: from then on they are fetched to train, also without gradients.
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

_UNEXPLAINED, _EVALUATION = (
    tuple(f'{{"custom_badput_event_{end}_time":%r,"custom_badput_event_type":"{kind}"}}'
          for end in ("start", "end")) for kind in ("unexplained", "eval"))
_ONE_BATCH = 2  # looks at the most: a loop over one batch looks a third time
_LEAST, _SHARE = 0.001, 0.02  # seconds, and of a step: shorter gaps are not told
_LOOKS = 4  # steps in vain, until the script is taken to call no module


class _Device:
    """Until when the CUDA device works at what the script has enqueued."""

    def __init__(self) -> None:
        self._end: Any = None  # events; of what was enqueued last
        self._idle: Any = None  # when the device had nothing to do, and the host's clock then
        self._idle_at = 0.0
        self._marked = False

    def mark(self) -> None:
        """The end of what has been enqueued until now."""
        self._marked = False
        cuda = sys.modules.get("torch.cuda")
        if cuda is None or not cuda._initialized:
            return
        with contextlib.suppress(Exception):  # an error of the device is the script's to see
            if not cuda.is_current_stream_capturing():
                if self._end is None:
                    self._end, self._idle = (cuda.Event(enable_timing=True) for _ in range(2))
                self._end.record()
                self._marked = True

    def busy_until(self, since: float, now: float) -> float:
        """`since` if it was idle from then on."""
        if not self._marked:
            return since
        with contextlib.suppress(Exception):
            if not self._end.query():
                return now
            if self._idle_at:
                busy: float = self._idle_at + self._idle.elapsed_time(self._end) / 1000
                return min(max(since, busy), now)
        return since

    def begin(self, now: float) -> None:
        if self._marked:
            with contextlib.suppress(Exception):
                if self._end.query():
                    self._idle.record()
                    self._idle_at = now


class Computation:
    """Of the main thread. `is_out`: nothing is to be told now."""

    def __init__(self, put: Callable[[Any], None], is_out: Callable[[], bool]) -> None:
        self._put = put
        self._is_out = is_out
        self._device = _Device()
        self._main = threading.get_ident()
        self._since = 0.0  # nothing has said since then what the script does
        self.waits = False  # for the begin, since a step or a backward()
        self._tentative = False  # since a backward(), to which the step may belong
        self._ended = 0.0  # the last step
        self._least = _LEAST
        self._looks = 0
        self.modules: Any = None  # torch.nn.Module
        self.keeps_gradients: Callable[[], bool] = lambda: True
        self._restore: Callable[[], None] = lambda: None
        self._types: set[type] = set()  # of the modules that the script calls

    def stepped(self, now: float) -> None:
        self._restore()
        unseen = self.waits and not self._tentative  # its begin
        if unseen:
            self.explain(now)
        if (unseen or self._looks == 0) and self._looks < _LOOKS:
            self._looks += 1
            self._look()
        self._least = max(_LEAST, (now - (self._ended or now)) * _SHARE)
        self._ended = self._since = now
        self.waits, self._tentative = True, False
        self._device.mark()

    def goes_on(self, now: float) -> None:
        """What came since a backward() was for a step of another optimizer, which ends now."""
        if self._tentative:
            self._since, self.waits = now, True
            self._device.mark()

    def explain(self, now: float) -> None:
        """From now on it is known what the script does."""
        if not self.waits or now - self._since <= self._least or self._is_out():
            return
        begin, self._since = self._device.busy_until(self._since, now), now
        if now - begin > self._least:
            self._put((_UNEXPLAINED[0], (begin,)))
            self._put((_UNEXPLAINED[1], (now,)))

    def resume(self, now: float) -> None:
        """From now on it is not."""
        self._since = now

    def begins(self, *_args: Any, **_kwargs: Any) -> None:
        """Notes a call of a trainer's method that begins a step."""
        if self.waits and threading.get_ident() == self._main:
            self._begin()

    def _begin(self) -> None:
        if self._is_out():
            return
        now = time()
        self.explain(now)
        self.waits = False
        self._device.begin(now)

    def _trains(self, module: Any) -> bool:
        """Others may be work or not, as those that transform data."""
        return any(one.requires_grad for one in self.modules.parameters(module))

    def know_modules(self, module: ModuleType) -> None:
        self.modules = module.Module
        self.keeps_gradients = sys.modules["torch._C"].is_grad_enabled

    def _look(self) -> None:
        """Until the next call of a module, which is one of those that the script calls itself."""
        if self.modules is None:
            return
        owner, call = self.modules, self.modules.__call__
        compiling = getattr(sys.modules.get("torch.compiler"), "is_compiling", bool)
        main, ident, found, trains = self._main, threading.get_ident, self._found, self._trains

        def restore() -> None:
            if owner.__call__ is __call__:
                owner.__call__ = call
            self._restore = lambda: None

        @functools.wraps(call)
        def __call__(mine: Any, *args: Any, **kwargs: Any) -> Any:
            if compiling() or ident() != main or not trains(mine):
                return call(mine, *args, **kwargs)
            restore()  # what is called within, and compiled, has its own
            found(type(mine))
            return mine(*args, **kwargs)

        owner.__call__, self._restore = __call__, restore

    def _found(self, owner: Any) -> None:
        if owner in self._types:
            return
        self._types.add(owner)
        own = vars(owner).get("__call__")
        compiling = getattr(sys.modules.get("torch.compiler"), "is_compiling", bool)
        main, ident, keeps, watch = self._main, threading.get_ident, self.keeps_gradients, self

        @functools.wraps(owner.__call__)
        def __call__(mine: Any, *args: Any, **kwargs: Any) -> Any:
            # While it is compiled nothing of ours is: compiling() comes first.
            if (not compiling() and watch.waits and ident() == main and keeps()
                    and watch._trains(mine)):
                watch._begin()
            if own is not None:
                return own(mine, *args, **kwargs)
            return super(owner, mine).__call__(*args, **kwargs)  # type: ignore[misc]

        owner.__call__ = __call__

    def around_backward(self, backward: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            mine = threading.get_ident() == self._main
            if mine and self.waits:
                self._begin()
            result = backward(*args, **kwargs)
            if mine and self._ended:
                self._since, self.waits, self._tentative = time(), True, True
                self._device.mark()
            return result
        return run


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
        self._train: Any = None  # its method, while ours is in its place

    def begin(self, said: bool = False) -> bool:
        """False: it is part of one, or not to be told."""
        if self.is_open or self._is_out():
            return False
        now = time()
        self._computation.explain(now)
        self.is_open, self._said = True, said
        self._without_gradients = not self._computation.keeps_gradients()
        self._watch_train()
        self._put((_EVALUATION[0], (now,)))
        return True

    def end(self) -> None:
        if not self.is_open:
            return
        self.is_open = self._said = False
        self._fetched = 0
        self._module = lambda: None
        if self._train is not None:
            self._computation.modules.train, self._train = self._train, None
        now = time()
        self._put((_EVALUATION[1], (now,)))
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
        keeps = self._computation.keeps_gradients()
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

    def called(self, module: Any) -> None:
        """Notes a call of the module's eval()."""
        if not self.is_open and not self._is_out():
            keeps = self._computation.keeps_gradients()
            leader = self._leader() if keeps and self._trusted else None
            if ((not keeps or leader is not None) and module.training is True
                    and (not keeps or _trains(leader, module)) and self.begin()):
                self._module = weakref.ref(module)

    def _watch_train(self) -> None:
        """While an evaluation lasts: train() calls itself for each part of a module."""
        owner = self._computation.modules
        if owner is None or self._said or self._train is not None:
            return
        self._train = train = owner.train
        main = threading.get_ident()

        @functools.wraps(train)
        def train_and_tell(mine: Any, mode: bool = True) -> Any:
            if mode and mine is self._module() and threading.get_ident() == main:
                self.end()
            return train(mine, mode)

        owner.train = train_and_tell
