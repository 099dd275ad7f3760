# SPDX-License-Identifier: Apache-2.0
"""clients_test.py ELASTRUN [--all] [unittest's arguments]: released programs that launch by torch's
launcher, unmodified, in an environment with the import hook. The table in elastrun-clients(7) is
what these show. Without --all those that train for a minute or more are skipped; a client that the
python3 of this test does not have is skipped by name.

Workers say the id of the agent that runs them, ELASTRUN_JOB, which only elastrun's have.
"""
from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import textwrap
import unittest
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
from ports import free_port

PROGRAM = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else Path("elastrun")
ALL = "--all" in sys.argv
BASE = Path(sysconfig.get_path("purelib"))
LIMIT = 300
PLAIN = {name: value for name, value in os.environ.items()
         if not name.startswith(("PYTHON", "PET_", "ELASTRUN_", "ACCELERATE_", "LT_", "VIRTUAL_"))}
WORKER = """
import os, sys
e = os.environ
words = ["worker", e["RANK"], "of", e["WORLD_SIZE"], "job" if e.get("ELASTRUN_JOB") else "torch"]
sys.stdout.write(" ".join(words + sys.argv[1:]) + "\\n")  # in one write: two may mingle
sys.stdout.flush()
if "fail" in sys.argv and e["RANK"] == "1":
    sys.exit(3)
"""
SUM = """
    import torch, torch.distributed as dist
    dist.init_process_group("gloo")
    total = torch.tensor([dist.get_rank() + 1.0])
    dist.all_reduce(total)
"""


def needs(*modules: str) -> object:
    missing = [one for one in modules if importlib.util.find_spec(one) is None]
    return unittest.skipIf(missing, f"not installed here: {', '.join(missing)}")


def long(what: str) -> object:
    return unittest.skipUnless(ALL, f"{what}; --all runs it")


