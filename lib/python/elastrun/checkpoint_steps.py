# SPDX-License-Identifier: Apache-2.0
"""For --goodput auto: what is a checkpoint, and of which step."""
from __future__ import annotations

import collections
import contextlib
import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

from elastrun.outbox import Outbox

_ATTRIBUTE = "user.elastrun.step"
_ENDING = 1 << 16  # bytes: what torch.save writes ends with check sums of all
_MOST_SAVED = 64  # checkpoints whose step is remembered
_PATIENCE = 1.0  # seconds that loading waits for the list of an earlier attempt, at most
_DEEPEST = 3  # containers in containers that are looked into
_MOST_SEEN = 1000  # values
NO_MARK = -1  # in place of a step
# What is remembered beside checkpoints.
DONE = "checkpoint_done"  # of which step the last one was that the script reported
BY_HAND = "step"  # one that the script reported
# Under which a checkpoint tells how many steps it holds: Lightning's, and what scripts have.
_STEPS = ("global_step", "step", "steps", "iteration", "iter_num")


def _place(file: Any) -> Any:
    """A path or a descriptor; of a directory its index, if it has one."""
    if not isinstance(file, (str, os.PathLike)):
        return file.fileno()
    index = os.path.join(file, ".metadata")
    return index if os.path.isfile(index) else file


def _inode(file: Any) -> str:
    """Which a rename does not change."""
    found = os.stat(_place(file))
    return f"{found.st_dev}:{found.st_ino}"


def _mark(place: Any, step: int, size: int) -> bytes:
    """Of the first `size` bytes of a file of this job: what is appended later, a trailer or what a
    compressor had kept back, changes nothing; what is written over it later has another mark.
    """
    import hashlib  # torch has it already, a process that ends without torch does not need it
    with open(f"/proc/self/fd/{place}" if isinstance(place, int) else place, "rb") as file:
        file.seek(max(0, size - _ENDING))
        ending = file.read(min(size, _ENDING))
    job = os.environ.get("TORCHELASTIC_RUN_ID", "")
    told = hashlib.sha256(f"{job} {step} {size} ".encode() + ending).hexdigest()
    return b"%d %d %s" % (step, size, told[:32].encode())


