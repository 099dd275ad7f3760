# SPDX-License-Identifier: Apache-2.0
"""Entries about goodput on their way out of this process: to the agent, or into a file.

What is put in returns at once; a thread takes it further, every 50 ms while something comes. What
does not fit any more is counted, and the count is written, too.

A signal handler may put, drain and flush at any point of the same calls of the same thread:
nothing here waits for a lock.
"""
from __future__ import annotations

import collections
import contextlib
import errno
import fcntl
import json
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from elastrun import channel
from elastrun.outbox import Outbox, at_end, at_fork

_MOST = 10_000  # entries that wait
_AT_ONCE = 100  # entries that go together
_LONGEST_PACKET = 15_000  # bytes, for the agent
_INTERVAL = 0.05  # seconds; between two looks at what waits
_IDLE = 20  # looks in vain before the thread sleeps until it is woken
_PATIENCE = 1.0  # seconds that one job waits for another to write into the same file
_ENDING = 1 << 18  # bytes of the agent's journal, among which the last entry is
_GRACE = 5.0  # seconds that the end of the process waits for a file at most
LOADING = '{"data_loading_%s_time":%%r}'
INIT = '{"tpu_init_%s_time":%%r}'
PREPARATION = '{"training_prep_%s_time":%%r}'

# A template and what goes into it: the training does not wait for the text to be made.
Entry = tuple[str, tuple[Any, ...]]
# What is to be done when all that was put in before is out. False: not now.
Task = Callable[[], bool]


class File:
    """JSON lines. One process writes them: it holds a lock on the file. Each write is whole lines;
    one that could not be ended is closed off by the next. Several jobs may share it.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._torn = False
        self._complained = False
        self.refused = False  # the last time, for a reason that stays
        self._file = -1
        self._writing = threading.Lock()

    def _complain(self, what: object) -> None:
        if not self._complained:
            self._complained = True
            logging.getLogger("elastrun.goodput").warning(
                "cannot write %s: %s; what does not fit into the queue is lost", self._path, what)

    def _open(self) -> int:
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        file = os.open(self._path, flags, 0o644)
        try:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise
            except OSError:  # a file system without locks
                pass
            size = os.fstat(file).st_size
            self._torn = size > 0 and os.pread(file, 1, size - 1) != b"\n"
        except OSError:
            os.close(file)
            raise
        return file

    def write(self, job: str, entries: list[str], lost: int) -> int | None:
        """Writes texts of entries, and how many were lost; how many of them are out. None: not now.
        """
        if not self._writing.acquire(timeout=_PATIENCE):  # by the thread of another job
            return None
        try:
            return self._write('{"job_name":%s,' % json.dumps(job), entries, lost)
        finally:
            self._writing.release()

    def _write(self, head: str, entries: list[str], lost: int) -> int | None:
        told = ['{"lost_entries":%d,"lost_time":%r}' % (lost, time.time())] if lost else []
        data = "".join(f"{head}{entry[1:]}\n" for entry in told + entries).encode()
        done = 0
        self.refused = False
        try:
            if self._file >= 0:
                try:
                    moved = not os.path.samestat(os.stat(self._path), os.fstat(self._file))
                except OSError as error:
                    moved = error.errno == errno.ENOENT
                if moved:  # removed or renamed: what is written into it is not found by its name
                    self._close()
            if self._file < 0:
                self._file = self._open()
            if self._torn:
                os.write(self._file, b"\n")
                self._torn = False
            while done < len(data):
                done += os.write(self._file, data[done:])
        except BlockingIOError:
            self._complain("another process writes it")
        except OSError as error:
            self.refused = error.errno not in (errno.EAGAIN, errno.EINTR, errno.ETIMEDOUT)
            self._complain(error)
        self._torn = self._torn or data[done - 1:done] not in (b"", b"\n")
        whole = data.count(b"\n", 0, done) - len(told)
        return whole if whole >= 0 and done > 0 else None

    def _close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def forget(self) -> None:
        """Closes it in a forked child, which would keep the parent's lock as long as it lives."""
        self._close()
        self._writing = threading.Lock()


