#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A worker that plays the steps given as arguments, after writing its facts.

A step is VERB, VERB=VALUE or SELECTOR/VERB=VALUE. A selector such as r1, l0, g0, a0 or r1a0 limits
a step to that rank, local rank, group rank or attempt. Capitals in braces in a value, {RANK} for
example, stand for environment variables.

  out=TEXT  err=TEXT    print a line          part=TEXT    print without a newline
  lines=N               print N numbered lines
  exit=N                end with that code    die=SIGKILL  end by that signal
  mark=NAME             tell the kit          await=NAME   wait until the kit says so
  meet=N                wait until N workers of this attempt have come here
  hold                  mark "hold", then wait for the end
  trap=SIGTERM:N        note the signal, end with code N (or `ignore`: note it and go on)
  errfile=KIND:TEXT     write the error file, KIND one of record, text, broken; record-60 and
                        text-60 date it a minute back
  child                 leave a process in the background, in this process group
  stdin                 note the first line of standard input
  dial                  note whether MASTER_ADDR:MASTER_PORT answers
  has=KEY               note whether the store has the key
  store                 note an exchange of values over the store at MASTER_ADDR:MASTER_PORT
"""
import itertools
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import time

import facts

LONGEST = 100  # seconds until a forgotten worker ends by itself
MEETINGS = itertools.count()
SELECTORS = {
    "r": "RANK", "l": "LOCAL_RANK", "g": "GROUP_RANK", "a": "TORCHELASTIC_RESTART_COUNT",
}


def wait_until(condition):
    """Workers look at the same moments, so that those who wait for one word go on together."""
    while not condition():
        time.sleep(0.02 - time.monotonic() % 0.02)


def tell(event):
    """Append one event to this worker's record."""
    line = (json.dumps(event) + "\n").encode()
    path = os.path.join(os.environ["CONFORM_FACTS"], "%d.events" % os.getpid())
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.write(fd, line)
    os.close(fd)


def mark(name):
    folder = os.environ["CONFORM_MARKS"]
    open(os.path.join(folder, "%s.%d" % (name, os.getpid())), "w").close()


def count_marks(name):
    return sum(f.startswith(name + ".") for f in os.listdir(os.environ["CONFORM_MARKS"]))


def trap(value):
    name, action = value.split(":")

    def caught(signum, frame):
        tell({"signal": signal.Signals(signum).name})
        if action != "ignore":
            os._exit(int(action))

    signal.signal(getattr(signal, name), caught)


def write_error_file(value):
    kind, age, text = re.fullmatch(r"(\w+)(?:-(\d+))?:(.*)", value, re.S).groups()
    stamp = int(time.time()) - int(age or 0)
    if kind == "record":
        stack = "Traceback (most recent call last):\n  in worker\n" + text + "\n"
        info = {"py_callstack": stack, "timestamp": str(stamp)}
        content = json.dumps({"message": {"message": text, "extraInfo": info}})
    elif kind == "text":
        content = json.dumps({"message": text, "timestamp": stamp})
    else:
        content = "{ not json"
    with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w") as out:
        out.write(content)


def master():
    return os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])


def dial():
    try:
        socket.create_connection(master(), timeout=10).close()
        answer = "answers"
    except OSError as error:
        answer = "refused: %s" % type(error).__name__
    tell({"note": "master", "value": answer})


