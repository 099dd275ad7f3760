# SPDX-License-Identifier: Apache-2.0
"""goodput_test.py ELASTRUN ELASTRUNCTL VECTORS: accounts of jobs from the files that they leave."""
from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from programs import CTL, ENVIRONMENT, LIBRARY, TRAINER, Programs

VECTORS = json.loads(Path(sys.argv[3]).read_text())
# As ml-goodput-measurement's users have it, with a crash in step 3 and a resume at step 2.
RECORDED = """
import os, sys, time
from elastrun.goodput import GoodputRecorder
rank, again = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"] != "0"
recorder = GoodputRecorder("night", "log", logging_enabled=rank == "0")
recorder.record_job_start_time()
recorder.record_tpu_init_start_time()
time.sleep(0.2)
recorder.record_tpu_init_end_time()
recorder.record_training_preparation_start_time()
time.sleep(0.1)
recorder.record_training_preparation_end_time()
for step in range(2 if again else 0, 6):
    recorder.record_step_start_time(step)
    time.sleep(0.15)
    if step == 3 and not again and rank == "0": sys.exit(7)  # else rank 1 may cut its step short
    recorder.record_data_loading_start_time()
    time.sleep(0.05)
    recorder.record_data_loading_end_time()
recorder.record_custom_badput_event_start_time(None, "eval")
time.sleep(0.3)
recorder.record_custom_badput_event_end_time(None, "eval")
recorder.record_job_end_time()
"""


def lines_of(name: str) -> str:
    (one,) = (s for s in VECTORS["scenarios"] if s["name"] == name)
    return "".join(json.dumps(entry) + "\n" for entry in one["entries"])


