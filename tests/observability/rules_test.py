# SPDX-License-Identifier: Apache-2.0
"""rules_test.py ELASTRUN -: the rules and the dashboard of config/observability. promtool checks
and tries the rules; Prometheus scrapes a real run, and answers every query of both."""
from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
import tempfile
import time
import unittest
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
from harness import LIMIT, Job, wait_until

RULES = ROOT / "config/observability/elastrun.rules.yml"
BOARD = json.loads((ROOT / "config/observability/elastrun-dashboard.json").read_text())
# A start that fails at step 40, and one that goes on until somebody says "go".
TRAINER = """
import os, sys, time
from elastrun import channel
again = os.environ["TORCHELASTIC_RESTART_COUNT"] != "0"
step = 20 if again else 0
while not os.path.exists("go"):
    step += 1
    time.sleep(0.02)
    channel.step(step)
    if step == 20: channel.checkpoint_done(20)
    if step == 40 and not again: sys.exit(3)
"""
# What a run on any machine has. The rest (GPUs, cgroups) is asked for, and must be no error.
WITH_DATA = ("elastrun_goodput_time_seconds", "elastrun_badput_time_seconds",
             "elastrun_total_elapsed_time_seconds", "elastrun_interval_goodput_percent",
             "elastrun_interval_badput_percent", "elastrun_disruptions_total",
             "elastrun_max_productive_steps", "elastrun_performance_seconds",
             "elastrun_scheduling_goodput_ratio", "elastrun_proxy_runtime_goodput_ratio",
             "elastrun_step_time_deviation_seconds", "elastrun_hang_count_total",
             "elastrun_timer_expired_total", "elastrun_restart_count_total",
             "elastrun_restart_duration_seconds_bucket", "elastrun_worker_exits_total",
             "elastrun_worker_output_bytes_total", "system_cpu_time_seconds_total",
             "system_memory_limit_bytes", "process_memory_usage_bytes", "target_info",
             "elastrun:goodput:ratio", "elastrun:badput:ratio", "elastrun:run:info",
             "elastrun:steps:rate5m", "elastrun:cpu:ratio", "elastrun:memory:ratio",
             "elastrun:disruptions:increase1h")
# Panels that show something for such a run, whatever the machine.
PANELS_WITH_DATA = {"Goodput", "Goodput, rolling", "Restarts", "Hangs", "Timers expired",
                    "Last step", "Badput by source", "Time in each bucket", "Step time",
                    "CPU by node", "Memory by node", "Memory of workers",
                    "Of the time since Slurm started the job"}


def panel_queries(run: str) -> Iterator[tuple[str, str]]:
    values = {"$run": run, "$window": "3600", "$__rate_interval": "10s"}
    for panel in BOARD["panels"]:
        for target in panel["targets"]:
            expression = target["expr"]
            for name, value in values.items():
                expression = expression.replace(name, value)
            assert "$" not in expression, f"{panel['title']}: a variable that is not known"
            yield panel["title"], expression


def rule_queries() -> list[str]:
    """The expressions of the rules: folded text or the rest of the line."""
    found = re.findall(r"^        expr: (?:>-\n((?:          .*\n)+)|(.*)\n)", RULES.read_text(),
                       re.M)
    return [" ".join((folded or line).split()) for folded, line in found]


class Prometheus:
    def __init__(self, target: str) -> None:
        self._scratch = tempfile.TemporaryDirectory(prefix="prometheus.")
        folder = Path(self._scratch.name)
        shutil.copy(RULES, folder / "elastrun.rules.yml")
        (folder / "prometheus.yml").write_text(
            "global: {scrape_interval: 1s, evaluation_interval: 1s}\n"
            "rule_files: [elastrun.rules.yml]\n"
            "scrape_configs:\n"
            f"  - {{job_name: elastrun, static_configs: [{{targets: ['{target}']}}]}}\n")
        self._log = folder / "log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                ["prometheus", f"--config.file={folder}/prometheus.yml",
                 f"--storage.tsdb.path={folder}/data", "--web.listen-address=127.0.0.1:0"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.at = ""

    def __enter__(self) -> Prometheus:
        wait_until(self._is_ready, "Prometheus is ready")
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        self._scratch.cleanup()

    def _is_ready(self) -> bool:
        assert self.process.poll() is None, self._log.read_text()
        found = re.search(r'"Listening on" address=(\S+)', self._log.read_text())
        self.at = found[1] if found else ""
        with contextlib.suppress(OSError):
            urllib.request.urlopen(f"http://{self.at}/-/ready", timeout=LIMIT).close()
            return bool(found)
        return False

    def get(self, path: str, **query: str) -> Any:
        url = f"http://{self.at}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        with contextlib.suppress(urllib.error.HTTPError):
            with urllib.request.urlopen(url, timeout=LIMIT) as answer:
                return json.load(answer)["data"]
        raise AssertionError(f"Prometheus refuses {query}")

    def ask(self, query: str) -> list[Any]:
        return self.get("query", query=query)["result"]


