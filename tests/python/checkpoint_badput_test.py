# SPDX-License-Identifier: Apache-2.0
"""CheckpointBadputCalculator: known answers, the recorded scenarios, logs of any kind."""
from __future__ import annotations

import json
import os
import sys
import tempfile
import unittest
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "lib" / "python"))
os.environ.pop("ELASTRUN_CHANNEL", None)
from elastrun.goodput import (OPERATION_TYPE_LOCAL, OPERATION_TYPE_PERSISTENT,  # noqa: E402
                              CheckpointBadputCalculator, CheckpointLoggerOptions)

VECTORS = Path(__file__).resolve().parents[1] / "data" / "goodput-vectors.json"
KINDS = ("total", "average", "minimum", "maximum", "standard_deviation")


def save(step: int, manager: float, where: str = "gs://b/p", **more: Any) -> dict[str, Any]:
    return {"job_name": "j", "event_type": "save", "step": step, "directory": where,
            "checkpoint_manager_blocking_start_time": 10.0 * step,
            "checkpoint_manager_blocking_duration_secs": manager,
            "checkpointer_blocking_duration_secs": 1, "wait_for_prev_duration_secs": 2,
            "get_old_steps_duration_secs": 1, **more}


def restore(step: int, manager: float, event: str = "restore", where: str = "gs://b/p",
            **more: Any) -> dict[str, Any]:
    return {"job_name": "j", "event_type": event, "step": step, "directory": where,
            "checkpoint_manager_start_time": 10.0 * step, "checkpointer_duration_secs": 2,
            "checkpoint_manager_duration_secs": manager, **more}


def calculator(entries: list[dict[str, Any]]) -> CheckpointBadputCalculator:
    made = CheckpointBadputCalculator(CheckpointLoggerOptions("j", use_goodput_logger=True))
    made.entries = list(entries)
    return made


def saved(made: CheckpointBadputCalculator, kind: str | None = "persistent_and_local") -> Any:
    return made.calculate_save_operation_checkpoint_manager_blocking_time(kind)


def restored(made: CheckpointBadputCalculator, kind: str | None = "persistent_and_local") -> Any:
    return made.calculate_restore_operation_checkpoint_manager_blocking_time(kind)


def series(stats: Any, name: str) -> tuple[float, ...]:
    return tuple(asdict(stats)[f"{kind}_{name}_time"] for kind in KINDS)


class Numbers(unittest.TestCase):
    def test_the_answers_of_the_original_to_its_own_examples(self) -> None:
        steps = range(1, 5)
        for where, kind in (("gs://b/p", OPERATION_TYPE_PERSISTENT),
                            ("local", OPERATION_TYPE_LOCAL)):
            stats = saved(calculator([save(step, 4, where) for step in steps]), kind)
            self.assertEqual(series(stats, "checkpoint_manager_blocking"), (16, 4, 4, 4, 0))
            self.assertEqual(series(stats, "checkpointer_blocking"), (4, 1, 1, 1, 0))
            self.assertEqual(series(stats, "wait_for_prev"), (8, 2, 2, 2, 0))
            self.assertEqual(series(stats, "get_old_steps"), (4, 1, 1, 1, 0))
        stats = restored(calculator([restore(step, 4) for step in steps]),
                         OPERATION_TYPE_PERSISTENT)
        self.assertEqual(series(stats, "checkpoint_manager"), (16, 4, 4, 4, 0))
        self.assertEqual(series(stats, "broadcast"), (0, 0, 0, 0, 0))
        stats = restored(calculator([
            restore(step, 4, "emergency_restore", "local", broadcast_duration_secs=2)
            for step in steps]), OPERATION_TYPE_LOCAL)
        self.assertEqual(series(stats, "checkpoint_manager"), (16, 4, 4, 4, 0))
        self.assertEqual(series(stats, "restore"), (8, 2, 2, 2, 0))
        self.assertEqual(series(stats, "broadcast"), (8, 2, 2, 2, 0))

    def test_reports_of_one_checkpoint_are_averaged_and_those_of_two_places_are_not(self) -> None:
        made = calculator([save(4, 3), save(4, 5), save(4, 1, "/disk"), save(8, 10), save(4, 7)])
        total, average, least, most, deviation = series(saved(made), "checkpoint_manager_blocking")
        self.assertEqual((total, average, least, most), (16, 16 / 3, 1, 10))
        self.assertAlmostEqual(deviation, 4.509249752822894)  # of 5, 1 and 10
        self.assertEqual(saved(made, OPERATION_TYPE_LOCAL).total_wait_for_prev_time, 2)
        self.assertEqual(saved(made, OPERATION_TYPE_PERSISTENT).total_wait_for_prev_time, 4)
        self.assertEqual(saved(made, None), saved(made))

    def test_the_mean_broadcast_is_of_those_that_had_one(self) -> None:
        made = calculator([restore(0, 2), restore(1, 2, broadcast_duration_secs=0),
                           restore(8, 4, "emergency_restore", broadcast_duration_secs=6),
                           restore(8, 6, "emergency_restore")])
        stats = restored(made)
        self.assertEqual(series(stats, "checkpoint_manager")[:4], (9, 3, 2, 5))
        self.assertEqual(series(stats, "broadcast")[:4], (6, 6, 0, 6))
        self.assertAlmostEqual(stats.standard_deviation_broadcast_time, 12 ** 0.5)
        # Whatever its directory, an emergency restore is the local one; its key is the directory's.
        self.assertEqual(restored(made, OPERATION_TYPE_LOCAL).total_checkpoint_manager_time, 5)
        self.assertEqual(restored(made, OPERATION_TYPE_PERSISTENT).total_restore_time, 4)

    def test_the_totals_are_those_of_the_recorded_job_with_checkpoints(self) -> None:
        scenario = next(one for one in json.loads(VECTORS.read_text())["scenarios"]
                        if one["name"] == "s10_checkpoints")
        badput = scenario["calls"][0]["result"]["details"]["badput_time"]
        made = calculator([one["payload"] for one in scenario["entries"]])
        self.assertEqual(saved(made).total_checkpoint_manager_blocking_time,
                         badput["UNPRODUCTIVE_CHECKPOINT_SAVE_TIME"])
        self.assertEqual(restored(made).total_checkpoint_manager_time,
                         badput["UNPRODUCTIVE_CHECKPOINT_RESTORE_TIME"])


