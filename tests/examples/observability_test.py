# SPDX-License-Identifier: Apache-2.0
"""observability_test.py ELASTRUN: the example job with every sink, and a collector; each consumer
must show the same numbers. A reader that is not installed is left out, and said."""
from __future__ import annotations

import http.server
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "config/examples/observability"
LOSSES = {0: 0.2, 1: 0.4}  # the last of each rank
LIMIT = 120


class Collector(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        self.bodies: dict[str, list[str]] = {}
        super().__init__(("127.0.0.1", 0), Receive)
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Receive(http.server.BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.server.bodies.setdefault(self.path, []).append(body)
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: object) -> None:
        pass


def json_lines(folder: Path, _: Collector) -> dict[int, float]:
    records = [json.loads(line) for line in (folder / "out/records.jsonl").read_text().splitlines()]
    for record in records:
        assert {"time", "mono_ns", "kind", "scope", "name"} <= record.keys(), record
        assert record["kind"] in ("event", "sample", "window", "span_end"), record
    assert (folder / "out/errors.jsonl").read_text() == ""
    return {one["attributes"]["rank"]: one["value"] for one in records if one["name"] == "loss"}


def schema(folder: Path, _: Collector) -> dict[int, float]:
    import jsonschema
    text = json.loads((ROOT / "config/records.schema.json").read_text())
    text["additionalProperties"] = text["properties"]["window"]["additionalProperties"] = False
    validator: Any = jsonschema.Draft202012Validator(text)
    kinds = set()
    [journal] = folder.glob("logs/*/journal.jsonl")
    for file in (folder / "out/records.jsonl", journal):
        for line in file.read_text().splitlines():
            record = json.loads(line)
            validator.validate(record)
            kinds.add(record["kind"])
    assert kinds == {"event", "sample", "window", "span_end"}, kinds
    return LOSSES


def program(folder: Path, _: Collector) -> dict[int, float]:
    assert (folder / "out/program").read_text() == (folder / "out/records.jsonl").read_text()
    return LOSSES


def prometheus(folder: Path, _: Collector) -> dict[int, float]:
    from prometheus_client.parser import text_string_to_metric_families
    page = (folder / "out/job.prom").read_text()
    tool = shutil.which("promtool")
    if tool is not None:
        checked = subprocess.run([tool, "check", "metrics"], input=page, capture_output=True,
                                 text=True, timeout=LIMIT, check=False)
        assert checked.returncode in (0, 3), checked.stdout + checked.stderr
    return losses_of(text_string_to_metric_families(page))


def openmetrics(folder: Path, _: Collector) -> dict[int, float]:
    from prometheus_client.openmetrics.parser import text_string_to_metric_families
    return losses_of(text_string_to_metric_families((folder / "out/job.om").read_text()))


def losses_of(families: Any) -> dict[int, float]:
    samples = [sample for family in families for sample in family.samples]
    assert sum(s.value for s in samples if s.name == "elastrun_worker_exits_total") == 2, samples
    return {int(s.labels["rank"]): s.value for s in samples if s.name == "loss"}


def tensorboard(folder: Path, _: Collector) -> dict[int, float]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    events: Any = EventAccumulator(str(folder / "out/tensorboard"))
    events.Reload()
    found = {rank: [event.value for event in events.Scalars(f"loss/rank_{rank}")]
             for rank in LOSSES}
    return {rank: round(values[-1], 6) for rank, values in found.items()}  # they are floats


def trace(folder: Path, _: Collector) -> dict[int, float]:
    text = (folder / "out/trace.json").read_text()
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
    for body in collector.bodies["/v1/logs"]:
        logs = json_format.Parse(body, logs_service_pb2.ExportLogsServiceRequest())
        events |= {record.event_name for scope in logs.resource_logs[0].scope_logs
                   for record in scope.log_records}
    assert {"epoch", "job.ended"} <= events, events
    request = json_format.Parse(collector.bodies["/v1/metrics"][-1],
                                metrics_service_pb2.ExportMetricsServiceRequest())
    metrics = {metric.name: metric for scope in request.resource_metrics[0].scope_metrics
               for metric in scope.metrics}
    assert metrics["elastrun.worker.exits"].sum.data_points[0].as_int == 2
    return {int(point.attributes[0].value.string_value): point.as_double
            for point in metrics["loss"].gauge.data_points}


def main() -> None:
    elastrun = str(Path(sys.argv[1]).resolve())
    collector = Collector()
    url = f"otlp:http://127.0.0.1:{collector.server_address[1]}"
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "job"
        shutil.copytree(EXAMPLE, folder)
        (folder / "out").mkdir()
        job = (folder / "job.toml").read_text()
        more = f'sinks = [\n  "{url}",\n  "exec:cat > out/program;window=0",\n'
        (folder / "job.toml").write_text(job.replace("sinks = [\n", more))
        environment = dict(os.environ, PYTHONPATH=str(ROOT / "lib/python"), OMP_NUM_THREADS="1")
        done = subprocess.run([elastrun, "--config", "job.toml", "--log-dir", "logs"], cwd=folder,
                              env=environment, capture_output=True, text=True, timeout=LIMIT,
                              check=False)
        assert done.returncode == 0, done.stderr
        for rank, loss in LOSSES.items():
            assert f"[model]: loss={loss}\n" in done.stdout, done.stdout
        for reader in (json_lines, schema, program, prometheus, openmetrics, tensorboard, trace,
                       otlp):
            try:
                found = reader(folder, collector)
            except ImportError as missing:
                print(f"{reader.__name__}: left out, {missing}")
                continue
            assert found == LOSSES, f"{reader.__name__}: {found}"
            print(f"{reader.__name__}: ok")


if __name__ == "__main__":
    main()
