# SPDX-License-Identifier: Apache-2.0
"""The page that this worker shares with its agent (ELASTRUN_PAGE): the last step, phase and values.

What is written here costs no system call, and the agent reads it also when this process hangs or
has been killed. One process writes it, the first that has something to say, and after its end
another one that has; a forked child does not. The layout is described in elastrun-protocol(7).
"""
from __future__ import annotations

import contextlib
import mmap
import os
import struct
import time

from elastrun.outbox import at_begin, at_fork

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_MAGIC = b"elastrun"
_VERSION = 1
_HEADER = struct.Struct("=8sIIII")  # magic, version, size, process, number of series
_OWNER, _COUNT = 4, 5  # in words of 4 bytes
# In words of 8 bytes: the lock of what follows, the step, when it was, then the phase and when.
_LOCK, _STEP, _STEP_AT, _PHASE_AT, _REFUSED = 3, 4, 5, 10, 11
_LOOKED, _SAVE_AT = 12, 13  # when should_save was first called; the agent's order
_IMPORTED = 14  # the process that has imported this package, and may come to call should_save
_PHASE, _PHASE_END = 48, 80  # in bytes
_MOST_REFUSED = 4096  # series that are known to have no place
_SERIES, _ENTRY, _NAME = 128, 128, 28  # in bytes; the name, with its length before it, in an entry


