# SPDX-License-Identifier: Apache-2.0
"""The fork server of one node: imports what the workers import, computes nothing, and forks them.

    python [-u] forkserver.py KIND SCRIPT [MODULE ...]

The agent starts it beside the first workers, with their interpreter, flags, directory, limits and
environment, but without what tells one worker from another. Descriptor 0 is a SOCK_SEQPACKET socket
to the agent, which says `fork SLOT CONTEXT` and gives one end of another such socket, the child's,
and the cgroup that it is to join, if any.
The server says `ready`, or `refused WHY` and ends: then workers are started by exec; and `loading`,
until `ready`, when a child has learnt what else to import. A child is forked twice, so that it is
the agent's (a subreaper), and waits for its order, by which it becomes what exec would have made.
KIND is script, module or command; the modules are the user's own list.
Ends with the agent: by its death signal, and when the socket does.

An order is a packet with descriptors: a memory file, which holds NUL-ended texts (CPUs, number of
arguments, these, and the environment), then those for 0, 1 and 2, then the cgroup, if any.
The child answers `ok` when all that can fail is done, or `unfit WHY`, and goes on at `go`.
"""
from __future__ import annotations

import contextlib
import ctypes
import gc
import io
import mmap
import os
import select
import signal
import socket
import struct
import sys
import time
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple

# The package itself looks at the environment of a worker when it is imported, and there is none.
if __name__ == "__main__":
    _package = sys.modules["elastrun"] = ModuleType("elastrun")
    _package.__path__ = [os.path.dirname(os.path.abspath(__file__))]
    if not getattr(sys.flags, "safe_path", False):
        del sys.path[0]  # this folder, of which the modules are none of the worker's

if TYPE_CHECKING:
    from elastrun.forkserver_plan import Plan

_TRIES = 4  # of finding out which modules cannot be imported ahead
_LOOK = 1.0  # seconds between two looks for what a child has learnt
_SKIP = "ELASTRUN_FORKSERVER_SKIP"
REAP = 50  # milliseconds until children that have forked theirs are waited for
_ADOPTED_WITHIN = 60.0  # seconds, for what stands between us and the agent to end; it may be large
_PR_SET_PDEATHSIG, _PR_SET_MM, _PR_SET_MM_MAP = 1, 35, 14
_NO_LOAD = 4  # RTLD_NOLOAD
_OPENBLAS = ("openblas_set_num_threads", "scipy_openblas_set_num_threads64_",
             "openblas_set_num_threads64_", "scipy_openblas_set_num_threads")
libc = ctypes.CDLL(None, use_errno=True)  # not in a fork, where it would be loaded


class Order(NamedTuple):
    arguments: list[str]
    environment: dict[bytes, bytes]
    plan: Plan | None
    slot: int


def _tell(answer: int, text: str) -> None:
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(answer)) as one:
        one.send(text.encode())


