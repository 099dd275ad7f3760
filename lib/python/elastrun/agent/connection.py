# SPDX-License-Identifier: Apache-2.0
"""The program elastrun as the agent of this process: one child for one job.

What is to be run goes to it over a socket, as one line of JSON, and comes back over it: metrics and
events while it runs, how it ended at the end (elastrun-protocol(7), "A caller and its agent"). When
this process ends, in whatever way, the agent ends the job as after SIGTERM.
"""
from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from elastrun.multiprocessing.api import signal_exception, signals_to_handle
from elastrun.multiprocessing.payload import receive_value, socket_pair
from elastrun.program import find_program

if TYPE_CHECKING:
    from elastrun.agent.caller_copy import CallerCopy, Forked

_LONGEST_LINE = 64 << 20
_ENDING = 60.0  # seconds beyond the time that workers have to end
_LEAVING = 0.5  # seconds that HandlerServer.close() waits for its thread
# By the names of the exceptions: a handler may raise torch's own.
_KINDS = {"RendezvousClosedError": "closed", "RendezvousTimeoutError": "timeout",
          "RendezvousGracefulExitError": "graceful_exit"}


class AgentError(RuntimeError):
    """The agent could not do its work: the program is missing, or it ended without a word."""


def _program() -> str:
    named = os.environ.get("ELASTRUN_BINARY")
    if named:
        return named
    found = find_program("elastrun")
    if found is None:
        raise AgentError("the program elastrun is neither in this package nor in PATH; "
                         "ELASTRUN_BINARY may name it")
    return found


