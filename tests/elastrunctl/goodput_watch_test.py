# SPDX-License-Identifier: Apache-2.0
"""goodput_watch_test.py ELASTRUN ELASTRUNCTL: the account of a job while it goes on.

Every wait is for a line or an end, never for time.
"""
from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import termios
import time
from pathlib import Path

from harness import wait_until
from programs import CTL, ELASTRUN, ENVIRONMENT, LIBRARY, LIMIT, Programs
from screen import OnTerminal

# Fails once when told to, and ends when told to.
TRAINER = """
import os, sys, time, elastrun
again = os.environ["TORCHELASTIC_RESTART_COUNT"]
step = 0
while not os.path.exists("go" + again):
    step += 1
    elastrun.step(step)
    if step % 10 == 5: elastrun.checkpoint_done(step)
    time.sleep(0.02)
sys.exit(7 if again == "0" else 0)
"""

# A few steps, then none, and no event that would take them to the journal.
SILENT = """
import elastrun, signal
for step in range(1, 6): elastrun.step(step)
signal.pause()
"""


def record(name: str, **more: object) -> str:
    """A record of now."""
    return json.dumps({"time": time.time(), "mono_ns": time.monotonic_ns(), "kind": "event",
                       "scope": "elastrun.agent", "name": name, "attributes": more}) + "\n"


class Watch(Programs):
    def setUp(self) -> None:
        super().setUp()
        self.environment = ENVIRONMENT | LIBRARY | {
            "ELASTRUN_RUNTIME_DIR": str(self.folder / "registry"), "TERM": "xterm"}

    def job(self, script: str = TRAINER) -> tuple[subprocess.Popen[str], Path]:
        (self.folder / "train.py").write_text(script)
        job = self.start(ELASTRUN, "--max-restarts=1", "--log-dir=logs", "train.py",
                         stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        end = time.monotonic() + LIMIT
        while not (found := [path for path in self.folder.glob("logs/*/journal.jsonl")
                             if '"step"' in path.read_text()]):
            self.assertIsNone(job.poll())
            self.assertLess(time.monotonic(), end)
            time.sleep(0.02)
        return job, found[0]

    def line(self, child: subprocess.Popen[str], pattern: str) -> str:
        for line in child.stdout:
            if re.search(pattern, line):
                return line
        self.fail(f"ended without a line {pattern}: {child.stderr.read()}")

    def test_each_change_is_a_line_and_the_end_of_the_job_the_last(self) -> None:
        job, journal = self.job()
        watch = self.start(CTL, "goodput", "watch")
        self.line(watch, r"^\S+ productive: goodput .+ % of .*, last step \d+, checkpoint \d+$")
        (self.folder / "go0").touch()
        self.line(watch, r"^\S+ \w+: goodput .*, 1 restart, ")
        (self.folder / "go1").touch()
        last = self.line(watch, r"^\S+ ended: goodput .*, 1 restart, last step \d+, checkpoint ")
        self.assertEqual(watch.stdout.read(), "")
        self.assertEqual((watch.wait(LIMIT), job.wait(LIMIT)), (0, 0))
        report = self.goodput("report", journal).stdout
        self.assertEqual(last.split(" ended: ")[1], report.splitlines()[1] + "\n")
        again = self.start(CTL, "goodput", "watch", str(journal.parent))  # over: one line
        self.assertEqual(len(again.stdout.read().splitlines()), 1)
        self.assertEqual(again.wait(LIMIT), 0)

    def test_a_job_whose_agent_is_killed_is_over(self) -> None:
        job, journal = self.job()
        watch = self.start(CTL, "goodput", "watch", str(journal))
        self.line(watch, " productive: ")
        job.send_signal(signal.SIGKILL)
        job.wait(LIMIT)
        self.line(watch, " ended: ")
        self.assertEqual(watch.wait(LIMIT), 0)

    def test_steps_are_there_before_any_event_and_after_a_hard_kill(self) -> None:
        job, journal = self.job(SILENT)
        watch = self.start(CTL, "goodput", "watch", str(journal))
        self.line(watch, "last step 5$")
        job.send_signal(signal.SIGKILL)
        job.wait(LIMIT)
        self.line(watch, " ended: .*last step 5$")
        self.assertEqual(watch.wait(LIMIT), 0)

    def test_a_journal_of_elsewhere_is_followed_in_pieces(self) -> None:
        journal = self.folder / "journal.jsonl"
        journal.write_text(record("job.started", run_id="far") + record("phase", phase="starting"))
        watch = self.start(CTL, "goodput", "watch", str(journal))
        self.line(watch, " startup: ")
        with journal.open("a") as file:
            text = record("phase", phase="running")
            file.write(text[:20])
            file.flush()
            file.write(text[20:] + "no record\n")
            file.flush()
            self.line(watch, " running: goodput between 0 and ")
            file.write(record("job.ended", succeeded=True))  # and, with --goodput off, no more
        self.line(watch, " ended: ")
        self.assertEqual(watch.wait(LIMIT), 0)

    def test_on_a_terminal_it_is_drawn_over_itself_and_ctrl_c_ends_it(self) -> None:
        job, journal = self.job()
        wait_until(lambda: journal.read_text().count('"step"') > 1, "its steps have a pace")
        watch = OnTerminal([CTL, "goodput", "watch"], self.environment, str(self.folder), LIMIT,
                           columns=60, rows=8)
        self.addCleanup(watch.close)
        before = termios.tcgetattr(watch.ours)
        watch.until(r"(?s)\x1b\[\d+F.*\x1b\[\d+F.*\x1b\[J\x1b\[\?7h", raw=True)
        # Also of steps that are told together, long after the first of them.
        told = set(re.findall(r"now: (\w+)", watch.raw)) - {"startup", "rendezvous", "running"}
        self.assertEqual(told, {"productive"}, watch.raw)
        for rows in re.findall(r"\x1b\[(\d+)F", watch.raw):
            self.assertLess(int(rows), 8)
        os.write(watch.ours, b"\x03")
        self.assertEqual(watch.finish(), 0)
        self.assertEqual(termios.tcgetattr(watch.ours), before)
        self.assertEqual(watch.raw.count("\x1b[?7l"), watch.raw.count("\x1b[?7h"))
        self.assertNotIn("\x1b[?25l", watch.raw)
        self.assertIsNone(job.poll())
        for attempt in "01":
            (self.folder / f"go{attempt}").touch()
        job.wait(LIMIT)

    def test_what_cannot_be_watched_is_said(self) -> None:
        log = self.folder / "log"
        log.write_text('{"job_name":"night","job_start_time":5}\n')
        (self.folder / "empty").mkdir()
        for words, said in (((), "no job of this user runs on this machine"),
                            (("nobody",), 'no job "nobody" runs here; it may have ended'),
                            (("empty",), "there is no journal.jsonl in empty"),
                            (("log",), "a log of ml-goodput-measurement cannot be watched")):
            with self.subTest(words=words):
                watch = self.start(CTL, "goodput", "watch", *words)
                self.assertIn(said, watch.stderr.read())
                self.assertEqual(watch.wait(LIMIT), 1)
        self.start(ELASTRUN, "--no-python", "sleep", "60")
        while not list(self.folder.glob("registry/*.json")):
            time.sleep(0.02)
        watch = self.start(CTL, "goodput", "watch")
        self.assertIn('the job "sleep" keeps no journal; start it with --log-dir',
                      watch.stderr.read())
        self.assertEqual(watch.wait(LIMIT), 1)
