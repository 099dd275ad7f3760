# SPDX-License-Identifier: Apache-2.0
"""A server on this machine that takes JSON, as a collector of OTLP does, and keeps it."""
from __future__ import annotations

import http.server
import json
import ssl
import threading
from typing import Any

from harness import LIMIT


class Collector(http.server.ThreadingHTTPServer):
    """`answers`: what to do with each request, the last one again and again: a
    status, a status with seconds to come back after, seconds until 200, "hang", or a dictionary
    with those by path."""

    daemon_threads = True

    def __init__(self, *answers: Any, tls: ssl.SSLContext | None = None) -> None:
        self.answers, self.requests = list(answers), []
        self.authorizations: set[str | None] = set()
        self.over = threading.Event()
        super().__init__(("127.0.0.1", 0), Receive)
        if tls:
            self.socket = tls.wrap_socket(self.socket, server_side=True)
        threading.Thread(target=self.serve_forever, daemon=True).start()
        self.url = f"otlp:http://127.0.0.1:{self.server_address[1]}"

    def __enter__(self) -> Collector:
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.shutdown()
        self.server_close()

    def taken(self, path: str) -> list[dict[str, Any]]:
        return [body for where, status, body in self.requests if where == path and status == 200]


class Receive(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Collector

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.authorizations.add(self.headers["Authorization"])
        answers = self.server.answers
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, dict):
            answer = answer.get(self.path, 200)
        if answer == "hang":
            self.server.requests.append((self.path, 0, body))
            self.server.over.wait(LIMIT)
            return
        if isinstance(answer, float):
            self.server.over.wait(answer)
            answer = 200
        status, after = answer if isinstance(answer, tuple) else (answer, None)
        self.server.requests.append((self.path, status, body))
        self.send_response(status)
        if after is not None:
            self.send_header("Retry-After", str(after))
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: object) -> None:
        pass