class Journal:
    """A queue of entries, for all threads. `put` neither waits nor raises. `job`: as the recorder
    calls it; empty: hooks tell, and no recorder."""

    def __init__(self, job: str, target: File | None = None) -> None:
        self.job = job
        self._target = target  # None: the agent
        self.beside: Journal | None = None  # of a file, which gets what the agent has taken
        self.last = ""  # that is out
        self.lost = 0
        # For hooks: whether there is a recorder, its open phases and all that it has told, the step
        # that has begun. What a recorder never tells of is told by hooks.
        self.recorded = False
        self.phases: set[str] = set()
        self.told: set[str] = set()
        self.step: int | None = None
        self.at_each_pass: Callable[[], None] | None = None  # of the thread
        # A file has a thread for itself: a file system that hangs keeps nothing from the agent,
        # which would take the job for one that hangs.
        self._outbox = channel.outbox if target is None else Outbox("goodput")
        self._duty = self._outbox.duty(self._pass)
        self._forget()
        at_fork(self._forget)
        if target is not None:
            at_fork(target.forget)
        at_end(lambda: self.flush(_GRACE))

    def _forget(self) -> None:
        """Starts over in a forked child: what was put in is the parent's to tell."""
        self.waiting: collections.deque[Entry | Task] = collections.deque()
        # What may be withdrawn: an entry is the one's who pops it, this thread's or the caller's.
        self.begun: list[Entry] = []
        self._taken: list[str] = []  # formatted, and not written yet
        self._task: Task | None = None  # which comes after them
        self._told = self.lost
        self._draining = threading.Lock()
        self.asleep = True
        self._passes = self._in_vain = 0  # of the thread

    def put(self, entry: Entry | Task) -> None:
        if self.begun:
            self._settle()
        waiting = self.waiting
        if len(waiting) >= _MOST:
            self.lost += 1
            return
        waiting.append(entry)
        if self.asleep:
            self.start()

    def _settle(self) -> None:
        """Tells what has begun: it was before what comes now, and is not withdrawn any more."""
        with contextlib.suppress(IndexError):
            self.waiting.append(self.begun.pop())

    def start(self) -> None:
        """Wakes the thread, while `asleep`: something has been put in."""
        self.asleep = False
        if not self._duty.wake():  # with a later entry, or by flush() at the end
            self.asleep = True

    def drain(self) -> bool:
        """Takes what waits further. False: something waits still, or another thread drains."""
        if not self._draining.acquire(blocking=False):
            return False
        try:
            return self._drain()
        finally:
            self._draining.release()

    def _drain(self) -> bool:
        while True:
            self._take()
            count, lost = len(self._taken), self.lost - self._told
            if count or lost:
                done = self._write(lost)
                if done is None:
                    return False
                if self.beside is not None:
                    self.beside.lost += lost
                    for text in self._taken[:done]:
                        self.beside.put((text.replace("%", "%%"), ()))
                if lost and self._told == 0:
                    logging.getLogger("elastrun.goodput").warning(
                        "%d entries about goodput are lost: they came faster than they could be "
                        "written, or had no valid step or time", lost)
                self._told += lost
                self.last = self._taken[done - 1] if done else self.last
                del self._taken[:done]
                if done < count:
                    return False
            elif self._task is None:
                return True
            elif self._task():
                self._task = None
            else:
                return False

    def _write(self, lost: int) -> int | None:
        if self._target is not None:
            return self._target.write(self.job, self._taken, lost)
        said = f'"job":{json.dumps(self.job)}' if self.job else '"hooks":true'
        end = '],"lost":%d}' % lost if lost else "]}"
        packet = '{"kind":"goodput",%s,"entries":[%s%s' % (said, ",".join(self._taken), end)
        return len(self._taken) if channel.offer(packet.encode("utf-8", "replace")) else None

    def _take(self) -> None:
        self._settle()
        size = sum(map(len, self._taken))
        with contextlib.suppress(IndexError):
            while self._task is None and len(self._taken) < _AT_ONCE:
                entry = self.waiting.popleft()
                if callable(entry):
                    self._task = entry
                    return
                text = entry[0] % entry[1]
                size += len(text)
                if self._taken and 4 * size > _LONGEST_PACKET:  # at most, as UTF-8
                    self.waiting.appendleft(entry)
                    return
                self._taken.append(text)

    def _pass(self) -> float | None:
        self._in_vain = 0 if self.waiting else self._in_vain + 1
        try:
            if self.at_each_pass is not None:
                self.at_each_pass()
            self.drain()
        except Exception:  # an entry that cannot be formatted
            self.lost += 1
        self._passes += 1
        if self._in_vain < _IDLE or self._unfinished():
            return _INTERVAL
        self.asleep = True
        self._in_vain = 0
        return 0 if self.waiting or self.begun else None

    def _unfinished(self) -> bool:
        return bool(self.waiting or self.begun or self._taken or self._task
                    or self.lost != self._told)

    def flush(self, seconds: float) -> bool:
        """Until what was put is out, for so long at most. The thread does it: a file system that
        hangs holds up no caller for longer, and one that refuses none at all.
        """
        end = time.monotonic() + seconds
        out = self._flush_until(end)
        return (self.beside is None or self.beside._flush_until(end)) and out

    def _flush_until(self, end: float) -> bool:
        next_whole = self._passes + 2
        while self._unfinished() or self._draining.locked():
            if not self._outbox.is_alive():
                return self.drain()
            self._duty.wake()
            # Before that the thread may be about to connect, or to open the file.
            gone = self._passes >= next_whole and (
                not channel.is_connected() if self._target is None else self._target.refused)
            if gone or time.monotonic() > end:
                return False
            time.sleep(0.001)
        return True


