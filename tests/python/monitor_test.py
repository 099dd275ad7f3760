# SPDX-License-Identifier: Apache-2.0
"""elastrun.monitor: M1 to M17 and D1 to D8 are torch.monitor's own vectors, for doubles, which are
all that its Python has; what we do otherwise is called a deviation.
"""
from __future__ import annotations

import contextlib
import contextvars
import gc
import logging
import math
import os
import subprocess
import sys
import time
import unittest
from collections.abc import Iterator
from datetime import datetime, timedelta
from types import FrameType

from agent_end import PACKAGE, AgentEnd, worker

from elastrun import monitor, telemetry  # noqa: E402
from elastrun.monitor import Aggregation as A  # noqa: E402
from elastrun.monitor import Event, Stat  # noqa: E402

SECOND, HOUR = timedelta(seconds=1), timedelta(hours=1)


FORKS = """
import os, signal, sys, threading
from datetime import timedelta
from elastrun import monitor
who = "parent"
monitor.register_event_handler(lambda event: print(who, event.data, flush=True))
stat = monitor.Stat("a", [monitor.Aggregation.SUM], timedelta(days=9999))
stat.add(1)
held, done = threading.Event(), threading.Event()
def hold():
    with stat._lock, monitor._change:
        held.set()
        done.wait()
threading.Thread(target=hold).start()
held.wait()
if os.fork() == 0:
    who = "child"
    signal.alarm(60)
    stat.add(2)
    monitor.wait_counter_values()
    sys.exit()
print(os.wait()[1], flush=True)
done.set()
"""


class Heard(unittest.TestCase):
    def setUp(self) -> None:
        gc.collect()  # a Stat in a cycle of an earlier test lives until then
        self.events: list[Event] = []
        handle = monitor.register_event_handler(self.events.append)
        self.addCleanup(monitor.unregister_event_handler, handle)
        self.addCleanup(setattr, monitor, "_now", time.monotonic)


