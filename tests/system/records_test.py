# SPDX-License-Identifier: Apache-2.0
"""What a run writes for programs: metrics and events in torchelastic's form, journal, report."""
from __future__ import annotations

import json
import re
import time
import unittest
from pathlib import Path

from harness import PACKAGE, Job, stub

ROOT = Path(__file__).resolve().parents[2]
METRIC = re.compile(r"^\[(\d{10}\.\d+)\]\[torchelastic\]: ([\w.]+)=(\d+)$")
STATE = "torchelastic.worker.status."
# Rank 1 fails in the first attempt, all end well in the second one.
ONCE = ("attempt=0", "only=1", "exit=3", "all", "attempt=0", "stay")

# In each attempt the worker goes on at the step after its checkpoint. What it tells has arrived
# when an event that it tells later stands in the journal.
TRAINER = """
import json, os, sys, time
import elastrun

def arrived(name):
    elastrun.event(name)
    path = os.environ["ELASTRUN_RUN_DIR"] + "/../../journal.jsonl"  # its own is below the run's
    while not any(json.loads(line)["name"] == name for line in open(path) if line.endswith("\\n")):
        time.sleep(0.005)

def note(name):
    with open(name, "w") as file:
        file.write(repr(time.monotonic()))

if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    note("before_checkpoint")
    elastrun.step(1)
    arrived("one")
    elastrun.checkpoint_done(1)
    arrived("two")
    note("after_checkpoint")
    elastrun.step(2)
    arrived("three")
    time.sleep(0.3)
    note("before_crash")
    elastrun.step(3)
    arrived("last")
    os._exit(7)
note("second_start")
elastrun.metric("loss", 0.25)
elastrun.step(2)
elastrun.step(3)
elastrun.checkpoint_done(3)
arrived("four")
"""


def profile(base: str) -> list[str]:
    return [f"{base}.success", f"{base}.duration.ms"]


def start() -> list[str]:
    return [*profile("SimpleElasticAgent._assign_worker_ranks"),
            *profile("SimpleElasticAgent._rendezvous"),
            *profile("LocalElasticAgent._start_workers"),
            *profile("SimpleElasticAgent._initialize_workers")]


def look(state: str) -> list[str]:
    return [*profile("LocalElasticAgent._monitor_workers"),
            "workers.default.remaining_restarts", f"workers.default.{state}"]


STOP = profile("LocalElasticAgent._stop_workers")
END = ["workers.default.flakiness", "workers.default.run_total",
       "workers.default.run_success_with_retries", "workers.default.run_success_no_retries",
       "workers.default.run_failed_with_retries", "workers.default.run_failed_no_retries",
       *profile("SimpleElasticAgent.run")]


