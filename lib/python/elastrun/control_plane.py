# SPDX-License-Identifier: Apache-2.0
"""The worker's control plane of torch without torch: named handlers that a local server calls.

    from elastrun import control_plane

    control_plane.register_handler("loss", lambda request: control_plane.Response(str(loss)))
    server = control_plane.WorkerServer("/run/user/1000/worker0.sock")
    # curl --unix-socket /run/user/1000/worker0.sock -X POST http://l/handler/dump_traceback
    server.shutdown()

GET / is a page, GET /handler/ lists the handlers, POST /handler/NAME?key=value calls one: `ping`,
`dump_traceback` (all threads), `wait_counter_values` (elastrun.monitor) and `fr_trace_json` (the
flight recorder of torch, as far as torch is there). Handlers are called in threads of the server;
one that raises is the answer 500 with its text.

Other than with torch: a path takes GET or POST, and the other method is 405, not 404; a flag of
`fr_trace_json` is one of those in lower case, true or false, else 400, as torch's older
dump_nccl_trace_json; `pyspy_dump` is not there (elastrunctl stacks is). Any process that can open
the socket may ask: it is the user's alone, and a TCP port without a host is on 127.0.0.1. A port
refuses what web pages of others make a browser send, with 403: on a loopback address requests for a
host that is not local, and everywhere those of another origin.
"""
from __future__ import annotations

import contextlib
import errno
import faulthandler
import ipaddress
import json
import os
import socket
import stat
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit

from elastrun.errors import ErrorHandler
from elastrun.monitor import wait_counter_values

__all__ = ["Request", "Response", "WorkerServer", "register_handler", "worker_main"]

_LARGEST_BODY = 1 << 20  # bytes
_PATIENCE = 10.0  # seconds that a connection may say nothing
_FLAGS = ("includecollectives", "includestacktraces", "onlyactive")
_PAGE = '<h1>elastrun worker</h1>\n<a href="/handler/">Handler names</a>\n'


class Request(NamedTuple):
    body: bytes = b""
    parameters: Mapping[str, str] = {}  # of the query


class Response(NamedTuple):
    content: str
    status: int = 200
    content_type: str = "text/plain"


Handler = Callable[[Request], Response]


def _traceback(_: Request) -> Response:
    with tempfile.TemporaryFile() as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        return Response(file.read().decode("utf-8", "replace"))


def _flight_recorder(request: Request) -> Response:
    for name, value in request.parameters.items():
        if name not in _FLAGS:
            return Response(f"parameter '{name}': known are {', '.join(_FLAGS)}", 400)
        if value not in ("true", "false"):
            return Response(f"parameter '{name}': '{value}' is neither true nor false", 400)
    c10d = sys.modules.get("torch._C._distributed_c10d")
    dump = getattr(c10d, "_dump_fr_trace_json", None)
    if dump is None:  # no torch, no collectives
        return Response('{"entries":[]}', content_type="application/json")
    found = dump(request.parameters.get("includecollectives") != "false",
                 request.parameters.get("onlyactive") == "true")
    text = found if isinstance(found, str) else bytes(found).decode("utf-8", "replace")
    return Response(text, content_type="application/json")


_change = threading.Lock()
_handlers: dict[str, Handler] = {
    "dump_traceback": _traceback, "fr_trace_json": _flight_recorder,
    "ping": lambda _: Response("pong"),
    "wait_counter_values": lambda _: Response(
        json.dumps(wait_counter_values()), content_type="application/json")}


def register_handler(name: str, handler: Handler) -> None:
    """Adds it to all servers of this process. Fails with ValueError if the name is taken."""
    with _change:
        if name in _handlers:
            raise ValueError(f"there is a handler '{name}' already")
        _handlers[name] = handler


def _answer(method: str, path: str, request: Request) -> Response:
    name = path[len("/handler/"):] if path.startswith("/handler/") else ""
    if not name and path not in ("/", "/handler/"):
        return Response(f"{path} not found: there are / and /handler/", 404)
    if method != ("POST" if name else "GET"):
        return Response(f"{path} takes {'POST' if name else 'GET'}", 405)
    if path == "/":
        return Response(_PAGE, content_type="text/html")
    if not name:
        return Response(json.dumps(sorted(_handlers)), content_type="application/json")
    handler = _handlers.get(name)
    if handler is None:
        return Response(f"Handler {name} not found: known are {', '.join(sorted(_handlers))}", 404)
    try:
        return handler(request)
    except Exception as error:
        return Response(f"Handler {name} failed: {type(error).__name__}: {error}", 500)


