# SPDX-License-Identifier: Apache-2.0
"""--goodput auto: what a script that knows nothing of us does with its time, by torch's hooks.

Steps are those of the first optimizer, numbered from 0 and on from the checkpoint that is loaded,
or that the script has reported last; a step of another one says that it goes on with its own;
making the process group, waits of data loaders, evaluations, and saving and loading of checkpoints
in the main thread, are told as such, and what nothing explains before the computation of a step
begins as that; from the first batch to the first step it is preparation. A
checkpoint that another thread saves is of the step at which the optimizer's state was last asked
for, and takes no time of the training. All ranks tell steps, rank 0 the rest.

What the script reports by hand, it is not told of: steps, checkpoints, and what lies within a phase
of a recorder. Checkpoints have the numbers of the script's steps then. What has been put around
torch's functions stays: a script may hold them by name, and pickles them by reference.
Imports no torch: it waits until the script does.
"""
from __future__ import annotations

import atexit
import contextlib
import functools
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from time import time
from types import CodeType, FunctionType, ModuleType
from typing import Any, Optional

from elastrun import channel, journal
from elastrun.checkpoint_steps import (BY_HAND, DONE, NO_MARK, CheckpointSteps, holds_optimizer,
                                       is_checkpoint, steps_told)
from elastrun.computation import Computation, Evaluation
from elastrun.imports import Around, after_import, before, wrap
from elastrun.page import page

_VARIABLE = "ELASTRUN_GOODPUT"
_SHORT = 0.0005  # seconds: a shorter wait for data is part of the step
_QUIET = 1.0  # seconds: then a short one is told, too, or an evaluation would be a hang
_BESIDE = 0.05  # seconds from a step, until one of another optimizer is told
_OTHERS = 16  # steps of another optimizer, until the first one is taken to be out of use
_GRACE = 1.0  # seconds that the end of the process waits for what has been put in
_STEP_END = '{"step_count":%d,"step_end_time":%r}'
_INIT = ('{"tpu_init_start_time":%r}', '{"tpu_init_end_time":%r}')
_LOADING = (journal.LOADING % "start", journal.LOADING % "end")
_PREPARATION = ('{"training_prep_start_time":%r}', '{"training_prep_end_time":%r}')
_SAVE = ('{"checkpoint_save_start_time":%r}', '{"checkpoint_save_end_time":%r}')
_UNTOLD = b'{"kind":"checkpoint","step":-2}'
_RESTORE = ('{"checkpoint_restore_start_time":%r}', '{"checkpoint_restore_end_time":%r}')
# How well it is known where a start goes on: from a number in a checkpoint, and one that has the
# optimizer, too; from the mark of this job, the same.
_OPTIMIZER, _MARK = 1, 2


_Given = dict[str, Any]  # the arguments of a call
_Begin = Callable[[_Given], Optional[int]]
_End = Callable[[int, Any, _Given], None]

# What Lightning's and Hugging Face's trainers and Orbax call evaluating, saving and loading. Their
# checkpoints are more than a call of torch.save: Lightning's goes into a buffer and from there to a
# file system, the others are several files, not all of which are torch's. A version that has other
# names is seen as any script is.
_LIGHTNING = ("lightning.pytorch", "pytorch_lightning")
_TRAINER = "transformers.trainer:Trainer."
_MANAGER = "orbax.checkpoint.checkpoint_manager:CheckpointManager."
# The newer name of a module first: the other one then has the same class, which is wrapped once.
_WITHOUT_MANAGER = [f"orbax.checkpoint.{module}:{owner}."
                    for name, owner in (("checkpointer", "Checkpointer"),
                                        ("async_checkpointer", "AsyncCheckpointer"))
                    for module in (f"_src.checkpointers.{name}", name)]


def _of_lightning(place: str) -> list[str]:
    return [f"{one}.{place}" for one in _LIGHTNING]


