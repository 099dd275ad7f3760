# SPDX-License-Identifier: Apache-2.0
"""Metrics, events and page of the Python worker package: K1 to K9, and what reaches the agent."""
from __future__ import annotations

import _thread
import contextlib
import io
import json
import logging
import os
import subprocess
import sys
import time
import unittest
import warnings
from collections.abc import Iterator

from agent_end import PACKAGE, AgentEnd, SharedPage, worker

from elastrun import events, metrics, telemetry  # noqa: E402


class Recorder(metrics.MetricHandler):
    def __init__(self) -> None:
        self.got: list[tuple[str, str, object]] = []
        self.at = 0.0

    def emit(self, metric_data: metrics.MetricData) -> None:
        self.got.append((metric_data.group_name, metric_data.name, metric_data.value))
        self.at = metric_data.timestamp


@contextlib.contextmanager
def handler(group: str | None = None) -> Iterator[Recorder]:
    recorder = Recorder()
    metrics.configure(recorder, group)
    try:
        yield recorder
    finally:
        metrics.configure(metrics.NullMetricHandler(), group)
        metrics.api._of_group.clear()


@metrics.prof
def free_function(fail: type[BaseException] | None = None) -> int:
    if fail is not None:
        raise fail("on purpose")
    return 7


class Base:
    @metrics.prof
    def run(self) -> str:
        return "ran"

    @metrics.prof(group="mine")
    def other(self) -> None: ...


class Derived(Base):
    @metrics.prof
    def run(self) -> str:
        return super().run()


LEAF = __name__.rpartition(".")[2]


class Metrics(unittest.TestCase):
    def test_k1_k3_a_function_that_returns(self) -> None:
        with handler() as got:
            self.assertEqual(free_function(), 7)
        names = [name for _, name, _ in got.got]
        self.assertEqual(names, [f"{LEAF}.free_function.success",
                                 f"{LEAF}.free_function.duration.ms"])
        self.assertEqual(got.got[0][2], 1)
        self.assertIs(type(got.got[1][2]), int)

    def test_k2_an_exception_passes_on_and_others_are_no_failure(self) -> None:
        with handler() as got:
            with self.assertRaises(ValueError):
                free_function(ValueError)
            with self.assertRaises(SystemExit):
                free_function(SystemExit)
        self.assertEqual([name.partition("function.")[2] for _, name, _ in got.got],
                         ["failure", "duration.ms", "duration.ms"])

    def test_k3_methods_are_named_after_the_class_that_defines_them(self) -> None:
        with handler() as got:
            self.assertEqual(Derived().run(), "ran")
        self.assertEqual([name for _, name, _ in got.got if name.endswith("success")],
                         ["Base.run.success", "Derived.run.success"])

    def test_k4_k5_groups_and_their_handlers(self) -> None:
        with handler() as rest, handler("mine") as mine:
            metrics.put_metric("a", 1)
            metrics.put_metric("b", 2.5, "mine")
            metrics.put_metric("c", 3, "other")
            Base().other()
            metrics.getStream("mine").add_value("d", 4)
        self.assertEqual(rest.got, [("torchelastic", "a", 1), ("other", "c", 3)])
        self.assertEqual([name for _, name, _ in mine.got],
                         ["b", "Base.other.success", "Base.other.duration.ms", "d"])
        metrics.put_metric("a", 1)
        self.assertEqual(len(rest.got), 2)

    def test_k6_the_console_line(self) -> None:
        metrics.configure(metrics.ConsoleMetricsHandler(), "torchelastic")
        self.addCleanup(metrics.api._of_group.clear)
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            metrics.put_metric("workers.default.run_total", 1)
        self.assertRegex(out.getvalue(),
                         r"\A\[\d+\.\d+\]\[torchelastic\]: workers.default.run_total=1\n\Z")

    def test_deviation_a_handler_that_raises_disturbs_nobody(self) -> None:
        class Bad(metrics.MetricHandler):
            def emit(self, metric_data: metrics.MetricData) -> None:
                raise RuntimeError("on purpose")

        metrics.configure(Bad(), "bad")
        self.addCleanup(metrics.api._of_group.clear)
        before = metrics.failures()
        metrics.put_metric("a", 1, "bad")
        self.assertEqual(metrics.failures(), before + 1)

    def test_deprecated_forms_warn_and_work(self) -> None:
        with handler("g") as got, warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            metrics.publish_metric("g", "a", 1)
            metrics.profile("g")(lambda: 3)()
        self.assertEqual([one.category for one in said], [FutureWarning, FutureWarning])
        self.assertEqual([name for _, name, _ in got.got],
                         ["a", "<lambda>.success", "<lambda>.duration.ms"])

    def test_elapsed_time_is_whole_milliseconds(self) -> None:
        self.assertGreaterEqual(metrics.get_elapsed_time_ms(time.time() - 1.5), 1500)
        self.assertIs(type(metrics.get_elapsed_time_ms(time.time())), int)


