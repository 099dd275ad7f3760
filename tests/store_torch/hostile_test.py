# SPDX-License-Identifier: Apache-2.0
"""hostile_test.py STORE_HOST: peers that no server wants. After each of them a well-behaved client
is served, and the server's memory is where it was."""
from __future__ import annotations

import os
import random
import resource
import socket
import struct
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from host import OPENING, PING, Host, keys, receive, text

PROGRAM = sys.argv[1]
SET, GET, WAIT, MULTI_GET, MULTI_SET = b"\x01", b"\x03", b"\x06", b"\x0a", b"\x0b"


class Hostile(unittest.TestCase):
    def setUp(self) -> None:
        self.host = Host(PROGRAM)
        self.addCleanup(self.host.__exit__)
        self.bystander = self.host.client()
        self.addCleanup(self.bystander.close)

    def served(self) -> None:
        self.bystander.sendall(PING)
        self.assertEqual(receive(self.bystander, 4), b"abcd")

    def grown_below(self, before: float, megabytes: float) -> None:
        """The server's memory; not asked of a sanitised one, which keeps what was freed."""
        if not os.environ.get("ELASTRUN_SANITIZED"):
            self.assertLess(self.host.resident_mb() - before, megabytes)

    def test_garbage(self) -> None:
        chance = random.Random(1)
        for size in (1, 5, 100, 5000):
            for _ in range(50):
                with self.host.connect() as rogue:
                    rogue.sendall(chance.randbytes(size))
                    rogue.shutdown(socket.SHUT_WR)
                    while receive(rogue, 4096):
                        pass
            self.served()

    def test_half_messages_wait_without_harm(self) -> None:
        rogues = []
        for i in range(500):
            rogues.append(self.host.connect())
            rogues[-1].sendall((OPENING + SET + text(b"/key") + text(b"value"))[:1 + i % 30])
        self.served()
        self.assertEqual(self.host.command("statistics")["connections"], 501)
        self.assertEqual(self.host.command("statistics")["keys"], 0)
        for rogue in rogues:
            rogue.close()
        self.served()

    def test_giant_lengths_cost_nothing(self) -> None:
        before = self.host.resident_mb()
        for length in (8193, 8388609, 2**31, 2**32, 2**63, 2**64 - 1):
            for start in (GET, WAIT, MULTI_GET, MULTI_SET):
                if start == GET or length > 131072:
                    with self.host.client() as rogue:
                        rogue.sendall(start + struct.pack("<Q", length))
                        self.assertEqual(receive(rogue, 1), b"", f"{start!r} {length}")
        announcers = [self.host.client() for _ in range(200)]
        for rogue in announcers:  # announced, allowed, never sent
            rogue.sendall(SET + text(b"/k") + struct.pack("<Q", 8 << 20) + b"x")
        self.served()
        self.grown_below(before, 20)
        for rogue in announcers:
            rogue.close()

    def test_ten_thousand_connections(self) -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = 10_000
        if hard != resource.RLIM_INFINITY and hard < wanted + 100:
            self.skipTest(f"only {hard} descriptors are allowed here, {wanted + 100} are needed")
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        before = self.host.resident_mb()
        crowd = [self.host.client() for _ in range(wanted)]
        each = (self.host.resident_mb() - before) * 1e6 / wanted
        print(f"{wanted} connections: {each:.0f} bytes of memory each", file=sys.stderr)
        self.grown_below(before, wanted * 0.002)
        for peer in crowd:
            peer.sendall(WAIT + keys([b"/start"]))
        self.served()
        self.bystander.sendall(SET + text(b"/start") + text(b""))
        for peer in crowd:
            self.assertEqual(receive(peer, 1), b"\0")
        for peer in crowd:
            peer.close()
        self.served()

    def test_who_never_reads_does_not_fill_the_memory(self) -> None:
        value = b"x" * (8 << 20)
        self.bystander.sendall(SET + text(b"/large") + text(value) + PING)
        receive(self.bystander, 4)
        self.bystander.sendall(MULTI_SET + struct.pack("<Q", 2000) +
                               b"".join(text(b"/%d" % i) + text(b"v" * 4000) for i in range(2000)))
        self.served()
        before = self.host.resident_mb()
        rogues = []
        for _ in range(50):
            rogue = self.host.client()
            rogue.setblocking(False)
            try:
                for _ in range(1000):
                    rogue.send(MULTI_GET + keys([b"/large"] * 1000) + GET + text(b"/large"))
            except BlockingIOError:
                pass
            rogues.append(rogue)
            self.served()
        self.grown_below(before, 150)
        for rogue in rogues:
            rogue.close()
        self.served()

    def test_names_are_never_looked_up(self) -> None:
        # A resolver that does not answer: one look-up takes five seconds or more, 400 of them
        # longer than this test may.
        with tempfile.TemporaryDirectory() as folder:
            resolver, order = Path(folder, "resolv.conf"), Path(folder, "nsswitch.conf")
            resolver.write_text("nameserver 192.0.2.1\n")
            order.write_text("hosts: dns\n")
            enter = ["unshare", "-rm", "sh", "-c", 'mount --bind "$0" /etc/resolv.conf && '
                     'mount --bind "$1" /etc/nsswitch.conf && exec "$2"',
                     str(resolver), str(order)]
            if subprocess.run([*enter, "true"], capture_output=True, check=False).returncode:
                self.skipTest("no mount namespace can be made here")
            with Host(PROGRAM, *enter) as host:
                for _ in range(400):
                    host.client().close()
