# SPDX-License-Identifier: Apache-2.0
"""Output of workers, and how they end: the names of torch.distributed.elastic.multiprocessing."""
from __future__ import annotations

import os
import re
import signal
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
    """By local rank: those that a mapping does not name have NONE."""
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
    """Where the output of the workers goes. `log_dir`: a base directory, in which the agent makes
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
        """Names the files. Not asked by elastrun's agent, which has its own layout of them."""

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

    @property
    def root_log_dir(self) -> str | None:
        return self._root_log_dir

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        raise NotImplementedError("the agent itself makes the files of its workers")

    def __repr__(self) -> str:
        return (f"DefaultLogsSpecs(root_log_dir={self._root_log_dir}, redirects={self._redirects}, "
                f"tee={self._tee}, local_ranks_filter={self._local_ranks_filter})")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DefaultLogsSpecs) and self.__dict__ == other.__dict__

    __hash__ = None  # type: ignore[assignment]


@dataclass
class RunProcsResult:
    """What has become of a group of processes, by local rank."""

    return_values: dict[int, Any] = field(default_factory=dict)
    failures: dict[int, ProcessFailure] = field(default_factory=dict)
    stdouts: dict[int, str] = field(default_factory=dict)
    stderrs: dict[int, str] = field(default_factory=dict)

    def is_failed(self) -> bool:
        return bool(self.failures)