class Server:
    """Forks children that its agent asks for by `control`, by a process that then ends, so that
    they are the agent's, a subreaper's. `plan`: what to import first; None: this is a fork of a
    launcher, which keeps all that it has."""

    def __init__(self, control: socket.socket, agent: int, plan: Plan | None = None) -> None:
        self.control = control
        self.plan = plan
        self._agent = agent
        self._forked = 0  # children of ours that end at once
        if plan is not None:
            # Makes way for the workers, if what is given up can be had again: who may not raise a
            # priority cannot have it back for the children. A child of ours tries.
            self._nice = os.getpriority(os.PRIO_PROCESS, 0)
            trial = os.fork()
            if trial == 0:
                code = 1
                with contextlib.suppress(OSError):
                    os.nice(1)
                    os.setpriority(os.PRIO_PROCESS, 0, self._nice)
                    code = 0
                os._exit(code)
            if os.waitpid(trial, 0)[1] == 0:
                os.nice(10)

    def serve(self) -> Order | None:
        """Returns in a child with its order, and in the server when the agent has gone or nothing
        can be forked."""
        plan = self.plan
        if plan is not None and self._tell(self._load(plan)):
            return None
        poll = select.poll()
        poll.register(self.control, select.POLLIN)
        while True:
            try:
                while self._forked and os.waitpid(-1, os.WNOHANG)[0]:
                    self._forked -= 1
            except ChildProcessError:  # the kernel reaps those of a caller that ignores SIGCHLD
                self._forked = 0
            learns = plan is not None and plan.may_learn
            if not poll.poll(REAP if self._forked else _LOOK * 1000 if learns else None):
                if plan is not None and not self._forked and plan.learnt_more():
                    self.control.send(b"loading")
                    if self._tell(self._load(plan)):
                        return None
                continue
            asked: list[tuple[str, str, list[int]]] = []
            while not asked or poll.poll(0):  # all at once: each fork copies all tables of pages
                try:
                    said, descriptors, _, _ = socket.recv_fds(self.control, 4096, 2)
                except OSError:
                    return None
                if not said:
                    return None
                slot, context = said.decode().split()[1:3]
                asked.append((slot, context, descriptors))
            if plan is not None and (why := plan.why_stale()):
                self._tell(why)
                return None
            place = self._fork([descriptors for _, _, descriptors in asked])
            if place >= 0:
                self.control.close()
                slot, context, descriptors = asked[place]
                try:
                    return _wait_for_order(descriptors, self._agent, int(slot), context == "1",
                                           plan)
                except BaseException:
                    os._exit(127)

    def _load(self, plan: Plan) -> str:
        """Imports; why no child can be served, if so."""
        why = plan.load()
        again = list(plan.bad)
        if again and not why:
            if len(plan.skip) < 4 * _TRIES and not set(again) <= plan.skip:
                # Leaves these out in a new interpreter: what is imported stays so.
                os.setpriority(os.PRIO_PROCESS, 0, self._nice)
                os.dup2(self.control.fileno(), 0)
                flags = ["-u"] if getattr(sys.__stdout__, "write_through", False) else []
                # The environment of before the imports: what those have set is not the agent's.
                os.execve(sys.executable, [sys.executable, *flags, *sys.argv], {
                    **plan.environment, _SKIP: ",".join([*plan.skip, *again])})
            why = plan.why_not()
        if why:
            return why
        gc.collect()
        gc.freeze()  # a collection in a child touches none of it, and the pages stay shared
        sys.stdout.flush()  # what was printed is not the children's to write
        libc.fflush(None)
        with contextlib.suppress(AttributeError):
            libc.malloc_trim(0)
        os.setpriority(os.PRIO_PROCESS, 0, self._nice)
        return ""

    def _tell(self, why: str) -> str:
        """Says that it is ready, or why never."""
        self.control.send(f"refused {why}".encode(errors="replace")[:4096] if why else b"ready")
        return why

    def _fork(self, children: list[list[int]]) -> int:
        """Returns in a child its place in `children`, the descriptors of each, of which the first
        is its socket; -1 in the server."""
        try:
            between = os.fork()
            if between == 0:
                return self._fork_each(children)
            self._forked += 1
        except OSError as error:
            for given in children:
                _tell(given[0], f"unborn {error}")
        for given in children:
            for fd in given:
                os.close(fd)
        return -1

    @staticmethod
    def _fork_each(children: list[list[int]]) -> int:
        """Tells the agent, from the process between, who the child is before that ends: until then
        it is below the server, which no sweep touches."""
        try:
            for place, given in enumerate(children):
                try:
                    born = os.fork()
                    if born == 0:
                        for fd in [fd for other in children[place + 1:] for fd in other]:
                            os.close(fd)
                        return place
                    _tell(given[0], f"born {born}")
                except OSError as error:
                    _tell(given[0], f"unborn {error}")
                for fd in given:
                    os.close(fd)
        except BaseException:
            os._exit(1)
        os._exit(0)


def die_with(parent: int, number: int = signal.SIGKILL) -> bool:
    """Asks for that signal at the death of `parent`; False if it has died already."""
    libc.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
    return os.getppid() == parent


