# SPDX-License-Identifier: Apache-2.0
"""What watches goodput while a job runs: windows in /status and in sinks."""
from __future__ import annotations

import json
import os
import subprocess
import sys
import unittest

from harness import LIMIT, PACKAGE, PROGRAM, Job, fetched, wait_until


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


class Goodput(unittest.TestCase):
    def start(self, *options: str) -> Job:
        return self.enterContext(Job("--worker-lib", *options, script=TRAINER))

    def status(self, job: Job) -> dict:
        return json.loads(fetched(job.page() + "status"))["goodput"]

    def test_status_and_sinks_have_the_windows_as_they_are(self) -> None:
        job = self.start("--http=0", "--metrics=jsonl:records.jsonl")
        job.wait_for("^eval$")
        wait_until(lambda: self.status(job)["windows"][0]["buckets_s"].get("evaluation", 0) > 0.5,
                   "the window has an evaluation")
        status = self.status(job)
        hour, day = status["windows"]
        self.assertEqual((hour["size_s"], day["size_s"]), (3600, 86400))
        for window in hour, day:
            self.assertAlmostEqual(window["covered_s"], status["elapsed_s"], places=5)
            self.assertAlmostEqual(sum(window["buckets_s"].values()), window["covered_s"], places=5)
            self.assertAlmostEqual(window["buckets_s"]["evaluation"],
                                   status["buckets_s"]["evaluation"], places=5)
        self.assertNotIn("alert", status)
        (job.folder / "go").touch()
        job.tell("end").ended()
        lines = (job.folder / "records.jsonl").read_text().splitlines()
        told = {one["attributes"]["rolling_window_size"]: one["window"]["aggregates"]["value"]
                for one in map(json.loads, lines) if one["name"] == "elastrun.interval_goodput"}
        self.assertEqual(set(told), {"3600", "86400"})
        self.assertTrue(all(0 < value < 100 for value in told.values()), told)

    def test_all_that_tell_goodput_tell_the_same(self) -> None:
        """Five of 5 * 1.1 s and, of the first step's 6 s, what such a step takes."""
        jobs = {how: self.enterContext(Job(
            "--worker-lib", "--log-dir=logs", "--metrics=jsonl:records.jsonl", "--report=report",
            script=FIRST, env={"HOW": how}))
            for how in ("recorder", "step")}
        for how, job in jobs.items():
            self.assertEqual(job.end(), 0, job.errors())
            report = json.loads((job.folder / "report").read_text())["goodput"]
            elapsed, told = report["elapsed_s"], {"report": report["buckets_s"]["productive"]}
            [percent] = job.wait_for(r"^elastrun: goodput ([\d.]+) % of", path=job.err)
            told["summary"] = float(percent) / 100 * elapsed
            for one in job.records("records.jsonl"):
                if one["name"] == "elastrun.goodput_time":
                    told["metric"] = one["window"]["aggregates"]["value"]
                elif one["name"] == "elastrun.interval_goodput":
                    told["window"] = one["window"]["aggregates"]["value"] / 100 * elapsed
            if how == "recorder":
                [journal] = job.folder.glob("logs/*/journal.jsonl")
                asked = subprocess.run([sys.executable, "-c", ASK, journal], text=True, check=True,
                                       env=os.environ | {"PYTHONPATH": PACKAGE} |
                                       {"PATH": f"{PROGRAM.parent}:{os.environ['PATH']}"},
                                       capture_output=True, timeout=LIMIT)
                told["calculator"] = float(asked.stdout)
            self.assertEqual(len(told), 5 if how == "recorder" else 4, told)
            for one, seconds in told.items():
                self.assertAlmostEqual(seconds / told["report"], 1, delta=0.05, msg=f"{one} {told}")
            self.assertLess(told["report"], elapsed - 2)  # 4.9 s of the first step were none
