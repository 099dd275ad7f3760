# SPDX-License-Identifier: Apache-2.0
"""Expiration timers: a worker that hangs is named, looked at, ended and started again."""
from __future__ import annotations

import json
import os
import signal
import tempfile
import time
import unittest
from pathlib import Path

from harness import PACKAGE, Job, lives, stuck, wait_until

# As torch's FileTimerClient writes: open, one line, close. torch itself: tests/examples.
CLIENT = """
import json, os, signal, sys, time

FIRST = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
RANK = int(os.environ["RANK"])

def write(text):
    fd = os.open(os.environ["TORCHELASTIC_TIMER_FILE"], os.O_WRONLY | os.O_NONBLOCK)
    os.write(fd, text.encode())
    os.close(fd)

def ask(scope, after, signal=9, pid=None):
    write(json.dumps({"version": 1, "pid": pid or os.getpid(), "scope_id": scope,
                      "expiration_time": time.time() + after, "signal": signal}) + "\\n")

def take_back(scope):
    write(json.dumps({"version": 1, "pid": os.getpid(), "scope_id": scope,
                      "expiration_time": -1, "signal": 0}) + "\\n")
"""


HANGS = "ask('load', 0.1); time.sleep(600)\n"


def expired(scope: str) -> str:
    """What is said of such a timer. One that a pause of the machine lets arrive late says so."""
    return rf"(?:expired timer '{scope}' after \d+\.0 ms|timer '{scope}' had expired when it came)"


