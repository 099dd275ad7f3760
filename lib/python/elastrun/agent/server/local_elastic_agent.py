# SPDX-License-Identifier: Apache-2.0
"""The agent of one node: torch.distributed.elastic.agent.server.local_elastic_agent. It is the
program elastrun, one child for one job.

What is to be run goes to it over a socket, as one line of JSON, and comes back over it: metrics and
events while it runs, how it ended at the end (elastrun-protocol(7), "A caller and its agent"). When
this process ends, in whatever way, the agent ends the job as after SIGTERM.
"""
from __future__ import annotations

import contextlib
import errno
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
from multiprocessing import spawn
from pathlib import Path
from subprocess import _args_from_interpreter_flags  # type: ignore[attr-defined]
from typing import TYPE_CHECKING, Any

from elastrun import events
from elastrun.agent.server.api import (DEFAULT_ROLE, ElasticAgent, RunResult, WorkerGroup,
                                       WorkerSpec, WorkerState)
from elastrun.metrics import api as metrics
from elastrun.multiprocessing import payload as parcel
from elastrun.multiprocessing.api import names_to_handle, signal_exception, signals_to_handle
from elastrun.multiprocessing.errors import ProcessFailure
from elastrun.program import find_program
from elastrun.rendezvous import (BuiltInHandler, RendezvousClosedError, RendezvousError,
                                 RendezvousTimeoutError)

if TYPE_CHECKING:
    from elastrun.multiprocessing.fork import CallerCopy, Forked

__all__ = ["LocalElasticAgent", "TORCHELASTIC_ENABLE_FILE_TIMER", "TORCHELASTIC_HEALTH_CHECK_PORT",
           "TORCHELASTIC_TIMER_FILE", "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT"]

# Variables that the agent reads, by torch's names: see elastrun(1), ENVIRONMENT.
TORCHELASTIC_ENABLE_FILE_TIMER = "TORCHELASTIC_ENABLE_FILE_TIMER"
TORCHELASTIC_HEALTH_CHECK_PORT = "TORCHELASTIC_HEALTH_CHECK_PORT"
TORCHELASTIC_TIMER_FILE = "TORCHELASTIC_TIMER_FILE"
TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT = "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT"
_WORKER = str(Path(__file__).resolve().parents[2] / "multiprocessing" / "worker.py")
_ERRORS: dict[str, type[Exception]] = {
    "usage": ValueError, "closed": RendezvousClosedError, "timeout": RendezvousTimeoutError,
    "rendezvous": RendezvousError, "store": RendezvousError}
_LONGEST_LINE = 64 << 20
_ENDING = 60.0  # seconds beyond the time that workers have to end
_LEAVING = 0.5  # seconds that HandlerServer.close() waits for its thread
# By the names of the exceptions: a handler may raise torch's own.
_KINDS = {"RendezvousClosedError": "closed", "RendezvousTimeoutError": "timeout",
          "RendezvousGracefulExitError": "graceful_exit"}


