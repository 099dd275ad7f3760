# SPDX-License-Identifier: Apache-2.0
"""Event files of TensorBoard, by the standard library alone: scalars, as SummaryWriter writes them.

TFRecords (a length, its checksum, a payload, its checksum) of Event messages (event.proto and
summary.proto of TensorBoard).
"""
from __future__ import annotations

import os
import socket
import struct
import threading
import time

_POLYNOMIAL = 0x82F63B78  # CRC-32C (Castagnoli) of RFC 3720


def _row(number: int) -> int:
    for _ in range(8):
        number = number >> 1 ^ (_POLYNOMIAL if number & 1 else 0)
    return number


_TABLE = [_row(number) for number in range(256)]


def masked_crc32c(data: bytes) -> int:
    """The checksum as TFRecords store it."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _TABLE[(crc ^ byte) & 0xFF]
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _record(payload: bytes) -> bytes:
    size = struct.pack("<Q", len(payload))
    return b"".join((size, struct.pack("<I", masked_crc32c(size)),
                     payload, struct.pack("<I", masked_crc32c(payload))))


def _varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _bytes(field: int, value: bytes) -> bytes:
    return bytes([field << 3 | 2]) + _varint(len(value)) + value


def _event(rest: bytes) -> bytes:
    return _record(b"\x09" + struct.pack("<d", time.time()) + rest)


class EventFile:
    """A new file in `folder`, which is made as well; for all threads. OSError: it cannot be."""

    def __init__(self, folder: str) -> None:
        os.makedirs(folder, exist_ok=True)
        name = f"events.out.tfevents.{int(time.time()):010}.{socket.gethostname()}.{os.getpid()}."
        number = 0
        while os.path.exists(os.path.join(folder, name + str(number))):
            number += 1
        self.path = os.path.join(folder, name + str(number))
        self._writing = threading.Lock()
        self._waiting = _event(_bytes(3, b"brain.Event:2"))
        self.flush()

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        """It is in the file with the next flush()."""
        one = _bytes(1, tag.encode("utf-8", "replace")) + b"\x15" + struct.pack("<f", value)
        with self._writing:
            self._waiting += _event(b"\x10" + _varint(step) + _bytes(5, _bytes(1, one)))

    def flush(self) -> None:
        with self._writing, open(self.path, "ab", buffering=0) as file:
            size, done = file.tell(), 0
            try:
                while done < len(self._waiting):
                    done += file.write(self._waiting[done:])
            except OSError:  # a full disk: readers would stop for good at half a record
                file.truncate(size)
                raise
            self._waiting = b""
