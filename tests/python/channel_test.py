# SPDX-License-Identifier: Apache-2.0
"""The Python worker package against a socket that a test listens on."""
from __future__ import annotations

import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import unittest
from unittest import mock

from agent_end import (PACKAGE, AgentEnd, InFolder, Listener, SharedPage, folder_for,
                       worker)
from elastrun import page  # noqa: E402


class ChannelTest(AgentEnd):
    def test_each_call_is_one_packet(self) -> None:
        done = worker(
            "elastrun.step(7)\nelastrun.checkpoint_done(5)\nelastrun.checkpoint_done()\n"
            "elastrun.metric('loss', 0.5)\nelastrun.metric('lr', 1, group='opt')\n"
            "elastrun.metric('bad', float('nan'))\n"
            "elastrun.event('epoch', number=3, name='a\\\"b', done=True, at=None, what=[1])\n"
            "print(elastrun.dropped(), elastrun.is_connected())", self.listener.path)
        self.assertEqual(done.stderr, "")
        self.assertEqual(done.stdout, "0 True\n")
        self.assertEqual(self.listener.packets(), [[
            {"kind": "step", "step": 7},
            {"kind": "checkpoint", "step": 5},
            {"kind": "checkpoint", "step": -1},
            {"kind": "metric", "name": "loss", "value": 0.5, "group": "worker", "step": 7},
            {"kind": "metric", "name": "lr", "value": 1, "group": "opt", "step": 7},
            {"kind": "metric", "name": "bad", "value": "nan", "group": "worker", "step": 7},
            {"kind": "event", "name": "epoch", "attributes": {
                "number": 3, "name": 'a"b', "done": True, "at": None, "what": "[1]"}},
        ]])

    def test_each_connection_begins_with_the_directory_of_its_worker(self) -> None:
        done = worker("import os\nelastrun.step(1)\nchild = os.fork()\n"
                      "if child == 0: elastrun.step(2); os._exit(0)\n"
                      "os.waitpid(child, 0); elastrun.step(3)\n",
                      self.listener.path, ELASTRUN_RUN_DIR="/run/0/3")
        self.assertEqual((done.stdout, done.stderr), ("", ""))
        said = {"kind": "from", "directory": "/run/0/3"}
        self.assertEqual(self.listener.packets(), [
            [said, {"kind": "step", "step": 1}, {"kind": "step", "step": 3}],
            [said, {"kind": "step", "step": 2}]])

    def test_a_metric_is_of_the_last_step_or_of_the_one_that_is_given(self) -> None:
        worker("elastrun.metric('a', 1)\nelastrun.metric('a', 2, step=108)\nelastrun.step(109)\n"
               "elastrun.metric('a', 3)\nelastrun.metrics.put_metric('b', 4, 'g')\n",
               self.listener.path)
        told = {packet["value"]: packet.get("step") for packet in self.listener.packets()[0]
                if packet["kind"] == "metric"}
        self.assertEqual(told, {1: None, 2: 108, 3: 109, 4: 109})

    def test_nothing_raises_and_what_is_refused_is_counted(self) -> None:
        done = worker(
            "from elastrun import events, metrics, monitor\n"
            "class Raises:\n"
            "  def __str__(self): raise RuntimeError('on purpose')\n"
            "  __int__ = __float__ = __index__ = __hash__ = __repr__ = __str__\n"
            "  name = source = timestamp = metadata = property(__str__)\n"
            "bad = [Raises(), float('nan'), float('inf'), 10**400, 1 << 63, 'x', None]\n"
            "for one in bad: elastrun.step(one); elastrun.checkpoint_done(one)\n"
            "print(elastrun.dropped())\n"
            "for one in [Raises(), 10**400, 'x', None]: elastrun.metric('m', one)\n"
            "elastrun.metric(Raises(), 1); elastrun.metric('m', 1, Raises())\n"
            "elastrun.metric('m', 1, step=float('nan')); elastrun.event(Raises())\n"
            "with elastrun.phase(Raises()): pass\n"
            "elastrun.event('e', a=Raises(), b=10**30, c=float('nan'), d='\\ud800')\n"
            "print(elastrun.dropped())\n"
            "for one in bad:\n"
            "  metrics.put_metric('m', one); metrics.put_metric(one, 1)\n"
            "  metrics.count_metric('m', one); metrics.count_metric(one, 1)\n"
            "events.record(Raises())\n"
            "events.record(events.Event('late', 'WORKER', 'noon', {}))\n"
            "events.record(events.Event('none', 'WORKER', 0, None))\n"
            "events.record(events.Event('text', 'WORKER', 0, {'a': Raises()}), 'console')\n"
            "print(elastrun.dropped())\n"
            "elastrun.metric('\\ud800', 2); elastrun.step(3); elastrun.phase('\\ud800')\n",
            self.listener.path)
        self.assertEqual((done.stdout, done.stderr), ("14\n24\n29\n", ""))
        got = [one for one in self.listener.packets()[0]
               if one["kind"] != "metric" or one["name"] != "m"]
        self.assertEqual([one.get("name") for one in got if one["kind"] == "event"],
                         ["e", "late", "text"])
        self.assertEqual(next(one for one in got if one.get("name") == "e")["attributes"],
                         {"b": 1e30, "c": "nan", "d": "?"})
        self.assertIn({"kind": "phase", "phase": "?"}, got)
        self.assertIn({"kind": "metric", "name": "?", "value": 2, "group": "worker"}, got)

    def test_a_phase_lasts_until_the_next_or_to_the_end_of_its_block(self) -> None:
        done = worker("elastrun.phase('warmup')\n"
                      "with elastrun.phase('eval'):\n"
                      "  with elastrun.phase('x' * 300): pass\n"
                      "elastrun.phase('')\n", self.listener.path)
        self.assertEqual((done.stdout, done.stderr), ("", ""))
        self.assertEqual(self.listener.packets(), [[
            {"kind": "phase", "phase": phase}
            for phase in ("warmup", "eval", "x" * 256, "eval", "warmup", "train")]])
        self.assertEqual(worker("with elastrun.phase('eval'): pass", None).stderr, "")

    def test_a_block_of_a_phase_may_be_used_twice_and_entered_by_hand(self) -> None:
        done = worker("block = elastrun.phase('eval')\n"
                      "with block: pass\n"
                      "with block: pass\n"
                      "elastrun.phase('load').__exit__(None, None, None)\n"
                      "elastrun.phase('save').__enter__()\n"  # as a trainer's callback does
                      "elastrun.step(1)\n", self.listener.path)
        self.assertEqual((done.stdout, done.stderr), ("", ""))
        told, = self.listener.packets()
        self.assertEqual([one["phase"] for one in told if one["kind"] == "phase"],
                         ["eval", "train", "train", "load", "train", "save"])

    def test_a_phase_that_nothing_ended_before_a_step_is_told_once(self) -> None:
        done = worker("for i in (1, 2):\n"
                      "  elastrun.phase('save'); elastrun.step(i)\n"
                      "  with elastrun.phase('eval'): elastrun.step(10 + i)\n"
                      "  elastrun.phase('eval'); elastrun.phase('train'); elastrun.step(20 + i)\n",
                      self.listener.path)
        self.assertEqual(done.stderr.count("phase('save') had no end before step 1"), 1)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        told, = self.listener.packets()
        self.assertEqual([one["phase"] for one in told if one["kind"] == "phase"],
                         ["save", "eval", "train", "eval", "train"] * 2)

    def test_a_phase_may_have_an_end_which_a_phase_within_it_does_not_move(self) -> None:
        done = worker("with elastrun.phase('eval', at_most=300):\n"
                      "  with elastrun.phase('save', 60.0): pass\n"
                      "for bad in (None, 0, -1, float('nan'), 'soon', 10 ** 400):\n"
                      "  elastrun.phase('eval', at_most=bad)\n"
                      "elastrun.phase('eval', at_most=float('inf'))\n", self.listener.path)
        self.assertEqual((done.stdout, done.stderr), ("", ""))
        told, = self.listener.packets()
        self.assertEqual(told[:2], [{"kind": "phase", "phase": "eval", "at_most": 300},
                                    {"kind": "phase", "phase": "save", "at_most": 60}])
        self.assertTrue(0 < told[2].pop("at_most") <= 300)  # what is left of it
        self.assertEqual(told[2:4], [{"kind": "phase", "phase": phase}
                                     for phase in ("eval", "train")])
        self.assertEqual(told[4:], [{"kind": "phase", "phase": "eval"}] * 6
                         + [{"kind": "phase", "phase": "eval", "at_most": "inf"}])

    def test_without_an_agent_nothing_happens(self) -> None:
        for channel in (None, "", str(self.folder) + "/absent", "/" + "x" * 300):
            with self.subTest(channel=channel):
                done = worker("for i in range(1000): elastrun.step(i)\n"
                              "elastrun.metric('a', 1)\nelastrun.event('b')\n"
                              "elastrun.checkpoint_done(1)\n"
                              "print(elastrun.is_connected())", channel)
                self.assertEqual((done.stdout, done.stderr, done.returncode), ("False\n", "", 0))

    def test_an_agent_that_does_not_read_is_not_waited_for(self) -> None:
        done = worker("for i in range(20000): elastrun.step(i)\nprint(elastrun.dropped())",
                      self.listener.path)
        self.assertEqual(done.stderr, "")
        got = self.listener.packets()[0]
        self.assertEqual(len(got) + int(done.stdout), 20000)
        self.assertEqual(got[0], {"kind": "step", "step": 0})
        self.assertGreater(int(done.stdout), 0)

    def test_an_agent_that_was_behind_hears_how_much_it_was_not_told(self) -> None:
        done = worker("import os, socket\n"
                      "while elastrun.dropped() < 7: elastrun.step(1)\n"
                      "channel = elastrun.channel._channel\n"
                      "if (child := os.fork()) == 0:\n"
                      "    elastrun.step(2)\n"  # another connection, and nothing of its own lost
                      "    os._exit(0)\n"
                      "os.waitpid(child, 0)\n"
                      "channel._socket = None\n"  # as if the agent had read all of them
                      "elastrun.step(3)\nelastrun.step('x')\nelastrun.step(4)\nelastrun.step(5)\n"
                      "elastrun.step(None)", self.listener.path)
        self.assertEqual((done.stdout, done.stderr), ("", ""))
        self.listener.packets()
        self.assertEqual(self.listener.lost, 9)

    def test_what_is_told_at_the_exit_waits_for_an_agent_that_is_behind(self) -> None:
        # More than a socket holds: a metric of each of 700 layers, and as many windows.
        for tell in ("from elastrun import metrics\n"
                     "for i in range(700): metrics.put_metric(f'm{i}', i, 'g')\n",
                     "from datetime import timedelta\nfrom elastrun.monitor import *\n"
                     "stats = [Stat(f's{i}', [Aggregation.SUM], timedelta(hours=1))"
                     " for i in range(700)]\n"
                     "for one in stats: one.add(1)\n"):
            with self.subTest(tell):
                listener = Listener(folder_for(self))
                self.addCleanup(listener.socket.close)
                listener.socket.setblocking(True)
                got: list[object] = []

                def read_late() -> None:
                    connection, _ = listener.socket.accept()
                    with connection:
                        time.sleep(0.3)
                        while packet := connection.recv(65536):
                            got.append(json.loads(packet)["kind"])

                reader = threading.Thread(target=read_late)
                reader.start()
                done = worker(tell, listener.path)
                reader.join()
                self.assertEqual(done.stderr, "")
                self.assertEqual(got.count("metric") + got.count("event"), 700)

    def test_an_agent_that_reads_nothing_costs_an_exit_a_second(self) -> None:
        done = worker("import time\nfrom elastrun import metrics, reporter\n"
                      "for i in range(700): metrics.put_metric(f'm{i}', i, 'g')\n"
                      "start = time.monotonic()\n"
                      "reporter.reporter._finish()\n"
                      "print(0.9 < time.monotonic() - start < 20, elastrun.dropped() > 300)",
                      self.listener.path)
        self.assertEqual((done.stdout, done.stderr), ("True True\n", ""))

    def test_what_must_not_be_lost_is_counted_if_it_is(self) -> None:
        done = worker("elastrun.phase('eval')\nprint(elastrun.dropped())",
                      str(self.folder) + "/absent")
        self.assertEqual((done.stdout, done.stderr), ("1\n", ""))

    def test_without_faulthandler_as_in_a_subinterpreter_there_are_no_stacks(self) -> None:
        env = dict(os.environ, PYTHONPATH=PACKAGE, ELASTRUN_CHANNEL=self.listener.path)
        subprocess.run([sys.executable, "-c",
                        "import sys\nsys.modules['faulthandler'] = None\nimport elastrun\n"
                        "elastrun.record(elastrun.step)(1)\nassert not elastrun.offer_stacks()"],
                       env=env, check=True, timeout=60)
        self.assertEqual(self.listener.packets(with_offers=True),
                         [[{"kind": "step", "step": 1}]])

    def test_an_agent_that_vanishes_is_no_error(self) -> None:
        done = worker(
            "import os\nelastrun.step(1)\nos.unlink(os.environ['ELASTRUN_CHANNEL'])\n"
            "import socket\n"
            "for i in range(100000): elastrun.step(i)\n"
            "elastrun.channel._channel._socket.shutdown(socket.SHUT_RDWR)\n"
            "elastrun.step(2)\nelastrun.step(3)\nprint('alive', elastrun.is_connected())",
            self.listener.path)
        self.assertEqual((done.stdout, done.stderr), ("alive False\n", ""))

    def test_without_a_descriptor_for_a_connection_nothing_raises(self) -> None:
        done = worker("import resource\n"
                      "from elastrun.channel import _channel\n"
                      "limits = resource.getrlimit(resource.RLIMIT_NOFILE)\n"
                      "resource.setrlimit(resource.RLIMIT_NOFILE, (1, limits[1]))\n"
                      "_channel._forget()\n"  # as a forked child, or after the agent has gone
                      "elastrun.step(1)\n"
                      "resource.setrlimit(resource.RLIMIT_NOFILE, limits)\n"
                      "print(elastrun.dropped())", self.listener.path)
        self.assertEqual((done.stdout, done.stderr), ("1\n", ""))

    def test_a_packet_that_is_too_large_costs_only_itself(self) -> None:
        done = worker("elastrun.event('x' * 10_000_000)\nelastrun.step(1)\n"
                      "print(elastrun.dropped())", self.listener.path)
        self.assertEqual((done.stdout, done.stderr), ("1\n", ""))
        self.assertEqual(self.listener.packets(), [[{"kind": "step", "step": 1}]])

    def test_of_an_event_that_is_too_long_the_begins_of_its_texts_are_told(self) -> None:
        done = worker("elastrun.event('stack', text='x' * 10_000_000, rank=3, host='h')\n"
                      "elastrun.event('many', **{f'k{i}': '\u6a21' * 900 for i in range(10)})\n"
                      "elastrun.event('whole', text='x' * 16_000)\n"
                      "elastrun.metric('m', 1, labels={'k': '\u6a21' * 200})\n"
                      "print(elastrun.dropped())", self.listener.path)
        self.assertEqual((done.stdout, done.stderr), ("0\n", ""))
        stack, many, whole, metric = self.listener.packets()[0]
        self.assertEqual(stack["attributes"], {"text": "x" * 4096, "rank": 3, "host": "h"})
        self.assertEqual(many["attributes"], {f"k{i}": "\u6a21" * 85 for i in range(10)})
        self.assertEqual(whole["attributes"], {"text": "x" * 16_000})
        self.assertEqual(metric["labels"], {"k": "\u6a21" * 85})


