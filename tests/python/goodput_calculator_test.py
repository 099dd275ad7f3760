# SPDX-License-Identifier: Apache-2.0
"""GoodputCalculator, CheckpointBadputCalculator and GoodputMonitor: the original's numbers, growing
and hostile logs."""
from __future__ import annotations

import gc
import http.server
import importlib.util
import inspect
import json
import os
import random
import resource
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from dataclasses import asdict
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from unittest import mock

from agent_end import folder_for
from goodput_vectors import replay, when

from elastrun import (checkpoint_badput_calculator, goodput_calculator,  # noqa: E402
                      goodput_utils, metrics)
from elastrun.goodput import (OPERATION_TYPE_LOCAL, OPERATION_TYPE_PERSISTENT,  # noqa: E402
                              BadputType, CheckpointBadputCalculator, CheckpointLoggerOptions,
                              ElasticGoodputCalculator,  # noqa: E402
                              ElasticGoodputMonitor, GoodputCalculator, GoodputMonitor,
                              GoodputRecorder, GoodputType, IntervalMetricType, MetricType)
from elastrun.monitoring import EventFile  # noqa: E402

VECTORS = Path(__file__).resolve().parents[1] / "data" / "goodput-vectors.json"
T0 = 1_700_000_000.0
# The outcome of a call that has none; everything else is a fault.
REFUSED = (ValueError,)


def entries(*steps: float, first: int = 0, start: bool = True) -> list[dict[str, Any]]:
    """A start of the job and steps, at seconds after T0."""
    head = [{"job_start_time": T0}] if start else []
    return head + [{"step_count": first + i, "step_start_time": T0 + at}
                   for i, at in enumerate(steps)]


