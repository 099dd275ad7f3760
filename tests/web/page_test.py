# SPDX-License-Identifier: Apache-2.0
"""The page of --http in a real Chromium, while a job runs, restarts and ends.

    page_test.py ELASTRUN STUB_WORKER [unittest's arguments]

With ELASTRUN_SCREENSHOTS=FOLDER it leaves a picture of each size there, for somebody to look at.
"""
from __future__ import annotations

import os
import unittest
from pathlib import Path

import browser
from harness import PACKAGE, Job

TRAIN = """
import os, sys, time
import elastrun
rank, attempt = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
print(f"hello from rank {rank}, attempt {attempt}, <b>not bold</b>", flush=True)
print("a warning", file=sys.stderr, flush=True)
n = 0
while not os.path.exists("go" + attempt):
    n += 1
    elastrun.step(n)
    elastrun.metrics.put_metric("loss", 1 / n, "model")
    time.sleep(0.05)
if attempt == "0" and rank == "1":
    print("why it failed", flush=True)
    sys.exit(3)
"""
STATES = "[...document.querySelectorAll('#workers tr')].map(r => r.cells[1].innerText).join()"


class Page(unittest.TestCase):
    def start(self) -> tuple[Job, str]:
        job = self.enterContext(Job(
            "--http=0", "--nproc-per-node=2", "--max-restarts=2", "--log-dir=logs", script=TRAIN,
            env={"PYTHONPATH": PACKAGE}))
        return job, job.page()

    def keep_picture(self, page: browser.Browser, name: str) -> None:
        folder = os.environ.get("ELASTRUN_SCREENSHOTS")
        if folder:
            page.screenshot(Path(folder) / f"{name}.png")

    def test_workers_restarts_and_output_appear_without_a_reload(self) -> None:
        job, address = self.start()
        with browser.Browser(1200, 800) as page:
            page.open(address)
            page.wait_for(f"{STATES} === 'running,running'")
            page.wait_for("document.querySelector('#workers tr').cells[2].innerText > 3")
            page.wait_for("document.querySelectorAll('#charts svg').length >= 4")
            for name in ("steps/s", "goodput", "loss"):
                page.wait_for(f"at('measures').innerText.includes('{name}')")
            page.wait_for("at('output').innerText.includes('hello from rank 0, attempt 0')")
            page.wait_for("at('output').innerText.includes('<b>not bold</b>')")
            page.wait_for("at('output').querySelector('.err').innerText.includes('a warning')")
            page.wait_for("at('restarts').innerText === 'none so far'")
            page.value("window.same = true")
            (job.folder / "go0").touch()
            page.wait_for("at('restarts').innerText.includes('rank 1 ended with exit code 3')")
            # The worker that failed is selected, without a click.
            page.wait_for("at('output').innerText.includes('hello from rank 1, attempt 1')")
            page.wait_for(f"{STATES} === 'running,running'")
            for least, most, text in ((0.333, 0.867, "33–87 %"), (0, 0.867, "≤ 87 %"),
                                      (0.998, 1, "100 %")):
                self.assertEqual(page.value(
                    "goodput({goodput: null, last_step: 5, "
                    f"goodput_at_least: {least}, goodput_at_most: {most}}})"), text)
            self.keep_picture(page, "wide")
            (job.folder / "go1").touch()
            page.wait_for("at('phase').innerText === 'succeeded'")
            self.assertEqual(job.end(), 0, job.errors())
            page.wait_for("at('live').innerText.startsWith('ended ')")
            self.assertEqual(page.value("at('phase').innerText"), "succeeded")
            self.assertEqual(page.value(STATES), "succeeded,succeeded")
            self.assertIn("report.json", page.value("at('report').innerText"))
            self.assertTrue(page.value("at('alarm').hidden"))
            self.keep_picture(page, "ended")
            self.assertTrue(page.value("window.same"), "it was loaded again")
            self.assertEqual({one.removeprefix(address) for one in page.asked}, {"", "events"})
            told = [one for one in page.said if "ERR_CONNECTION" not in one
                    and "ERR_INCOMPLETE" not in one]
            self.assertEqual(told, [])

    def test_it_fits_on_a_phone_and_follows_its_colours(self) -> None:
        job, address = self.start()
        with browser.Browser(390, 844, dark=True) as page:
            page.open(address)
            page.wait_for(f"{STATES} === 'running,running'")
            page.wait_for("document.querySelectorAll('.charts svg').length >= 6")
            self.assertEqual(page.value("document.documentElement.scrollWidth"), 390)
            self.assertEqual(page.value(
                "[...document.querySelectorAll('.card')].filter(c => "
                "c.getBoundingClientRect().right > 391 || c.scrollWidth > c.clientWidth + 1).length"
            ), 0)
            self.assertEqual(page.value("getComputedStyle(document.body).backgroundColor"),
                             "rgb(14, 17, 22)")
            self.keep_picture(page, "phone")
            self.assertEqual(page.cut("header, .chart span, .chart b, .scroll"), {})
        for attempt in "01":
            (job.folder / f"go{attempt}").touch()
        self.assertEqual(job.end(), 0, job.errors())

    def test_a_page_that_was_left_open_finds_the_job_again(self) -> None:
        job, address = self.start()
        with browser.Browser(800, 600) as page:
            page.open(address)
            page.wait_for(f"{STATES} === 'running,running'")
            # The charts of a page that was opened later begin with the job, not empty.
            page.wait_for("(history.get('cpu') || []).length >= 2")
            page.value("events.close(), events.dispatchEvent(new Event('error'))")
            page.wait_for("at('live').innerText.startsWith('no answer since')")
            page.open(address + "?again")
            page.wait_for("at('live').innerText === 'live' && history.size > 0")
            self.assertGreaterEqual(page.value("history.get('cpu').length"), 2)
