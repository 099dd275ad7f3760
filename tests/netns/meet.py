# SPDX-License-Identifier: Apache-2.0
"""A worker that meets the others at MASTER_ADDR:MASTER_PORT, as torch does: meet.py [GO]

It leaves its rank in the store, waits for everybody else's, says "met N", and waits for the file
GO. Each line is one write, so that lines of several workers do not mix.
"""
import os
import socket
import struct
import sys
import time

VALIDATE, SET, WAIT = b"\0", b"\1", b"\6"
MAGIC = 0x3C85F7CE


def text(word: str) -> bytes:
    return struct.pack("<Q", len(word)) + word.encode()


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    env = os.environ
    for name in ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE",
                 "TORCHELASTIC_RESTART_COUNT"):
        say(f"{name}={env[name]}")
    size = int(env["WORLD_SIZE"])
    with socket.create_connection((env["MASTER_ADDR"], int(env["MASTER_PORT"]))) as store:
        store.sendall(VALIDATE + struct.pack("<I", MAGIC) + SET + text(f"/{env['RANK']}") +
                      text("here"))
        keys = b"".join(text(f"/{rank}") for rank in range(size))
        store.sendall(WAIT + struct.pack("<Q", size) + keys)
        answer = store.recv(1)
    say(f"met {size}" if answer else "the store has closed the connection")
    while len(sys.argv) > 1 and not os.path.exists(sys.argv[1]):
        time.sleep(0.02)


main()
