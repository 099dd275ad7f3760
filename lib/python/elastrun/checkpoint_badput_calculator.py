# SPDX-License-Identifier: Apache-2.0
"""CheckpointBadputCalculator, with the interface and the numbers of ml-goodput-measurement 0.2.3
(see elastrun.goodput).
"""
from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from elastrun.goodput_calculator import CalculatorProgram, Path

OPERATION_TYPE_SAVE = "save"
OPERATION_TYPE_RESTORE = "restore"
OPERATION_TYPE_EMERGENCY_RESTORE = "emergency_restore"

OPERATION_TYPE_LOCAL = "local"
OPERATION_TYPE_PERSISTENT = "persistent"
OPERATION_TYPE_PERSISTENT_AND_LOCAL = "persistent_and_local"

# The series of each kind, by the member of the entry that holds the seconds.
_SAVE = {"checkpoint_manager_blocking_duration_secs": "checkpoint_manager_blocking",
         "checkpointer_blocking_duration_secs": "checkpointer_blocking",
         "wait_for_prev_duration_secs": "wait_for_prev",
         "get_old_steps_duration_secs": "get_old_steps"}
_RESTORE = {"checkpoint_manager_duration_secs": "checkpoint_manager",
            "checkpointer_duration_secs": "restore"}
_BROADCAST = "broadcast_duration_secs"

Entry = Mapping[str, Any]
_Key = tuple[str, bool]  # step, and whether it is on a disk of the node
# The seconds of one series, by checkpoint: of several reports (several hosts) the mean counts. One
# without a report counts as zero in all but the mean.
_Reports = dict[_Key, list[float]]


@dataclass
class SaveCheckpointManagerVerticalStepStats:
    """Seconds, over the checkpoints that were saved."""

    total_checkpoint_manager_blocking_time: float = 0.0
    average_checkpoint_manager_blocking_time: float = 0.0
    minimum_checkpoint_manager_blocking_time: float = 0.0
    maximum_checkpoint_manager_blocking_time: float = 0.0
    standard_deviation_checkpoint_manager_blocking_time: float = 0.0

    total_checkpointer_blocking_time: float = 0.0
    average_checkpointer_blocking_time: float = 0.0
    minimum_checkpointer_blocking_time: float = 0.0
    maximum_checkpointer_blocking_time: float = 0.0
    standard_deviation_checkpointer_blocking_time: float = 0.0

    total_wait_for_prev_time: float = 0.0
    average_wait_for_prev_time: float = 0.0
    minimum_wait_for_prev_time: float = 0.0
    maximum_wait_for_prev_time: float = 0.0
    standard_deviation_wait_for_prev_time: float = 0.0

    total_get_old_steps_time: float = 0.0
    average_get_old_steps_time: float = 0.0
    minimum_get_old_steps_time: float = 0.0
    maximum_get_old_steps_time: float = 0.0
    standard_deviation_get_old_steps_time: float = 0.0


@dataclass
class RestoreCheckpointManagerVerticalStepStats:
    """Seconds, over the checkpoints that were loaded."""

    total_checkpoint_manager_time: float = 0.0
    average_checkpoint_manager_time: float = 0.0
    minimum_checkpoint_manager_time: float = 0.0
    maximum_checkpoint_manager_time: float = 0.0
    standard_deviation_checkpoint_manager_time: float = 0.0

    total_restore_time: float = 0.0
    average_restore_time: float = 0.0
    minimum_restore_time: float = 0.0
    maximum_restore_time: float = 0.0
    standard_deviation_restore_time: float = 0.0

    total_broadcast_time: float = 0.0
    average_broadcast_time: float = 0.0
    minimum_broadcast_time: float = 0.0
    maximum_broadcast_time: float = 0.0
    standard_deviation_broadcast_time: float = 0.0


@dataclass
class SaveProcessedStep:
    """Seconds of one checkpoint that was saved, over its reports."""

    step: str = ""
    total_checkpoint_manager_blocking_time: float = 0.0
    total_checkpointer_blocking_time: float = 0.0
    total_wait_for_prev_time: float = 0.0
    total_get_old_steps_time: float = 0.0
    occurrence: int = 0


@dataclass
class RestoreProcessedStep:
    """Seconds of one checkpoint that was loaded, over its reports."""

    step: str = ""
    total_checkpoint_manager_time: float = 0.0
    total_restore_time: float = 0.0
    total_broadcast_time: float = 0.0
    broadcast_occurrence: int = 0
    occurrence: int = 0


@dataclass
class CheckpointLoggerOptions:
    """`client`: an object whose logger(name).list_entries() is asked, as that of a cloud's log.
    `use_goodput_logger`: the caller puts the entries into the calculator's `entries`. Else `path`,
    files of JSON lines, by default where a recorder of that job writes.
    """

    job_name: str = "checkpoint_job"
    logger_name: str = "checkpoint_logger"
    client: Any = None
    use_goodput_logger: bool = False
    path: Path | Sequence[Path] | None = None