class Page:
    """A lock is odd while its part is written; a reader that finds it so reads again."""

    def __init__(self, mapping: mmap.mmap) -> None:
        self._bytes = memoryview(mapping)
        self.words = self._bytes.cast("q")
        self.numbers = self._bytes.cast("d")
        self._halves = self._bytes.cast("I")
        self._most = (len(self._bytes) - _SERIES) // _ENTRY
        self._places: dict[tuple[str, str], int] = {}
        self._halves[_COUNT] = 0

    def step(self, number: int) -> None:
        number = int(number)
        if not 0 <= number < 1 << 63:
            return
        words = self.words
        lock = words[_LOCK] | 1
        words[_LOCK] = lock
        words[_STEP] = number
        words[_STEP_AT] = time.monotonic_ns()
        words[_LOCK] = lock + 1

    def refused(self) -> int:
        """The amount of what this worker has said that the agent has not taken."""
        return max(int(self.words[_REFUSED]), 0)

    def phase(self, name: str) -> None:
        """At most 32 bytes of it."""
        text = name.encode("utf-8", "replace")[:_PHASE_END - _PHASE]
        words = self.words
        lock = words[_LOCK] | 1
        words[_LOCK] = lock
        self._bytes[_PHASE:_PHASE_END] = text.ljust(_PHASE_END - _PHASE, b"\0")
        words[_PHASE_AT] = time.monotonic_ns()
        words[_LOCK] = lock + 1

    def put(self, key: tuple[str, str], number: float) -> None:
        """The last value of (group, name); nothing where the page is full."""
        place = self.find(key)
        if place:
            # Another thread at the same series leaves the lock even, too.
            words = self.words
            lock = words[place] | 1
            words[place] = lock
            self.numbers[place + 1] = number
            words[place + 2] += 1
            words[place] = lock + 1

    def find(self, key: tuple[str, str]) -> int:
        """The place of a series in words of 8 bytes; 0: the page is full."""
        place = self._places.get(key)
        return self._add(key) if place is None else place

    def _add(self, key: tuple[str, str]) -> int:
        index = self._halves[_COUNT]
        if index >= self._most:
            if len(self._places) < _MOST_REFUSED:
                self._places[key] = 0
            return 0
        self._halves[_COUNT] = index + 1  # first: another thread must not take the same
        begin = _SERIES + index * _ENTRY
        name = "\0".join(map(str, key)).encode("utf-8", "replace")[:_ENTRY - _NAME]
        self._bytes[begin:begin + 24] = bytes(24)
        self._bytes[begin + _NAME:begin + _NAME + len(name)] = name
        self._halves[(begin + _NAME) // 4 - 1] = len(name)
        place = self._places[key] = begin // 8
        return place


def shown(key: tuple[Any, ...]) -> tuple[str, str]:
    """The key of a series, whose labels, if any, become part of the name: "loss{layer=3}"."""
    if len(key) < 3:
        return key[0], key[1]
    return key[0], key[1] + "{" + ",".join(f"{one}={value}" for one, value in key[2]) + "}"


def should_save(step: int | None = None) -> bool:
    """Tells if the job is to save now, because it will be ended (elastrun-preemption(7)).

    Call it after each training step, with the number of that step, on every rank: all of them hear
    True at the same step, one that none had done yet when the order came. Save then, tell
    elastrun.checkpoint_done(step), and return. Without a number it goes by the last step told; if
    none was, it is True as soon as the order is here, which may be at different steps.
    Costs no system call; False under another launcher.
    """
    global _saves_by
    own = _saves_by or page()
    if own is None:
        return False
    if _saves_by is None:
        # From now on the agent sends no signal to make this process save.
        own.words[_LOOKED] = time.monotonic_ns()
        _saves_by = own
    if step is not None:
        try:
            own.step(step)  # from which the agent knows a step that no rank has done yet
        except Exception:
            step = None  # NaN, say: as without a number
    order = own.words[_SAVE_AT]
    if order == 0:
        return False
    if step is None and own.words[_STEP_AT]:
        step = own.words[_STEP]
    return order == 1 or step is None or step >= order - 2


_saves_by: Page | None = None  # once should_save has been called


def has_ended(process: int) -> bool:
    """A script that prepares data, say, before the training: that has to hear of should_save."""
    try:
        os.kill(process, 0)
    except (OSError, OverflowError) as error:
        return isinstance(error, ProcessLookupError)
    return False


def _open(path: str) -> Page | None:
    """Opens it. None: there is none, or another process of this worker writes it."""
    try:
        # Not /proc/self: the agent keeps the file open, and it has no other name.
        with open(path, "r+b", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            if size < _SERIES or size % 8 != 0:
                return None
            mapping = mmap.mmap(file.fileno(), size)
    except (OSError, ValueError):
        return None
    magic, version, said, owner, _ = _HEADER.unpack_from(mapping)
    is_taken = owner not in (0, os.getpid()) and not has_ended(owner)
    if (magic, version, said) != (_MAGIC, _VERSION, size) or is_taken:
        mapping.close()
        return None
    struct.pack_into("=I", mapping, _OWNER * 4, os.getpid())
    return Page(mapping)


_path = ""  # of a page that was not asked for yet
_page: Page | None = None


def page() -> Page | None:
    """The page of this process, opened when first asked for."""
    global _path, _page
    if _path:
        path, _path = _path, ""
        _page = _open(path)
    return _page


def _forget() -> None:
    global _path, _page, _saves_by
    _path, _page, _saves_by = "", None, None


def _begin() -> None:
    global _path
    _forget()
    _path = os.environ.get("ELASTRUN_PAGE", "")
    if _path:
        # The agent sends no SIGTERM that would end this process before its first should_save.
        with contextlib.suppress(OSError), open(_path, "r+b", buffering=0) as file:
            if file.read(8) == _MAGIC:
                os.pwrite(file.fileno(), struct.pack("=q", os.getpid()), 8 * _IMPORTED)
    if os.environ.get("ELASTRUN_PREEMPT_SIGNALS"):
        _ignore(os.environ["ELASTRUN_PREEMPT_SIGNALS"])


def _ignore(names: str) -> None:
    """Signals that have the job preempted, where the script does not handle them: Slurm sends them
    to every process of a step, and this one is to hear of the end by should_save."""
    import signal
    for name in names.split(","):
        number = getattr(signal, name, None)
        if number is None or signal.getsignal(number) is not signal.SIG_DFL:
            continue
        # Imported by another thread; a signal that cannot be ignored.
        with contextlib.suppress(ValueError, OSError):
            signal.signal(number, signal.SIG_IGN)


at_begin(_begin)
at_fork(_forget)
