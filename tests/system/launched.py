# SPDX-License-Identifier: Apache-2.0
"""elastrun with pipes, for tests that read along or look at the streams alone: else see harness.py.
"""
from __future__ import annotations

import subprocess
import tempfile
import threading
import unittest
import uuid
from pathlib import Path

import harness
from harness import ENVIRONMENT, alive_with, end_all, stat_of

ELASTRUN, STUB = str(harness.PROGRAM), str(harness.STUB)
LIMIT = 120  # only ends a wait in vain


def state_of(pid: int) -> str:
    """The letter of /proc/PID/stat; X for one that is gone."""
    return (stat_of(pid) or "X")[0]


class Case(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory(prefix="system.")))
        temporary = self.folder / "tmp"
        temporary.mkdir()
        self.mark = str(uuid.uuid4())
        self.environment = ENVIRONMENT | {"TMPDIR": str(temporary), "SYSTEM_TEST": self.mark}
        self.addCleanup(self.end_the_rest)

    def alive(self) -> list[int]:
        """All processes that this test started, found by a variable that they inherit."""
        return sorted(alive_with(self.mark))

    def end_the_rest(self) -> None:
        end_all(self.alive())

    def write(self, name: str, text: str, mode: int = 0o755) -> str:
        (self.folder / name).write_text(text)
        (self.folder / name).chmod(mode)
        return str(self.folder / name)

    def run_words(self, *words: object, env: dict[str, str] | None = None, **more):
        """Runs it to its end; nobody of the job may be there afterwards."""
        more = {"capture_output": True, "text": True, "errors": "replace", "cwd": self.folder,
                "stdin": subprocess.DEVNULL, "timeout": LIMIT, "check": False} | more
        done = subprocess.run([*map(str, words)], env=self.environment | (env or {}), **more)
        self.assertEqual(self.alive(), [], "something outlived elastrun")
        return done

    def run_elastrun(self, *words: str, **more):
        return self.run_words(ELASTRUN, *words, **more)

    def start_words(self, *words: str, env: dict[str, str] | None = None,
                    **more) -> subprocess.Popen:
        more = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True,
                "cwd": self.folder, "stdin": subprocess.DEVNULL} | more
        child = self.enterContext(subprocess.Popen(words, env=self.environment | (env or {}),
                                                   **more))
        self.addCleanup(self.end_the_rest)  # before that
        return child

    def start_elastrun(self, *words: str, **more) -> subprocess.Popen:
        return self.start_words(ELASTRUN, *words, **more)

    def line_with(self, stream, text: str) -> str:
        """Reads until a line has this text; the end of the stream is a failure, as is a line that
        does not come in time."""
        late = threading.Timer(LIMIT, self.end_the_rest)
        late.start()
        try:
            for line in stream:
                if text in line:
                    return line.rstrip("\n")
        finally:
            late.cancel()
        self.fail(f"the stream ended without a line that has {text!r}")

    def ended(self, child: subprocess.Popen, code: int = 1) -> tuple[str, str]:
        """What is left on its streams at its end, after which nobody is left."""
        said: tuple[str, str] = child.communicate(timeout=LIMIT)
        self.assertEqual((child.returncode, self.alive()), (code, []), said)
        return said
