# SPDX-License-Identifier: Apache-2.0
"""Trainers and generators in one job, of which one role restarts alone:
roles_test.py ELASTRUN STUB_WORKER."""
from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path

from harness import Job, lives, stub, wait_until
from jobs_test import INFO, Elastic
from ports import free_port

OWN = "--role-restart=generator=own"
SAY = ["pid", "env=RANK", "env=MASTER_PORT", "env=TORCHELASTIC_RESTART_COUNT"]
FILE = '[restart]\nmax_restarts = 3\n\n[role.generator]\nrestart = "own"\n'
# Rank 1 fails once, in a process group of its role alone; a key of then must not be seen again.
GENERATE = """\
import os, sys
import torch, torch.distributed as dist
rank, attempt = int(os.environ["ROLE_RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
dist.init_process_group("gloo", rank=rank, world_size=int(os.environ["ROLE_WORLD_SIZE"]))
total = torch.ones(1)
dist.all_reduce(total)
store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), None, False)
print(f"{rank} of attempt {attempt}: {int(total)} {store.add(f'starts of {rank}', 1)}", flush=True)
if attempt == 0 and rank == 1:
    sys.exit(5)
dist.barrier()
"""


def python_with_torch() -> str | None:
    if importlib.util.find_spec("torch"):
        return sys.executable
    ours = Path(__file__).resolve().parents[2] / ".venv" / "bin" / "python3"
    return str(ours) if ours.exists() else None