class Keeper(events.EventHandler):
    def __init__(self) -> None:
        self.got: list[object] = []

    def record(self, event: events.Event | events.RdzvEvent) -> None:
        self.got.append(event)


class Events(unittest.TestCase):
    def test_k7_an_event_survives_its_text(self) -> None:
        event = events.Event("e", events.EventSource.WORKER, metadata={
            "a": 1, "b": 1.0, "c": None, "d": True, "e": "text"})
        text = event.serialize()
        self.assertEqual(text, '{"name": "e", "source": "WORKER", "timestamp": 0, "metadata": '
                               '{"a": 1, "b": 1.0, "c": null, "d": true, "e": "text"}}')
        self.assertEqual(str(event), text)
        again = events.Event.deserialize(text)
        self.assertEqual(again, event)
        self.assertIs(type(again.metadata["b"]), float)
        self.assertIs(events.Event.deserialize(event), event)

    def test_k8_a_rendezvous_event_survives_its_text_in_this_order(self) -> None:
        event = events.RdzvEvent("n", "r", "m", "h", 3, events.NodeState.RUNNING)
        self.assertEqual(list(json.loads(str(event))), [
            "name", "run_id", "message", "hostname", "pid", "node_state", "master_endpoint", "rank",
            "local_id", "error_trace"])
        self.assertEqual(events.RdzvEvent.deserialize(str(event)), event)

    def test_an_event_without_a_source_or_state_is_a_key_error_as_torch_s(self) -> None:
        for kind, missing in ((events.Event, "source"), (events.RdzvEvent, "node_state")):
            with self.assertRaisesRegex(KeyError, missing):
                kind.deserialize('{"name": "n"}')

    def test_k9_nothing_is_built_for_the_null_destination(self) -> None:
        class Bomb:
            def __bool__(self) -> bool:
                raise AssertionError("looked at")

        events.construct_and_record_rdzv_event("r", "m", events.NodeState.INIT,
                                               hostname=Bomb())  # type: ignore[arg-type]

    def test_a_rendezvous_event_is_named_after_its_caller(self) -> None:
        keeper = Keeper()
        events.configure(keeper, "dynamic_rendezvous")
        self.addCleanup(events._handlers.clear)
        try:
            raise ValueError("boom")
        except ValueError:
            events.construct_and_record_rdzv_event("r", "m", events.NodeState.FAILED)
        event, = keeper.got
        self.assertEqual(event.name, f"{os.path.basename(__file__)}:{self._testMethodName}")
        self.assertIn("ValueError: boom", event.error_trace)
        self.assertEqual(event.pid, os.getpid())

    def test_a_rendezvous_event_of_no_python_code_has_a_name_all_the_same(self) -> None:
        keeper = Keeper()
        events.configure(keeper, "dynamic_rendezvous")
        self.addCleanup(events._handlers.clear)
        _thread.start_new_thread(events.construct_and_record_rdzv_event,
                                 ("r", "m", events.NodeState.INIT))
        until = time.monotonic() + 10
        while not keeper.got and time.monotonic() < until:
            time.sleep(0.01)
        self.assertEqual([one.name for one in keeper.got], ["no_file:"])

    def test_destinations(self) -> None:
        event = events.Event("e", events.EventSource.AGENT)
        events.record(event)
        with self.assertRaisesRegex(KeyError, "'nowhere': known are console, dynamic_rendezvous"):
            events.record(event, "nowhere")
        keeper = Keeper()
        events.configure(keeper, "mine")
        self.addCleanup(events._handlers.clear)
        events.record(event, "mine")
        self.assertEqual(keeper.got, [event])

    def test_a_level_that_only_others_know_raises_nothing(self) -> None:
        record = "elastrun.events.record(elastrun.events.Event('e', None), 'console')"
        for level, shown in (("info", True), ("verbose", True), ("error", False)):
            done = worker(record, None, LOGLEVEL=level)
            self.assertEqual((done.returncode, bool(done.stderr)), (0, shown), done.stderr)

    def test_what_cannot_be_recorded_is_counted(self) -> None:
        before = telemetry.losses()["event_handlers"]
        events.record(events.Event("e", events.EventSource.WORKER, metadata={"a": object()}),
                      "console")
        events.configure(Keeper(), "dynamic_rendezvous")
        self.addCleanup(events._handlers.pop, "dynamic_rendezvous")
        events.record_rdzv_event(events.RdzvEvent("e", "r", "m", "h", 1, "RUNNING"))
        self.assertEqual(telemetry.losses()["event_handlers"], before + 1)

    def test_the_console_is_stderr(self) -> None:
        done = worker("from elastrun.events import *\n"
                      "record(Event('e', EventSource.WORKER), 'console')", None)
        self.assertEqual((done.stdout, done.stderr), (
            "", '{"name": "e", "source": "WORKER", "timestamp": 0, "metadata": {}}\n'))
        self.assertFalse(logging.getLogger("elastrun-events-console").handlers)


