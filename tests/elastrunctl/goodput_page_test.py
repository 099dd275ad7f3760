# SPDX-License-Identifier: Apache-2.0
"""The page of `elastrunctl goodput report --html` in a real Chromium.

    goodput_page_test.py ELASTRUN ELASTRUNCTL [unittest's arguments]

With ELASTRUN_SCREENSHOTS=FOLDER it leaves a picture of each page there, for somebody to look at.
"""
from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import subprocess
from pathlib import Path

import browser
from programs import ELASTRUN, ENVIRONMENT, LIBRARY, Programs

# Rank 1 is killed in step 33 and resumes at 20; its second start fails in step 52.
TRAINER = """
import os, sys, time, elastrun
attempt, rank = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), os.environ["RANK"]
for step in range((0, 20, 40)[attempt], 60):
    time.sleep(0.3 if step % 20 == 7 else 0.02)
    elastrun.step(step)
    if step % 20 == 19 and rank == "0": elastrun.checkpoint_done(step)
    if attempt == 0 and step == 33 and rank == "1": os.kill(os.getpid(), 9)
    if attempt == 1 and step == 52: sys.exit(7)
"""
HOSTILE = "</title><script>document.title='owned'</script>\"' onload=alert(1) &amp; \u202eevil"
CAUSE = "<img src=x onerror=alert(1)> {0} <!--tiles-->"
TEXT = "document.documentElement.innerText"


def record(name: str, at: float, scope: str = "elastrun.agent", **more: object) -> dict:
    of = {"value": more.pop("value")} if "value" in more else {}
    kind = "sample" if of else "event"
    return {"time": 1_700_000_000 + at, "mono_ns": int(at * 1e9), "kind": kind, "scope": scope,
            "name": name, **of, "attributes": more}


def hostile_job() -> list[dict]:
    """Two submissions, with a restart whose cause is written by an enemy."""
    def phase(name: str, at: float) -> dict:
        return record("phase", at, phase=name)

    def steps(first: int, last: int, at: float) -> list[dict]:
        return [record("step", at + 2 * i, "elastrun.worker", value=step)
                for i, step in enumerate(range(first, last + 1))]
    return [record("job.started", 0, run_id=HOSTILE), phase("starting", 1), phase("running", 2),
            *steps(1, 5, 4), phase("settling", 13), record("restart", 14, cause=CAUSE),
            phase("stopping", 14), record("worker.ended", 14, exit_code=1),
            record("group.gone", 15), phase("joining", 15), phase("starting", 16),
            phase("running", 17), *steps(3, 7, 20), phase("ended", 29),
            record("job.ended", 30, succeeded=False), record("goodput", 31),
            record("job.started", 60, run_id=HOSTILE), phase("starting", 61), phase("running", 62),
            *steps(8, 9, 64), record("job.ended", 68, succeeded=True)]


