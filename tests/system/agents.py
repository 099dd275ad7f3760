# SPDX-License-Identifier: Apache-2.0
"""What tests of jobs of several agents share: their worlds, an etcd, a forwarded port."""
from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import unittest
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness import LIMIT, Job, wait_until
from ports import free_port

FORWARD = Path(__file__).resolve().parents[1] / "netns" / "forward.py"


class Agents(unittest.TestCase):
    """Each test has a folder for files that tell workers to go on, and ends all of its agents."""

    def setUp(self) -> None:
        self.stack = contextlib.ExitStack()
        self.addCleanup(self.stack.close)
        self.folder = Path(self.stack.enter_context(tempfile.TemporaryDirectory(prefix="agents.")))
        self.go = self.folder / "go"

    def by_file(self) -> None:
        self.where = ["--rdzv-backend=file", f"--rdzv-endpoint={self.folder}"]

    def worlds(self, job: Job) -> list[str]:
        return job.lines(r"^WORLD_SIZE=(\d+)")

    def attempts(self, job: Job) -> list[str]:
        return job.lines(r"^TORCHELASTIC_RESTART_COUNT=(\d+)")

    def world(self, *jobs: Job, size: int, times: int = 1) -> None:
        """Until each has been in so many worlds, the last of this size."""
        for job in jobs:
            wait_until(lambda j=job: len(self.worlds(j)) >= times
                       and self.worlds(j)[-1] == str(size) or j.process.poll() is not None,
                       f"a world of {size}:", lambda: "".join(one.errors() for one in jobs))
            self.assertIsNone(job.process.poll(), job.errors())

    def all_end(self, *jobs: Job, code: int = 0) -> None:
        for job in jobs:
            self.assertEqual(job.end(), code, job.errors())
            job.nothing_left()

    def go_on(self, *jobs: Job) -> None:
        self.go.touch()
        self.all_end(*jobs)

    def forward(self, address: str, port: int, to: str, to_port: int,
                before: Callable[[], None] | None = None) -> None:
        """Connections to that address and port get to the others, from now on."""
        forwarder = self.stack.enter_context(subprocess.Popen(
            [sys.executable, FORWARD, address, str(port), to, str(to_port)],
            stdout=subprocess.PIPE, preexec_fn=before))
        self.stack.callback(forwarder.kill)
        assert forwarder.stdout is not None
        self.assertEqual(forwarder.stdout.readline(), b"ready\n")


class EtcdServer:
    """An etcd, or a member of a cluster. Its data outlive its ends."""

    def __init__(self, folder: Path, *options: str, name: str = "one", cluster: str = "",
                 peer: str = "", scheme: str = "http", address: str = "127.0.0.1",
                 before: Callable[[], None] | None = None) -> None:
        self.endpoint = f"{address}:{free_port()}"
        self.where = ["--rdzv-backend=etcd", f"--rdzv-endpoint={self.endpoint}"]
        self.url = f"{scheme}://{self.endpoint}"
        self.folder, self.before = folder / name, before
        peer = peer or f"http://{address}:{free_port()}"
        self.words = [
            "etcd", "--name", name, "--data-dir", str(self.folder), "--listen-client-urls",
            self.url, "--advertise-client-urls", self.url, "--listen-peer-urls", peer,
            "--initial-advertise-peer-urls", peer, "--initial-cluster", cluster or f"{name}={peer}",
            "--log-level", "error", *options]
        self.begin()

    def begin(self) -> None:
        with self.folder.with_suffix(".log").open("ab") as log:
            self.process = subprocess.Popen(self.words, stdout=log, stderr=log,
                                            preexec_fn=self.before)

    def end(self) -> None:
        self.process.kill()
        self.process.wait(LIMIT)

    def ask(self, path: str, token: str = "", **body: object) -> dict[str, Any]:
        """One request to its JSON gateway."""
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(),
                                         {"Authorization": token} if token else {})
        with urllib.request.urlopen(request, timeout=5) as answer:
            said: dict[str, Any] = json.loads(answer.read())
        return said

    def answers(self) -> bool:
        try:
            self.ask("/v3/maintenance/status")
        except OSError:
            return False
        return True
