# SPDX-License-Identifier: Apache-2.0
"""goodput_truth_test.py ELASTRUN STUB_WORKER: the account of scripts that time themselves.

Each script writes down what it spends its time for. The account has to say the same, each bucket
within 5 % or 0.3 s, and of goodput the number or a range that holds it.
"""
from __future__ import annotations

import json
import os
import signal
import subprocess
import unittest
from typing import Any

from harness import CTL, LIMIT, PACKAGE, Job, wait_until

SHARE, SECONDS = 0.05, 0.3

FRAME = """
import os, sys, time, elastrun
again = os.environ["TORCHELASTIC_RESTART_COUNT"] != "0"
spent = open("spent", "a", buffering=1)
def spend(bucket, seconds):
    begin = time.monotonic()
    time.sleep(seconds)
    print(bucket, time.monotonic() - begin, file=spent)
"""
SAVES = """
for step in range(1, 41):
    spend("productive", 0.05)
    if HOW == "before": time.sleep(0)
    else: elastrun.step(step)
    if step % 10 == 0:
        spend("checkpoint", 0.7)
        elastrun.checkpoint_done(step)
    if HOW == "before": elastrun.step(step)
"""
GAPS = """
for step in range(1, 81):
    spend("productive", 0.05)
    elastrun.step(step)
    if step % EACH == 0: spend("unexplained", GAP)
"""
TOGETHER = """
for step in range(1, 41):
    spend("productive", 0.05)
    spend("checkpoint", 0.1)
    elastrun.checkpoint_done(step)
    elastrun.step(step)
"""
FEW = """
first = 3 if again else 1
for step in range(first, first + (5 if again else 2)):
    spend("productive", 0.05)
    elastrun.step(step)
    if HOW == "all" and step % 2 or HOW == "before a failure" and not again:
        spend("unexplained", 0.7)
    if step == 2:
        elastrun.checkpoint_done(2)
        raise ValueError("no")
"""
BESIDE = """
import random, threading
random.seed(4)
for step in range(1, 61):
    spend("productive", random.uniform(0.02, 0.18))
    elastrun.step(step)
    if step % 3 == 0:
        threading.Timer(0.03, elastrun.checkpoint_done, (step,)).start()
"""
LONG = """
for step in range(1, 65):
    spend("productive", 0.6 if step % 16 == 0 else 0.05)
    elastrun.step(step)
"""
RECORDED = """
import elastrun.measurement as m
recorder = m.GoodputRecorder("one", "log", logging_enabled=True)
with recorder.record_event(m.Event.JOB):
    for step in range(12, 30) if again else range(20):
        with recorder.record_event(m.Event.STEP, step):
            lost = not again and step > 11
            spend("lost" if lost else "productive", 0.1)
            if step == 11: elastrun.checkpoint_done(10)
            if step == 19 and not again:
                spend("lost", 0.05)
                raise ValueError("no")
"""
EXIT = """
import atexit
if not again: atexit.register(spend, "restart", 1.5)
for step in range(1, 31):
    spend("productive", 0.05)
    elastrun.step(step)
elastrun.checkpoint_done(30)
if not again: raise ValueError("no")
for step in range(31, 61):
    spend("productive", 0.05)
    elastrun.step(step)
"""
ENDLESS = """
for step in range(1, 61):
    time.sleep(0.05)
    print("lost" if step > 40 else "productive", 0.05, file=spent)
    elastrun.step(step)
    if step == 40: elastrun.checkpoint_done(40)
open("sixty", "w").close()
time.sleep(600)
"""
PREEMPTED = """
step = 0
while True:
    step += 1
    spend("productive", 0.05)
    elastrun.step(step)
    if step == 20: open("sixty", "w").close()
    if elastrun.should_save(step):
        spend("checkpoint", 0.5)
        elastrun.checkpoint_done(step)
        if HOW == "ends": spend("stopping", 0.5)
        else: os.kill(os.getpid(), 15) or time.sleep(0.5)
        break
"""


