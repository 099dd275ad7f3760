# SPDX-License-Identifier: Apache-2.0
"""goodput_agents_test.py ELASTRUN ELASTRUNCTL: journals of several agents are the account of one
job. Every wait is for an end, a line or a file, never for time."""
from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from programs import CTL, ELASTRUN, ENVIRONMENT, LIBRARY, LIMIT, Programs

# Steps 1 to 4; then rank 0 fails, or waits for the death of its agent. The next start goes on at 3.
TRAINER = """
import os, sys, time, elastrun
again = os.environ["TORCHELASTIC_RESTART_COUNT"] != "0" or os.environ["WORLD_SIZE"] == "1"
first = os.environ["RANK"] == "0" and not again
for step in range(3 if again else 1, 7 if again else 5):
    time.sleep(0.05)
    elastrun.step(step)
    if step == 2: elastrun.checkpoint_done(2)
    if step == 4 and first: elastrun.event("four")
if first and "WAIT" in os.environ:
    while True: time.sleep(1)
sys.exit(7 if first else 0)
"""


class Agents(Programs):
    def setUp(self) -> None:
        super().setUp()
        self.environment = ENVIRONMENT | LIBRARY
        (self.folder / "train.py").write_text(TRAINER)
        self.store = self.start(CTL, "store", "--listen", "127.0.0.1:0", stderr=subprocess.DEVNULL)
        self.port = self.store.stdout.readline().rsplit(":", 1)[1].strip()

    def agent(self, name: str, nodes: str, **env: str) -> subprocess.Popen[str]:
        return self.start(
            ELASTRUN, f"--nnodes={nodes}", "--rdzv-backend=c10d", "--rdzv-id=night",
            f"--rdzv-endpoint=127.0.0.1:{self.port}", "--max-restarts=1", f"--log-dir={name}",
            "--rdzv-conf=is_host=0,last_call_timeout=1", "train.py", env=env,
            stdout=None, stderr=subprocess.DEVNULL)

    def journals(self) -> list[Path]:
        """That of the agent with rank 0 first."""
        found = list(self.folder.glob("*/night_*/journal.jsonl"))
        leads = {path: '"group_rank":0' in path.read_text() for path in found}
        return sorted(found, key=lambda path: (not leads[path], path))

    def records(self, journal: Path) -> list[dict]:
        whole = journal.read_text().rpartition("\n")[0]  # the last line may be half written
        return [json.loads(line) for line in whole.splitlines()]

    def await_records(self, are_there: Callable[[list[dict]], bool]) -> None:
        """Until some journal has them."""
        end = time.monotonic() + LIMIT
        while not any(are_there(self.records(path)) for path in self.journals()):
            self.assertLess(time.monotonic(), end)
            time.sleep(0.02)

    def signal(self, journal: Path, number: signal.Signals) -> None:
        (started,) = [one for one in self.records(journal) if one["name"] == "job.started"]
        os.kill(started["attributes"]["pid"], number)

    def are_alike(self, one: dict, other: dict) -> None:
        """All but what the first of two agents does before the other one begins."""
        for known in ("submissions", "restarts", "last_step", "last_checkpoint", "misplaced"):
            self.assertEqual(one[known], other[known], known)
        for bucket, seconds in one["buckets_s"].items():
            self.assertAlmostEqual(seconds, other["buckets_s"][bucket], delta=0.3, msg=bucket)

    def test_two_journals_are_one_job(self) -> None:
        agents = [self.agent(name, "2") for name in ("a", "b")]
        self.assertEqual([agent.wait(LIMIT) for agent in agents], [0, 0])
        journals = self.journals()
        both, alone = self.account(*journals), self.account(journals[0])
        self.assertEqual(both["submissions"], 1)
        self.assertEqual((both["agents"]["journals"], alone["agents"]["journals"]), (2, 1))
        self.are_alike(both, alone)
        text = self.goodput("report", *journals).stdout
        self.assertIn(", from 2 agents by their wall clocks", text)
        self.assertEqual(self.account(*reversed(journals))["buckets_s"], both["buckets_s"])
        for journal in journals:  # the first line of either one is torn: one record is missing
            whole = journal.read_text()
            journal.write_text(whole[40:])
            torn = self.account(*journals)
            self.assertEqual((torn["submissions"], torn["agents"]["journals"]), (1, 2))
            self.assertAlmostEqual(torn["buckets_s"]["productive"],
                                   both["buckets_s"]["productive"], places=6)
            journal.write_text(whole)

    def test_a_spare_that_was_never_needed_changes_nothing(self) -> None:
        (self.folder / "train.py").write_text(
            "import elastrun, os, time\n"
            "elastrun.step(1)\n"
            "elastrun.event('four')\n"
            "while not os.path.exists('go'): time.sleep(0.05)\n"
            "elastrun.step(2)\n")
        member = self.agent("a", "1")
        self.await_records(lambda records: any(one["name"] == "four" for one in records))
        spare = self.agent("b", "1")
        while len(self.journals()) < 2:
            time.sleep(0.02)
        (self.folder / "go").touch()
        self.assertEqual([member.wait(LIMIT), spare.wait(LIMIT)], [0, 0])
        member_tells, spare_tells = self.journals()
        both, alone = self.account(spare_tells, member_tells), self.account(member_tells)
        self.assertEqual(both["agents"]["journals"], 2)
        self.are_alike(both, alone)

    def test_where_the_agent_of_rank_0_dies_the_next_one_goes_on(self) -> None:
        agents = [self.agent(name, "1:2", WAIT="") for name in ("a", "b")]
        self.await_records(lambda records: any(one["name"] == "four" for one in records))
        first, second = self.journals()
        self.signal(first, signal.SIGKILL)
        codes = {agent.wait(LIMIT) for agent in agents}
        self.assertEqual(len(codes), 2, codes)
        self.assertIn(0, codes)
        account = self.account(second, first)
        self.assertEqual((account["submissions"], account["restarts"], account["last_step"]),
                         (1, 1, 6))
        self.assertEqual([(one["first_step"], one["last_step"])
                          for one in account["goodput_attempts"]], [(1, 4), (3, 6)])
        self.assertEqual(account["agents"]["journals"], 2)
        self.assertGreater(account["buckets_s"]["lost"], 0.09)  # steps 3 and 4
        self.assertGreater(account["elapsed_s"], self.account(first)["elapsed_s"])

    def test_where_the_agent_of_rank_0_leaves_the_other_one_waits_for_a_round(self) -> None:
        agents = [self.agent(name, "2", WAIT="") for name in ("a", "b")]
        self.await_records(lambda records: any(one["name"] == "four" for one in records))
        first, second = self.journals()
        self.signal(first, signal.SIGTERM)
        joins = {"phase": "joining"}
        self.await_records(
            lambda records: [one.get("attributes") for one in records].count(joins) == 2)
        self.await_records(lambda records: any(one["name"] == "job.ended" for one in records))
        time.sleep(1)  # the other one waits for longer than the clocks of both may differ
        self.signal(second, signal.SIGTERM)
        for agent in agents:
            agent.wait(LIMIT)
        account, alone = self.account(second, first), self.account(first)
        self.assertGreater(account["elapsed_s"], alone["elapsed_s"])
        self.assertGreater(account["buckets_s"]["rendezvous"], alone["buckets_s"]["rendezvous"])
        (restart,) = account["restart_waterfall"]
        self.assertIn("left", restart["cause"])
