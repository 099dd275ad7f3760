# SPDX-License-Identifier: Apache-2.0
"""--worker-lib: workers import the package, what they tell is in the journal, and what they last
did is in the report of their end. Hostile workers cost themselves only.
"""
from __future__ import annotations

import os
import sys
import tempfile
import unittest
from pathlib import Path

from harness import Job


class Reports(unittest.TestCase):
    def run_job(self, script: str, *options: str, code: int = 0, **env: str) -> Job:
        return self.enterContext(Job("--report=report.json", "--log-dir=logs", *options,
                                     script=script, env=env)).ended(code)


class WorkerLibrary(Reports):
    def test_unasked_nothing_of_the_environment_changes(self) -> None:
        script = "import os\nprint(os.environ.get('PYTHONPATH'), 'ELASTRUN_PAGE' in os.environ)\n"
        job = self.run_job(script, PYTHONPATH="/mine")
        self.assertEqual(job.output(), "/mine False\n")

    def test_an_import_without_the_package_names_the_option(self) -> None:
        job = self.run_job("import elastrun\n", code=1)
        self.assertIn("\n  next      --worker-lib lets workers import elastrun", job.errors())

    def test_recorder_calculator_and_monitor_of_one_worker_agree(self) -> None:
        script = """
import os, time
os.chdir(os.environ["FOLDER"])
from elastrun.goodput import GoodputCalculator, GoodputMonitor, GoodputRecorder
recorder = GoodputRecorder("night", "log", True)
recorder.record_job_start_time()
monitor = GoodputMonitor("night", "log", "board", 60, True, include_badput_breakdown=True)
monitor.start_goodput_uploader()
for step in range(10):
    recorder.record_step_start_time(step)
    time.sleep(0.02)
recorder.record_job_end_time()
calculator = GoodputCalculator("night", "log")
print(calculator.get_job_goodput()[2])
monitor.stop_goodput_uploader()
"""
        for where in (["--log-dir=logs"], []):  # the agent's journal; a file, which goes on
            folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
            for end in ("first", "submitted again under the same name"):
                with self.subTest(where=where, end=end):
                    job = self.enterContext(Job(*where, "--worker-lib", script=script,
                                                env={"FOLDER": str(folder)})).ended()
                    self.assertEqual((job.output(), "no goodput" in job.errors()), ("9\n", False))
            for board in (folder / "board" / "goodput").iterdir():
                self.assertGreater(board.stat().st_size, 100)

    def test_the_package_is_the_last_of_the_path(self) -> None:
        script = ("import elastrun, os\nprint(os.environ['PYTHONPATH'], elastrun.is_connected(), "
                  "elastrun.__file__)\n")
        job = self.run_job(script, "--worker-lib", PYTHONPATH="/mine")
        path, connected, file = job.output().split()
        self.assertTrue(path.startswith("/mine:"), path)
        self.assertEqual(connected, "True")
        self.assertEqual(Path(file).parent.parent, Path(path.partition(":")[2]))

    def test_a_worker_that_is_killed_is_reported_with_its_last_step_and_values(self) -> None:
        job = self.run_job(
            "import elastrun, os, signal\n"
            "for step in range(121): elastrun.step(step)\n"
            "elastrun.metrics.put_metric('loss', 0.25, 'model')\n"
            "elastrun.metrics.put_metric('n\\x1b[31m', float('nan'))\n"
            "os.kill(os.getpid(), signal.SIGKILL)\n", "--worker-lib", code=1)
        self.assertRegex(job.errors(), r"(?m)^  last      step 120 \([\d.]+ \w+ before\); "
                                       r"model/loss=0\.25, torchelastic/n=nan$")
        failure, = job.report()["failures"]
        last = failure["last"]
        self.assertEqual((last["step"], last["phase"]), (120, None))
        self.assertGreaterEqual(last["step_age_s"], 0)
        self.assertEqual(last["values"], {"model/loss": 0.25, "torchelastic/n": None})

    def test_each_attempt_has_a_page_of_its_own(self) -> None:
        job = self.run_job(
            "import elastrun, os\n"
            "if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0': elastrun.step(7)\n"
            "exit(3)\n", "--worker-lib", "--max-restarts=1", code=1)
        self.assertIsNone(job.report()["failures"][0]["last"]["step"])

    def test_a_worker_that_scribbles_over_its_page_harms_nobody(self) -> None:
        job = self.run_job(
            "import mmap, os, random\n"
            "fd = os.open(os.environ['ELASTRUN_PAGE'], os.O_RDWR)\n"
            "for size in (0, 1, 1 << 20):\n"
            "    try: os.ftruncate(fd, size)\n"
            "    except PermissionError: print('sealed')\n"
            "page = mmap.mmap(fd, 16384)\n"
            "page[:] = random.Random(5).randbytes(16384)\n"
            "page[16:24] = b'\\xff' * 8\n"
            "exit(3)\n", "--worker-lib", code=1)
        self.assertEqual(job.output(), "sealed\nsealed\nsealed\n")
        self.assertIn("rank 0 failed first: it ended with exit code 3", job.errors())
        self.assertNotIn("\x1b", job.errors())
        self.assertIn("values", job.report()["failures"][0]["last"])

    def test_what_workers_report_is_in_the_journal_with_who_said_it(self) -> None:
        job = self.run_job(
            "import elastrun\nfrom datetime import datetime, timedelta\n"
            "for i in range(10): elastrun.metrics.put_metric('loss', i, 'model')\n"
            "elastrun.monitor.log_event(elastrun.monitor.Event(\n"
            "    'mine', datetime.fromtimestamp(12.5), {'a': 1}))\n"
            "stat = elastrun.monitor.Stat('s', [elastrun.monitor.Aggregation.SUM],\n"
            "                             timedelta(hours=1), 2)\n"
            "stat.add(1)\nstat.add(2)\n",
            "--worker-lib", "--nproc-per-node=2", "--role=trainer", "--redirects=3")
        lines = job.records()
        for rank in (0, 1):
            who = {"rank": rank, "local_rank": rank, "role": "trainer", "attempt": 0}
            mine = [one for one in lines if one.get("attributes", {}).get("rank") == rank]
            window, = (one for one in mine if one["kind"] == "window")
            self.assertEqual((window["scope"], window["name"], window["attributes"]),
                             ("model", "loss", who))
            self.assertEqual(window["window"]["aggregates"], {
                "value": 9, "mean": 4.5, "count": 10, "sum": 45, "max": 9, "min": 0})
            event, = (one for one in mine if one["name"] == "mine")
            self.assertEqual((event["time"], event["attributes"]), (12.5, {"a": 1} | who))
            stat, = (one for one in mine if one["name"] == "s.sum")
            self.assertEqual((stat["scope"], stat["value"], stat["attributes"]),
                             ("torch.monitor", 3, who))

    def test_what_children_say_is_heard_though_they_have_ended_before_it_is_read(self) -> None:
        job = self.run_job(
            "import elastrun, os, signal\n"
            "agent = os.getppid()\n"
            "os.kill(agent, signal.SIGSTOP)\n"  # so that it reads all of it later
            "try:\n"
            "    for i in range(60):\n"
            "        child = os.fork()\n"
            "        if child == 0:\n"
            "            elastrun.event('child', number=i)\n"
            "            os._exit(0)\n"
            "        os.waitpid(child, 0)\n"
            "finally: os.kill(agent, signal.SIGCONT)\n", "--worker-lib", "--redirects=3")
        heard = [one["attributes"] for one in job.records() if one["name"] == "child"]
        self.assertEqual([one["number"] for one in heard], list(range(60)))
        self.assertEqual({one["rank"] for one in heard}, {0})

    def test_the_last_word_of_a_trainer_below_a_shell_is_heard(self) -> None:
        trainer = (f"{sys.executable} -c 'import elastrun; elastrun.step(41);"
                   " elastrun.event(\"last\"); elastrun.step(42)'")
        job = self.enterContext(Job(
            "--report=report.json", "--log-dir=logs", "--worker-lib", "--no-python", "sh", "-c",
            f"kill -STOP $PPID; {trainer}; kill -CONT $PPID")).ended()
        heard = [one for one in job.records() if one["name"] in ("step", "last")]
        self.assertEqual([one.get("value") for one in heard], [41, None, 42])

    def test_with_goodput_off_nothing_of_it_is_kept(self) -> None:
        script = ("import elastrun, time\n"
                  "one = elastrun.goodput.GoodputRecorder('j', 'l', True)\n"
                  "for i in range(3): one.record_step_start_time(i); time.sleep(0.05)\n"
                  "exit(3)\n")
        job = self.run_job(script, "--worker-lib", "--goodput=off", code=1)
        self.assertIsNone(job.report()["goodput"])
        self.assertNotIn("goodput", job.errors())
        self.assertEqual([one["name"] for one in job.records() if "goodput" in str(one)], [])
        job = self.run_job(script, "--worker-lib", code=1)
        self.assertEqual(job.report()["goodput"]["last_step"], 1)

    def test_without_the_package_the_option_says_where_it_looked(self) -> None:
        folder = self.enterContext(Job("--version")).folder
        copy = folder / "elastrun"
        copy.write_bytes(Path(sys.argv[1]).read_bytes())
        copy.chmod(0o755)
        script = folder / "train.py"
        script.write_text("")
        done = os.spawnv(os.P_WAIT, "/bin/sh", ["sh", "-c",
                         f"'{copy}' --worker-lib '{script}' 2>'{folder}/said'"])
        self.assertEqual(done, 2)
        said = (folder / "said").read_text()
        self.assertIn("the Python package elastrun is not beside this program", said)
        self.assertIn("looked in ", said)