class GoodputPage(Programs):
    def page(self, *journals: str) -> tuple[str, dict]:
        """The address of the page, and the account of the same files."""
        done = self.goodput("report", "--html", "page.html", *journals)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""))
        return (self.folder / "page.html").as_uri(), self.account(*journals)

    def write(self, name: str, records: list[dict]) -> str:
        (self.folder / name).write_text("".join(json.dumps(one) + "\n" for one in records))
        return name

    def open(self, address: str, width: int, dark: bool = False) -> browser.Browser:
        page = self.enterContext(browser.Browser(width, 900, dark))
        page.open(address)
        page.wait_for("!!document.querySelector('footer')")
        if folder := os.environ.get("ELASTRUN_SCREENSHOTS"):
            page.screenshot(Path(folder) / f"{self.id().split('.')[-1]}-{width}.png", whole=True)
        return page

    def check_still(self, page: browser.Browser, address: str) -> None:
        """Nothing was asked for, nothing complained, and only the page's own script is there."""
        self.assertEqual((page.asked, page.said), ([address], []))
        self.assertEqual(page.value("[...document.querySelectorAll('script,img,iframe')].map("
                                    "one => one.id || one.localName)"), ["data", "script"])

    def check_numbers(self, page: browser.Browser, account: dict) -> None:
        rows = page.value("[...document.querySelectorAll('#buckets tr')].map("
                          "r => [r.cells[0].innerText, Number(r.cells[2].innerText)])")
        told = {name: s for name, s in account["buckets_s"].items() if s > 0}
        self.assertEqual([name for name, _ in rows], sorted(told, key=told.get, reverse=True))
        for name, seconds in rows:
            self.assertAlmostEqual(seconds, told[name], delta=0.00051, msg=name)
        # Areas of the timeline are times.
        areas = dict(page.value(
            "Object.entries([...document.querySelectorAll('svg.time rect')].reduce((sums, r) => {"
            "const of = r.className.baseVal.slice(2), box = ['width', 'height'].map("
            "n => Number(r.getAttribute(n))); sums[of] = (sums[of] || 0) + box[0] * box[1];"
            "return sums }, {}))"))
        for name, seconds in told.items():
            self.assertAlmostEqual(areas[name] / 60_000, seconds / account["elapsed_s"],
                                   delta=0.002, msg=name)

    def test_a_job_with_crashes_is_shown_as_the_account_says(self) -> None:
        (self.folder / "train.py").write_text(TRAINER)
        subprocess.run([ELASTRUN, "--nproc-per-node=2", "--max-restarts=2", "--log-dir=logs",
                        "train.py"], cwd=self.folder, timeout=120, check=True,
                       capture_output=True, env=ENVIRONMENT | LIBRARY)
        (journal,) = self.folder.glob("logs/*/journal.jsonl")
        address, account = self.page(str(journal))
        page = self.open(address, 1200)
        self.check_still(page, address)
        self.check_numbers(page, account)
        self.assertEqual(account["restarts"], 2)
        text = str(page.value(TEXT))
        report = self.goodput("report", str(journal)).stdout
        for share in re.findall(r"\S+ %(?=  )", report):  # as there, they add up to 100.0
            self.assertIn(share, text)
        for cause in ("rank 1 was killed by SIGKILL", "ended with exit code 7"):
            self.assertIn(cause, text)
        # The job has no name but a random run id: the script's is the page's.
        self.assertEqual(page.value("document.querySelector('h1').textContent"), "train")
        self.assertIn(f"run id {account['job']}", text)
        # The steps of 0.3 s are cut off, and marked; the axes have numbers.
        self.assertGreater(page.value("document.querySelectorAll('.clips i').length"), 0)
        self.assertRegex(page.value("document.querySelector('.clips i').title"),
                         r"^step \d+: \d")
        self.assertGreater(page.value("document.querySelectorAll('.plot span').length"), 1)
        self.assertRegex(text, r"step \d+")
        self.assertEqual(page.value("document.querySelectorAll('svg.time line.restart').length"), 2)
        self.assertEqual(page.value("document.querySelectorAll('#disruptions .fall').length"), 2)
        self.assertEqual(page.value("document.querySelectorAll('.fall .bar').length"), 2)
        # How far rank 0 came until it was stopped is chance.
        self.assertEqual(page.value(
            "[...document.querySelectorAll('#starts tr')].map("
            "r => r.cells[0].innerText + ': ' + r.cells[3].innerText.split(' ')[0])"),
            ["1: 0", "2: 20", "3: 40"])
        # Three starts are three curves; the table behind has the long step.
        self.assertEqual(page.value("document.querySelectorAll('svg.steps path.area').length"), 3)
        longest = page.value("Math.max(...[...document.querySelectorAll('#steps tr')].map("
                             "r => parseFloat(r.cells[4].textContent)))")
        self.assertGreater(longest, 150)  # news of it may come late
        self.assertEqual(page.value(
            "[...document.querySelectorAll('svg')].filter(s => s.getAttribute('role') !== 'img' || "
            "s.getAttribute('aria-labelledby').split(' ').some(id => "
            "!document.getElementById(id).textContent)).length"), 0)

    def test_names_and_causes_of_enemies_are_text(self) -> None:
        address, account = self.page(self.write("journal.jsonl", hostile_job()))
        self.assertEqual(account["job"], HOSTILE)
        page = self.open(address, 1200)
        self.check_still(page, address)
        self.check_numbers(page, account)
        clean = HOSTILE.replace("\u202e", "")
        self.assertEqual(page.value("document.querySelector('h1').textContent"), clean)
        self.assertEqual(page.value("document.title"), "Goodput of " + clean)
        rows = page.value("[...document.querySelectorAll('#disruptions .fall')].map("
                          "r => [r.id, r.querySelector('.cause').innerText])")
        self.assertEqual(rows[0], ["r1", CAUSE])
        self.assertEqual(rows[1], ["s2", "submitted again: the one before had failed, "
                                         "30.0 s earlier"])
        self.assertEqual(
            page.value("document.querySelectorAll('svg.time line.submission').length"), 1)
        # Steps 3 to 5 and what had begun then; and what the end cut off.
        lost = page.value("[...document.querySelectorAll('svg.time .b-lost')].map("
                          "r => ['x', 'width'].map(n => 0.068 * r.getAttribute(n)))")
        self.assertEqual([[round(number, 3) for number in one] for one in lost], [[6, 7], [28, 1]])

    def test_a_job_of_a_single_record_has_a_page(self) -> None:
        address, _ = self.page(self.write("one", [record("job.started", 5, run_id="brief")]))
        page = self.open(address, 800)
        self.check_still(page, address)
        text = str(page.value(TEXT))
        self.assertIn("brief", text)
        self.assertIn("No time has passed.", text)
        self.assertNotRegex(text, r"(?i)nan|inf\b|0\.0 %")

    def test_it_fits_on_a_phone_in_the_dark_and_on_paper(self) -> None:
        address, _ = self.page(self.write("journal.jsonl", hostile_job()))
        page = self.open(address, 390, dark=True)
        self.assertEqual(page.value("document.documentElement.scrollWidth"), 390)
        self.assertEqual(page.value("getComputedStyle(document.body).backgroundColor"),
                         "rgb(14, 17, 22)")
        self.assertEqual(page.cut("header, .card, .card > .scroll"), {})
        page.media("print")
        self.assertEqual(page.value("getComputedStyle(document.body).backgroundColor"),
                         "rgb(255, 255, 255)")
        self.assertEqual(page.value("[...document.querySelectorAll('details')].filter("
                                    "d => d.offsetHeight > 0).length"), 0)

    def test_a_long_journal_makes_a_page_of_bounded_size(self) -> None:
        with (self.folder / "long").open("w") as file:
            for one in hostile_job()[:3]:
                file.write(json.dumps(one) + "\n")
            for step in range(60_000):
                seconds = 30 if step == 41_234 else 1
                file.write(json.dumps(record("step", 10 + 31 * step + seconds, "elastrun.worker",
                                             value=step)) + "\n")
        done = self.goodput("report", "--html", "-", "long")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertLess(len(done.stdout), 1_000_000)
        page = self.open(self.page("long")[0], 800)
        self.assertIn("1 min 00 s", page.value(  # 31 and 29 more: the longest is kept
            "[...document.querySelectorAll('#steps tr')].map(r => r.cells[4].textContent)"))
        for rows in ("#steps", "#stretches"):
            self.assertLess(page.value(f"document.querySelectorAll('{rows} tr').length"), 450)

    def test_the_policy_lets_this_script_run_and_no_other(self) -> None:
        root = Path(__file__).resolve().parents[2]
        text = (root / "apps/elastrunctl/goodput_page.html").read_text()
        script, = re.findall(r"<script>(.*?)</script>", text, re.S)
        script = re.sub(r"\n[ \t]+", "\n", script)  # as EmbedText.cmake has it
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        self.assertIn(f"script-src 'sha256-{digest}'\"", text)

    def test_a_journal_is_never_overwritten(self) -> None:
        journal = self.write("journal.jsonl", hostile_job())
        before = (self.folder / journal).read_bytes()
        for words, said in (((journal, journal), "exists and is not an HTML page"),
                            ((journal,), "files is required"),
                            (("no/folder/page.html", journal), "No such file")):
            with self.subTest(words=words):
                done = self.goodput("report", "--html", *words)
                self.assertNotEqual(done.returncode, 0)
                self.assertIn(said, done.stderr)
                self.assertEqual((self.folder / journal).read_bytes(), before)
        self.page(journal)
        self.page(journal)  # a page is replaced by a page