class Store:
    """As much of the TCPStore protocol as an exchange of values needs."""

    def __init__(self):
        self.link = socket.create_connection(master(), timeout=20)
        self.link.sendall(b"\x00" + struct.pack("=I", 0x3C85F7CE))

    def text(self, value):
        return struct.pack("=Q", len(value)) + value

    def read(self, count):
        data = b""
        while len(data) < count:
            piece = self.link.recv(count - len(data))
            if not piece:
                raise ConnectionError("store closed the connection")
            data += piece
        return data

    def set(self, key, value):
        self.link.sendall(b"\x01" + self.text(key) + self.text(value))

    def add(self, key, number):
        self.link.sendall(b"\x04" + self.text(key) + struct.pack("=q", number))
        return struct.unpack("=q", self.read(8))[0]

    def check(self, key):
        self.link.sendall(b"\x05" + struct.pack("=Q", 1) + self.text(key))
        return self.read(1) == b"\x00"

    def wait(self, key):
        self.link.sendall(b"\x06" + struct.pack("=Q", 1) + self.text(key))
        return self.read(1)[0]

    def get(self, key):
        self.wait(key)
        self.link.sendall(b"\x03" + self.text(key))
        return self.read(struct.unpack("=Q", self.read(8))[0])


def exchange():
    """Everybody sets one key, reads all keys, and leaves when all have read."""
    store, world = Store(), int(os.environ["WORLD_SIZE"])
    rank = os.environ["RANK"]
    store.set(b"/conform/" + rank.encode(), ("value of " + rank).encode())
    seen = [store.get(b"/conform/%d" % n).decode() for n in range(world)]
    store.add(b"/conform/done", 1)
    wait_until(lambda: store.add(b"/conform/done", 0) == world)
    tell({"note": "store", "value": seen})


def hold():
    mark("hold")
    wait_until(lambda: False)


def play(verb, value):
    if verb in ("out", "err"):  # one write: workers that share a stream must not mix here
        os.write(1 if verb == "out" else 2, (value + "\n").encode())
    elif verb == "part":
        sys.stdout.write(value)
        sys.stdout.flush()
    elif verb == "lines":
        sys.stdout.write("".join("line %d of rank %s\n" % (n, os.environ["RANK"])
                                 for n in range(int(value))))
        sys.stdout.flush()
    elif verb == "exit":
        os._exit(int(value))
    elif verb == "die":
        signal.signal(getattr(signal, value), signal.SIG_DFL) if value != "SIGKILL" else None
        os.kill(os.getpid(), getattr(signal, value))
    elif verb == "mark":
        mark(value)
    elif verb == "await":
        wait_until(lambda: os.path.exists(os.path.join(os.environ["CONFORM_GO"], value)))
    elif verb == "meet":
        # Each meeting by a name of its own: a second one is over at once otherwise.
        name = "meet%s-%d" % (os.environ["TORCHELASTIC_RESTART_COUNT"], next(MEETINGS))
        mark(name)
        wait_until(lambda: count_marks(name) >= int(value))
    elif verb == "hold":
        hold()
    elif verb == "trap":
        trap(value)
    elif verb == "errfile":
        write_error_file(value)
    elif verb == "child":
        child = subprocess.Popen(["sleep", str(LONGEST)], stdin=subprocess.DEVNULL,
                                 stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        tell({"child": child.pid})
    elif verb == "stdin":
        tell({"note": "stdin", "value": sys.stdin.readline().rstrip("\n")})
    elif verb == "dial":
        dial()
    elif verb == "has":
        found = Store().check(value.encode())
        tell({"note": value, "value": "present" if found else "absent"})
    elif verb == "store":
        exchange()
    else:
        sys.exit("unknown step " + verb)


def chosen(selector):
    pairs = re.findall(r"([rlga])(\d+)", selector)
    return all(os.environ.get(SELECTORS[letter]) == number for letter, number in pairs)


def main():
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(LONGEST)
    facts.dump()
    for step in sys.argv[1:]:
        parts = re.fullmatch(r"(?:((?:[rlga]\d+)+)/)?([a-z]+)(?:=(.*))?", step, re.S)
        if not parts:
            sys.exit("cannot read the step %r" % step)
        selector, verb, value = parts.groups()
        if chosen(selector or ""):
            play(verb, re.sub(r"\{([A-Z_]+)\}", lambda m: os.environ.get(m[1], ""), value or ""))


if __name__ == "__main__":
    main()
