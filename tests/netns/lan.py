# SPDX-License-Identifier: Apache-2.0
"""A network of hosts on this machine: namespaces, each with a TUN interface, and a switch between
them that this file plays: it delays, loses and drops packets as it is told.

The kernel's TCP/IP is real in each namespace; only the wire is ours, so that neither netem nor the
`ip` program nor a bridge is needed. Nothing has a name outside of this process and the switch,
which dies with it: no namespace and no interface can be left behind.
"""
from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import heapq
import json
import os
import random
import selectors
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable

CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
CLONE_NEWNS, MS_BIND, MS_REC, MS_PRIVATE = 0x20000, 0x1000, 0x4000, 0x40000
PR_SET_PDEATHSIG = 1
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
SIOCGIFFLAGS, SIOCSIFFLAGS, SIOCSIFADDR, SIOCSIFNETMASK = 0x8913, 0x8914, 0x8916, 0x891C
SIOCGIFINDEX, IFF_UP = 0x8933, 1
BURST = 2  # packets of one host to another that may be lost one after the other
LIBC = ctypes.CDLL(None, use_errno=True)


def call(name: str, *words: int) -> None:
    if getattr(LIBC, name)(*words) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")


def replace_file(own: str | os.PathLike[str], path: str) -> None:
    """For a child: from then on it finds the content of `own` at that path; others do not."""
    call("unshare", CLONE_NEWNS)
    for source, target, flags in ((None, "/", MS_REC | MS_PRIVATE), (own, path, MS_BIND)):
        words = (None if source is None else os.fsencode(source), os.fsencode(target), None)
        if LIBC.mount(*words, ctypes.c_ulong(flags), None) != 0:
            code = ctypes.get_errno()
            raise OSError(code, f"mount: {os.strerror(code)}", target)


def set_up(name: str, address: str = "", six: str = "") -> None:
    """Configures an interface of this thread's namespace."""
    padded = name.encode().ljust(16, b"\0")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as four:
        def ask(request: int, more: bytes) -> bytes:
            return fcntl.ioctl(four, request, padded + more.ljust(24, b"\0"))

        def family(text: str) -> bytes:
            return struct.pack("=HH4s", socket.AF_INET, 0, socket.inet_aton(text))
        if address:
            ask(SIOCSIFADDR, family(address))
            ask(SIOCSIFNETMASK, family("255.255.255.0"))
        flags = struct.unpack_from("=H", ask(SIOCGIFFLAGS, b""), 16)[0]
        ask(SIOCSIFFLAGS, struct.pack("=H", flags | IFF_UP))
        index = struct.unpack_from("=i", ask(SIOCGIFINDEX, b""), 16)[0]
    if six:
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as sock:
            fcntl.ioctl(sock, SIOCSIFADDR, struct.pack(
                "=16sIi", socket.inet_pton(socket.AF_INET6, six), 64, index))


def open_tun(name: str) -> int:
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
    fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TUN | IFF_NO_PI))
    return fd


def address(host: int) -> str:
    return f"10.77.0.{host + 1}"


def address6(host: int) -> str:
    return f"fd77::{host + 1:x}"


def second_address(host: int) -> str:
    """Of ib0, on a Lan of two interfaces; nothing passes between hosts there."""
    return f"10.88.0.{host + 1}"


BRIDGE = "172.17.0.1"  # the same on each host and of no use to others, as Docker's


