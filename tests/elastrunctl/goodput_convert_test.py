#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""goodput_convert_test.py ELASTRUN ELASTRUNCTL VECTORS: what `goodput convert` writes, read by
those for whom it is."""
from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import unittest
from collections import Counter
from pathlib import Path
from typing import Any

ELASTRUN, CTL = (os.path.abspath(word) for word in sys.argv[1:3])
VECTORS = {s["name"]: s for s in json.loads(Path(sys.argv[3]).read_text())["scenarios"]}
ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {k: v for k, v in os.environ.items()
               if not k.startswith(("PET_", "SLURM_", "ELASTRUN_", "TORCHELASTIC"))}
TRAINER = """
import os, sys, time, elastrun
again = os.environ["TORCHELASTIC_RESTART_COUNT"] != "0"
for step in range(3 if again else 1, 7 if again else 5):
    time.sleep(0.05)
    elastrun.step(step)
    if step == 2: elastrun.checkpoint_done(2)
sys.exit(0 if again else 7)
"""


def ctl(*words: str, **more: Any) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([CTL, "goodput", *words], capture_output=True, timeout=60,
                          env=ENVIRONMENT, check=False, **more)


class Convert(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))

    def run_job(self) -> Path:
        (self.folder / "train.py").write_text(TRAINER)
        before = set(self.folder.glob("logs/*/journal.jsonl"))
        library = {"PYTHONPATH": str(ROOT / "lib/python"), "PYTHONDONTWRITEBYTECODE": "1"}
        subprocess.run([ELASTRUN, "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0",
                        "--rdzv-id=night", "--max-restarts=1", "--log-dir=logs", "train.py"],
                       cwd=self.folder, timeout=120, check=True, capture_output=True,
                       env=ENVIRONMENT | library)
        (journal,) = set(self.folder.glob("logs/*/journal.jsonl")) - before
        return journal

    def log(self, name: str) -> Path:
        log = self.folder / "log"
        log.write_text("".join(json.dumps(entry) + "\n" for entry in VECTORS[name]["entries"]))
        return log

    def account(self, *files: Path) -> dict:
        return json.loads(ctl("report", "--json", *map(str, files)).stdout)

    def convert(self, form: str, *files: Path) -> bytes:
        done = ctl("convert", "--to", form, *map(str, files))
        self.assertEqual((done.returncode, done.stderr), (0, b""))
        return done.stdout

    def check_trace(self, text: bytes, account: dict) -> list[dict]:
        """The events of the process with the account."""
        events = json.loads(text)
        names = {e["args"]["name"]: e["pid"] for e in events if e["name"] == "process_name"}
        ours = [e for e in events if e["pid"] == names[f"goodput of {account['job']}"]]
        self.assertTrue(all(e["ts"] >= 0 and e.get("dur", 0) >= 0 for e in events))
        spent: Counter[str] = Counter()
        end = 0.0
        for event in ours:
            if event["ph"] != "X" or event["tid"] != 1:
                continue
            self.assertAlmostEqual(event["ts"], end, places=2)
            end = event["ts"] + event["dur"]
            spent[event["name"]] += event["dur"] / 1e6
        for bucket, seconds in account["buckets_s"].items():
            self.assertAlmostEqual(spent[bucket], seconds, places=5, msg=bucket)
        return ours

    def test_a_trace_has_the_records_and_the_account_of_all_submissions(self) -> None:
        journals = [self.run_job(), self.run_job()]
        account = self.account(*journals)
        text = self.convert("chrome-trace", *journals)
        ours = self.check_trace(text, account)
        restarts = [e for e in ours if e["ph"] == "X" and e["tid"] == 2]
        self.assertEqual([e["name"] for e in restarts].count("rank 0 ended with exit code 7"), 2)
        self.assertIn("first_step", [e["name"] for e in restarts])
        events = json.loads(text)
        started = [e["ts"] for e in events if e["name"] == "job.started"]
        self.assertEqual(len(started), 2)
        self.assertGreater(started[1], 1e6 * account["elapsed_s"] / 4)
        self.assertLessEqual(max(e["ts"] for e in events), 1e6 * account["elapsed_s"] + 1)
        self.assertGreaterEqual(sum(e["name"] == "step" for e in events), 16)

    def test_a_log_of_the_reference_becomes_a_trace(self) -> None:
        log = self.log("s04_partial_restart")
        ours = self.check_trace(self.convert("chrome-trace", log), self.account(log))
        self.assertIn("step time", {e["name"] for e in ours})

    def test_tensorboard_reads_the_event_file(self) -> None:
        journal = self.run_job()
        board = self.folder / "board"
        board.mkdir()
        done = ctl("convert", "--to", "tensorboard", "-o", str(board), str(journal))
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, b"", b""))
        (file,) = board.iterdir()
        self.assertRegex(file.name, r"^events\.out\.tfevents\.\d{10}\.")
        self.assertEqual(file.read_bytes(), self.convert("tensorboard", journal))
        try:
            from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
        except ImportError as error:
            self.skipTest(f"{error} (pip install tensorboard)")
        events: Any = EventAccumulator(str(board))
        events.Reload()
        self.assertEqual([e.value for e in events.Scalars("step")], [1, 2, 3, 4, 3, 4, 5, 6])
        seconds = events.Scalars("goodput/step_seconds")
        self.assertEqual([e.step for e in seconds], [2, 3, 4, 4, 5, 6])
        self.assertTrue(all(0 < e.value < 60 for e in seconds))
        self.assertAlmostEqual(events.Scalars("goodput/share")[-1].value,
                               self.account(journal)["goodput"], places=5)

    def test_a_device_is_written_to_and_not_replaced(self) -> None:
        fifo = self.folder / "fifo"
        os.mkfifo(fifo)
        log = self.log("s01_clean_run")
        with subprocess.Popen(["cat", fifo], stdout=subprocess.PIPE) as reader:
            done = ctl("convert", "--to", "chrome-trace", "-o", str(fifo), str(log))
            self.assertEqual((done.returncode, done.stderr), (0, b""))
            self.check_trace(reader.stdout.read(), self.account(log))
        self.assertTrue(fifo.is_fifo())

    def test_what_cannot_be_converted_costs_nothing(self) -> None:
        journal = self.folder / "journal.jsonl"
        journal.write_text("no record\n")
        old = self.folder / "old"
        old.write_text("as it was")
        for words, code, said in (
                (("--to", "chrome-trace", "-o", "old", "journal.jsonl"), 1, b"no job starts in"),
                (("--to", "chrome-trace", "-o", "journal.jsonl", "journal.jsonl"), 2,
                 b"journal.jsonl is what is to be converted"),
                (("--to", "chrome-trace", "-o", "no/folder", "journal.jsonl"), 1, b"No such file"),
                (("--to", "csv", "journal.jsonl"), 2, b"--to"), (("journal.jsonl",), 2, b"--to")):
            with self.subTest(words=words):
                done = ctl("convert", *words, cwd=self.folder)
                self.assertEqual((done.returncode, done.stdout), (code, b""), done.stderr)
                self.assertIn(said, done.stderr)
        self.assertEqual({path.name: path.read_text() for path in self.folder.iterdir()},
                         {"journal.jsonl": "no record\n", "old": "as it was"})


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[4:]], verbosity=2)