def _is_local(entry: Entry) -> bool:
    return not entry["directory"].startswith("gs://")


def _fill(stats: Any, name: str, reports: _Reports) -> None:
    count = sum(map(bool, reports.values()))
    if not count:
        return
    seconds = [statistics.fmean(one) if one else 0.0 for one in reports.values()]
    setattr(stats, f"total_{name}_time", sum(seconds))
    setattr(stats, f"average_{name}_time", sum(seconds) / count)
    setattr(stats, f"minimum_{name}_time", min(seconds))
    setattr(stats, f"maximum_{name}_time", max(seconds))
    if len(seconds) > 1:
        setattr(stats, f"standard_deviation_{name}_time", statistics.stdev(seconds))


class CheckpointBadputCalculator:
    """How long saving and loading took, from the entries that a checkpoint manager (Orbax) logs.

    A checkpoint is a step, on the disk of a node or persistent: its directory begins with gs://.
    One that is saved again is averaged with its first save, as there. Entries without a number or
    name that is needed are skipped and counted (`skipped`); there they end the calculation.
    """

    def __init__(self, options: CheckpointLoggerOptions | None = None) -> None:
        self._options = options or CheckpointLoggerOptions()
        self.entries: list[Entry] = []
        self.skipped = 0  # of the last calculation
        self._files = CalculatorProgram(self._options.job_name, self._options.path)

    def read_entries(self) -> list[Entry]:
        """All of the job, in the order of the log."""
        if self._options.use_goodput_logger:
            return self.entries
        if self._options.client is None:
            return list(self._files.ask({"ask": "checkpoints"})["entries"])
        job = self._options.job_name
        found = self._options.client.logger(self._options.logger_name).list_entries(
            filter_=f'severity=INFO AND jsonPayload.job_name="{job}" AND (jsonPayload.event_type='
            'save OR jsonPayload.event_type=restore OR jsonPayload.event_type=emergency_restore)',
            order_by="timestamp asc", page_size=10_000)
        return [one.payload for one in found]

    def is_valid_save_stats(self, step_stats: Entry, operation_type: str | None =
                            OPERATION_TYPE_PERSISTENT_AND_LOCAL) -> bool:
        if step_stats.get("event_type") != OPERATION_TYPE_SAVE:
            return False
        if operation_type in (OPERATION_TYPE_LOCAL, OPERATION_TYPE_PERSISTENT):
            return _is_local(step_stats) == (operation_type == OPERATION_TYPE_LOCAL)
        return True

    def is_valid_restore_stats(self, step_stats: Entry, operation_type: str | None =
                               OPERATION_TYPE_PERSISTENT_AND_LOCAL) -> bool:
        """Here the local ones are the emergency restores, wherever they load from, as there."""
        return step_stats.get("event_type") in {
            OPERATION_TYPE_LOCAL: [OPERATION_TYPE_EMERGENCY_RESTORE],
            OPERATION_TYPE_PERSISTENT: [OPERATION_TYPE_RESTORE],
        }.get(operation_type or "", [OPERATION_TYPE_RESTORE, OPERATION_TYPE_EMERGENCY_RESTORE])

    def _measure(self, stats: Any, is_valid: Any, operation_type: str | None,
                 members: Mapping[str, str]) -> None:
        series: dict[str, _Reports] = {name: {} for name in members.values()}
        broadcasts: _Reports = {}  # how long restored checkpoints were sent to others
        self.skipped = 0
        self.entries = self.read_entries()
        for entry in self.entries:
            try:
                if not is_valid(entry, operation_type):
                    continue
                key = str(entry["step"]), _is_local(entry)
                seconds = {name: float(entry[member]) for member, name in members.items()}
                broadcast = float(entry.get(_BROADCAST) or 0.0)
            except (KeyError, TypeError, ValueError, AttributeError):
                self.skipped += 1
                continue
            for name, reports in series.items():
                reports.setdefault(key, []).append(seconds[name])
            broadcasts.setdefault(key, []).extend([broadcast] if broadcast else [])
        if members is _RESTORE:
            series["broadcast"] = broadcasts
        for name, reports in series.items():
            _fill(stats, name, reports)

    def calculate_save_operation_checkpoint_manager_blocking_time(
            self, operation_type: str | None = OPERATION_TYPE_PERSISTENT_AND_LOCAL,
            ) -> SaveCheckpointManagerVerticalStepStats:
        stats = SaveCheckpointManagerVerticalStepStats()
        self._measure(stats, self.is_valid_save_stats, operation_type, _SAVE)
        return stats

    def calculate_restore_operation_checkpoint_manager_blocking_time(
            self, operation_type: str | None = OPERATION_TYPE_PERSISTENT_AND_LOCAL,
            ) -> RestoreCheckpointManagerVerticalStepStats:
        stats = RestoreCheckpointManagerVerticalStepStats()
        self._measure(stats, self.is_valid_restore_stats, operation_type, _RESTORE)
        return stats
