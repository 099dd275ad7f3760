# SPDX-License-Identifier: Apache-2.0
"""What the tests of this folder share: elastrun started in a folder of its own, and watched.

Every test file is called with two paths: elastrun and stub_worker. Waits are for lines, files and
ends of processes; LIMIT only ends a wait in vain, so it is generous.
"""
from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import unittest
import uuid
from pathlib import Path

from harness import (alive_with, main, main_side_by_side,  # noqa: F401  # for the tests, too
                     stat_of)

ELASTRUN, STUB = (os.path.abspath(word) for word in sys.argv[1:3])
LIMIT = 120
ENVIRONMENT = {k: v for k, v in os.environ.items()
               if not k.startswith(("PET_", "SLURM_", "ELASTRUN_", "TORCHELASTIC", "LOGLEVEL",
                                    "NOTIFY_SOCKET"))} | {"OMP_NUM_THREADS": "1"}


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
        self.children: list[subprocess.Popen] = []
        self.addCleanup(self.end_the_rest)

    def alive(self) -> list[int]:
        """All processes that this test started, found by a variable that they inherit."""
        return sorted(alive_with(self.mark))

    def end_the_rest(self) -> None:
        for pid in self.alive():
            try:
                os.kill(pid, 9)
            except ProcessLookupError:
                pass

    def run_elastrun(self, *words: str, env: dict[str, str] | None = None, **more):
        """Runs it to its end; nobody of the job may be there afterwards."""
        more = {"capture_output": True, "text": True, "errors": "replace", "cwd": self.folder,
                "stdin": subprocess.DEVNULL, "timeout": LIMIT, "check": False} | more
        done = subprocess.run([ELASTRUN, *words], env=self.environment | (env or {}), **more)
        self.assertEqual(self.alive(), [], "something outlived elastrun")
        return done

    def start_elastrun(self, *words: str, **more) -> subprocess.Popen:
        more = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True,
                "cwd": self.folder, "stdin": subprocess.DEVNULL} | more
        child = subprocess.Popen([ELASTRUN, *words], env=self.environment, **more)
        self.addCleanup(self.close_streams, child)
        self.children.append(child)
        return child

    @staticmethod
    def close_streams(child: subprocess.Popen) -> None:
        for stream in (child.stdout, child.stderr):
            if stream is not None:
                stream.close()
        child.poll()

    def line_with(self, stream, text: str) -> str:
        """Reads until a line has this text; the end of the stream is a failure, as is a line that
        does not come in time."""
        late = [threading.Timer(LIMIT, child.kill) for child in self.children
                if child.stdout is stream or child.stderr is stream]
        for timer in late:
            timer.start()
        try:
            for line in stream:
                if text in line:
                    return line.rstrip("\n")
        finally:
            for timer in late:
                timer.cancel()
        said = [child.communicate(timeout=LIMIT)[1] for child in self.children
                if child.stdout is stream and child.stderr is not None]
        self.fail(f"the stream ended without a line that has {text!r}\n{''.join(said)}")
