# SPDX-License-Identifier: Apache-2.0
"""The calculator of goodput is a part of the program elastrunctl, which comes with this package.
One process of it answers all questions of one calculator: `elastrunctl goodput calculate`.
"""
from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import time
import weakref
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any, Union

from elastrun.journal import flush_all
from elastrun.program import find_program

Path = Union[str, "os.PathLike[str]"]

LIMIT = 120.0  # seconds for an answer: it reads what is new in the log
_END_LIMIT = 5.0
_PIPE = 1 << 16
_AT_ONCE = 10_000  # entries


def _end(process: subprocess.Popen[bytes], owner: int) -> None:
    if os.getpid() != owner:
        return  # a fork, which must not wait for a child of another
    assert process.stdin is not None and process.stdout is not None
    # It holds nothing of value, and the end of its input does not come while a fork has the pipe.
    process.kill()
    process.stdin.close()
    process.stdout.close()
    with contextlib.suppress(subprocess.TimeoutExpired):  # one that reads a disk that hangs
        process.wait(_END_LIMIT)


class CalculatorProgram:
    """Starts with the first question, and again where it has ended or this process is a fork. Ends
    with this object, and with this process, whatever ends that. One thread at a time.
    """

    def __init__(self, job_name: str, paths: Sequence[Path], elastic: bool = False) -> None:
        self._paths = [os.fspath(one) for one in paths]
        self._words = ["goodput", "calculate", f"--job={job_name}",
                       *(["--elastic"] if elastic else []), "--", *self._paths]
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0
        self._ended: Any = None
        self._rest = b""

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def started(self) -> bool:
        """Whether it had to be: it knows no entries yet that do not come from files."""
        if self._process is not None and self._owner == os.getpid():
            if self._process.poll() is None:
                return False
            self._close()
        program = find_program("elastrunctl")
        if program is None:
            raise FileNotFoundError("the calculator of goodput is part of the program elastrunctl, "
                                    "which is neither beside this package nor in PATH")
        self._process = subprocess.Popen([program, *self._words], stdin=subprocess.PIPE,
                                         stdout=subprocess.PIPE, bufsize=0)
        self._owner, self._rest = os.getpid(), b""
        self._ended = weakref.finalize(self, _end, self._process, self._owner)
        assert self._process.stdin is not None
        os.set_blocking(self._process.stdin.fileno(), False)
        return True

    def _close(self) -> None:
        if self._ended is not None:
            self._ended()
        self._process = None

    def ask(self, question: dict[str, Any], entries: Iterable[str] = ()) -> dict[str, Any]:
        """`entries` come first, a line each, and what this process has recorded. ValueError: why
        it has no answer. OSError: the log cannot be read, or the program gives none.
        """
        if self._paths:
            flush_all(self._paths)
        self.started()
        told = iter(entries)
        try:
            while lines := list(islice(told, _AT_ONCE)):
                self._exchange(lines, False)
            answer: dict[str, Any] = json.loads(self._exchange([json.dumps(question)], True))
        except OSError:
            if self._process is not None:
                self._process.kill()
            self._close()
            raise
        if "errno" in answer:
            raise OSError(answer["errno"], answer["error"])
        return answer

    def _exchange(self, lines: list[str], answered: bool) -> bytes:
        process = self._process
        assert process is not None and process.stdin is not None and process.stdout is not None
        put, get = process.stdin.fileno(), process.stdout.fileno()
        deadline = time.monotonic() + LIMIT
        poll, heard = select.poll(), [self._rest]
        rest = memoryview("\n".join([*lines, ""]).encode())
        poll.register(put, select.POLLOUT)
        poll.register(get, select.POLLIN)
        while True:
            ready = dict(poll.poll(max(0.0, deadline - time.monotonic()) * 1000))
            if not ready:
                raise TimeoutError(f"elastrunctl has not answered within {LIMIT:g} s")
            if put in ready:
                rest = rest[os.write(put, rest[:_PIPE]):]
                if not rest:
                    if not answered:
                        return b""
                    poll.unregister(put)
            if get in ready:
                part = os.read(get, _PIPE)
                if not part:
                    raise BrokenPipeError("elastrunctl has ended without an answer")
                line, end, after = part.partition(b"\n")
                heard.append(line)
                if end:
                    self._rest = after
                    return b"".join(heard)
