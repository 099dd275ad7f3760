#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What watches goodput while a job runs: windows in /status and in sinks, and the alert."""
from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import unittest
from pathlib import Path

from harness import LIMIT, PROGRAM, STUB, Job, main, wait_until

PACKAGE = Path(__file__).resolve().parents[2] / "lib" / "python"

STUCK_WRITE = STUB.parent / "libstuck_write.so"

# Steps, then a pause of another use until "go", then steps until "end".
TRAINER = """
import os, time
from elastrun import channel
from elastrun.goodput import GoodputRecorder
recorder = GoodputRecorder("night", "log", logging_enabled=os.environ["RANK"] == "0")
step = 0
def train(until):
    global step
    while not until():
        step += 1
        time.sleep(0.02)
        recorder.record_step_start_time(step)
train(lambda: step > 100)
recorder.record_custom_badput_event_start_time(custom_badput_event_type="eval")
print("eval", flush=True)
while not os.path.exists("go"): time.sleep(0.01)
recorder.record_custom_badput_event_end_time(custom_badput_event_type="eval")
train(lambda: os.path.exists("end"))
"""
# A step that compiles, and others.
FIRST = """
import os, time, elastrun
from elastrun.measurement import Event, GoodputRecorder
recorder = GoodputRecorder("one", "log", logging_enabled=os.environ["HOW"] == "recorder")
with recorder.record_event(Event.JOB):
    for step in range(6):
        with recorder.record_event(Event.STEP, step):
            time.sleep(1.1 if step else 6)
        if os.environ["HOW"] == "step": elastrun.step(step)
"""
ASK = """
import sys
from elastrun.goodput import GoodputCalculator, GoodputType
calculator = GoodputCalculator("one", "log", path=sys.argv[1])
calculator.get_job_goodput()
print(calculator.get_job_goodput_details()["goodput_time"][GoodputType.TOTAL])
"""
ALERT = """
[goodput]
interval = 0.1
windows = [1, "1h"]
alert_below = 0.6
window = "1s"
alert_command = ["sh", "-c", "cat >> alerts; echo told >&2"]
"""