class Metrics(unittest.TestCase):
    def metrics(self, job: Job) -> list[tuple[str, int]]:
        found = []
        for line in job.output().splitlines():
            match = METRIC.match(line)
            self.assertIsNotNone(match, line)
            self.assertLess(abs(float(match[1]) - time.time()), 600)
            found.append((match[2], int(match[3])))
        return found

    def check(self, job: Job, names: list[str], **values: int) -> None:
        told = self.metrics(job)
        # As with torchrun, how often it looks depends on how long the workers live.
        again, found = look("healthy"), [name for name, _ in told]
        while (at := next((i for i in range(4, len(found) - 3) if found[i:i + 4] == again
                           and found[i - 4:i] == again), 0)):
            del found[at:at + 4]
        self.assertEqual(found, names)
        for name, value in values.items():
            found = [number for told_name, number in told if told_name.endswith("." + name)]
            self.assertEqual(found[-1], value, name)

    def test_a_run_that_succeeds(self) -> None:
        with Job("--metrics=console", *stub("exit=0")).ended() as job:
            self.check(job, [*start(), *look("healthy"), *look("succeeded"), *END],
                       remaining_restarts=0, flakiness=0, run_total=1, run_success_no_retries=1,
                       run_success_with_retries=0, run_failed_no_retries=0)

    def test_workers_that_live_are_looked_at_again_and_again(self) -> None:
        # As torchrun does, whose default is 0.1 s, too.
        with Job("--metrics=console", "--monitor-interval=0.02", *stub("wait=end")) as job:
            job.wait_for(r"workers\.default\.healthy=1$", count=5)
            job.tell("end").ended()
            names = [name for name, _ in self.metrics(job)]
            self.assertEqual(names[:len(start()) + 20], [*start(), *look("healthy") * 5])

    def test_a_run_that_is_restarted(self) -> None:
        with Job("--metrics=console", "--nproc-per-node=2", "--max-restarts=2",
                 *stub(*ONCE)).ended() as job:
            again = [*start(), *profile("SimpleElasticAgent._restart_workers")]
            self.check(job, [*start(), *look("healthy"), *look("failed"), *STOP, *again,
                             *look("healthy"), *look("succeeded"), *END],
                       remaining_restarts=1, flakiness=33, run_success_with_retries=1,
                       run_success_no_retries=0)

    def test_a_run_that_fails(self) -> None:
        with Job("--metrics=console", *stub("exit=3")).ended(1) as job:
            self.check(job, [*start(), *look("healthy"), *look("failed"), *STOP, *END],
                       flakiness=100, run_total=1, run_failed_no_retries=1,
                       run_failed_with_retries=0, run_success_no_retries=0)

    def test_a_run_that_is_ended_has_no_result(self) -> None:
        with Job("--metrics=console", *stub("pid", "stay")) as job:
            job.wait_for("^pid")
            job.stopped(1)
            self.assertNotIn("run_total", job.output())
            self.assertIn("SimpleElasticAgent.run.failure=1", job.output())

    def test_none_unless_asked_for(self) -> None:
        with Job("--metrics=none", *stub("exit=0")).ended() as job:
            self.assertEqual(job.output(), "")


