# SPDX-License-Identifier: Apache-2.0
"""What strangers may write: peers of a job without a secret, whoever finds its port, workers that
name things as they like, and other users of the machine. None of them writes to the terminal or to
agent.log in elastrun's name, fills the log, or has a file of ours written elsewhere."""
from __future__ import annotations

import contextlib
import functools
import hashlib
import hmac
import json
import os
import re
import resource
import socket
import struct
import subprocess
import unittest
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness import CTL, PACKAGE, Job, stub, wait_until
from ports import free_port, listens

STRANGER = 65533
# A title, a cleared screen, another line; and as UTF-8 a CSI of one byte and a turned direction.
ESCAPES = "rogue\x1b]0;PWNED\x07\x1b[2J\n\rE1128 fake line\x9b31m\u202e"
# All that steers a terminal, but the newline and the tab of our own lines.
CONTROLS = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


class Peer:
    """A node that speaks elastrun's protocol (elastrun-protocol(7)) and says what it likes."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        own = b"n" * 16
        self.socket.sendall(b"\xe5lastrun\x03" + own)
        self.session = own + self.take(25)[9:]
        self.number = 0

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def take(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = self.socket.recv(size - len(data))
            if not piece:
                raise EOFError("the coordinator has closed the connection")
            data += piece
        return data

    def say(self, **message: Any) -> None:
        payload = json.dumps(message).encode()
        place = b"C" + self.session + struct.pack("<Q", self.number)
        seal = hmac.digest(b"", place + payload, hashlib.sha256)
        self.number += 1
        self.socket.sendall(struct.pack("<I", len(payload)) + seal + payload)

    def hear(self) -> dict[str, Any]:
        size, = struct.unpack("<I", self.take(36)[:4])
        said: dict[str, Any] = json.loads(self.take(size))
        return said

    def hears(self, kind: str) -> dict[str, Any]:
        while (said := self.hear())["type"] != kind:
            pass
        return said


def member(**node: Any) -> dict[str, Any]:
    return {"node": {"id": "rogue_1_0", "instance": "i", "address": "127.0.0.1", "role": "default",
                     "workers": 1, "node_rank": -1, **node},
            "rules": {"min_nodes": 2, "max_nodes": 2, "join_timeout": 600}}


@contextlib.contextmanager
def agent(*words: str | Path, **more: Any) -> Iterator[tuple[Job, int]]:
    """The first node of a job, once it listens, and its port."""
    port = free_port()
    with Job("--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}",
             "--rdzv-id=exam", "--rdzv-conf=is_host=1", "--log-dir=logs", *words, **more) as job:
        wait_until(lambda: listens(port), "the coordinator listens", job.errors)
        yield job, port


class Strangers(unittest.TestCase):
    def check_shown(self, job: Job) -> str:
        """All that elastrun has written for people has no control character; with agent.log."""
        said = job.errors() + "".join(
            log.read_text(errors="replace") for log in job.folder.glob("logs/*/agent.log"))
        found = CONTROLS.search(said)
        self.assertIsNone(found, found and said[max(0, found.start() - 200):found.end() + 20])
        return said

    def check_unforged(self, job: Job) -> str:
        """Nor has a peer begun a line. A worker's own error may have several, as in torchrun."""
        said = self.check_shown(job)
        self.assertNotRegex(said, re.compile("^E1128 fake line", re.M))
        return said


class Peers(Strangers):
    def test_a_name_that_steers_a_terminal_does_not_join(self) -> None:
        with agent(*stub("exit=0"), env={"LOGLEVEL": "INFO"}) as (job, port):
            for hello, node in (({"host": ESCAPES}, {}), ({}, {"id": ESCAPES}),
                                ({}, {"id": "a" * 301}), ({}, {"address": ESCAPES})):
                with Peer(port) as peer:
                    peer.say(type="hello", run="exam", who="agent", **hello)
                    if node:
                        peer.hears("welcome")
                        peer.say(type="join", **member(**node))
                    self.assertIn("has members of the wrong kind", peer.hears("refuse")["text"])
            job.stopped()
            self.assertIn("refused 127.0.0.1: a message", self.check_unforged(job))

    def test_what_a_member_says_is_shown_on_one_line(self) -> None:
        with agent("--max-restarts=0", *stub("pid", "sleep=600"),
                   env={"LOGLEVEL": "DEBUG"}) as (job, port):
            with Peer(port) as peer:
                peer.say(type="hello", run="exam", who="agent", host="n7", user="ada")
                peer.hears("welcome")
                peer.say(type="join", **member(role=ESCAPES), topology=ESCAPES)
                number = peer.hears("round")["number"]
                peer.say(type="started", round=number)
                job.wait_for(r"\d+")
                peer.say(type="failed", round=number, goes_on=False, cause={
                    "kind": "worker_failed", "node": "rogue_1_0", "rank": 1, "exit_code": 1,
                    "text": ESCAPES, "fingerprint": ESCAPES, "rule": ESCAPES})
                peer.hears("done")
                peer.say(type="leaving", why=ESCAPES, ended=True)
                self.assertNotEqual(job.end(), 0)
            self.assertIn("rogue]0;PWNED[2JE1128 fake line31m", self.check_unforged(job))


