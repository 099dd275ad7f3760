# SPDX-License-Identifier: Apache-2.0
"""torch_test.py ELASTRUN: real trainings with gloo on this machine."""
from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from ports import free_port

ROOT = Path(__file__).resolve().parents[2]
ELASTRUN = str(Path(sys.argv[1]).resolve()) if len(sys.argv) > 1 else "elastrun"
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
# Knows nothing of us. Rank 1 crashes in step 12; it goes on from the checkpoint after step 9.
UNCHANGED = """
import os, time, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self):
        return 1000

    def __getitem__(self, index):
        time.sleep(0.005)
        return torch.full((4,), float(index % 7))

dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
step = 0
if os.path.exists("checkpoint.pt"):
    loaded = torch.load("checkpoint.pt")
    model.load_state_dict(loaded["model"])
    step = loaded["step"]
for batch in DataLoader(Slow(), batch_size=4):
    optimizer.zero_grad()
    model(batch).pow(2).mean().backward()
    time.sleep(0.05)
    optimizer.step()
    step += 1
    if step == 13 and dist.get_rank() == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        time.sleep(0.2)  # until rank 0 has told its last step
        os._exit(4)
    if step % 10 == 0 and dist.get_rank() == 0:
        time.sleep(0.01)
        torch.save({"model": model.state_dict(), "step": step}, "checkpoint.new")
        os.replace("checkpoint.new", "checkpoint.pt")
    if step == 30:
        break
dist.barrier()
dist.destroy_process_group()
"""