# Runs in the worker, without the package: raw packets on ELASTRUN_CHANNEL.
RAW = """
import array, json, os, socket, sys, time
def connect():
    one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    one.connect(os.environ["ELASTRUN_CHANNEL"])
    return one
"""


class HostileWorkers(Reports):
    def run_raw(self, script: str, *options: str) -> Job:
        return self.run_job(RAW + script, *options, "--redirects=3")

    def check_last_word(self, job: Job) -> None:
        """The agent still hears who behaves, after all of it."""
        self.assertEqual([one["attributes"]["n"] for one in job.records()
                          if one["name"] == "last word"], [7])

    LAST = """
one = connect()
one.send(b'{"kind":"event","name":"last word","attributes":{"n":7}}')
"""

    def test_nonsense_of_many_connections_is_told_a_few_times(self) -> None:
        job = self.run_raw(
            "bad = [b'{', b'[]', b'{\"kind\":7}', b'\\x00\\xff', b'{\"kind\":\"step\"}',\n"
            "       b'{\"kind\":\"metric\",\"name\":{},\"value\":1}', b'{' * 9000, b'[' * 16000]\n"
            "for i in range(200):\n"
            "    one = connect()\n"
            "    for packet in bad:\n"
            "        try: one.send(packet)\n"
            "        except OSError: break\n" + self.LAST)
        self.check_last_word(job)
        said = [line for line in job.errors().splitlines() if "a message of a worker" in line]
        self.assertGreater(len(said), 0)
        self.assertLess(len(said), 30)

    def test_giant_packets_and_descriptors_that_are_passed_along(self) -> None:
        job = self.run_raw(
            "import resource\n"
            "one = connect()\n"
            "one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)\n"
            "for i in range(3): one.send(b' ' * 100_000)\n"
            "two = connect()\n"
            "agent = os.getppid()\n"
            "before = len(os.listdir(f'/proc/{agent}/fd'))\n"
            "for i in range(300):\n"
            "    passed = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [0] * 50))\n"
            "    two.sendmsg([b'{\"kind\":\"step\",\"step\":1}'], [passed])\n"
            "two.close()\n"
            "three = connect()\n"
            "time.sleep(0.2)\n"
            "print(len(os.listdir(f'/proc/{agent}/fd')) - before < 50)\n" + self.LAST)
        self.check_last_word(job)
        out, = (job.folder / "logs").glob("*/attempt_0/0/stdout.log")
        self.assertEqual(out.read_text(), "True\n")

    def test_a_thousand_clients(self) -> None:
        job = self.run_raw(
            "import resource\n"
            "soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)\n"
            "resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))\n"
            "many = []\n"
            "for i in range(1000):\n"
            "    many.append(connect())\n"
            "    try: many[-1].send(b'{\"kind\":\"event\",\"name\":\"hello\"}')\n"
            "    except OSError: pass\n"
            "for one in many: one.close()\n"
            "time.sleep(0.1)\n" + self.LAST)
        self.check_last_word(job)

    def test_a_flood_of_events_and_names_is_limited_and_told_once(self) -> None:
        job = self.run_raw(
            "one = connect()\n"
            "for i in range(20_000):\n"
            "    one.send(b'{\"kind\":\"event\",\"name\":\"flood\"}')\n"
            "    one.send(b'{\"kind\":\"metric\",\"name\":\"n%d\",\"value\":1}' % i)\n" + self.LAST)
        self.check_last_word(job)
        lines = job.records()
        passed = sum(one["name"] == "flood" for one in lines)
        self.assertLess(passed, 20_000)
        names = {one["name"] for one in lines if one["scope"] == "worker" and "value" in one}
        self.assertLessEqual(len(names), 2001)
        self.assertIn("otel.metric.overflow", names)
        for text in ("more than 100 events 'flood' a second", "have used 2000 names"):
            self.assertEqual(job.errors().count(text), 1, job.errors())
