# SPDX-License-Identifier: Apache-2.0
"""elastrun.bridge with the real torch, where this Python has one: an unchanged script's own
telemetry reaches the agent, and its handlers get theirs as ever.
"""
from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import unittest

from agent_end import PACKAGE, AgentEnd

SCRIPT = """
import datetime, sys
from torch import monitor
from torch.distributed.elastic import events
from torch.distributed.elastic.events import record
from torch.distributed.elastic.metrics import ConsoleMetricHandler, configure, prof, put_metric

put_metric("early", 1)
configure(ConsoleMetricHandler(), "mine")
put_metric("late", 2.5, "mine")

@prof(group="mine")
def work(): pass
work()

record(events.Event("elastic", events.EventSource.WORKER, 1500, {"x": 1}))
seen = []
handle = monitor.register_event_handler(seen.append)
monitor.log_event(monitor.Event("mon", datetime.datetime.fromtimestamp(12.5),
                                {"n": 1, "t": "x", "b": True, "f": 0.5}))
stat = monitor.Stat("s", [monitor.Aggregation.SUM], datetime.timedelta(hours=1), 2)
stat.add(1)
stat.add(2)
monitor.unregister_event_handler(handle)
print(len(seen), sys.argv[1:], __name__, sys.path[0])
"""


@unittest.skipUnless(importlib.util.find_spec("torch"), "no torch in this Python")
class Bridge(AgentEnd):
    def run_script(self, script: str, *before: str, agent: bool = True) -> str:
        file = self.folder / "train.py"
        file.write_text(script)
        env = {k: v for k, v in os.environ.items() if not k.startswith("ELASTRUN_")}
        env.update(PYTHONPATH=PACKAGE, PYTHONDONTWRITEBYTECODE="1", PYTHONWARNINGS="ignore")
        if agent:
            env.update(ELASTRUN_CHANNEL=self.listener.path, ELASTRUN_PAGE=self.page.path)
        done = subprocess.run([sys.executable, *before, str(file), "--lr", "1"], env=env, text=True,
                              capture_output=True, timeout=240)
        self.assertEqual((done.stderr, done.returncode), ("", 0))
        return done.stdout

    def check(self, out: str) -> None:
        lines = out.splitlines()
        self.assertEqual(lines[-1], f"2 ['--lr', '1'] __main__ {self.folder}")
        self.assertRegex(lines[0], r"^\[[\d.]+\]\[mine\]: late=2.5$")  # the script's own handler
        self.assertEqual(len(lines), 4)
        packets, = self.listener.packets()
        metrics = {(one["group"], one["name"]): one["value"] for one in packets
                   if one["kind"] == "metric"}
        self.assertGreaterEqual(metrics.pop(("mine", "__main__.work.duration.ms")), 0)
        self.assertEqual(metrics, {("torchelastic", "early"): 1, ("mine", "late"): 2.5,
                                   ("mine", "__main__.work.success"): 1})
        events = [one for one in packets if one["kind"] == "event"]
        self.assertEqual(events, [
            {"kind": "event", "name": "elastic", "time": 1.5,
             "attributes": {"source": "WORKER", "x": 1}},
            {"kind": "event", "name": "mon", "time": 12.5,
             "attributes": {"n": 1, "t": "x", "b": True, "f": 0.5}},
            {"kind": "event", "name": "torch.monitor.Stat", "time": events[2]["time"],
             "attributes": {"s.sum": 3}}])
        self.assertEqual(self.page.series()["torch.monitor/s.sum"], (3, 1))
        self.assertEqual(self.page.series()["torchelastic/early"], (1, 1))

    def test_an_unchanged_script_by_the_command_line(self) -> None:
        self.check(self.run_script(SCRIPT, "-m", "elastrun.bridge"))

    def test_one_line_before_torch_is_imported(self) -> None:
        self.check(self.run_script("import elastrun\nelastrun.bridge.torch()\n" + SCRIPT))

    def test_one_line_after_torch_is_imported_and_a_second_changes_nothing(self) -> None:
        bridge = "import elastrun\nelastrun.bridge.torch()\nelastrun.bridge.torch()\n"
        marker = 'put_metric("early", 1)'
        self.check(self.run_script(SCRIPT.replace(marker, bridge + marker)))

    def test_outside_elastrun_nothing_happens(self) -> None:
        out = self.run_script("import elastrun, sys\nprint(elastrun.bridge.torch())\n"
                              "print('torch' in sys.modules, len(sys.meta_path))", agent=False)
        self.assertEqual(out, f"False\nFalse {len(sys.meta_path)}\n")
        self.assertEqual(self.listener.packets(), [])


if __name__ == "__main__":
    unittest.main()