_EVALUATIONS = [*_of_lightning("loops.evaluation_loop:_EvaluationLoop.run"),
                _TRAINER + "evaluate", _TRAINER + "predict"]
_RESTORES = [_TRAINER + "_load_from_checkpoint", _TRAINER + "_load_optimizer_and_scheduler",
             *(one + "restore" for one in (_MANAGER, *_WITHOUT_MANAGER))]
_SAVES = [*_of_lightning("trainer.trainer:Trainer.save_checkpoint"), _TRAINER + "_save_checkpoint"]
# What begins the computation of a step, whatever it does before it calls the model.
_STEPS = [*_of_lightning("strategies.strategy:Strategy.training_step"), _TRAINER + "training_step"]
# Trains to find out how to train, and takes it back.
_TRIALS = [*_of_lightning("callbacks.lr_finder:LearningRateFinder.lr_find"),
           *_of_lightning("callbacks.batch_size_finder:BatchSizeFinder.scale_batch_size")]


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


def _stay_out(module: ModuleType) -> None:
    """Keeps torch.compile from tracing this package, of what is imported of it when the script
    begins to compile: a loop that is compiled with breaks calls it. Frames of ours run as they are;
    what they call is the compiler's as ever.
    """
    skip: Callable[[CodeType], None] | None = getattr(module, "skip_code", None)
    if skip is not None:
        for name, ours in list(sys.modules.items()):
            if name.partition(".")[0] == _PACKAGE:
                for code in _codes(vars(ours), name):
                    skip(code)


def _is_file(file: Any) -> bool:
    with contextlib.suppress(Exception):  # of a property of the script's
        return isinstance(file, (str, os.PathLike)) or isinstance(file.name, str)
    return False


