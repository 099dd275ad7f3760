# SPDX-License-Identifier: Apache-2.0
"""Where metrics and events go: --metrics and [metrics] of the job file, with receivers that take
what they get, refuse it, hang or are gone."""
from __future__ import annotations

import json
import math
import os
import re
import resource
import socket
import struct
import time
import unittest
from typing import Any

from collector import Collector
from harness import PACKAGE, Job, stub, wait_until

from event_files import fields, values

# A worker that reports one number of its own, and counts something.
WORKER = """import os, sys
from elastrun import channel, metrics
metrics.count_metric("tokens", 30, "model")
metrics.count_metric("tokens", 2.5, "model")
channel.metric("loss", 0.25 + int(os.environ["RANK"]), "model")
channel.event("epoch", number=3)
"""


VALUES = [-1.0, 0.0, 0.5, 0.5, 2.0, 64.0]
DISTRIBUTION = f"""from elastrun import metrics, monitor
batch = monitor.Stat("batch", [monitor.Aggregation.HISTOGRAM], max_samples=6, unit="s")
for value in {VALUES}:
    metrics.observe_metric("wait", value, "model", unit="s")
    batch.add(value)
"""


def histograms(data: bytes) -> dict[str, list[dict[int, Any]]]:
    """The HistogramProtos of each tag in an event file: of a window each."""
    found: dict[str, list[dict[int, Any]]] = {}
    for _, tag, value in values(data):
        if 5 in value:
            proto = fields(value[5][0]).items()
            found.setdefault(tag, []).append({number: one for number, (one,) in proto})
    return found


def doubles(data: bytes) -> list[float]:
    return list(struct.unpack(f"<{len(data) // 8}d", data))


def proto_buckets(proto: dict[int, Any]) -> list[tuple[float, float, int]]:
    limits, counts = doubles(proto[6]), doubles(proto[7])
    assert limits == sorted(limits), limits
    return [(low, high, int(many)) for low, high, many
            in zip([-math.inf, *limits], limits, counts, strict=False)]


def otlp_buckets(point: dict[str, Any]) -> list[tuple[float, float, int]]:
    """Lower and upper bound and count, of those on both sides of zero."""
    base = 2 ** 2 ** -point["scale"]
    found = []
    for side, sign in (("negative", -1), ("positive", 1)):
        part = point.get(side, {})
        for place, count in enumerate(part.get("bucketCounts", [])):
            index = part.get("offset", 0) + place
            low, high = sorted((sign * base ** index, sign * base ** (index + 1)))
            found.append((low, high, int(count)))
    return found


def counted(buckets: list[tuple[float, float, int]]) -> list[int]:
    """How many values are in buckets narrowly around -1, 0.5, 2 and 64; the first one of a proto
    has no lower bound."""
    found = []
    for value in (-1.0, 0.5, 2.0, 64.0):
        near, edge = abs(value) * 0.025, abs(value) * 1e-9
        found.append(sum(count for low, high, count in buckets
                         if (low == -math.inf or value - near <= low) and low <= value + edge
                         and value - edge <= high <= value + near))
    return found


def account(job: Job, sink: str) -> dict[str, Any]:
    report = job.report()
    found = [one for one in report["metrics_sinks"] if one["sink"].startswith(sink)]
    assert len(found) == 1, report["metrics_sinks"]
    return found[0]


def work(script: str, *words: str, **more: Any) -> Job:
    """A job whose workers run this script, with the package."""
    files = {"worker.py": script} | more.pop("files", {})
    return Job(*words, "worker.py", files=files, env={"PYTHONPATH": PACKAGE}, **more)


def sinks(*names: str) -> list[str]:
    return ["--report=report.json", *[f"--metrics={name}" for name in names]]


class Refused(unittest.TestCase):
    def test_what_a_sink_lacks_is_told_before_a_worker_starts(self) -> None:
        known = ("unknown sink 'promteus'", "console", "jsonl:FILE", "prometheus:FILE", "otlp:URL",
                 "exec:COMMAND")
        nowhere = [(f"{kind}:nowhere/x", (1,), (f"--metrics {kind}:nowhere/x: ",
                                                "No such file or directory"))
                   for kind in ("jsonl", "prometheus", "trace")]
        for sink, codes, said in (
                ("promteus:x", (2,), known),
                *((one, (2,), ("for example",)) for one in ("jsonl", "otlp", "tensorboard:",
                                                            "exec:")),
                *nowhere, *((f"otlp:{url}", (1, 2), ("otlp",)) for url in (
                    "http://", "http://u:p@host", "http://host:0", "http://h/a b"))):
            with self.subTest(sink), Job("--metrics", sink, *stub("pid", "exit=0")) as job:
                self.assertIn(job.end(), codes)
                for text in said:
                    self.assertIn(text, job.errors())
                self.assertEqual(job.output(), "")