@unittest.skipUnless(importlib.util.find_spec("torch"), "python3 has no torch")
class TorchTest(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        (self.folder / "tmp").mkdir()

    def start(self, *words: object, **more: str) -> subprocess.Popen[str]:
        env = dict(os.environ, TMPDIR=str(self.folder / "tmp"), OMP_NUM_THREADS="1",
                   PYTHONDONTWRITEBYTECODE="1") | more
        job = subprocess.Popen([ELASTRUN, *map(str, words)], env=env, cwd=self.folder, text=True,
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE)
        self.addCleanup(job.kill)
        return job

    def run_job(self, *words: object, **more: str) -> subprocess.CompletedProcess[str]:
        job = self.start(*words, **more)
        said = job.communicate(timeout=400)
        return subprocess.CompletedProcess(job.args, job.returncode, *said)

    def test_the_ddp_example_survives_its_crash(self) -> None:
        done = self.run_job("--nproc-per-node", 2, "--max-restarts", 1,
                            ROOT / "config/examples/ddp/train.py")
        said = done.stdout + done.stderr
        self.assertEqual(done.returncode, 0, said)
        self.assertIn("RuntimeError: crash on purpose in epoch 4", said)
        # Where a person looks last: the other rank's traceback is longer than a screen.
        self.assertRegex(done.stderr, r"\nelastrun: succeeded after [^\n]*\n$")
        closing = done.stderr[done.stderr.index("elastrun: goodput "):]
        # With Gloo's threads about, torch's own exit may abort.
        self.assertRegex(closing, r"\n  restarted after .* s: rank 1 "
                                  r"(ended with exit code 1|was killed by SIGABRT) "
                                  r"\(RuntimeError: crash on purpose in epoch 4, step 875\)\n")
        self.assertIn("attempt 1: resume after epoch 3, step 750", done.stdout)
        losses = [float(n) for n in re.findall(r"epoch \d/8  loss (\S+)", done.stdout)]
        self.assertEqual(len(losses), 8, said)
        self.assertLess(losses[7], losses[0] / 10)
        self.assertIn("done: loss", done.stdout)
        left = [p.name for p in (self.folder / "tmp").iterdir()]
        # Torch makes the folder of its compiler's cache there, and keeps it for the next run.
        left = [name for name in left if not name.startswith("torchinductor_")]
        self.assertEqual(left, [], "left behind")

    def test_a_job_that_crashes_twenty_times_goes_on(self) -> None:
        script = self.folder / "often.py"
        script.write_text(CRASHES_OFTEN)
        # By exec each attempt imports torch again: some ten seconds of this test.
        for method, crashes in (("spawn", 4), ("forkserver", 20)):
            with self.subTest(method):
                done = self.run_job("--nproc-per-node", 2, "--max-restarts", crashes, "--log-dir",
                                    method, "--start-method", method, script, CRASHES=str(crashes))
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
                self.assertEqual(done.stdout, f"attempt {crashes} went through\n")
        log, = (self.folder / "forkserver").rglob("agent.log")
        # It may still be importing when the first attempts crash.
        self.assertGreater(log.read_text().count(" is forked, as process "), 2 * 10)

    def test_a_script_that_hangs_inside_expires_is_ended_with_its_stack_and_goes_on(self) -> None:
        script = self.folder / "hangs.py"
        script.write_text(HANGS_ONCE)
        done = self.run_job("--nproc-per-node", 2, "--max-restarts", 2, "--report", "report.json",
                            script, TORCHELASTIC_ENABLE_FILE_TIMER="1")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        for rank in range(2):
            self.assertIn(f"rank {rank} went through in attempt 2\n", done.stdout)
        report = json.loads((self.folder / "report.json").read_text())
        causes = [attempt["cause"]["text"] for attempt in report["attempts"][:2]]
        self.assertEqual(causes[0], "rank 1 was killed by SIGKILL: "
                                    "expired timer 'load the data' after 2.0 s")
        self.assertRegex(causes[1], r"rank 0 was killed by SIGKILL: "
                                    r"expired timer '.*contextlib.py#\d+' after [0-9.]+ s")
        for attempt in report["attempts"][:2]:
            timer, = attempt["expired_timers"]
            self.assertRegex(timer["stack"][0], r"main\): sleeping")
            self.assertIn(timer["stack"][0], done.stderr)

    def goodput_of(self, how: str) -> tuple[dict, str]:
        (self.folder / "train.py").write_text(UNCHANGED)
        (self.folder / "checkpoint.pt").unlink(missing_ok=True)
        done = self.run_job("--nproc-per-node=2", "--max-restarts=1", f"--goodput={how}",
                            "--report=report.json", "--log-dir", f"logs-{how}", "train.py")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        goodput = json.loads((self.folder / "report.json").read_text())["goodput"]
        if goodput is not None:
            self.assertAlmostEqual(sum(goodput["buckets_s"].values()), goodput["elapsed_s"],
                                   places=6)
        return goodput, done.stderr

    def test_an_unchanged_training_is_accounted_for(self) -> None:
        goodput, said = self.goodput_of("auto")
        self.assertEqual((goodput["restarts"], goodput["last_step"], goodput["last_checkpoint"],
                          goodput["loss_known"]), (1, 29, 29, True))
        seconds = goodput["buckets_s"]
        self.assertGreater(seconds["productive"], 28 * 0.05)
        self.assertGreater(seconds["data_loading"], 30 * 0.02)
        self.assertLess(seconds["data_loading"], 5)
        self.assertGreater(seconds["preparation"], 1)  # two imports of torch
        self.assertGreater(seconds["checkpoint"], 0)
        self.assertLess(seconds["checkpoint"], 2)
        # Steps 10 to 12 of 50 ms; that rank 0 waited for rank 1 is no step.
        self.assertGreater(seconds["lost"], 3 * 0.05)
        self.assertLess(seconds["lost"], 3)
        self.assertIn("  data_loading ", said)
        journal, = (self.folder / "logs-auto").glob("*/journal.jsonl")
        steps = [json.loads(line)["attributes"]["step_count"] for line in
                 journal.read_text().splitlines() if '"name":"step_end_time"' in line]
        self.assertEqual(sorted(set(steps)), list(range(30)))
        self.assertEqual(steps[-20:], list(range(10, 30)))

    def test_without_hooks_imports_and_initialisation_are_told_apart(self) -> None:
        goodput, _ = self.goodput_of("agent")
        seconds = goodput["buckets_s"]
        self.assertGreater(seconds["preparation"], 1)
        self.assertGreater(seconds["device_init"], 0)
        self.assertGreater(seconds["running"], 1)
        self.assertIsNone(goodput["last_step"])
        done = self.run_job("--goodput=off", "--report=report.json", "--max-restarts=1",
                            "--no-python", "sh", "-c", '[ "$TORCHELASTIC_RESTART_COUNT" = 1 ]')
        self.assertIsNone(json.loads((self.folder / "report.json").read_text())["goodput"])
        self.assertIn("elastrun: succeeded after", done.stderr)
        self.assertNotIn("goodput", done.stderr)

    def test_a_stop_leaves_the_workers_of_data_loaders_until_all_have_saved(self) -> None:
        (self.folder / "train.py").write_text(SAVES_WHEN_ASKED)
        # By the signal alone, and as a preemption of a script that never asks should_save().
        for options in (["--shutdown-timeout=300"],
                        ["--preempt-signals=SIGTERM", "--preempt-timeout=300"]):
            job = self.start("--nproc-per-node=2", *options, "train.py")
            for _ in range(2):
                self.assertRegex(job.stdout.readline(), "rank . trains")
            job.terminate()
            out, err = job.communicate(timeout=280)
            self.assertEqual(sorted(out.splitlines()), ["rank 0 saved", "rank 1 saved"], err)
            self.assertEqual(job.returncode == 75, len(options) == 2, err)

    def start_hanging(self, *options: str) -> list[subprocess.Popen[str]]:
        """Two agents with two workers each."""
        (self.folder / "train.py").write_text(SLEEPS_IN_ITS_LOADER)
        port = free_port()
        return [self.start("--nnodes=2", f"--node-rank={node}", "--nproc-per-node=2",
                           "--master-addr=127.0.0.1", f"--master-port={port}", "--hang-timeout=4",
                           f"--report=report{node}.json", *options, "train.py",
                           PYTHONPATH=str(ROOT / "lib/python")) for node in range(2)]

    def test_a_rank_that_sleeps_in_its_data_loader_is_the_odd_one_out(self) -> None:
        for how, code in (("report", 0), ("fail", 1)):
            with self.subTest(how=how):
                (self.folder / "go").unlink(missing_ok=True)
                agents = self.start_hanging(f"--on-hang={how}")
                told = ""
                while "Where they stand" not in told:
                    line = agents[0].stderr.readline()
                    self.assertTrue(line, told)
                    told += line
                (self.folder / "go").touch()
                ends = [agent.communicate(timeout=400) for agent in agents]
                self.assertEqual([agent.returncode for agent in agents], [code, code], ends)
                self.assertRegex(told, r"No worker of the job has made progress for \S+ m?s: "
                                       r"rank 3 hangs in DataLoader \(train.py:\d+\) while "
                                       r"ranks 0-2 wait in all_reduce \(train.py:\d+\)\n")
                report = json.loads((self.folder / "report0.json").read_text())
                hang = report["hangs"][0]
                self.assertEqual([group["ranks"] for group in hang["groups"]], [[0, 1, 2], [3]])
                self.assertEqual(hang["culprits"], [3])
                if how == "fail":
                    self.assertRegex(report["verdict"], "^rank 3 hangs in DataLoader")
                    self.assertEqual(report["culprit"]["rank"], 3)
