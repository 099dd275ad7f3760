# SPDX-License-Identifier: Apache-2.0
"""A terminal without a window: what a person would see of the bytes that a program writes to it."""
from __future__ import annotations

import codecs
import fcntl
import os
import re
import select
import signal
import struct
import termios
import time

ESCAPE = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])")


class Screen:
    """As much of a terminal as plain output and one redrawn line need. Rows that scroll stay."""

    def __init__(self, columns: int) -> None:
        self.columns = columns
        self.rows: list[str] = [""]
        self.column = 0
        self.pending = ""
        self.unknown: list[str] = []  # control sequences that a program should not have used

    def put(self, text: str) -> None:
        if self.column == self.columns:
            self.line_feed()
            self.column = 0
        row = self.rows[-1].ljust(self.column)
        self.rows[-1] = row[:self.column] + text + row[self.column + 1:]
        self.column += 1

    def line_feed(self) -> None:
        self.rows.append("")

    def feed(self, text: str) -> None:
        text = self.pending + text
        self.pending = ""
        position = 0
        while position < len(text):
            letter = text[position]
            if letter == "\x1b":
                found = ESCAPE.match(text, position)
                if found is None:
                    if len(text) - position < 16:
                        self.pending = text[position:]
                        return
                    self.unknown.append(text[position:position + 16])
                    position += 1
                    continue
                position = found.end()
                if found[2] == "K" and found[1] in ("", "0"):
                    self.rows[-1] = self.rows[-1][:self.column]
                elif found[2] != "m":
                    self.unknown.append(found[0])
                continue
            if letter == "\r":
                self.column = 0
            elif letter == "\n":
                self.line_feed()
            elif letter >= " ":
                self.put(letter)
            position += 1

    @property
    def lines(self) -> list[str]:
        return [row.rstrip() for row in self.rows]


class OnTerminal:
    """A program whose standard streams are a terminal of its own, and what is on its screen."""

    def __init__(self, words: list[str], environment: dict[str, str], folder: str, limit: float,
                 columns: int = 100, stdout: int | None = None, rows: int = 50) -> None:
        self.limit = limit
        self.ours, theirs = os.openpty()
        self.size(columns, rows)
        self.screen = Screen(columns)
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.raw = ""
        self.seen: list[str] = []  # every state of the last line
        self.code: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.setsid()
                fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)
                for fd in (0, 1, 2):
                    os.dup2(stdout if fd == 1 and stdout is not None else theirs, fd)
                os.closerange(3, 256)
                os.chdir(folder)
                os.execve(words[0], words, environment)
            finally:
                os._exit(127)
        os.close(theirs)

    def size(self, columns: int, rows: int = 50) -> None:
        """The window is resized: the kernel sends SIGWINCH to the foreground."""
        fcntl.ioctl(self.ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def read(self, seconds: float) -> bool:
        """Takes what is there; False once nobody has the terminal open any more."""
        if not select.select([self.ours], [], [], seconds)[0]:
            return True
        try:
            taken = os.read(self.ours, 65536)
        except OSError:  # EIO: the last one has closed it
            return False
        text = self.decoder.decode(taken)
        self.raw += text
        self.screen.feed(text)
        if self.seen[-1:] != [self.screen.lines[-1]]:
            self.seen.append(self.screen.lines[-1])
        return bool(taken)

    def until(self, expression: str, raw: bool = False) -> re.Match[str]:
        """Reads until the screen has it, or the bytes that were written."""
        end = time.monotonic() + self.limit
        while (found := re.search(expression, self.raw if raw
                                  else "\n".join(self.screen.lines))) is None:
            if time.monotonic() > end or not self.read(0.2):
                raise AssertionError(f"no {expression!r} on this screen:\n{self}")
        return found

    def until_seen(self, *words: str) -> None:
        for word in words:
            self.until(re.escape(word))

    def finish(self) -> int:
        """Reads to the end; the exit code."""
        end = time.monotonic() + self.limit
        while self.read(0.2):
            if time.monotonic() > end:
                raise AssertionError(f"it does not end:\n{self}")
        self.code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.code

    def close(self) -> None:
        if self.code is None:
            try:
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
            except (ProcessLookupError, ChildProcessError):
                pass
        os.close(self.ours)

    def __str__(self) -> str:
        return "\n".join(f"| {line}" for line in self.screen.lines)
