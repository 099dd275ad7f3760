# SPDX-License-Identifier: Apache-2.0
"""Three nodes train, one is killed, another joins, etcd restarts; the job ends as if nothing was.

    python3 config/examples/elastic/demo.py path/to/elastrun

Needs torch in this Python and `etcd` in PATH (Debian: etcd-server). Each "node" is one agent on
this machine. What happens next is decided by the steps the training has reached, never by the
clock. The last lines compare the job with an undisturbed one; exit 0 only if both came to the same
step count with the loss still falling.
"""
from __future__ import annotations

import json
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).resolve().parent
STEPS = 400
LIMIT = 240.0  # seconds for each wait: a training that stands still ends the demonstration


def free_ports(count: int) -> list[int]:
    """Below those that Linux gives to other connections before our programs have taken them."""
    ports: list[int] = []
    while len(ports) < count:
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port := random.randrange(10000, 29000)))
                ports += [port] * (port not in ports)
            except OSError:
                continue
    return ports


class Etcd:
    """One etcd member with its data in a folder, so that it can be stopped and started again."""

    def __init__(self, folder: Path) -> None:
        client, peer = free_ports(2)
        self.endpoint = f"127.0.0.1:{client}"
        self._log = (folder / "etcd.log").open("ab")
        self._command = [
            "etcd", "--data-dir", str(folder / "etcd"),
            "--listen-client-urls", f"http://{self.endpoint}",
            "--advertise-client-urls", f"http://{self.endpoint}",
            "--listen-peer-urls", f"http://127.0.0.1:{peer}",
            "--initial-advertise-peer-urls", f"http://127.0.0.1:{peer}",
            "--initial-cluster", f"default=http://127.0.0.1:{peer}",
        ]
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, stdout=self._log, stderr=self._log)

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait()


class Job:
    """One training in a separate folder, with as many agents as were started."""

    def __init__(self, elastrun: str, folder: Path, endpoint: str, run_id: str) -> None:
        self.folder = folder / run_id
        self.folder.mkdir()
        self.agents: list[subprocess.Popen[bytes]] = []
        self._started = 0
        self._command = [
            elastrun, "--nnodes", "2:4", "--rdzv-backend", "etcd", "--rdzv-endpoint", endpoint,
            "--rdzv-id", run_id, "--rdzv-conf", "last_call_timeout=2", "--max-restarts", "3",
            "--local-addr", "127.0.0.1", "--log-dir", str(self.folder / "logs"),
            str(HERE / "train.py"), "--folder", str(self.folder), "--steps", str(STEPS),
        ]

    def start_agent(self) -> subprocess.Popen[bytes]:
        # Workers get the Python that runs this, not the first one in PATH, which may have no torch.
        env = dict(os.environ, PYTHON_EXEC=sys.executable)
        with (self.folder / f"agent{self._started}.log").open("wb") as log:
            agent = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=log,
                                     stderr=log, env=env)
        self._started += 1
        self.agents.append(agent)
        return agent

    def history(self, kind: str) -> list[dict[str, float]]:
        path = self.folder / "history.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [fact for fact in map(json.loads, lines) if fact["kind"] == kind]

    def step(self) -> int:
        return int(max((fact["step"] for fact in self.history("checkpoint")), default=0))

    def world(self) -> int:
        starts = self.history("start")
        return int(starts[-1]["world"]) if starts else 0

    def kill_agent(self) -> None:
        victim = self.agents.pop()
        victim.kill()
        victim.wait()

    def why_over(self) -> str:
        """Why nothing more can be expected; empty as long as agents work and none has failed."""
        codes = [agent.poll() for agent in self.agents]
        for code in codes:
            if code not in (None, 0):
                return f"an agent ended with exit code {code}"
        return "" if None in codes else "all agents have ended"

    def end(self) -> None:
        """Ends whatever agents are left, when the demonstration could not be finished."""
        for agent in self.agents:
            if agent.poll() is None:
                agent.kill()
                agent.wait()


