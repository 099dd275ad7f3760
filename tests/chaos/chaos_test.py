# SPDX-License-Identifier: Apache-2.0
"""chaos_test.py ELASTRUN: rounds of random kill -9, after which nothing of the job may be left.

Each round starts three workers, each with a grandchild in a session of its own and one that was
orphaned at once. Then workers, grandchildren, the agent or its guardian are killed, in any phase of
the run. Afterwards no process, no listening port and no temporary file of the round may exist.
ELASTRUN_CHAOS_ROUNDS (200) and ELASTRUN_CHAOS_SEED repeat a run; only processes of the round, known
by a variable in their environment, are ever signalled.
"""
from __future__ import annotations

import os
import random
import subprocess
import time
import unittest
from collections import Counter
from pathlib import Path

from harness import PROGRAM, Job, end_all, stat_of
from ports import listening, sockets_of

WORKERS, PROCESSES_OF_A_WORKER = 3, 3
LIMIT = 20.0  # seconds to be gone; how long it took is printed, so that a slow case is seen
SCRIPT = """
setsid sleep 1000 &
(sleep 1000 &)
exec sleep 1000
"""


def named(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        return f"{pid} ({b' '.join(words).decode(errors='replace').strip()})"
    except OSError:
        return f"{pid} (gone meanwhile)"


def same_program(pid: int) -> bool:
    try:
        return os.path.samefile(f"/proc/{pid}/exe", PROGRAM)
    except OSError:
        return False


class Round:
    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        self.job = Job(
            "--nproc-per-node", str(WORKERS), "--max-restarts", str(dice.randrange(3)),
            # What makes a session of its own at the moment of the stop has all of this time.
            "--shutdown-timeout=5", "--no-python", "sh", "worker.sh", files={"worker.sh": SCRIPT})
        self.launcher = self.job.process
        self.held: set[str] = set()

    def alive(self) -> dict[int, int]:
        """Processes of the round that are no zombies, each with its parent."""
        return {pid: int(stat[1]) for pid in self.job.alive() if (stat := stat_of(pid))}

    def wait_for_all(self) -> None:
        until = time.monotonic() + LIMIT
        while time.monotonic() < until and self.launcher.poll() is None:
            if len(self.alive()) >= WORKERS * PROCESSES_OF_A_WORKER + 2:
                return
            time.sleep(0.002)

    def victim(self) -> tuple[str, int]:
        """Somebody, chosen by kind first, so that each kind is met equally often."""
        found = self.alive()
        self.held = self.held.union(*map(sockets_of, found))
        guardian = self.launcher.pid
        # Without its guardian the agent is a child of somebody else, but still runs the program.
        agents = [p for p, parent in found.items() if parent == guardian or
                  (parent not in found and p != guardian and same_program(p))]
        workers = [p for p, parent in found.items() if parent in agents]
        rest = [p for p in found if p not in (guardian, *agents, *workers)]
        kinds = {"guardian": [guardian] if guardian in found else [], "agent": agents[:1],
                 "worker": workers, "grandchild": rest}
        kind = self.dice.choice([k for k, pids in kinds.items() if pids] or ["nobody"])
        return kind, self.dice.choice(kinds.get(kind) or [0])

    def play(self) -> list[str]:
        """Kills until the launcher is at its end; says whom."""
        if self.dice.random() < 0.7:
            self.wait_for_all()
        else:
            time.sleep(self.dice.random() * 0.01)
        killed: list[str] = []
        for _ in range(self.dice.randint(1, 3)):
            kind, pid = self.victim()
            # With the agent and the guardian both gone at once, nobody is left to clean up.
            if pid == 0 or {kind, *killed} >= {"agent", "guardian"}:
                continue
            end_all([pid])
            killed.append(kind)
            time.sleep(self.dice.random() * 0.02)
        if not {"agent", "guardian"} & set(killed):
            self.launcher.terminate()
        return killed

    def left(self) -> list[str]:
        """What is still there, as sentences."""
        found = [f"process {named(pid)}" for pid in self.alive()]
        found += [f"listening {one}" for one in self.held & listening().keys()]
        try:
            return found + [f"file {path}" for path in self.job.temporary.rglob("*")]
        except FileNotFoundError:  # a folder went while it was read
            return [*found, "a file that goes"]

    def check(self) -> tuple[list[str], float]:
        start = time.monotonic()
        try:
            self.launcher.wait(LIMIT)
        except subprocess.TimeoutExpired:
            return ["the launcher has not ended", *self.left()], LIMIT
        while (found := self.left()) and time.monotonic() - start < LIMIT:
            time.sleep(0.005)
        return found, time.monotonic() - start

    def close(self) -> str:
        while found := self.alive():
            end_all(found)
            time.sleep(0.01)
        said = self.job.errors()[-2000:]
        self.job.__exit__()
        return said


class Chaos(unittest.TestCase):
    def test_nothing_of_a_round_is_left(self) -> None:
        rounds = int(os.environ.get("ELASTRUN_CHAOS_ROUNDS", "200"))
        seed = int(os.environ.get("ELASTRUN_CHAOS_SEED", str(random.randrange(10**9))))
        print(f"seed {seed}, {rounds} rounds", flush=True)
        dice, victims, slowest, bad = random.Random(seed), Counter(), 0.0, 0
        for number in range(rounds):
            one = Round(dice)
            killed = one.play()
            found, took = one.check()
            said = one.close()
            victims.update(killed)
            slowest = max(slowest, took)
            if found:
                bad += 1
                print(f"round {number}: killed {killed}; left after {took:.1f} s:")
                print("\n".join(f"  {line}" for line in found) + f"\n  stderr: {said}", flush=True)
        print(f"killed: {dict(victims)}; the slowest clean-up took {slowest * 1000:.0f} ms")
        self.assertEqual(bad, 0)
        self.assertTrue(victims)
