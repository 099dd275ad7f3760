# SPDX-License-Identifier: Apache-2.0
"""Output of workers, and how they end: the names of torch.distributed.elastic.multiprocessing."""
from __future__ import annotations

import os
import re
import shutil
import signal
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntFlag
from typing import Any, Union

from elastrun.multiprocessing.errors import ProcessFailure

__all__ = ["DefaultLogsSpecs", "LogsDest", "LogsSpecs", "RunProcsResult", "SignalException", "Std",
           "to_map"]


class SignalException(Exception):
    """A signal has ended the job. `sigval`: which one."""

    def __init__(self, msg: str, sigval: signal.Signals) -> None:
        super().__init__(msg)
        self.sigval = sigval

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.sigval)


def signal_exception(number: int) -> SignalException:
    """The exception for a signal of this process, as torch words it."""
    name = signal.Signals(number)
    return SignalException(f"Process {os.getpid()} got signal: {name}", name)


def names_to_handle() -> list[str]:
    """The signals that end workers first, by TORCHELASTIC_SIGNALS_TO_HANDLE."""
    return os.environ.get("TORCHELASTIC_SIGNALS_TO_HANDLE",
                          "SIGTERM,SIGINT,SIGHUP,SIGQUIT").split(",")


def signals_to_handle() -> list[signal.Signals]:
    """Those of them that this system has."""
    found = (getattr(signal, name.strip(), None) for name in names_to_handle())
    return [one for one in found if isinstance(one, signal.Signals)]


class Std(IntFlag):
    """Standard streams of a worker."""

    NONE = 0
    OUT = 1
    ERR = 2
    ALL = OUT | ERR

    @classmethod
    def from_str(cls, vm: str) -> Union[Std, dict[int, Std]]:
        """"3" is ALL, "0:3,1:0" that of local rank 0 alone. Fails with ValueError on others."""
        if re.fullmatch("[0-3]", vm):
            return cls(int(vm))
        if not re.fullmatch(r"\d+:[0-3](,\d+:[0-3])*", vm):
            raise ValueError(f"{vm} is neither 0, 1, 2 or 3 nor a list of LOCAL_RANK:N with one of "
                             "those, as 0:3,1:0")
        pairs = (one.split(":") for one in vm.split(","))
        return {int(rank): cls(int(value)) for rank, value in pairs}


def to_map(val_or_map: Std | Mapping[int, Std], local_world_size: int) -> dict[int, Std]:
    """Maps each local rank; those that a mapping does not name have NONE."""
    if isinstance(val_or_map, Mapping):
        return {rank: val_or_map.get(rank, Std.NONE) for rank in range(local_world_size)}
    return dict.fromkeys(range(local_world_size), val_or_map)


@dataclass
class LogsDest:
    """Log files by local rank."""

    stdouts: dict[int, str] = field(default_factory=dict)
    stderrs: dict[int, str] = field(default_factory=dict)
    tee_stdouts: dict[int, str] = field(default_factory=dict)
    tee_stderrs: dict[int, str] = field(default_factory=dict)
    error_files: dict[int, str] = field(default_factory=dict)
    filtered_stdout: str = ""
    filtered_stderr: str = ""


