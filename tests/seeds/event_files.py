# SPDX-License-Identifier: Apache-2.0
"""What is in an event file of TensorBoard, without TensorBoard."""
from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any


def varint(data: bytes) -> tuple[int, bytes]:
    value = shift = 0
    for place, byte in enumerate(data):
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, data[place + 1:]
    raise ValueError("a number without an end")


def fields(data: bytes) -> dict[int, list[Any]]:
    """Of a message of protobuf by number: each as often as it comes."""
    found: dict[int, list[Any]] = {}
    while data:
        key, data = varint(data)
        if key & 7 == 0:
            value, data = varint(data)
        else:
            size = {1: 8, 5: 4}.get(key & 7, 0)
            if key & 7 == 2:
                size, data = varint(data)
            value, data = data[:size], data[size:]
        found.setdefault(key >> 3, []).append(value)
    return found


def values(data: bytes) -> Iterator[tuple[int, str, dict[int, list[Any]]]]:
    """Step, tag and fields of each value of a summary."""
    while data:
        size = struct.unpack("<Q", data[:8])[0]
        event, data = fields(data[12:12 + size]), data[16 + size:]
        for summary in event.get(5, []):
            for value in map(fields, fields(summary).get(1, [])):
                yield event.get(2, [0])[0], value[1][0].decode(), value