class Roles(Elastic):
    def of_role(self, role: str, *words: str, files: dict[str, str] | None = None,
                env: dict[str, str] | None = None) -> Job:
        return self.stack.enter_context(Job(
            *self.where, "--nnodes=2", "--rdzv-id=job", "--nproc-per-node=1", f"--role={role}",
            "--report=report.json", "--log-dir=logs",
            "--rdzv-conf=keep_alive_interval=1,keep_alive_max_attempt=5", *words,
            env=INFO | (env or {}), files=files))

    def pair(self, *options: str, trainer: list[str], generator: list[str],
             files: dict[str, str] | None = None) -> tuple[Job, Job]:
        first = self.listening(self.of_role("trainer", *options, *stub(*trainer), files=files))
        return first, self.of_role("generator", *options, *stub(*generator), files=files)

    def reports(self, *jobs: Job) -> list[dict]:
        return [json.loads(next(job.folder.glob("report*.json")).read_text()) for job in jobs]

    def records(self, job: Job, name: str) -> list[dict]:
        try:
            return [one for one in job.records() if one["name"] == name]
        except ValueError:  # the journal is not there yet, or ends in half a line
            return []

    def test_generators_that_fail_leave_the_trainers_alone(self) -> None:
        trainer, generator = self.pair(
            "--config=job.toml", trainer=[*SAY, f"wait={self.go}"],
            generator=[*SAY, "attempt=0", "exit=3", "all", "attempt=1", "die=ABRT", "all",
                       f"wait={self.go}"], files={"job.toml": FILE})
        generator.wait_for(r"^TORCHELASTIC_RESTART_COUNT=2")
        wait_until(lambda: trainer.errors().count("Going on;") == 2, "the trainers hear of both",
                   trainer.errors)
        pid = int(trainer.lines(r"^pid (\d+)")[0])
        self.assertTrue(lives(pid))
        self.go_on(trainer, generator)
        self.assertEqual(trainer.lines(r"^pid (\d+)"), [str(pid)])
        self.assertEqual(self.attempts(trainer), ["0"])
        self.assertEqual(self.attempts(generator), ["0", "1", "2"])
        self.assertEqual(len(set(generator.lines(r"^RANK=(\d)"))), 1)
        self.assertNotEqual(generator.lines(r"^RANK=(\d)")[0], trainer.lines(r"^RANK=(\d)")[0])
        ports = generator.lines(r"^MASTER_PORT=(\d+)")  # none is that of an attempt before
        self.assertEqual(len({*ports, *trainer.lines(r"^MASTER_PORT=(\d+)")}), 4)
        ours, theirs = self.reports(trainer, generator)
        self.assertEqual([one["restarts"] for one in (ours, theirs)], [2, 2])
        self.assertEqual([one["role"] for one in ours["role_restarts"]], ["generator"] * 2)
        self.assertEqual([one["round"] for one in theirs["attempts"]], [1, 1, 1])
        self.assertEqual(len(ours["attempts"]), 1)
        self.assertLess(ours["goodput"]["buckets_s"]["restart"], 1e-9)
        for job, name in ((trainer, "role.restart"), (generator, "restart")):
            self.assertEqual([one["attributes"]["role"] for one in self.records(job, name)],
                             ["generator"] * 2)
        self.assertRegex(trainer.errors(), "2 of 3 restarts used")

    def test_the_budget_is_the_jobs(self) -> None:
        jobs = self.pair(OWN, "--max-restarts=1", trainer=[*SAY, f"wait={self.go}"],
                         generator=[*SAY, "exit=3"])
        self.all_end(*jobs, code=1)
        self.assertEqual(self.attempts(jobs[1]), ["0", "1"])
        self.assertEqual(self.attempts(jobs[0]), ["0"])

    def test_a_trainer_that_fails_restarts_all(self) -> None:
        trainer, generator = self.pair(
            OWN, "--max-restarts=3",
            trainer=[*SAY, "attempt=0", f"wait={self.folder}/crash", "exit=4", "all",
                     f"wait={self.go}"],
            generator=[*SAY, "attempt=0", "exit=3", "all", f"wait={self.go}"])
        generator.wait_for(r"^TORCHELASTIC_RESTART_COUNT=1")
        (self.folder / "crash").touch()
        for job in (trainer, generator):
            job.wait_for(r"^TORCHELASTIC_RESTART_COUNT=2")
        self.go_on(trainer, generator)
        self.assertEqual(self.attempts(trainer), ["0", "2"])
        rounds = [one["round"] for one in self.reports(generator)[0]["attempts"]]
        self.assertEqual(rounds, [1, 1, 2])

    def test_trainers_that_have_finished_wait_for_generators(self) -> None:
        trainer, generator = self.pair(
            OWN, "--max-restarts=1", trainer=SAY,
            generator=[*SAY, "attempt=0", f"wait={self.go}", "exit=3"])
        wait_until(lambda: any(one["attributes"]["phase"] == "barrier"
                               for one in self.records(trainer, "phase")), "the trainer waits")
        self.go_on(trainer, generator)
        self.assertEqual(self.attempts(generator), ["0", "1"])
        self.assertEqual(len(trainer.lines(r"^pid")), 1)

    def test_ranks_of_a_role_meet_again(self) -> None:
        python = python_with_torch()
        if python is None:
            self.skipTest("no torch here")
        trainer = self.listening(self.of_role("trainer", OWN, "--max-restarts=1",
                                              *stub(*SAY, f"wait={self.go}")))
        generator = self.of_role("generator", OWN, "--max-restarts=1", "--nproc-per-node=2",
                                 "generate.py", files={"generate.py": GENERATE},
                                 env={"PYTHON_EXEC": python})
        generator.wait_for(r"^\d of attempt 1", 2)
        self.go_on(trainer, generator)
        self.assertEqual(sorted(generator.lines(r"^(\d of attempt .*)")),
                         [f"{rank} of attempt {attempt}: 2 1" for rank in (0, 1)
                          for attempt in (0, 1)])

    def test_mistakes(self) -> None:
        for words, said in (
                (["--role-restart=generator"], "does not say whom a role restarts"),
                (["--role-restart=generator=alone"], "generator=alone.*\n.*expected ROLE=own"),
                ([OWN, "--rdzv-backend=static"], "needs another rendezvous than static")):
            with self.subTest(words), self.of_role("trainer", *words,
                                                   *stub("exit=0")).ended(2) as job:
                self.assertRegex(job.errors(), said)
        for text, said in (('[role.a]\nrestart = "x"', r"job.toml:2:\d+: role.a.restart is .*own"),
                           ('[role.a]\nstart = "own"', r"job.toml:2:\d+: unknown key 'start'"),
                           ("[role]\na = 1", r"job.toml:2:\d+: role.a is 1; .*\[role.a\]")):
            with self.subTest(text), self.of_role("trainer", "--config=job.toml", *stub("exit=0"),
                                                files={"job.toml": text}).ended(2) as job:
                self.assertRegex(job.errors(), said)

    def test_agents_that_do_not_fit(self) -> None:
        jobs = self.pair("--role-restart=generators=own", trainer=SAY, generator=SAY)
        self.all_end(*jobs, code=2)
        for job in jobs:
            self.assertIn("no agent of this job has that role, only generator, trainer",
                          job.errors())
        self.where[1] = f"--rdzv-endpoint=127.0.0.1:{free_port()}"
        host = self.listening(self.of_role("trainer", OWN, *stub(f"wait={self.go}")))
        other = self.of_role("generator", *stub("exit=0"))
        self.all_end(other, code=2)
        self.assertTrue(re.search("these roles restart alone: generator.*no role restarts alone",
                                  other.errors()), other.errors())
        third = self.of_role("generator", OWN, *stub("exit=0"))
        self.go_on(host, third)