def _is_local(host: str) -> bool:
    """Tells if no page that came under a stranger's name (DNS rebinding) can have led a browser
    here by this `Host`: an address, localhost and names below it, or none."""
    bracketed = host.startswith("[")
    name, _, port = host[1:].partition("]") if bracketed else host.partition(":")
    if bracketed and not f"{port}:".startswith(":"):
        return False
    with contextlib.suppress(ValueError):
        return bool(ipaddress.ip_address(name))
    name = name.rstrip(".").lower()
    return name in ("", "localhost") or name.endswith(".localhost")


class _Asker(BaseHTTPRequestHandler):
    """One connection, one request."""

    timeout = _PATIENCE

    def _answer(self) -> None:
        assert isinstance(self.server, _Server)
        origins = self.headers.get_all("Origin")
        refused = self.server.refusal(",".join(self.headers.get_all("Host", [])),
                                      ",".join(origins) if origins else None)
        if refused:
            self._send(Response(refused, 403))
            return
        where = urlsplit(self.path)
        length = self.headers.get("Content-Length", "0")
        if not length.isdecimal() or int(length[:9]) > _LARGEST_BODY:
            self._send(Response("a body has at most 1 MiB", 413))
            return
        body = self.rfile.read(int(length[:9]))
        request = Request(body, dict(parse_qsl(where.query, keep_blank_values=True)))
        self._send(_answer(self.command, where.path, request))

    do_GET = do_POST = do_PUT = do_DELETE = _answer

    def _send(self, response: Response) -> None:
        content = response.content.encode("utf-8", "replace")
        self.send_response(response.status)
        self.send_header("Content-Type", response.content_type)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        pass


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def server_bind(self) -> None:
        self.socket.bind(self.server_address)

    def get_request(self) -> Any:
        connection, _ = super().get_request()
        return connection, ("local", 0)

    def handle_error(self, *_: Any) -> None:
        pass  # the asker has gone

    def refusal(self, host: str, origin: str | None) -> str:
        """Says why a request to a port may be a stranger's web page; empty: it is not. Programs
        send no Origin, and browsers send one with each POST."""
        loopback = ipaddress.ip_address(self.socket.getsockname()[0]).is_loopback
        if loopback and not _is_local(host):
            return "this address answers requests for localhost only"
        own = host.partition(":")[0].lower() == socket.gethostname().lower() or _is_local(host)
        if origin is not None and not (own and host and origin.lower() == f"http://{host.lower()}"):
            return "requests of other origins are not answered"
        return ""


class _UnixServer(_Server):
    address_family = socket.AF_UNIX

    def server_bind(self) -> None:
        # The mode that bind(2) makes the file with; the umask is that of all threads.
        os.fchmod(self.socket.fileno(), 0o600)
        try:
            super().server_bind()
        except OSError as error:
            file = str(self.server_address)
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as one:
                one.setblocking(False)
                # No process listens at it any more: a killed worker has left it.
                if not (error.errno == errno.EADDRINUSE
                        and one.connect_ex(file) == errno.ECONNREFUSED
                        and stat.S_ISSOCK(os.lstat(file).st_mode)):
                    raise
            os.unlink(file)
            super().server_bind()

    def refusal(self, *_: Any) -> str:
        return ""  # no browser opens a socket file


class WorkerServer:
    """Serves as torch's _WorkerServer: without a port at the socket file `host_or_file`, else there
    on the network; port 0 is any free one. A file that a killed worker has left is taken over.
    Fails with OSError.
    """

    def __init__(self, host_or_file: str, port: int = -1) -> None:
        self._file = host_or_file if port < 0 else ""
        self._server: _Server
        if self._file:
            self._server = _UnixServer(self._file, _Asker)  # type: ignore[arg-type]
        else:
            self._server = _Server((host_or_file or "127.0.0.1", port), _Asker)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,),
                                        name="elastrun-control-plane", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """-1: it has none."""
        return -1 if self._file else int(self._server.socket.getsockname()[1])

    def shutdown(self) -> None:
        """Ends it, once or more; requests that are under way may still be answered."""
        self._server.shutdown()
        self._server.server_close()
        if self._file:
            with contextlib.suppress(OSError):
                os.unlink(self._file)
            self._file = ""


@contextlib.contextmanager
def worker_main() -> Iterator[None]:
    """Serves around a block, or a function as `@worker_main()`, at the socket file
    TORCH_WORKER_SERVER_SOCKET, if that is set, and writes an exception to the error file. Fails
    with OSError if it cannot serve there."""
    file = os.environ.get("TORCH_WORKER_SERVER_SOCKET")
    server = WorkerServer(file) if file else None
    try:
        yield
    except Exception as error:
        ErrorHandler().record_exception(error)
        raise
    finally:
        if server is not None:
            server.shutdown()