class Windows(Heard):
    def setUp(self) -> None:
        super().setUp()
        self.at(1)

    def at(self, window: int, length: timedelta = SECOND) -> None:
        """As torch's tests pin it."""
        monitor._now = lambda: (window - 0.5) * length.total_seconds()

    def data(self) -> list[dict[str, object]]:
        return [event.data for event in self.events]

    def test_m1_mean_and_count(self) -> None:
        stat = Stat("a", [A.MEAN, A.COUNT], timedelta(seconds=100), 2)
        stat.add(5.0)
        self.assertEqual(stat.count, 1)
        stat.add(6.0)
        self.assertEqual(stat.count, 0)
        self.assertEqual(stat.get(), {A.MEAN: 5.5, A.COUNT: 2})
        self.assertEqual(stat.name, "a")

    def test_m2_to_m5_each_aggregation(self) -> None:
        for one, values, expected in ((A.SUM, (5, 6), 11), (A.VALUE, (5, 6), 6),
                                      (A.MEAN, (0, 10), 5), (A.COUNT, (0, 10), 2)):
            with self.subTest(one):
                stat = Stat("a", [one], timedelta(seconds=100), 2)
                self.assertEqual(stat.get(), {one: 0})
                for value in values:
                    stat.add(value)
                self.assertEqual(stat.get(), {one: expected})
                self.assertEqual(stat.count, 0)
                del stat

    def test_m6_smallest_and_largest(self) -> None:
        stat = Stat("a", [A.MIN, A.MAX], timedelta(seconds=100), 6)
        self.assertEqual(stat.get(), {A.MAX: 0, A.MIN: 0})
        for value in (0, 5, -5, -6, 9, 2):
            stat.add(value)
        self.assertEqual(stat.get(), {A.MAX: 9, A.MIN: -6})

    def test_m7_m8_m14_after_its_number_of_values_a_window_takes_no_more(self) -> None:
        for window in (timedelta(seconds=100), timedelta(days=3650), timedelta(hours=100)):
            stat = Stat("a", [A.COUNT, A.SUM], window, 3)
            stat.add(1)
            stat.add(2)
            self.assertEqual(stat.count, 2)
            stat.add(3)
            self.assertEqual(stat.count, 0)
            stat.add(4)
            self.assertEqual((stat.count, stat.dropped), (0, 1))
            self.assertEqual(stat.get(), {A.COUNT: 3, A.SUM: 6.0})
            del stat
        self.assertEqual(len(self.events), 3)

    def test_m9_m13_by_the_kernels_clock(self) -> None:
        monitor._now = time.monotonic
        stat = Stat("m9", [A.SUM, A.COUNT], timedelta(milliseconds=1))
        stat.add(2)
        for _ in range(100):
            time.sleep(0.001)
            stat.add(3)
            if self.events:
                break
        self.assertGreaterEqual(len(self.events), 1)
        self.assertEqual(stat.name, "m9")
        self.assertLessEqual(stat.count, 1)

    def test_m10_a_window_that_is_over_is_one_event_with_exactly_its_aggregations(self) -> None:
        stat = Stat("a", [A.COUNT, A.SUM], SECOND)
        stat.add(1)
        stat.add(2)
        self.assertEqual(self.events, [])
        self.at(100)
        before = datetime.now()
        stat.add(3)
        event, = self.events
        self.assertEqual(event.name, "torch.monitor.Stat")
        self.assertTrue(before <= event.timestamp <= datetime.now())
        self.assertEqual(event.data, {"a.sum": 3, "a.count": 2})

    def test_m11_d7_the_end_of_a_stat_tells_what_is_open_and_nothing_if_nothing_is(self) -> None:
        stat = Stat("a", [A.COUNT, A.SUM], 10 * HOUR)
        stat.add(1)
        self.assertEqual(self.events, [])
        del stat
        self.assertEqual(self.data(), [{"a.sum": 1, "a.count": 1}])
        del self.events[:]
        Stat("a", [A.COUNT], 10 * HOUR)
        self.assertEqual(self.events, [])

    def test_m12_m15_handlers_get_events_as_logged_while_they_are_registered(self) -> None:
        event = Event("torch.elastic.x", datetime.now(),
                      {"string": "asdf", "double": 1234.5678, "int": 1234, "bool": True})
        seen: list[Event] = []
        monitor.log_event(event)
        handle = monitor.register_event_handler(seen.append)
        monitor.log_event(event)
        self.assertEqual(seen, [event])
        monitor.log_event(event)
        self.assertTrue(monitor.unregister_event_handler(handle))
        monitor.log_event(event)
        self.assertEqual(len(seen), 2)
        # Deviation: torch's behaviour is undefined.
        self.assertFalse(monitor.unregister_event_handler(handle))

    def test_m16_d5_tensorboard_gets_one_point_for_each_aggregation(self) -> None:
        points: list[tuple[str, float, int, float]] = []

        class Writer:
            def add_scalar(self, tag: str, value: float, global_step: int,
                           walltime: float) -> None:
                points.append((tag, value, global_step, walltime))

        handler = monitor.TensorboardEventHandler(Writer())
        handle = monitor.register_event_handler(handler)
        self.addCleanup(monitor.unregister_event_handler, handle)
        monitor.log_event(Event("other", datetime.now(), {"x": 1}))
        stat = Stat("asdf", [A.SUM, A.COUNT], HOUR, 5)
        for value in range(10):
            stat.add(value)
        self.assertEqual(stat.count, 0)
        self.assertEqual(sorted(point[:3] for point in points),
                         [("asdf.count", 5, 0), ("asdf.sum", 10, 0)])
        self.at(2, HOUR)
        for value in range(5):
            stat.add(value)
        self.assertEqual([point[2] for point in points], [0, 0, 1, 1])  # torch: all at step 0

    def test_m17_a_wait_counter(self) -> None:
        for _ in range(3):
            with monitor._WaitCounter("test_counter").guard():
                pass
        values = monitor.wait_counter_values()["test_counter"]
        self.assertEqual((values["total_calls"], values["active_count"]), (3, 0))
        self.assertGreaterEqual(values["total_time_us"], values["max_time_us"])

    def test_d1_d2_the_next_window_takes_values_and_get_keeps_the_last(self) -> None:
        stat = Stat("a", [A.SUM], SECOND, 3)
        for value in (1, 2, 3, 4):
            stat.add(value)
        self.at(2)
        stat.add(5)
        self.assertEqual(self.data(), [{"a.sum": 6}])
        self.assertEqual(stat.count, 1)
        self.assertEqual(stat.get(), {A.SUM: 6})  # deviation: torch's turns to 0

    def test_d3_windows_without_values_are_none(self) -> None:
        stat = Stat("a", [A.SUM], SECOND)
        for window, values in ((1, (1, 2)), (100, (3,)), (103, (9,))):
            self.at(window)
            for value in values:
                stat.add(value)
        self.assertEqual(self.data(), [{"a.sum": 3}, {"a.sum": 3}])

    def test_d4_one_value_a_window(self) -> None:
        stat = Stat("a", [A.SUM], SECOND, 1)
        stat.add(1)
        stat.add(2)
        self.at(2)
        stat.add(3)
        self.assertEqual(self.data(), [{"a.sum": 1}, {"a.sum": 3}])

    def test_d6_the_mean_is_no_whole_number(self) -> None:
        stat = Stat("a", [A.MEAN], SECOND, 2)
        stat.add(-1)
        stat.add(-2)
        self.assertEqual(stat.get(), {A.MEAN: -1.5})  # Python's Stat is of doubles

    def test_d8_nothing_is_carried_over(self) -> None:
        stat = Stat("a", [A.MIN, A.MAX], SECOND, 1)
        stat.add(7)
        self.at(2)
        stat.add(-7)
        self.assertEqual(self.data(), [{"a.max": 7, "a.min": 7}, {"a.max": -7, "a.min": -7}])

    def test_deviation_a_handler_may_do_anything_and_loses_only_its_own_event(self) -> None:
        stat = Stat("a", [A.SUM], SECOND, 1)
        late: list[Event] = []

        def handler(event: Event) -> None:
            if event.name == monitor.STAT_EVENT:
                self.assertEqual(stat.get(), {A.SUM: 7})
                stat.add(1)
                monitor.log_event(Event("from a handler", datetime.now(), {}))
                self.addCleanup(monitor.unregister_event_handler,
                                monitor.register_event_handler(late.append))
                monitor.unregister_event_handler(handle)
                raise RuntimeError("on purpose")

        handle = monitor.register_event_handler(handler)
        before = monitor.failures()
        stat.add(7)
        monitor.log_event(Event("after", datetime.now(), {}))
        self.assertEqual(monitor.failures(), before + 1)
        self.assertEqual([event.name for event in late], ["after"])
        self.assertEqual(len(self.events), 3)

    def test_deviation_a_window_ends_on_time_though_nobody_adds(self) -> None:
        stat = Stat("a", [A.SUM], SECOND)
        self.assertIsNone(monitor.close_due())
        stat.add(4)
        self.assertEqual(monitor.close_due(), 0.5)
        self.at(2)
        self.assertIsNone(monitor.close_due())
        self.assertEqual(self.data(), [{"a.sum": 4}])
        self.assertEqual(stat.get(), {A.SUM: 4})

    def test_deviation_no_window_of_no_time_and_one_stat_of_a_name(self) -> None:
        stat = Stat("a", [A.SUM], SECOND)
        for bad in (("b", [A.SUM], timedelta(microseconds=999)), ("b", [A.SUM], SECOND, 0),
                    ("a", [A.MEAN], SECOND), ("a", [A.SUM], 2 * SECOND), ("a", [A.SUM], SECOND, 5)):
            with self.subTest(bad), self.assertRaisesRegex(ValueError, f"Stat '{bad[0]}'"):
                Stat(*bad)
        Stat("a", [A.SUM], SECOND).add(1)
        self.assertEqual(stat.count, 1)

    def test_a_forked_child_waits_for_no_lock_of_its_parent_and_tells_none_of_its_windows(
            self) -> None:
        done = subprocess.run([sys.executable, "-B", "-c", FORKS], capture_output=True, text=True,
                              env=dict(os.environ, PYTHONPATH=PACKAGE))
        self.assertEqual((done.stdout, done.stderr),
                         ("child {'a.sum': 2.0}\n0\nparent {'a.sum': 1.0}\n", ""))

    def test_deviation_nan_and_infinities_are_dropped(self) -> None:
        stat = Stat("a", [A.SUM, A.COUNT], SECOND, 2)
        for value in (1, float("nan"), float("inf"), 10**400, 2):
            stat.add(value)
        self.assertEqual(self.data(), [{"a.sum": 3, "a.count": 2}])
        self.assertEqual(stat.dropped, 3)

    def test_what_torch_announced_and_never_built(self) -> None:
        stat = Stat("a", [A.STDDEV, A.P50, A.P99, A.P999], SECOND, 200)
        for value in range(-100, 101):
            if value:
                stat.add(value)
        values = stat.get()
        self.assertAlmostEqual(values[A.STDDEV], 58.168, places=3)
        for one, exact in ((A.P50, -1), (A.P99, 98), (A.P999, 100)):
            self.assertLessEqual(abs(values[one] - exact), abs(exact) * 0.0109, one)

    def test_numbers_of_other_packages_and_bytes_are_data_as_with_torch(self) -> None:
        class Whole:  # numpy.int64
            def __index__(self) -> int:
                return 3

        class Real:  # numpy.float32; a tensor has both
            def __index__(self) -> int:
                raise TypeError

            def __float__(self) -> float:
                return 1.5

        event = Event("e", data={"a": Whole(), "b": Real(), "c": b"x\xff", "d": True})
        self.assertEqual(event.data, {"a": 3, "b": 1.5, "c": "x\ufffd", "d": True})
        self.assertEqual([type(one) for one in event.data.values()], [int, float, str, bool])

    def test_data_of_other_types_is_refused(self) -> None:
        for bad in ({"a": None}, {"a": [1]}, {1: "a"}):
            with self.subTest(bad), self.assertRaisesRegex(TypeError, "event 'e'"):
                Event("e", datetime.now(), bad)


