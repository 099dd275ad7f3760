# SPDX-License-Identifier: Apache-2.0
"""Replace what differs from run to run by names in angle brackets or braces."""
from __future__ import annotations

import re
import socket
from typing import Any

_UUID = re.compile(r"(?<![0-9a-f-])[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}(?![0-9a-f-])")
_PATTERNS = (
    (_UUID, "<uuid>"),
    # BASE/RUNID_xxxxxxxx/attempt_N and BASE/RUNID_xxxxxxxx at the end
    (re.compile(r"(?<=/)([^/\s]*)_[A-Za-z0-9_]{8}(?=/attempt_)"), r"\1_<random>"),
    (re.compile(r"\btorchelastic_[A-Za-z0-9_]{8}\b"), "torchelastic_<random>"),
    (re.compile(r"\b\d{4}-\d\d-\d\d_\d\d:\d\d:\d\d\b"), "<time>"),
    (re.compile(r"\b(pid: |PID |[Pp]rocess )\d+\b"), r"\1<pid>"),
)
_LONG_INTEGER = re.compile(r"\d{21,}")


class Normaliser:
    """Knows the scratch folder, the reserved ports and the host names of one run."""

    def __init__(self, scratch: str, ports: dict[str, int]) -> None:
        self._scratch = scratch
        self._ports = {str(port): "{" + name + "}" for name, port in ports.items()}

    def text(self, text: str) -> str:
        text = text.replace(self._scratch, "{scratch}")
        for pattern, replacement in _PATTERNS:
            text = pattern.sub(replacement, text)
        for number, name in self._ports.items():
            text = re.sub(rf"\b{number}\b", name, text)
        return text

    def deep(self, value: Any) -> Any:
        """`text` applied to every string of a JSON value."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            return [self.deep(item) for item in value]
        if isinstance(value, dict):
            return {self.text(key): self.deep(item) for key, item in value.items()}
        return value

    def variable(self, name: str, value: str) -> str:
        """The value of one of a worker's environment variables."""
        if name == "MASTER_PORT" and value not in self._ports and value not in ("29500", "29400"):
            return "<port>" if value.isdigit() else value
        if name == "TORCHELASTIC_RUN_ID" and _LONG_INTEGER.fullmatch(value):
            return "<integer>"
        if name == "TORCHELASTIC_ERROR_FILE" and value.count("/") > 4:
            return "/".join(["...", *self.text(value).split("/")[-4:]])
        return self.text(value)


def names_this_machine(address: str) -> bool:
    """Whether an address is the loopback, a name or an own address of this machine."""
    own = {"localhost", "::1", socket.gethostname(), socket.getfqdn()}
    if address in own or address.startswith("127."):
        return True
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.bind((address, 0))  # works for own addresses only
        return True
    except OSError:
        return False
