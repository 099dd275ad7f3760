# SPDX-License-Identifier: Apache-2.0
"""torch_test.py ELASTRUN: real trainings with gloo on this machine."""
from __future__ import annotations

import importlib.util
import re
import unittest
from pathlib import Path
from typing import Any

import harness
from harness import PACKAGE, Job
from ports import free_port

harness.LIMIT = 400.0
ROOT = Path(__file__).resolve().parents[2]
# Each attempt opens connections, so a store that remembers the last attempt's addresses fails here.
CRASHES_OFTEN = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
one = torch.ones(1)
dist.all_reduce(one)
assert one.item() == 2, one
if attempt < int(os.environ["CRASHES"]) and dist.get_rank() == 1:
    os._exit(4)
dist.barrier()
if dist.get_rank() == 0:
    print("attempt", attempt, "went through", flush=True)
dist.destroy_process_group()
"""
# As torch's documents show it. The outer timer is disarmed by the inner one's end with torch.
HANGS_ONCE = """
import os, time
from torch.distributed.elastic import timer
timer.configure(timer.FileTimerClient(os.environ["TORCHELASTIC_TIMER_FILE"]))
rank, attempt = (int(os.environ[name]) for name in ("RANK", "TORCHELASTIC_RESTART_COUNT"))
with timer.expires(after=600):
    with timer.expires(after=2, scope="load the data"):
        if (rank, attempt) == (1, 0):
            time.sleep(600)
with timer.expires(after=2):
    with timer.expires(after=1):
        pass
    if (rank, attempt) == (0, 1):
        time.sleep(600)
print("rank", rank, "went through in attempt", attempt, flush=True)
"""
# What every tutorial shows: the signal sets a flag, and the next step saves.
SAVES_WHEN_ASKED = """
import os, pathlib, signal, sys, torch
from torch.utils.data import DataLoader, Dataset

class Numbers(Dataset):
    def __len__(self):
        return 10**9

    def __getitem__(self, index):
        return torch.ones(4)

asked = False
def ask(number, frame):
    global asked
    asked = True
signal.signal(signal.SIGTERM, ask)
rank = os.environ["RANK"]
for step, batch in enumerate(DataLoader(Numbers(), batch_size=2, num_workers=2)):
    if step == 3:
        print("rank", rank, "trains", flush=True)
    if asked and step > 3:
        torch.save({"step": step}, f"checkpoint{rank}")
        print("rank", rank, "saved", flush=True)
        break
"""
# Rank 3 sleeps in its data loader; the others wait for it.
SLEEPS_IN_ITS_LOADER = """
import elastrun
elastrun.phase("startup")
import os, time, torch, torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

class Numbers(Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, index):
        if dist.get_rank() == 3 and index == 8:
            while not os.path.exists("go"):
                time.sleep(0.1)
        return torch.ones(4)

dist.init_process_group("gloo")
dist.barrier()
elastrun.phase("train")
for step, batch in enumerate(DataLoader(Numbers(), batch_size=2)):
    dist.all_reduce(batch)
    elastrun.step(step)