class Events(unittest.TestCase):
    KEYS = ["run_id", "global_rank", "group_rank", "worker_id", "role", "hostname", "state",
            "total_run_time", "rdzv_backend", "raw_error", "metadata", "agent_restarts",
            "duration_ms"]

    def events(self, job: Job) -> list[dict]:
        """All of stderr that is JSON: state, source and what torchelastic calls metadata."""
        found = []
        for line in job.errors().splitlines():
            if not line.startswith("{"):
                continue
            event = json.loads(line)
            self.assertEqual(json.dumps(event), line)  # Python's spacing, and all on one line
            self.assertEqual(list(event), ["name", "source", "timestamp", "metadata"])
            metadata = event["metadata"]
            self.assertEqual(list(metadata), self.KEYS)
            self.assertEqual(event["name"], STATE + metadata["state"])
            metadata["metadata"] = json.loads(metadata["metadata"])
            found.append({"source": event["source"]} | metadata)
        return found

    def names(self, events: list[dict]) -> list[tuple]:
        return [(e["source"], e["state"], e["global_rank"], e["agent_restarts"]) for e in events]

    def test_a_run_that_is_restarted(self) -> None:
        with Job("--event-log-handler=console", "--nproc-per-node=2", "--max-restarts=1",
                 "--role=trainer", *stub(*ONCE)).ended() as job:
            events = self.events(job)
            self.assertEqual(self.names(events), [
                ("AGENT", "RENDEZVOUS", None, 0), ("AGENT", "ASSIGN_WORKER_RANKS", None, 0),
                ("WORKER", "START", 0, 0), ("WORKER", "START", 1, 0),
                ("AGENT", "RENDEZVOUS", None, 1), ("AGENT", "ASSIGN_WORKER_RANKS", None, 1),
                ("WORKER", "START", 0, 1), ("WORKER", "START", 1, 1),
                ("WORKER", "SUCCEEDED", 0, 1), ("WORKER", "SUCCEEDED", 1, 1),
                ("AGENT", "SUCCEEDED", None, 1)])
            self.assertEqual({e["role"] for e in events}, {"trainer"})
            self.assertEqual(len({e["run_id"] for e in events}), 1)
            # What is not known before the first round, and what is.
            self.assertEqual([e["group_rank"] for e in events], [None, None] + [0] * 9)
            first = events[0]["metadata"]
            self.assertEqual(first, {"group_world_size": None, "entry_point": "stub_worker"})
            self.assertEqual(events[3]["metadata"], {
                "group_world_size": 1, "entry_point": "stub_worker", "local_rank": [1],
                "role_rank": [1], "role_world_size": [2], "exit_code": [None],
                "worker_pid": [None]})
            timed = [e["state"] for e in events if e["duration_ms"] is not None]
            self.assertEqual(timed, ["RENDEZVOUS", "ASSIGN_WORKER_RANKS"] * 2)
            self.assertNotEqual(events[2]["worker_id"], events[6]["worker_id"])

    def test_a_run_that_fails(self) -> None:
        error = json.dumps({"message": {"message": "ValueError: boom", "extraInfo": {
            "py_callstack": "", "timestamp": "1"}}})
        with Job("--event-log-handler=console", "--nproc-per-node=3",
                 *stub("pid", "only=1", f"error={error}", "exit=3", "all", "only=2",
                       "on=TERM:0", "all", "stay")).ended(1) as job:
            *_, stopped, failed, ended, agent = self.events(job)
            self.assertEqual(self.names([stopped, failed, agent]), [
                ("WORKER", "FAILED", 0, 0), ("WORKER", "FAILED", 1, 0),
                ("AGENT", "SUCCEEDED", None, 0)])
            self.assertEqual(stopped["metadata"]["exit_code"], [-15])
            self.assertEqual(json.loads(stopped["raw_error"]), {"message": "<NONE>"})
            self.assertEqual(failed["metadata"]["exit_code"], [3])
            self.assertEqual(failed["metadata"]["worker_pid"], [int(failed["worker_id"])])
            self.assertEqual(json.loads(failed["raw_error"]), json.loads(error))
            # It may have been stopped before it could prepare for that.
            self.assertIn(ended["state"], ("TERMINATED", "FAILED"))

    def test_a_run_that_is_ended(self) -> None:
        with Job("--event-log-handler=console", *stub("pid", "stay")) as job:
            job.wait_for("^pid")
            job.stopped(1)
            last = self.events(job)[-1]
            self.assertEqual((last["source"], last["state"]), ("AGENT", "FAILED"))
            self.assertIn(f"SignalException: Process {job.process.pid} got signal: 15",
                          last["raw_error"])

    def test_quiet_where_the_log_is(self) -> None:
        with Job("--event-log-handler=console", *stub("exit=0"),
                 env={"LOGLEVEL": "WARNING"}).ended() as job:
            self.assertEqual(job.errors(), "")