class Timers(unittest.TestCase):
    def start(self, script: str, *options: str, **env: str) -> Job:
        env.setdefault("TORCHELASTIC_ENABLE_FILE_TIMER", "1")
        env = {name: value for name, value in env.items() if value}
        return self.enterContext(Job(
            "--report=report.json", *options, script=CLIENT + script, env=env))

    def test_a_worker_that_hangs_is_ended_with_its_stack_and_started_again(self) -> None:
        job = self.start("ask('outer', 600)\n"
                         "if FIRST and RANK == 1: ask('load', 0.2); time.sleep(600)\n"
                         "take_back('outer')\nprint('went through')\n",
                         "--nproc-per-node=2", "--max-restarts=1").ended()
        report = job.report()
        self.assertEqual(report["restarts"], 1)
        first, second = report["attempts"]
        self.assertRegex(first["cause"]["text"],
                         f"^rank 1 was killed by SIGKILL: {expired('load')}$")
        timer, = first["expired_timers"]
        self.assertEqual((timer["rank"], timer["scope"], timer["signal"]), (1, "load", "SIGKILL"))
        # From when it was read to its expiry: torch's request does not say for how long it is.
        self.assertLessEqual(timer["after_s"], 0.2)
        self.assertRegex(timer["stack"][0],
                         rf"^thread {timer['pid']} \(.*, main\): sleeping.*nanosleep")
        self.assertEqual(second["expired_timers"], [])
        self.assertIn(timer["stack"][0], job.errors())
        self.assertEqual(list(job.temporary.iterdir()), [], "the FIFO is left")

    def test_the_verdict_names_the_scope_and_shows_the_stack(self) -> None:
        job = self.start(HANGS, "--event-log-handler=console").ended(1)
        report = job.report()
        failure, = report["failures"]
        self.assertRegex(failure["expired_timer"], f"^{expired('load')}$")
        self.assertEqual(report["verdict"], "rank 0 failed first: it was killed by SIGKILL: "
                         + failure["expired_timer"])
        self.assertEqual(failure["stack"], report["attempts"][0]["expired_timers"][0]["stack"])
        self.assertIn("elastrun: " + report["verdict"], job.errors())
        self.assertIn("  its stack when the timer expired:\n    | thread ", job.errors())
        events = [json.loads(line) for line in job.errors().splitlines()
                  if line.startswith('{"name"')]
        names = [event["name"].rsplit(".")[-1] for event in events]
        self.assertEqual(names, ["RENDEZVOUS", "ASSIGN_WORKER_RANKS", "watchdog started", "START",
                                 "timer expired", "kill worker process", "watchdog stopped",
                                 "FAILED", "SUCCEEDED"])
        details = json.loads(events[4]["metadata"]["metadata"])
        self.assertEqual((details["scope_id"], details["signal"]), ("load", "9"))

    def test_requests_that_mean_nothing_cost_only_themselves(self) -> None:
        job = self.start(
            "ask('kept', 600)\n"
            "for line in ['nonsense', '{\"pid\": ', '[]', '{\"pid\": \"x\"}', 'x' * 9000]:\n"
            "    write(line + '\\n')\n"
            "ask('foreign', 0, pid=1)\nask('gone', 0, pid=os.fork() or os._exit(0))\n"
            "write('{\"version\": 1, \"pid\": 12')\n"  # and is continued by another's line
            "ask('past', -5)\ntime.sleep(600)\n").ended(1)
        self.assertIn("timer 'past' had expired when it came", job.report()["verdict"])
        self.assertEqual(len(job.lines(r"timer\] Ignored: ", job.err)), 5, job.errors())

    def test_the_python_stack_comes_from_a_worker_that_offers_it(self) -> None:
        # Without a FIFO: these timers come over the channel.
        job = self.start("import elastrun\n"
                         "def load():\n    with elastrun.timer.expires(after=0.2):\n"
                         "        time.sleep(600)\n"
                         "if FIRST: load()\n"
                         "with elastrun.timer.expires(after=600): pass\n", "--max-restarts=1",
                         TORCHELASTIC_ENABLE_FILE_TIMER="", PYTHONPATH=PACKAGE).ended()
        timer, = job.report()["attempts"][0]["expired_timers"]
        self.assertRegex(timer["scope"], r"/train\.py#\d+$")
        self.assertLessEqual(timer["after_s"], 0.2)
        stack = "\n".join(timer["stack"])
        self.assertRegex(stack, r'(?s)most recent call first\):\n  File ".*train.py", line \d+ in '
                                r"load\n.* in <module>\n.*thread \d+ \(.*, main\): sleeping")
        self.assertIn(f"expired timer '{timer['scope']}' after ", job.errors())

    def channel(self, script: str, *options: str) -> Job:
        return self.start("import elastrun\n" + script, *options,
                          TORCHELASTIC_ENABLE_FILE_TIMER="", PYTHONPATH=PACKAGE)

    def test_an_agent_that_was_stopped_ends_no_worker_that_is_well(self) -> None:
        # What is said last before nothing more fits is the begin of a block, or its end: a socket
        # holds some 280 packets. The rest comes a moment after the agent goes on.
        job = self.channel(
            "from elastrun import channel\nchannel._OWED_SECONDS = 0.2\n"
            "print('goes', flush=True)\n"
            "def wait_for(name):\n    while not os.path.exists(name): time.sleep(0.01)\n"
            "wait_for('stopped')\nif RANK % 2: elastrun.step(0)\n"
            "for _ in range(500):\n"
            "    with elastrun.timer.expires(after=3): pass\n"
            "open(f'full{RANK}', 'w').close()\nwait_for('goes on')\ntime.sleep(4)\n"
            "print('went through')\n", "--nproc-per-node=2")
        job.wait_for("^goes", 2)
        agent = job.agent()
        os.kill(agent, signal.SIGSTOP)
        (job.folder / "stopped").touch()
        wait_until(lambda: len(list(job.folder.glob("full*"))) == 2, "nothing more can be said")
        time.sleep(3.5)
        os.kill(agent, signal.SIGCONT)
        job.tell("goes on").ended()
        self.assertNotIn("expired timer", job.errors())

    def test_a_job_that_was_stopped_as_a_whole_goes_on(self) -> None:
        job = self.channel("print('goes', os.getpid(), flush=True)\n"
                           "with elastrun.timer.expires(after=5):\n"
                           "    for _ in range(10): time.sleep(0.1)\n"
                           "print('went through')\n")
        worker = int(job.wait_for(r"^goes (\d+)")[0])
        processes = [job.agent(), worker]
        for pid in processes:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(6)
        for pid in processes:
            os.kill(pid, signal.SIGCONT)
        self.assertEqual(job.end(), 0, job.errors())

    def test_words_without_a_meaning_cost_no_worker_the_end_of_a_timer(self) -> None:
        job = self.channel("with elastrun.timer.expires(after=4):\n"
                           "    for i in range(20):\n"
                           "        elastrun.event('many', **{f'a{n}': n for n in range(100)})\n"
                           "time.sleep(5)\nprint('went through')\n").ended()

    def test_a_script_with_torchs_timers_can_offer_its_stacks_too(self) -> None:
        job = self.start("import elastrun\nelastrun.offer_stacks()\n"
                         "def load():\n    ask('load', 0.2)\n    time.sleep(600)\nload()\n",
                         PYTHONPATH=PACKAGE).ended(1)
        failure, = job.report()["failures"]
        self.assertIn(" in load", "\n".join(failure["stack"]))
        self.assertRegex(job.errors(), r"\n    \|   File .*, line \d+ in load\n")

    def test_who_offers_stacks_and_does_not_answer_is_ended_all_the_same(self) -> None:
        job = self.start("import elastrun\nelastrun.offer_stacks()\nask('load', 0.2)\n"
                         "os.kill(os.getpid(), signal.SIGSTOP)\n", PYTHONPATH=PACKAGE).ended(1)
        failure, = job.report()["failures"]
        self.assertRegex(failure["stack"][0], "^thread .*: stopped")

    def test_a_timer_without_a_signal_is_told_and_ends_nobody(self) -> None:
        job = self.start("ask('slow', 0.1, signal=0)\n"
                         "while not os.path.exists('go'): time.sleep(0.01)\n"
                         "print('went through')\n")
        wait_until(lambda: "Stack of rank 0" in job.errors(), "the stack is in the log")
        self.assertRegex(job.errors(), expired("slow") + "; taking its stack, no signal")
        job.tell("go").ended()
        timer, = job.report()["attempts"][0]["expired_timers"]
        self.assertIsNone(timer["signal"])

    def test_the_signal_is_the_one_that_was_asked_for(self) -> None:
        job = self.start("signal.signal(15, lambda *_: os._exit(7))\n"
                         "ask('soft', 0.1, signal=15)\ntime.sleep(600)\n").ended(1)
        # It ended by itself, whatever had led to that.
        self.assertIn("ended with exit code 7", job.report()["verdict"])

    def test_a_process_below_a_worker_can_have_timers(self) -> None:
        job = self.start("if len(sys.argv) == 1:\n"
                         "    import subprocess\n"
                         "    end = subprocess.call([sys.executable, __file__, 'child'])\n"
                         "    sys.exit(128 - end)\n"
                         "ask('below', 0.1); time.sleep(600)\n").ended(1)
        self.assertRegex(job.report()["verdict"], "^rank 0 failed first: it ended with exit "
                         f"code 137: {expired('below')}$")

    def test_a_worker_that_is_being_stopped_has_no_timers(self) -> None:
        job = self.start("if RANK == 1:\n"
                         "    while not os.path.exists('ready'): time.sleep(0.01)\n"
                         "    sys.exit(3)\n"
                         "def save(*_):\n"
                         "    ask('while it saves', 0.05); time.sleep(0.3); os._exit(5)\n"
                         "signal.signal(15, save)\nask('before', 600)\nopen('ready', 'w')\n"
                         "time.sleep(600)\n", "--nproc-per-node=2").ended(1)
        codes = [worker["exit_code"] for worker in job.report()["workers"]]
        self.assertEqual(codes, [5, 3])
        self.assertNotIn("expired", job.errors())

    def test_without_the_variable_there_is_no_fifo(self) -> None:
        for value in ("", "true"):
            job = self.start("print('file', os.environ.get('TORCHELASTIC_TIMER_FILE'))\n",
                             TORCHELASTIC_ENABLE_FILE_TIMER=value).ended()
            self.assertIn("file None", job.output())

    def test_a_path_of_ones_own(self) -> None:
        script = "print('file', os.environ['TORCHELASTIC_TIMER_FILE']); ask('a', 600)\n"
        job = self.start(script, TORCHELASTIC_TIMER_FILE="timers").ended()
        self.assertIn("file timers\n", job.output())
        self.assertFalse((job.folder / "timers").exists())
        job = self.start("", TORCHELASTIC_TIMER_FILE="train.py").ended()
        self.assertIn("train.py is there already, and is not our FIFO", job.errors())
        self.assertTrue((job.folder / "train.py").stat().st_size > 0)

    def test_nothing_is_left_of_an_agent_that_was_killed(self) -> None:
        job = self.start("print('ready', flush=True); time.sleep(600)\n")
        job.wait_for("ready")
        self.assertTrue(list(job.temporary.glob("elastrun_timer_*")))
        os.kill(job.agent(), signal.SIGKILL)
        job.end()
        job.nothing_left()
        self.assertFalse(list(job.temporary.glob("elastrun_timer_*")))

    def spied(self, text: str) -> Job:
        """A worker that hangs where py-spy is this script."""
        folder = self.enterContext(tempfile.TemporaryDirectory())
        spy = Path(folder, "py-spy")
        spy.write_text("#!/bin/sh\n" + text)
        spy.chmod(0o755)
        return self.start(HANGS, PATH=f"{folder}:{os.environ['PATH']}").ended(1)

    def test_py_spy_is_asked_where_it_is_installed(self) -> None:
        job = self.spied('echo "Thread $3 (idle): \\"MainThread\\""\n'
                         'echo "    load (train.py:7)"\n')
        failure, = job.report()["failures"]
        self.assertEqual(failure["stack"][:2], [f'Thread {failure["pid"]} (idle): "MainThread"',
                                                "    load (train.py:7)"])
        self.assertRegex(failure["stack"][2], "^thread ")

    def test_a_py_spy_that_hangs_is_not_waited_for(self) -> None:
        job = self.spied("echo $$ > spy\nexec sleep 600\n")
        self.assertIn("expired timer 'load'", job.report()["verdict"])
        self.assertFalse(lives(int((job.folder / "spy").read_text())))

    def test_a_path_that_does_not_answer_stops_neither_job_nor_timer(self) -> None:
        folder = self.enterContext(tempfile.TemporaryDirectory())
        job = self.start("open('stuck', 'w').close(); " + HANGS, **stuck(folder=folder),
                         PATH=f"{os.environ['PATH']}:{folder}").ended(1)
        self.assertIn("expired timer 'load'", job.report()["verdict"])