print("rank", dist.get_rank(), "went through", flush=True)
dist.destroy_process_group()
"""


@unittest.skipUnless(importlib.util.find_spec("torch"), "python3 has no torch")
class TorchTest(unittest.TestCase):
    def start(self, *words: object, script: str = "", **env: str) -> Job:
        """A job whose train.py is this script."""
        return self.enterContext(Job(*map(str, words), files={"train.py": script}, env=env))

    def test_the_ddp_example_survives_its_crash(self) -> None:
        job = self.start("--nproc-per-node=2", "--max-restarts=1",
                         ROOT / "config/examples/ddp/train.py").ended()
        out, err = job.output(), job.errors()
        self.assertIn("RuntimeError: crash on purpose in epoch 4", out + err)
        # Where a person looks last: the other rank's traceback is longer than a screen.
        self.assertRegex(err, r"\nelastrun: succeeded after [^\n]*\n$")
        # With Gloo's threads about, torch's own exit may abort.
        self.assertRegex(err[err.index("elastrun: goodput "):],
                         r"\n  restarted after .* s: rank 1 "
                         r"(ended with exit code 1|was killed by SIGABRT) "
                         r"\(RuntimeError: crash on purpose in epoch 4, step 875\)\n")
        self.assertIn("attempt 1: resume after epoch 3, step 750", out)
        losses = [float(n) for n in re.findall(r"epoch \d/8  loss (\S+)", out)]
        self.assertEqual(len(losses), 8, out)
        self.assertLess(losses[7], losses[0] / 10)
        self.assertIn("done: loss", out)
        # Torch makes the folder of its compiler's cache there, and keeps it for the next run.
        self.assertEqual([path.name for path in job.temporary.iterdir()
                          if not path.name.startswith("torchinductor_")], [], "left behind")

    def test_a_job_that_crashes_twenty_times_goes_on(self) -> None:
        # By exec each attempt imports torch again: some ten seconds of this test.
        for method, crashes in (("spawn", 4), ("forkserver", 20)):
            with self.subTest(method):
                job = self.start("--nproc-per-node=2", f"--max-restarts={crashes}",
                                 "--log-dir=logs", f"--start-method={method}", "train.py",
                                 script=CRASHES_OFTEN, CRASHES=str(crashes)).ended()
                self.assertEqual(job.output(), f"attempt {crashes} went through\n")
        log, = (job.folder / "logs").rglob("agent.log")
        # It may still be importing when the first attempts crash.
        self.assertGreater(log.read_text().count(" is forked, as process "), 2 * 10)

    def test_a_script_that_hangs_inside_expires_is_ended_with_its_stack_and_goes_on(self) -> None:
        job = self.start("--nproc-per-node=2", "--max-restarts=2", "--report=report.json",
                         "train.py", script=HANGS_ONCE, TORCHELASTIC_ENABLE_FILE_TIMER="1").ended()
        for rank in range(2):
            self.assertIn(f"rank {rank} went through in attempt 2\n", job.output())
        attempts = job.report()["attempts"][:2]
        causes = [attempt["cause"]["text"] for attempt in attempts]
        self.assertEqual(causes[0], "rank 1 was killed by SIGKILL: "
                                    "expired timer 'load the data' after 2.0 s")
        self.assertRegex(causes[1], r"rank 0 was killed by SIGKILL: "
                                    r"expired timer '.*contextlib.py#\d+' after [0-9.]+ s")
        for attempt in attempts:
            timer, = attempt["expired_timers"]
            self.assertRegex(timer["stack"][0], r"main\): sleeping")
            self.assertIn(timer["stack"][0], job.errors())

    def test_without_hooks_imports_and_initialisation_are_told_apart(self) -> None:
        job = self.start("--goodput=agent", "--nproc-per-node=2", "--max-restarts=2",
                         "--report=report.json", Path(__file__).with_name("measured_ddp.py"),
                         "0.03").ended()
        goodput: dict[str, Any] = job.report()["goodput"]
        seconds = goodput["buckets_s"]
        self.assertAlmostEqual(sum(seconds.values()), goodput["elapsed_s"], places=6)
        self.assertGreater(seconds["preparation"], 1)  # three imports of torch
        self.assertGreater(seconds["device_init"], 0)
        self.assertGreater(seconds["running"], 1)
        self.assertIsNone(goodput["last_step"])
        job = self.start("--goodput=off", "--report=report.json", "--max-restarts=1",
                         "--no-python", "sh", "-c",
                         '[ "$TORCHELASTIC_RESTART_COUNT" = 1 ]').ended()
        self.assertIsNone(job.report()["goodput"])
        self.assertIn("elastrun: succeeded after", job.errors())
        self.assertNotIn("goodput", job.errors())

    def test_a_stop_leaves_the_workers_of_data_loaders_until_all_have_saved(self) -> None:
        # By the signal alone, and as a preemption of a script that never asks should_save().
        for options, code in ((["--shutdown-timeout=300"], 1),
                              (["--preempt-signals=SIGTERM", "--preempt-timeout=300"], 75)):
            job = self.start("--nproc-per-node=2", *options, "train.py", script=SAVES_WHEN_ASKED)
            job.wait_for("rank . trains", 2)
            job.stopped(code)
            self.assertEqual(sorted(job.lines("rank . saved")), ["rank 0 saved", "rank 1 saved"])

    def hanging(self, *options: str) -> list[Job]:
        """Two agents with two workers each."""
        port = free_port()
        return [self.start("--nnodes=2", f"--node-rank={node}", "--nproc-per-node=2",
                           "--master-addr=127.0.0.1", f"--master-port={port}", "--hang-timeout=4",
                           "--report=report.json", *options, "train.py",
                           script=SLEEPS_IN_ITS_LOADER, PYTHONPATH=PACKAGE) for node in range(2)]

    def test_a_rank_that_sleeps_in_its_data_loader_is_the_odd_one_out(self) -> None:
        for how, code in (("report", 0), ("fail", 1)):
            with self.subTest(how=how):
                agents = self.hanging(f"--on-hang={how}")
                agents[0].wait_for("Where they stand", path=agents[0].err)
                told = agents[0].errors()
                for job in agents:
                    (job.folder / "go").touch()
                for job in agents:
                    self.assertEqual(job.end(), code, job.errors())
                self.assertRegex(told, r"No worker of the job has made progress for \S+ m?s: "
                                       r"rank 3 hangs in DataLoader \(train.py:\d+\) while "
                                       r"ranks 0-2 wait in all_reduce \(train.py:\d+\)\n")
                report = agents[0].report()
                hang = report["hangs"][0]
                self.assertEqual([group["ranks"] for group in hang["groups"]], [[0, 1, 2], [3]])
                self.assertEqual(hang["culprits"], [3])
                if how == "fail":
                    self.assertRegex(report["verdict"], "^rank 3 hangs in DataLoader")
                    self.assertEqual(report["culprit"]["rank"], 3)