class AgentError(RuntimeError):
    """The agent could not do its work: the program is missing, or it ended without a word."""


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
        self._socket, theirs = parcel.socket_pair()
        self.child: subprocess.Popen[bytes] | Forked  # the guardian, which ends last
        try:
            with theirs:
                program = os.environ.get("ELASTRUN_BINARY") or find_program("elastrun")
                if program is None:
                    raise AgentError("the program elastrun is neither in this package nor in PATH; "
                                     "ELASTRUN_BINARY may name it")
                words = [program, f"--caller={theirs.fileno()}"]
                environment = {**os.environ, **(variables or {})}
                if copy is None:
                    self.child = subprocess.Popen(
                        words, stdout=stdout, pass_fds=(theirs.fileno(), *descriptors),
                        env=environment)
                else:
                    from elastrun.multiprocessing.fork import Forked

                    self.child = Forked(words, environment, theirs, self._socket, descriptors,
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
            self._end_of_child = os.pidfd_open(self.child.pid)

    def send(self, number: int) -> None:
        """A signal, as from a terminal or a batch system."""
        if self.child.poll() is None:
            self.child.send_signal(number)

    def run(self) -> dict[str, Any]:
        """Waits for the end of the job; what the agent says of it. In the main thread, the signals
        to handle are passed on meanwhile; in others, they do what they do. One that came too late
        to end the job does here what it does without us. Fails with AgentError. An exception ends
        the job first, and passes on then.
        """
        try:
            # Arguments and file names that are not UTF-8 go as the bytes that they are.
            text = json.dumps(self._request, ensure_ascii=False) + "\n"
            with self._passing_signals_on():
                # One that has ended: what it said can be read.
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    self._socket.sendall(text.encode("utf-8", "surrogateescape"))
                while self._step():
                    pass
                self.child.wait()
        except BaseException:
            self._end()
            raise
        finally:
            self._socket.close()
        if self._ended is None and self.heard is not None:
            raise signal_exception(self.heard)  # before the agent could say that it has ended by it
        if self._ended is None:
            code = self.child.returncode
            how = f"exit code {code}"
            if code is not None and code < 0:
                known = -code in set(signal.Signals)
                how = signal.Signals(-code).name if known else f"signal {-code}"
            raise AgentError(f"the agent has ended without a word: {how}")
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
            said = json.loads(line)
            if "ended" in said:
                self._ended = said["ended"]
            else:
                self._on_line(said)
        return True

    def _take_values(self) -> None:
        while self._results is not None:
            got = parcel.receive_value(self._results)
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
        with contextlib.suppress(OSError):  # it has ended, or was told
            # The agent takes it for our end, also while a fork of this process has the socket, too.
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        limit = time.monotonic() + self._patience
        while True:
            try:
                self.child.wait(max(limit - time.monotonic(), 0.1))
                return
            except subprocess.TimeoutExpired:
                self.child.kill()  # the guardian, whose end ends all
            except BaseException:
                self.send(signal.SIGTERM)
                limit = min(limit, time.monotonic() + 10.0)

    def close(self) -> None:
        """Lets go of what was returned and not taken; ends a job that run() was not called for."""
        if self.child.poll() is None:
            self._end()
        while self._values:
            os.close(self._values.popitem()[1][1])
        if self._end_of_child >= 0:
            os.close(self._end_of_child)
            self._end_of_child = -1


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
        self.ours, self.theirs = parcel.socket_pair()
        self.failure: BaseException | None = None  # the last exception of next_rendezvous
        # It is started after a fork of this process, which has to have one thread.
        self.thread = threading.Thread(target=self._serve, name="elastrun-rendezvous", daemon=True)

    def _serve(self) -> None:
        with contextlib.suppress(OSError, ValueError):  # the agent has gone
            with self.ours.makefile("rwb") as stream:
                for line in stream:
                    answer = self._answer(json.loads(line)["call"])
                    stream.write(json.dumps(answer).encode() + b"\n")
                    stream.flush()

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
        with contextlib.suppress(OSError):
            self.ours.shutdown(socket.SHUT_RDWR)
        self.ours.close()
        if self.thread.ident is not None:
            # The next launch may fork this process, which has to have one thread then. No longer
            # than this: the handler may be in a call that never returns.
            self.thread.join(_LEAVING)


class LocalElasticAgent(ElasticAgent):
    """Starts the workers of this node, watches them, starts them again, and ends all of them.

    `logs_specs`: where their output goes; torch's own will do. `start_method`: a function runs in a
    new interpreter, or, with "fork", in a fork of this process. `exit_barrier_timeout`,
    `shutdown_timeout`: seconds that finished nodes wait for the others, and that workers have to
    end after a signal. `log_line_prefix_template`: of lines that tee shows. `by_value`: the workers
    get the function as cloudpickle has it, for one that they cannot import. `options`: those of the
    command elastrun that torch has none for, by name: {"http": "127.0.0.1:0", "hang_timeout": 60}.

    Metrics and events of the agent go to the handlers that this process has configured. In the main
    thread, the signals in TORCHELASTIC_SIGNALS_TO_HANDLE end the workers first, and raise
    SignalException then.
    """

    def __init__(self, spec: WorkerSpec, logs_specs: Any = None, start_method: str = "spawn",
                 exit_barrier_timeout: float = 300, log_line_prefix_template: str | None = None,
                 shutdown_timeout: float = 30, health_check_server: Any = None,
                 uninterruptible_state_timeout: float | None = None, *, by_value: bool = False,
                 options: Mapping[str, Any] | None = None) -> None:
        if isinstance(logs_specs, str):  # the second argument in torch's documentation
            logs_specs, start_method = None, logs_specs
        self._spec = spec
        self._logs_specs = logs_specs
        self._start_method = start_method
        self._exit_barrier_timeout = exit_barrier_timeout
        self._prefix_template = log_line_prefix_template
        self._shutdown_timeout = shutdown_timeout
        self._health_check_server = health_check_server
        self._stuck_limit = uninterruptible_state_timeout
        self._by_value = by_value
        self._options = dict(options or {})
        self._worker_group = WorkerGroup(spec)
        self._process: AgentProcess | None = None
        self.report: dict[str, Any] = {}
        """After a run, all that is known of it: the fields of --report, see elastrun(1)."""

    def get_worker_group(self, role: str = DEFAULT_ROLE) -> WorkerGroup:
        return self._worker_group

    def run(self, role: str = DEFAULT_ROLE) -> RunResult:
        """Fails with SignalException, the errors of elastrun.rendezvous, ValueError for a spec with
        which nothing can start, TypeError for a function or a value that cannot be pickled,
        RuntimeError where this process may not be forked, OSError for a program that cannot be
        started (FileNotFoundError), and AgentError, a RuntimeError.
        """
        return self._run()

    async def arun(self, role: str = DEFAULT_ROLE) -> RunResult:
        """Runs without keeping the event loop. Cancelled, it ends the workers first."""
        import asyncio  # which takes as long as all else
        from concurrent.futures import ThreadPoolExecutor

        cancelled = threading.Event()
        # A thread for each run: the loop's pool has few, and nodes that wait for one another in
        # one process would wait for its next free one.
        pool = ThreadPoolExecutor(1, "elastrun-agent")
        running = asyncio.get_running_loop().run_in_executor(pool, self._run, None, None,
                                                             cancelled)
        pool.shutdown(wait=False)  # its thread ends with the run
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            cancelled.set()  # first: _run looks at it once it has set the process
            process = self._process
            if process is not None:
                process.send(signal.SIGTERM)
            await asyncio.gather(running, return_exceptions=True)
            raise

    def _run(self, stdout: int | None = None, started: Callable[[], None] | None = None,
             cancelled: threading.Event | None = None) -> RunResult:
        """`stdout`: a descriptor, the workers' standard output. `started` is called once the agent
        has been: this process may have threads from then on.
        """
        spec, request = self._spec, self._request()
        variables = {} if self._stuck_limit is None else {
            TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT: str(self._stuck_limit)}
        server: HandlerServer | None = None
        copy: CallerCopy | None = None
        results: socket.socket | None = None
        descriptors: list[int] = []
        with contextlib.ExitStack() as ends:
            if self._health_check_server is not None:  # torch starts it in no release either
                ends.callback(self._health_check_server.stop)
            if not isinstance(spec.rdzv_handler, BuiltInHandler):
                server = ends.enter_context(contextlib.closing(HandlerServer(spec.rdzv_handler)))
                request["rendezvous"]["asked_at"] = server.theirs.fileno()
                descriptors.append(server.theirs.fileno())
            if callable(spec.entrypoint):
                results, theirs = map(ends.enter_context,
                                      parcel.socket_pair(socket.SOCK_SEQPACKET))
                if self._start_method not in ("spawn", "forkserver", "fork"):
                    raise ValueError(f"cannot find context for {self._start_method!r}: the start "
                                     "methods are spawn, forkserver and fork")
                if self._start_method == "fork" and not self._by_value:
                    from elastrun.multiprocessing.fork import CallerCopy

                    copy = ends.enter_context(contextlib.closing(CallerCopy(
                        spec.entrypoint, tuple(spec.args), theirs, [
                            results, *((server.ours, server.theirs) if server is not None else ())
                        ])))
                    descriptors.append(copy.theirs.fileno())
                    request |= {"entrypoint": copy.name, "fork_socket": copy.theirs.fileno()}
                else:
                    payload = ends.enter_context(contextlib.closing(parcel.pack(
                        spec.entrypoint, tuple(spec.args), self._by_value)))
                    numbers = (payload.descriptor, payload.tracker, theirs.fileno())
                    inherited = [*payload.descriptors, theirs.fileno()]
                    descriptors += inherited
                    executable = os.fsdecode(spawn.get_executable())  # what set_executable() named
                    request |= {"entrypoint": executable, "inherited_fds": inherited,
                                "args": [*_args_from_interpreter_flags(), "-u", _WORKER,
                                         *map(str, numbers)]}
            _refuse(cancelled)
            process = self._process = ends.enter_context(contextlib.closing(AgentProcess(
                request, descriptors, self._hear, self._shutdown_timeout, results, stdout,
                variables, copy)))
            ends.callback(setattr, self, "_process", None)
            _refuse(cancelled)
            if server is not None:
                server.thread.start()
            if started is not None:
                started()
            return self._result(process.run(), process, server)

    def _request(self) -> dict[str, Any]:
        spec, logs = self._spec, self._logs_specs
        binding = getattr(spec.numa_options, "affinity_mode", spec.numa_options)
        options = self._options | {
            "role": spec.role, "nproc_per_node": spec.local_world_size,
            "max_restarts": spec.max_restarts, "monitor_interval": spec.monitor_interval,
            "local_addr": spec.local_addr,
            "virtual_local_rank": bool(spec.virtual_local_rank),
            "exit_barrier_timeout": self._exit_barrier_timeout,
            "log_line_prefix_template": self._prefix_template,
            "numa_binding": binding if binding is None else str(getattr(binding, "value", binding))}
        # The default gives way to signals that are to be passed on; a list that was set does not.
        if "forward_signals" not in options or "TORCHELASTIC_SIGNALS_TO_HANDLE" in os.environ:
            options["signals_to_handle"] = ",".join(names_to_handle())
        if logs is not None:
            options |= {"log_dir": logs._root_log_dir, "redirects": _streams(logs._redirects),
                        "tee": _streams(logs._tee),
                        "local_ranks_filter": ",".join(map(str, logs._local_ranks_filter or ()))}
        told = events.has_handler(spec.event_log_handler)
        if not told and spec.event_log_handler in ("null", "console"):
            options["event_log_handler"] = spec.event_log_handler
        elif not told:
            events.get_logging_handler(spec.event_log_handler)  # fails with KeyError
            told = True
        out: dict[str, Any] = {
            "options": _words(options), "rendezvous": self._rendezvous(), "events": told,
            "metrics": metrics._handled, "shutdown_timeout": self._shutdown_timeout,
            **{name: getattr(spec, name) for name in (
                "master_addr", "master_port", "duplicate_stdout_filters",
                "duplicate_stderr_filters")}}
        if isinstance(spec.entrypoint, str):
            out |= {"entrypoint": spec.entrypoint, "args": [str(one) for one in spec.args]}
        return out

    def _rendezvous(self) -> dict[str, Any]:
        handler = self._spec.rdzv_handler
        if not isinstance(handler, BuiltInHandler):
            return {"backend": handler.get_backend(), "run_id": str(handler.get_run_id())}
        given = handler.parameters
        conf = {key: str(value) for key, value in given.config.items() if value is not None}
        rank = given.get_as_int("rank", None)
        out: dict[str, Any] = {
            "backend": given.backend, "endpoint": given.endpoint.strip(),
            "run_id": str(given.run_id), "min_nodes": given.min_nodes,
            "max_nodes": given.max_nodes, "local_addr": given.local_addr, "conf": conf}
        if rank is not None:
            out["node_rank"] = rank
        return out

    def _hear(self, said: dict[str, Any]) -> None:
        metric = said.get("metric")
        if metric is not None:
            metrics.hand_on(metrics.MetricData(metric["time"], metric["group"], metric["name"],
                                               metric["value"]))
        elif "event" in said:
            events.hand_on(events.Event.deserialize(said["event"]), self._spec.event_log_handler)

    def _result(self, ended: dict[str, Any], process: AgentProcess,
                server: HandlerServer | None) -> RunResult:
        self.report = ended.get("report", {})
        state = WorkerState(ended.get("state", "UNKNOWN"))
        group = self._worker_group
        group.state = state
        group.group_rank = self.report.get("group_rank")
        group.group_world_size = self.report.get("group_world_size")
        for row in self.report.get("workers", ()):
            worker = group.workers[row["local_rank"]]
            worker.id, worker.global_rank = row["pid"], row["rank"]
            worker.world_size = self.report.get("world_size", -1)
        error = ended.get("error")
        if error is not None:
            raise self._exception(error, ended, process, server)
        failures = {one["rank"]: _failure(one) for one in self.report.get("failures", ())
                    if not one.get("stopped_by_us")}  # as torch, without those that it ended
        if state == WorkerState.FAILED:
            failures = self._with_culprit(failures)
        pids = {one["rank"]: one["pid"] for one in self.report.get("workers", ())}
        values = {}
        for rank in sorted(ended.get("returned", ())):
            descriptor = process.take_value(rank, pids.get(rank, 0))
            values[rank] = None if descriptor is None else parcel.value_in(descriptor)
        return RunResult(state, values, failures)

    def _exception(self, error: dict[str, Any], ended: dict[str, Any], process: AgentProcess,
                   server: HandlerServer | None) -> BaseException:
        if error["kind"] == "signal":
            # By the guardian's death the agent ends as by SIGTERM, which the caller was not sent.
            if process.heard is None and process.child.returncode == -signal.SIGKILL:
                return AgentError("the agent's guardian has been killed by SIGKILL, and the job "
                                  "ended with it")
            number = process.heard or ended.get("signal") or signal.SIGTERM
            return signal_exception(int(number))
        if server is not None and isinstance(server.failure, Exception):
            return server.failure
        program = self._spec.entrypoint
        if isinstance(program, str) and error["kind"] == "spawn" and program in error["text"]:
            for number in (errno.ENOENT, errno.EACCES, errno.ENOEXEC):
                if os.strerror(number) in error["text"]:  # as torch, by Popen
                    return OSError(number, os.strerror(number), program)
        return _ERRORS.get(error["kind"], AgentError)(error["text"])

    def _with_culprit(self, failures: dict[int, ProcessFailure]
                      ) -> dict[int, ProcessFailure]:
        """Puts a culprit of another node, which the agents have told each other, first."""
        culprit = self.report.get("culprit") or {}
        rank = culprit.get("rank", -1)
        if rank in failures or (failures and rank < 0):
            return failures
        failure = ProcessFailure(culprit.get("local_rank", -1), 0, culprit.get("exit_code", 1), "")
        failure.message = culprit.get("text") or self.report.get("verdict") or failure.message
        failure.timestamp = int(culprit.get("time") or failure.timestamp)
        return {rank: failure, **failures}


def _refuse(cancelled: threading.Event | None) -> None:
    if cancelled is not None and cancelled.is_set():
        raise AgentError("the run has been cancelled")


def _failure(row: dict[str, Any]) -> ProcessFailure:
    failure = ProcessFailure(row["local_rank"], row["pid"], row["exit_code"],
                             row.get("error_file") or "")
    if failure.error_file == "<N/A>":
        failure.timestamp = int(row["time"])
        if row.get("exception"):
            failure.message = row["exception"]
    return failure


def _streams(given: Any) -> str:
    if isinstance(given, Mapping):
        return ",".join(f"{rank}:{int(value)}" for rank, value in given.items()) or "0"
    return str(int(given))


def _words(options: Mapping[str, Any]) -> list[str]:
    """Words of a command line: True is a flag, a list is an option given several times."""
    words = []
    for name, given in options.items():
        option = "--" + name.replace("_", "-")
        for value in given if isinstance(given, (list, tuple)) else (given,):
            if value is True:
                words.append(option)
            elif value is not False and value is not None:
                words.append(f"{option}={value}")
    return words