class Goodput(unittest.TestCase):
    def start(self, *options: str, toml: str = ALERT, **more: str) -> Job:
        return self.enterContext(Job(
            "--config=job.toml", "--worker-lib", *options, "train.py",
            files={"train.py": TRAINER, "job.toml": toml, "stuck": ""},
            env={"PYTHON_EXEC": sys.executable} | more))

    def status(self, job: Job) -> dict:
        [port] = job.wait_for(r"^elastrun: the job is shown at http://127\.0\.0\.1:(\d+)/$",
                              path=job.err)
        connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=LIMIT)
        try:
            connection.request("GET", "/status")
            return json.loads(connection.getresponse().read())["goodput"]
        finally:
            connection.close()

    def alerts(self, job: Job) -> list[dict]:
        file = job.folder / "alerts"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def test_an_alert_is_told_once_when_goodput_falls_and_once_when_it_recovers(self) -> None:
        job = self.start("--log-dir=logs", "--nproc-per-node=2")
        job.wait_for("^eval$")
        wait_until(lambda: self.alerts(job)[-1:] and self.alerts(job)[-1]["state"] == "below" and
                   self.alerts(job)[-1]["bucket"] == "evaluation", "goodput has fallen")
        before = len(self.alerts(job))  # a slow machine falls at the start as well
        (job.folder / "go").touch()
        wait_until(lambda: len(self.alerts(job)) == before + 1, "goodput has recovered")
        (job.folder / "end").touch()
        self.assertEqual(job.end(), 0, job.errors())
        alerts = self.alerts(job)
        fell, recovered = alerts[-2:]
        self.assertEqual([one["state"] for one in alerts],
                         ["below", "recovered"] * (len(alerts) // 2))
        self.assertEqual(fell["event"], "elastrun.goodput.alert")
        self.assertLess(fell["goodput"], 0.6)
        self.assertGreater(recovered["goodput"], 0.6)
        self.assertEqual((fell["alert_below"], fell["window_s"], fell["bucket"]),
                         (0.6, 1, "evaluation"))
        self.assertEqual(fell["badput_source"], "CUSTOM_BADPUT_EVENTS.EVALUATION")
        self.assertRegex(job.errors(), r"Goodput of the last 1.0 s is [\d.]+ %, below 60.0 %; most "
                                       r"of the rest: evaluation")
        self.assertEqual(job.errors().count("told\n"), len(alerts))
        [journal] = job.folder.glob("logs/*/journal.jsonl")
        events = [json.loads(line) for line in journal.read_text().splitlines()]
        told = [one for one in events if one["name"] == "elastrun.goodput.alert"]
        self.assertEqual([one.get("severity") for one in told], ["WARN", None] * (len(alerts) // 2))
        self.assertEqual(told[0]["attributes"]["state"], "below")

    def test_a_command_that_hangs_or_is_not_there_holds_up_nothing(self) -> None:
        stuck = {"LD_PRELOAD": str(STUCK_WRITE), "STUCK_WHILE": "stuck", "STUCK_FOLDER": "/hung/",
                 "ASAN_OPTIONS": "verify_asan_link_order=0"}
        for words, env in (('["sh", "-c", "sleep 1000"]', {}), ('["/no/such/program"]', {}),
                           ('["/hung/program"]', stuck)):
            toml = ALERT.replace(ALERT.rsplit(" = ", 1)[1], words + "\n")
            job = self.start(toml=toml, **env)
            job.wait_for("Goodput of the last", path=job.err)
            (job.folder / "go").touch()
            job.wait_for("again above", path=job.err)
            (job.folder / "end").touch()
            self.assertEqual(job.end(), 0, job.errors())
            self.assertEqual(job.alive(), set())

    def test_status_and_sinks_have_the_windows_as_they_are(self) -> None:
        job = self.start("--http=0", "--metrics=jsonl:records.jsonl")
        job.wait_for("^eval$")
        wait_until(lambda: self.status(job)["windows"][0]["goodput"] == 0, "the window has passed")
        status = self.status(job)
        second, hour = status["windows"]
        self.assertEqual((second["size_s"], hour["size_s"]), (1, 3600))
        self.assertEqual(second["buckets_s"], {"evaluation": 1})
        self.assertAlmostEqual(hour["covered_s"], status["elapsed_s"], places=5)
        self.assertAlmostEqual(sum(hour["buckets_s"].values()), hour["covered_s"], places=5)
        self.assertGreater(hour["goodput"], 0)
        self.assertTrue(status["alert"]["raised"])
        (job.folder / "go").touch()
        (job.folder / "end").touch()
        self.assertEqual(job.end(), 0, job.errors())
        lines = (job.folder / "records.jsonl").read_text().splitlines()
        records = [json.loads(line) for line in lines]
        told = [one["window"]["aggregates"]["value"] for one in records
                if one["name"] == "elastrun.interval_goodput"
                and one["attributes"]["rolling_window_size"] == "1"]
        self.assertGreater(len(told), 5)
        self.assertLess(min(told), 30)
        self.assertGreater(max(told), 70)

    def test_all_that_tell_goodput_tell_the_same(self) -> None:
        """Five of 5 * 1.1 s and, of the first step's 6 s, what such a step takes."""
        jobs = {how: self.enterContext(Job(
            "--worker-lib", "--log-dir=logs", "--metrics=jsonl:records.jsonl", "--report=report",
            "train.py", files={"train.py": FIRST}, env={"PYTHON_EXEC": sys.executable, "HOW": how}))
            for how in ("recorder", "step")}
        for how, job in jobs.items():
            self.assertEqual(job.end(), 0, job.errors())
            report = json.loads((job.folder / "report").read_text())["goodput"]
            elapsed, told = report["elapsed_s"], {"report": report["buckets_s"]["productive"]}
            [percent] = job.wait_for(r"^elastrun: goodput ([\d.]+) % of", path=job.err)
            told["summary"] = float(percent) / 100 * elapsed
            for line in (job.folder / "records.jsonl").read_text().splitlines():
                one = json.loads(line)
                if one["name"] == "elastrun.goodput_time":
                    told["metric"] = one["window"]["aggregates"]["value"]
                elif one["name"] == "elastrun.interval_goodput":
                    told["window"] = one["window"]["aggregates"]["value"] / 100 * elapsed
            if how == "recorder":
                [journal] = job.folder.glob("logs/*/journal.jsonl")
                asked = subprocess.run([sys.executable, "-c", ASK, journal], text=True, check=True,
                                       env=os.environ | {"PYTHONPATH": str(PACKAGE)} |
                                       {"PATH": f"{PROGRAM.parent}:{os.environ['PATH']}"},
                                       capture_output=True, timeout=LIMIT)
                told["calculator"] = float(asked.stdout)
            self.assertEqual(len(told), 5 if how == "recorder" else 4, told)
            for one, seconds in told.items():
                self.assertAlmostEqual(seconds / told["report"], 1, delta=0.05, msg=f"{one} {told}")
            self.assertLess(told["report"], elapsed - 2)  # 4.9 s of the first step were none

    def test_bad_settings_are_refused_with_place_and_remedy(self) -> None:
        job = self.start(toml="[goodput]\nalert_below = 80\n")
        self.assertEqual(job.end(), 2)
        self.assertIn("job.toml:2: 80", job.errors())
        self.assertIn("such as 0.8", job.errors())


if __name__ == "__main__":
    main()