class Wishes(Heard):
    """What the reviewers of the RFC asked for, and torch.monitor does not have."""

    def test_without_a_window_size_each_number_of_values_is_a_window_and_none_is_dropped(self
                                                                                       ) -> None:
        stat = Stat("a", [A.SUM, A.STDDEV], max_samples=2)
        for value in (1, 3, 5, 5, 9):
            stat.add(value)
        self.assertEqual([event.data for event in self.events],
                         [{"a.sum": 4, "a.stddev": 1}, {"a.sum": 10, "a.stddev": 0}])
        self.assertEqual((stat.count, stat.dropped), (1, 0))
        monitor.close_due()
        self.assertEqual(stat.count, 1)
        with self.assertRaisesRegex(ValueError, "give a window_size, max_samples or both"):
            Stat("b", [A.SUM])

    def test_a_window_size_that_is_a_number_is_one_of_values(self) -> None:
        stat = Stat("a", [A.SUM], window_size=2)
        for value in (1, 3, 5):
            stat.add(value)
        self.assertEqual([event.data for event in self.events], [{"a.sum": 4}])
        self.assertIs(Stat("a", [A.SUM], 2), stat)
        for wrong in ({"window_size": 0}, {"window_size": 2.5}, {"window_size": 2,
                                                                 "max_samples": 2}):
            with self.assertRaisesRegex(ValueError, "Stat 'b'"):
                Stat("b", [A.SUM], **wrong)

    def test_a_histogram_has_all_values(self) -> None:
        stat = Stat("a", [A.HISTOGRAM, A.P50], max_samples=4)
        for value in (1, 1, -4, 100):
            stat.add(value)
        buckets = stat.histogram()
        self.assertEqual([count for _, count in buckets], [1, 2, 1])
        for (end, _), value in zip(buckets, (-4, 1, 100)):
            self.assertAlmostEqual(end, value, delta=abs(value) * 0.022)
        self.assertEqual(self.events[0].data["a.histogram"], "[[-4.0,1],[1.0,2],[100.863,1]]")
        self.assertEqual(stat.get(), {A.HISTOGRAM: 4, A.P50: stat.get()[A.P50]})

    def test_the_largest_doubles_have_buckets_too(self) -> None:
        most = sys.float_info.max
        stat = Stat("a", [A.HISTOGRAM, A.P50, A.P99, A.STDDEV], max_samples=3)
        for value in (most, -most, most):
            stat.add(value)
        self.assertEqual([count for _, count in stat.histogram()], [1, 2])
        values = stat.get()
        for one in (A.P50, A.P99):
            self.assertLessEqual(abs(values[one] / most - 1), 0.035, one)
        self.assertTrue(math.isnan(values[A.STDDEV]), "no double holds its squares")
        self.assertEqual(len(self.events), 1)

    def test_a_block_is_timed_also_if_it_raises(self) -> None:
        stat = Stat("a", [A.SUM], max_samples=2)
        with stat.add_time():
            time.sleep(0.01)
        with contextlib.suppress(KeyError), stat.add_time():
            raise KeyError
        self.assertTrue(0.01 <= stat.get()[A.SUM] < 5, stat.get())

    def test_stats_can_be_listed_by_name_with_unit_and_help(self) -> None:
        kept = [Stat("t.a", [A.SUM], HOUR, unit="s", help="of a step"), Stat("t.b", [A.MAX], HOUR),
                Stat("u", [A.SUM], HOUR)]
        found = monitor.stats("t.*")
        self.assertEqual(list(found), ["t.a", "t.b"])
        self.assertEqual((found["t.a"].unit, found["t.a"].help, found["t.a"].aggregations),
                         ("s", "of a step", (A.SUM,)))
        found["t.b"].add(3)
        self.assertEqual(kept[1].count, 1)

    def test_a_collector_has_an_explicit_zero_and_no_value_for_no_data(self) -> None:
        before = Stat("c.a", [A.MEAN, A.SUM], HOUR)
        collector = monitor.Collector("c.*", {"c.b*": [A.P99, A.COUNT]})
        after = Stat("c.b", [A.MEAN], max_samples=2)
        Stat("d", [A.MEAN], HOUR).add(1)
        self.assertEqual(collector.report(), {"c.a.count": 0, "c.a.sum": 0, "c.b.count": 0})
        for value in (1, 2, 3):
            before.add(value)
            after.add(5)
        expected = {"c.a.count": 3, "c.a.mean": 2, "c.a.sum": 6, "c.b.count": 3, "c.b.p99": 5}
        self.assertEqual(collector.report(), expected)
        self.assertEqual([count for _, count in collector.histogram("c.b")], [3])
        self.assertEqual(collector.histogram("none"), [])
        collector.reset()
        before.add(7)
        self.assertEqual(collector.report(), {"c.a.count": 1, "c.a.mean": 7, "c.a.sum": 7,
                                              "c.b.count": 0})

    def test_stats_and_collectors_may_be_made_while_others_list_them(self) -> None:
        kept: list[object] = [Stat("l.a", [A.SUM], HOUR), Stat("l.b", [A.SUM], HOUR)]
        collector = monitor.Collector("l.*")

        def make(frame: FrameType, event: str, _: object) -> object:
            """As another thread would, in the middle of a loop over weak references."""
            if event == "line":
                kept.append(Stat(f"l.{len(kept)}", [A.SUM], HOUR))
                kept.append(monitor.Collector("none"))
            return make if "weakref" in frame.f_code.co_filename else None

        before = sys.gettrace()
        self.addCleanup(sys.settrace, before)
        for call in (monitor.stats, monitor.close_due, collector.report, telemetry.losses,
                     lambda: monitor.Collector("l.*"), lambda: Stat("l.c", [A.SUM], HOUR)):
            sys.settrace(make)
            call()
            sys.settrace(before)
        self.assertGreater(len(kept), 3)
        self.assertIn("l.b.count", collector.report())

    def test_a_callback_is_asked_when_values_are_collected(self) -> None:
        asked: list[int] = []
        stat = Stat("o", [A.MAX], HOUR)
        stat.observe(lambda: asked.append(1) or len(asked))
        stat.observe(lambda: 1 / 0)
        collector = monitor.Collector("o")
        self.assertEqual((collector.report(), stat.dropped), ({"o.count": 1, "o.max": 1}, 1))
        collector.reset()
        self.assertEqual(collector.report()["o.max"], 2)

        def add_another() -> float:
            asked.append(1)
            if len(asked) < 99:
                adds.observe(add_another)
            return 1

        adds = Stat("p", [A.MAX], HOUR)
        adds.observe(add_another)
        before = len(asked)
        monitor.Collector("p").report()
        self.assertEqual(len(asked), before + 1)  # the one it adds is asked the next time

    def test_an_event_has_a_time_a_severity_and_an_id(self) -> None:
        event = Event("e", severity="error")
        self.assertLess(abs(event.timestamp.timestamp() - time.time()), 60)
        self.assertEqual((event.data, event.severity, event.span), ({}, "error", None))
        self.assertRegex(event.id, "^[0-9a-f]{16}$")
        self.assertEqual(event.id, event.id)
        with self.assertRaisesRegex(ValueError, "severity 'loud' is none of trace, debug"):
            Event("e", severity="loud")

    def test_a_severity_is_told_in_capitals_and_as_a_level_of_logging(self) -> None:
        said = ("INFO", "WARN", "Warning", "ERROR", "CRITICAL", 5, 10, 20, 30, 40, 50, logging.WARN)
        self.assertEqual([Event("e", severity=one).severity for one in said],
                         ["info", "warn", "warn", "error", "fatal", "trace", "debug", "info",
                          "warn", "error", "fatal", "warn"])
        with monitor.span("s", severity="WARN"):
            pass

    def test_spans_know_what_they_are_in(self) -> None:
        with contextlib.suppress(KeyError), monitor.span("epoch", number=3) as outer:
            with monitor.span("forward") as inner:
                monitor.log_event(Event("e"))
            raise KeyError
        monitor.log_event(Event("after"))
        self.assertEqual([(one.name, one.data.get("span.phase"), one.span, one.parent)
                          for one in self.events],
                         [("epoch", "start", outer, None), ("forward", "start", inner, outer),
                          ("e", None, inner, outer), ("forward", "stop", inner, outer),
                          ("epoch", "stop", outer, None), ("after", None, None, None)])
        last = self.events[4].data
        self.assertEqual((last["number"], last["span.error"]), (3, "KeyError"))
        took = self.events[4].timestamp - self.events[0].timestamp  # what traces are made of
        self.assertAlmostEqual(took.total_seconds(), last["span.seconds"], delta=2e-6)
        self.assertGreaterEqual(last["span.seconds"], self.events[3].data["span.seconds"])

    def test_a_span_that_ends_in_another_context_raises_nothing_and_changes_nothing_there(
            self) -> None:
        def batches() -> Iterator[int]:
            with monitor.span("inside"):
                yield 1

        generator = batches()
        contextvars.copy_context().run(next, generator)
        with monitor.span("around") as around:
            generator.close()
            monitor.log_event(Event("e"))
        start, _, stop, event, _ = self.events
        self.assertEqual((stop.span, stop.parent), (start.span, None))
        self.assertEqual(stop.data["span.error"], "GeneratorExit")
        self.assertEqual((event.name, event.span), ("e", around))

    def test_a_span_that_cannot_begin_is_around_nothing(self) -> None:
        with self.assertRaises(TypeError), monitor.span("bad", data=[1]):  # type: ignore[arg-type]
            pass
        self.assertIsNone(Event("e").span)

    def test_events_can_be_sampled_and_asked_for(self) -> None:
        self.addCleanup(setattr, monitor, "_sampling", ())
        self.assertTrue(monitor.is_enabled("data.read"))
        monitor.sample("data.*", 0.25)
        for number in range(8):
            monitor.log_event(Event("data.read", data={"n": number}))
            monitor.log_event(Event("other"))
        self.assertEqual([one.data["n"] for one in self.events if one.name == "data.read"], [0, 4])
        self.assertEqual(len(self.events), 10)
        monitor.sample("data.read", 0)
        self.assertFalse(monitor.is_enabled("data.read"))
        self.assertTrue(monitor.is_enabled("data.write"))
        monitor.log_event(Event("data.read"))
        self.assertEqual(len(self.events), 10)
        monitor.sample("span", 0.5)
        for _ in range(3):
            with monitor.span("span"):
                pass
        phases = [one.data["span.phase"] for one in self.events if one.name == "span"]
        self.assertEqual(phases, ["start", "stop"] * 2)  # of the first and the third
        with self.assertRaisesRegex(ValueError, "must be between 0 and 1"):
            monitor.sample("a", 2)
        done = worker("print(elastrun.monitor.is_enabled('e'))", None)
        self.assertEqual(done.stdout, "False\n")

    def test_a_window_without_values_may_be_zero_or_no_data(self) -> None:
        now = [1000.5]
        monitor._now = lambda: now[0]
        kinds = ("skip", "zero", "no_data")
        full = Stat("full", [A.SUM], timedelta(seconds=1), 1, on_empty="zero")
        full.add(3)  # told, and its window with it
        made = {one: Stat(one, [A.SUM, A.MIN], timedelta(seconds=1),
                          on_empty=one) for one in kinds}
        for stat in made.values():
            stat.add(3)
        now[0] += 1
        monitor.close_due()
        self.assertEqual([one.data for one in self.events if "full.sum" in one.data],
                         [{"full.sum": 3.0}])
        del self.events[:], full
        self.assertIsNotNone(monitor.close_due())
        now[0] += 1
        monitor.close_due()
        self.assertEqual([one.data for one in self.events], [
            {"zero.min": 0.0, "zero.sum": 0.0}, {"no_data.count": 0.0}])
        self.assertEqual(made["zero"].get()[A.SUM], 3)  # of the last with values
        del self.events[:], made, stat
        self.assertEqual(self.events, [])
        with self.assertRaisesRegex(ValueError, "'none' is none of skip, zero, no_data"):
            Stat("x", [], timedelta(seconds=1), on_empty="none")