class CheckpointSteps:
    """Of which step each checkpoint of this job is, by its inode: in a file beside the directories
    of the attempts, so that the next attempt knows; and in an attribute of the checkpoint itself
    where its file system keeps such, so that other nodes and later submissions of the job know. The
    checkpoint's content is the script's alone.

    A thread reads and writes that file: the training does not wait for the file system of the logs.
    """

    def __init__(self, run_dir: str) -> None:
        attempt = os.path.dirname(os.path.abspath(run_dir))
        self._path = os.path.join(os.path.dirname(attempt), "checkpoint_steps.json")
        self._steps: dict[str, int] = {}  # of this attempt and those before it, oldest first
        self._work: collections.deque[Callable[[], None]] = collections.deque()
        self._duty = Outbox("checkpoints").duty(self._do)
        self._read_already = False
        self._runs = False  # the thread
        self._patience = _PATIENCE

    def start(self) -> None:
        self._work.append(self._read)
        self._runs = self._duty.wake()  # False, no more threads: steps begin with 0

    def _do(self) -> None:
        while self._work:
            with contextlib.suppress(Exception):  # a file that cannot be written, or is not a list
                self._work[0]()
            self._work.popleft()  # now: it is done

    def _read(self) -> None:
        try:
            with open(self._path, encoding="utf-8") as file:
                self._steps = {str(key): int(step) for key, step in json.load(file).items()}
        finally:
            self._read_already = True

    def saved(self, file: Any, step: int) -> None:
        """A path or an open file: a checkpoint of everything up to `step`."""
        with contextlib.suppress(Exception):  # of a file object of the script, too
            place = _place(file)
            size = os.stat(place).st_size
            if size > 0:  # else all of it is still in a buffer
                os.setxattr(place, _ATTRIBUTE, _mark(place, step, size))
            else:
                os.removexattr(place, _ATTRIBUTE)
        with contextlib.suppress(Exception):
            self.note(_inode(file), step)

    def note(self, key: str, step: int) -> None:
        self._work.append(lambda: self._write(key, step))
        if self._runs:
            self._duty.wake()

    def _write(self, key: str, step: int) -> None:
        self._steps.pop(key, None)  # the newest is the last
        self._steps[key] = step
        for old in [one for one in self._steps if one not in (DONE, BY_HAND)][:-_MOST_SAVED]:
            del self._steps[old]
        unfinished = f"{self._path}.new"  # which a process that is killed leaves to the next one
        with open(unfinished, "w", encoding="utf-8") as out:
            json.dump(self._steps, out)
        os.replace(unfinished, self._path)

    def step_of(self, file: Any) -> int | None:
        """None: it is of another job. NO_MARK: nothing tells, as far as is known in time."""
        step = None
        with contextlib.suppress(Exception):  # without a mark
            place = _place(file)
            mark = os.getxattr(place, _ATTRIBUTE)
            number, size = map(int, mark.split()[:2])
            return number if 0 <= number < 1 << 53 and mark == _mark(place, number, size) else None
        with contextlib.suppress(Exception):
            step = self.noted(_inode(file))
        return NO_MARK if step is None else step

    def noted(self, key: str) -> int | None:
        """By this process, or one before it."""
        self._wait(lambda: self._read_already, self._patience)
        self._patience = 0
        return self._steps.get(key)

    def flush(self, seconds: float) -> None:
        self._wait(lambda: not self._work, seconds)

    def _wait(self, is_so: Callable[[], bool], seconds: float) -> None:
        """For the thread, if there is one."""
        end = time.monotonic() + seconds  # no lock: a signal handler may load, too
        while self._runs and not is_so() and time.monotonic() < end:
            time.sleep(0.002)


def _within(what: Any, depth: int = 0) -> Iterable[Any]:
    """A value and what is in its containers, without a call of a method that is not built in."""
    yield what
    if depth < _DEEPEST:
        inner: Iterable[Any] = ()
        if isinstance(what, dict):
            inner = dict.values(what)
        elif type(what) in (list, tuple):
            inner = what
        for one in inner:
            yield from _within(one, depth + 1)


def _has_state(what: Any, tensor: type) -> bool:
    if not isinstance(what, dict):
        return hasattr(type(what), "state_dict") and hasattr(type(what), "load_state_dict")
    if isinstance(what, collections.OrderedDict) and "_metadata" in vars(what):
        return True  # by Module.state_dict()
    if dict.__contains__(what, "param_groups") and dict.__contains__(what, "state"):
        return True  # by Optimizer.state_dict()
    return any(isinstance(name, str) and name.endswith((".weight", ".bias"))
               and isinstance(value, tensor)
               for name, value in itertools.islice(dict.items(what), _MOST_SEEN))


def holds_optimizer(what: Any) -> bool:
    """Whether a training goes on with it: a model that another one has trained has none."""
    with contextlib.suppress(Exception):  # a dictionary that another thread changes
        return any(isinstance(one, dict) and dict.__contains__(one, "param_groups")
                   for one in itertools.islice(_within(what), _MOST_SEEN))
    return False


def steps_told(what: Any) -> int:
    """How many steps a checkpoint says that the training had made; 0: it does not."""
    if isinstance(what, dict):
        for name in _STEPS:
            steps = dict.get(what, name)
            if type(steps) is int and 0 <= steps < 1 << 53:
                return steps
    return 0


def is_checkpoint(what: Any) -> bool:
    """Whether it holds the state of a model or of an optimizer. Rather no than a wrong yes: a user
    who is told that steps are safe relies on it.
    """
    with contextlib.suppress(Exception):  # a dictionary that another thread changes
        tensor = sys.modules["torch"].Tensor
        return any(_has_state(one, tensor)
                   for one in itertools.islice(_within(what), _MOST_SEEN))
    return False
