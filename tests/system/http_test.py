# SPDX-License-Identifier: Apache-2.0
"""What --http and the health check serve while a job runs, and what they refuse."""
from __future__ import annotations

import http.client
import json
import re
import shutil
import socket
import subprocess
import tempfile
import unittest
from pathlib import Path

from harness import LIMIT, PACKAGE, Job, lives, stub, wait_until
from ports import free_port

STEPS = """
import os, sys, time
import elastrun
print("on stdout"); print("on stderr", file=sys.stderr, flush=True)
sys.stdout.flush()
n = 0
while not os.path.exists("go"):
    n += 1
    elastrun.step(n)
    time.sleep(0.05)
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and os.environ["RANK"] == "1":
    os.remove("go"); sys.exit(3)
"""


def ask(port: int, path: str, method: str = "GET", **headers: str) -> tuple[int, str, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.headers["Content-Type"], answer.read().decode()
    finally:
        connection.close()


class Http(unittest.TestCase):
    def start(self, *options: str, script: str = STEPS, **env: str) -> Job:
        return self.enterContext(Job(*options, script=script, env={"PYTHONPATH": PACKAGE} | env))

    def port(self, job: Job) -> int:
        address, port = job.page().strip("/").rsplit(":", 1)
        self.assertEqual(address, "http://127.0.0.1")
        return int(port)

    def status(self, port: int) -> dict:
        return json.loads(ask(port, "/status")[2])

    def test_the_status_follows_workers_steps_and_restarts(self) -> None:
        job = self.start("--http=0", "--nproc-per-node=2", "--max-restarts=2", "--rdzv-id=night")
        port = self.port(job)
        wait_until(lambda: all(w["step"] for w in self.status(port)["workers"] or [{"step": 0}]),
                   "both workers have made a step")
        status = self.status(port)
        self.assertEqual(status["phase"], "running")
        self.assertEqual(status["job"]["script"], "train.py")
        self.assertEqual(status["round"]["world_size"], 2)
        self.assertEqual([w["state"] for w in status["workers"]], ["running", "running"])
        self.assertTrue(all(lives(w["pid"]) for w in status["workers"]))
        self.assertEqual(status["restarts"],
                         {"count": 0, "spent": 0, "left": 2, "limit": 2, "latest": []})
        (job.folder / "go").touch()
        wait_until(lambda: self.status(port)["round"]["attempt"] == 1, "it has restarted")
        restart, = self.status(port)["restarts"]["latest"]
        self.assertEqual(restart["text"], "rank 1 ended with exit code 3")
        self.assertTrue(restart["spent"])
        job.tell("go").ended()
        with self.assertRaises(OSError):
            socket.create_connection(("127.0.0.1", port), LIMIT)

    def test_metrics_are_those_of_agent_machine_and_workers_in_the_format_asked_for(self) -> None:
        job = self.start("--http=0", "--nproc-per-node=2")
        port = self.port(job)
        wait_until(lambda: self.status(port)["phase"] == "running", "the job runs")
        memory = re.compile(r'^process_memory_usage_bytes\{.*rank="1"\} [1-9]', re.M)
        wait_until(lambda: memory.search(ask(port, "/metrics")[2]), "rank 1 has a program")
        code, kind, text = ask(port, "/metrics")
        self.assertEqual((code, kind), (200, "text/plain; version=0.0.4; charset=utf-8"))
        for pattern in (r'^target_info\{.*service_name="elastrun.agent"\} 1$',
                        r'^system_cpu_time_seconds_total\{cpu_mode="idle"\} [0-9.e+]+$',
                        r"^system_memory_limit_bytes [1-9]\d+$",
                        r'^process_memory_usage_bytes\{local_rank="1",rank="1"\} [1-9]\d+$',
                        r'^process_cpu_time_seconds_total\{cpu_mode="user",.*rank="0"\} ',
                        r'^elastrun_timer_expired_total\{otel_scope_name="elastrun.agent"\} 0$',
                        r'^elastrun_hang_count_total\{otel_scope_name="elastrun.agent"\} 0$'):
            self.assertRegex(text, re.compile(pattern, re.M))
        self.assertNotIn("# EOF", text)
        if shutil.which("promtool"):
            checked = subprocess.run(["promtool", "check", "metrics"], input=text.encode(),
                                     capture_output=True, timeout=LIMIT)
            self.assertIn(checked.returncode, (0, 3), checked.stderr.decode())
            remarks = (checked.stdout + checked.stderr).decode().splitlines()
            # The names of torchelastic's own metrics are in camelCase, in milliseconds.
            self.assertEqual([line for line in remarks if "Agent_" not in line], [])
            self.assertNotIn("no help text", "".join(remarks))
        code, kind, text = ask(port, "/metrics",
                                    Accept="application/openmetrics-text;version=1.0.0,*/*;q=0.1")
        self.assertEqual(kind, "application/openmetrics-text; version=1.0.0; charset=utf-8")
        self.assertTrue(text.endswith("# EOF\n"))
        try:
            from prometheus_client.openmetrics.parser import text_string_to_metric_families
        except ImportError:
            pass
        else:
            names = [family.name for family in text_string_to_metric_families(text)]
            self.assertIn("process_memory_usage_bytes", names)
        job.tell("go").end()

    def test_the_page_is_one_file_and_nothing_can_be_changed_by_it(self) -> None:
        job = self.start("--http=0")
        port = self.port(job)
        code, kind, text = ask(port, "/")
        self.assertEqual((code, kind), (200, "text/html; charset=utf-8"))
        self.assertNotRegex(text, r"""(src|href)=["'](https?:)?//""")
        self.assertLess(len(text), 20_000)
        self.assertEqual(ask(port, "/", "HEAD")[2], "")
        for method in ("POST", "PUT", "DELETE", "OPTIONS"):
            self.assertEqual(ask(port, "/status", method)[0], 405)
        self.assertEqual(ask(port, "/../etc/passwd")[0], 404)
        self.assertEqual(ask(port, "/status", Host="evil.example")[0], 403)
        code, _, text = ask(port, "/healthz")
        self.assertEqual((code, json.loads(text)["status"]), (200, "ok"))
        wait_until(lambda: ask(port, "/readyz")[0] == 200, "its workers run")
        self.assertEqual(json.loads(ask(port, "/readyz")[2]),
                         {"ready": True, "phase": "running"})
        job.tell("go").ended()

    def test_a_node_that_waits_for_others_lives_and_is_not_ready(self) -> None:
        job = self.enterContext(Job("--http=0", "--nnodes=2", "--rdzv-backend=c10d",
                                    f"--rdzv-endpoint=localhost:{free_port()}", *stub("stay")))
        port = self.port(job)
        self.assertEqual(ask(port, "/healthz")[0], 200)
        code, _, text = ask(port, "/readyz")
        self.assertEqual((code, json.loads(text)["ready"]), (503, False))

    def test_events_begin_with_everything_and_go_on(self) -> None:
        job = self.start("--http=0")
        port = self.port(job)
        with socket.create_connection(("127.0.0.1", port), LIMIT) as stream:
            stream.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
            text = b""
            while not (b"on stdout" in text and b"on stderr" in text
                       and text.count(b"event: status\n") >= 3 and b"event: system\n" in text):
                piece = stream.recv(65536)
                self.assertTrue(piece, text)
                text += piece
            self.assertIn(b"\r\nContent-Type: text/event-stream\r\n", text)
            (job.folder / "go").touch()
            while piece := stream.recv(65536):
                text += piece
            self.assertIn(b'"phase":"ended"', text)
        self.assertEqual(job.end(), 0, job.errors())

    def test_a_port_that_is_taken_is_an_error_that_names_who_has_it(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            job = self.start(f"--http={port}", script="print('ran')").ended(1)
            self.assertRegex(job.errors(), rf"error: --http: cannot listen on 127\.0\.0\.1:{port}: "
                             rf"Address already in use: process \d+ \(.*\) listens there; ")
            self.assertNotIn("ran", job.output())

    def test_values_that_are_none_are_refused_before_anything_starts(self) -> None:
        for value in ("99999", "nobody.example:80", "::1:80", "80x"):
            job = self.start(f"--http={value}", script="print('ran')").ended(2)
            self.assertIn(f"error: --http {value}: ", job.errors())
            self.assertIn("expected PORT or ADDRESS:PORT", job.errors())
            self.assertNotIn("ran", job.output())

    def test_nothing_is_made_until_somebody_asks(self) -> None:
        counts = []
        for options in ([], ["--http=0"]):
            runs = Path(self.enterContext(tempfile.TemporaryDirectory(prefix="system.")))
            job = self.start(*options, ELASTRUN_RUNTIME_DIR=str(runs))
            wait_until(lambda: "on stderr" in job.errors(), "the worker runs")
            wait_until(lambda: list(runs.glob("*.json")), "the thread that registers it is there")
            tasks = Path(f"/proc/{job.agent()}/task")
            counts.append(len(list(tasks.iterdir())))
            self.assertEqual("is shown at" in job.errors(), bool(options))
            if options:
                ask(self.port(job), "/status")
                self.assertEqual(len(list(tasks.iterdir())), counts[0])
                ask(self.port(job), "/metrics")
                self.assertEqual(len(list(tasks.iterdir())), counts[0] + 1)
            job.tell("go").ended()
        self.assertEqual(counts[0], counts[1])


class HealthCheck(unittest.TestCase):
    def test_any_path_says_that_the_agent_lives(self) -> None:
        with socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as one:
            port = one.getsockname()[1]
        job = self.enterContext(Job("--http=0", *stub("stay"),
                                    env={"TORCHELASTIC_HEALTH_CHECK_PORT": str(port)}))
        wait_until(lambda: "shown at" in job.errors(), "it serves")
        for path in ("/", "/healthz", "/livez"):
            code, _, text = ask(port, path, Host="node7.cluster")
            self.assertEqual((code, json.loads(text)["why"]), (200, []))

    def test_a_value_that_is_none_starts_none_as_torch_has_it(self) -> None:
        for value, warning in (("yes", "Invalid healthcheck port value: 'yes', expecting integer"),
                               ("70000", "CHECK_PORT=70000 is not a port")):
            job = self.enterContext(Job(*stub("exit=0"),
                                        env={"TORCHELASTIC_HEALTH_CHECK_PORT": value})).ended()
            self.assertIn(warning, job.errors())

    def test_a_port_that_is_taken_does_not_hold_the_job_up(self) -> None:
        with socket.create_server(("", 0)) as taken:
            job = self.enterContext(Job(*stub("exit=0"), env={
                "TORCHELASTIC_HEALTH_CHECK_PORT": str(taken.getsockname()[1])})).ended()
            self.assertRegex(job.errors(), r"No health check server: cannot listen on \[::\]:\d+: "
                             r"Address already in use: process \d+ ")