class Agent(AgentEnd):
    def test_events_and_windows_reach_the_agent_on_time(self) -> None:
        packets = self.run_worker(
            "import os, time\nfrom datetime import datetime, timedelta\n"
            "from elastrun.monitor import *\n"
            "log_event(Event('e', datetime.fromtimestamp(12.5), {'a': 1, 'b': 'x'}))\n"
            "seen = []\n"
            "def slow(event): seen.append(event); time.sleep(0.3)\n"  # while the process ends
            "handle = register_event_handler(slow)\n"
            "stat = Stat('s', [Aggregation.SUM], timedelta(milliseconds=50))\n"
            "stat.add(2)\n"
            "while not seen: time.sleep(0.01)\n"
            "unregister_event_handler(handle)\n"
            "late = Stat('late', [Aggregation.SUM], timedelta(hours=1))\n"
            "late.add(3)\n")
        first, window, last = (one for one in packets if one["kind"] == "event")
        self.assertEqual(first, {"kind": "event", "name": "e", "time": 12.5,
                                 "attributes": {"a": 1, "b": "x"}})
        self.assertEqual((window["name"], window["attributes"]),
                         ("torch.monitor.Stat", {"s.sum": 2}))
        self.assertEqual(last["attributes"], {"late.sum": 3})  # at the end of the process
        self.assertEqual(self.page.series()["torch.monitor/s.sum"], (2, 1))

    def test_it_gets_histograms_unit_and_help_and_may_say_what_is_summarised(self) -> None:
        packets = self.run_worker(
            "from elastrun.monitor import *\n"
            "A = Aggregation\n"
            "a = Stat('a', [A.COUNT, A.HISTOGRAM], max_samples=3, unit='s', help='A help.')\n"
            "for value in (1, 2, 0): a.add(value)\n"
            "b = Stat('train.b', [A.MEAN], max_samples=2)\n"
            "b.add(4)\nb.add(6)\n"
            "c = Stat('c', [A.MEAN], max_samples=1)\nc.add(1)\n",
            ELASTRUN_AGGREGATIONS="train.*=max+count,c=strange,=,x")
        self.assertEqual(packets[0]["attributes"], {
            "a.count": 3.0, "a.histogram": "[[0.0,1],[1.0,1],[2.0,1]]", "stat.unit": "s",
            "stat.help": "A help."})
        self.assertEqual(packets[1], {
            "kind": "metric", "type": "histogram", "group": "torch.monitor", "name": "a",
            "value": 0.0, "count": 3, "sum": 3.0, "min": 0.0, "max": 2.0, "unit": "s",
            "help": "A help.", "scale": 5, "zeros": 1, "buckets": [[-1, 1], [31, 1]]})
        self.assertEqual(packets[2]["attributes"], {"train.b.count": 2.0, "train.b.max": 6.0})
        self.assertEqual(packets[3]["attributes"], {"c.mean": 1.0})

    def test_it_hears_severity_and_ids(self) -> None:
        plain, told = self.run_worker(
            "m = elastrun.monitor\n"
            "m.log_event(m.Event('plain', data={'a': 1}))\n"
            "m.log_event(m.Event('e', data={'\\ud800': '\\udcff'}, severity='error',\n"
            "                    id='i', span='s', parent='p'))")
        self.assertEqual(plain["attributes"], {"a": 1})
        self.assertEqual(told["attributes"], {"?": "?", "severity": "error", "event.id": "i",
                                              "span.id": "s", "span.parent": "p"})


if __name__ == "__main__":
    unittest.main()
