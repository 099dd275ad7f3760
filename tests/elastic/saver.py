# SPDX-License-Identifier: Apache-2.0
"""A worker that uses its store while it saves: saver.py FOLDER, a folder with files that say go on.

It counts in the store while it runs. At SIGTERM the one of group rank 0 ends at once; any other
saves until there is a file "saved", then counts again, over its old connection and a new one.
"""
import os
import signal
import socket
import struct
import sys
import time
from pathlib import Path

folder = Path(sys.argv[1])
rank = int(os.environ["GROUP_RANK"])


class Store:
    """A client of torch's store that can only count."""

    def __init__(self) -> None:
        where = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        self.link = socket.create_connection(where, 20)
        self.link.sendall(b"\x00" + struct.pack("=I", 0x3C85F7CE))

    def count(self) -> int:
        key = b"key-of-attempt"
        self.link.sendall(b"\x04" + struct.pack("=Q", len(key)) + key + struct.pack("=q", 1))
        answer = self.link.recv(8, socket.MSG_WAITALL)
        if len(answer) != 8:
            raise ConnectionError("the store is gone")
        return struct.unpack("=q", answer)[0]


def say(text: str) -> None:
    os.write(1, f"{text}\n".encode())


def until(name: str) -> None:
    while not (folder / name).exists():
        time.sleep(0.01)


def stop(*_: object) -> None:
    if rank == 0:
        os._exit(0)
    say("saving")
    until("saved")
    try:
        before = store.count()
        after = before + 1 if "OLD_ONLY" in os.environ else Store().count()
        say("has saved" if after == before + 1 else f"counts {after} after {before}")
    except OSError as error:
        say(f"lost its store: {error}")
    os._exit(0)


signal.signal(signal.SIGTERM, stop)
store = Store()
store.count()
say(f"GROUP_RANK={rank}")
say(f"WORLD_SIZE={os.environ['WORLD_SIZE']}")
while not (folder / "go").exists():
    if rank == 0 and (folder / "fail").exists() and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        os._exit(3)
    time.sleep(0.01)
