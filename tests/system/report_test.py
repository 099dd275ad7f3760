#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a person, a program and the shell are told at the end."""
import json
import unittest

from harness import Job, main, stub


class Reports(unittest.TestCase):
    def test_the_verdict_names_who_was_first_and_why(self) -> None:
        steps = ("only=2", "complain=Traceback (most recent call last):",
                 "complain=ValueError: boom", "exit=7", "all", "stay")
        with Job("--nproc-per-node=4", *stub(*steps)) as job:
            self.assertEqual(job.end(), 1)
            self.assertIn("rank 2 failed first: it ended with exit code 7 (ValueError: boom)",
                          job.errors())
            self.assertIn("ranks 0, 1, 3: stopped by elastrun", job.errors())
            self.assertIn("    | ValueError: boom", job.errors())

    def test_a_crash_is_named_by_its_signal(self) -> None:
        with Job(*stub("die=SEGV")) as job:
            self.assertEqual(job.end(), 1)
            self.assertIn("was killed by SIGSEGV", job.errors())

    def test_the_report_for_machines(self) -> None:
        with Job("--nproc-per-node=2", "--max-restarts=1", "--report=report.json",
                 *stub("only=1", "exit=7", "all", "stay")) as job:
            self.assertEqual(job.end(), 1)
            report = json.loads((job.folder / "report.json").read_text())
            self.assertEqual(report["exit_code"], 1)
            self.assertEqual(report["ending"], "workers_failed")
            self.assertEqual(report["culprit"]["rank"], 1)
            self.assertEqual(report["culprit"]["exit_code"], 7)
            self.assertEqual(len(report["attempts"]), 2)
            self.assertEqual(report["restarts"], 1)
            buckets = report["goodput"]["buckets_s"].values()
            self.assertAlmostEqual(sum(buckets), report["goodput"]["elapsed_s"], places=6)

    def test_the_report_of_a_success(self) -> None:
        with Job("--report=report.json", *stub("exit=0")) as job:
            self.assertEqual(job.end(), 0)
            report = json.loads((job.folder / "report.json").read_text())
            self.assertTrue(report["succeeded"])
            self.assertIsNone(report["culprit"])
            self.assertEqual(report["failures"], [])

    def test_the_workers_own_code_if_asked_for(self) -> None:
        for steps, code in (("exit=7", 7), ("die=KILL", 137), ("exit=0", 0)):
            with self.subTest(steps), Job("--exit-code=worker", *stub(steps)) as job:
                self.assertEqual(job.end(), code)

    def test_a_report_that_cannot_be_written_does_not_change_the_end(self) -> None:
        with Job("--report=/nowhere/report.json", *stub("exit=0")) as job:
            self.assertEqual(job.end(), 0)
            self.assertIn("/nowhere/report.json", job.errors())

    def test_a_dry_run_starts_nothing(self) -> None:
        with Job("--dry-run", "--nproc-per-node=2", *stub("say=no", "$local_rank")) as job:
            self.assertEqual(job.end(), 0)
            self.assertIn("say=no 1", job.output())
            self.assertIn("LOCAL_RANK=1", job.output())
            self.assertEqual(list(job.temporary.iterdir()), [])


if __name__ == "__main__":
    main()
