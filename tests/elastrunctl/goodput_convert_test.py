# SPDX-License-Identifier: Apache-2.0
"""goodput_convert_test.py ELASTRUN ELASTRUNCTL VECTORS: what `goodput convert` writes, read by
those for whom it is."""
from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from programs import CTL, ENVIRONMENT, Programs

VECTORS = {s["name"]: s for s in json.loads(Path(sys.argv[3]).read_text())["scenarios"]}


class Convert(Programs):
    def log(self, name: str) -> Path:
        log = self.folder / "log"
        log.write_text("".join(json.dumps(entry) + "\n" for entry in VECTORS[name]["entries"]))
        return log

    def convert(self, form: str, *files: Path) -> bytes:
        done = subprocess.run([CTL, "goodput", "convert", "--to", form, *files], timeout=60,
                              capture_output=True, env=ENVIRONMENT)
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
        done = self.goodput("convert", "--to", "tensorboard", "-o", board, journal)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""))
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

    def test_a_log_of_the_reference_becomes_a_journal_with_the_same_report(self) -> None:
        for name, scenario in VECTORS.items():
            for bare in (False, True):
                with self.subTest(name=name, bare=bare):
                    entries = scenario["entries"]
                    log = self.folder / "log"
                    log.write_text("".join(json.dumps(e["payload"] if bare else e) + "\n"
                                           for e in entries))
                    self.check_journal(log)

    def test_what_is_wrong_with_a_log_is_counted_in_its_journal(self) -> None:
        log = self.log("s04_partial_restart")
        good = log.read_text().splitlines()
        at = VECTORS["s04_partial_restart"]["entries"][0]["log_time"]
        job = VECTORS["s04_partial_restart"]["entries"][0]["payload"]["job_name"]
        bad = ["torn {", "[1]", json.dumps({"job_name": "other", "job_start_time": at}),
               json.dumps({"job_name": job, "step_count": "x", "step_start_time": at}),
               json.dumps({"job_name": job, "step_count": 7, "step_start_time": 1e18}),
               json.dumps({"job_name": job, "lost_entries": 4, "lost_time": at,
                           "note": ["of", {"any": "depth"}], "said": "caf\u00e9 \"x\""}),
               json.dumps({"log_time": -3.5, "payload": json.loads(good[2])["payload"]})]
        log.write_text("\n".join(good[:3] + bad + good[3:] + good[5:8]) + "\n")
        account = self.check_journal(log)
        self.assertEqual((account["skipped"], account["other_jobs"], account["lost"]), (3, 1, 4))
        self.assertEqual(account["duplicates"], 4)

    def check_journal(self, log: Path) -> dict:
        """The account of the log, which is that of its journal and of the journal of that."""
        forms = ("--json", "--compatible")
        expected = [self.goodput("report", form, log) for form in forms]
        journal, again = self.folder / "converted.jsonl", self.folder / "again.jsonl"
        for source, target in ((log, journal), (journal, again)):
            done = self.goodput("convert", "--to", "journal", "-o", target, source)
            if expected[0].returncode != 0:
                self.assertEqual((done.returncode, done.stderr), (1, expected[0].stderr))
                return {}
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            for form, before in zip(forms, expected):
                told = self.goodput("report", form, target)
                self.assertEqual((told.returncode, told.stdout, told.stderr),
                                 (before.returncode, before.stdout, before.stderr))
        members = {"time", "mono_ns", "kind", "scope", "name"}
        for line in journal.read_text().splitlines():
            self.assertLessEqual(members, set(json.loads(line)))
        return json.loads(expected[0].stdout)

    def test_a_device_is_written_to_and_not_replaced(self) -> None:
        fifo = self.folder / "fifo"
        os.mkfifo(fifo)
        log = self.log("s01_clean_run")
        with subprocess.Popen(["cat", fifo], stdout=subprocess.PIPE) as reader:
            done = self.goodput("convert", "--to", "chrome-trace", "-o", fifo, log)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            self.check_trace(reader.stdout.read(), self.account(log))
        self.assertTrue(fifo.is_fifo())

    def test_what_cannot_be_converted_costs_nothing(self) -> None:
        journal = self.folder / "journal.jsonl"
        journal.write_text("no record\n")
        old = self.folder / "old"
        old.write_text("as it was")
        for words, code, said in (
                (("--to", "chrome-trace", "-o", "old", "journal.jsonl"), 1, "no job starts in"),
                (("--to", "chrome-trace", "-o", "journal.jsonl", "journal.jsonl"), 2,
                 "journal.jsonl is what is to be converted"),
                (("--to", "chrome-trace", "-o", "no/folder", "journal.jsonl"), 1, "No such file"),
                (("--to", "journal", "journal.jsonl"), 1, "no job starts in"),
                (("--to", "csv", "journal.jsonl"), 2, "--to"), (("journal.jsonl",), 2, "--to")):
            with self.subTest(words=words):
                done = self.goodput("convert", *words)
                self.assertEqual((done.returncode, done.stdout), (code, ""), done.stderr)
                self.assertIn(said, done.stderr)
        self.assertEqual({path.name: path.read_text() for path in self.folder.iterdir()},
                         {"journal.jsonl": "no record\n", "old": "as it was"})