class Watch:
    """Of this process, from its start on."""

    def __init__(self) -> None:
        self.off = False
        self._rank0 = os.environ.get("RANK", "0") == "0"
        self._journal = journal.journal("")
        self._put = self._journal.put
        self._checkpoints = CheckpointSteps(os.environ.get("ELASTRUN_RUN_DIR", "."))
        self._main = threading.main_thread().ident
        self._number = -1  # of the last step
        self._known = 0  # how well, before the first one here
        self._loaded: int | None = None  # later: of which step, until the optimizer has it
        self._told_at = 0.0  # the last step, or one of another optimizer
        self._first: list[journal.Entry] = []  # kept back: the script may tell its own
        self._leader: weakref.ref[Any] | None = None
        self._others: dict[int, int] = {}  # steps of each other one since the last of the leader
        self._inside: tuple[str, str] | None = None  # what the main thread does other than training
        self._busy: set[int] = set()  # other threads that are at a checkpoint
        self._async_saves = 0  # of torch's own, that are under way
        self._snapshot = -1  # the step at which the optimizer's state was last asked for
        self._preparing = False
        self._steps_by_hand = self._checkpoints_by_hand = False
        # Not while the first step is kept back: what lies after it would tell it.
        self._computation = Computation(
            self._put, lambda: bool(self._first or self._evaluation.is_open
                                    or self._is_elsewhere()))
        self._evaluation = Evaluation(
            self._put_next, self._is_elsewhere, lambda: self._leader and self._leader(),
            self._computation)
        self._compiling: Callable[[], bool] = bool  # Dynamo knows torch's, and traces no further

    def begin(self) -> None:
        channel._by_hand = self._told_by_hand
        os.register_at_fork(after_in_child=lambda: setattr(self, "off", True))
        self._journal.at_each_pass = self._show_step
        atexit.register(self._last_word)
        after_import("torch._dynamo.eval_frame", _stay_out)
        after_import("torch.compiler", lambda module: setattr(
            self, "_compiling", getattr(module, "is_compiling", bool)))
        optimizer = "torch.optim.optimizer"
        after_import(optimizer, lambda module: module.register_optimizer_step_post_hook(
            self._stepped))
        wrap(f"{optimizer}:Optimizer.state_dict", before(self._note_state))
        wrap(f"{optimizer}:Optimizer.load_state_dict", before(self._go_on))
        if self._rank0:
            wrap("torch.distributed.distributed_c10d:init_process_group", self._around(_INIT))
            wrap("torch.utils.data.dataloader:_BaseDataLoaderIter.__next__", self._fetching)
            # It starts the loader's processes.
            wrap("torch.utils.data.dataloader:DataLoader.__iter__",
                 self._around(_LOADING, ("self",), self._begin_loader))
            after_import("torch.nn.modules.module", self._computation.know_modules)
            wrap("torch.nn.modules.module:Module.eval", before(self._evaluation.called))
            wrap("torch.autograd:backward", self._computation.around_backward)
        after_import("torch.serialization", lambda _: self._checkpoints.start())
        self._hook_files("torch.serialization", "save", "load", "obj", "f")
        self._hook_files("safetensors.torch", "save_file", "load_file", "tensors", "filename")
        self._hook_distributed()
        self._hook_frameworks()

    def _told_by_hand(self, what: str, step: int) -> int:
        if self.off:
            return step
        if what == "checkpoint":
            self._checkpoints_by_hand = True
            if not self._tells_steps() and self._done() >= 0:
                # Scripts that count otherwise are ahead, or say too little rather than too much.
                step = self._done() if step < 0 else min(step, self._done())
            if self._rank0 and step >= 0:
                self._checkpoints.note(DONE, step)
        else:
            self._take_steps(step)
            self._end_preparation(time())
        with contextlib.suppress(Exception):  # an entry that cannot be formatted
            self._journal.drain()  # what was before
        return step

    def _take_steps(self, number: int) -> None:
        """The script tells its steps, and will do so in later starts before hooks tell others."""
        if not self._steps_by_hand and self._rank0:
            self._checkpoints.note(BY_HAND, number)
        self._steps_by_hand = True
        self._computation.waits = False
        self._first.clear()
        self._number = number

    def _tells_steps(self) -> bool:
        if self._rank0 and not self._steps_by_hand and self._leader is None:
            self._steps_by_hand = self._checkpoints.noted(BY_HAND) is not None
        return self._steps_by_hand or self._journal.step is not None

    def _end_preparation(self, now: float) -> None:
        if self._preparing:
            self._preparing = False
            self._put((_PREPARATION[1], (now,)))

    def _last_word(self) -> None:
        if self.off:  # a forked child: what was kept back is its parent's to tell
            return
        self._tell_first()
        self._evaluation.end()
        self._journal.flush(_GRACE)
        if self._rank0:
            self._checkpoints.flush(_GRACE)

    def _is_out(self) -> bool:
        """This is not to be told; in a region that is being compiled, it is not to be traced."""
        return self._compiling() or self.off

    def _is_elsewhere(self) -> bool:
        """The main thread cannot begin to evaluate now, or a recorder tells what it does."""
        return (self._is_out() or not self._rank0 or self._inside is not None
                or threading.get_ident() != self._main or self._is_told())

    def _is_told(self) -> bool:
        """A recorder says what the script does; waits for data can be part of an evaluation."""
        phases = self._journal.phases
        return bool(phases) and phases != {journal.LOADING}

    def _put_next(self, entry: journal.Entry) -> None:
        self._tell_first()
        self._put(entry)

    def _show_step(self) -> None:
        if (mine := page()) is not None:
            mine.step(self._number)

    def _note_state(self, optimizer: Any, *_args: Any, **_kwargs: Any) -> None:
        if not self._is_out() and self._leader is not None and self._leader() is optimizer:
            self._snapshot = self._done()

    def _go_on(self, *_args: Any, **_kwargs: Any) -> None:
        if self._loaded is not None and not self._is_out():
            self._number, self._loaded = self._loaded, None

    def _stepped(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if (self._compiling() or self.off or self._inside is _PREPARATION
                or (self._busy and threading.get_ident() in self._busy)):
            return  # the last two: a framework makes steps that it takes back
        leader = self._leader
        if leader is None or leader() is not optimizer:
            if not self._follows(optimizer):
                self._tell_beside()
                return
        if self._others:
            self._others.clear()
        if self._evaluation.is_open:
            self._evaluation.stepped()
        now = time()
        if leader is None:
            self._end_preparation(now)
        recorded = self._journal
        if recorded.step is not None:
            self._take_steps(recorded.step)
            return
        self._number = number = self._number + 1
        if self._steps_by_hand or (recorded.phases and self._is_told()):
            return
        self._told_at = now
        entry = (_STEP_END, (number, now))
        if self._rank0:
            self._computation.stepped(now)
        if leader is None:
            self._first.append(entry)
            return
        if self._first:
            self._tell_first()
        self._put(entry)

    def _done(self) -> int:
        """The last step. In one that a recorder has begun there may be none of the optimizer."""
        begun = self._journal.step
        return self._number if begun is None or begun == self._number else begun - 1

    def _tell_first(self) -> None:
        """The script goes on without a word about its first step."""
        with contextlib.suppress(IndexError):  # one of several threads, or a signal handler
            self._put(self._first.pop())

    def _tell_beside(self) -> None:
        """A step of an optimizer that does not count: the one under way has not stood still."""
        now = time()
        self._computation.goes_on(now)
        if 0 <= now - self._told_at < _BESIDE or self._first or self._evaluation.is_open:
            return  # the clock may be set back
        if self._tells_steps() or self._is_told():
            return
        self._told_at = now
        self._put((_STEP_END, (self._number, now)))

    def _find_begin(self, optimizer: Any) -> None:
        """What tells better where this start goes on than a number in what was loaded."""
        if self._tells_steps() or self._known >= _OPTIMIZER:
            return
        reported = self._checkpoints.noted(DONE)
        if reported is not None:
            self._number = reported
            return
        with contextlib.suppress(Exception):
            # Adam and its like have counted their steps, in a state that a checkpoint restores.
            torch = sys.modules["torch"]
            step = next(iter(optimizer.state.values()))["step"]
            # A distributed tensor would talk to others; what is being captured cannot be read.
            if type(step) in (int, float, torch.Tensor) and not (
                    getattr(step, "is_cuda", False) and torch.cuda.is_current_stream_capturing()):
                # A new one knows nothing of the checkpoint from which the script goes on.
                count = int(step)
                if not (count == 1 and self._number >= 0):
                    self._number = count - 2  # this one has been counted already

    def _follows(self, optimizer: Any) -> bool:
        """Whether steps of this optimizer count: the first one's, or that of its successor."""
        if self._leader is None:
            self._find_begin(optimizer)
        elif self._leader() is not None:
            # Of hundreds, one for each parameter, each steps once between two steps of the first.
            steps = self._others[id(optimizer)] = self._others.get(id(optimizer), 0) + 1
            if steps < _OTHERS:
                return False
        self._leader = weakref.ref(optimizer)
        return True

    @contextlib.contextmanager
    def _during(self, ends: tuple[str, str], a_save: bool = False) -> Iterator[bool]:
        """Something other than training, unless another thread does it. False: part of such; a
        signal handler may save meanwhile (`a_save`), which is part only of a save. What a recorder
        tells of is not told again.
        """
        me = threading.get_ident()
        outer = self._inside if me == self._main else None
        part = outer is not None and not (a_save and outer is not _SAVE)
        if self.off or me in self._busy or part:
            yield False
            return
        if me == self._main and self._evaluation.is_open:
            self._evaluation.look()
        if me != self._main or not self._rank0:
            self._busy.add(me)
            try:
                yield True
            finally:
                self._busy.discard(me)
            return
        told = (self._is_told() or (ends is _INIT and journal.INIT in self._journal.told)
                or (ends is _LOADING and bool(self._journal.phases)))
        begin = time()
        self._computation.explain(begin)
        try:
            self._inside = ends
            self._tell_first()
            if not told:
                self._put((ends[0], (begin,)))
            yield True
        finally:
            self._inside = outer
            end = time()
            if not told:
                self._put((ends[1], (end,)))
            self._computation.resume(end)

    def _around(self, ends: tuple[str, str], names: tuple[str, ...] = (),
                begin: _Begin = lambda _: -1, end: _End | None = None,
                a_save: bool | None = None) -> Around:
        """Tells that a call of a method is something other than training. `names` are those of its
        first parameters. `begin` gets all arguments by name, and gives of which step a save is, or
        None: nothing is to be told of the call. `end` gets that, the result and the arguments.
        """
        def around(method: Callable[..., Any]) -> Callable[..., Any]:
            def run(*args: Any, **kwargs: Any) -> Any:
                step = None
                if not self._is_out():
                    given = {**dict(zip(names, args)), **kwargs}
                    step = begin(given)
                if step is None:
                    return method(*args, **kwargs)
                with self._during(ends, step >= 0 if a_save is None else a_save) as told:
                    result = method(*args, **kwargs)
                if told and end is not None:
                    end(step, result, given)
                return result
            return run
        return around

    def _fetching(self, fetch: Callable[..., Any]) -> Callable[..., Any]:
        put, recorded, main, ident = self._put, self._journal, self._main, threading.get_ident
        evaluation, loading, computation = self._evaluation, _LOADING, self._computation
        told = 0.0  # when the last one ended that was told

        def fetch_to_evaluate(mine: Any) -> Any:  # a part of it; that it goes on is told
            nonlocal told
            self._inside = _LOADING
            try:
                return fetch(mine)
            finally:
                self._inside = None
                now = time()
                if not 0 <= now - told < _QUIET:
                    told = now
                    put((_LOADING[0], (now,)))
                    put((_LOADING[1], (now,)))

        def __next__(mine: Any) -> Any:
            nonlocal told
            if self._compiling() or self.off or self._inside or ident() != main:
                return fetch(mine)
            if self._first:
                self._tell_first()
            data = getattr(mine, "_dataset", None)
            if (evaluation.is_open or id(data) != evaluation.data
                    or not computation.keeps_gradients()):
                evaluation.look(data)
                if evaluation.is_open:
                    return fetch_to_evaluate(mine)
            if recorded.phases:
                return fetch(mine)
            # This runs with each step: what waits is told by the thread, if it lasts, and mostly
            # withdrawn.
            begin, begun = time(), recorded.begun
            if computation.waits:
                computation.explain(begin)
            begun.append((loading[0], (begin,)))
            if recorded.asleep:
                recorded.start()
            self._inside = loading
            try:
                return fetch(mine)
            finally:
                self._inside = None
                end = time()
                try:
                    entry = begun.pop()
                    # The clock may be set back.
                    short = end - begin <= _SHORT and 0 <= end - told < _QUIET
                    if not short:
                        put(entry)
                except IndexError:
                    short = False
                if not short:
                    told = end
                    put((loading[1], (end,)))
                    computation.resume(end)
                if self._leader is None and not (self._preparing or recorded.step is not None
                                                 or journal.PREPARATION in recorded.told):
                    self._preparing = True
                    put((_PREPARATION[0], (end,)))

        return __next__

    def _begin_loader(self, given: _Given) -> int | None:
        if not self._inside and threading.get_ident() == self._main:
            self._evaluation.look(getattr(given["self"], "dataset", None))
            if self._evaluation.is_open:
                return None
        return -1

    def _hook_files(self, module: str, save: str, load: str, what: str, where: str) -> None:
        """Functions that save and load: `what` and `where` are their parameters."""
        def number(given: _Given) -> int | None:
            if _is_file(given.get(where)):
                return self._number_of_save(given.get(what))
            # Where it goes from there, and when, is not known.
            return -1 if is_checkpoint(given.get(what)) else None

        def saved(step: int, _result: Any, given: _Given) -> None:
            if _is_file(given.get(where)):
                self._saved(given.get(where), step)
            else:
                self._untold()

        def around_load(load: Callable[..., Any]) -> Callable[..., Any]:
            def run(*args: Any, **kwargs: Any) -> Any:
                if self._is_out():
                    return load(*args, **kwargs)
                file = args[0] if args else kwargs.get(where)
                with (self._during(_RESTORE) if _is_file(file) else
                      contextlib.nullcontext(self._leader is None and self._inside is None)
                      ) as told:
                    result = load(*args, **kwargs)
                if told:
                    self._restored(file, result)
                return result
            return run

        wrap(f"{module}:{save}", self._around(_SAVE, (what, where), number, saved))
        wrap(f"{module}:{load}", around_load)

    def _hook_distributed(self) -> None:
        def number(given: _Given) -> int | None:
            if self._async_saves and threading.get_ident() != self._main:  # one of them
                return None
            return self._number_of_save(given.get("state_dict"))

        def saved(step: int, _result: Any, given: _Given) -> None:
            self._saved(given.get("checkpoint_id"), step)

        def restored(_step: int, _result: Any, given: _Given) -> None:
            self._restored(given.get("checkpoint_id"), given.get("state_dict"))

        def around_async_save(async_save: Callable[..., Any]) -> Callable[..., Any]:
            def run(*args: Any, **kwargs: Any) -> Any:
                if self._is_out():
                    return async_save(*args, **kwargs)
                state = args[0] if args else kwargs.get("state_dict")
                number = self._done() if is_checkpoint(state) else -1
                self._async_saves += 1
                try:
                    with self._during(_SAVE, number >= 0) as told:
                        result = async_save(*args, **kwargs)
                except BaseException:
                    self._async_saves -= 1
                    raise

                def done(future: Any) -> None:
                    self._async_saves -= 1
                    if told and not future.cancelled() and future.exception() is None:
                        self._saved(kwargs.get("checkpoint_id"), number)

                getattr(result, "upload_completion", result).add_done_callback(done)
                return result
            return run

        module = "torch.distributed.checkpoint.state_dict"
        wrap(f"{module}_saver:save", self._around(_SAVE, ("state_dict",), number, saved))
        wrap(f"{module}_saver:async_save", around_async_save, optional=True)
        wrap(f"{module}_loader:load", self._around(_RESTORE, ("state_dict",), end=restored))

    def _hook_frameworks(self) -> None:
        """What they call saving and loading. Orbax's manager says of which step a checkpoint is;
        one that a thread writes is complete when the manager has waited for it, which it does
        before it saves the next.
        """
        # By manager, which step a thread writes.
        written: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

        def number(_: _Given) -> int:
            return self._done()

        def saved(step: int, _result: Any, given: _Given) -> None:
            strategy = getattr(given["self"], "strategy", None)
            kinds = type(getattr(strategy, "checkpoint_io", None)).__mro__
            if any("Async" in kind.__name__ for kind in kinds):  # it is not there yet
                self._untold()
            else:
                file = given.get("filepath")  # Hugging Face's says the model here
                self._saved(file if isinstance(file, (str, os.PathLike)) else None, step)

        def number_of_manager(given: _Given) -> int:
            with contextlib.suppress(Exception):  # Orbax refuses what is not a number
                if self._tells_steps():
                    return channel.whole(given["step"])
            return self._done()

        def saved_by_manager(step: int, result: Any, given: _Given) -> None:
            if result is not False:  # of a step that is not to be saved
                complete(-1, None, given)
                written[given["self"]] = step
                # Rather a thread that writes than a wrong no.
                options = getattr(given["self"], "_options", None)
                if not getattr(options, "enable_async_checkpointing", True):
                    complete(-1, None, given)

        def complete(_step: int, _result: Any, given: _Given) -> None:
            self._saved(None, written.pop(given["self"], -1))

        told: list[tuple[Any, ...]] = [
            (_SAVES, _SAVE, "filepath", number, saved),
            ([_MANAGER + "save"], _SAVE, "step", number_of_manager, saved_by_manager),
            ([_MANAGER + "wait_until_finished", _MANAGER + "close"], _SAVE, "", number, complete),
            # Not by a manager: of which step, and when it is complete, is not said.
            ([one + "save" for one in _WITHOUT_MANAGER], _SAVE, "", number,
             lambda *_: self._untold()),
            (_RESTORES, _RESTORE, "", number, None),
            (_TRIALS, _PREPARATION, "", number, None)]
        for places, ends, name, begin, end in told:
            for place in places:
                wrap(place, self._around(ends, ("self", name), begin, end, ends is _SAVE), True)
        for place in _STEPS:
            wrap(place, before(self._computation.begins), True)
        after_import("transformers.trainer_callback", self._hook_resume)
        if self._rank0:
            for place in _EVALUATIONS:
                wrap(place, self._evaluation.said_by, True)

    def _hook_resume(self, module: ModuleType) -> None:
        """The Hugging Face trainer that goes on says how many steps it had made."""
        load = vars(module.TrainerState)["load_from_json"].__func__

        @functools.wraps(load)
        def load_and_tell(*args: Any, **kwargs: Any) -> Any:
            state = load(*args, **kwargs)
            if (type(getattr(state, "global_step", None)) is int
                    and self._leader is None and not self.off):
                self._number, self._known = state.global_step - 1, _MARK + 1
            return state

        module.TrainerState.load_from_json = classmethod(load_and_tell)

    def _number_of_save(self, what: Any) -> int:
        """The step of the state that is being saved: in another thread what was taken before.
        -1: not a checkpoint.
        """
        if not is_checkpoint(what):
            return -1
        if threading.get_ident() == self._main or self._snapshot < 0:
            return self._done()
        number, self._snapshot = self._snapshot, -1
        return number

    def _saved(self, file: Any, number: int) -> None:
        if number < 0 or self.off or not self._rank0:
            return
        self._checkpoints.saved(file, number)
        if self._checkpoints_by_hand:
            return
        self._tell_first()
        packet = b'{"kind":"checkpoint","step":%d}' % number
        self._put(lambda: channel.offer(packet))  # after the entries about these steps
        with contextlib.suppress(Exception):  # an entry that cannot be formatted
            self._journal.drain()

    def _restored(self, file: Any, what: Any = None) -> None:
        """The steps go on where a checkpoint of this job was saved; of several that are loaded, the
        last one of which that is known best. After the first step: if the optimizer takes it.
        """
        whole = holds_optimizer(what)
        if self._leader is not None and not whole:
            return
        step, known = self._checkpoints.step_of(file), _MARK + whole
        if step == NO_MARK:
            step, known = steps_told(what) - 1 if is_checkpoint(what) else NO_MARK, int(whole)
        if step is not None and step >= 0:
            if self._leader is not None:
                self._loaded = step if known > _MARK else None
            elif known >= self._known:
                self._number, self._known = step, known
        elif (whole and self._leader is None and self._known < _MARK
              and not (self._tells_steps() or self._journal.recorded)):
            self._untold()

    def _untold(self) -> None:
        """A checkpoint was saved, or is loaded, and of which step is not known: what a failure
        costs is not, then, either.
        """
        if not self.off and self._rank0 and not self._checkpoints_by_hand:
            self._tell_first()
            self._put(lambda: channel.offer(_UNTOLD))


def start() -> None:
    """In a worker of --goodput auto; not in the Python processes that it starts."""
    mode, _, process = os.environ.get(_VARIABLE, "").partition("/")
    if mode != "auto" or process not in ("", str(os.getpid())) or not channel.is_configured():
        return
    os.environ[_VARIABLE] = f"auto/{os.getpid()}"
    Watch().begin()
