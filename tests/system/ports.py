# SPDX-License-Identifier: Apache-2.0
"""Ports of this machine's loopback, for tests and benchmarks."""
from __future__ import annotations

import socket


def free_port(address: str = "127.0.0.1") -> int:
    """One that was free a moment ago."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