class AgentProcess:
    """One run. `request`: see the manual; `descriptors`: what the agent inherits beside the socket.
    `on_line`: gets what the agent says but for the end; what it raises ends the job.
    `shutdown_timeout`: seconds that workers have to end. `stdout`: as subprocess.Popen's.
    `variables`: for its environment, beside ours. `copy`: forks the workers, of this process.
    """

    def __init__(self, request: dict[str, Any], descriptors: Iterable[int],
                 on_line: Callable[[dict[str, Any]], None], shutdown_timeout: float,
                 results: socket.socket | None = None, stdout: int | None = None,
                 variables: Mapping[str, str] | None = None,
                 copy: CallerCopy | None = None) -> None:
        # What workers returned: their process numbers and the descriptors, by rank.
        self._values: dict[int, tuple[int, int]] = {}
        self.heard: signal.Signals | None = None  # the first signal that this process was sent
        self._on_line = on_line
        self._patience = shutdown_timeout + _ENDING
        self._results = results
        self._ended: dict[str, Any] | None = None
        self._text = bytearray()
        self._socket, theirs = socket_pair()
        self._child: subprocess.Popen[bytes] | Forked
        try:
            with theirs:
                words = [_program(), f"--caller={theirs.fileno()}"]
                environment = {**os.environ, **(variables or {})}
                if copy is None:
                    self._child = subprocess.Popen(
                        words, stdout=stdout, pass_fds=(theirs.fileno(), *descriptors),
                        env=environment)
                else:
                    from elastrun.agent.caller_copy import Forked

                    self._child = Forked(words, environment, theirs, self._socket, descriptors,
                                         stdout, copy)
        except BaseException as error:
            self._socket.close()
            if isinstance(error, OSError):
                raise AgentError(f"cannot start the agent: {error}") from error
            raise
        self._request = request
        # Tells of the child's end beside the connection: where a fork of another thread has
        # inherited the agent's end of that, it stays open beyond the agent.
        self._end_of_child = -1
        with contextlib.suppress(OSError):  # it is gone
            self._end_of_child = os.pidfd_open(self._child.pid)

    @property
    def returncode(self) -> int | None:
        """The guardian's, which ends last; see subprocess.Popen."""
        return self._child.returncode

    def send(self, number: int) -> None:
        """A signal, as from a terminal or a batch system."""
        if self._child.poll() is None:
            self._child.send_signal(number)

    def run(self) -> dict[str, Any]:
        """Waits for the end of the job; what the agent says of it. In the main thread, the signals
        to handle are passed on meanwhile; in others, they do what they do. One that came too late
        to end the job does here what it does without us. Fails with AgentError. An exception ends
        the job first, and passes on then.
        """
        try:
            with self._passing_signals_on():
                self._say()
                while self._step():
                    pass
                self._child.wait()
        except BaseException:
            self._end()
            raise
        finally:
            self._socket.close()
        if self._ended is None and self.heard is not None:
            raise signal_exception(self.heard)  # before the agent could say that it has ended by it
        if self._ended is None:
            raise AgentError(f"the agent has ended without a word: {_how(self._child.returncode)}")
        ended = self._ended
        if self.heard is not None and ended.get("error") is None and not ended.get("signal") \
                and not ended.get("report", {}).get("preemption"):
            signal.raise_signal(self.heard)  # it has neither ended the job nor asked it to save
        return ended

    @contextlib.contextmanager
    def _passing_signals_on(self) -> Iterator[None]:
        """Meanwhile signals of this process go to the agent, but for the ignored ones (nohup). A
        terminal's reaches the agent on its own way, too, which tells one request by two ways from a
        repeated one.
        """
        def hear(number: int, _: object) -> None:
            if self.heard is None:
                self.heard = signal.Signals(number)
            self.send(number)

        main = threading.current_thread() is threading.main_thread()
        before: dict[int, Any] = {}
        try:
            for one in signals_to_handle() if main else ():
                if one not in (signal.SIGKILL, signal.SIGSTOP) and \
                        signal.getsignal(one) != signal.SIG_IGN:
                    before[one] = signal.signal(one, hear)
            yield
        finally:
            for number, handler in before.items():
                # None: it was not installed by Python, and cannot be by it.
                signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _say(self) -> None:
        # Arguments and file names that are not UTF-8 go as the bytes that they are.
        text = json.dumps(self._request, ensure_ascii=False)
        line = text.encode("utf-8", "surrogateescape") + b"\n"
        try:
            self._socket.sendall(line)
        except (BrokenPipeError, ConnectionResetError):
            pass  # it has ended, and what it said can be read

    def _step(self) -> bool:
        """Waits for something of the agent, and takes it; False at the end of the connection, or
        when the agent has said how the job ended and is gone."""
        ours, child = self._socket.fileno(), -1 if self._ended is None else self._end_of_child
        results = self._results.fileno() if self._results is not None else -1
        poll = select.poll()
        for one in (ours, child, results):
            if one >= 0:
                poll.register(one, select.POLLIN)
        readable = {fd for fd, _ in poll.poll()}
        self._take_values()
        if ours not in readable:
            return child not in readable
        try:
            some = self._socket.recv(1 << 16)
        except ConnectionResetError:
            some = b""
        if not some:
            self._take_values()
            return False
        self._text += some
        *lines, rest = self._text.split(b"\n")
        self._text = bytearray(rest)
        if len(rest) > _LONGEST_LINE:
            raise AgentError("the agent says a line of more than 64 MiB")
        for line in lines:
            self._hear(json.loads(line))
        return True

    def _hear(self, said: dict[str, Any]) -> None:
        ended = said.get("ended")
        if ended is not None:
            self._ended = ended
        else:
            self._on_line(said)

    def _take_values(self) -> None:
        while self._results is not None:
            got = receive_value(self._results)
            if got is None:
                return
            rank, *value = got
            if rank in self._values:  # of an earlier start of the workers
                os.close(self._values[rank][1])
            self._values[rank] = (value[0], value[1])

    def take_value(self, rank: int, pid: int) -> int | None:
        """The descriptor of what that process returned, if it did: the rank may have returned in an
        earlier start of the workers, and ended without a value in the last."""
        if self._values.get(rank, (-1,))[0] != pid:
            return None
        return self._values.pop(rank)[1]

    def _end(self) -> None:
        """Ends the job as a launcher that is told to: workers have their time. Told again, less."""
        try:
            # The agent takes it for our end, also while a fork of this process has the socket, too.
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # it has ended, or was told
        self._socket.close()
        limit = time.monotonic() + self._patience
        while True:
            try:
                self._child.wait(max(limit - time.monotonic(), 0.1))
                return
            except subprocess.TimeoutExpired:
                self._child.kill()  # the guardian, whose end ends all
            except BaseException:
                self.send(signal.SIGTERM)
                limit = min(limit, time.monotonic() + 10.0)

    def close(self) -> None:
        """Lets go of what was returned and not taken; ends a job that run() was not called for."""
        if self._child.poll() is None:
            self._end()
        while self._values:
            os.close(self._values.popitem()[1][1])
        if self._end_of_child >= 0:
            os.close(self._end_of_child)
            self._end_of_child = -1