class Goodput(Programs):
    def told(self, *options: str, script: str = TRAINER) -> tuple[Path, dict, list[dict]]:
        """The journal of a job, and what its report says of goodput and restarts."""
        journal = self.run_job(*options, script=script)
        report: dict[str, Any] = json.loads((self.folder / "report.json").read_text())
        return journal, report["goodput"], report["restart_waterfall"]

    def test_a_log_folder_with_one_run_stands_for_its_journal(self) -> None:
        logs = self.folder / "logs"
        for run in ("a", "b"):
            (logs / run).mkdir(parents=True)
        self.assertIn(f"no journal.jsonl in {logs}, nor", self.goodput("report", logs).stderr)
        (logs / "a/journal.jsonl").write_text(lines_of("s19_two_complete_runs"))
        both = [self.account(path) for path in (logs, logs / "a")]
        self.assertEqual(both[0], both[1])
        (logs / "b/journal.jsonl").touch()
        for command in ("report", "watch"):
            done = self.goodput(command, logs)
            self.assertEqual(done.returncode, 1)
            self.assertIn(f"holds 2 runs; name one or more of {logs}/a, {logs}/b", done.stderr)

    def test_a_journal_tells_what_the_report_told(self) -> None:
        journal, told, restarts = self.told()
        account = self.account(journal)
        (told_path,), (path,) = restarts, account["restart_waterfall"]
        self.assertEqual((path["cause"], path["last_step"], path["first_step"]),
                         ("rank 0 ended with exit code 7", 4, 3))
        self.assertTrue(path["caught_up"])
        self.assertAlmostEqual(sum(path["stages_s"].values()), path["total_s"], places=6)
        for stage, seconds in told_path["stages_s"].items():
            self.assertAlmostEqual(path["stages_s"][stage], seconds, delta=0.3, msg=stage)
        for stage in ("stop", "spawn", "first_step", "redo"):
            self.assertGreater(path["stages_s"][stage], 0, stage)
        self.assertRegex(self.goodput("report", journal).stdout,
                         r"restart at +exit +detect .*\n.*\n +rank 0 ended with exit code 7\n")
        self.assertEqual((account["restarts"], account["last_step"], account["loss_known"]),
                         (1, 6, True))
        self.assertEqual(account["last_checkpoint"], told["last_checkpoint"])
        for bucket, seconds in told["buckets_s"].items():
            # Records are written a little after what they tell.
            self.assertAlmostEqual(account["buckets_s"][bucket], seconds, delta=0.3, msg=bucket)
        self.assertGreater(account["buckets_s"]["lost"], 0.09)  # steps 3 and 4
        self.assertLess(account["buckets_s"]["queued"], 0.001)

    def test_two_jobs_are_reported_one_after_the_other(self) -> None:
        journal = self.run_job()
        log = self.folder / "log"
        log.write_text(lines_of("s15_resume_at_next_step"))
        both = self.goodput("report", "--json", journal.parent, log)
        self.assertEqual((both.returncode, both.stderr), (0, ""))
        self.assertEqual([json.loads(line) for line in both.stdout.splitlines()],
                         [self.account(journal), self.account(log)])
        text = self.goodput("report", journal, log).stdout
        self.assertRegex(text, r'(?s)^job "night", .*\n\njob "s15_resume')
        page = self.goodput("report", f"--html={self.folder}/page", journal, log)
        self.assertEqual(page.returncode, 2)
        self.assertIn("of one job", page.stderr)

    def test_bounds_and_named_phases_stand_wherever_goodput_is_told(self) -> None:
        script = """import elastrun, os, sys, time
for step in range(8):
    time.sleep(0.05)
    elastrun.step(step)
    if step == 5: elastrun.channel.offer(b'{"kind":"checkpoint","step":-2}')  # as hooks do
with elastrun.phase("logging"): time.sleep(0.1)
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0": sys.exit(3)
"""
        journal, told, _ = self.told(script=script)
        account = self.account(journal)
        for one in (told, account):
            self.assertIsNone(one["goodput"])
            self.assertTrue(0 < one["goodput_at_least"] < one["goodput_at_most"] < 1)
            self.assertEqual(list(one["custom_s"]), ["logging"])
            self.assertAlmostEqual(one["custom_s"]["logging"], one["buckets_s"]["custom"], 6)
        text = self.goodput("report", journal).stdout
        self.assertRegex(text, r"goodput between \S+ % and \S+ % of ")
        self.assertRegex(text, r"\n  custom +\S+ m?s .*\n    logging +\S+ m?s\n")
        page = self.folder / "page.html"
        self.goodput("report", "--html", page, journal)
        self.assertRegex(page.read_text(), r'\["goodput","between \S+ % and \S+ %"\]')

    def test_a_journal_that_is_named_twice_counts_once(self) -> None:
        journal = self.run_job()
        alias = self.folder / "alias.jsonl"
        alias.symlink_to(journal)
        self.assertEqual(self.account(journal, journal, alias),
                         self.account(journal))

    def test_two_submissions_and_a_torn_tail(self) -> None:
        first = self.run_job()
        second = self.run_job()
        torn = first.read_text().rsplit("\n", 2)[0][:-5]
        first.write_text(torn)
        account = self.account(second, first)
        self.assertEqual((account["submissions"], account["skipped"]), (2, 1))
        self.assertEqual(account["restarts"], 3)
        text = self.goodput("report", first, second).stdout
        self.assertIn('submitted 2 times', text)
        self.assertIn("(left out: 1 lines that are not records)", text)

    def test_a_job_that_is_submitted_again_goes_on_with_its_file(self) -> None:
        file = self.folder / "night.jsonl"
        self.run_job("--metrics=jsonl:night.jsonl")
        first = self.account(file)
        self.assertEqual(first["submissions"], 1)
        with file.open("a") as torn:  # the machine crashed in the middle of a line
            torn.write('{"time":1.5,"mono_ns":')
        self.run_job("--metrics=jsonl:night.jsonl")
        both = self.account(file)
        self.assertEqual((both["submissions"], both["skipped"], both["restarts"]), (2, 1, 3))
        self.assertGreater(both["buckets_s"]["queued"], 0)
        self.assertGreater(both["elapsed_s"], first["elapsed_s"])

    def test_a_torn_first_line_costs_its_own_record_alone(self) -> None:
        journal = self.run_job()
        whole = self.account(journal)
        torn = self.folder / "torn.jsonl"
        torn.write_text(journal.read_text()[40:])
        account = self.account(torn)
        self.assertEqual((account["skipped"], account["submissions"]), (1, 1))
        for known in ("restarts", "last_step", "loss_known"):
            self.assertEqual(account[known], whole[known], known)
        self.assertAlmostEqual(account["buckets_s"]["productive"],
                               whole["buckets_s"]["productive"], places=6)
        again = self.run_job()  # whose name is known goes on with it
        self.assertEqual(self.account(again, torn)["submissions"], 2)

    def test_a_name_that_turns_the_line_round_does_not_reach_the_terminal(self) -> None:
        journal = self.run_job("--rdzv-id=a\u202eb\u0085c")
        text = self.goodput("report", journal).stdout
        self.assertIn('job "abc"', text)

    def test_steps_are_read_the_same_however_they_are_written(self) -> None:
        lines = [json.loads(line) for line in lines_of("s15_resume_at_next_step").splitlines()]
        account = self.account("-", text=lines_of("s15_resume_at_next_step"))
        for write in (
                lambda one: json.dumps(one, separators=(",", ":")),
                lambda one: json.dumps(dict(reversed(one.items()))),
                lambda one: json.dumps(one | {"insertId": "7"}),  # by the tree of JSON
                lambda one: json.dumps(one["payload"] | {"log_time": one["log_time"]})):
            text = "".join(write(one) + "\n" for one in lines)
            self.assertEqual(self.account("-", text=text), account)
        for odd in ('"step_count":1.5', '"step_count":1e3', '"step_count":"1"', '"x":{},'
                    '"step_count":1', '"step_count":1,"step_count":2', '"step_count":9e30',
                    '"payload":7,"step_count":1', '"step_count":1,"payload":{"job_name":"j"}'):
            line = '{"job_name":"j","step_start_time":5,' + odd + "}"
            two = ['{"job_name":"j","job_start_time":0}', line]
            plain = self.account("-", text="\n".join(two))
            tree = self.account("-", text="\n".join(two).replace('"j"', '"\\u006a"'))
            self.assertEqual(plain, tree, odd)

    def test_an_account_that_nobody_gets_is_an_error(self) -> None:
        log = self.folder / "log"
        log.write_text(lines_of("s15_resume_at_next_step"))
        with open("/dev/full", "w") as out:
            got = subprocess.run([CTL, "goodput", "report", log], stdout=out,
                                 stderr=subprocess.PIPE, text=True, timeout=60, env=ENVIRONMENT,
                                 check=False)
            self.assertEqual(got.returncode, 1)
            self.assertIn("No space left on device", got.stderr)

    def test_a_log_of_the_reference_is_answered_truly_and_compatibly(self) -> None:
        account = self.account("--compatible", "-", text=lines_of("s15_resume_at_next_step"))
        self.assertAlmostEqual(account["goodput"], 30 / 140, places=6)
        self.assertAlmostEqual(account["compatible"]["goodput_percent"], 96.42857142857143)
        self.assertEqual(account["restarts"], 1)
        bare = "".join(json.dumps(json.loads(line)["payload"]) + "\n"
                       for line in lines_of("s15_resume_at_next_step").splitlines())
        self.assertEqual(self.account("-", text=bare)["buckets_s"], account["buckets_s"])
        text = self.goodput("report", "-", text=lines_of("s19_two_complete_runs")).stdout
        self.assertIn("goodput 33.3 % of 1 min 30 s", text)

    def test_a_recorder_in_the_workers_is_in_summary_journal_and_account(self) -> None:
        journal, told, _ = self.told("--nproc-per-node=2", script=RECORDED)
        account = self.account("--compatible", journal)
        for of in (told, account):
            self.assertEqual((of["restarts"], of["last_step"], of["loss_known"]), (1, 5, True))
            seconds = of["buckets_s"]
            for bucket, least in (("device_init", 0.4), ("preparation", 0.2),
                                  ("data_loading", 0.35), ("evaluation", 0.3), ("lost", 0.3),
                                  ("productive", 0.85)):
                self.assertGreater(seconds[bucket], least * 0.95, bucket)
            self.assertAlmostEqual(sum(seconds.values()), of["elapsed_s"], places=6)
        for bucket, seconds in told["buckets_s"].items():
            self.assertAlmostEqual(account["buckets_s"][bucket], seconds, delta=0.3,
                                   msg=bucket)
        self.assertEqual(account["lost"], 0)
        self.assertEqual(account["compatible"]["disruptions"], 1)
        self.assertEqual(account["compatible"]["max_productive_step"], 5)
        self.assertGreater(account["compatible"]["badput_s"]["TPU_INITIALIZATION"], 0.39)
        self.assertIn("device_init", self.said)

    def test_a_recorder_without_a_launcher_writes_a_file_that_is_read(self) -> None:
        code = ("from datetime import datetime, timezone\n"
                "from elastrun.goodput import GoodputRecorder\n"
                "def at(s): return datetime.fromtimestamp(1_700_000_000 + s, timezone.utc)\n"
                "one = GoodputRecorder('night', 'log', True)\n"
                "one.record_job_start_time(at(0))\n"
                "for i in range(5): one.record_step_start_time(i, at(5 + 3 * i))\n"
                "one.record_job_end_time(at(20))\n")
        subprocess.run([sys.executable, "-c", code], cwd=self.folder, check=True, timeout=60,
                       env=ENVIRONMENT | LIBRARY)
        log = self.folder / "night.goodput.jsonl"
        account = self.account("--compatible", log)
        self.assertAlmostEqual(account["goodput"], 0.75)
        self.assertAlmostEqual(account["compatible"]["goodput_percent"], 75)
        self.assertEqual((account["job"], account["elapsed_s"], account["lost"]),
                         ("night", 20, 0))
        with log.open("a") as file:
            file.write('{"job_name":"night","lost_entries":3,"lost_time":1700000020}\n')
        text = self.goodput("report", log).stdout
        self.assertIn("3 that the recorder lost", text)

    def test_what_cannot_be_answered_is_said(self) -> None:
        for words, text, code, said in (
                (("report",), "", 2, "files is required"),
                (("report", "/nonexistent"), "", 1, "cannot read /nonexistent: No such file"),
                (("report", "-"), "", 1, "no job starts in what was given"),
                (("report", "-"), "no record\n", 1, "no job starts in what was given"),
                (("report", "-"), lines_of("s08_no_job_start"), 1, "has no job_start_time"),
                (("report", "--compatible", "-"), '{"kind":"event","time":1,"name":"job.started",'
                 '"scope":"elastrun.agent"}\n', 1, "needs a log of ml-goodput-measurement")):
            with self.subTest(words=words, text=text[:40]):
                got = self.goodput(*words, text=text)
                self.assertEqual((got.returncode, got.stdout), (code, ""), got.stderr)
                self.assertIn(said, got.stderr)

    def test_what_an_entry_lacks_or_has_too_much_of(self) -> None:
        start = '{"job_name":"j","job_start_time":0}'
        for lines, skipped, others, lost in (
                (['{"job_name":"j","step_count":1,"step_start_time":[1]}'], 1, 0, 0),
                (['{"job_name":"j","custom_badput_event_start_time":1,'
                  '"custom_badput_event_type":["x"]}'], 1, 0, 0),  # no text, whatever is in it
                (['{"job_name":"j","x":{"a":[1]}}', '{"payload":{"job_name":["j"]}}'], 0, 1, 0),
                (['{"payload":{"step_count":1,"step_start_time":4}}'], 0, 1, 0),  # of no name
                (['{"job_name":"j","lost_entries":3.0}', '{"job_name":"j","lost_entries":2}',
                  '{"job_name":"j","lost_entries":-2}'], 0, 0, 5)):
            for text in ("\n".join([start, *lines]), "\n".join([start, *lines]).replace(":", ": ")):
                got = self.account("-", text=text)
                self.assertEqual((got["skipped"], got["other_jobs"], got["lost"]),
                                 (skipped, others, lost), text)
        nameless = '{"payload":{"job_start_time":0}}\n{"payload":{"job_end_time":5}}\n'
        self.assertEqual(self.account("-", text=nameless)["elapsed_s"], 5)  # no other name came
        self.assertEqual(self.account("-", text=nameless + start)["other_jobs"], 0)

    def test_what_a_calculator_takes_of_journals_and_logs(self) -> None:
        log = self.folder / "log"
        recorder = '{"scope":"elastrun.goodput","name":'
        log.write_text("\n".join((
            '{"job_name":"j","job_start_time":0}',
            '{"payload":{"step_count":0,"step_start_time":1}}',
            '{"job_name":"k","lost_entries":7}', '{"job_name":["j"]}', '{"scope":"elastrun.agent"}',
            recorder + '"lost","attributes":{"count":3}}',
            recorder + '"lost","attributes":{"count":2}}',
            recorder + '"left_out","attributes":{"count":4}}', recorder + '"step"}',
            recorder + '"step","attributes":{"step_count":"x","step_start_time":1}}',
            recorder + '"step","attributes":{"custom_badput_event_start_time":1,'
            '"custom_badput_event_type":["x"]}}', '{"payload":7}', "[]", "torn")) + "\n")
        save = {"job_name": "j", "event_type": "save", "step": 3, "nested": {"a": [1, None]}}
        questions = [json.dumps(save), '{"ask":"checkpoints"}', '{"ask":"job","now":9}',
                     '{"ask":"without","now":9,"spans":[]}', '{"ask":"window","begin":-1,"end":9}']
        told = [json.loads(line) for line in self.goodput(
            "calculate", "--job=j", log, text="\n".join(questions) + "\n").stdout.splitlines()]
        self.assertEqual({(one["skipped"], one["lost"]) for one in told}, {(11, 5)})
        self.assertEqual(told[0]["entries"], [save])
        common = {"percent", "percents", "max_step", "total_s", "disruptions", "skipped", "lost",
                  "began_again"}
        for answer, more in zip(told[1:], ("productive_s badput_s deviation_s ideal_s",
                                           "productive_s badput_s excluded_s", "")):
            self.assertEqual(set(answer), common | set(more.split()))

    def test_hostile_lines_are_counted_and_cost_nothing_else(self) -> None:
        good = lines_of("s01_clean_run")
        bad = ['{"job_name":"s01_clean_run","step_count":"x","step_start_time":1}', "[" * 10000,
               '{"job_name":"s01_clean_run","step_start_time":1e999,"step_count":1}', "\x00\xff",
               '{"job_name":"another","job_start_time":3}', '{"payload": 7}', "x" * (2 << 20)]
        account = self.account("-", text=good + "\n".join(bad) + "\n")
        self.assertAlmostEqual(account["goodput"], 0.75)
        self.assertEqual((account["skipped"], account["other_jobs"]), (5, 2))

    def test_times_that_no_clock_shows_are_bounded(self) -> None:
        log = "".join(json.dumps({"job_name": "j", **entry}) + "\n" for entry in (
            {"job_start_time": 1e300}, {"step_count": 1, "step_start_time": 1.5e300},
            {"job_end_time": 2e300}))
        done = self.goodput("report", "--html", "-", "-", text=log)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        # The last day that nanoseconds in 64 bits can tell, and none of 1677, the first year.
        self.assertRegex(done.stdout, r'"subtitle":"2261-[0-9-]+ [0-9:]+ UTC to 2262-04-11 ')
