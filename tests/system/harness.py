# SPDX-License-Identifier: Apache-2.0
"""What the tests of the real program share: a job in a folder of its own, and who is left of it.

A test waits for an event (a line, a file, an end), never for time; LIMIT only ends a test that
would otherwise hang. Processes are known by a variable in their environment or by the pids that
they said, and only such are ever signalled.
"""
from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

LIMIT = 60.0
PROGRAM, STUB = (Path(word).resolve() for word in (sys.argv + ["", ""])[1:3])
CTL = PROGRAM.with_name("elastrunctl")
PACKAGE = str(Path(__file__).resolve().parents[2] / "lib" / "python")  # the workers' library
# What no job of a test hears of: the settings of whoever runs the test.
ENVIRONMENT = {k: v for k, v in os.environ.items() if k == "ELASTRUN_TEST_FORKSERVER" or
               not k.startswith(("PET_", "SLURM_", "ELASTRUN_", "TORCHELASTIC", "LOGLEVEL",
                                 "NOTIFY_SOCKET"))} | {"OMP_NUM_THREADS": "1",
                                                     "PYTHONDONTWRITEBYTECODE": "1"}


def wait_until(condition: Callable[[], object], what: str,
               shown: Callable[[], str] = lambda: "") -> None:
    """`shown` is asked at the end of a wait in vain: what there is to see by then."""
    end = time.monotonic() + LIMIT
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"waited in vain until {what}\n{shown()}".rstrip())
        time.sleep(0.005)


def fetched(url: str) -> str:
    """What is served there."""
    with urllib.request.urlopen(url, timeout=LIMIT) as answer:
        text: str = answer.read().decode()
    return text


def stat_of(pid: int) -> list[str] | None:
    """State, parent, group and so on of a process; None when it has gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    return text.rsplit(")", 1)[1].split()


def lives(pid: int) -> bool:
    stat = stat_of(pid)
    return stat is not None and stat[0] not in "ZX"


def alive_with(mark: str) -> set[int]:
    """All live processes whose environment has this text."""
    found = set()
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            ours = mark.encode() in Path(f"/proc/{entry}/environ").read_bytes()
        except OSError:
            continue
        if ours and lives(int(entry)):
            found.add(int(entry))
    return found


def end_all(pids: Iterable[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


class Job:
    """One run of elastrun. Use as a context: at its end nothing of the job is left alive.
    `script`: train.py, the last of the words, for this Python."""

    def __init__(self, *words: str | Path, env: dict[str, str] | None = None,
                 stdout: int | None = None, stdin: int | None = None,
                 stderr: int | None = None, before: Callable[[], None] | None = None,
                 files: dict[str, str] | None = None, script: str | None = None) -> None:
        self._scratch = tempfile.TemporaryDirectory(prefix="system.")
        self.folder = Path(self._scratch.name)
        env, files = env or {}, files or {}
        if script is not None:
            words, files = (*words, "train.py"), files | {"train.py": script}
            env = {"PYTHON_EXEC": sys.executable} | env
        for name, text in files.items():
            (self.folder / name).write_text(text)
        self.temporary = self.folder / "tmp"
        self.temporary.mkdir()
        self._mark = f"ELASTRUN_TEST_JOB={uuid.uuid4()}"
        name, value = self._mark.split("=")
        keep = ENVIRONMENT | {"TMPDIR": str(self.temporary), name: value} | env
        self.out, self.err = self.folder / "out", self.folder / "err"
        with self.out.open("wb") as out, self.err.open("wb") as err:
            self.process = subprocess.Popen(
                [PROGRAM, *map(str, words)], cwd=self.folder, env=keep,
                stderr=err if stderr is None else stderr,
                stdin=subprocess.DEVNULL if stdin is None else stdin,
                stdout=out if stdout is None else stdout, start_new_session=True,
                preexec_fn=before)
        self.said: set[int] = set()  # pids of those that hide their environment

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        end_all(self.alive())
        self.process.wait()
        self._scratch.cleanup()

    def alive(self) -> set[int]:
        """All live processes of the job, the launcher's own two among them."""
        return {pid for pid in self.said if lives(pid)} | alive_with(self._mark)

    def agent(self) -> int:
        """The agent's pid: the guardian's only child that is this program."""
        for pid in self.alive():
            stat = stat_of(pid)
            if stat is not None and int(stat[1]) == self.process.pid:
                try:
                    if os.path.samefile(f"/proc/{pid}/exe", PROGRAM):
                        return pid
                except OSError:
                    continue
        raise AssertionError("there is no agent")

    def lines(self, pattern: str, path: Path | None = None) -> list[str]:
        text = (path or self.out).read_bytes().decode(errors="replace")
        return [m.group(1) if m.groups() else m.group(0)
                for m in re.finditer(pattern, text, re.M)]

    def wait_for(self, pattern: str, count: int = 1, path: Path | None = None) -> list[str]:
        """Until so many lines of stdout match; what the first group matched."""
        ended = self.process.poll
        wait_until(lambda: len(self.lines(pattern, path)) >= count or ended() is not None,
                   f"{count} lines match {pattern!r}:", self.errors)
        found = self.lines(pattern, path)
        if len(found) < count:
            raise AssertionError(f"ended without {count} lines {pattern!r}:\n{self.errors()}")
        return found

    def errors(self) -> str:
        return self.err.read_text(errors="replace")

    def output(self) -> str:
        return self.out.read_text(errors="replace")

    def page(self) -> str:
        """The address of the page of --http, with its slash."""
        return self.wait_for(r"the job is shown at (http://\S+)$", path=self.err)[0]

    def report(self) -> dict[str, Any]:
        """What --report=report.json has written."""
        found: dict[str, Any] = json.loads((self.folder / "report.json").read_text())
        return found

    def records(self, files: str = "logs/*/journal.jsonl") -> list[dict[str, Any]]:
        """The JSON of each line of the one file of this pattern."""
        (path,) = self.folder.glob(files)
        return [json.loads(line) for line in path.read_text().splitlines()]

    def end(self) -> int:
        """Waits for the end; the exit code, negative for a signal."""
        try:
            return self.process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running:\n{self.errors()}") from None

    def ended(self, code: int = 0) -> Job:
        """This job, once it has ended with that code: with Job(...).ended(1) as job."""
        try:
            found = self.end()
            assert found == code, f"ended with {found}, not with {code}:\n{self.errors()}"
        except BaseException:
            self.__exit__()  # nobody else does so yet
            raise
        return self

    def tell(self, name: str) -> Job:
        """Makes the file of that name, for which workers wait."""
        (self.folder / name).touch()
        return self

    def stopped(self, code: int | None = None, by: int = signal.SIGTERM) -> Job:
        """This job, once it has ended by that signal: with that code, or any."""
        self.process.send_signal(by)
        if code is not None:
            return self.ended(code)
        self.end()
        return self

    def nothing_left(self) -> None:
        wait_until(lambda: not self.alive(), "nothing of the job is alive")


def stub(*steps: str) -> list[str]:
    """Options and words that make workers of stub_worker play these steps."""
    return ["--no-python", str(STUB), *steps]


def stuck(**which: str) -> dict[str, str]:
    """The environment of a job that is stuck with such files while the file `stuck` exists: see
    tests/helpers/stuck_write.cpp."""
    return {"LD_PRELOAD": str(STUB.parent / "libstuck_write.so"), "STUCK_WHILE": "stuck",
            "ASAN_OPTIONS": "verify_asan_link_order=0",
            **{f"STUCK_{kind.upper()}": name for kind, name in which.items()}}
