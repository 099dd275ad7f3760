# SPDX-License-Identifier: Apache-2.0
"""Forwards a port, as `ssh -L` and port mappings do: forward.py ADDRESS PORT TO_ADDRESS TO_PORT"""
import contextlib
import socket
import sys
import threading


def copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    for each in (source, target):
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)


def main() -> None:
    with socket.create_server((sys.argv[1], int(sys.argv[2]))) as port:
        print("ready", flush=True)
        while True:
            near, _ = port.accept()
            try:
                far = socket.create_connection((sys.argv[3], int(sys.argv[4])))
            except OSError:
                near.close()
                continue
            for pair in ((near, far), (far, near)):
                threading.Thread(target=copy, args=pair, daemon=True).start()


main()
