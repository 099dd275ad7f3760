# SPDX-License-Identifier: Apache-2.0
"""A store_host process for a test, and the bytes to talk to it."""
from __future__ import annotations

import os
import socket
import struct
import subprocess

PING = b"\x0dabcd"
OPENING = b"\x00\xce\xf7\x85\x3c" + PING


class Host:
    """Our server, alone in a process; ends with the `with` block."""

    def __init__(self, program: str, *before: str) -> None:
        self.process = subprocess.Popen([*before, program], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        line = self.read()
        if not line.startswith("PORT "):
            raise RuntimeError(f"store_host did not start: {line!r} {self.process.communicate()}")
        self.port = int(line.split()[1])
        self.log = ""

    def read(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline()

    def command(self, word: str) -> dict[str, int]:
        """Obeys "statistics" or "afresh"; answers the statistics after it."""
        assert self.process.stdin
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()
        words = self.read().split()
        return dict(zip(words[::2], map(int, words[1::2])))

    def resident_mb(self) -> float:
        with open(f"/proc/{self.process.pid}/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE") / 1e6

    def connect(self) -> socket.socket:
        """A connection that has not said anything yet."""
        connection = socket.create_connection(("127.0.0.1", self.port))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def client(self) -> socket.socket:
        """A connection that was served: its opening has been answered."""
        connection = self.connect()
        connection.sendall(OPENING)
        assert receive(connection, 4) == b"abcd"
        return connection

    def __enter__(self) -> Host:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.returncode is not None:
            return
        self.log = self.process.communicate()[1]
        if self.process.returncode:
            raise RuntimeError(f"store_host ended with {self.process.returncode}: {self.log}")


def receive(connection: socket.socket, size: int) -> bytes:
    """`size` bytes, or fewer if the server closes first."""
    got = b""
    while len(got) < size:
        try:
            part = connection.recv(min(size - len(got), 1 << 20))
        except ConnectionResetError:
            break
        if not part:
            break
        got += part
    return got


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def keys(names: list[bytes]) -> bytes:
    return struct.pack("<Q", len(names)) + b"".join(map(text, names))
