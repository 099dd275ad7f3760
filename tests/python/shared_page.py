# SPDX-License-Identifier: Apache-2.0
"""An agent's end of ELASTRUN_PAGE, for tests."""
from __future__ import annotations

import os
import struct

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