def _wait_for_order(given: list[int], agent: int, slot: int, context: bool, plan: Plan | None
                    ) -> Order:
    """Ends the process if none comes. `given`: the socket, and the cgroup to join, if any."""
    agent_end = socket.socket(fileno=given[0])
    until = time.monotonic() + _ADOPTED_WITHIN
    hung_up = select.poll()
    hung_up.register(agent_end, 0)
    while os.getppid() != agent:  # until it adopts us; if it has died, another process does
        if hung_up.poll(0) or time.monotonic() > until:
            os._exit(127)
        time.sleep(0.0001)
    if not die_with(agent):  # only now: the signal comes at the death of the parent that there is
        os._exit(127)
    os.setsid()
    threading = sys.modules.get("threading")
    if threading is not None:  # Python keeps the number that the thread had in the parent
        threading.main_thread()._set_native_id()
    torch = sys.modules.get("torch") if context else None
    with contextlib.suppress(Exception):
        # On the worker's own accelerator, which stays none of the current ones. None, no harm.
        if torch is not None and torch.cuda.is_available() and slot < torch.cuda.device_count():
            with torch.cuda.device(slot):
                torch.cuda.synchronize()
    joined = _join(given[1:])
    if plan is not None:
        # Whatever needs no order is done before it: a write to what is shared with the server costs
        # a copy of its page, and to look at the names of all modules alone costs 5 ms of such.
        main = sys.modules["__main__"] = ModuleType("__main__")
        main.__dict__.update(__builtins__=sys.modules["builtins"], __annotations__={},
                             __loader__=sys.modules["_frozen_importlib"].BuiltinImporter)
        _set_seeds()
    said, descriptors, _, _ = socket.recv_fds(agent_end, 64, 5)
    if said != b"order" or len(descriptors) < 4:
        os._exit(127)
    try:
        order = _take(descriptors, joined, plan, slot)
    except (OSError, ValueError) as error:
        agent_end.send(f"unfit {error}".encode(errors="replace")[:4096])
        os._exit(127)
    agent_end.send(b"ok")
    if agent_end.recv(8) != b"go":
        os._exit(127)
    agent_end.close()
    return order


def _join(cgroups: list[int], joined: tuple[int, int] | None = None) -> tuple[int, int] | None:
    """Which one it is in then. The sweep finds us without one, too.

    Ahead, because the kernel may wait for 5 to 20 ms until it moves a process.
    """
    for cgroup in cgroups:
        about = os.fstat(cgroup)
        if (about.st_dev, about.st_ino) != joined:
            with contextlib.suppress(OSError):
                joining = os.open("cgroup.procs", os.O_WRONLY | os.O_CLOEXEC, dir_fd=cgroup)
                try:
                    os.write(joining, b"0")
                    joined = about.st_dev, about.st_ino
                finally:
                    os.close(joining)
        os.close(cgroup)
    return joined


def _take(descriptors: list[int], joined: tuple[int, int] | None, plan: Plan | None, slot: int
          ) -> Order:
    with open(descriptors[0], "rb") as file:
        cpus, count, *rest = file.read().split(b"\0")[:-1]
    arguments = rest[:int(count)]
    environment: dict[bytes, bytes] = {}
    for one in rest[int(count):]:
        name, _, value = one.partition(b"=")
        environment.setdefault(name, value)  # as getenv(3)
    if plan is not None:
        unlike = plan.unlike({os.fsdecode(k): os.fsdecode(v) for k, v in environment.items()})
        if unlike:
            raise ValueError(unlike)
        words = (os.fsdecode(one) for one in arguments[1:])
        script = next((one for one in words if one != "-u"), "")
        if script not in ("-m", "-c"):
            # What the interpreter does not run as a file: standard input, and where one of these
            # hooks finds modules: a folder, an archive, which may begin with any text.
            for hook in sys.path_hooks:
                with contextlib.suppress(ImportError):
                    hook(script)
                    raise ValueError(f"{script} is a folder or an archive")
            with open(script, "rb"):
                pass
    _join(descriptors[4:], joined)
    if cpus:
        for thread in os.listdir("/proc/self/task"):  # of an accelerator's driver
            os.sched_setaffinity(int(thread), {int(one) for one in cpus.split(b",")})
    for target, source in enumerate(descriptors[1:4]):
        os.dup2(source, target)
        os.close(source)
    return Order([os.fsdecode(one) for one in arguments], environment, plan, slot)