class Together(unittest.TestCase):
    def test_what_goes_to_the_own_output_overwrites_nothing(self) -> None:
        # A file that the shell would open without O_APPEND, too.
        worker = ("import time\nfrom elastrun import channel\n"
                  "for i in range(50):\n"
                  "    print('line', i, flush=True)\n    channel.event('here', number=i)\n"
                  "    time.sleep(0.01)\n")
        for path in ("/dev/stdout", "/proc/self/fd/1", "out"):
            with work(worker, "--metrics", f"jsonl:{path}").ended() as job:
                lines = job.output().splitlines()
                shown = [line for line in lines if line.startswith("line ")]
                self.assertEqual(shown, [f"line {i}" for i in range(50)])
                told = [json.loads(line) for line in lines if not line.startswith("line ")]
                numbers = [one["attributes"]["number"] for one in told if one["name"] == "here"]
                self.assertEqual(numbers, list(range(50)))

    def test_every_sink_at_once_shows_the_same_numbers(self) -> None:
        with Collector(200) as collector, work(WORKER, "--nproc-per-node=2", *sinks(
                "console:*", "jsonl:%h.jsonl", "prometheus:a.prom", "prometheus:a.om;openmetrics",
                "trace:a.trace", "tensorboard:tb", collector.url,
                "exec:cat > program.jsonl;window=0")).ended() as job:
            self.assertRegex(job.output(), r"\[model\]: loss=0\.25\n")
            records = job.records(f"{socket.gethostname()}.jsonl")
            losses = {one["attributes"]["rank"]: one["value"] for one in records
                      if one["name"] == "loss"}
            self.assertEqual(losses, {0: 0.25, 1: 1.25})
            self.assertIn("epoch", {one["name"] for one in records})
            self.assertEqual(job.records("program.jsonl"), records)
            totals = {one["attributes"]["rank"]: one["value"] for one in records
                      if one["name"] == "tokens" and one["attributes"]["total"]}
            self.assertEqual(totals, {0: 32.5, 1: 32.5})
            for page in ("a.prom", "a.om"):
                text = (job.folder / page).read_text()
                self.assertRegex(text, r'(?m)^tokens_total\{.*rank="1".*\} 32\.5$')
                self.assertRegex(text, r'(?m)^loss\{.*rank="1".*\} 1\.25$')
                self.assertRegex(text, r"(?m)^elastrun_run_count_total\{.*success.*\} 1$")
            trace = json.loads((job.folder / "a.trace").read_text())  # closed at a normal end
            self.assertTrue(any(one["name"].startswith("loss") for one in trace))
            self.assertEqual(len(list((job.folder / "tb").glob("events.out.tfevents.*"))), 1)
            metrics = {metric["name"]: metric for body in collector.taken("/v1/metrics")
                       for scope in body["resourceMetrics"][0]["scopeMetrics"]
                       for metric in scope["metrics"]}
            points = metrics["loss"]["gauge"]["dataPoints"]
            self.assertEqual([point["asDouble"] for point in points], [0.25, 1.25])
            tokens = metrics["tokens"]["sum"]
            self.assertTrue(tokens["isMonotonic"])
            self.assertEqual([point["asDouble"] for point in tokens["dataPoints"]], [32.5, 32.5])
            exits = metrics["elastrun.worker.exits"]["sum"]["dataPoints"]
            self.assertEqual([point["asInt"] for point in exits], ["2"])
            events = {record["eventName"] for body in collector.taken("/v1/logs")
                      for scope in body["resourceLogs"][0]["scopeLogs"]
                      for record in scope["logRecords"]}
            self.assertLessEqual({"epoch", "job.ended"}, events)
            for sink in ("jsonl", "prometheus:a.prom", "otlp", "exec", "tensorboard", "trace"):
                self.assertEqual(account(job, sink)["lost"], 0, sink)
                self.assertGreater(account(job, sink)["delivered"], 0, sink)

    def test_a_sample_that_is_put_is_a_sample_that_is_seen(self) -> None:
        worker = ("import os\nimport elastrun\nfrom elastrun import metrics\n"
                  "if int(os.environ['RANK']) == 0:\n"
                  "    for i in range(50):\n"
                  "        elastrun.step(i)\n"
                  "        metrics.put_metric('loss', i / 4, 'my_app', labels={'layer': i % 2},\n"
                  "                           unit='s')\n"
                  "        metrics.observe_metric('wait', i, 'my_app')\n"
                  "else:\n"
                  "    for i in range(3000): metrics.put_metric('flood', i, 'my_app')\n")
        with work(worker, "--nproc-per-node=2", *sinks(
                "console:my_app", "jsonl:each.jsonl", "jsonl:sums.jsonl;window=1s",
                "prometheus:page.prom", "tensorboard:runs;window=0")).ended() as job:
            shown = [line for line in job.output().splitlines() if "[my_app]: loss" in line]
            self.assertEqual([line.partition("]: ")[2] for line in shown],
                             [f"loss/layer_{i % 2}={i / 4}" for i in range(50)])
            records = job.records("each.jsonl")
            loss = [one for one in records if one["name"] == "loss"]
            self.assertEqual([one["value"] for one in loss], [i / 4 for i in range(50)])
            self.assertEqual([one["attributes"]["step"] for one in loss], list(range(50)))
            times = [one["time"] for one in loss]
            self.assertEqual(times, sorted(times))
            self.assertGreater(len(set(times)), 10)
            # What is too much to be told one by one is counted in few lines.
            flood = [one for one in records if one["name"] == "flood"]
            more = [one for one in records if one["name"] == "samples.suppressed"]
            self.assertEqual(len(flood) + sum(one["value"] for one in more), 3000)
            self.assertEqual({one["attributes"]["rank"] for one in more}, {1})
            self.assertLess(len(more), 20)
            windows = [one["window"] for one in job.records("sums.jsonl")
                       if one["name"] == "flood" and one["kind"] == "window"]
            self.assertEqual(sum(one["count"] for one in windows), 3000)
            self.assertLess(len(windows), 20)
            page = (job.folder / "page.prom").read_text()
            self.assertRegex(page, r'loss_seconds\{layer="1",rank="0",otel_scope_name="my_app"\} '
                                   r"12\.25")
            self.assertRegex(page, r'loss_samples_seconds_sum\{layer="0",[^}]*\} 150\n')
            self.assertRegex(page, r'loss_samples_seconds_count\{layer="0",[^}]*\} 25\n')
            self.assertRegex(page, r'flood_samples_count\{rank="1",[^}]*\} 3000\n')
            self.assertRegex(page, r'wait_bucket\{rank="0",otel_scope_name="my_app",le="60"\} 50')

    def test_spans_of_workers_are_a_trace(self) -> None:
        worker = ("import elastrun\nfrom elastrun import monitor\n"
                  "with monitor.span('epoch', number=3):\n"
                  "    with monitor.span('step'):\n"
                  "        monitor.log_event(monitor.Event('bad', severity='error'))\n")
        with Collector(200) as collector:
            with work(worker, *sinks(collector.url, "trace:trace.json")).ended() as job:
                told = [span for body in collector.taken("/v1/traces")
                        for scope in body["resourceSpans"][0]["scopeSpans"]
                        for span in scope["spans"]]
                spans = {span["name"]: span for span in told}
                self.assertEqual(len({span["traceId"] for span in told}), 1)
                for name, above in (("worker", "job"), ("epoch", "worker"), ("step", "epoch")):
                    self.assertEqual(spans[name]["parentSpanId"], spans[above]["spanId"], name)
                logs = [log for body in collector.taken("/v1/logs")
                        for scope in body["resourceLogs"][0]["scopeLogs"]
                        for log in scope["logRecords"] if log["eventName"] == "bad"]
                self.assertEqual([(log["spanId"], log["severityText"]) for log in logs],
                                 [(spans["step"]["spanId"], "ERROR")])
                trace = json.loads((job.folder / "trace.json").read_text())
                stretches = {one["name"]: one for one in trace if one["ph"] == "X"}
                self.assertLessEqual(stretches["epoch"]["ts"], stretches["step"]["ts"])
                self.assertEqual(stretches["step"]["pid"], 1)

    def test_a_histogram_of_a_worker_has_its_values_in_otlp_and_tensorboard(self) -> None:
        with Collector(200) as collector:
            with work(DISTRIBUTION, *sinks(collector.url, "tensorboard:tb")).ended() as job:
                points: dict[str, list[dict[str, Any]]] = {"wait": [], "batch": []}
                for body in collector.taken("/v1/metrics"):
                    for scope in body["resourceMetrics"][0]["scopeMetrics"]:
                        for one in scope["metrics"]:
                            if "exponentialHistogram" in one and one["name"] in points:
                                self.assertEqual(one["unit"], "s")
                                points[one["name"]] = one["exponentialHistogram"]["dataPoints"]
                (file,) = (job.folder / "tb").glob("events.out.tfevents.*")
                shown = histograms(file.read_bytes())
        for name, found in points.items():
            with self.subTest(name):
                (point,) = found  # of the last request, since the start of the job
                self.assertEqual((point["count"], point["sum"]), ("6", sum(VALUES)))
                self.assertEqual((point["min"], point["max"]), (min(VALUES), max(VALUES)))
                self.assertEqual(point.get("zeroCount"), "1")
                self.assertEqual(counted(otlp_buckets(point)), [1, 2, 1, 1])
                windows = shown[f"{name}/rank_0"]
                self.assertEqual(sum(doubles(one[3])[0] for one in windows), 6)
                self.assertEqual(sum(doubles(one[4])[0] for one in windows), sum(VALUES))
                self.assertEqual(min(doubles(one[1])[0] for one in windows), -1)
                self.assertEqual(max(doubles(one[2])[0] for one in windows), 64)
                squares = sum(doubles(one[5])[0] for one in windows)
                self.assertAlmostEqual(squares / sum(one * one for one in VALUES), 1, delta=0.05)
                self.assertEqual(counted([one for window in windows
                                          for one in proto_buckets(window)]), [1, 2, 1, 1])

    def test_what_the_agent_has_refused_is_read_by_the_worker_that_has_told_it(self) -> None:
        """One has used the launcher's own group, in which it has nothing to say, and told events of
        which the channel already takes none: of 70 attributes, of a name of 300 bytes.
        """
        worker = ("import os, time\n"
                  "from elastrun import channel, telemetry\n"
                  "def wait_for(is_so):\n"
                  "    until = time.monotonic() + 60\n"
                  "    while not is_so() and time.monotonic() < until:\n"
                  "        time.sleep(0.01)\n"
                  "if os.environ['RANK'] == '0':\n"
                  "    for number in range(3):\n"
                  "        channel.metric('mine', number, 'elastrun.made_up')\n"
                  "    channel.event('wide', **{f'a{number}': 1 for number in range(70)})\n"
                  "    channel.event('n' * 300)\n"
                  "    channel.metric('fine', 1, 'model')\n"
                  "    wait_for(lambda: telemetry.losses()['agent'] >= 5)\n"
                  "    open('over', 'w').close()\n"
                  "else:\n"
                  "    channel.metric('fine', 1, 'model')\n"
                  "    wait_for(lambda: os.path.exists('over'))\n"
                  "print('refused of', os.environ['RANK'], telemetry.losses()['agent'])\n")
        with work(worker, "--nproc-per-node=2", "--worker-lib",
                  *sinks("prometheus:a.prom")).ended() as job:
            said = sorted(line for line in job.output().splitlines() if "refused of" in line)
            self.assertEqual([line[line.index("refused"):] for line in said],
                             ["refused of 0 5", "refused of 1 0"])
            refused = [line.rsplit(" ", 1)[1]
                       for line in (job.folder / "a.prom").read_text().splitlines()
                       if line.startswith('elastrun_channel_dropped_total{reason="refused"')]
            self.assertEqual(refused, ["5"])

    def test_the_machine_and_what_the_launcher_counts_reach_sinks_that_pull(self) -> None:
        worker = (WORKER + "channel.lost(3)\nchannel.event('behind')\n"
                  "print('x' * 99, flush=True)\nimport time\ntime.sleep(1000)\n")
        with Collector(200) as collector, work(
                worker, "--metrics-interval=0.3", "--redirects=3", "--log-dir=logs",
                *sinks("prometheus:a.prom", collector.url)) as job:
            page = job.folder / "a.prom"
            wait_until(lambda: page.exists() and 'process_memory_usage_bytes{local_rank="0"'
                       in page.read_text(), "the page shows the worker")
            wait_until(lambda: re.search(r'(?m)^elastrun_worker_output_bytes_total\{stream="stdout"'
                                         r".*\} 100$", page.read_text()), "it has written")
            wait_until(lambda: re.search(r'(?m)^elastrun_channel_dropped_total\{reason="worker"'
                                         r".*\} 3$", page.read_text()), "what it could not tell")
            text = page.read_text()
            self.assertRegex(text, r"(?m)^system_cpu_time_seconds_total\{.*\} [\d.]+$")
            self.assertRegex(text, r"(?m)^elastrun_store_requests_total\{.*\} 0$")
            self.assertRegex(text, r"(?m)^elastrun_store_connections\{.*\} 0$")
            self.assertRegex(text, r"(?m)^elastrun_channel_messages_total\{.*\} [2-9]$")
            self.assertRegex(text, r'(?m)^elastrun_channel_dropped_total\{reason="refused".*\} 0$')
            self.assertRegex(
                text, r'(?m)^elastrun_telemetry_dropped_total\{sink="prometheus:a.prom".*\} 0$')
            self.assertRegex(
                text, r'(?m)^elastrun_telemetry_queue_length\{sink="prometheus:a.prom".*\} \d$')

            def pushed() -> set[str]:
                return {metric["name"] for body in collector.taken("/v1/metrics")
                        for scope in body["resourceMetrics"][0]["scopeMetrics"]
                        for metric in scope["metrics"]}
            wait_until(lambda: {"system.memory.usage", "process.cpu.time",
                                "elastrun.worker.output"} <= pushed(), "the collector has them")
            # Nothing is recorded any more, and the page goes on.
            before = page.stat().st_mtime_ns
            wait_until(lambda: page.stat().st_mtime_ns > before, "the page goes on")
            job.stopped()
            self.assertIn("system_cpu_time_seconds_total", page.read_text())  # the last one, too

    def test_records_that_the_journal_loses_are_counted(self) -> None:
        most = 16_384

        def limit() -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))

        worker = WORKER + "for i in range(400): channel.event('epoch', number=i)\n"
        text = """[metrics]
interval = 0.2
[[metrics.route]]
sink = "prometheus:a.prom"
name = "elastrun.telemetry.*"
"""
        with work(worker + "import time\ntime.sleep(1000)\n", "--config=job.toml",
                  "--log-dir=logs", before=limit, files={"job.toml": text}) as job:
            page = job.folder / "a.prom"
            lost = re.compile(
                r'(?m)^elastrun_telemetry_dropped_total\{sink="journal".*\} ([1-9]\d*)$')
            wait_until(lambda: page.exists() and lost.search(page.read_text()), "it is told")
            journal, = (job.folder / "logs").glob("*/journal.jsonl")
            self.assertLessEqual(journal.stat().st_size, most)
            job.stopped()

    def test_nodes_that_may_share_a_file_system_have_a_file_each(self) -> None:
        host = socket.gethostname()
        with Job("--nnodes=1:2", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0",
                 "--rdzv-conf=last_call_timeout=1", *sinks(
                     "jsonl:a.jsonl", "prometheus:b", "prometheus:%h.om;openmetrics",
                     "trace:%p.json", "jsonl:/dev/null"),
                 *stub("exit=0")).ended() as job:
            self.assertIn("job.ended", (job.folder / f"a.{host}.jsonl").read_text())
            self.assertIn("elastrun_", (job.folder / f"b.{host}").read_text())
            self.assertIn("elastrun_", (job.folder / f"{host}.om").read_text())
            self.assertEqual(len([one for one in job.folder.glob("*.json")
                                  if one.stem.isdigit()]), 1)
            self.assertFalse((job.folder / "a.jsonl").exists())

    def test_routes_of_the_job_file_select(self) -> None:
        text = """[metrics]
interval = 0.5
[[metrics.route]]
sink = "jsonl:ends.jsonl"
group = "elastrun.agent"
name = "worker.*"
[[metrics.route]]
sink = "jsonl:ends.jsonl"
name = "job.ended"
[[metrics.route]]
sink = "prometheus:a.prom"
name = "elastrun.restarts.*"
"""
        with Job("--config=job.toml", "--report=report.json", *stub("exit=0"),
                 files={"job.toml": text}).ended() as job:
            self.assertEqual([one["name"] for one in job.records("ends.jsonl")],
                             ["worker.started", "worker.ended", "job.ended"])
            families = set(re.findall(r"(?m)^(elastrun\w+)", (job.folder / "a.prom").read_text()))
            self.assertEqual(families, {"elastrun_restarts_remaining"})

    def test_sinks_that_are_told_hear_of_the_machine_if_a_route_selects_it(self) -> None:
        text = """[metrics]
interval = 0.2
sinks = ["jsonl:all.jsonl", "trace:trace.json"]
[[metrics.route]]
sink = "jsonl:machine.jsonl"
name = "system.cpu.*"
[[metrics.route]]
sink = "jsonl:machine.jsonl"
name = "process.thread.count"
[[metrics.route]]
sink = "console:*"
name = "system.cpu.*"
[[metrics.route]]
sink = "tensorboard:runs"
name = "system.cpu.*"
"""
        with Job("--config=job.toml", "--nproc-per-node=2", "--log-dir=logs", *stub("stay"),
                 files={"job.toml": text}) as job:
            machine = job.folder / "machine.jsonl"
            wait_until(lambda: machine.exists() and
                       machine.read_text().count('"process.thread.count"') >= 6, "it is told")
            job.stopped()
            told = job.records(machine.name)
            self.assertEqual({one["kind"] for one in told}, {"sample"})
            idle = [one["value"] for one in told if one["name"] == "system.cpu.time"
                    and one["attributes"] == {"cpu.mode": "idle", "total": True}]
            self.assertEqual(idle, sorted(idle))
            self.assertEqual({(one["attributes"]["rank"], one["attributes"]["local_rank"])
                              for one in told if one["name"] == "process.thread.count"},
                             {(0, 0), (1, 1)})
            self.assertIn("]: system.cpu.time/cpu.mode_idle=", job.output())
            events = b"".join(one.read_bytes() for one in (job.folder / "runs").iterdir())
            self.assertIn(b"system.cpu.time/cpu.mode_idle", events)
            for other in (job.folder / "all.jsonl", job.folder / "trace.json",
                          *(job.folder / "logs").rglob("journal.jsonl")):
                self.assertNotIn("system.cpu", other.read_text())

    def test_without_a_sink_there_is_no_thread_for_one(self) -> None:
        """With one that pulls there is one for its file, and one for looks at the machine."""
        def threads(job: Job) -> int:
            return len(os.listdir(f"/proc/{job.agent()}/task"))

        with Job(*stub("pid", "stay")) as job, Job("--metrics=prometheus:a.prom",
                                                   *stub("pid", "stay")) as other:
            for one in (job, other):
                one.wait_for("^pid")
            wait_until(lambda: threads(other) > threads(job), "the page has a thread")
            wait_until(lambda: "system_cpu" in (other.folder / "a.prom").read_text(),
                       "it is written")
            self.assertEqual(threads(job) + 2, threads(other))
            for one in (job, other):
                one.stopped()