class Journal(unittest.TestCase):
    def test_the_whole_story(self) -> None:
        with Job("--log-dir=logs", "--nproc-per-node=2", "--max-restarts=1", "--rdzv-backend=c10d",
                 "--rdzv-endpoint=localhost:0", "--rdzv-id=job7", *stub(*ONCE)).ended() as job:
            records = job.records()
            steady = [record["mono_ns"] for record in records]
            self.assertEqual(steady, sorted(steady))
            own = [r for r in records if r["scope"] == "elastrun.agent"]
            self.assertEqual(own[0]["name"], "job.started")
            self.assertEqual(own[0]["attributes"]["run_id"], "job7")
            self.assertEqual(own[0]["attributes"]["format"], 1)
            self.assertEqual(own[-1]["name"], "goodput")
            # These come whenever there is something to tell.
            often = ("phase", "rendezvous.progress")
            story = [r["name"] for r in own if r["name"] not in often]
            attempt = ["rendezvous.round", "worker.started", "worker.started", "group.started"]
            gone = ["worker.ended", "worker.ended", "group.gone"]
            # The coordinator's order may come before the group is gone, or after it.
            order = story.index("restart")
            self.assertIn(order, range(6, 10))
            del story[order]
            self.assertEqual(story, ["job.started", *attempt, "group.failed", *gone,
                                     *attempt, *gone, "job.ended", "goodput"])
            phases = [r["attributes"]["phase"] for r in own if r["name"] == "phase"]
            self.assertEqual([p for p in phases if p in ("joining", "running", "ended")],
                             ["joining", "running", "joining", "running", "ended"])
            self.check_records(own)

    def check_records(self, own: list[dict]) -> None:
        def of(name: str) -> list[dict]:
            return [r["attributes"] for r in own if r["name"] == name]
        self.assertEqual([r["attempt"] for r in of("rendezvous.round")], [0, 1])
        (failed,), (restart,) = of("group.failed"), of("restart")
        self.assertEqual((failed["rank"], failed["what"]), (1, "ended with exit code 3"))
        self.assertEqual((restart["attempt_spent"], restart["restarts_left"]), (True, 0))
        ends = {e["pid"]: e for e in of("worker.ended")}
        self.assertEqual(set(ends), {s["pid"] for s in of("worker.started")})
        self.assertEqual([e.get("exit_code") for e in ends.values()], [None, 3, 0, 0])
        stopped = next(iter(ends.values()))
        self.assertEqual((stopped["signal"], stopped["stopped_by_us"]), ("SIGTERM", True))
        (ended,) = of("job.ended")
        self.assertEqual((ended["ending"], ended["restarts"]), ("succeeded", 1))

    def test_what_stays_when_files_are_asked_for_without_a_place(self) -> None:
        with Job("-r", "3", *stub("say=kept", "exit=0")).ended() as job:
            (run,) = job.temporary.glob("*/*")
            self.assertEqual(job.errors(), "elastrun: files of this run are in "
                             f"{run}\n")
            self.assertEqual((run / "attempt_0/0/stdout.log").read_text(), "kept\n")
            self.assertTrue(json.loads((run / "report.json").read_text())["succeeded"])
            self.assertIn('"name":"job.ended"', (run / "journal.jsonl").read_text())

    def test_what_stays_after_a_failure_with_files(self) -> None:
        with Job("-t", "0:2", "--nproc-per-node=2",
                 *stub("only=0", "complain=sorry", "exit=3", "all", "stay")).ended(1) as job:
            (run,) = job.temporary.glob("*/*")
            log = run / "attempt_0/0/stderr.log"
            self.assertEqual(log.read_text(), "sorry\n")
            self.assertIn(f"  stderr    {log}\n", job.errors())