class Truth(unittest.TestCase):
    def start(self, script: str, *options: str, **values: object) -> Job:
        known = "".join(f"{name} = {value!r}\n" for name, value in values.items())
        return self.enterContext(Job(
            "--report=report.json", "--log-dir=logs", "--max-restarts=1", *options,
            script=FRAME + known + script, env={"PYTHONPATH": PACKAGE}))

    def spent(self, job: Job) -> dict[str, float]:
        all_of: dict[str, float] = {}
        for line in (job.folder / "spent").read_text().splitlines():
            bucket, seconds = line.split()
            all_of[bucket] = all_of.get(bucket, 0) + float(seconds)
        return all_of

    def read(self, job: Job) -> dict[str, Any]:
        """What the journal says: the same as the report, if there is one."""
        [journal] = job.folder.glob("logs/*/journal.jsonl")
        done = subprocess.run([CTL, "goodput", "report", "--json", journal], text=True, check=True,
                              capture_output=True, timeout=LIMIT)
        account: dict[str, Any] = json.loads(done.stdout)
        if (job.folder / "report.json").exists():
            told = json.loads((job.folder / "report.json").read_text())["goodput"]["buckets_s"]
            for bucket, seconds in told.items():
                self.assertAlmostEqual(account["buckets_s"][bucket], seconds, delta=0.3,
                                       msg=f"{bucket}: {account['buckets_s']} {told}")
        return account

    def check(self, job: Job, *apart: str) -> dict[str, Any]:
        """All that the script has spent, but what is `apart`."""
        account, spent = self.read(job), self.spent(job)
        for bucket in {"productive", "lost", "checkpoint", "stalled", "hang", *spent} - {*apart}:
            seen, true = account["buckets_s"][bucket], spent.get(bucket, 0.0)
            self.assertAlmostEqual(seen, true, delta=max(SHARE * true, SECONDS),
                                   msg=f"{bucket}: {account['buckets_s']}, the script: {spent}")
        share = spent["productive"] / account["elapsed_s"]
        self.assertLessEqual(account["goodput_at_least"], share + SHARE)
        self.assertGreaterEqual(account["goodput_at_most"], share - SHARE)
        if account["goodput"] is not None:
            self.assertAlmostEqual(account["goodput"], share, delta=SHARE)
        return account

    def check_range(self, job: Job) -> dict[str, Any]:
        """Holds the truth, and its lower end is never above it."""
        account, spent = self.read(job), self.spent(job)
        share = spent["productive"] / account["elapsed_s"]
        self.assertIsNone(account["goodput"], f"{account} {spent}")
        self.assertLessEqual(account["goodput_at_least"], share + 0.01, f"{account} {spent}")
        self.assertGreaterEqual(account["goodput_at_most"], share - 0.01, f"{account} {spent}")
        return account

    def test_what_cannot_be_told_apart_is_a_range(self) -> None:
        for name, script, how in (("each save before its step", TOGETHER, ""),
                                  ("few steps", FEW, "all"),
                                  ("before a failure", FEW, "before a failure"),
                                  ("saves beside steps", BESIDE, "")):
            with self.subTest(name):
                job = self.start(script, HOW=how).ended()
                self.check_range(job)

    def test_a_gap_after_each_second_step_is_no_pace(self) -> None:
        for gap in (0.06, 0.09, 0.4):
            with self.subTest(gap):
                job = self.start(GAPS, GAP=gap, EACH=2).ended()
                account = self.check_range(job)
                share = self.spent(job)["productive"] / account["elapsed_s"]
                self.assertAlmostEqual(account["goodput_at_least"], share, delta=0.03)

    def test_a_save_is_the_time_from_its_step_to_its_checkpoint(self) -> None:
        for how in ("after", "before"):
            with self.subTest(how):
                job = self.start(SAVES, HOW=how).ended()
                account = self.check(job)
                self.assertGreater(account["buckets_s"]["checkpoint"], 2.5)
                self.assertAlmostEqual(account["mean_save_s"], 0.7, delta=0.1)

    def test_a_longer_untold_gap_never_looks_better(self) -> None:
        least = 1.0
        for gap in (0.3, 0.9, 1.3):
            with self.subTest(gap):
                job = self.start(GAPS, GAP=gap, EACH=20).ended()
                account = self.check(job, "unexplained")
                self.assertIsNone(account["goodput"])
                share = self.spent(job)["productive"] / account["elapsed_s"]
                self.assertAlmostEqual(account["goodput_at_least"], share, delta=SHARE)
                self.assertLess(account["goodput_at_least"], least)
                least = account["goodput_at_least"]
                self.assertRegex(job.errors(), r"goodput between [\d.]+ % and [\d.]+ % of|^$")

    def test_long_steps_that_are_work_are_a_range_with_the_truth(self) -> None:
        job = self.start(LONG).ended()
        account = self.read(job)
        share = self.spent(job)["productive"] / account["elapsed_s"]
        self.assertEqual(account["buckets_s"]["stalled"], 0)
        self.assertLess(account["goodput_at_least"], share)
        self.assertAlmostEqual(account["goodput_at_most"], share, delta=SHARE)

    def test_the_step_that_an_exception_ends_is_lost(self) -> None:
        job = self.start(RECORDED).ended()
        self.check(job)
        self.assertGreater(self.spent(job)["lost"], 0.8)

    def test_the_end_of_a_worker_that_fails_is_a_stage_of_its_restart(self) -> None:
        job = self.start(EXIT).ended()
        account = self.check(job, "restart")
        [path] = account["restart_waterfall"]
        stages = path["stages_s"]
        self.assertAlmostEqual(stages["exit"], self.spent(job)["restart"], delta=0.3)
        row = sum(stages[name] for name in ("exit", "detect", "stop", "rendezvous", "spawn"))
        self.assertAlmostEqual(row / account["buckets_s"]["restart"], 1, delta=0.05)
        self.assertEqual(account["buckets_s"]["lost"], 0)

    def test_a_journal_without_an_end_is_that_of_an_agent_that_died(self) -> None:
        job = self.start(ENDLESS)
        wait_until((job.folder / "sixty").exists, "60 steps are done")
        # It is written ten times a second: what came after that dies with the agent.
        wait_until(lambda: self.read(job)["last_step"] == 60, "the journal has them")
        live = self.read(job)
        self.assertEqual(live["buckets_s"]["lost"], 0)
        [journal] = job.folder.glob("logs/*/journal.jsonl")
        first = json.loads(journal.read_text().splitlines()[0])["attributes"]
        os.kill(first["pid"], signal.SIGKILL)
        job.end()
        account = self.check(job)
        self.assertGreater(account["buckets_s"]["lost"], 0.8)
        text = subprocess.run([CTL, "goodput", "report", journal], text=True, check=True,
                              capture_output=True, timeout=LIMIT).stdout
        self.assertRegex(text, r"(?m)^  lost .* steps that were not saved$")

    def test_a_preempted_job_that_has_saved_has_lost_nothing(self) -> None:
        for how in ("ends", "is killed"):
            with self.subTest(how):
                job = self.start(PREEMPTED, "--preempt-signals=SIGTERM", HOW=how)
                wait_until((job.folder / "sixty").exists, "20 steps are done")
                job.stopped(75)
                account = self.check(job, "stopping")
                self.assertEqual(account["buckets_s"]["lost"], 0)
                [start] = account["goodput_attempts"]
                self.assertEqual(start["ended"], "preempted")
                self.assertIn("0 steps lost", job.errors())