def say(text: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}] {text}", flush=True)


def await_(what: str, reached: Callable[[], bool], job: Job) -> None:
    end = time.monotonic() + LIMIT
    while not reached():
        why = job.why_over()
        if why and not reached() or time.monotonic() > end:
            for log in sorted(job.folder.glob("agent*.log")):
                print(f"--- {log.name}\n{log.read_text(errors='replace')[-3000:]}", file=sys.stderr)
            why = why or f"{LIMIT:.0f} s are over"
            raise SystemExit(f"demo: {why}, while it waited until {what}; its output is above")
        time.sleep(0.05)


def ended(job: Job) -> None:
    await_("all agents ended", lambda: all(a.poll() == 0 for a in job.agents), job)


def undisturbed(job: Job) -> None:
    for _ in range(3):
        job.start_agent()
    ended(job)


def disturbed(job: Job, etcd: Etcd) -> None:
    for _ in range(3):
        job.start_agent()
    await_("three nodes trained", lambda: job.world() == 3 and job.step() >= 50, job)
    say(f"step {job.step()}, 3 nodes: SIGKILL to one agent")
    job.kill_agent()
    await_("two nodes went on", lambda: job.world() == 2 and job.step() >= 120, job)
    say(f"step {job.step()}, 2 nodes: another agent joins")
    job.start_agent()
    await_("three nodes trained again", lambda: job.world() == 3 and job.step() >= 200, job)
    say(f"step {job.step()}, 3 nodes: etcd is stopped")
    etcd.stop()
    before = job.step()
    await_("training went on without etcd", lambda: job.step() > before, job)
    say(f"step {job.step()}: training goes on without etcd, which is started again")
    etcd.start()
    ended(job)


def verdict(name: str, job: Job) -> tuple[bool, int]:
    losses = [fact["loss"] for fact in job.history("checkpoint")]
    codes = [agent.returncode for agent in job.agents]
    falling = sum(losses[-5:]) < sum(losses[:5])
    say(f"{name}: step {job.step()}, loss {losses[0]:.4f} -> {losses[-1]:.4f}, exit codes {codes}, "
        f"{len(job.history('start'))} starts")
    return falling and codes == [0] * len(codes), job.step()


def obstacle(elastrun: str) -> str:
    """What is missing here, and how to get it; empty if nothing is."""
    if not os.access(elastrun, os.X_OK):
        return f"{elastrun} cannot be run; scripts/quickstart builds build/release/apps/elastrun"
    if not find_spec("torch"):
        return (f"{sys.executable} has no torch; run this by a Python that has it, such as the "
                ".venv/bin/python3 of scripts/quickstart")
    if not shutil.which("etcd"):
        return "etcd is not in PATH (Debian: apt-get install etcd-server)"
    return ""


def main() -> int:
    if len(sys.argv) != 2 or sys.argv[1] in ("-h", "--help"):
        wrong = len(sys.argv) != 2
        print(__doc__, file=sys.stderr if wrong else sys.stdout)
        return 2 if wrong else 0
    elastrun = str(Path(sys.argv[1]).resolve())
    missing = obstacle(elastrun)
    if missing:
        print(f"demo: error: {missing}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="elastic-demo-") as name:
        folder = Path(name)
        etcd = Etcd(folder)
        jobs = [Job(elastrun, folder, etcd.endpoint, name) for name in ("undisturbed", "disturbed")]
        try:
            say("an undisturbed job of three nodes")
            undisturbed(jobs[0])
            say("the same job, disturbed")
            disturbed(jobs[1], etcd)
        finally:
            for job in jobs:
                job.end()
            etcd.stop()
        well, steps = verdict("undisturbed", jobs[0])
        well_too, steps_too = verdict("disturbed", jobs[1])
    same = steps == steps_too == STEPS
    good = well and well_too and same
    say("the same steps, the loss still falling, exit 0" if good else "FAILED")
    return 0 if well and well_too and same else 1


if __name__ == "__main__":
    sys.exit(main())