def _restore_streams() -> None:
    """Makes new ones: the server's belong to its descriptors. What has taken sys.stderr at its
    import keeps that object.
    """
    given, out = sys.__stdin__, sys.__stdout__  # a module may have put others in their places
    if given is not None:  # else it began without them, as a daemon does
        raw = io.open(0, "rb", closefd=False)
        raw.raw.name = "<stdin>"  # type: ignore[attr-defined]
        fresh = io.TextIOWrapper(raw, given.encoding, given.errors,
                                 write_through=out is not None and out.write_through)
        fresh.mode = "r"  # type: ignore[misc]
        if sys.stdin is given:
            sys.stdin = fresh
        sys.__stdin__ = fresh  # type: ignore[misc]
    if out is not None and not out.write_through:
        with contextlib.suppress(ValueError):  # a caller has closed it
            out.reconfigure(line_buffering=os.isatty(1))


def _set_threads(before: int, given_before: str) -> None:
    """Sets as many as the libraries would take now; they have looked at their start."""
    given = os.environ.get("OMP_NUM_THREADS", "")
    count = len(os.sched_getaffinity(0))
    threads = count if not given and count != before else 0
    if given != given_before and given.isdigit():
        threads = int(given)
    blas = os.environ.get("OPENBLAS_NUM_THREADS") or os.environ.get("GOTO_NUM_THREADS") or given
    if not threads and given and blas == "1":  # the server has no more of them
        return
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        paths = {line.split(maxsplit=5)[5].rstrip("\n") for line in maps if ".so" in line}
    for path in paths:
        name = os.path.basename(path)
        if threads and name.startswith(("libgomp", "libomp", "libiomp5")):
            _call(path, ("omp_set_num_threads",), threads)
        elif "openblas" in name:
            _call(path, _OPENBLAS, min(int(blas), count) if blas.isdigit() else count)


def _call(path: str, names: tuple[str, ...], value: int) -> None:
    with contextlib.suppress(OSError):
        library = ctypes.CDLL(path, mode=_NO_LOAD)
        for name in names:
            if hasattr(library, name):
                getattr(library, name)(value)
                return


def _set_seeds() -> None:
    """Generators that are seeded at random when they are made. Python's random has its own hook."""
    torch, random = sys.modules.get("torch"), sys.modules.get("numpy.random")
    if hasattr(torch, "default_generator"):
        torch.default_generator.seed()  # type: ignore[union-attr]
    if random is not None:
        random.seed()
    process = sys.modules.get("multiprocessing.process")
    if process is not None:
        config = process.current_process()._config
        config["authkey"] = type(config["authkey"])(os.urandom(32))


_shown: list[mmap.mmap] = []  # what /proc reads stays