class InFolder(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = Path(folder_for(self))
        self.file = self.folder / "log"
        self.addCleanup(setattr, goodput_calculator, "_now", goodput_calculator._now)

    def at(self, seconds: float) -> None:
        goodput_calculator._now = lambda: T0 + seconds

    def write(self, these: list[dict[str, Any]], job: str = "j", mode: str = "w") -> None:
        with open(self.file, mode) as file:
            file.writelines(json.dumps({"job_name": job, **one}) + "\n" for one in these)

    def calculator(self, **settings: Any) -> GoodputCalculator:
        return GoodputCalculator("j", "l", path=self.file, **settings)


class Original(InFolder):
    """ml-goodput-measurement 0.2.3 is what we are to be."""

    def test_each_recorded_scenario_within_a_millionth(self) -> None:
        vectors = json.loads(VECTORS.read_text())
        passed, wrong = replay(vectors)
        self.assertEqual(wrong, [])
        self.assertGreater(passed, 80)

    def test_it_is_called_as_the_original(self) -> None:
        def names(call: Any) -> list[str]:
            return list(inspect.signature(call).parameters)
        self.assertEqual(names(GoodputCalculator)[:7], [
            "job_name", "logger_name", "cloud_logger", "using_pathways",
            "max_logs_retention_period", "gcs_path", "cache_dir"])
        self.assertEqual(names(GoodputCalculator.get_job_goodput)[1:],
                         ["include_badput_breakdown", "configured_ideal_step_time"])
        self.assertEqual(names(GoodputCalculator.get_job_goodput_interval)[1:],
                         ["interval_start", "interval_end"])
        self.assertEqual(names(GoodputCalculator.get_job_goodput_with_exclusions)[1:],
                         ["exclusion_intervals", "include_badput_breakdown",
                          "configured_ideal_step_time"])
        self.assertEqual(names(GoodputMonitor)[:16], [
            "job_name", "logger_name", "tensorboard_dir", "upload_interval", "monitoring_enabled",
            "pathway_enabled", "include_badput_breakdown", "include_step_deviation",
            "configured_ideal_step_time", "step_deviation_interval_seconds", "gcp_options",
            "skip_final_flush", "final_flush_timeout_seconds", "gcs_sync_interval_seconds",
            "cache_dir", "max_logs_retention_period"])
        self.assertEqual([one.value for one in BadputType], list(range(1, 15)))
        self.assertEqual((BadputType(11).name, GoodputType.TOTAL.value), ("OTHER", 1))
        self.assertEqual({one.value for one in IntervalMetricType},
                         {"interval_goodput", "interval_badput", "interval_size"})

    def test_a_machine_of_a_cloud_is_asked_what_it_is(self) -> None:
        answers = {"project/project-id": "night", "instance/zone": "projects/1/zones/us-central1-a",
                   "instance/machine-type": "projects/1/machineTypes/a3-highgpu-8g",
                   "instance/attributes/cluster-name": "big"}
        busy = [True]

        class Metadata(http.server.BaseHTTPRequestHandler):
            def do_GET(mine) -> None:
                found = answers.get(mine.path.removeprefix("/computeMetadata/v1/"))
                known = found is not None and mine.headers["Metadata-Flavor"] == "Google"
                mine.send_response(503 if busy and busy.pop() else 200 if known else 404)
                mine.end_headers()
                mine.wfile.write((found or "").encode())

            def log_message(mine, *_: object) -> None:
                pass

        server = http.server.HTTPServer(("127.0.0.1", 0), Metadata)
        self.addCleanup(server.server_close)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(server.shutdown)
        host = f"127.0.0.1:{server.server_port}"
        with mock.patch.dict(os.environ, {"GCE_METADATA_HOST": host, "no_proxy": "*"}):
            self.assertEqual(goodput_utils.get_gcp_project_id(), "night")
            self.assertEqual(goodput_utils.get_node_zone(), "us-central1-a")
            self.assertEqual(goodput_utils.get_accelerator_type(), "NVIDIA-H100")
            self.assertEqual(goodput_utils.get_cluster_name(), "big")
            answers.clear()
            with self.assertLogs("elastrun.goodput", "WARNING"):
                self.assertEqual(goodput_utils.get_accelerator_type(), "UNKNOWN")
            with self.assertLogs("elastrun.goodput", "WARNING"):
                self.assertIsNone(goodput_utils.get_gcp_metadata("a", "b", 1, 0))
        info = goodput_utils.GoodputInfo(1.0)
        self.assertEqual((info.total_productive_time, info.total_unproductive_time), (1.0, {}))
        self.assertEqual(goodput_utils.StepInfo(2.0, {1: 0.5}).step_deviations, {1: 0.5})
        step = checkpoint_badput_calculator.SaveProcessedStep("7", occurrence=1)
        self.assertEqual((step.step, step.total_get_old_steps_time), ("7", 0.0))
        loaded = checkpoint_badput_calculator.RestoreProcessedStep()
        self.assertEqual(loaded.broadcast_occurrence, 0)

    def test_refusals_name_what_is_missing(self) -> None:
        calculator = self.calculator()
        with self.assertRaisesRegex(ValueError, f"no start of the job: job 'j' in {self.file}"):
            calculator.get_job_goodput()
        with self.assertRaisesRegex(ValueError, "no step of at least 1 s"):
            calculator.get_step_deviation()
        with self.assertRaisesRegex(ValueError, "no entry in the window"):
            calculator.get_job_goodput_interval(when(T0), when(T0 + 9))
        with self.assertRaises(TypeError):
            calculator.get_job_goodput_interval(datetime(2026, 1, 1), datetime(2026, 1, 2))
        with self.assertLogs("elastrun.goodput", "WARNING"):
            details = calculator.get_interval_metric_details(when(T0), when(T0 + 9.5))
        self.assertEqual(details,
                         {"interval_goodput": {}, "interval_badput": {}, "interval_size": 9})
        with self.assertLogs("elastrun.goodput", "WARNING"):
            self.assertEqual(calculator.get_job_goodput_details()["total_elapsed_time"], 0.0)
        self.write([*entries(1, 2), {"job_end_time": T0 - 5}])
        with self.assertRaisesRegex(ValueError, "it ends before it begins"):
            calculator.get_job_goodput()
        with self.assertRaises(IsADirectoryError):
            GoodputCalculator("j", "l", path=self.folder).get_job_goodput()


class Logs(InFolder):
    def test_what_a_recorder_writes_is_read_where_it_writes(self) -> None:
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(self.folder)
        recorder = GoodputRecorder("my/job", "l", True)
        recorder.record_job_start_time(when(T0))
        for step in range(4):
            recorder.record_step_start_time(step, when(T0 + 5 + 3 * step))
        recorder.record_job_end_time(when(T0 + 20))
        recorder.flush()
        percent, badput, step = GoodputCalculator("my/job", "l").get_job_goodput(True)
        self.assertEqual((percent, step), (75.0, 3))
        self.assertEqual(badput[BadputType.OTHER], 25.0)

    def test_a_job_that_is_submitted_again_under_its_name_has_an_answer_while_it_runs(self) -> None:
        self.write([*entries(1, 2, 3), {"job_end_time": T0 + 4}])
        again = [{"job_start_time": T0 + 10}, *({"step_count": step, "step_start_time": T0 + at}
                                                for step, at in enumerate(range(11, 20)))]
        calculator = self.calculator()
        for steps in range(2, len(again) + 1):
            self.write([*entries(1, 2, 3), {"job_end_time": T0 + 4}, *again[:steps]])
            self.at(20)
            percent = calculator.get_job_goodput()[0]
            self.assertTrue(0 <= percent <= 100, percent)
        self.assertEqual(calculator.get_job_goodput_details()["total_elapsed_time"], 20.0)
        self.write([*entries(1, 2, 3), {"job_end_time": T0 + 4}, *again, {"job_end_time": T0 + 20}])
        self.assertAlmostEqual(self.calculator().get_job_goodput()[0], 45.0)

    def test_what_this_process_has_recorded_is_read_at_once(self) -> None:
        recorder = GoodputRecorder("j", "l", True, path=self.file)
        recorder.record_job_start_time(when(T0))
        calculator = self.calculator()
        self.at(1000)
        for step in range(200):
            recorder.record_step_start_time(step, when(T0 + step))
            self.assertEqual(calculator.get_job_goodput()[2], max(step - 1, 0))
        recorder.record_job_end_time(when(T0 + 200))
        self.assertEqual(calculator.get_job_goodput(), (100.0, {}, 199))

    def test_a_log_that_grows_is_read_on_also_through_half_a_line(self) -> None:
        self.write(entries(1, 3, 5))
        self.at(10)
        calculator = self.calculator()
        self.assertEqual(calculator.get_job_goodput()[0], 40.0)
        with open(self.file, "a") as file:
            file.write('{"job_name":"j","step_count":3,"step_start')
        self.assertEqual(calculator.get_job_goodput()[2], 1)
        with open(self.file, "a") as file:
            file.write(f'_time":{T0 + 7}}}\n')
        self.assertEqual(calculator.get_job_goodput(), (60.0, {}, 2))
        with open(self.file, "a") as file:
            file.write(json.dumps({"job_name": "j", "job_end_time": T0 + 8}))  # and no newline
        self.assertEqual(calculator.get_job_goodput()[0], 87.5)
        self.assertEqual(calculator.skipped, 0)

    def test_a_call_knows_nothing_of_entries_dated_later(self) -> None:
        self.write(entries(*range(10, 100, 10)))  # a log of another time: a held-out case
        self.at(35)
        calculator, fresh = self.calculator(), self.calculator()
        self.assertEqual(calculator.get_job_goodput()[2], 1)
        self.assertEqual(calculator.get_job_goodput_details()["total_elapsed_time"], 35.0)
        self.assertEqual(fresh.get_step_deviation(), {0: 0.0, 1: 0.0})
        self.assertEqual(fresh.get_job_goodput_with_exclusions([])[2], 1)
        answer = subprocess.run(
            ["elastrunctl", "goodput", "calculate", "--job=j"], timeout=60, text=True,
            input=self.file.read_text() + json.dumps({"ask": "job", "now": T0 + 35}) + "\n",
            capture_output=True).stdout
        self.assertEqual(json.loads(answer)["percent"], calculator.get_job_goodput()[0])
        self.at(95)
        self.assertEqual(calculator.get_job_goodput()[2], 7)

    def test_another_file_of_that_name_is_another_log(self) -> None:
        self.write(entries(*range(1, 9)))
        self.at(10)
        calculator = self.calculator()
        self.assertEqual(calculator.get_job_goodput()[2], 6)
        os.replace(self.file, self.folder / "old")
        self.write(entries(1, 2))
        self.assertEqual(calculator.get_job_goodput()[2], 0)
        self.write(entries(1))  # the same file, shorter
        self.assertEqual(calculator.get_job_goodput()[0], 0.0)
        os.unlink(self.file)
        with self.assertRaises(ValueError):
            calculator.get_job_goodput()

    def test_the_journal_of_a_run_and_other_jobs_in_a_file(self) -> None:
        def record(scope: str, attributes: dict[str, Any], name: str = "x") -> str:
            return json.dumps({"time": T0, "mono_ns": 5, "kind": "event", "scope": scope,
                               "name": name, "attributes": attributes}) + "\n"
        with open(self.file, "w") as file:
            file.write(record("elastrun.agent", {"format": 1, "run_id": "r"}, "job.started"))
            for one in entries(1, 3, 5):
                file.write(record("elastrun.goodput", {"job_name": "j", **one, "rank": 0}))
            file.write(record("elastrun.goodput", {"job_name": "k", "job_start_time": T0 - 99}))
            file.write(record("elastrun.goodput", {"count": 7}, "lost"))
        self.at(8)
        calculator = self.calculator()
        self.assertEqual(calculator.get_job_goodput()[0], 50.0)
        self.assertEqual((calculator.skipped, calculator.lost), (0, 7))

    def test_the_journal_is_found_under_elastrun_where_it_keeps_one(self) -> None:
        code = ("from elastrun.goodput_calculator import CalculatorProgram\n"
                "import sys; sys.stdout.write(CalculatorProgram('j', None).paths[0])")
        run = self.folder / "night_x"
        run.mkdir()
        env = {"PYTHONPATH": str(Path(goodput_calculator.__file__).parents[1]),
               "ELASTRUN_CHANNEL": "/nowhere", "ELASTRUN_RUN_DIR": f"{run}/attempt_0/1",
               "PYTHONDONTWRITEBYTECODE": "1"}
        for expected in ("j.goodput.jsonl", f"{run}/journal.jsonl"):
            done = subprocess.run([sys.executable, "-c", code], env=env, timeout=60,
                                  capture_output=True, text=True)
            self.assertEqual((done.stdout, done.stderr), (expected, ""))
            (run / "journal.jsonl").touch()

    def test_a_log_that_a_program_keeps_itself(self) -> None:
        class Kept:
            read = 0

            def read_cloud_logging_entries(self, start: Any = None, end: Any = None,
                                           last: Any = None) -> Any:
                self.read += 1
                if last is not None:
                    return [], (None, None)
                return [*entries(1, 3, 5), {"step_count": "x", "step_start_time": 1}], (
                    when(T0 + 5), "id")
        kept = Kept()
        self.at(8)
        calculator = GoodputCalculator("j", "l", kept)
        self.assertEqual([calculator.get_job_goodput()[0] for _ in range(2)], [50.0, 50.0])
        self.assertEqual((kept.read, calculator.skipped), (2, 1))

    def test_several_files_and_several_threads(self) -> None:
        self.write(entries(1, 3, 5))
        (self.folder / "b").write_text("".join(
            json.dumps({"job_name": "j", **one}) + "\n"
            for one in entries(7, 9, first=3, start=False)))
        self.at(10)
        calculator = GoodputCalculator("j", "l", path=[self.file, self.folder / "b"])
        said: list[Any] = []
        threads = [threading.Thread(target=lambda: said.append(
            [calculator.get_job_goodput() and calculator.get_job_goodput_details()
             for _ in range(10)][-1]["goodput_time"])) for _ in range(10)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(said, [{GoodputType.TOTAL: 8.0}] * 10)

    def test_what_is_left_out_for_one_question_is_there_for_the_next(self) -> None:
        self.write(entries(1, 3, 5))
        self.at(8)
        calculator = self.calculator()
        spans = [(when(T0 + 1), when(T0 + 3)), (when(T0 + 9), when(T0 + 2))]
        with self.assertLogs("elastrun.goodput", "WARNING"):
            percent, _, _, seconds = calculator.get_job_goodput_with_exclusions(spans)
        self.assertEqual((round(percent, 6), seconds), (33.333333, 2.0))
        # The original answers with what it had left out.
        self.assertEqual(calculator.get_job_goodput()[0], 50.0)


BAD_LINES = [
    b"", b"\n", b"{", b"}", b"null\n", b"[1,2]\n", b"\x00\xff\xfe\n", b'"text"\n', b"17\n",
    b"[" * 100_000 + b"\n", b"9" * 5000 + b"\n", b'{"job_name":"j"}\n', b"nonsense and no end",
    b'{"job_name":"j","step_count":NaN,"step_start_time":1.5}\n',
    b'{"job_name":"j","step_count":1e18,"step_start_time":1.5}\n',
    b'{"job_name":"j","step_count":1,"step_start_time":Infinity}\n',
    b'{"job_name":"j","step_count":1,"step_start_time":1e400}\n',
    b'{"job_name":"j","step_count":true,"step_start_time":[1]}\n',
    b'{"job_name":"j","step_count":1,"step_start_time":' + b"9" * 4000 + b"}\n",
    b'{"job_name":"j","step_count":1,"step_start_time":1e18}\n',
    b'{"job_name":"j","job_start_time":"yesterday"}\n', b'{"job_name":["j"],"job_start_time":1}\n',
    b'{"job_name":"j","custom_badput_event_type":7,"custom_badput_event_start_time":1.5}\n',
    b'{"job_name":"j","event_type":"save","step":1,"directory":null}\n',
    b'{"job_name":"j","event_type":{"save":1}}\n',
    b'{"job_name":"j","active_slices":1,"elastic_slice_counts_timestamp":1.5}\n',
    b'{"payload":7,"log_time":1}\n', b'{"payload":{"job_start_time":5},"log_time":"x"}\n',
    b'{"scope":"elastrun.goodput"}\n', b'{"scope":"elastrun.goodput","attributes":[]}\n',
    b'{"scope":"elastrun.goodput","name":"lost","attributes":{"count":NaN}}\n',
    b'{"job_name":"j","lost_entries":-1e300}\n', b'{"x":"' + b"y" * (1 << 20) + b'"}\n',
]
NUMBERS = [0.0, -1.0, 1e18, -1e18, 1e299, 5e-324, T0, T0 + 1e9]


class Hostile(InFolder):
    """Whatever stands in a file, there is an answer, or one of the refusals that are documented."""

    def ask_everything(self, calculator: GoodputCalculator, chance: random.Random) -> None:
        at = sorted(T0 + chance.uniform(-50, 400) for _ in range(4))
        calls = [lambda: calculator.get_job_goodput(True), calculator.get_job_goodput_details,
                 calculator.get_step_deviation,
                 lambda: calculator.get_job_goodput_interval(when(at[0]), when(at[2])),
                 lambda: calculator.get_interval_metric_details(when(at[1]), when(at[3])),
                 lambda: calculator.get_job_goodput_with_exclusions(
                     [(when(at[0]), when(at[1])), (when(at[2]), when(at[3]))], True)]
        for call in chance.sample(calls, len(calls)):
            try:
                call()
            except REFUSED:
                pass

    def lines(self, chance: random.Random) -> list[bytes]:
        scenario = chance.choice(self.scenarios)
        found = [json.dumps({**one["payload"], "job_name": "j"}).encode() + b"\n"
                 for one in scenario["entries"][:chance.randint(1, 200)]]
        found = found or [b"\n"]
        for _ in range(chance.randint(1, 30)):
            place, other = chance.randrange(len(found)), chance.randrange(len(found))
            what = chance.randrange(6)
            if what == 0:
                found.insert(place, chance.choice(BAD_LINES))
            elif what == 1:  # torn
                found[place] = found[place][:chance.randrange(len(found[place]) + 1)]
            elif what == 2:
                found[place], found[other] = found[other], found[place]
            elif what == 3:
                found.insert(place, found[other])
            elif what == 4:
                text = found[place].decode("utf-8", "replace").split(":")
                text[-1] = f"{chance.choice(NUMBERS)!r}}}\n"
                found[place] = ":".join(text).encode()
            else:
                del found[place]
                found = found or [b"\n"]
        return found

    def test_damaged_logs(self) -> None:
        self.scenarios = json.loads(VECTORS.read_text())["scenarios"]
        with self.assertLogs("elastrun.goodput", "WARNING"):  # of windows without an answer
            for seed in range(300):
                chance = random.Random(seed)
                lines = self.lines(chance)
                classes = (GoodputCalculator, ElasticGoodputCalculator)
                calculator = chance.choice(classes)("j", "l", path=self.file)
                cut = chance.randrange(len(lines))
                with self.subTest(seed=seed):
                    self.at(chance.uniform(-10, 500))
                    self.file.write_bytes(b"".join(lines[:cut]))
                    self.ask_everything(calculator, chance)
                    with open(self.file, "ab") as file:
                        file.write(b"".join(lines[cut:]))
                    self.ask_everything(calculator, chance)
                os.unlink(self.file)

    def test_what_is_no_entry_is_counted_and_changes_nothing(self) -> None:
        good = [json.dumps({"job_name": "j", **one}).encode() + b"\n" for one in entries(1, 3, 5)]
        bad = [one if one.endswith(b"\n") else one + b"\n" for one in BAD_LINES
               if b"1e18}" not in one and b"lost" not in one and b'"j"}' not in one
               and b"job_start_time\":5" not in one and b'{"save"' not in one]
        mixed = [line for one in good for line in (*bad, one)]
        self.file.write_bytes(b"".join(mixed))
        self.at(8)
        calculator = self.calculator()
        self.assertEqual(calculator.get_job_goodput(), (50.0, {}, 1))
        blank = sum(not line.strip() for line in bad)
        others = sum(line.startswith(b'{"job_name":["j"]') for line in bad)  # of another job
        self.assertEqual(calculator.skipped, len(good) * (len(bad) - blank - others))

    def test_memory_grows_with_the_entries_and_no_faster(self) -> None:
        def most_memory(calculator: GoodputCalculator) -> int:
            process = Path(f"/proc/{calculator._program.process.pid}")
            if "libasan" in process.joinpath("maps").read_text():
                self.skipTest("the sanitiser keeps what was freed")
            status = process.joinpath("status").read_text()
            return 1024 * int(status.split("VmHWM:")[1].split()[0])

        def peak(count: int) -> int:
            with open(self.file, "w") as file:
                file.write('{"job_name":"j","job_start_time":0.5}\n')
                file.writelines(f'{{"job_name":"j","step_count":{i},"step_start_time":{i}.5}}\n'
                                for i in range(count))
            calculator = self.calculator()
            calculator.get_job_goodput(True)
            return most_memory(calculator)
        self.at(0)
        small, large = peak(20_000), peak(120_000)
        self.assertLess((large - small) / 100_000, 130)  # bytes


class Program(InFolder):
    """The process that calculates: when it starts, and what ends it."""

    def ended(self, pid: int) -> bool:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            try:
                if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
                    return True
            except OSError:
                return True
            time.sleep(0.02)
        return False

    def test_one_process_answers_and_ends_with_its_calculator(self) -> None:
        self.write(entries(1, 3, 5))
        self.at(8)
        calculator = self.calculator()
        self.assertIsNone(calculator._program.process)
        self.assertEqual(calculator.get_job_goodput()[0], 50.0)
        pid = calculator._program.process.pid
        calculator.get_step_deviation()
        self.assertEqual(calculator._program.process.pid, pid)
        del calculator
        gc.collect()
        self.assertTrue(self.ended(pid))

    def test_one_that_was_killed_is_started_again(self) -> None:
        class Kept:
            def read_cloud_logging_entries(self, start: Any = None, *_: Any) -> Any:
                return ([], (None, None)) if start else (entries(1, 3, 5), (when(T0 + 5), "id"))
        self.write(entries(1, 3, 5))
        self.at(8)
        for calculator in (self.calculator(), GoodputCalculator("j", "l", Kept())):
            self.assertEqual(calculator.get_job_goodput()[0], 50.0)
            os.kill(calculator._program.process.pid, signal.SIGKILL)
            self.assertTrue(self.ended(calculator._program.process.pid))
            self.assertEqual(calculator.get_job_goodput()[0], 50.0)

    def test_it_outlives_no_parent_even_where_a_fork_keeps_its_pipe(self) -> None:
        self.write(entries(1, 3, 5))
        code = ("import os, sys, time\nfrom elastrun.goodput import GoodputCalculator\n"
                f"calculator = GoodputCalculator('j', 'l', path={str(self.file)!r})\n"
                "calculator.get_job_goodput()\n"
                "if os.fork() == 0:\n"
                "    calculator.get_job_goodput()\n"
                "    print(calculator._program.process.pid, os.getpid(), flush=True)\n"
                "    time.sleep(60)\n"
                "    os._exit(0)\n"
                "print(calculator._program.process.pid, os.getpid(), flush=True)\ntime.sleep(60)\n")
        parent = subprocess.Popen(
            [sys.executable, "-B", "-c", code], stdout=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": str(Path(goodput_calculator.__file__).parents[1])})
        assert parent.stdout is not None
        programs = {int(pid): int(of) for pid, of in
                    (parent.stdout.readline().split() for _ in range(2))}
        self.assertEqual(len(programs), 2, "a fork asks a process of its own")
        (own,) = (pid for pid, of in programs.items() if of == parent.pid)
        parent.kill()
        parent.wait(20)
        self.assertTrue(self.ended(own))
        ((other, fork),) = ((pid, of) for pid, of in programs.items() if of != parent.pid)
        os.kill(fork, signal.SIGKILL)
        self.assertTrue(self.ended(other))
        parent.stdout.close()

    def test_its_end_waits_for_no_fork_that_has_its_pipe(self) -> None:
        self.addCleanup(setattr, goodput_calculator, "_END_LIMIT", goodput_calculator._END_LIMIT)
        goodput_calculator._END_LIMIT = 60.0
        self.write(entries(1, 3, 5))
        calculator = self.calculator()
        calculator.get_job_goodput()
        lives, ends = os.pipe()
        fork = os.fork()
        if fork == 0:
            os.close(ends)
            os.read(lives, 1)  # for as long as the parent has its end
            os._exit(0)
        os.close(lives)
        begin = time.monotonic()
        del calculator
        gc.collect()
        took = time.monotonic() - begin
        os.close(ends)
        os.waitpid(fork, 0)
        self.assertLess(took, 30)

    def test_the_end_of_the_process_waits_for_no_thread_that_asks(self) -> None:
        program = self.folder / "elastrunctl"
        program.write_text("#!/bin/sh\nsleep 50\ntrue\n")  # which has the socket beyond its kill
        program.chmod(0o755)
        code = ("import threading, time\nfrom elastrun import goodput_calculator\n"
                f"goodput_calculator.find_program = lambda _: {str(program)!r}\n"
                f"one = goodput_calculator.GoodputCalculator('j', 'l', path={str(self.file)!r})\n"
                "threading.Thread(target=one.get_job_goodput, daemon=True).start()\n"
                "while one._program.process is None:\n    time.sleep(0.01)\ntime.sleep(0.2)\n")
        with subprocess.Popen(
                [sys.executable, "-B", "-c", code], start_new_session=True,
                stderr=subprocess.DEVNULL, env={
                    **os.environ, "PYTHONPATH": str(Path(goodput_calculator.__file__).parents[1]),
                }) as asks:
            try:
                self.assertEqual(asks.wait(25), 0)
            finally:
                os.killpg(asks.pid, signal.SIGKILL)

    def test_without_the_program_it_says_so(self) -> None:
        self.addCleanup(os.environ.__setitem__, "PATH", os.environ["PATH"])
        os.environ["PATH"] = str(self.folder)
        with self.assertRaisesRegex(OSError, "neither beside this package nor in PATH"):
            self.calculator().get_job_goodput()

    def test_one_that_ends_before_it_has_read_the_question_says_so(self) -> None:
        program = self.folder / "elastrunctl"
        program.write_text("#!/bin/sh\nsleep 0.1\n")
        program.chmod(0o755)
        with mock.patch.object(goodput_calculator, "find_program", return_value=str(program)), \
                self.assertRaisesRegex(BrokenPipeError, "elastrunctl has ended without an answer"):
            self.calculator().get_job_goodput()

    def test_an_error_of_a_logger_is_the_logger_s(self) -> None:
        logger = mock.Mock()
        for error in (TimeoutError("the cloud"), ConnectionResetError("the cloud")):
            logger.read_cloud_logging_entries.side_effect = error
            with self.assertRaisesRegex(type(error), "the cloud"):
                GoodputCalculator("j", "l", logger).get_job_goodput()

    def test_no_answer_within_the_limit_is_an_error(self) -> None:
        self.addCleanup(setattr, goodput_calculator, "LIMIT", goodput_calculator.LIMIT)
        goodput_calculator.LIMIT = 0.2
        os.mkfifo(self.file)  # whose open waits for a writer
        calculator = self.calculator()
        with self.assertRaisesRegex(TimeoutError, "not answered within 0.2 s"):
            calculator.get_job_goodput()
        self.assertIsNone(calculator._program.process)


class Monitor(InFolder):
    def setUp(self) -> None:
        super().setUp()
        self.said: list[metrics.MetricData] = []

        class Handler(metrics.MetricHandler):
            def emit(_, data: metrics.MetricData) -> None:
                self.said.append(data)
        metrics.configure(Handler(), "goodput")
        self.addCleanup(metrics.configure, metrics.NullMetricHandler(), "goodput")

    def values(self) -> dict[str, float]:
        self.assertEqual({one.group_name for one in self.said}, {"goodput"})
        return {one.name: one.value for one in self.said}

    def test_the_last_values_come_with_the_stop(self) -> None:
        self.write([*entries(1, 3, 5), {"job_end_time": T0 + 8}])
        monitor = GoodputMonitor("j", "l", "", 3600, True, include_badput_breakdown=True,
                                 path=self.file)
        monitor.start_goodput_uploader()
        self.assertEqual(self.said, [])
        monitor.stop_goodput_uploader()
        values = self.values()
        self.assertEqual((values["goodput_time"], values["badput_time.OTHER"]), (7.0, 1.0))
        self.assertEqual((values["total_elapsed_time"], values["max_productive_steps"]), (8.0, 2))
        self.assertNotIn("badput_time.DATA_LOADING_ASYNC", values)
        self.said.clear()
        monitor.stop_goodput_uploader()  # never started: once, all the same
        self.assertIn("goodput_time", self.values())
        self.said.clear()
        monitor.start_goodput_uploader()
        monitor.stop_goodput_uploader(skip_final_flush=True)
        self.assertEqual(self.said, [])

    def test_under_elastrun_they_have_the_originals_names_labels_and_units(self) -> None:
        self.write([*entries(1, 3, 5), {"job_end_time": T0 + 8}])
        reporter = mock.Mock(key=lambda *said: said)
        with mock.patch.object(metrics.api.reporter, "reporter", reporter):
            monitor = GoodputMonitor("j", "l", "", 3600, True, include_badput_breakdown=True,
                                     path=self.file, prefix="compute.googleapis.com/workload/")
            monitor.start_goodput_uploader()
            monitor.stop_goodput_uploader()
        series = {(name.rsplit("/", 1)[-1], *labels.values()): (name, value, labels, unit)
                  for (_, name, labels, unit, _), value in map(
                      lambda call: call.args, reporter.put.call_args_list)}
        self.assertEqual(series["badput_time", "OTHER"], (
            "compute.googleapis.com/workload/badput_time", 1.0, {"badput_source": "OTHER"}, "s"))
        self.assertEqual(series["goodput_time", "TOTAL"][1:], (7.0, {"goodput_source": "TOTAL"},
                                                               "s"))
        self.assertEqual(series["disruptions", "cumulative"][2], {"window_type": "cumulative"})
        self.assertIn("badput_time.OTHER",
                      {one.name.rsplit("/", 1)[-1] for one in self.said})  # for handlers

    def test_step_deviations_windows_and_a_writer(self) -> None:
        class Writer:
            scalars: list[tuple[str, float, int]] = []

            def add_scalar(self, tag: str, value: float, step: int) -> None:
                self.scalars.append((tag, value, step))

            def flush(self) -> None:
                pass
        now = datetime.now().timestamp()
        self.file.write_text("".join(
            json.dumps({"job_name": "j", "step_count": i, "step_start_time": now - 10 + 2 * i})
            + "\n" for i in range(5)))
        monitor = ElasticGoodputMonitor("j", "l", "", 0.01, True, include_step_deviation=True,
                                        step_deviation_interval_seconds=0.01, path=self.file,
                                        writer=Writer())
        monitor.start_step_deviation_uploader()
        monitor.start_rolling_window_goodput_uploader([60, 3600])
        wanted = {"mean_step_deviation", "interval_goodput.60", "interval_badput.3600.OTHER"}
        deadline = datetime.now() + timedelta(seconds=30)
        while not wanted <= {one.name for one in list(self.said)} and datetime.now() < deadline:
            threading.Event().wait(0.01)
        monitor.stop_step_deviation_uploader()
        monitor.stop_rolling_window_goodput_uploader()
        self.assertLessEqual(wanted, set(self.values()))
        self.assertEqual(self.values()["interval_goodput.60"], 100.0)
        self.assertEqual([(tag, step) for tag, _, step in Writer.scalars],
                         [("step_deviation", step) for step in range(4)])

    def test_disabled_it_does_nothing_and_a_folder_that_cannot_be_made_is_told(self) -> None:
        monitor = GoodputMonitor("j", "l", str(self.folder), 1)
        monitor.start_goodput_uploader()
        monitor.start_step_deviation_uploader()
        monitor.start_rolling_window_goodput_uploader(1)
        for stop in ("goodput", "step_deviation", "rolling_window_goodput"):
            getattr(monitor, f"stop_{stop}_uploader")()
        self.assertEqual(self.said, [])
        self.assertFalse((self.folder / "goodput").exists())
        self.file.touch()
        with self.assertLogs("elastrun.goodput", "WARNING") as said:
            GoodputMonitor("j", "l", str(self.file), 1, True, path=self.file)
        self.assertIn("nothing is written into", said.output[0])

    def test_an_event_file_of_tensorboard_has_the_scalars_of_the_original(self) -> None:
        self.write([*entries(1, 3, 5), {"job_end_time": T0 + 8}])
        monitor = GoodputMonitor("j", "l", str(self.folder), 3600, True, path=self.file,
                                 include_badput_breakdown=True, include_step_deviation=True)
        monitor.stop_goodput_uploader()
        monitor.stop_step_deviation_uploader()
        (file,) = (self.folder / "goodput").iterdir()
        self.assertRegex(file.name, r"^events\.out\.tfevents\.\d{10}\.")
        data, records = file.read_bytes(), []
        while data:
            size, = struct.unpack("<Q", data[:8])
            records.append(data[12:12 + size])
            data = data[16 + size:]
        self.assertEqual(records[0][9:], b"\x1a\x0dbrain.Event:2")
        for tag, value, step in ((b"goodput/goodput", 87.5, 2), (b"badput/other", 12.5, 2),
                                 (b"step_deviation", 0.0, 1)):
            scalar = b"\x0a%c%b\x15" % (len(tag), tag) + struct.pack("<f", value)
            event = b"\x10%c\x2a%c\x0a%c" % (step, len(scalar) + 2, len(scalar)) + scalar
            self.assertIn(event, [one[9:] for one in records])
        if importlib.util.find_spec("tensorboard") is not None:
            self.by_tensorboard(file)

    def test_a_full_disk_leaves_no_half_record_in_an_event_file(self) -> None:
        program = GoodputCalculator("j", "l", path=self.file)
        file = EventFile(str(self.folder), program._tensorboard)
        file.flush()
        size = os.path.getsize(file.path)
        file.add_scalar("a", 1, 1)
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, limits[1]))
            with self.assertRaises(OSError):
                file.flush()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
            signal.signal(signal.SIGXFSZ, ignored)
        self.assertEqual(os.path.getsize(file.path), size)
        file.flush()
        self.assertGreater(os.path.getsize(file.path), size + 20)

    def by_tensorboard(self, file: Path) -> None:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
        read = EventAccumulator(str(file)).Reload()
        [scalar] = read.Scalars("goodput/goodput")
        self.assertEqual((scalar.step, scalar.value), (2, 87.5))
        self.assertEqual([one.step for one in read.Scalars("step_deviation")], [0, 1])

    def test_an_uploader_goes_on_without_anybody_who_holds_the_monitor(self) -> None:
        self.write([*entries(1, 3, 5), {"job_end_time": T0 + 8}])
        monitor = GoodputMonitor("j", "l", "", 0.005, True, path=self.file)
        monitor.start_goodput_uploader()
        uploader = monitor._uploaders["goodput"]
        self.addCleanup(uploader.stop, False, 30)
        del monitor
        gc.collect()
        self.said.clear()
        deadline = datetime.now() + timedelta(seconds=30)
        while not self.said and datetime.now() < deadline:
            threading.Event().wait(0.01)
        self.assertTrue(self.said)

    def test_without_the_program_it_is_a_warning_once(self) -> None:
        self.addCleanup(os.environ.__setitem__, "PATH", os.environ["PATH"])
        os.environ["PATH"] = str(self.folder)
        monitor = GoodputMonitor("j", "l", "", 3600, True, path=self.file)
        with self.assertLogs("elastrun.goodput", "INFO") as said:
            monitor.start_goodput_uploader()
            monitor._uploaders["goodput"]._once()
            monitor.stop_goodput_uploader()
        self.assertEqual([one.levelname for one in said.records], ["WARNING", "INFO"])
        self.assertIn("neither beside this package nor in PATH", said.output[0])

    def test_a_last_upload_that_fails_is_a_warning(self) -> None:
        monitor = GoodputMonitor("j", "l", "", 0.005, True, path=self.file)
        with self.assertLogs("elastrun.goodput", "INFO") as said:
            monitor.start_goodput_uploader()
            while not said.records:
                threading.Event().wait(0.01)
            monitor.stop_goodput_uploader()
        self.assertEqual({one.levelname for one in said.records[:-1]}, {"INFO"})
        self.assertEqual(said.records[-1].levelname, "WARNING")
        self.assertIn("no goodput is told this time: the log has no start of the job",
                      said.output[-1])
        self.write([*entries(1, 3, 5), {"job_end_time": T0 - 8}])
        with self.assertLogs("elastrun.goodput", "INFO") as said:
            monitor.start_goodput_uploader()
            while len(said.records) < 3:
                threading.Event().wait(0.01)
            monitor.stop_goodput_uploader(skip_final_flush=True)
        self.assertEqual([one.levelname for one in said.records[:3]], ["WARNING", "INFO", "INFO"])

    def test_a_log_without_an_answer_ends_no_uploader(self) -> None:
        monitor = GoodputMonitor("j", "l", "", 0.005, True, path=self.file)
        monitor.start_goodput_uploader()
        threading.Event().wait(0.05)
        self.assertEqual(self.said, [])
        self.write([*entries(1, 3, 5), {"job_end_time": T0 + 8}])
        deadline = datetime.now() + timedelta(seconds=30)
        while not self.said and datetime.now() < deadline:
            threading.Event().wait(0.01)
        monitor.stop_goodput_uploader()
        self.assertEqual(self.values()["goodput_time"], 7.0)


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


class CheckpointNumbers(unittest.TestCase):
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


class CheckpointLogs(unittest.TestCase):
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