class Report(unittest.TestCase):
    def test_a_failure_with_everything_that_is_known(self) -> None:
        with Job("--report=report.json", "--log-dir=logs", "-r", "3", "--nproc-per-node=3",
                 "--max-restarts=1",
                 *stub("pid", "only=1", "complain=Traceback (most recent call last):",
                       "complain=ValueError: boom", "exit=7", "all", "stay")).ended(1) as job:
            report = job.report()
            (kept,) = job.folder.glob("logs/*/report.json")
            self.assertEqual(json.loads(kept.read_text()), report)
            self.assertEqual(Path(report["run_directory"]), kept.parent)
            self.assertEqual((report["format"], report["ending"]), (1, "workers_failed"))
            self.assertEqual(report["verdict"], "rank 1 failed first: it ended with exit code 7 "
                                                "(ValueError: boom)")
            self.check_failures(report, kept.parent)
            self.check_attempts(report)
            self.check_goodput(report)

    def check_failures(self, report: dict, run: Path) -> None:
        culprit = report["culprit"]
        self.assertEqual((culprit["rank"], culprit["exit_code"]), (1, 7))
        failures = {f["rank"]: f for f in report["failures"]}
        self.assertEqual(set(failures), {0, 1, 2})
        for rank, failure in failures.items():
            self.assertEqual(failure["consequence"], rank != 1)
            self.assertEqual(failure["stopped_by_us"], rank != 1)
            self.assertEqual(failure["signal"], None if rank == 1 else "SIGTERM")
            for stream in ("stdout", "stderr"):
                path = run / f"attempt_1/{rank}/{stream}.log"
                self.assertEqual(Path(failure[stream]), path)
                self.assertTrue(path.exists())
        self.assertEqual(failures[1]["exception"], "ValueError: boom")
        self.assertEqual(failures[1]["last_lines"][-1], "ValueError: boom")
        self.assertEqual([w["exit_code"] for w in report["workers"]], [-15, 7, -15])

    def check_attempts(self, report: dict) -> None:
        first, last = report["attempts"]
        self.assertEqual((first["attempt"], last["attempt"]), (0, 1))
        self.assertEqual((first["restarted"], last["restarted"]), (True, False))
        for attempt in (first, last):
            self.assertEqual((attempt["cause"]["rank"], attempt["cause"]["exit_code"]), (1, 7))
            self.assertAlmostEqual(attempt["ended"] - attempt["started"],
                                   attempt["ran_s"] + attempt["stopping_s"], places=4)
        self.assertLessEqual(first["ended"], last["started"])
        self.assertEqual(report["restarts"], 1)

    def check_goodput(self, report: dict) -> None:
        goodput = report["goodput"]
        buckets = goodput["buckets_s"]
        self.assertEqual(set(buckets), {"startup", "rendezvous", "running", "productive", "lost",
                                        "checkpoint", "restart", "stopping", "queued", "custom",
                                        "device_init", "preparation", "data_loading", "hang",
                                        "evaluation", "stalled", "unexplained"})
        self.assertTrue(all(seconds >= 0 for seconds in buckets.values()), buckets)
        self.assertAlmostEqual(sum(buckets.values()), goodput["elapsed_s"], places=6)
        steps = goodput["last_step"] is not None
        most = buckets["productive"] + buckets["unexplained"] if steps else buckets["running"]
        self.assertAlmostEqual(goodput["goodput_at_most"], most / goodput["elapsed_s"], places=6)
        known = steps and goodput["loss_known"]
        known = known and buckets["unexplained"] <= goodput["elapsed_s"] / 1000
        self.assertEqual(goodput["goodput"], goodput["goodput_at_least"] if known else None)
        # The ledger begins before the report's clock and ends after it.
        self.assertGreaterEqual(goodput["elapsed_s"] + 1e-3,
                                report["finished"] - report["started"])

    def test_what_ran_since_the_checkpoint_is_lost_with_a_crash(self) -> None:
        with Job("--log-dir=logs", "--max-restarts=1", "--report=report.json", script=TRAINER,
                 env={"PYTHONPATH": PACKAGE}).ended() as job:
            goodput = job.report()["goodput"]

            def time_of(name: str) -> float:
                return float((job.folder / name).read_text())
            lost = goodput["buckets_s"]["lost"]
            self.assertGreaterEqual(lost, time_of("before_crash") - time_of("after_checkpoint"))
            self.assertLessEqual(lost, time_of("second_start") - time_of("before_checkpoint"))
            self.assertEqual((goodput["last_step"], goodput["last_checkpoint"]), (3, 3))
            self.assertEqual((goodput["restarts"], goodput["loss_known"]), (1, True))
            self.check_goodput(job.report())
            told = job.records()
            self.assertEqual([r["value"] for r in told if r["name"] == "loss"], [0.25])
            self.assertEqual([r["attributes"]["step"] for r in told if r["name"] == "checkpoint"],
                             [1, 3])

    def test_without_any_checkpoint_nobody_knows_what_was_lost(self) -> None:
        with Job("--report=report.json", *stub("exit=1")).ended(1) as job:
            goodput = job.report()["goodput"]
            self.assertEqual((goodput["buckets_s"]["lost"], goodput["loss_known"]), (0, False))
