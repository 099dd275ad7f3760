# SPDX-License-Identifier: Apache-2.0
"""The fork server of one node: imports what the workers import, computes nothing, and forks them.

    python [-u] forkserver.py KIND SCRIPT [MODULE ...]

The agent starts it beside the first workers, with their interpreter, flags, directory, limits and
environment, but without what tells one worker from another. Descriptor 0 is a SOCK_SEQPACKET socket
to the agent, which says `fork SLOT CONTEXT` and gives one end of another such socket, the child's,
and the cgroup that it is to join, if any.
The server says `ready`, or `refused WHY` and ends: then workers are started by exec; and `loading`,
until `ready`, when a child has learnt what else to import. A child is forked twice, so that it is
the agent's (a subreaper), and waits for its order (forkserver_child).
KIND is script, module or command; the modules are the user's own list.
Ends with the agent: by its death signal, and when the socket does.
"""
from __future__ import annotations

import contextlib
import gc
import os
import select
import socket
import sys
from types import ModuleType

# The package itself looks at the environment of a worker when it is imported, and there is none.
if __name__ == "__main__":
    _package = sys.modules["elastrun"] = ModuleType("elastrun")
    _package.__path__ = [os.path.dirname(os.path.abspath(__file__))]
    if not getattr(sys.flags, "safe_path", False):
        del sys.path[0]  # this folder, of which the modules are none of the worker's

from elastrun import forkserver_child as child  # noqa: E402
from elastrun import forkserver_preload as preload  # noqa: E402

# A package that imports elastrun is to find the workers' own: it reads a worker's variables then,
# and is left to the workers.
if __name__ == "__main__":
    for _name in [one for one in sys.modules if one.partition(".")[0] == "elastrun"]:
        del sys.modules[_name]

_TRIES = 4  # of finding out which modules cannot be imported ahead
_LOOK = 1.0  # seconds between two looks for what a child has learnt
_SKIP = "ELASTRUN_FORKSERVER_SKIP"


def _be_last() -> int:
    """Makes way for the workers, if what is given up can be had again; the nice value before.

    Who may not raise a priority cannot have it back for the children: a child of ours tries.
    """
    before = os.getpriority(os.PRIO_PROCESS, 0)
    trial = os.fork()
    if trial == 0:
        code = 1
        with contextlib.suppress(OSError):
            os.nice(1)
            os.setpriority(os.PRIO_PROCESS, 0, before)
            code = 0
        os._exit(code)
    if os.waitpid(trial, 0)[1] == 0:
        os.nice(10)
    return before


class Server:
    def __init__(self, control: socket.socket, plan: preload.Plan) -> None:
        self._control = control
        self._plan = plan
        self._agent = os.getppid()
        self._forker = child.Forker()
        self._nice = _be_last()

    def load(self) -> str:
        """Imports; why no child can be served, if so."""
        why = self._plan.load()
        again = self._plan.to_skip()
        if again and not why:
            skipped = [one for one in os.environ.get(_SKIP, "").split(",") if one]
            if len(skipped) < 4 * _TRIES and not set(again) <= set(skipped):
                self._start_over([*skipped, *again])
            why = self._plan.why_not()
        if why:
            return why
        gc.collect()
        gc.freeze()  # a collection in a child touches none of it, and the pages stay shared
        child.tidy()
        os.setpriority(os.PRIO_PROCESS, 0, self._nice)
        return ""

    def _start_over(self, skip: list[str]) -> None:
        """What is imported stays so: a new interpreter leaves these out."""
        os.setpriority(os.PRIO_PROCESS, 0, self._nice)
        os.dup2(self._control.fileno(), 0)
        flags = ["-u"] if getattr(sys.__stdout__, "write_through", False) else []
        # The environment of before the imports: what those have set is not the agent's.
        os.execve(sys.executable, [sys.executable, *flags, *sys.argv],
                  {**self._plan.environment, _SKIP: ",".join(skip)})

    def serve(self) -> child.Order | None:
        """Returns in a child with its order, and in the server when the agent has gone."""
        why = self._tell(self.load())
        while not why:
            self._forker.reap()
            if not self._wait():
                continue
            try:
                said, descriptors, _, _ = socket.recv_fds(self._control, 4096, 2)
            except OSError:
                return None
            if not said:
                return None
            why = self._plan.why_stale()
            if why:
                self._tell(why)
                return None
            slot, context = said.decode().split()[1:3]
            if self._forker.fork([descriptors]) == 0:
                self._control.close()
                return child.wait_for_order(descriptors, self._agent, int(slot), context == "1",
                                            self._plan)
        return None

    def _wait(self) -> bool:
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        forked = self._forker.forked
        limit = child.REAP if forked else _LOOK * 1000 if self._plan.may_learn else None
        if poll.poll(limit):
            return True
        if not forked and self._plan.learnt_more():
            self._control.send(b"loading")
            if self._tell(self.load()):
                os._exit(0)
        return False

    def _tell(self, why: str) -> str:
        """That it is ready, or why never."""
        self._control.send(f"refused {why}".encode(errors="replace")[:4096] if why else b"ready")
        return why


def _serve() -> child.Order | None:
    kind, script, *names = sys.argv[1:]
    control = socket.socket(fileno=os.dup(0))
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.close(null)
    skip = [one for one in os.environ.pop(_SKIP, "").split(",") if one]
    return Server(control, preload.Plan(kind, script, names, skip)).serve()


if __name__ == "__main__":
    _order = _serve()
    if _order is None:
        os._exit(0)  # what modules have registered for their end is the workers'
    child.become(_order)
