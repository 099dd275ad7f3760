# SPDX-License-Identifier: Apache-2.0
"""elastrun.control_plane: C1 to C8 are the vectors of torch's worker server, asked over HTTP; what
we do otherwise is called a deviation.
"""
from __future__ import annotations

import contextlib
import http.client
import importlib.util
import json
import os
import socket
import stat
import threading
import unittest
import unittest.mock
from pathlib import Path
from typing import Any, NamedTuple

from agent_end import folder_for

from elastrun import control_plane, monitor  # noqa: E402
from elastrun.control_plane import Request, Response, WorkerServer  # noqa: E402


class Answer(NamedTuple):
    status: int
    content_type: str | None
    text: str


class Served(unittest.TestCase):
    def setUp(self) -> None:
        self.file = f"{folder_for(self)}/socket"
        self.server = self.serve(self.file)

    def serve(self, *place: Any) -> WorkerServer:
        server = WorkerServer(*place)
        self.addCleanup(server.shutdown)
        return server

    def connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(30)
        connection.connect(self.file)
        self.addCleanup(connection.close)
        return connection

    def ask(self, method: str, path: str, body: bytes | None = None) -> Answer:
        client = http.client.HTTPConnection("worker")
        client.sock = self.connect()
        client.request(method, path, body)
        found = client.getresponse()
        return Answer(found.status, found.getheader("Content-Type"), found.read().decode())

    def handler(self, name: str, handler: control_plane.Handler) -> None:
        control_plane.register_handler(name, handler)
        self.addCleanup(lambda: control_plane._handlers.pop(name))

    def test_c1_the_page_links_to_the_list(self) -> None:
        page = self.ask("GET", "/")
        self.assertEqual((page.status, page.content_type), (200, "text/html"))
        self.assertIn('href="/handler/"', page.text)

    def test_c2_ping(self) -> None:
        self.assertEqual(self.ask("POST", "/handler/ping"), Answer(200, "text/plain", "pong"))

    def test_c3_the_list(self) -> None:
        found = self.ask("GET", "/handler/")
        self.assertEqual((found.status, found.content_type), (200, "application/json"))
        self.assertEqual(json.loads(found.text), [
            "dump_traceback", "fr_trace_json", "ping", "wait_counter_values"])

    def test_c4_a_handler_that_is_not_there(self) -> None:
        found = self.ask("POST", "/handler/nonexistent")
        self.assertEqual(found.status, 404)
        self.assertTrue(found.text.startswith("Handler nonexistent not found:"), found.text)

    def test_c5_a_handler_that_raises(self) -> None:
        def breaks(_: Request) -> Response:
            raise RuntimeError("it broke")
        self.handler("breaks", breaks)
        found = self.ask("POST", "/handler/breaks")
        self.assertEqual(found.status, 500)
        self.assertIn("it broke", found.text)
        self.assertEqual(self.ask("POST", "/handler/ping").text, "pong")

    def test_c6_a_traceback_of_all_threads(self) -> None:
        stop = threading.Event()

        def waits_for_the_stop() -> None:
            stop.wait()
        thread = threading.Thread(target=waits_for_the_stop)
        thread.start()
        try:
            found = self.ask("POST", "/handler/dump_traceback")
        finally:
            stop.set()
            thread.join()
        self.assertEqual((found.status, found.content_type), (200, "text/plain"))
        self.assertIn("waits_for_the_stop", found.text)
        self.assertIn("test_c6_a_traceback_of_all_threads", found.text)

    def test_c7_flags_of_the_trace(self) -> None:
        for query in ("", "?includecollectives=true&onlyactive=false", "?includestacktraces=true"):
            found = self.ask("POST", f"/handler/fr_trace_json{query}")
            self.assertEqual((found.status, found.content_type), (200, "application/json"), query)
            self.assertIsInstance(json.loads(found.text), dict)
        for query in ("?unknown=true", "?includeCollectives=true", "?onlyactive=1",
                      "?onlyactive=True", "?onlyactive="):
            self.assertEqual(self.ask("POST", f"/handler/fr_trace_json{query}").status, 400, query)

    @unittest.skipUnless(importlib.util.find_spec("torch"), "torch is not installed")
    def test_c7_the_trace_is_torchs_where_torch_is(self) -> None:
        import torch.distributed  # noqa: F401
        found = json.loads(self.ask("POST", "/handler/fr_trace_json?onlyactive=true").text)
        self.assertIn("version", found)

    def test_c8_wait_counters(self) -> None:
        for _ in range(3):
            with monitor._WaitCounter("test_counter").guard():
                pass
        found = self.ask("POST", "/handler/wait_counter_values")
        self.assertEqual((found.status, found.content_type), (200, "application/json"))
        counter = json.loads(found.text)["test_counter"]
        self.assertEqual((counter["total_calls"], counter["active_count"]), (3, 0))
        self.assertGreaterEqual(counter["total_time_us"], 0)
        self.assertGreaterEqual(counter["max_time_us"], 0)

    def test_deviation_the_wrong_method_is_told_as_such(self) -> None:
        self.assertEqual(self.ask("GET", "/handler/ping"),
                         Answer(405, "text/plain", "/handler/ping takes POST"))
        self.assertEqual(self.ask("POST", "/").status, 405)
        self.assertEqual(self.ask("PUT", "/handler/ping", b"x").status, 405)
        self.assertEqual(self.ask("GET", "/other").status, 404)

    def test_a_handler_gets_the_body_and_the_query(self) -> None:
        self.handler("echo", lambda request: Response(
            f"{request.body.decode()} {dict(request.parameters)}", 201, "text/x"))
        self.assertEqual(self.ask("POST", "/handler/echo?a=1&b=", b"text"),
                         Answer(201, "text/x", "text {'a': '1', 'b': ''}"))
        with self.assertRaisesRegex(ValueError, "'echo'"):
            control_plane.register_handler("echo", print)
        with self.assertRaises(ValueError):
            control_plane.register_handler("ping", print)

    def test_whoever_says_nonsense_disturbs_nobody(self) -> None:
        ping = b"POST /handler/ping HTTP/1.1\r\n"
        for said in (b"", b"\x00\xff\r\n\r\n", ping + b"Content-Length: -1\r\n\r\n",
                     ping + b"Content-Length: 99999999\r\n\r\n",
                     b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\n\r\n"):
            connection = self.connect()
            try:
                connection.sendall(said)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(65536):
                    pass
            except OSError:
                pass
        self.assertEqual(self.ask("POST", "/handler/ping").text, "pong")

    def test_the_socket_is_the_users_alone_and_gone_afterwards(self) -> None:
        self.assertEqual(stat.S_IMODE(os.stat(self.file).st_mode), 0o600)
        self.assertEqual(self.server.port, -1)
        self.server.shutdown()
        self.assertFalse(os.path.exists(self.file))
        self.server.shutdown()

    def test_a_file_that_a_killed_worker_has_left_is_taken_over(self) -> None:
        file = self.file + ".left"
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(file)
        self.serve(file)
        with self.assertRaises(OSError):  # this one listens
            WorkerServer(file)
        other = self.file + ".text"
        Path(other).write_text("not ours")
        with self.assertRaises(OSError):
            WorkerServer(other)
        self.assertEqual(Path(other).read_text(), "not ours")

    def test_worker_main_serves_while_a_function_runs_and_writes_its_error(self) -> None:
        file, said = self.file + ".main", self.file + ".json"
        with unittest.mock.patch.dict(os.environ, {"TORCH_WORKER_SERVER_SOCKET": file,
                                                   "TORCHELASTIC_ERROR_FILE": said}):
            @control_plane.worker_main()
            def main() -> None:
                self.assertTrue(stat.S_ISSOCK(os.stat(file).st_mode))
                raise KeyError("on purpose")

            with self.assertRaises(KeyError):
                main()
        self.assertFalse(os.path.exists(file))
        self.assertIn("on purpose", json.loads(Path(said).read_text())["message"]["message"])
        with unittest.mock.patch.dict(os.environ):
            os.environ.pop("TORCH_WORKER_SERVER_SOCKET", None)
            with control_plane.worker_main():
                self.assertFalse(os.path.exists(file))

    def test_files_of_other_threads_are_made_as_ever(self) -> None:
        before = os.umask(0)
        self.addCleanup(os.umask, before)
        with unittest.mock.patch("os.umask") as changed:
            self.serve(f"{self.file}2")
        changed.assert_not_called()
        self.assertEqual(stat.S_IMODE(os.stat(f"{self.file}2").st_mode), 0o600)

    def test_a_port_on_the_loopback(self) -> None:
        server = self.serve("", 0)
        self.assertEqual(server._server.socket.getsockname()[0], "127.0.0.1")
        client = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
        self.addCleanup(client.close)
        client.request("POST", "/handler/ping")
        self.assertEqual(client.getresponse().read(), b"pong")

    def test_a_port_refuses_what_a_strangers_page_makes_a_browser_send(self) -> None:
        called = []
        self.handler("mark", lambda request: called.append(request) or Response("ok"))

        def ask(port: int, headers: list[tuple[str, str]]) -> int:
            client = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
            with contextlib.closing(client):
                client.putrequest("POST", "/handler/mark", skip_host=True)
                for name, value in headers:
                    client.putheader(name, value)
                client.endheaders()
                return client.getresponse().status
        loopback, anywhere = (self.serve(host, 0) for host in ("", "0.0.0.0"))
        name = socket.gethostname()
        for server in (loopback, anywhere):
            port, at = server.port, f"127.0.0.1:{server.port}"
            for headers in ([("Host", "evil.example"), ("Origin", "http://evil.example")],
                            [("Host", at), ("Origin", "http://evil.example")],
                            [("Host", at), ("Origin", "null")],
                            [("Host", at), ("Origin", f"http://{at}"), ("Origin", "http://e")],
                            [("Host", at), ("Origin", f"http://localhost:{port}")],
                            [("Origin", "http://")]):
                self.assertEqual(ask(port, headers), 403, headers)
            self.assertEqual(called, [])
            for headers in ([], [("Host", at)], [("Host", at), ("Origin", f"http://{at}")],
                            [("Host", f"[::1]:{port}")], [("Host", f"LocalHost.:{port}")]):
                self.assertEqual(ask(port, headers), 200, headers)
            called.clear()
        # By name a machine is asked by others; on the loopback only a page would do so.
        self.assertEqual(ask(loopback.port, [("Host", "trainer-7.example")]), 403)
        for host in ("[evil.example]", "[::1].evil.example", "[::1].evil.example:80"):
            self.assertEqual(ask(loopback.port, [("Host", host)]), 403, host)
        self.assertEqual(ask(anywhere.port, [("Host", "trainer-7.example")]), 200)
        self.assertEqual(ask(anywhere.port, [("Host", name), ("Origin", f"http://{name}")]), 200)


if __name__ == "__main__":
    unittest.main()