def _how(code: int | None) -> str:
    if code is None or code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def _place(store: Any, rank: int) -> dict[str, Any]:
    """The place of the store, and the prefix under which the agents of this round meet there:
    they agree on it by the store itself, because torch does not tell the prefix of one.
    """
    below = store
    # A prefix store is its own client of the store below it.
    while (under := getattr(below, "underlying_store", None)) is not None:
        below = under
    if getattr(below, "path", None) and not getattr(below, "port", None):
        place: dict[str, Any] = {"path": os.fspath(below.path)}
    elif getattr(below, "host", None) and getattr(below, "port", None):
        place = {"host": below.host, "port": int(below.port)}
    else:
        raise TypeError(f"the store of a rendezvous with several nodes has to be a TCPStore or a "
                        f"FileStore, or a PrefixStore on one, not a {type(below).__name__}")
    key = "elastrun/agents"
    if rank == 0:
        store.set(key, uuid.uuid4().hex)
    said = store.get(key)
    place["prefix"] = f"elastrun/{said.decode() if isinstance(said, bytes) else said}"
    return place


def _round(handler: Any) -> dict[str, Any]:
    info = handler.next_rendezvous()
    if isinstance(info, tuple):  # torch before 2.4
        store, rank, world_size = info
        bootstrap = None
    else:
        store, rank, world_size = info.store, info.rank, info.world_size
        bootstrap = info.bootstrap_store_info
    answer: dict[str, Any] = {"rank": rank, "world_size": world_size,
                              "use_agent_store": int(bool(handler.use_agent_store))}
    if bootstrap is not None:
        answer["bootstrap"] = {"host": bootstrap.master_addr, "port": bootstrap.master_port}
    if world_size > 1:
        answer["store"] = _place(store, rank)
    return answer


class HandlerServer:
    """`theirs`: the descriptor for the agent. A second thread asks the handler: a wait in it keeps
    neither signals nor the agent's end.
    """

    def __init__(self, handler: Any) -> None:
        self._handler = handler
        self.ours, self.theirs = socket_pair()
        self.failure: BaseException | None = None  # the last exception of next_rendezvous
        self._thread = threading.Thread(target=self._serve, name="elastrun-rendezvous", daemon=True)

    def start(self) -> None:
        """Starts the thread; after a fork of this process, which has to have one thread."""
        self._thread.start()

    def _serve(self) -> None:
        try:
            with self.ours.makefile("rwb") as stream:
                for line in stream:
                    answer = self._answer(json.loads(line)["call"])
                    stream.write(json.dumps(answer).encode() + b"\n")
                    stream.flush()
        except (OSError, ValueError):
            pass  # the agent has gone

    def _answer(self, call: str) -> dict[str, Any]:
        try:
            if call == "next_rendezvous":
                self.failure = None
                return {"answer": _round(self._handler)}
            if call not in ("is_closed", "num_nodes_waiting", "set_closed", "shutdown"):
                raise ValueError(f"no handler knows {call}")
            return {"answer": {"value": int(getattr(self._handler, call)() or 0)}}
        except BaseException as error:
            if call == "next_rendezvous":
                self.failure = error
            kind = next((_KINDS[one.__name__] for one in type(error).__mro__
                         if one.__name__ in _KINDS), "rendezvous")
            return {"error": {"kind": kind, "text": f"{type(error).__name__}: {error}"}}

    def close(self) -> None:
        self.theirs.close()
        try:
            self.ours.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self.ours.close()
        if self._thread.ident is not None:
            # The next launch may fork this process, which has to have one thread then. No longer
            # than this: the handler may be in a call that never returns.
            self._thread.join(_LEAVING)