class Switch:
    """The other process: forwards until its parent is gone. Hosts are in parts of the network;
    packets pass within a part."""

    def __init__(self, orders: socket.socket, tuns: list[int]) -> None:
        self.orders, self.tuns = orders, tuns
        self.part = [0] * len(tuns)
        self.delay, self.loss = (0.0, 0.0), 0.0
        self.queue: list[tuple[float, int, int, bytes]] = []
        self.serial, self.passed, self.lost, self.dropped = 0, 0, 0, [0] * len(tuns)
        self.row: dict[tuple[int, int], int] = {}
        self.random = random.Random(20)

    def run(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self.orders, selectors.EVENT_READ, -1)
            for host, fd in enumerate(self.tuns):
                selector.register(fd, selectors.EVENT_READ, host)
            while True:
                now = time.monotonic()
                while self.queue and self.queue[0][0] <= now:
                    _, _, host, packet = heapq.heappop(self.queue)
                    with contextlib.suppress(OSError):  # a full queue: lost, as on any network
                        os.write(self.tuns[host], packet)
                wait = max(self.queue[0][0] - now, 0) if self.queue else None
                for key, _ in selector.select(wait):
                    self.obey() if key.data < 0 else self.forward(key.data)

    def obey(self) -> None:
        text = self.orders.recv(65536)
        if not text:
            os._exit(0)
        for name, value in json.loads(text).items():
            setattr(self, name, value)
        self.orders.send(json.dumps({"passed": self.passed, "lost": self.lost,
                                     "dropped": self.dropped}).encode())

    def forward(self, source: int) -> None:
        for _ in range(64):
            try:
                packet = os.read(self.tuns[source], 65536)
            except BlockingIOError:
                return
            six = packet[0] >> 4 == 6
            target = (packet[39] if six else packet[19]) - 1
            own = packet[24:26] == b"\xfd\x77" if six else packet[16:18] == b"\x0a\x4d"
            if not own or not 0 <= target < len(self.tuns):
                continue
            if self.part[source] != self.part[target]:
                self.dropped[source] += 1
                continue
            self.send(source, target, packet)

    def send(self, source: int, target: int, packet: bytes) -> None:
        row = self.row.get((source, target), 0)
        if row < BURST and self.random.random() < self.loss:
            self.row[source, target] = row + 1
            self.lost += 1
            return
        self.row[source, target] = 0
        self.serial += 1
        self.passed += 1
        due = time.monotonic() + self.random.uniform(*self.delay)
        heapq.heappush(self.queue, (due, self.serial, target, packet))


class Lan:
    """Use as a context. Raises OSError where this machine does not allow it."""

    def __init__(self, hosts: int, two: bool = False) -> None:
        self.count = hosts
        self.orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            self.orders.close()
            play_switch(theirs, hosts, two, parent)
        theirs.close()
        text, self.spaces, _, _ = socket.recv_fds(self.orders, 65536, hosts)
        answer = json.loads(text) if text else {"errno": errno.EIO, "text": "the switch is gone"}
        if answer:
            self.__exit__()
            raise OSError(answer["errno"], answer["text"])

    def __enter__(self) -> Lan:
        return self

    def __exit__(self, *_: object) -> None:
        self.orders.close()
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        for fd in self.spaces:
            os.close(fd)

    def enter(self, host: int) -> Callable[[], None]:
        """For a child, before it becomes another program: from then on it is on that host."""
        return lambda: call("setns", self.spaces[host], CLONE_NEWNET)

    def tell(self, **orders: object) -> dict[str, object]:
        """Gives orders to the switch. Its answer, when they hold: what it has counted so far."""
        self.orders.send(json.dumps(orders).encode())
        return json.loads(self.orders.recv(65536))

    def cut(self, *hosts: int) -> None:
        """These reach each other, and nobody else."""
        self.tell(part=[int(host in hosts) for host in range(self.count)])

    def heal(self) -> None:
        self.cut()

    def dropped(self, host: int) -> int:
        """Packets of that host that went nowhere since the beginning."""
        return self.tell()["dropped"][host]  # type: ignore[index]


def play_switch(orders: socket.socket, hosts: int, two: bool, parent: int) -> None:
    code = 1
    try:
        call("prctl", PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            return
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        spaces, tuns, bridges = [], [], []
        try:
            for host in range(hosts):
                call("unshare", CLONE_NEWNET)
                spaces.append(os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC))
                set_up("lo")
                bridges.append(open_tun("docker0"))
                set_up("docker0", BRIDGE)
                tuns.append(open_tun("eth0"))
                set_up("eth0", address(host), address6(host) if has_six() else "")
                if two:
                    bridges.append(open_tun("ib0"))
                    set_up("ib0", second_address(host))
        except OSError as error:
            text = json.dumps({"errno": error.errno, "text": f"{error} (host {host})"}).encode()
            socket.send_fds(orders, [text], [])
            return
        socket.send_fds(orders, [b"{}"], spaces)
        Switch(orders, tuns).run()
    except BaseException as error:  # noqa: BLE001 - a fork must never return into the tests
        print(f"switch: {error!r}", file=sys.stderr)
    finally:
        os._exit(code)


def has_six() -> bool:
    try:
        with open("/proc/sys/net/ipv6/conf/all/disable_ipv6", encoding="ascii") as file:
            return file.read().strip() == "0"
    except OSError:
        return False


def why_not() -> str:
    """Why there can be no such network here; empty if there can. Makes an ordinary user root of a
    namespace of its own."""
    try:
        if os.geteuid() != 0:
            user, group = os.geteuid(), os.getegid()
            call("unshare", CLONE_NEWUSER)
            for name, text in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"),
                               ("gid_map", f"0 {group} 1")):
                with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
                    file.write(text)
        with Lan(2):
            return ""
    except OSError as error:
        return f"network namespaces with TUN interfaces cannot be made here: {error}"
