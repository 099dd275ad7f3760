# SPDX-License-Identifier: Apache-2.0
"""Restarts: counts, what stays of earlier attempts, and what must not come over from them."""
import json
import unittest

from harness import Job, stub


class Restarts(unittest.TestCase):
    def test_twenty_crashes_in_a_row(self) -> None:
        steps = ("env=TORCHELASTIC_RESTART_COUNT", "env=MASTER_PORT", "attempt=20", "exit=0", "all",
                 "only=1", "die=KILL", "all", "stay")
        with Job("--nproc-per-node=2", "--max-restarts=20", *stub(*steps)).ended() as job:
            counts = [int(n) for n in job.lines(r"^TORCHELASTIC_RESTART_COUNT=(\d+)")]
            self.assertEqual(sorted(set(counts)), list(range(21)))
            self.assertEqual(counts[-1], 20)
            job.nothing_left()

    def test_a_broken_error_file_costs_nothing_but_itself(self) -> None:
        script = ('printf "%s" "$0" > "$TORCHELASTIC_ERROR_FILE"; '
                  '[ "$TORCHELASTIC_RESTART_COUNT" = 1 ] && exit 0; exit 9')
        for text in ("", "{ not json", "[]", '{"message": null}', '{"message": {"x": 1}}'):
            with self.subTest(text), Job("--max-restarts=1", "--report=report.json", "--no-python",
                                         "sh", "-c", script.replace("$", "$$"), text) as job:
                self.assertEqual(job.end(), 0, job.errors())
        with Job("--report=report.json", "--no-python", "sh", "-c", script.replace("$", "$$"),
                 "{ not json").ended(1) as job:
            report = job.report()
            self.assertEqual(report["culprit"]["exit_code"], 9)
            self.assertIn("exitcode  : 9", job.errors())

    def test_the_verdict_says_what_a_flat_error_file_says(self) -> None:
        """Not in the form of an exception, and with an escape sequence that no terminal gets."""
        for said, shown in (("the disk is full", r"  reported  the disk is full\n"),
                            ("at \x1b[2Jnode 3\nmore", r"  reported  at [^\x1b\n]*node 3\n")):
            text = json.dumps({"message": said})
            with self.subTest(said), Job(*stub("error=" + text, "exit=3")).ended(1) as job:
                self.assertRegex(job.errors(), shown)