def of_agent() -> str | None:
    """The journal of this node's agent; empty: it keeps none, without --log-dir; None: no agent."""
    folder = os.environ.get("ELASTRUN_RUN_DIR", "")
    if not folder or not channel.is_configured():
        return None
    path = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(folder))), "journal.jsonl")
    return path if os.path.exists(path) else ""


def own_file(job: str) -> str:
    """The file for the entries of a job that no agent keeps."""
    safe = re.sub(r"[^\w.-]", "_", str(job)).lstrip(".") or "job"
    return os.environ.get("ELASTRUN_GOODPUT_FILE") or f"{safe[:128]}.goodput.jsonl"


_journals: dict[tuple[str, str], Journal] = {}
_files: dict[str, File] = {}
_making = threading.Lock()


def _forget() -> None:
    """Renews the lock in a forked child: a thread that it does not have may hold it."""
    global _making
    _making = threading.Lock()


at_fork(_forget)


def journal(job: str, path: str = "") -> Journal:
    """The journal of a job: to the agent if there is one and no path is given, else a file; into a
    file, too, if the agent keeps no journal, so that a calculator finds them. The first job takes
    over that of the hooks, so that the entries of both go in one order.
    """
    with _making:
        found = _journals.get((job, path))
        if found is None:
            if path:
                found = Journal(job, _files.setdefault(path, File(path)))
            else:
                found = _journals.pop(("", ""), None) or Journal(job)
                found.drain()
                found.job, found.recorded = job, bool(job)
                if job and of_agent() == "":
                    own = own_file(job)
                    found.beside = Journal(job, _files.setdefault(own, File(own)))
            _journals[job, path] = found
        return found


def flush_all(paths: Iterable[str]) -> None:
    """Before `paths` are read: what this process has recorded, and the agent keeps, is there."""
    for one in list(_journals.values()):
        one.flush(_GRACE)
        path = of_agent() if one._target is None and one.last else None
        if path and path in paths:
            _await(path, one.last)
            one.last = ""


def _await(path: str, entry: str) -> None:
    """The agent has a thread write its journal."""
    wanted, deadline = json.loads(entry).items(), time.monotonic() + _GRACE
    while time.monotonic() < deadline:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _ENDING))
            for line in file.read().splitlines()[::-1]:
                with contextlib.suppress(Exception):  # half a line
                    if wanted <= json.loads(line)["attributes"].items():
                        return
        time.sleep(_INTERVAL / 10)