class RecordTest(InFolder):
    def setUp(self) -> None:
        super().setUp()
        self.file = self.folder / "error.json"

    def run_main(self, body: str, file: str | None = None) -> subprocess.CompletedProcess[str]:
        return worker(f"import sys\n@elastrun.record\ndef main():\n  {body}\nprint(main())", None,
                      TORCHELASTIC_ERROR_FILE=str(self.file) if file is None else file)

    def test_an_exception_is_written_as_torch_writes_it(self) -> None:
        done = self.run_main("raise ValueError('boom')")
        self.assertEqual(done.returncode, 1)
        self.assertIn("ValueError: boom", done.stderr)
        said = json.loads(self.file.read_text())["message"]
        self.assertEqual(said["message"], "ValueError: boom")
        self.assertTrue(said["extraInfo"]["timestamp"].isdigit())
        self.assertTrue(said["extraInfo"]["py_callstack"].startswith("Traceback"))
        self.assertEqual([p.name for p in self.file.parent.iterdir()], ["error.json"])

    def test_python_39_writes_it_too(self) -> None:
        """Before 3.10 traceback.format_exception takes three arguments."""
        done = self.run_main("import traceback as t; new = t.format_exception; "
                             "t.format_exception = lambda kind, error, trace, limit=None, "
                             "chain=True: new(kind, error, trace, limit, chain); "
                             "raise ValueError('boom')")
        self.assertEqual(done.returncode, 1)
        self.assertTrue(done.stderr.endswith("ValueError: boom\n"), done.stderr)
        self.assertNotIn("TypeError", done.stderr)
        said = json.loads(self.file.read_text())["message"]
        self.assertEqual(said["message"], "ValueError: boom")
        self.assertTrue(said["extraInfo"]["py_callstack"].endswith("ValueError: boom\n"))

    def test_an_exception_that_cannot_be_shown_is_not_replaced(self) -> None:
        done = self.run_main("exec('class Odd(Exception):\\n  def __str__(self): return 1/0'); "
                             "raise locals()['Odd']()")
        self.assertEqual(done.returncode, 1)
        self.assertIn("Odd", done.stderr.splitlines()[-1])
        self.assertNotIn("During handling", done.stderr)

    def test_a_return_value_passes(self) -> None:
        self.assertEqual(self.run_main("return 42").stdout, "42\n")
        self.assertFalse(self.file.exists())

    def test_exit_0_is_a_return_and_other_exits_write_nothing(self) -> None:
        done = self.run_main("sys.exit(0)")
        self.assertEqual((done.stdout, done.returncode), ("None\n", 0))
        self.assertEqual(self.run_main("sys.exit(5)").returncode, 5)
        self.assertFalse(self.file.exists())

    def test_a_file_that_cannot_be_written_hides_nothing(self) -> None:
        for file in ("", str(self.file.parent / "no" / "such" / "folder")):
            done = self.run_main("raise KeyError('k')", file)
            self.assertEqual(done.returncode, 1)
            self.assertIn("KeyError: 'k'", done.stderr)
            self.assertNotIn("FileNotFoundError", done.stderr)