@needs("torch")
class Clients(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        scratch = cls.enterClassContext(tempfile.TemporaryDirectory(prefix="clients."))
        cls.folder = Path(scratch).resolve()
        cls.place = cls.folder / "env"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", cls.place], check=True)
        [packages] = cls.place.glob("lib/python*/site-packages")
        (packages / "clients.pth").write_text(
            f"import site; site.addsitedir({str(BASE)!r})\n{ROOT / 'lib/python'}\n")
        shutil.copy(PROGRAM, cls.place / "bin/elastrun")
        (cls.folder / "worker.py").write_text(WORKER)
        done = cls.python("-m", "elastrun.install_torchrun")
        assert done.returncode == 0, done.stderr

    @classmethod
    def start(cls, *words: object, **env: str) -> subprocess.Popen[str]:
        environment = PLAIN | {
            "PATH": f"{cls.place / 'bin'}:{PLAIN['PATH']}", "HOME": str(cls.folder),
            "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONDONTWRITEBYTECODE": "1",
            "TMPDIR": str(cls.folder), "CUDA_VISIBLE_DEVICES": "", **env}
        return subprocess.Popen([str(one) for one in words], text=True, cwd=cls.folder,
                                env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    @classmethod
    def run_words(cls, *words: object, **env: str) -> subprocess.CompletedProcess[str]:
        process = cls.start(*words, **env)
        out, err = process.communicate(timeout=LIMIT)
        return subprocess.CompletedProcess(words, process.returncode, out, err)

    @classmethod
    def python(cls, *words: object, **env: str) -> subprocess.CompletedProcess[str]:
        return cls.run_words(cls.place / "bin/python3", *words, **env)

    def command(self, module: str, function: str = "main") -> tuple[str, str]:
        """What the script that pip writes for an entry point does."""
        return "-c", f"import sys; from {module} import {function}; sys.exit({function}())"

    def check(self, done: subprocess.CompletedProcess[str], world: int, *more: str,
              ranks: range | None = None) -> None:
        self.assertEqual(done.returncode, 0, done.stderr[-3000:])
        told = " ".join(["job", *more])
        self.assertEqual(sorted(line for line in done.stdout.splitlines() if "worker" in line),
                         [f"worker {rank} of {world} {told}" for rank in ranks or range(world)],
                         done.stderr[-3000:])
        self.assertEqual(done.stderr.count("elastrun: launches in place of"), 1,
                         done.stderr[-3000:])


@needs("accelerate")
class Accelerate(Clients):
    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        (cls.place / "bin/accelerate").write_text(ACCELERATE)

    def launch(self, *words: object) -> tuple[str, ...]:
        return (str(self.place / "bin/accelerate"), "launch", *map(str, words))

    CONFIG = """
        compute_environment: LOCAL_MACHINE
        distributed_type: MULTI_GPU
        mixed_precision: 'no'
        num_machines: 1
        num_processes: 2
        use_cpu: false
        """

    def test_accelerate_launch_with_a_config_file(self) -> None:
        (self.folder / "two.yaml").write_text(textwrap.dedent(self.CONFIG))
        self.check(self.python(*self.launch("--config_file", "two.yaml", "worker.py", "--lr", "1")),
                   2, "--lr 1")

    def test_accelerate_launch_tells_a_failure_as_ever(self) -> None:
        done = self.python(*self.launch("--multi_gpu", "--num_processes=2", "worker.py", "fail"))
        self.assertEqual(done.returncode, 1)
        self.assertIn("torch.distributed.elastic.multiprocessing.errors.ChildFailedError",
                      done.stderr)
        self.assertRegex(done.stderr, r"exitcode  : 3 \(pid: \d+\)")

    def test_the_launch_command_alone_says_what_the_whole_command_says(self) -> None:
        done = self.python("-c", LAUNCH_ALONE)
        self.assertEqual(done.returncode, 0, done.stderr[-3000:])
        self.assertEqual(done.stdout, "equal 0\nequal 2\nequal 2\nequal ValueError\n")

    @long("two machines take two launchers")
    def test_accelerate_launch_on_two_machines(self) -> None:
        words = ("--multi_gpu", "--num_machines=2", "--num_processes=4",
                 "--main_process_ip=127.0.0.1", f"--main_process_port={free_port()}")
        nodes = [self.start(self.place / "bin/python3",
                            *self.launch(*words, f"--machine_rank={rank}", "worker.py"))
                 for rank in (0, 1)]
        for rank, node in enumerate(nodes):
            out, err = node.communicate(timeout=LIMIT)
            self.check(subprocess.CompletedProcess((), node.returncode, out, err), 4,
                       ranks=range(2 * rank, 2 * rank + 2))

    @long("it trains")
    def test_accelerate_notebook_launcher(self) -> None:
        script = self.folder / "cell.py"
        script.write_text(f"import os\nfrom accelerate import notebook_launcher\n"
                          f"def train(lr):\n{SUM}    os.write(1, f'worker {{dist.get_rank()}} "
                          "{total.item()} {lr} {\"ELASTRUN_JOB\" in os.environ}\\n'.encode())\n"
                          "notebook_launcher(train, (0.5,), num_processes=2)\n")
        done = self.python(script, ACCELERATE_USE_CPU="1")
        self.assertEqual(done.returncode, 0, done.stderr[-3000:])
        self.assertEqual(sorted(one for one in done.stdout.splitlines() if "worker" in one),
                         [f"worker {rank} 3.0 0.5 True" for rank in (0, 1)], done.stderr[-3000:])


# The script that pip writes for the command, and one process for what takes two each time.
ACCELERATE = """
import re
import sys
from accelerate.commands.accelerate_cli import main
if __name__ == '__main__':
    sys.argv[0] = re.sub(r'(-script\\.pyw|\\.exe)?$', '', sys.argv[0])
    sys.exit(main())
"""
LAUNCH_ALONE = """
import contextlib, importlib, io, os, sys
NAME = "accelerate.commands.accelerate_cli"

def said(words, switch):
    os.environ["ELASTRUN_TORCHRUN"] = switch
    sys.modules.pop(NAME, None)
    sys.argv = ["/bin/accelerate", "launch", *words]
    out, err, end = io.StringIO(), io.StringIO(), None
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            importlib.import_module(NAME).main()
        except SystemExit as error:
            end = error.code
        except Exception as error:
            end = f"{type(error).__name__} {error}"
    return out.getvalue(), err.getvalue(), end

CASES = (["--help"], [], ["--no-such-option", "train.py"],
         ["--cpu", "--multi_gpu", "--num_processes=2", "train.py"])
alone = [said(words, "1") for words in CASES]
assert "accelerate.commands.estimate" not in sys.modules
for words, one in zip(CASES, alone):
    whole = said(words, "0")
    assert "accelerate.commands.estimate" in sys.modules
    print("equal" if one == whole else (one, whole), str(one[2]).split()[0])
"""


class Torch(Clients):
    def test_the_module_becomes_elastrun(self) -> None:
        done = self.python("-m", "torch.distributed.run", "--nproc-per-node=2", "worker.py", "x")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(sorted(done.stdout.splitlines()),
                         [f"worker {rank} of 2 job x" for rank in (0, 1)])

    def test_functions_errors_and_signals_are_torchs(self) -> None:
        script = self.folder / "launcher.py"
        script.write_text(LAUNCHER)
        process = self.start(self.place / "bin/python3", script)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.stderr.close)
        for line in process.stdout:
            if line.startswith("sleeping"):
                process.send_signal(signal.SIGTERM)
            if line.startswith(("returned", "failed", "signal")):
                with self.subTest(line.split()[0]):
                    self.assertIn(line.strip(), EXPECTED)
                    EXPECTED.remove(line.strip())
        self.assertEqual(process.wait(timeout=LIMIT), 0, process.stderr.read()[-3000:])
        self.assertEqual(EXPECTED, [])
        self.assertEqual((self.folder / "kept.txt").read_text(), "whole")

    def test_a_fork_has_what_the_program_has(self) -> None:
        """And no other import of torch: its random numbers go on from where the program was."""
        script = self.folder / "forks.py"
        script.write_text(FORKS)
        done = self.python(script)
        self.assertEqual(done.returncode, 0, done.stderr[-3000:])
        self.assertIn("{0: ([3.0, 3.0], True, True), 1: ([3.0, 3.0], True, True)}\n", done.stdout)
        self.assertEqual(done.stderr.count("elastrun: launches in place of"), 1, done.stderr)
        self.assertNotIn("without forks", done.stderr)

    def test_a_port_that_is_taken_is_told_as_by_torch(self) -> None:
        (self.folder / "taken.py").write_text(TAKEN)
        ours, theirs = (self.python("taken.py", ELASTRUN_TORCHRUN=one) for one in "10")
        self.assertEqual(ours.stdout, theirs.stdout, ours.stderr[-3000:])
        self.assertEqual(theirs.stdout, "True True\nRendezvousConnectionError\n")

    def test_a_program_that_is_not_there_is_told_as_by_torch(self) -> None:
        text = ("from torch.distributed.launcher.api import LaunchConfig, elastic_launch\n"
                "config = LaunchConfig(min_nodes=1, max_nodes=1, nproc_per_node=1, run_id='one',\n"
                "                      rdzv_backend='c10d', rdzv_endpoint='localhost:0')\n"
                "try:\n    elastic_launch(config, 'no-such-program')()\n"
                "except FileNotFoundError as error:\n    print(error)\n")
        ours, theirs = (self.python("-c", text, ELASTRUN_TORCHRUN=one) for one in "10")
        self.assertIn("elastrun: launches in place of", ours.stderr)
        self.assertEqual(ours.stdout, theirs.stdout, ours.stderr[-3000:])
        self.assertIn("no-such-program", ours.stdout)

    def test_what_cannot_be_pickled_is_torchs(self) -> None:
        script = self.folder / "local.py"
        script.write_text(NOT_PICKLED)
        done = self.python(script)
        self.assertEqual(done.returncode, 0, done.stderr[-3000:])
        self.assertIn("{0: 7}", done.stdout)
        self.assertIn("elastrun: torch's own launcher runs: ", done.stderr)
        self.assertIn("; this process has 2 threads (prefetch), whose locks", done.stderr)


TAKEN = """
import socket
from torch.distributed.launcher.api import LaunchConfig, elastic_launch
def tell(nodes, backend, show, **conf):
    with socket.create_server(("127.0.0.1", 0)) as other:
        try:
            elastic_launch(LaunchConfig(
                min_nodes=nodes, max_nodes=nodes, nproc_per_node=1, run_id="x", max_restarts=0,
                rdzv_backend=backend, rdzv_endpoint=f"127.0.0.1:{other.getsockname()[1]}",
                rdzv_configs={"read_timeout": 3, "join_timeout": 5, **conf}), "true")()
        except Exception as error:
            print(*show(error))
# DistNetworkError, or in older releases its base alone.
tell(1, "static", lambda error: [isinstance(error, RuntimeError),
                                 "address already in use" in str(error).lower()], rank=0)
tell(2, "c10d", lambda error: [type(error).__name__], is_host="1")
"""
LAUNCHER = """
import os, signal, sys, time
from torch.distributed.launcher.api import LaunchConfig, elastic_launch
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

class Kept:
    def __init__(self):
        self.itself, self.file = self, open("kept.txt", "w")
        self.file.write("whole")

    def __del__(self):  # in a cycle: by the last garbage collection
        self.file.close()

def work(factor):
    return factor * int(os.environ["RANK"]), "ELASTRUN_JOB" in os.environ

def config(**more):
    return LaunchConfig(min_nodes=1, max_nodes=1, nproc_per_node=2, rdzv_backend="c10d",
                        rdzv_endpoint="localhost:0", run_id="one", max_restarts=0, **more)

if __name__ == "__main__":
    print("returned", elastic_launch(config(), work)(10), flush=True)
    try:
        elastic_launch(config(), sys.executable)("-u", "worker.py", "fail")
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        print("failed", error.name, rank, failure.local_rank, failure.exitcode, flush=True)
    try:
        elastic_launch(config(), "sh")("-c", "echo sleeping; exec sleep 300")
    except SignalException as error:
        print("signal", error.sigval.name, flush=True)
    kept = Kept()
"""
FORKS = """
import os, threading, torch, torch.distributed as dist
from torch.distributed.launcher.api import LaunchConfig, elastic_launch
LOCK, SEED = threading.Lock(), torch.initial_seed()

def main(here):
    def work():
        dist.init_process_group("gloo")
        mine = torch.ones(2) * (int(os.environ["RANK"]) + 1)
        dist.all_reduce(mine)
        dist.destroy_process_group()
        return mine.tolist(), torch.initial_seed() == SEED, LOCK is here
    print(elastic_launch(LaunchConfig(
        min_nodes=1, max_nodes=1, nproc_per_node=2, rdzv_backend="c10d", run_id="one",
        rdzv_endpoint="localhost:0", start_method="fork", max_restarts=0), work)())
main(LOCK)
"""
EXPECTED = ["returned {0: (0, True), 1: (10, True)}", "failed worker.py 1 1 3", "signal SIGTERM"]
NOT_PICKLED = """
from torch.distributed.launcher.api import LaunchConfig, elastic_launch
import threading
LOCK = threading.Lock()
local = lambda: 7
threading.Thread(target=threading.Event().wait, name="prefetch", daemon=True).start()
print(elastic_launch(LaunchConfig(
    min_nodes=1, max_nodes=1, nproc_per_node=1, rdzv_backend="c10d", rdzv_endpoint="localhost:0",
    run_id="one", start_method="fork", max_restarts=0), lambda: LOCK and local())())
"""


@needs("lightning")
class Lightning(Clients):
    def test_fabric_run(self) -> None:
        self.check(self.python(*self.command("lightning.fabric.cli", "_main"), "run",
                               "--accelerator=cpu", "--devices=2", "worker.py", "x"), 2, "x")

    @long("it trains")
    def test_the_trainer_of_lightning(self) -> None:
        (self.folder / "fit.py").write_text(TRAINER)
        done = self.run_words(self.place / "bin/torchrun", "--nproc-per-node=2", "fit.py")
        self.assertEqual(done.returncode, 0, done.stderr[-3000:])
        self.assertIn("TorchElasticEnvironment 2 4", done.stdout)


TRAINER = """
import lightning as L, torch, os
from lightning.pytorch.demos.boring_classes import BoringModel
trainer = L.Trainer(accelerator="cpu", devices=2, strategy="ddp", max_steps=4, logger=False,
                    enable_checkpointing=False, enable_progress_bar=False)
trainer.fit(BoringModel())
environment = type(trainer.strategy.cluster_environment).__name__
if trainer.global_rank == 0:
    print(environment, trainer.world_size, trainer.global_step)
"""


@needs("transformers", "accelerate")
class Transformers(Clients):
    @long("it trains")
    def test_the_trainer_of_transformers(self) -> None:
        (self.folder / "hf.py").write_text(HF)
        done = self.run_words(self.place / "bin/torchrun", "--nproc-per-node=2", "hf.py")
        self.assertEqual(done.returncode, 0, done.stderr[-3000:])
        self.assertIn("trained 2 3", done.stdout)


HF = """
import torch
from transformers import Trainer, TrainingArguments
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(1, 1)
    def forward(self, x, labels):
        out = self.linear(x)
        return {"loss": ((out - labels) ** 2).mean(), "logits": out}
data = [{"x": torch.ones(1), "labels": torch.ones(1)} for _ in range(64)]
args = TrainingArguments("out", max_steps=3, use_cpu=True, report_to=[], save_strategy="no",
                         per_device_train_batch_size=4)
trainer = Trainer(Model(), args, train_dataset=data)
trainer.train()
if trainer.is_world_process_zero():
    print("trained", args.world_size, trainer.state.global_step)
"""


@needs("torchx")
class Torchx(Clients):
    @long("two agents, four workers")
    def test_ddp_of_the_local_scheduler(self) -> None:
        done = self.python("-m", "torchx.cli.main", "run",
                           "--scheduler=local_cwd", "--wait", "--scheduler_args",
                           f"log_dir={self.folder / 'torchx'}", "dist.ddp", "-j", "2x2",
                           "--script", "worker.py")
        self.assertEqual(done.returncode, 0, done.stderr[-3000:])
        said = done.stdout + done.stderr
        for path in (self.folder / "torchx").rglob("std*.log"):
            said += path.read_text()
        for rank in range(4):
            self.assertIn(f"worker {rank} of 4 job", said)


@needs("ray", "pandas", "pyarrow", "cloudpickle")
class Ray(Clients):
    @long("it starts a cluster")
    def test_a_task_of_ray_train_that_launches(self) -> None:
        (self.folder / "task.py").write_text(RAY)
        done = self.python("task.py", RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="0",
                           RAY_USAGE_STATS_ENABLED="0", RAY_AUTH_MODE="disabled")
        self.assertEqual(done.returncode, 0, done.stderr[-3000:])
        self.assertIn("returned {0: (0, True), 1: (10, True)}", done.stdout + done.stderr)


RAY = """
import os, ray
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer
def work(factor):
    return factor * int(os.environ["RANK"]), "ELASTRUN_JOB" in os.environ
def task():
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch
    config = LaunchConfig(min_nodes=1, max_nodes=1, nproc_per_node=2, rdzv_backend="c10d",
                          rdzv_endpoint="localhost:0", run_id="one", max_restarts=0,
                          start_method="fork")
    print("returned", elastic_launch(config, work)(10), flush=True)
ray.init(num_cpus=3, include_dashboard=False)
TorchTrainer(task, scaling_config=ScalingConfig(num_workers=1)).fit()
"""


@needs("kubeflow", "pip")
class Kubeflow(Clients):
    def wheel(self) -> Path:
        """elastrun as pip installs it, without a compiler: the program and its package."""
        path = self.folder / "elastrun-0.1.0-py3-none-any.whl"
        info = "elastrun-0.1.0.dist-info"
        package = ROOT / "lib/python"
        files = {f"{info}/METADATA": b"Metadata-Version: 2.1\nName: elastrun\nVersion: 0.1.0\n",
                 f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
                 "elastrun-0.1.0.data/scripts/elastrun": PROGRAM.read_bytes()}
        files |= {str(one.relative_to(package)): one.read_bytes()
                  for one in (package / "elastrun").rglob("*.py")}
        files[f"{info}/RECORD"] = "".join(f"{name},,\n" for name in files).encode()
        with zipfile.ZipFile(path, "w") as archive:
            for name, text in files.items():
                archive.writestr(name, text)
        return path

    def torch_alone(self) -> Path:
        """A folder with what is installed beside torch, without pip, which the environment gets;
        should it not, the one that it finds in PATH must not install into what others use."""
        (self.place / "bin/pip").write_text("#!/bin/sh\nexit 9\n")
        (self.place / "bin/pip").chmod(0o755)
        folder = self.folder / "torch"
        folder.mkdir()
        for one in Path(importlib.util.find_spec("torch").origin).parents[1].iterdir():
            if not one.name.startswith(("pip", "elastrun")):
                (folder / one.name).symlink_to(one)
        return folder

    @long("it makes an environment with pip")
    def test_the_local_backend(self) -> None:
        (self.folder / "job.py").write_text(KUBEFLOW)
        index = subprocess.run([sys.executable, "-m", "pip", "config", "get", "global.index-url"],
                               text=True, capture_output=True).stdout.strip()
        # Its environment gets torch from ours, and elastrun as `pip install elastrun[torchrun]`.
        done = self.python("job.py", index or "https://pypi.org/simple", self.torch_alone(),
                           f"elastrun @ {self.wheel().as_uri()}",
                           f"elastrun-torchrun @ {(ROOT / 'cmake/torchrun').as_uri()}")
        self.assertEqual(done.returncode, 0, done.stdout[-3000:] + done.stderr[-3000:])
        for rank in (0, 1):
            self.assertIn(f"worker {rank} of 2 sum 3.0 job True", done.stdout)
        self.assertIn("Complete", done.stdout.splitlines()[-1])


KUBEFLOW = """
import os, sys
from kubeflow.trainer import CustomTrainer, LocalProcessBackendConfig, TrainerClient
def train():
    import os, torch, torch.distributed as dist
    dist.init_process_group("gloo")
    total = torch.tensor([dist.get_rank() + 1.0])
    dist.all_reduce(total)
    os.write(1, f"worker {dist.get_rank()} of {dist.get_world_size()} sum {total.item()} "
                f"job {'ELASTRUN_JOB' in os.environ}\\n".encode())
index, torch, *packages = sys.argv[1:]
client = TrainerClient(backend_config=LocalProcessBackendConfig())
name = client.train(runtime="torch-distributed", trainer=CustomTrainer(
    func=train, packages_to_install=packages, pip_index_urls=[index],
    env=dict(os.environ, PYTHONPATH=torch, PET_NPROC_PER_NODE="2")))
job = client.wait_for_job_status(name, status={"Complete", "Failed"}, timeout=280)
print("".join(client.get_job_logs(name)))
print(job.status)
"""
