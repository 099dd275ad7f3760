# SPDX-License-Identifier: Apache-2.0
"""For --goodput auto: what Lightning's and Hugging Face's trainers and Orbax call evaluating,
saving and loading. Their checkpoints are more than a call of torch.save: Lightning's goes into a
buffer and from there to a file system, the others are several files, not all of which are torch's.

A version that has other names is seen as any script is.
"""
from __future__ import annotations

import functools
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any

from elastrun.imports import after_import

_LIGHTNING = ("lightning.pytorch", "pytorch_lightning")
_TRANSFORMERS = "transformers.trainer"
_STATE = "transformers.trainer_callback"

# What is around a call of a method of these: (module, class, method).
EVALUATIONS = [(f"{one}.loops.evaluation_loop", "_EvaluationLoop", "run") for one in _LIGHTNING]
EVALUATIONS += [(_TRANSFORMERS, "Trainer", name) for name in ("evaluate", "predict")]
RESTORES = [(_TRANSFORMERS, "Trainer", "_load_from_checkpoint"),
            (_TRANSFORMERS, "Trainer", "_load_optimizer_and_scheduler")]
SAVES = [(f"{one}.trainer.trainer", "Trainer", "save_checkpoint") for one in _LIGHTNING]
SAVES += [(_TRANSFORMERS, "Trainer", "_save_checkpoint")]
# What begins the computation of a step, whatever it does before it calls the model.
STEPS = [(f"{one}.strategies.strategy", "Strategy", "training_step") for one in _LIGHTNING]
STEPS += [(_TRANSFORMERS, "Trainer", "training_step")]
# Trains to find out how to train, and takes it back.
TRIALS = [(f"{one}.callbacks.lr_finder", "LearningRateFinder", "lr_find") for one in _LIGHTNING]
TRIALS += [(f"{one}.callbacks.batch_size_finder", "BatchSizeFinder", "scale_batch_size")
           for one in _LIGHTNING]
_ORBAX = ("orbax.checkpoint.checkpoint_manager", "CheckpointManager")
# The newer name of a module first: the other one then has the same class, which is wrapped once.
_ORBAX_ALONE = [(f"orbax.checkpoint.{module}", owner)
                for name, owner in (("checkpointer", "Checkpointer"),
                                    ("async_checkpointer", "AsyncCheckpointer"))
                for module in (f"_src.checkpointers.{name}", name)]
ORBAX_SAVES, ORBAX_RESTORES = [(*_ORBAX, "save")], [(*_ORBAX, "restore")]
ORBAX_WAITS = [(*_ORBAX, name) for name in ("wait_until_finished", "close")]
ORBAX_SAVES_ALONE = [(*one, "save") for one in _ORBAX_ALONE]
ORBAX_RESTORES += [(*one, "restore") for one in _ORBAX_ALONE]


def wrap(place: tuple[str, str, str], around: Callable[[Callable[..., Any]], Any]) -> None:
    """Puts what `around` makes of it in place of a method, when its module is imported."""
    module, owner, name = place

    def hook(imported: ModuleType) -> None:
        found = getattr(imported, owner, None)
        method = vars(found).get(name) if isinstance(found, type) else None
        if callable(method) and not hasattr(method, "_elastrun"):
            wrapped = functools.wraps(method)(around(method))
            wrapped.__dict__["_elastrun"] = True  # under another module's name it is the same
            setattr(found, name, wrapped)

    after_import(module, hook)


def within(make: Callable[[], AbstractContextManager[Any]]) -> Callable[..., Any]:
    """For `wrap`: the method runs in a context that `make` makes."""
    def around(method: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            with make():
                return method(*args, **kwargs)
        return run
    return around


def on_resume(call: Callable[[int], None]) -> None:
    """`call`: how many steps the Hugging Face trainer had made that goes on."""
    def hook(module: ModuleType) -> None:
        load = vars(module.TrainerState)["load_from_json"].__func__

        @functools.wraps(load)
        def load_and_tell(*args: Any, **kwargs: Any) -> Any:
            state = load(*args, **kwargs)
            if type(getattr(state, "global_step", None)) is int:
                call(state.global_step)
            return state

        module.TrainerState.load_from_json = classmethod(load_and_tell)

    after_import(_STATE, hook)


def place_of(trainer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, bool]:
    """Where a call of one of SAVES saves, and whether it is there when the call ends."""
    strategy = getattr(trainer, "strategy", None)
    file = args[0] if args else kwargs.get("filepath")
    if not isinstance(file, (str, os.PathLike)):
        file = None  # Hugging Face's says the model here; its state tells the step
    kinds = type(getattr(strategy, "checkpoint_io", None)).__mro__
    return file, not any("Async" in kind.__name__ for kind in kinds)


def is_asynchronous(manager: Any) -> bool:
    """Whether a checkpoint manager of Orbax lets a thread write; rather yes than a wrong no."""
    options = getattr(manager, "_options", None)
    return bool(getattr(options, "enable_async_checkpointing", True))
