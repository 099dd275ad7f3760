# SPDX-License-Identifier: Apache-2.0
"""A worker: the first attempt sets a key and fails, the second says whether it is there."""
import os
import socket
import struct

link = socket.create_connection((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])), 20)
link.sendall(b"\x00" + struct.pack("=I", 0x3C85F7CE))
key = struct.pack("=Q", 3) + b"key"
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    link.sendall(b"\x01" + key + struct.pack("=Q", 5) + b"value")
    link.sendall(b"\x05" + struct.pack("=Q", 1) + key)
    assert link.recv(1) == b"\x00", "the key that was set is not there"
    os._exit(3)
link.sendall(b"\x05" + struct.pack("=Q", 1) + key)
os.write(1, b"absent\n" if link.recv(1) == b"\x01" else b"present\n")