def _set_title(arguments: list[bytes], environment: dict[bytes, bytes]) -> None:
    """Sets what /proc/PID/cmdline and environ show, where the kernel lets us (Linux 4.10)."""
    command = b"".join(one + b"\0" for one in arguments)
    variables = b"".join(k + b"=" + v + b"\0" for k, v in environment.items())
    # Private: of other memory /proc shows nothing.
    memory = mmap.mmap(-1, len(command) + len(variables) + 1,
                       flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.write(command + variables)
    at = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    _shown.append(memory)
    with open("/proc/self/stat", "rb") as file:
        field = [0, 0, 0, *(int(one) for one in file.read().rpartition(b") ")[2].split()[1:])]
    libc.sbrk.restype = ctypes.c_uint64
    # struct prctl_mm_map of <linux/prctl.h>: begin and end of code, data, heap, stack (begin only),
    # arguments, environment; no auxiliary vector, and the same program.
    layout = struct.pack(
        "=12QII", *field[25:27], *field[44:47], libc.sbrk(0), field[27], at, at + len(command),
        at + len(command), at + len(command) + len(variables), 0, 0, 0xFFFFFFFF)
    libc.prctl(_PR_SET_MM, _PR_SET_MM_MAP, layout, len(layout), 0)


def _start_learning(order: Order) -> None:
    """Local rank 0 tells at the end of its first step what it has imported, or at its own end."""
    plan = order.plan
    if plan is None or order.slot != 0 or not plan.may_learn:
        return
    import atexit
    plan.learner = os.getpid()
    atexit.register(plan.learn)
    optimizer = sys.modules.get("torch.optim.optimizer")
    if hasattr(optimizer, "register_optimizer_step_post_hook"):
        def stepped(*_: object) -> None:
            handle.remove()
            plan.learn()

        handle = optimizer.register_optimizer_step_post_hook(stepped)  # type: ignore[union-attr]


def start_hooks() -> None:
    """Does what sitecustomize does at the start of an interpreter (--goodput auto)."""
    if os.environ.get("ELASTRUN_GOODPUT") == "auto":
        with contextlib.suppress(Exception):
            from elastrun import auto
            auto.start()


def take_place(order: Order, title: list[bytes], changes: dict[str, str | None], cpus: int) -> None:
    """Takes what a worker has of its order, beside its command. `changes`: what modules have set
    (None: removed) when they were imported, as they would. `cpus`: the server's."""
    threads = os.environ.get("OMP_NUM_THREADS", "")
    for name in list(os.environb):  # clear() copies all names for each of them
        del os.environb[name]
    os.environb.update({name: value for name, value in order.environment.items() if name})
    for changed, now in changes.items():
        if now is None:
            os.environ.pop(changed, None)
        else:
            os.environ[changed] = now
    _set_title(title, order.environment)
    _restore_streams()
    _set_threads(cpus, threads)


def become(order: Order) -> None:
    """Runs the command as the interpreter would have. Returns, or raises SystemExit, at its end."""
    assert order.plan is not None
    take_place(order, [os.fsencode(one) for one in order.arguments], order.plan.changes,
               order.plan.cpus)
    gc.enable()
    if hasattr(sys, "orig_argv"):  # Python 3.10
        sys.orig_argv[:] = order.arguments
    options = list(order.arguments[1:])
    if options[0] == "-u":
        del options[0]
    start_hooks()
    _start_learning(order)
    _run(options)


def _run(words: list[str]) -> None:
    api = ctypes.pythonapi
    path0 = ""
    if words[0] == "-m":
        path0 = os.getcwd()
    elif words[0] != "-c":
        path0 = os.path.dirname(os.path.realpath(words[0]))
    if not getattr(sys.flags, "safe_path", False):
        sys.path.insert(0, path0)
    if words[0] == "-m":
        sys.argv[:] = ["-m", *words[2:]]
        import runpy
        try:
            runpy._run_module_as_main(words[1])  # type: ignore[attr-defined]
        except SystemExit:
            raise
        except BaseException as error:
            trace = error.__traceback__
            while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
                trace = trace.tb_next
            sys.excepthook(type(error), error.with_traceback(trace), trace)
            sys.exit(1)
        return
    if words[0] == "-c":
        sys.argv[:] = ["-c", *words[2:]]
        failed = api.PyRun_SimpleStringFlags(words[1].encode(), None)
    else:
        sys.argv[:] = words
        libc.fopen.restype = ctypes.c_void_p
        # The name that the interpreter gives the file of `__main__`, from Python 3.9 on.
        own = words[0][2:] if words[0].startswith("./") else words[0]
        name = os.fsencode(own if os.path.isabs(own) else os.path.join(os.getcwd(), own))
        file = libc.fopen(name, b"rbe")
        if not file:
            number = ctypes.get_errno()
            print(f"{sys.executable}: can't open file {os.path.abspath(words[0])!r}: "
                  f"[Errno {number}] {os.strerror(number)}", file=sys.stderr)
            sys.exit(2)
        failed = api.PyRun_SimpleFileExFlags(ctypes.c_void_p(file), name, 1, None)
    # After an interrupt the interpreter ends itself by that signal, but only if it gets so far.
    if failed and not issubclass(sys.last_type or Exception, KeyboardInterrupt):
        sys.exit(1)


def _serve() -> Order | None:
    from elastrun.forkserver_plan import Plan  # which a launcher that forks need not import

    # A package that imports elastrun is to find the workers' own: it reads a worker's variables
    # then, and is left to the workers.
    for name in [one for one in sys.modules if one.partition(".")[0] == "elastrun"]:
        del sys.modules[name]
    kind, script, *names = sys.argv[1:]
    control = socket.socket(fileno=os.dup(0))
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.close(null)
    skip = [one for one in os.environ.pop(_SKIP, "").split(",") if one]
    return Server(control, os.getppid(), Plan(kind, script, names, skip)).serve()


if __name__ == "__main__":
    _order = _serve()
    if _order is None:
        os._exit(0)  # what modules have registered for their end is the workers'
    become(_order)
