# SPDX-License-Identifier: Apache-2.0
"""What oracle_samples writes, read by those who will read it.

    oracles_test.py promtool|openmetrics|otlp|tensorboard|trace|schema ORACLE_SAMPLES

Exits with 77 and the reason where the reader is not installed.
"""
from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NoReturn


PACKAGES = {"openmetrics": "prometheus-client", "otlp": "opentelemetry-proto",
            "tensorboard": "tensorboard", "schema": "jsonschema"}


def skip(reason: object) -> NoReturn:
    print(f"skipped: {reason}")
    sys.exit(77)


def promtool(samples: Path) -> None:
    tool = shutil.which("promtool")
    if tool is None:
        skip("promtool is not installed (Debian: prometheus)")
    page = (samples / "page.prom").read_bytes()
    checked = subprocess.run([tool, "check", "metrics"], input=page, capture_output=True,
                             timeout=60, check=False)
    said = (checked.stdout + checked.stderr).decode()
    # Its lint dislikes abbreviated and non-base units, which a name of the samples has on purpose.
    lint = [line for line in said.splitlines() if "milliseconds" not in line]
    assert checked.returncode in (0, 3) and not lint, said
    bad = subprocess.run([tool, "check", "metrics"], input=page + b"x{ 1\n", capture_output=True,
                         timeout=60, check=False)
    assert bad.returncode == 1, "promtool takes anything"


def openmetrics(samples: Path) -> None:
    from prometheus_client.openmetrics.parser import text_string_to_metric_families as strict
    from prometheus_client.parser import text_string_to_metric_families as text
    page = (samples / "page.openmetrics").read_text(encoding="utf-8")
    families = {family.name: family for family in strict(page)}
    assert families["elastrun_worker_restarts"].type == "counter"
    assert families["hw_energy_joules"].unit == "joules"
    assert families["target"].type == "info"
    values = {(s.name, s.labels.get("le"), s.labels.get("cpu")): s.value
              for family in families.values() for s in family.samples}
    assert values["elastrun_rendezvous_duration_seconds_bucket", "1.0", None] == 3
    assert values["elastrun_rendezvous_duration_seconds_count", None, None] == 4
    assert math.isnan(values["load_share_ratio", None, "1"])
    assert values["load_share_ratio", None, "2"] == math.inf
    assert ("load_share_ratio", None, "3") not in values
    roles = {s.labels.get("role") for s in families["elastrun_worker_restarts"].samples}
    assert 'a "b"\\\nc \u00e9 \ufffd' in roles, roles
    help_text = families["elastrun_worker_restarts"].documentation
    assert help_text == 'Restarts of "the" group.\nAll\\of them.', help_text
    for wrong in (page.replace("# EOF\n", ""), page + "x 1\n", page.replace("_total", "")):
        try:
            list(strict(wrong))
        except ValueError:
            continue
        raise AssertionError("the parser takes anything")
    older = {s.name: s.value for family in text((samples / "page.prom").read_text("utf-8"))
             for s in family.samples}
    assert older["batch_time_milliseconds_sum"] == 7.5


def otlp(samples: Path) -> None:
    from google.protobuf import json_format
    from opentelemetry.proto.collector.logs.v1 import logs_service_pb2
    from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2
    request = json_format.Parse((samples / "metrics.json").read_text(encoding="utf-8"),
                                metrics_service_pb2.ExportMetricsServiceRequest())
    metrics = {metric.name: metric for scope in request.resource_metrics[0].scope_metrics
               for metric in scope.metrics}
    restarts = metrics["elastrun.worker.restarts"].sum
    assert restarts.is_monotonic and restarts.aggregation_temporality == 2
    assert sorted(point.as_int for point in restarts.data_points) == [1, 2]
    loads = metrics["load.share"].gauge.data_points
    assert math.isnan(loads[1].as_double) and loads[3].flags == 1
    drift = metrics["clock.drift"].exponential_histogram.data_points[0]
    assert (drift.count, drift.scale, drift.zero_count) == (3, 5, 1)
    assert drift.positive.offset == 50 and list(drift.positive.bucket_counts) == [1]
    assert metrics["batch.time"].histogram.data_points[0].sum == 7.5
    logs = json_format.Parse((samples / "logs.json").read_text(encoding="utf-8"),
                             logs_service_pb2.ExportLogsServiceRequest())
    record = logs.resource_logs[0].scope_logs[0].log_records[0]
    assert record.event_name == "round" and record.severity_number == 9
    assert record.body.string_value == "m\ufffd"


def tensorboard(samples: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    events: Any = EventAccumulator(str(samples), size_guidance={"histograms": 0, "tensors": 0})
    events.Reload()
    tags = events.Tags()
    assert set(tags["scalars"]) == {"lat.mean", "lat.count"}, tags
    assert [(e.step, e.value) for e in events.Scalars("lat.mean")] == [(0, .5), (1, 1.5), (2, 2.5)]
    histogram = events.Histograms("lat")[0].histogram_value
    assert histogram.num == 4 and sum(histogram.bucket) == 4, histogram
    assert len(histogram.bucket) == len(histogram.bucket_limit)
    assert list(histogram.bucket_limit) == sorted(histogram.bucket_limit)


def trace(samples: Path) -> None:
    text = (samples / "trace.json").read_text(encoding="utf-8")
    assert text.endswith(",\n")
    events = json.loads(text.rstrip(",\n") + "]")  # as viewers do
    phases = [event["ph"] for event in events]
    assert phases == ["M", "M", "M", "M", "i", "C"], phases
    for event in events:
        assert isinstance(event["pid"], int) and event["ts"] >= 0
    assert all(isinstance(value, (int, float)) for value in events[5]["args"].values())


def schema(samples: Path) -> None:
    """config/records.schema.json holds for what is written, and for nothing else."""
    import jsonschema
    root = Path(__file__).resolve().parents[2]
    text = json.loads((root / "config/records.schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(text)
    reader: Any = jsonschema.Draft202012Validator(text)
    # Readers skip what they do not know; here a key that the schema lacks is one too many.
    text["additionalProperties"] = text["properties"]["window"]["additionalProperties"] = False
    strict: Any = jsonschema.Draft202012Validator(text)
    lines = (samples / "records.jsonl").read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    for record in records:
        strict.validate(record)
    assert {record["kind"] for record in records} == {"event", "sample", "window", "span_end"}
    assert [r["value"] for r in records if r["name"] == "loss"] == [.5, None, -3, "text"], records
    window = next(record for record in records if record["kind"] == "window")
    span = next(record for record in records if record["kind"] == "span_end")
    reader.validate(window | {"added_later": 1})
    for wrong in (window | {"kind": "other"}, window | {"kind": "event"}, window | {"time": "now"},
                  {k: v for k, v in window.items() if k != "window"},
                  window | {"window": {"start_ns": 1}}, span | {"attributes": {"round": 1}},
                  span | {"attributes": {"duration_ns": [5]}}, span | {"severity": "LOUD"},
                  span | {"id": "xyz"}, window | {"value": {}},
                  {k: v for k, v in span.items() if k != "name"}):
        assert not reader.is_valid(wrong), f"the schema takes anything: {wrong}"


def main() -> None:
    oracle, program = sys.argv[1:]
    checks = {check.__name__: check
              for check in (promtool, openmetrics, otlp, tensorboard, trace, schema)}
    with tempfile.TemporaryDirectory() as directory:
        subprocess.run([program, directory], check=True, timeout=60)
        try:
            checks[oracle](Path(directory))
        except ImportError as error:
            skip(f"{error} (pip install {PACKAGES[oracle]})")
    print(f"{oracle}: ok")
