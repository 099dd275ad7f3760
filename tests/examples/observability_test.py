# SPDX-License-Identifier: Apache-2.0
"""observability_test.py ELASTRUN: the example job with every sink, and a collector; each consumer
must show the same numbers. A reader that is not installed is left out, and said."""
from __future__ import annotations

import json
import unittest
from pathlib import Path
from typing import Any

from collector import Collector
from harness import PACKAGE, Job

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "config/examples/observability"
LOSSES = {0: 0.2, 1: 0.4}  # the last of each rank


def json_lines(folder: Path, _: Collector) -> dict[int, float]:
    lines = (folder / "made/records.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    for record in records:
        assert {"time", "mono_ns", "kind", "scope", "name"} <= record.keys(), record
        assert record["kind"] in ("event", "sample", "window", "span_end"), record
    assert (folder / "made/errors.jsonl").read_text() == ""
    return {one["attributes"]["rank"]: one["value"] for one in records if one["name"] == "loss"}


def schema(folder: Path, _: Collector) -> dict[int, float]:
    import jsonschema
    text = json.loads((ROOT / "config/records.schema.json").read_text())
    text["additionalProperties"] = text["properties"]["window"]["additionalProperties"] = False
    validator: Any = jsonschema.Draft202012Validator(text)
    kinds = set()
    [journal] = folder.glob("logs/*/journal.jsonl")
    for file in (folder / "made/records.jsonl", journal):
        for line in file.read_text().splitlines():
            record = json.loads(line)
            validator.validate(record)
            kinds.add(record["kind"])
    assert kinds == {"event", "sample", "window", "span_end"}, kinds
    return LOSSES


def program(folder: Path, _: Collector) -> dict[int, float]:
    assert (folder / "made/program").read_text() == (folder / "made/records.jsonl").read_text()
    return LOSSES


def prometheus(folder: Path, _: Collector) -> dict[int, float]:
    from prometheus_client.parser import text_string_to_metric_families
    page = (folder / "made/job.prom").read_text()
    return losses_of(text_string_to_metric_families(page))


def openmetrics(folder: Path, _: Collector) -> dict[int, float]:
    from prometheus_client.openmetrics.parser import text_string_to_metric_families
    return losses_of(text_string_to_metric_families((folder / "made/job.om").read_text()))


def losses_of(families: Any) -> dict[int, float]:
    samples = [sample for family in families for sample in family.samples]
    assert sum(s.value for s in samples if s.name == "elastrun_worker_exits_total") == 2, samples
    return {int(s.labels["rank"]): s.value for s in samples if s.name == "loss"}


def tensorboard(folder: Path, _: Collector) -> dict[int, float]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    events: Any = EventAccumulator(str(folder / "made/tensorboard"))
    events.Reload()
    found = {rank: [event.value for event in events.Scalars(f"loss/rank_{rank}")]
             for rank in LOSSES}
    return {rank: round(values[-1], 6) for rank, values in found.items()}  # they are floats


def trace(folder: Path, _: Collector) -> dict[int, float]:
    text = (folder / "made/trace.json").read_text()
    events = json.loads(text)
    assert {e["args"]["name"] for e in events if e["name"] == "process_name"} == {
        "agent", "rank 0", "rank 1"}
    assert [e["name"] for e in events if e["ph"] == "X"].count("worker") == 2
    return {e["pid"] - 1: e["args"]["value"] for e in events if e["name"] == "loss"}


def otlp(_: Path, collector: Collector) -> dict[int, float]:
    from google.protobuf import json_format
    from opentelemetry.proto.collector.logs.v1 import logs_service_pb2
    from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2
    events = set()
    for body in collector.taken("/v1/logs"):
        logs = json_format.ParseDict(body, logs_service_pb2.ExportLogsServiceRequest())
        events |= {record.event_name for scope in logs.resource_logs[0].scope_logs
                   for record in scope.log_records}
    assert {"epoch", "job.ended"} <= events, events
    request = json_format.ParseDict(collector.taken("/v1/metrics")[-1],
                                    metrics_service_pb2.ExportMetricsServiceRequest())
    metrics = {metric.name: metric for scope in request.resource_metrics[0].scope_metrics
               for metric in scope.metrics}
    assert metrics["elastrun.worker.exits"].sum.data_points[0].as_int == 2
    return {int(point.attributes[0].value.string_value): point.as_double
            for point in metrics["loss"].gauge.data_points}


class Readers(unittest.TestCase):
    def test_each_sink_shows_the_same_numbers(self) -> None:
        files = {path.name: path.read_text() for path in EXAMPLE.iterdir() if path.is_file()}
        collector = self.enterContext(Collector(200))
        more = f'sinks = [\n  "{collector.url}",\n  "exec:cat > out/program;window=0",\n'
        files["job.toml"] = files["job.toml"].replace("sinks = [\n", more).replace("out/", "made/")
        job = self.enterContext(Job("--config=job.toml", "--log-dir=logs", files=files,
                                    env={"PYTHONPATH": PACKAGE},
                                    before=lambda: Path("made").mkdir())).ended()
        for rank, loss in LOSSES.items():
            self.assertIn(f"[model]: loss={loss}\n", job.output())
        for reader in (json_lines, schema, program, prometheus, openmetrics, tensorboard, trace,
                       otlp):
            with self.subTest(reader.__name__):
                try:
                    self.assertEqual(reader(job.folder, collector), LOSSES)
                except ImportError as missing:
                    print(f"{reader.__name__}: left out, {missing}")