# Until the block ends, the reporter's thread, which the first sample starts, tells nothing.
HELD = "with elastrun.metrics.api.reporter.reporter._lock:\n"


class Agent(AgentEnd):
    def test_each_sample_is_counted_once_in_few_packets(self) -> None:
        packets = self.run_worker(
            "import threading\n"
            "put = elastrun.metrics.put_metric\n"
            "def work():\n"
            "    for i in range(20_000): put('n', i % 7, 'g')\n"
            "threads = [threading.Thread(target=work) for _ in range(4)]\n"
            "for one in threads: one.start()\n"
            "for one in threads: one.join()\n"
            "put('once', 0.5)\n")
        many = [one for one in packets if one["name"] == "n"]
        self.assertEqual(sum(one.get("count", 1) for one in many), 80_000)
        self.assertEqual(sum(one.get("sum", one["value"]) for one in many),
                         4 * sum(i % 7 for i in range(20_000)))
        self.assertLess(len(many), 100)
        self.assertEqual(packets[-1], {"kind": "metric", "name": "once", "value": 0.5,
                                       "group": "torchelastic"})
        self.assertEqual(self.page.series()["torchelastic/once"], (0.5, 1))
        self.assertEqual(self.page.series()["g/n"][0], 19_999 % 7)

    def test_what_is_counted_adds_up_in_few_packets(self) -> None:
        packets = self.run_worker(
            "import threading\n"
            "count = elastrun.metrics.count_metric\n"
            "def work():\n"
            "    for i in range(10_000): count('tokens', 3, 'g')\n"
            "threads = [threading.Thread(target=work) for _ in range(4)]\n"
            "for one in threads: one.start()\n"
            "for one in threads: one.join()\n"
            "for odd in (-1, float('nan'), float('inf'), 'x', None): count('tokens', odd, 'g')\n"
            "count(3)\n"
            "count('a' * 300)\n"
            "elastrun.metrics.api.reporter.reporter.flush()\n"
            "count('once')\n"
            "print(elastrun.metrics.api.reporter.reporter.refused,\n"
            "      elastrun.telemetry.losses()['samples'])")
        many = [one for one in packets if one["name"] == "tokens"]
        self.assertEqual(sum(one["value"] for one in many), 120_000)
        self.assertLess(len(many), 100)
        self.assertEqual(packets[-1], {"kind": "metric", "type": "counter", "name": "once",
                                       "value": 1, "group": "torchelastic"})
        self.assertEqual(self.said, "7 7\n")

    def test_odd_values_spoil_no_sum(self) -> None:
        packets = self.run_worker(
            HELD +
            "    for v in (1, float('nan'), 3, float('inf'), True, 10**400, 'x', None):\n"
            "        elastrun.metrics.put_metric('a', v)\n"
            "elastrun.metrics.put_metric('a' * 300, 1)\n"
            "elastrun.metrics.put_metric(3, 1)\n"
            "elastrun.metrics.api.reporter.reporter.flush()\n"
            "print(elastrun.metrics.api.reporter.reporter.refused)")
        self.assertEqual(packets, [{"kind": "metric", "name": "a", "value": 1,
                                    "group": "torchelastic", "count": 3, "sum": 5, "min": 1,
                                    "max": 3, "not_finite": 2}])
        self.assertEqual(self.said, "5\n")

    def test_a_sample_may_say_of_which_step_it_is(self) -> None:
        packets = self.run_worker(
            "elastrun.step(3)\n"
            "put = elastrun.metrics.put_metric\n"
            + HELD +
            "    put('a', 1, step=7)\n    put('a', 2, step=8)\n"
            "    put('b', 1)\n    put('c', 1, step='x')\n"
            "elastrun.metrics.api.reporter.reporter.flush()\n"
            "put('a', 3)\n"
            "elastrun.metrics.api.reporter.reporter.flush()\n"
            "print(elastrun.telemetry.losses())")
        self.assertEqual([(one["name"], one["step"]) for one in packets if one["kind"] == "metric"],
                         [("a", 8), ("b", 3), ("a", 3)])
        self.assertEqual(self.said, "{'messages': 0, 'samples': 1, 'metric_handlers': 0, "
                         "'event_handlers': 0, 'stat_values': 0, 'goodput_entries': 0, "
                         "'agent': 0}\n")

    def test_samples_come_one_by_one_where_that_is_wanted(self) -> None:
        packets = self.run_worker(
            "import time\n"
            "put = elastrun.metrics.put_metric\n"
            + HELD +
            "    put('a', 1, 'g')\n    put('b', 2.5, 'g', unit='s')\n"
            "    elastrun.step(7)\n"
            "    time.sleep(0.01)\n    put('a', float('nan'), 'g')\n    put('a', 3, 'g', step=9)\n"
            "    put(3, 1)\n    put('c\\ud800', 4, 'g', labels={'layer': 3})\n",
            ELASTRUN_SAMPLES="1000")
        told = [one for one in packets if one["kind"] == "samples"]
        rows = [(one["series"][row[0]][1], row[2], *row[3:]) for one in told
                for row in one["samples"]]
        self.assertEqual(rows, [("a", 1), ("b", 2.5), ("a", "nan", 7), ("a", 3, 9), ("c?", 4, 7)])
        self.assertEqual(told[0]["series"][1], ["g", "b", {}, "s", ""])
        self.assertEqual(told[-1]["series"][-1], ["g", "c?", {"layer": "3"}])
        times = [row[1] for one in told for row in one["samples"]]
        self.assertEqual(times, sorted(times))
        self.assertGreater(times[2] - times[0], 0.009)
        self.assertLess(abs(time.time() - times[0]), 60)
        # Sums of them are told as well, and say so.
        sums = {one["name"]: one for one in packets if one["kind"] == "metric"}
        self.assertTrue(all(one["each"] for one in sums.values()))
        self.assertEqual(sums["a"]["sum"], 4)

    def test_beyond_the_budget_samples_are_counted(self) -> None:
        packets = self.run_worker(
            HELD +
            "    for i in range(3000): elastrun.metrics.put_metric('a', i, 'g' if i % 3 else 'h')\n"
            "    elastrun.metrics.put_metric('b', 1, '\\ud800')\n",
            ELASTRUN_SAMPLES="1000")
        told = [one for one in packets if one["kind"] == "samples"]
        rows = [row[2] for one in told for row in one["samples"]]
        self.assertEqual(rows, list(range(1000)))
        more = [one["suppressed"] for one in told if "suppressed" in one]
        self.assertEqual(more, [{"h": 666, "g": 1334, "?": 1}])
        self.assertEqual(sum(one.get("count", 1) for one in packets if one["kind"] == "metric"),
                         3001)

    def test_nothing_is_told_one_by_one_for_nobody(self) -> None:
        for odd in ("", "0", "-3", "many"):
            packets = self.run_worker("elastrun.metrics.put_metric('a', 1)", ELASTRUN_SAMPLES=odd)
            self.assertEqual(packets, [{"kind": "metric", "name": "a", "value": 1,
                                        "group": "torchelastic"}])

    def test_a_series_may_have_labels_a_unit_and_a_help(self) -> None:
        packets = self.run_worker(
            "metrics = elastrun.metrics\n"
            + HELD +
            "    for layer in (1, 2, 1):\n"
            "        metrics.put_metric('norm', layer, 'g', labels={'layer': layer, 'a': 'b'},\n"
            "                           unit='1', help='Of gradients.')\n"
            "    metrics.count_metric('tokens', 5, 'g', labels={'set': 'x'}, unit='{token}')\n"
            "    elastrun.metric('now', 1, labels={'k': None}, unit='s', help='h')\n"
            "    class Bad:\n        def __str__(self): raise OSError\n"
            "    for odd in ({Bad(): 1}, {'a': Bad()}, 3, {'': 1}, dict.fromkeys(range(17))):\n"
            "        metrics.put_metric('odd', 1, 'g', labels=odd)\n"
            "        elastrun.metric('odd', 1, labels={'x': Bad()})\n"
            "    metrics.put_metric('odd', 1, 'g', unit=Bad())\n"
            "print(elastrun.telemetry.losses()['samples'], elastrun.dropped())")
        got = {(one["name"], str(one.get("labels"))): one for one in packets}
        self.assertEqual(len(got), 4)
        first = got["norm", "{'a': 'b', 'layer': '1'}"]
        self.assertEqual((first["count"], first["unit"], first["help"]), (2, "1", "Of gradients."))
        self.assertEqual(got["norm", "{'a': 'b', 'layer': '2'}"]["value"], 2)
        self.assertEqual(got["tokens", "{'set': 'x'}"]["unit"], "{token}")
        self.assertEqual(got["now", "{'k': 'None'}"]["help"], "h")
        self.assertEqual(self.page.series()["g/norm{a=b,layer=1}"], (1.0, 2))
        self.assertEqual(self.said, "6 5\n")

    def test_series_with_labels_are_bounded(self) -> None:
        self.run_worker(
            "reporter = elastrun.metrics.api.reporter.reporter\n"
            + HELD +
            "    for i in range(2500):\n"
            "        elastrun.metrics.put_metric('a', 1, 'g', labels={'i': i}, unit='s')\n"
            "        elastrun.metrics.observe_metric('h', 1, 'g', labels={'i': i})\n"
            "    overflow = reporter._series['worker', 'otel.metric.overflow'].pending\n"
            "    print(len(reporter._series), len(overflow), len(reporter._kinds['histogram']),\n"
            "          len(reporter._meanings), reporter.refused)\n")
        self.assertEqual(self.said, "2001 500 2000 2000 500\n")

    def test_histograms_cross_the_channel(self) -> None:
        packets = self.run_worker(
            HELD +
            "    for i in (0, 1, 1.5, 2, -4, 0.001, float('nan')):\n"
            "        elastrun.metrics.observe_metric('h', i, 'g', unit='s', labels={'a': 1})\n"
            "    for power in range(-300, 300):\n"
            "        elastrun.metrics.observe_metric('wide', 10.0 ** power, 'g')\n"
            "elastrun.metrics.observe_metric('h', 'x')")
        one, wide = packets
        self.assertEqual({key: one[key] for key in ("type", "count", "sum", "min", "max", "unit",
                                                    "zeros", "buckets", "negative", "scale")},
                         {"type": "histogram", "count": 6, "sum": 0.501, "min": -4, "max": 2,
                          "unit": "s", "zeros": 1, "scale": 5, "negative": [[63, 1]],
                          "buckets": [[-319, 1], [-1, 1], [18, 1], [31, 1]]})
        self.assertEqual(sum(count for _, count in wide["buckets"]), 600)
        self.assertLess(wide["buckets"][-1][0] - wide["buckets"][0][0], 640)

    def test_what_children_of_multiprocessing_tell_last_is_heard(self) -> None:
        script = ("import datetime, multiprocessing\n"
                  "monitor = elastrun.monitor\n"
                  "loss = monitor.Stat('loss', [monitor.Aggregation.SUM],\n"
                  "                    datetime.timedelta(hours=1))\n"
                  "def load(n):\n"
                  "    for i in range(50): elastrun.metrics.count_metric('samples', 1, 'data')\n"
                  "    elastrun.metrics.put_metric('size', n, 'data')\n"
                  "    loss.add(n)\n"
                  "    if n == 2: raise SystemExit(0)\n"
                  "context = multiprocessing.get_context('fork')\n"
                  "loaders = [context.Process(target=load, args=(n,)) for n in (1, 2)]\n"
                  "for one in loaders: one.start()\n"
                  "for one in loaders: one.join()\n"
                  "elastrun.metrics.put_metric('size', 3, 'data')\n")
        packets = self.run_worker(script)
        self.assertEqual(sum(one["value"] for one in packets if one["name"] == "samples"), 100)
        self.assertEqual(sorted(one["value"] for one in packets if one["name"] == "size"),
                         [1, 2, 3])
        self.assertEqual(sorted(one["attributes"]["loss.sum"] for one in packets
                                if one["kind"] == "event"), [1, 2])

    def test_a_child_of_multiprocessing_that_imports_us_itself_is_heard(self) -> None:
        env = dict(os.environ, PYTHONPATH=PACKAGE, ELASTRUN_CHANNEL=self.listener.path)
        subprocess.run([sys.executable, "-c",
                        "import multiprocessing\n"
                        "def load():\n"
                        "    from elastrun import metrics\n"
                        "    for i in range(50): metrics.count_metric('samples', 1, 'data')\n"
                        "one = multiprocessing.get_context('fork').Process(target=load)\n"
                        "one.start()\none.join()\n"], env=env, check=True, timeout=60)
        told = [one for packets in self.listener.packets() for one in packets]
        self.assertEqual(sum(one["value"] for one in told), 50)

    def test_a_signal_handler_may_wake_the_thread_wherever_that_is_woken(self) -> None:
        self.run_worker(
            "import faulthandler, sys\n"
            "faulthandler.dump_traceback_later(30, exit=True)\n"
            "duty = elastrun.channel.outbox.duty(lambda: None)\n"
            "def interrupt(frame, what, argument):\n"  # what comes between any two lines
            "    duty.wake()\n"
            "    return interrupt\n"
            "for _ in range(3):\n"  # the first one starts the thread
            "    sys.settrace(interrupt)\n    duty.wake()\n    sys.settrace(None)\n"
            "print('woken')")
        self.assertEqual(self.said, "woken\n")

    def test_long_labels_and_names_of_any_script_make_no_packet_too_long(self) -> None:
        packets = self.run_worker(
            HELD +
            "    for i in range(40):\n"
            "        elastrun.metrics.put_metric('\u6307\u6807' * 20 + str(i), i, 'g',\n"
            "                                    labels={'layer': '\u5c42' * 200})\n",
            ELASTRUN_SAMPLES="1000")
        single = [one for one in packets if one["kind"] == "samples"]
        self.assertEqual(sum(len(one["samples"]) for one in single), 40)
        self.assertLess(max(len(json.dumps(one)) for one in single), 16_384)
        labels = {value for one in packets for value in one.get("labels", {}).values()}
        self.assertEqual(labels, {"\u5c42" * 85})  # 255 bytes

    def test_a_series_that_is_too_long_for_a_packet_keeps_no_other_from_the_agent(self) -> None:
        packets = self.run_worker(
            "import faulthandler\n"
            "faulthandler.dump_traceback_later(30, exit=True)\n"
            + HELD +
            "    elastrun.metrics.put_metric('long', 1, 'g', labels={\n"
            "        chr(0x4e00 + i) + '\u5c42' * 84: '\u5c42' * 85 for i in range(16)})\n"
            "    elastrun.metrics.put_metric('short', 2, 'g')\n",
            ELASTRUN_SAMPLES="1000")
        names = [row[1] for one in packets if one["kind"] == "samples" for row in one["series"]]
        self.assertEqual(names[-1], "short")

    def test_a_histogram_of_nan_alone_takes_no_other_kinds_place(self) -> None:
        packets = self.run_worker(
            HELD +
            "    for bad in ('nan', 'inf'):\n"
            "        elastrun.metrics.observe_metric('h', float(bad), 'g')\n"
            "elastrun.metrics.api.reporter.reporter.flush()\n"
            "print(elastrun.dropped())\n"
            "elastrun.metrics.observe_metric('h', 1, 'g')")
        self.assertEqual([one["type"] for one in packets], ["histogram"])
        self.assertEqual(self.said, "2\n")

    def test_a_step_goes_with_its_sample_only(self) -> None:
        packets = self.run_worker(
            "elastrun.step(3)\n"
            "put, reporter = elastrun.metrics.put_metric, elastrun.metrics.api.reporter.reporter\n"
            + HELD +
            "    put('a', float, step=5)\n    put('a', 1)\n"  # refused, and its step with it
            "    for i in range(4000): put(f'n{i}', 1, step=i)\n"
            "    print(reporter.refused)\n"
            "reporter.flush()\n"
            "print(any(one.of_step for one in reporter._series.values()))")
        self.assertEqual([one["step"] for one in packets if one.get("name") == "a"], [3])
        self.assertEqual(self.said, "1\nFalse\n")

    def test_lone_surrogates_in_names_are_replaced(self) -> None:
        packets = self.run_worker(
            HELD +
            "    for name in ('a\\ud800', 'a\\udfff'):\n"
            "        elastrun.metrics.put_metric(name, 1, '\\ud800')\n"
            "    elastrun.metrics.count_metric('n\\ud800', 2)\n"
            "elastrun.metrics.api.reporter.reporter.flush()\n"
            "print(elastrun.metrics.api.reporter.reporter.refused)")
        self.assertEqual([(one["group"], one["name"], one.get("count")) for one in packets],
                         [("?", "a?", 2), ("torchelastic", "n?", None)])
        self.assertEqual(self.said, "0\n")

    def test_names_made_of_numbers_are_told_as_one(self) -> None:
        packets = self.run_worker(
            "for i in range(4000): elastrun.metrics.put_metric(f'n{i}', 1)\n"
            "elastrun.metrics.api.reporter.reporter.flush()\n")
        names = {packet["name"] for packet in packets}
        self.assertLessEqual(len(names), 2001)
        self.assertEqual(len(self.page.series()), 127)

    def test_what_an_agent_that_is_behind_has_not_heard_is_told_later(self) -> None:
        packets = self.run_worker(
            "while elastrun.dropped() == 0: elastrun.step(1)\n"
            "for i in range(10): elastrun.metrics.put_metric('a', i)\n"
            "reporter = elastrun.metrics.api.reporter.reporter\n"
            "reporter.flush()\n"
            "print(reporter._series['torchelastic', 'a'].count)\n")
        self.assertEqual(self.said, "10\n")
        self.assertEqual({packet["kind"] for packet in packets}, {"step"})

    def test_a_second_passes_and_the_agent_knows_while_the_process_goes_on(self) -> None:
        packets = self.run_worker(
            "import time\n"
            "elastrun.metrics.put_metric('a', 1)\n"
            "time.sleep(0.01)\n"
            "while elastrun.metrics.api.reporter.reporter._has_more():\n"
            "    time.sleep(0.01)\n"
            "import os; os._exit(0)\n")
        self.assertEqual([packet["name"] for packet in packets], ["a"])

    def test_one_thread_takes_all_to_the_agent(self) -> None:
        self.run_worker(
            "import threading\n"
            "from elastrun.goodput import GoodputRecorder\n"
            "elastrun.metrics.put_metric('a', 1)\n"
            "elastrun.metrics.count_metric('b', 1)\n"
            "GoodputRecorder('j', 'l', True).record_step_start_time(1)\n"
            "while elastrun.dropped() == 0: elastrun.step(1)\n"
            "elastrun.phase('eval')\n"  # which is owed now
            "print([one.name for one in threading.enumerate()])\n")
        self.assertEqual(self.said, "['MainThread', 'elastrun-outbox']\n")

    def test_something_due_that_fails_is_counted_and_the_thread_goes_on(self) -> None:
        self.run_worker(
            "import time\n"
            "outbox, calls = elastrun.channel.outbox, []\n"
            "def due():\n    calls.append(1)\n    1 / 0\n"
            "outbox.duty(due).wake()\n"
            "while len(calls) < 2 and outbox.is_alive(): time.sleep(0.01)\n"
            "print(outbox.is_alive(), elastrun.telemetry.losses()['messages'] > 0)\n")
        self.assertEqual(self.said, "True True\n")

    def test_where_no_thread_can_start_a_later_sample_tries_again(self) -> None:
        self.run_worker(
            "import threading\n"
            "put = elastrun.metrics.put_metric\n"
            "start = threading.Thread.start\n"
            "def refuse(thread): raise RuntimeError('no more threads')\n"
            "threading.Thread.start = refuse\n"
            "put('a', 1)\n"
            "threading.Thread.start = start\n"
            "for _ in range(1024): put('a', 1)\n"
            "print(elastrun.channel.outbox.is_alive())\n")
        self.assertEqual(self.said, "True\n")

    def test_a_sample_as_the_thread_goes_to_sleep_makes_it_not_spin_while_the_agent_is_behind(
            self) -> None:
        self.run_worker(
            "reporter, more = elastrun.metrics.api.reporter.reporter, [True, False]\n"
            "reporter._has_more = lambda: more.pop() if more else True\n"
            "reporter.flush = lambda: None\n"
            "print([reporter._pass() for _ in range(3)])\n"
            "del reporter.flush, reporter._has_more\n")
        self.assertEqual(self.said, "[1.0, 1.0, 1.0]\n")

    def test_a_forked_child_tells_its_own_samples_only(self) -> None:
        packets = self.run_worker(
            "import os\n"
            "elastrun.metrics.put_metric('parent', 1)\n"
            "elastrun.step(3)\n"
            "child = os.fork()\n"
            "if child: os.waitpid(child, 0)\n"
            "else:\n"
            "    elastrun.metrics.put_metric('child', 1)\n"
            "    elastrun.step(99)\n")
        self.assertEqual(sorted(packet["name"] for packet in packets if "name" in packet),
                         ["child", "parent"])
        self.assertEqual(list(self.page.series()), ["torchelastic/parent"])
        self.assertEqual(self.page.words(4), (3,))

    def test_events_reach_the_agent_whatever_their_destination(self) -> None:
        packets = self.run_worker(
            "from elastrun.events import *\n"
            "record(Event('e', EventSource.WORKER, 1_500, {'a': 1, 'b': None}))\n"
            "record_rdzv_event(RdzvEvent('n', 'r', 'm', 'h', 3, NodeState.FAILED))\n")
        self.assertEqual(packets[0], {"kind": "event", "name": "e", "time": 1.5, "attributes": {
            "a": 1, "b": None, "source": "WORKER"}})
        self.assertEqual(packets[1]["attributes"]["node_state"], "FAILED")

    def test_the_page_has_the_last_step_and_values_after_sigkill(self) -> None:
        before = time.monotonic_ns()
        done = worker("import os, signal\n"
                      "for i in range(100): elastrun.step(i)\n"
                      "elastrun.metric('loss', 0.25)\n"
                      "elastrun.metrics.put_metric('lr', 3, 'opt')\n"
                      "elastrun.phase('eval')\n"
                      "print(os.getpid(), flush=True)\n"
                      "os.kill(os.getpid(), signal.SIGKILL)",
                      self.listener.path, ELASTRUN_PAGE=self.page.path)
        self.assertEqual(self.page.owner(), int(done.stdout))
        lock, step, at = self.page.words(3, 4, 5)
        self.assertEqual((lock % 2, step), (0, 99))
        self.assertTrue(before < at < time.monotonic_ns())
        self.assertEqual(os.pread(self.page.descriptor, 32, 48).rstrip(b"\0"), b"eval")
        self.assertEqual(self.page.series(), {"worker/loss": (0.25, 1), "opt/lr": (3, 1)})

    def test_pages_that_are_none_are_left_alone(self) -> None:
        other = SharedPage()
        self.addCleanup(other.close)
        os.pwrite(other.descriptor, b"\1", 8 + 4 + 4)  # that of process 1
        short = SharedPage(size=64)
        self.addCleanup(short.close)
        newer = SharedPage()
        self.addCleanup(newer.close)
        os.pwrite(newer.descriptor, b"\2", 8)
        for path in (other.path, short.path, newer.path, "/nonexistent", "/dev/null", "/"):
            with self.subTest(path=path):
                self.run_worker("elastrun.step(1)\nelastrun.metrics.put_metric('a', 1)",
                                ELASTRUN_PAGE=path)
        self.assertEqual(other.words(3, 4), (0, 0))

    def test_steps_that_a_page_cannot_hold(self) -> None:
        self.run_worker("elastrun.step(2**70)\nelastrun.step(-5)\nelastrun.step(2.7)")
        self.assertEqual(self.page.words(4), (2,))


class Outside(unittest.TestCase):
    def test_no_thread_no_output_no_failure(self) -> None:
        done = worker("import threading\nfrom datetime import timedelta\n"
                      "elastrun.metrics.put_metric('a', 1)\n"
                      "from elastrun.events import *\n"
                      "record(Event('e', EventSource.WORKER))\n"
                      "from elastrun.monitor import *\n"
                      "stat = Stat('s', [Aggregation.SUM], timedelta(seconds=1))\n"
                      "stat.add(1)\n"
                      "print(elastrun.bridge.torch(), threading.active_count())", None)
        self.assertEqual((done.stdout, done.stderr), ("False 1\n", ""))

    def test_the_package_alone_imports_only_what_it_needs(self) -> None:
        done = worker("import sys\nprint([m for m in ('dataclasses', 'inspect', 'runpy', 'mmap') "
                      "if m in sys.modules and m != 'mmap'])", None)
        self.assertEqual((done.stdout, done.stderr), ("[]\n", ""))


if __name__ == "__main__":
    unittest.main()
