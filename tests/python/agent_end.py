# SPDX-License-Identifier: Apache-2.0
"""An agent's end of ELASTRUN_CHANNEL and ELASTRUN_PAGE, and workers that talk to it, for tests."""
from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

PACKAGE = str(Path(__file__).resolve().parents[2] / "lib" / "python")
sys.path.insert(0, PACKAGE)
sys.dont_write_bytecode = True
os.environ.pop("ELASTRUN_CHANNEL", None)
SIZE = 16384


class SharedPage:
    def __init__(self, size: int = SIZE) -> None:
        self.descriptor = os.memfd_create("page")
        os.ftruncate(self.descriptor, size)
        os.pwrite(self.descriptor, struct.pack("=8sII", b"elastrun", 1, size), 0)
        self.path = f"/proc/{os.getpid()}/fd/{self.descriptor}"

    def close(self) -> None:
        os.close(self.descriptor)

    def words(self, *numbers: int) -> tuple[int, ...]:
        return tuple(struct.unpack("=q", os.pread(self.descriptor, 8, 8 * n))[0] for n in numbers)

    def owner(self) -> int:
        return struct.unpack("=I", os.pread(self.descriptor, 4, 16))[0]

    def series(self) -> dict[str, tuple[float, int]]:
        """By name: last value, and how many there were. No lock is left odd."""
        count, = struct.unpack("=I", os.pread(self.descriptor, 4, 20))
        found = {}
        for index in range(count):
            entry = os.pread(self.descriptor, 128, 128 + 128 * index)
            lock, value, values, length = struct.unpack_from("=qdqI", entry)
            assert lock % 2 == 0, "a lock that nobody holds"
            found[entry[28:28 + length].decode().replace("\0", "/")] = (value, values)
        return found


def worker(code: str, channel: str | None, **more: str) -> subprocess.CompletedProcess[str]:
    """Runs a few lines of a worker; the package reads its environment once, at import."""
    env = {k: v for k, v in os.environ.items() if k != "ELASTRUN_CHANNEL"}
    env.update(more, PYTHONPATH=PACKAGE, PYTHONDONTWRITEBYTECODE="1")
    if channel is not None:
        env["ELASTRUN_CHANNEL"] = channel
    return subprocess.run([sys.executable, "-c", "import elastrun\n" + code], env=env,
                          capture_output=True, text=True, timeout=60)


class Listener:
    """An agent's end of the channel: collects the packets of all connections."""

    def __init__(self, folder: str) -> None:
        self.path = folder + "/channel"
        self.lost = 0
        self.times: list[float] = []  # of metrics that are told at once
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.bind(self.path)
        self.socket.listen(16)
        self.socket.setblocking(False)

    def packets(self, with_offers: bool = False) -> list[list[object]]:
        """Per connection, in the order of connecting. All senders have ended by now. The offer of
        stacks, which is the import's, is left out; what they say that they have lost is counted.
        """
        found = []
        while True:
            try:
                connection, _ = self.socket.accept()
            except BlockingIOError:
                return found
            with connection:
                got = []
                while packet := connection.recv(65536):
                    message = json.loads(packet)
                    if message["kind"] == "lost":
                        self.lost += message["count"]
                    elif with_offers or message["kind"] != "stacks":
                        if message["kind"] == "metric" and "time" in message:
                            self.times.append(message.pop("time"))
                        got.append(message)
                found.append(got)


def folder_for(test: unittest.TestCase) -> str:
    folder = tempfile.TemporaryDirectory()
    test.addCleanup(folder.cleanup)  # enterContext() is since Python 3.11
    return folder.name


class InFolder(unittest.TestCase):
    """A folder for each test."""

    def setUp(self) -> None:
        self.folder = Path(folder_for(self)).resolve()


class AgentEnd(InFolder):
    """An agent's end for each test."""

    def setUp(self) -> None:
        super().setUp()
        self.listener = Listener(folder_for(self))
        self.addCleanup(self.listener.socket.close)
        self.page = SharedPage()
        self.addCleanup(self.page.close)

    def run_worker(self, code: str, **more: str) -> list[dict[str, object]]:
        """What a worker tells that runs these lines; `said` is what it prints."""
        done = worker(code, self.listener.path, **{"ELASTRUN_PAGE": self.page.path, **more})
        self.assertEqual(done.stderr, "")
        self.said = done.stdout
        return [packet for packets in self.listener.packets() for packet in packets]