class Collectors(unittest.TestCase):
    def run_with(self, *answers: Any) -> tuple[Collector, dict[str, Any], str]:
        with Collector(*answers) as collector, Job(*sinks(collector.url),
                                                   *stub("exit=0")).ended() as job:
            return collector, account(job, "otlp"), job.errors()

    def test_one_that_refuses_costs_counted_records(self) -> None:
        """Or has an error, and is not asked again."""
        for status in (400, 500):
            collector, otlp, errors = self.run_with(status)
            self.assertEqual(otlp["delivered"], 0)
            self.assertGreater(otlp["lost"], 3)
            self.assertIn(f"status {status}", otlp["trouble"])
            paths = [path for path, _, _ in collector.requests]
            self.assertEqual(sorted(set(paths)), ["/v1/logs", "/v1/metrics", "/v1/traces"])
            self.assertIn(f"status {status}", errors)

    def test_one_that_takes_events_only_gets_them(self) -> None:
        for no in ("/v1/metrics", "/v1/logs"):
            with self.subTest(no):
                answers = {"/v1/metrics": 200, "/v1/logs": 200} | {no: 503}
                collector, otlp, errors = self.run_with(answers)
                yes, = answers.keys() - {no}
                self.assertTrue(collector.taken(yes), collector.requests)
                self.assertGreater(otlp["delivered"], 0)
                self.assertGreater(otlp["lost"], 0)
                self.assertIn("status 503", errors)

    def test_one_that_is_slow_to_take_metrics_gets_events_meanwhile(self) -> None:
        answers = {"/v1/metrics": (503, 600), "/v1/logs": 200}
        with Collector(answers) as collector, Job(*sinks(collector.url),
                                                  *stub("say=up", "wait=end")) as job:
            wait_until(lambda: collector.taken("/v1/logs"), "the events of the start arrive")
            job.tell("end").ended()

    def test_one_that_takes_longer_than_the_interval_gets_all_signals(self) -> None:
        with Collector(1.2) as collector, Job(
                f"--metrics={collector.url}", "--metrics-interval=1", *stub("pid", "stay")) as job:
            wait_until(lambda: len(collector.taken("/v1/metrics")) > 2 and all(
                collector.taken(f"/v1/{signal}") for signal in ("logs", "traces")),
                "each signal has its turn")
            job.stopped()

    def test_starts_of_series_stay_where_they_are(self) -> None:
        with Collector(200) as collector, Job(
                f"--metrics={collector.url}", "--metrics-interval=1", *stub("pid", "stay")) as job:
            wait_until(lambda: len(collector.taken("/v1/metrics")) > 3, "some collections")
            job.stopped()
        starts: dict[str, set[str]] = {}
        for body in collector.taken("/v1/metrics"):
            for scope in body["resourceMetrics"][0]["scopeMetrics"]:
                for metric in scope["metrics"]:
                    for point in metric.get("sum", {}).get("dataPoints", []):
                        self.assertLessEqual(int(point["startTimeUnixNano"]),
                                             int(point["timeUnixNano"]))
                        starts.setdefault(metric["name"] + str(point["attributes"]), set()).add(
                            point["startTimeUnixNano"])
        self.assertIn("elastrun.channel.messages[]", starts)
        self.assertEqual({name for name, told in starts.items() if len(told) > 1}, set())

    def test_one_that_hangs_delays_nobody(self) -> None:
        begun = time.monotonic()
        _, otlp, errors = self.run_with("hang")
        self.assertLess(time.monotonic() - begun, 30)
        self.assertGreater(otlp["lost"], 3)
        self.assertIn("lost", errors)

    def test_one_that_is_not_there_costs_counted_records(self) -> None:
        with socket.socket() as nobody:
            nobody.bind(("127.0.0.1", 0))
            url = f"otlp:http://127.0.0.1:{nobody.getsockname()[1]}"
            with Job(*sinks(url), *stub("exit=3")).ended(1) as job:
                self.assertGreater(account(job, "otlp")["lost"], 3)
                self.assertIn("refused", account(job, "otlp")["trouble"])

    def test_one_that_is_busy_gets_all_when_it_says(self) -> None:
        with Collector((503, 0), (429, 0), 200) as collector, Job(
                *sinks(collector.url), *stub("pid", "stay")) as job:
            wait_until(lambda: collector.taken("/v1/metrics") and collector.taken("/v1/logs"),
                       "the collector has got metrics and events")
            self.assertEqual([status for _, status, _ in collector.requests[:2]], [503, 429])
            job.stopped()
            self.assertEqual(account(job, "otlp")["lost"], 0)


class Programs(unittest.TestCase):
    def test_one_that_ends_is_started_again(self) -> None:
        program = "exec:sh -c 'read line; echo \"$line\" >> taken'"
        with Job(*sinks(program), *stub("pid", "stay")) as job:
            job.wait_for("^pid")
            wait_until(lambda: "it is started again" in job.errors(), "the program has ended")
            job.stopped()
            exec_ = account(job, "exec")
            self.assertGreater(exec_["lost"], 0)
            self.assertIn("job.started", (job.folder / "taken").read_text())
            job.nothing_left()

    def test_one_that_reads_nothing_delays_nobody_and_is_ended(self) -> None:
        with Job(*sinks("exec:sleep 1000"), *stub("exit=0")).ended() as job:
            self.assertGreater(account(job, "exec")["lost"], 3)
            self.assertEqual(account(job, "exec")["delivered"], 0)
            job.nothing_left()

    def test_one_that_is_not_there_is_named(self) -> None:
        with Job(*sinks("exec:no-such-program"), *stub("exit=0")).ended() as job:
            self.assertIn("no-such-program", job.errors())
            self.assertGreater(account(job, "exec")["lost"], 0)