STEP, LOOKED, SAVE_AT, IMPORTED = 4, 12, 13, 14  # words of elastrun-protocol(7)


class ShouldSave(unittest.TestCase):
    """elastrun.should_save: what a worker hears of the order in its page, and what it writes."""

    def setUp(self) -> None:
        self.shared = SharedPage()
        self.addCleanup(self.shared.close)
        page._page, page._saves_by = page._open(self.shared.path), None
        self.addCleanup(page._forget)

    def order(self, word: int) -> None:
        os.pwrite(self.shared.descriptor, struct.pack("=q", word), 8 * SAVE_AT)

    def test_without_an_order_it_is_false_and_tells_the_agent_that_it_looks(self) -> None:
        self.assertEqual(self.shared.words(LOOKED), (0,))
        self.assertFalse(page.should_save(7))
        step, looked = self.shared.words(STEP, LOOKED)
        self.assertEqual(step, 7)
        self.assertGreater(looked, 0)

    def test_it_is_true_from_the_step_of_the_order_on(self) -> None:
        self.order(12 + 2)
        self.assertEqual([page.should_save(step) for step in (10, 11, 12, 13)],
                         [False, False, True, True])
        self.assertTrue(page.should_save())

    def test_without_a_number_it_goes_by_the_last_step_told(self) -> None:
        self.order(12 + 2)
        self.assertTrue(page.should_save())
        own = page.page()
        assert own is not None
        heard = []
        for step in (10, 11, 12):
            own.step(step)
            heard.append(page.should_save())
        self.assertEqual(heard, [False, False, True])

    def test_an_order_without_a_step_is_for_now(self) -> None:
        self.order(1)
        self.assertTrue(page.should_save(0))

    def test_without_a_page_it_is_false(self) -> None:
        page._forget()
        self.assertFalse(page.should_save(1))

    def test_what_is_no_step_is_none_and_does_not_raise(self) -> None:
        for odd in (float("nan"), float("inf"), "x", [], 10**400):
            self.assertFalse(page.should_save(odd))
        self.order(12 + 2)
        self.assertTrue(page.should_save(float("nan")))

    def test_the_import_names_its_process_and_writes_into_nothing_but_a_page(self) -> None:
        other = os.memfd_create("other")
        self.addCleanup(os.close, other)
        self.addCleanup(page._begin)
        with mock.patch.dict(os.environ, ELASTRUN_PAGE=f"/proc/self/fd/{other}"):
            page._begin()
        self.assertEqual(os.fstat(other).st_size, 0)
        with mock.patch.dict(os.environ, ELASTRUN_PAGE=self.shared.path):
            page._begin()
        self.assertEqual(self.shared.words(IMPORTED), (os.getpid(),))

    def test_the_page_of_a_process_that_has_ended_is_taken_over(self) -> None:
        self.assertEqual(self.shared.owner(), os.getpid())
        gone = subprocess.Popen(["true"])
        gone.wait()
        for owner, is_free in ((1, False), (gone.pid, True), (os.getpid(), True)):
            os.pwrite(self.shared.descriptor, struct.pack("=I", owner), 16)
            self.assertEqual(page._open(self.shared.path) is not None, is_free, owner)
        self.assertEqual(self.shared.owner(), os.getpid())

    def test_a_signal_that_announces_the_end_is_ignored_unless_it_is_handled(self) -> None:
        numbers = (signal.SIGUSR1, signal.SIGUSR2)
        before = [signal.signal(number, signal.SIG_DFL) for number in numbers]
        self.addCleanup(lambda: [signal.signal(*one) for one in zip(numbers, before)])
        handler = signal.default_int_handler
        signal.signal(signal.SIGUSR2, handler)
        page._ignore("SIGUSR1,SIGUSR2,SIGKILL,SIGNONE")
        self.assertEqual([signal.getsignal(number) for number in numbers],
                         [signal.SIG_IGN, handler])

    def test_a_forked_child_does_not_hear_it(self) -> None:
        # A DataLoader's worker is no trainer.
        self.order(1)
        self.assertTrue(page.should_save(1))
        child = os.fork()
        if child == 0:
            os._exit(3 if page.should_save(1) else 0)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)


if __name__ == "__main__":
    unittest.main()
