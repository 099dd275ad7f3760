# SPDX-License-Identifier: Apache-2.0
"""elastrunctl_test.py ELASTRUN ELASTRUNCTL: the status of real jobs, and a coordinator of its own.

Every wait is for an answer of `elastrunctl status` or for the end of a process, never for time.
"""
from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable

from programs import CTL, ELASTRUN, Programs

from ports import free_port

SECRET = {"ELASTRUN_SECRET": "between us"}


class Case(Programs):
    def setUp(self) -> None:
        super().setUp()
        self.go = self.folder / "go"  # workers end once it exists

    def agent(self, port: int, *options: str, nodes: str = "2", backend: str = "c10d",
              env: dict[str, str] | None = None) -> subprocess.Popen[str]:
        where = (["--rdzv-endpoint", f"127.0.0.1:{port}"] if backend == "c10d"
                 else ["--master-addr", "127.0.0.1", "--master-port", str(port)])
        return self.start(ELASTRUN, "--nnodes", nodes, "--nproc-per-node", "1", "--rdzv-backend",
                          backend, *where, "--rdzv-id", "exam", *options, "--no-python", "sh", "-c",
                          f"until [ -e {self.go} ]; do sleep 0.02; done", env=env)

    def job(self, port: int, until: Callable[[dict], bool], *words: str,
            env: dict[str, str] | None = None) -> dict:
        """Asks until the only job there is as wanted. CTest's limit ends a wait in vain."""
        while True:
            code, out, _ = self.ctl("status", "--json", *words, f"127.0.0.1:{port}", env=env)
            jobs = json.loads(out)["jobs"] if code == 0 else []
            if len(jobs) == 1 and until(jobs[0]):
                return jobs[0]

    def store(self, *words: str, env: dict[str, str] | None = None):
        child = self.start(CTL, "store", "--listen", "127.0.0.1:0", *words, env=env)
        line = child.stdout.readline()
        self.assertIn("listening at 127.0.0.1:", line, child.poll())
        return child, int(line.rsplit(":", 1)[1])


class Streams(Case):
    def test_what_is_opened_takes_no_place_of_a_standard_stream_that_is_closed(self) -> None:
        port = free_port()
        child = self.start("sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", CTL, "store", "--listen",
                           f"127.0.0.1:{port}")
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except ConnectionRefusedError:
                self.assertIsNone(child.poll())
                time.sleep(0.01)
        for number in range(3):
            self.assertEqual(os.readlink(f"/proc/{child.pid}/fd/{number}"), "/dev/null")