class Logs(unittest.TestCase):
    def test_nothing_is_zero(self) -> None:
        made = calculator([{"job_name": "j", "job_start_time": 1.0}])
        self.assertEqual(set(asdict(saved(made)).values()), {0.0})
        self.assertEqual(set(asdict(restored(made)).values()), {0.0})

    def test_entries_that_lack_something_are_passed_over_and_counted(self) -> None:
        made = calculator([save(1, 4), save(2, 4, wait_for_prev_duration_secs=None),
                           save(3, 4, get_old_steps_duration_secs="much"),
                           save(4, 4, where=None), {"event_type": "save"}])  # type: ignore
        self.assertEqual(saved(made).total_checkpoint_manager_blocking_time, 4)
        self.assertEqual(made.skipped, 4)

    def test_files_of_all_forms_that_grow(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "log")
            made = CheckpointBadputCalculator(CheckpointLoggerOptions("j", path=path))
            self.assertEqual(saved(made).total_checkpoint_manager_blocking_time, 0)
            record = {key: value for key, value in save(2, 5).items() if key != "job_name"}
            lines = [save(1, 4), {"log_time": 1.0, "payload": save(1, 6)},
                     save(7, 100) | {"job_name": "other"},
                     {"scope": "elastrun.goodput", "name": "save", "attributes": record},
                     {"job_name": "j", "step_count": 1, "step_start_time": 12.5}]
            path.write_text("".join(json.dumps(line) + "\n" for line in lines) + "torn")
            self.assertEqual(saved(made).total_checkpoint_manager_blocking_time, 10)
            with open(path, "a") as file:
                file.write("\n" + json.dumps(save(3, 1)) + "\n")
            self.assertEqual(saved(made).total_checkpoint_manager_blocking_time, 11)

    def test_a_client_is_asked_as_that_of_the_cloud(self) -> None:
        asked: list[Any] = []

        class Client:
            payload = save(1, 4)

            def logger(self, name: str) -> Client:
                asked.append(name)
                return self

            def list_entries(self, **how: Any) -> list[Client]:
                asked.append(how)
                return [self]

        made = CheckpointBadputCalculator(CheckpointLoggerOptions("j", "log", Client()))
        self.assertEqual(saved(made).total_checkpoint_manager_blocking_time, 4)
        self.assertEqual(asked[0], "log")
        self.assertIn('jsonPayload.job_name="j"', asked[1]["filter_"])
        self.assertEqual(asked[1]["order_by"], "timestamp asc")


if __name__ == "__main__":
    unittest.main()