class Garbage(Strangers):
    def test_it_is_counted_and_does_not_fill_the_log(self) -> None:
        for env in ({}, {"ELASTRUN_SECRET": "between us"}):
            with agent(*stub("exit=0"), env=env) as (job, port):
                for _ in range(300):
                    with socket.create_connection(("127.0.0.1", port)) as stranger:
                        stranger.sendall(b"\xff\x1b[2J garbage")
                wait_until(lambda: "(256 such lines so far)" in job.errors(), "it is counted",
                           job.errors)
                job.stopped()
                said = [line for line in self.check_shown(job).splitlines()
                        if "closed a connection" in line]
                self.assertEqual(len(set(said)), 20, said)  # the first 16, then 32, 64, 128, 256
                self.assertNotIn("::ffff:", job.errors())

    def test_so_is_a_port_that_can_take_no_more(self) -> None:
        few = functools.partial(resource.setrlimit, resource.RLIMIT_NOFILE, (64, 64))
        with agent(*stub("exit=0"), before=few) as (job, port):
            strangers = [socket.create_connection(("127.0.0.1", port)) for _ in range(80)]
            wait_until(lambda: "(32 such lines so far)" in job.errors(), "it is counted")
            said = job.errors()
            for stranger in strangers:
                stranger.close()
            job.stopped()
            self.assertLess(said.count("Too many open files"), 20)


class Workers(Strangers):
    def test_an_error_file_steers_no_terminal(self) -> None:
        worker = ("import json, os, sys\n"
                  f"said = {ESCAPES!r}\n"
                  "record = {'message': {'message': said, 'extraInfo': {\n"
                  "    'py_callstack': 'Traceback' + said + chr(10) + '  last',\n"
                  "    'timestamp': '5'}}}\n"
                  "if sys.argv[1] == 'flat': record = {'message': said}\n"
                  "text = said if sys.argv[1] == 'raw' else json.dumps(record)\n"
                  "open(os.environ['TORCHELASTIC_ERROR_FILE'], 'w').write(text)\n"
                  "sys.exit(1)\n")
        for form in ("torch", "flat", "raw"):
            with Job("--log-dir=logs", "--redirects=3", "worker.py", form,
                     files={"worker.py": worker, "own": json.dumps({"message": ESCAPES}) + ESCAPES},
                     env={"TORCHELASTIC_ERROR_FILE": "own"}).ended(1) as job:
                said = self.check_shown(job)
                self.assertIn("Root Cause", said)
                self.assertIn("was there already and is replaced. It held: ", said)
                if form != "raw":
                    self.assertIn("traceback : " + ("Traceback" if form == "torch" else "rogue"),
                                  said)

    def test_nor_does_what_a_worker_calls_things(self) -> None:
        worker = (f"said = {ESCAPES!r}\n"
                  "import socket, os\n"
                  "from elastrun import channel, metrics, phase\n"
                  "metrics.count_metric(said, 1, said)\n"
                  "channel.event(said, number=said)\n"
                  "phase(said)\n"
                  "with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as one:\n"
                  "    one.connect(os.environ['ELASTRUN_CHANNEL'])\n"
                  "    import json\n"
                  "    one.send(json.dumps({'kind': said}).encode())\n"
                  "    one.send(json.dumps({'kind': 'timer', 'id': 1, 'scope': said,\n"
                  "                         'deadline': 0.001}).encode())\n"
                  "    one.recv(1)\n")
        with Job("--log-dir=logs", "--redirects=3", "--goodput=agent", "--metrics=console",
                 "worker.py", files={"worker.py": worker},
                 env={"PYTHONPATH": PACKAGE, "LOGLEVEL": "DEBUG"}) as job:
            job.end()
            self.assertIn("has the unknown kind 'rogue]0;PWNED", self.check_shown(job))
            self.assertIsNone(CONTROLS.search(job.output()), job.output())