class Status(Case):
    def test_one_agent_waits_for_another_then_both_run(self) -> None:
        port = free_port()
        first = self.agent(port)
        job = self.job(port, lambda job: len(job["nodes"]) == 1)
        self.assertEqual((job["run_id"], job["phase"], job["missing"]), ("exam", "joining", 1))
        self.assertEqual(job["nodes"][0]["doing"], "waiting for the round")
        self.assertGreaterEqual(job["nodes"][0]["seconds"], 0)
        code, text, _ = self.ctl("status", f"127.0.0.1:{port}")
        self.assertEqual(code, 0)
        self.assertIn(job["nodes"][0]["id"], text)
        self.assertIn("missing: 1 more node for a round", text)

        second = self.agent(port)
        job = self.job(port, lambda job: [n["doing"] for n in job["nodes"]] == ["running"] * 2)
        self.assertEqual((job["phase"], job["round"], job["missing"]), ("running", 1, 0))
        self.go.touch()
        self.assertEqual([first.wait(60), second.wait(60)], [0, 0])

    def test_a_node_that_left_is_named(self) -> None:
        host, port = self.store()
        stays = self.agent(port, "--rdzv-conf", "is_host=0")
        name = self.job(port, lambda job: len(job["nodes"]) == 1)["nodes"][0]["id"]
        goes = self.agent(port, "--rdzv-conf", "is_host=0")
        both = self.job(port, lambda job: job["phase"] == "running")
        (gone,) = {node["id"] for node in both["nodes"]} - {name}
        goes.send_signal(signal.SIGTERM)
        job = self.job(port, lambda job: len(job["nodes"]) == 1)
        self.assertEqual([node["id"] for node in job["gone"]], [gone])
        code, text, _ = self.ctl("status", f"127.0.0.1:{port}")
        self.assertEqual(code, 0)
        self.assertRegex(text, f"gone .* ago: node {gone} has left")
        self.assertIsNone(stays.poll())
        self.end(host)

    def test_static_jobs_name_the_missing_rank(self) -> None:
        port = free_port()
        self.agent(port, "--node-rank", "0", nodes="3", backend="static")
        job = self.job(port, lambda job: len(job["nodes"]) == 1)
        self.assertEqual(job["missing_node_ranks"], [1, 2])
        self.assertIn("missing: node rank 1, 2", self.ctl("status", f"127.0.0.1:{port}")[1])

    def test_secret_and_run_id_must_fit(self) -> None:
        port = free_port()
        self.agent(port, env=SECRET)
        self.job(port, lambda job: True, env=SECRET)
        file = self.folder / "secret"
        file.write_text("between us\n")
        file.chmod(0o600)
        self.job(port, lambda job: True, "--secret-file", str(file))
        self.job(port, lambda job: True, "--rdzv-conf", f"secret_file={file}")
        code, _, text = self.ctl("status", f"127.0.0.1:{port}")
        self.assertEqual(code, 1)
        self.assertIn('not the one of the job "exam"', text)
        code, _, text = self.ctl("status", "--rdzv-id", "other", f"127.0.0.1:{port}", env=SECRET)
        self.assertEqual(code, 1)
        self.assertIn('"exam", not "other"', text)

    def test_nobody_there(self) -> None:
        code, out, text = self.ctl("status", f"127.0.0.1:{free_port()}")
        self.assertEqual((code, out), (1, ""))
        self.assertIn("no answer from", text)

    def test_somebody_else_is_there(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as other:
            child = self.start(CTL, "status", f"127.0.0.1:{other.getsockname()[1]}")
            peer = other.accept()[0]
            peer.sendall(b"HTTP/1.0 400 Bad Request\r\n\r\n")
            text = child.communicate(timeout=60)[1]
            peer.close()
            self.assertEqual(child.returncode, 1)
            self.assertIn("is not a coordinator of elastrun", text)
            where = f"127.0.0.1:{other.getsockname()[1]}"
            code, _, text = self.ctl("status", "--timeout", "0.1", where)
            self.assertEqual(code, 1)
            self.assertIn("said nothing", text)

    def test_usage(self) -> None:
        for words in ([], ["bogus"], ["status", "--timeout", "x"], ["store"], ["status", "a:b:c:1"],
                      ["store", "--listen", "somewhere:1"], ["status", "--secret-file", "/nowhere"],
                      ["status", "--rdzv-conf", "x"],
                      ["store", "--listen", "127.0.0.1:0", "--state", __file__]):
            code, out, text = self.ctl(*words)
            self.assertEqual((code, out), (2, ""), words)
            self.assertRegex(text, r"^elastrunctl: .+\n$")
        for words, meant in ((["stauts"], "status"), (["goodput", "reprot", "x"], "report")):
            code, out, text = self.ctl(*words)
            self.assertEqual((code, out), (2, ""), words)
            self.assertIn(f"; did you mean {meant}?", text)
        for words in (["--help"], ["status", "--help"], ["store", "--help"], ["--version"]):
            self.assertEqual((self.ctl(*words)[0], self.ctl(*words)[2]), (0, ""))


class Store(Case):
    def test_who_says_no_hello_is_let_go_however_much_it_says(self) -> None:
        _, port = self.store("--rdzv-conf", "keep_alive_interval=1,keep_alive_max_attempt=2")
        with socket.create_connection(("127.0.0.1", port)) as stranger:
            stranger.settimeout(0.05)
            # A greeting, and a first frame that never ends.
            stranger.sendall(b"\xe5lastrun\x03" + bytes(16) + (60000).to_bytes(4, "little"))
            end = time.monotonic() + 30
            closed = False
            while not closed and time.monotonic() < end:
                try:
                    stranger.sendall(b"x")
                    closed = stranger.recv(4096) == b""
                except TimeoutError:
                    continue
                except OSError:
                    closed = True
            self.assertTrue(closed)

    def test_refusals_are_counted_and_do_not_fill_the_log(self) -> None:
        child, port = self.store()
        for _ in range(100):
            with socket.create_connection(("127.0.0.1", port)) as stranger:
                stranger.sendall(b"\xe5lastrun\x03" + bytes(16) + bytes(36))
                while stranger.recv(4096):
                    pass
        child.terminate()
        said = [line for line in child.communicate(timeout=60)[1].splitlines() if "refused" in line]
        self.assertLess(len(said), 30)
        self.assertIn("64 such lines so far", said[-1])

    def test_agents_of_several_jobs_meet_there(self) -> None:
        host, port = self.store()
        agents = [self.agent(port, "--rdzv-conf", "is_host=0") for _ in range(2)]
        self.job(port, lambda job: job["phase"] == "running")
        agents.append(self.start(ELASTRUN, "--nnodes", "2", "--rdzv-backend", "c10d",
                                 "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "another",
                                 "--rdzv-conf", "is_host=0", "--no-python", "true"))
        self.job(port, lambda job: job["run_id"] == "another", "--rdzv-id", "another")
        self.job(port, lambda job: job["run_id"] == "exam", "--rdzv-id", "exam")
        self.go.touch()
        self.assertEqual([agent.wait(60) for agent in agents[:2]], [0, 0])
        host.terminate()
        self.assertEqual(host.wait(60), 0)

    def test_with_a_run_id_it_takes_the_rules_of_the_agents_and_no_other_job(self) -> None:
        _, port = self.store("--run-id", "exam")
        agents = [self.agent(port, "--rdzv-conf", "is_host=0") for _ in range(2)]
        job = self.job(port, lambda job: job["phase"] == "running")
        self.assertEqual((job["min_nodes"], job["max_nodes"]), (2, 2))
        stranger = self.agent(port, "--rdzv-conf", "is_host=0", "--rdzv-id", "another")
        self.assertEqual(stranger.wait(60), 1)
        self.assertIn('"exam", not "another"', stranger.stderr.read())
        self.go.touch()
        self.assertEqual([agent.wait(60) for agent in agents], [0, 0])

    def test_ends_when_asked(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            host, _ = self.store()
            host.send_signal(number)
            self.assertEqual(host.wait(60), 0)

    def test_a_port_in_use_is_an_error(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as other:
            port = other.getsockname()[1]
            code, _, text = self.ctl("store", "--listen", f"127.0.0.1:{port}")
        self.assertEqual(code, 1)
        self.assertIn(str(port), text)
