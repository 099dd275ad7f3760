# SPDX-License-Identifier: Apache-2.0
"""Runs scripts in processes that have torch already: an import takes some seconds of CPU time, a
fork of a process that has imported it takes milliseconds.

As a module: Runner. As a program it is what forks: a request is a line of JSON, as is its answer.
"""
from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path


class Runner:
    """One process with torch, from its first use on. close() ends it."""

    def __init__(self) -> None:
        self._server: subprocess.Popen[str] | None = None

    def run(self, script: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
        """As `python SCRIPT` in the script's folder, with what its start does (sitecustomize)."""
        if self._server is None:
            self._server = subprocess.Popen(
                [sys.executable, "-B", "-W", "ignore", __file__], text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._server.stdin is not None and self._server.stdout is not None
        out, err = script.with_suffix(".out"), script.with_suffix(".err")
        request = {"script": str(script), "env": env, "out": str(out), "err": str(err)}
        self._server.stdin.write(json.dumps(request) + "\n")
        self._server.stdin.flush()
        code = int(self._server.stdout.readline())
        return subprocess.CompletedProcess(["python", str(script)], code, out.read_text(),
                                           err.read_text())

    def close(self) -> None:
        if self._server is not None:
            self._server.communicate()
            self._server = None


def _requested() -> dict[str, object] | None:
    """In a child, what it is to run; None in the server, once nothing more is asked for."""
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            return dict(json.loads(line))
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)
    return None


def _become(script: str, env: dict[str, str], out: str, err: str) -> None:
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    for number, name in ((1, out), (2, err)):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), number)
    folder = os.path.dirname(script)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(env)
    sys.argv[:] = [os.path.basename(script)]
    sys.path[0:1] = [folder, *env["PYTHONPATH"].split(":")]
    sys.modules.pop("sitecustomize", None)
    import sitecustomize  # noqa: F401


if __name__ == "__main__":
    import torch._dynamo  # noqa: F401  # what the first step of an optimizer imports: most of it
    _request = _requested()
    if _request is not None:
        _become(**_request)  # type: ignore[arg-type]
        with open(sys.argv[0], "rb") as _file:
            _code = compile(_file.read(), sys.argv[0], "exec")
        __file__ = sys.argv[0]
        for _name in [one for one in globals() if not one.startswith("__") and one != "_code"]:
            del globals()[_name]
        exec(_code)