class LogsSpecs(ABC):
    """The ways of the workers' output. `log_dir`: a base directory, in which the agent makes
    one for each run. `redirects`: streams that go to files instead of the console; `tee`: to both.
    `local_ranks_filter`: whose output the console shows; None or empty: all.
    """

    def __init__(self, log_dir: str | None = None, redirects: Std | dict[int, Std] = Std.NONE,
                 tee: Std | dict[int, Std] = Std.NONE,
                 local_ranks_filter: set[int] | None = None) -> None:
        self._root_log_dir = log_dir
        self._redirects = redirects
        self._tee = tee
        self._local_ranks_filter = local_ranks_filter

    @abstractmethod
    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Names the files of start_processes. The agent has its own layout of them."""

    @property
    @abstractmethod
    def root_log_dir(self) -> str | None: ...


class DefaultLogsSpecs(LogsSpecs):
    """DIR/RUNID_x/attempt_N/LOCAL_RANK/{stdout.log,stderr.log,error.json}. Without `log_dir` the
    agent makes a temporary directory, and keeps it only if it holds something of use. Fails with
    NotADirectoryError if `log_dir` is a file.
    """

    def __init__(self, log_dir: str | None = None, redirects: Std | dict[int, Std] = Std.NONE,
                 tee: Std | dict[int, Std] = Std.NONE,
                 local_ranks_filter: set[int] | None = None) -> None:
        if log_dir and log_dir != os.devnull:
            if os.path.isfile(log_dir):
                raise NotADirectoryError(f"log_dir: {log_dir} is a file")
            os.makedirs(log_dir, exist_ok=True)
        super().__init__(log_dir, redirects, tee, local_ranks_filter)
        self._run_log_dir: str | None = None

    @property
    def root_log_dir(self) -> str | None:
        return self._root_log_dir

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Makes the directories for start_processes, and sets TORCHELASTIC_ERROR_FILE in `envs`.
        With os.devnull as `log_dir` nothing is kept, and nothing shown by tee.
        """
        count = len(envs)
        tee = to_map(self._tee, count)
        files = {rank: std | tee[rank] for rank, std in to_map(self._redirects, count).items()}
        folder = self._attempt_folder(envs.get(0, {}))
        dest = LogsDest(filtered_stdout=os.path.join(folder, "filtered_stdout.log"),
                        filtered_stderr=os.path.join(folder, "filtered_stderr.log"))
        for rank in range(count):
            kept = folder != os.devnull
            if kept:
                os.mkdir(os.path.join(folder, str(rank)))
            dest.error_files[rank] = os.path.join(folder, str(rank), "error.json") if kept \
                else os.devnull
            envs[rank]["TORCHELASTIC_ERROR_FILE"] = dest.error_files[rank] if kept else ""
            hidden = self._local_ranks_filter and rank not in self._local_ranks_filter
            for std, name, paths, tees in (
                    (Std.OUT, "stdout.log", dest.stdouts, dest.tee_stdouts),
                    (Std.ERR, "stderr.log", dest.stderrs, dest.tee_stderrs)):
                paths[rank] = os.path.join(folder, str(rank), name) if kept and files[rank] & std \
                    else os.devnull if kept and hidden else ""
                if not kept:
                    tees[rank] = os.devnull
                elif tee[rank] & std and not hidden:
                    tees[rank] = paths[rank]
        return dest

    def _attempt_folder(self, env: Mapping[str, str]) -> str:
        if self._root_log_dir == os.devnull:
            return os.devnull
        if self._run_log_dir is None:
            base = self._root_log_dir or tempfile.mkdtemp(prefix="elastrun_")
            run_id = env.get("TORCHELASTIC_RUN_ID", "run")
            self._run_log_dir = tempfile.mkdtemp(prefix=f"{run_id}_", dir=base)
        attempt = env.get("TORCHELASTIC_RESTART_COUNT", "0")
        folder = os.path.join(self._run_log_dir, f"attempt_{attempt}")
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(folder)
        return folder

    def __repr__(self) -> str:
        return (f"DefaultLogsSpecs(root_log_dir={self._root_log_dir}, redirects={self._redirects}, "
                f"tee={self._tee}, local_ranks_filter={self._local_ranks_filter})")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DefaultLogsSpecs) and repr(self) == repr(other)

    __hash__ = None  # type: ignore[assignment]


@dataclass
class RunProcsResult:
    """The end of a group of processes, by local rank."""

    return_values: dict[int, Any] = field(default_factory=dict)
    failures: dict[int, ProcessFailure] = field(default_factory=dict)
    stdouts: dict[int, str] = field(default_factory=dict)
    stderrs: dict[int, str] = field(default_factory=dict)

    def is_failed(self) -> bool:
        return bool(self.failures)