@unittest.skipUnless(os.geteuid() == 0, "only root can make files of other users")
class Files(Strangers):
    def test_no_link_of_another_user_is_written_through(self) -> None:
        for option in ("--metrics=jsonl:shared/x", "--metrics=trace:shared/x", "--report=shared/x",
                       "--metrics=prometheus:shared/x",
                       "--log-dir=shared/d", "--metrics=tensorboard:shared/d",
                       "--metrics=jsonl:shared/d/x", "--report=shared/d/x"):
            with Job("--report=report.json", option, *stub("exit=0"),
                     files={"precious": "precious\n"}, before=shared) as job:
                job.end()
                said = job.errors()
                self.assertRegex(said, "shared/[xd]: it belongs to user 65533", option)
                self.assertEqual((job.folder / "precious").read_text(), "precious\n", option)
                self.assertEqual(list((job.folder / "folder").iterdir()), [], option)


def shared() -> None:
    """In the job's folder, before it runs: a folder of everybody's with a stranger's link."""
    os.mkdir("shared")
    os.chmod("shared", 0o1777)
    os.mkdir("folder")
    for target, link in (("../precious", "shared/x"), ("../folder", "shared/d")):
        os.symlink(target, link)
        os.lchown(link, STRANGER, STRANGER)


@unittest.skipUnless(os.geteuid() == 0, "only root can make files of other users")
class Places(Strangers):
    def test_who_takes_the_place_of_runs_is_named_by_the_job_and_by_status(self) -> None:
        user = 60_000 + os.getpid() % 4096  # nobody has run anything as this one
        place = Path(f"/tmp/elastrun-{user}")
        place.mkdir(mode=0o700)
        self.addCleanup(place.rmdir)
        os.chown(place, STRANGER, STRANGER)
        why = f"{place} belongs to user {STRANGER}: have it removed, or set ELASTRUN_RUNTIME_DIR"

        def become() -> None:
            os.chmod(".", 0o777)
            os.chmod("tmp", 0o777)
            os.setresgid(user, user, user)
            os.setresuid(user, user, user)
        with Job("--no-python", "sleep", "600", before=become, env={"XDG_RUNTIME_DIR": ""}) as job:
            wait_until(lambda: "elastrunctl cannot find this run: " in job.errors(), "it is told",
                       job.errors)
            self.assertIn(why, job.errors())
            asked = subprocess.run([CTL, "status"], user=user, group=user, cwd="/",
                                   env={"PATH": os.environ["PATH"]}, capture_output=True, text=True,
                                   timeout=60, check=False)
            self.assertIn(f"runs may be missing: {why}", asked.stderr)


class Secrets(Strangers):
    def test_the_password_of_etcd_is_shown_nowhere(self) -> None:
        conf = "user=u, password=hunter2"
        words = ("--nnodes=2", "--rdzv-backend=etcd-v2", "--rdzv-endpoint=127.0.0.1:1")
        file = f"""[rendezvous]
backend = "etcd-v2"
endpoint = "127.0.0.1:1"
conf = {{ user = "u", password = "hunter2,3" }}
nnodes = "2"
[env]
PET_RDZV_CONF = "password=hunter2"
"""
        for asks in (["--dry-run", "--explain"], ["--dry-run"]):
            for given, env in (((*words, f"--rdzv-conf={conf}"), {}),
                               (words, {"PET_RDZV_CONF": conf}),
                               ((*words, f"--rdzv-conf={conf},rank"), {}),
                               ((*words, f"--rdzv-conf={conf},rank=,"), {}),
                               (("--config=job.toml",), {})):
                with Job(*asks, *given, *stub("exit=0"), files={"job.toml": file}, env=env) as job:
                    job.end()
                    self.assertNotIn("hunter2", job.output() + job.errors(), (asks, given, env))
        with Job("--dry-run", "--explain", *words, f"--rdzv-conf={conf}", *stub("exit=0")) as job:
            self.assertIn("password=***", job.output() if job.end() == 0 else job.errors())