class Rules(unittest.TestCase):
    @unittest.skipUnless(shutil.which("promtool"), "there is no promtool (Debian: prometheus)")
    def test_promtool_takes_them_and_they_do_what_they_say(self) -> None:
        for words in (["check", "rules", RULES], ["test", "rules", HERE / "rules_test.yml"]):
            done = subprocess.run(["promtool", *map(str, words)], capture_output=True, text=True,
                                  timeout=LIMIT, check=False)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_every_rule_is_found_by_this_test(self) -> None:
        text = RULES.read_text()
        rules = re.findall(r"^      - (record|alert): ", text, re.M)
        self.assertEqual(len(rule_queries()), len(rules))

    def test_the_dashboard_is_whole(self) -> None:
        ids = [panel["id"] for panel in BOARD["panels"]]
        self.assertEqual(len(set(ids)), len(ids))
        for panel in BOARD["panels"]:
            place = panel["gridPos"]
            self.assertLessEqual(place["x"] + place["w"], 24, panel["title"])
            self.assertTrue(panel["targets"], panel["title"])
        names = [variable["name"] for variable in BOARD["templating"]["list"]]
        self.assertEqual(names, ["datasource", "run", "window"])


@unittest.skipUnless(shutil.which("prometheus"), "there is no prometheus (Debian: prometheus)")
class Queries(unittest.TestCase):
    def test_prometheus_answers_every_query_about_a_real_run(self) -> None:
        job = self.enterContext(Job(
            "--http=0", "--max-restarts=1", "--worker-lib", script=TRAINER,
            env={"SLURM_JOB_START_TIME": str(int(time.time()))}))
        prometheus = self.enterContext(Prometheus(urllib.parse.urlsplit(job.page()).netloc))
        # The last rate needs two scrapes, the last rule an evaluation after them.
        wait_until(lambda: prometheus.ask("count_over_time(elastrun:cpu:ratio[1m]) > 3"),
                   "there are a few scrapes")
        wait_until(lambda: prometheus.ask("elastrun_disruptions_total == 1"), "it has restarted")
        wait_until(lambda: prometheus.ask("elastrun:disruptions:increase1h"), "all rules have run")
        for name in WITH_DATA:
            self.assertTrue(prometheus.ask(name), name)
        for query in rule_queries():
            prometheus.ask(query)
        [run] = prometheus.ask("elastrun:run:info")
        run_id = run["metric"]["elastrun_run_id"]
        shown = {title for title, query in panel_queries(run_id) if prometheus.ask(query)}
        self.assertEqual(PANELS_WITH_DATA - shown, set())
        for title, query in panel_queries("another run"):
            self.assertEqual(prometheus.ask(query), [], title)
        self.books_close(prometheus)
        for group in prometheus.get("rules")["groups"]:
            for rule in group["rules"]:
                self.assertEqual(rule["health"], "ok", rule)
        job.tell("go").ended()

    def books_close(self, prometheus: Prometheus) -> None:
        [all_of_it] = prometheus.ask(
            "sum(elastrun_goodput_time_seconds) + sum(elastrun_badput_time_seconds)"
            " - sum(elastrun_total_elapsed_time_seconds)")
        self.assertAlmostEqual(float(all_of_it["value"][1]), 0, places=5)
        [window] = prometheus.ask(
            'sum(elastrun_interval_goodput_percent{rolling_window_size="3600"})'
            ' + sum(elastrun_interval_badput_percent{rolling_window_size="3600"})')
        self.assertAlmostEqual(float(window["value"][1]), 100, places=5)
        lost = prometheus.ask('elastrun_badput_time_seconds{badput_source="WASTED_PROGRESS"} > 0')
        self.assertEqual(len(lost), 1)
