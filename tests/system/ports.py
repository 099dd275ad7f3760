# SPDX-License-Identifier: Apache-2.0
"""Ports of this machine's loopback, for tests and benchmarks."""
from __future__ import annotations

import contextlib
import os
import random
import socket
from pathlib import Path

_held: list[socket.socket] = []


def free_port(address: str = "127.0.0.1") -> int:
    """A free port that belongs to this process until it ends: no other test gets it, and the kernel
    gives it to nobody. bind(2) with port 0 holds a port only until it is closed: the next
    connection of any process may have it before the program that is tested can listen there."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    # Below those that the kernel hands out by itself (ip_local_port_range in ip(7)), and below the
    # default ports of rendezvous and stores.
    for port in random.sample(range(10000, 29000), 1000):
        holder = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        with socket.socket(family) as probe:
            try:
                # A name without a file, as unit tests and conformance take it; see unix(7).
                holder.bind(f"\0elastrun test port {port}")
                probe.bind((address, port))
                _held.append(holder)
                return port
            except OSError as error:
                holder.close()
                failure = error
    raise failure


def listening() -> dict[str, int]:
    """The ports of all listening TCP sockets of this network namespace, by what /proc/PID/fd shows
    of the sockets."""
    lines = [line.split() for table in ("tcp", "tcp6")
             for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]]
    return {f"socket:[{words[9]}]": int(words[1].rsplit(":", 1)[1], 16)
            for words in lines if words[3] == "0A"}


def sockets_of(pid: int) -> set[str]:
    """What /proc/PID/fd shows of its sockets; nothing, when it has gone."""
    found = set()
    with contextlib.suppress(OSError):
        for fd in os.scandir(f"/proc/{pid}/fd"):
            found.add(os.readlink(fd.path))
    return {one for one in found if one.startswith("socket:")}


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
