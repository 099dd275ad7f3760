# SPDX-License-Identifier: Apache-2.0
"""--goodput auto in a worker: scripts that know nothing of it, with a real torch."""
from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import unittest
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
from agent_end import PACKAGE, AgentEnd  # noqa: E402
from torch_runs import Runner  # noqa: E402

MODEL = """
import os, sys, time, torch
model = torch.nn.Linear(4, 1)
def one(optimizer):
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""


class Auto(AgentEnd):
    with_torch = Runner()

    @classmethod
    def tearDownClass(cls) -> None:
        cls.with_torch.close()

    def setUp(self) -> None:
        super().setUp()
        (self.folder / "attempt_0" / "0").mkdir(parents=True)

    def run_script(self, script: str, fresh: bool = False,
                   **env: str) -> subprocess.CompletedProcess[str]:
        """`fresh`: in a new interpreter, which imports torch after us; others have it already."""
        (self.folder / "train.py").write_text(script)
        kept = {k: v for k, v in os.environ.items() if not k.startswith("ELASTRUN_")}
        kept |= {"PYTHONPATH": f"{PACKAGE}/elastrun/start:{PACKAGE}", "RANK": "0",
                 "ELASTRUN_CHANNEL": self.listener.path, "ELASTRUN_GOODPUT": "auto",
                 "ELASTRUN_RUN_DIR": f"{self.folder}/attempt_0/0", "PYTHONDONTWRITEBYTECODE": "1",
                 "PYTHONWARNINGS": "ignore"} | env
        if fresh:
            done = subprocess.run([sys.executable, "train.py"], env=kept, cwd=self.folder,
                                  text=True, capture_output=True, timeout=550)
        else:
            done = self.with_torch.run(self.folder / "train.py", kept)
        self.assertEqual((done.stderr, done.returncode), ("", 0))
        return done

    def said(self) -> list[dict[str, Any]]:
        """What one process has told of goodput and checkpoints, in order."""
        entries: list[dict[str, Any]] = []
        for message in [one for connection in self.listener.packets() for one in connection]:
            if message["kind"] == "goodput":
                entries += message["entries"]
            elif message["kind"] not in ("from", "phase"):
                entries.append(message)
        return entries

    def names(self, entries: list[dict[str, object]]) -> list[str]:
        return [str(one.get("kind") or next(key for key in one if key.endswith("_time")))
                for one in entries]

    def checkpoints(self, said: list[dict[str, object]]) -> list[object]:
        return [one["step"] for one in said if one.get("kind") == "checkpoint"]

    def told(self, script: str, **more: Any) -> list[dict[str, Any]]:
        """The same, of a run of this script."""
        self.run_script(script, **more)
        return self.said()

    def steps(self, of: str | list[dict[str, Any]], **more: Any) -> list[int]:
        """The steps that were told, or those of a run of this script."""
        said = self.told(of, **more) if isinstance(of, str) else of
        return [one["step_count"] for one in said if "step_end_time" in one]

    def test_the_sitecustomize_that_is_hidden_runs_and_nothing_else_changes(self) -> None:
        other = self.folder / "other"
        other.mkdir()
        (other / "sitecustomize.py").write_text("import builtins\nbuiltins.mine = 7\n")
        path = f"{PACKAGE}/elastrun/start:{other}:{PACKAGE}"
        script = ("import sys\nprint(mine, 'torch' in sys.modules, sys.modules['sitecustomize']"
                  ".__file__, [one for one in sys.path if one.endswith('start')])\n")
        done = self.run_script(script, fresh=True, PYTHONPATH=path)
        self.assertEqual(done.stdout, f"7 False {other}/sitecustomize.py []\n")
        script = "import sys\nprint('elastrun' in sys.modules, hasattr(sys, 'x'))\n"
        without = self.run_script(script, fresh=True, ELASTRUN_GOODPUT="").stdout
        self.assertEqual(without.split()[1], "False")
        (other / "sitecustomize.py").write_text("import nothing_of_that_name\n")
        (self.folder / "train.py").write_text("print('goes on')\n")
        done2 = subprocess.run([sys.executable, "train.py"], cwd=self.folder, text=True,
                               capture_output=True, timeout=60,
                               env=dict(os.environ, PYTHONPATH=path, ELASTRUN_GOODPUT="auto"))
        self.assertIn("goes on", done2.stdout)
        self.assertIn("nothing_of_that_name", done2.stderr)  # as without us

    def test_only_the_worker_itself_is_watched(self) -> None:
        self.assertEqual(self.steps(MODEL + """
import subprocess
if len(sys.argv) == 1:
    subprocess.run([sys.executable, __file__, "child"], check=True)
    if os.fork() == 0:
        one(torch.optim.SGD(model.parameters(), lr=0.1))
        os._exit(0)
    os.wait()
one(torch.optim.SGD(model.parameters(), lr=0.1))
""", fresh=True), [0])

    def test_a_forked_child_tells_nothing_at_its_end(self) -> None:
        self.assertEqual(self.steps(MODEL + """
one(optimizer)  # which is kept back, until it is known who tells of steps
if os.fork() == 0: sys.exit(0)
os.wait()
one(optimizer)
"""), [0, 1])

    def test_a_training_is_told_as_it_is(self) -> None:
        said = self.told(MODEL + """
from torch.utils.data import DataLoader, Dataset
class Slow(Dataset):
    def __len__(self): return 4
    def __getitem__(self, index):
        time.sleep(0.02)
        return torch.ones(4)
torch.save(torch.ones(3), "tensor.pt")     # no checkpoint, and before the first step
for batch in DataLoader(Slow(), batch_size=1):
    for _ in range(3): model(batch).sum().backward()   # gradients of three batches
    optimizer.step()
torch.save({"model": model.state_dict()}, "checkpoint.tmp")
os.replace("checkpoint.tmp", "checkpoint.pt")
import io
torch.save({"a": 1}, io.BytesIO())         # nothing that lasts
for batch in DataLoader([torch.ones(4)] * 50, batch_size=1): optimizer.step()   # fast
""", fresh=True)
        names = self.names(said)
        first = names.index("step_end_time")
        self.assertEqual(names[:first + 1], [
            "checkpoint_save_start_time", "checkpoint_save_end_time",
            "data_loading_start_time", "data_loading_end_time",  # the iterator
            "data_loading_start_time", "data_loading_end_time", "training_prep_start_time",
            "training_prep_end_time", "step_end_time"][-first - 1:])
        self.assertEqual(names.count("checkpoint_save_start_time"), 2)
        self.assertEqual(self.checkpoints(said), [3])
        self.assertEqual(self.steps(said), list(range(54)))
        times = [next(value for key, value in one.items() if "time" in key)
                 for one in said if "kind" not in one]
        self.assertEqual(times, sorted(times))
        fast = names[names.index("checkpoint"):]
        self.assertLess(fast.count("data_loading_start_time"), 25)

    def test_a_step_is_counted_once_and_a_skipped_one_is_none(self) -> None:
        self.assertEqual(self.steps(MODEL + """
first = torch.optim.SGD(model.parameters(), lr=0.1)
second = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(5):
    one(first), one(second)
scaler = torch.amp.GradScaler("cpu", enabled=True)
for factor in (1.0, float("inf"), 1.0):
    first.zero_grad()
    scaler.scale(model(torch.ones(2, 4)).sum() * factor).backward()
    scaler.step(first)
    scaler.update()
del first, scaler
for _ in range(3): one(second)
"""), list(range(10)))

    def test_an_optimizer_that_is_kept_but_not_used_any_more_gives_way(self) -> None:
        self.assertEqual(self.steps(MODEL + """
first = torch.optim.SGD(model.parameters(), lr=0.1)
one(first), one(first)
second = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(20): one(second)
"""), list(range(7)))  # 15 of the second were waited for

    def test_steps_go_on_from_the_checkpoint_that_is_loaded(self) -> None:
        save = """
for _ in range(5): one(optimizer)
torch.save({"o": optimizer.state_dict()}, "new.pt")
os.replace("new.pt", "a.pt")
one(optimizer)
torch.save({"o": optimizer.state_dict()}, "b.pt")
"""
        load = """
optimizer.load_state_dict(torch.load("FILE")["o"])
one(optimizer), one(optimizer)
"""
        for make in ("SGD(model.parameters(), lr=0.1)", "Adam(model.parameters())"):
            with self.subTest(make):
                script = MODEL + f"optimizer = torch.optim.{make}\n"
                self.assertEqual(self.steps(script + save), [0, 1, 2, 3, 4, 5])
                self.assertEqual(self.steps(script + load.replace("FILE", "a.pt")), [5, 6])
                (self.folder / "copy.pt").write_bytes((self.folder / "b.pt").read_bytes())
                self.run_script(script + load.replace("FILE", "copy.pt"))
                self.assertEqual(self.steps(self.said()), [6, 7] if "Adam" in make else [0, 1])

    def test_only_what_holds_a_state_is_a_checkpoint(self) -> None:
        said = self.told(MODEL + """
from collections import OrderedDict
from elastrun.checkpoint_steps import is_checkpoint
class Loud(dict):
    def values(self): raise RuntimeError("mine")
    def __getattr__(self, name): raise RuntimeError("mine")
states = [model, model.state_dict(), {"epoch": 3, "model": model.state_dict()},
          optimizer.state_dict(), {"train": [{"o": optimizer.state_dict()}]},
          {k: v.clone() for k, v in torch.nn.Sequential(model).state_dict().items()},
          {"model": model}]
others = [torch.ones(3), 3, [1, 2], {"loss": 0.5}, {"images": torch.ones(3), "a.weight": 3},
          OrderedDict(a=torch.ones(1)), {}, Loud(a=1), {1: {"state": "running"}},
          torch.get_rng_state(), {"a": {"b": {"c": {"d": {"e": model}}}}}]
loop = {}
loop["loop"] = [loop] * 50
assert all(map(is_checkpoint, states)), list(map(is_checkpoint, states))
assert not any(map(is_checkpoint, others + [loop])), list(map(is_checkpoint, others))

for number in range(20):
    sample = torch.load("sample.pt") if number else torch.save({"x": torch.ones(3)}, "sample.pt")
    one(optimizer)
    torch.save({"loss": 0.5, "step": number}, "metrics.pt")
    if number == 9: torch.save({"model": model.state_dict()}, "a.pt")
""")
        self.assertEqual(self.checkpoints(said), [9])
        self.assertEqual(self.steps(MODEL + """
torch.load("metrics.pt"), torch.load("a.pt"), torch.load("sample.pt")
one(torch.optim.SGD(model.parameters(), lr=0.1))
"""), [10])

    def test_a_signal_handler_may_save_while_a_save_is_told(self) -> None:
        said = self.told(MODEL + """
import faulthandler, signal, threading
from elastrun import channel, journal
faulthandler.dump_traceback_later(60, exit=True)
journal._INTERVAL = 100
torch.save(1, "number.pt")
time.sleep(1)  # from now on the thread leaves it to the save
offer, left = channel.offer, [2]
def interrupted(packet):
    if threading.current_thread() is threading.main_thread() and left and left.pop():
        os.kill(os.getpid(), signal.SIGTERM)
    return offer(packet)
def save(*_): torch.save(model.state_dict(), "a.pt")
signal.signal(signal.SIGTERM, save)
channel.offer = interrupted
one(optimizer)
save()
one(optimizer)
""")
        self.assertEqual([one.get("step") for one in said if "kind" in one], [0, 0])
        self.assertEqual(self.steps(said), [0, 1])

    def test_a_signal_handler_may_save_while_data_is_loaded(self) -> None:
        said = self.told(MODEL + """
import signal
from torch.utils.data import DataLoader, Dataset
class Interrupted(Dataset):
    def __len__(self): return 4
    def __getitem__(self, index):
        torch.save(torch.ones(4), "sample.pt")  # a cache: part of loading
        if index == 2: os.kill(os.getpid(), signal.SIGUSR1)
        return torch.load("sample.pt")
def save(*_): torch.save({"o": optimizer.state_dict()}, "a.pt")
signal.signal(signal.SIGUSR1, save)
for batch in DataLoader(Interrupted()): one(optimizer)
""")
        names = self.names(said)
        self.assertEqual(self.checkpoints(said), [1])
        at = names.index("checkpoint_save_start_time")
        self.assertEqual(names[at - 1:at + 4], [
            "data_loading_start_time", "checkpoint_save_start_time", "checkpoint_save_end_time",
            "checkpoint", "data_loading_end_time"])
        self.assertEqual([name for name in names if "checkpoint" in name], names[at:at + 3])

    def test_a_signal_handler_may_save_while_the_process_group_is_made(self) -> None:
        said = self.told(MODEL + """
import signal
import torch.distributed as dist
class Interrupted(str):
    def upper(self):
        os.kill(os.getpid(), signal.SIGUSR1)
        return str.upper(self)
def save(*_): torch.save({"o": optimizer.state_dict()}, "a.pt")
signal.signal(signal.SIGUSR1, save)
one(optimizer)
dist.init_process_group(Interrupted("gloo"), store=dist.HashStore(), rank=0, world_size=1)
dist.destroy_process_group()
""")
        self.assertIn("checkpoint_save_start_time", self.names(said))
        self.assertEqual({one["step"] for one in said if one.get("kind") == "checkpoint"}, {0})

    def test_the_training_does_not_wait_for_the_file_system_of_the_logs(self) -> None:
        os.mkfifo(self.folder / "checkpoint_steps.json")  # whoever opens it waits for ever
        said = self.told(MODEL + """
import faulthandler
faulthandler.dump_traceback_later(60, exit=True)
torch.save({"model": model.state_dict()}, "a.pt")
torch.load("a.pt")
for _ in range(3):
    one(optimizer)
    torch.save({"model": model.state_dict()}, "a.pt")
""")
        self.assertEqual(self.checkpoints(said), [0, 1, 2])
        self.assertEqual(self.steps(said), [0, 1, 2])

    def test_a_step_within_a_compiled_region_compiles_as_without_us(self) -> None:
        script = MODEL + """
import logging, warnings
logging.disable(logging.WARNING)
class Own(torch.optim.Optimizer):
    def __init__(self, parameters): super().__init__(parameters, {})
    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for parameter in group["params"]: parameter.sub_(parameter.grad)
optimizer = Own(model.parameters())
model(torch.ones(2, 4)).sum().backward()
@torch.compile(fullgraph=True, backend="eager")
def compiled(): optimizer.step()
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    compiled(), compiled()
counters = torch._dynamo.utils.counters
print(dict(counters["graph_break"]), dict(counters["stats"]), [str(one.message) for one in said])
one(optimizer)
"""
        alone = self.run_script(script, fresh=True, ELASTRUN_GOODPUT="").stdout
        self.assertEqual(self.run_script(script, fresh=True).stdout, alone)
        self.assertEqual(self.steps(self.said()), [0])  # those that are compiled cannot be seen

    def test_a_loop_within_a_compiled_function_is_traced_as_without_us(self) -> None:
        script = MODEL + """
import logging, warnings
from torch.utils.data import DataLoader
logging.disable(logging.WARNING)
@torch.compile(backend="eager")
def epoch(loader):
    for batch in loader:
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
    torch.save(model.state_dict(), "a.pt")
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    for _ in range(2): epoch(DataLoader([torch.ones(4)] * 5))
counters = torch._dynamo.utils.counters
print(dict(counters["graph_break"]), dict(counters["stats"]), {str(one.message) for one in said})
"""
        alone = self.run_script(script, fresh=True, ELASTRUN_GOODPUT="", PYTHONHASHSEED="1").stdout
        self.assertEqual(self.run_script(script, fresh=True, PYTHONHASHSEED="1").stdout, alone)
        names = self.names(self.said())
        self.assertEqual((names.count("checkpoint_save_end_time"), names.count("step_end_time")),
                         (2, 0))  # steps that are compiled cannot be seen, nor then checkpoints

    def other_node(self) -> None:
        """Nothing that this machine has remembered is there any more."""
        (self.folder / "checkpoint_steps.json").unlink()

    def keeps_attributes(self) -> bool:
        try:
            os.setxattr(self.folder, "user.elastrun.test", b"1")
        except OSError:
            return False
        return True

    def test_another_node_goes_on_from_the_checkpoint_too(self) -> None:
        if not self.keeps_attributes():
            self.skipTest("the file system of temporary files keeps no attributes")
        make = MODEL + "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        load = """
optimizer.load_state_dict(torch.load("a.pt")["o"])
one(optimizer)
"""
        self.assertEqual(self.steps(make + """
for _ in range(5): one(optimizer)
with open("new.pt", "wb") as file: torch.save({"o": optimizer.state_dict()}, file)
os.replace("new.pt", "a.pt")
"""), [0, 1, 2, 3, 4])
        self.other_node()
        for rank in ("0", "1"):
            self.assertEqual(self.steps(make + load, RANK=rank), [5], rank)
        self.run_script(make + load, TORCHELASTIC_RUN_ID="tuned")  # it is another job's
        self.assertEqual(self.steps(self.said()), [0])
        # What somebody else has written over it says nothing.
        self.run_script(make + 'torch.save({"o": optimizer.state_dict()}, "a.pt")\n',
                        ELASTRUN_GOODPUT="off")
        self.assertEqual(self.steps(make + load), [0])

    def test_a_checkpoint_that_is_compressed_counts(self) -> None:
        make = MODEL + "import gzip\noptimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        self.assertEqual(self.steps(make + """
for _ in range(3): one(optimizer)
with gzip.open("a.pt.gz", "wb") as file: torch.save({"m": model.state_dict()}, file)
"""), [0, 1, 2])
        self.assertEqual(self.steps(make + """
with gzip.open("a.pt.gz", "rb") as file: model.load_state_dict(torch.load(file)["m"])
one(optimizer)
"""), [3])

    def test_other_ranks_of_this_node_go_on_from_the_checkpoint(self) -> None:
        make = MODEL + "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        self.assertEqual(self.steps(make + """
for _ in range(3): one(optimizer)
torch.save({"o": optimizer.state_dict()}, "a.pt")
"""), [0, 1, 2])
        said = self.told(make + """
optimizer.load_state_dict(torch.load("a.pt")["o"])
one(optimizer)
torch.save({"o": optimizer.state_dict()}, "mine.pt")  # is told by rank 0 alone
""", RANK="1")
        self.assertEqual(self.names(said), ["step_end_time"])
        self.assertEqual(said[0]["step_count"], 3)

    def test_a_checkpoint_that_another_thread_saves_is_told_and_takes_no_time(self) -> None:
        said = self.told(MODEL + """
import threading
saved, go = threading.Event(), threading.Event()
def save(state, path):
    go.wait()
    torch.save(state, path)
    saved.set()
def background(path):
    go.clear(), saved.clear()
    threading.Thread(target=save, args=({"o": optimizer.state_dict()}, path)).start()
for _ in range(3): one(optimizer)
background("a.pt")
for _ in range(2): one(optimizer)      # while it waits: the state is of step 2
go.set(), saved.wait()
background("b.pt")
go.set(), saved.wait()
state = {"m": model.state_dict()}      # nothing of the optimizer: of the step at its begin
one(optimizer)
save(state, "main.pt")
go.clear(), saved.clear()
threading.Thread(target=save, args=(state, "c.pt")).start()
one(optimizer)
time.sleep(0.2)
go.set(), saved.wait()
""")
        self.assertEqual(self.checkpoints(said), [2, 4, 5, 6])
        self.assertEqual(self.names(said).count("checkpoint_save_start_time"), 1)  # of main.pt
        self.assertEqual(self.steps(said), list(range(7)))

    def test_one_optimizer_for_each_parameter_is_one_step(self) -> None:
        self.assertEqual(self.steps("""
import torch
model = torch.nn.Sequential(*(torch.nn.Linear(2, 2) for _ in range(30)))
optimizers = {one: torch.optim.SGD([one], lr=0.1) for one in model.parameters()}
def step(parameter):
    optimizers[parameter].step()
    optimizers[parameter].zero_grad()
for one in optimizers: one.register_post_accumulate_grad_hook(step)
for _ in range(20): model(torch.ones(1, 2)).sum().backward()
"""), list(range(20)))

    def test_what_is_put_around_functions_of_torch_can_be_pickled_at_any_time(self) -> None:
        done = self.run_script(MODEL + """
import elastrun, pickle
from torch import save, load
from torch.distributed.checkpoint import save as dcp_save
from torch.optim import Optimizer
things = (save, load, dcp_save, torch.save, torch.utils.data.DataLoader.__iter__,
          Optimizer.state_dict)
kept = [pickle.dumps(one) for one in things]
def by_hand(*_): elastrun.step(0)  # while torch calls its hooks, one of which is ours
sys.modules[Optimizer.__module__].register_optimizer_step_post_hook(by_hand)
one(optimizer), one(optimizer)
save(model.state_dict(), "a.pt")
print(kept == [pickle.dumps(one) for one in things],
      all(pickle.loads(text) is one for text, one in zip(kept, things)))
""", fresh=True)
        self.assertEqual(done.stdout, "True True\n")
        self.assertEqual(self.names(self.said()), ["step", "step", "checkpoint_save_start_time",
                                                   "checkpoint_save_end_time", "checkpoint"])

    def test_torch_that_was_imported_before_is_watched_just_so(self) -> None:
        done = self.run_script(MODEL + """
import pickle
from elastrun import auto
os.environ["ELASTRUN_GOODPUT"] = "auto"
auto.start()
one(torch.optim.SGD(model.parameters(), lr=0.1))
torch.save(model.state_dict(), "a.pt")
print(pickle.loads(pickle.dumps(torch.save)) is torch.save)
""", ELASTRUN_GOODPUT="later")
        self.assertEqual(done.stdout, "True\n")
        self.assertEqual(self.names(self.said()), ["step_end_time", "checkpoint_save_start_time",
                                                   "checkpoint_save_end_time", "checkpoint"])

    TRAINING = MODEL + """
import elastrun
from torch.utils.data import DataLoader, Dataset
class Slow(Dataset):
    def __len__(self): return 1
    def __getitem__(self, index):
        time.sleep(0.002)
        return torch.ones(4)
def data():
    next(iter(DataLoader(Slow())))
def evaluation():
    model.eval()
    with torch.no_grad(): model(torch.ones(2, 4))
    model.train()
def save(): torch.save(model.state_dict(), "a.pt")
"""

    def test_steps_that_the_script_reports_are_told_once_and_the_rest_by_hooks(self) -> None:
        self.run_script(self.TRAINING + """
for number in range(100, 103):
    data(), one(optimizer)
    elastrun.step(number)
    evaluation(), save()
""")
        said = self.said()
        load = ["data_loading_start_time", "data_loading_end_time"]
        rest = ["custom_badput_event_start_time", "custom_badput_event_end_time",
                "checkpoint_save_start_time", "checkpoint_save_end_time", "checkpoint"]
        names = [one for one in self.names(said) if "training_prep" not in one]
        first = names.index("step")
        self.assertEqual(set(names[:first]), set(load))
        again = [one for one in names[first:] if one not in load]
        self.assertEqual(again, ["step", *rest] * 3)
        self.assertEqual(names[names.index("checkpoint") + 1:][:2], load)
        self.assertEqual(self.checkpoints(said), [100, 101, 102])

    def test_beside_a_recorder_hooks_tell_what_it_does_not_and_in_one_order(self) -> None:
        self.run_script(self.TRAINING + """
from elastrun.measurement import Event, GoodputRecorder
recorder = GoodputRecorder("j", "l", True)
with recorder.record_event(Event.TRAINING_PREP): one(optimizer), data()
for number in range(7, 9):
    with recorder.record_event(Event.DATA_LOADING): data()
    with recorder.record_event(Event.STEP, number):
        save()  # of the step before
        one(optimizer)
    save()
    with recorder.record_event(Event.CUSTOM, "100 %"): evaluation(), save()
    data(), evaluation()
elastrun.checkpoint_done(8)
save()
""")
        said = self.said()
        names = [re.sub("_time|custom_badput_event_|checkpoint_|data_", "", one)
                 for one in self.names(said)]
        load, save = ["loading_start", "loading_end"], ["save_start", "save_end", "checkpoint"]
        told = [*load, "step_start", *save, *save, "start", "checkpoint", "end",
                *load, *load, "start", "end"]  # a loader makes its iterator, too
        self.assertEqual(names, ["training_prep_start", "training_prep_end", *told, *told,
                                 "checkpoint", *save[:2]])
        self.assertEqual(self.checkpoints(said), [6, 7, 7, 7, 8, 8, 8])
        self.assertEqual({str(one["custom_badput_event_type"]) for one in said
                          if "custom_badput_event_type" in one}, {"100 %", "eval"})

    def test_a_recorder_that_never_tells_of_a_phase_leaves_it_to_the_hooks(self) -> None:
        self.run_script(MODEL + """
from elastrun.measurement import Event, GoodputRecorder
import torch.distributed as dist
from torch.utils.data import DataLoader
recorder = GoodputRecorder("j", "l", True)
with recorder.record_event(Event.JOB):
    dist.init_process_group("gloo", init_method=f"file://{os.getcwd()}/meet", rank=0, world_size=1)
    for number, batch in enumerate(DataLoader([torch.ones(4)] * 2)):
        with recorder.record_event(Event.STEP, number): model(batch).sum().backward()
dist.destroy_process_group()
""")
        names = [one for one in self.names(self.said()) if not one.startswith("data_loading")]
        self.assertEqual(names, ["job_start_time", "tpu_init_start_time", "tpu_init_end_time",
                                 "training_prep_start_time", "step_start_time", "step_start_time",
                                 "job_end_time"])

    def test_saves_and_restores_of_orbax_are_told_with_their_steps(self) -> None:
        """Its manager, with its checkpointers, as they are called; a thread writes, or none."""
        package = self.folder / "orbax" / "checkpoint"
        package.mkdir(parents=True)
        (package.parent / "__init__.py").touch()
        (package / "__init__.py").touch()
        (package / "checkpointer.py").write_text("""
class Checkpointer:
    def save(self, directory, *args): pass
    def restore(self, directory, *args): return 7
""")
        (package / "checkpoint_manager.py").write_text("""
import types
from orbax.checkpoint.checkpointer import Checkpointer
class CheckpointManager:
    def __init__(self, threads):
        self._options = types.SimpleNamespace(enable_async_checkpointing=threads)
        self._inner = Checkpointer()
    def save(self, step, *, args=None, force=False):
        if step % 2 == 0: self._inner.save("d", args)
        return step % 2 == 0
    def restore(self, step=None, *, args=None): return self._inner.restore("d")
    def wait_until_finished(self): pass
    def close(self): self.wait_until_finished()
""")
        self.run_script("""
import elastrun
from orbax.checkpoint.checkpoint_manager import CheckpointManager
from orbax.checkpoint.checkpointer import Checkpointer
for threads in (True, False):
    manager = CheckpointManager(threads)
    for step in range(4):
        elastrun.step(step)
        manager.save(step, args={})
    manager.close()
    assert manager.restore() == 7
Checkpointer().save("alone")
""")
        save, restore = ["save_start", "save_end"], ["restore_start", "restore_end"]
        said = [one for one in self.said() if one.get("kind") in (None, "checkpoint")]
        names = [re.sub("_time|checkpoint_", "", one) for one in self.names(said)]
        self.assertEqual(names, [
            *save, *save, *save, "checkpoint", *save, *save, "checkpoint", *restore,
            *save, "checkpoint", *save, *save, "checkpoint", *save, *save, *restore,
            *save, "checkpoint"])
        self.assertEqual(self.checkpoints(said), [0, 2, 0, 2, -2])

    def test_other_ranks_tell_steps_alone(self) -> None:
        self.run_script(MODEL + """
from torch.utils.data import DataLoader
for batch in DataLoader([torch.ones(4)] * 3): one(optimizer)
torch.save(model, "a.pt")
""", RANK="1")
        self.assertEqual(set(self.names(self.said())), {"step_end_time"})

    def test_distributed_checkpoints_are_told(self) -> None:
        said = self.told(MODEL + """
import torch.distributed as dist, torch.distributed.checkpoint as dcp
dist.init_process_group("gloo", init_method=f"file://{os.getcwd()}/meet", rank=0, world_size=1)
one(optimizer)
dcp.save({"m": model.state_dict()}, checkpoint_id="here")
one(optimizer)
dcp.async_save({"m": model.state_dict()}, checkpoint_id="there").result()
time.sleep(0.2)
dcp.load({"m": model.state_dict()}, checkpoint_id="here")
dist.destroy_process_group()
""")
        self.assertEqual(self.checkpoints(said), [0, 1])
        names = self.names(said)
        self.assertEqual(names.count("checkpoint_save_start_time"), 2)
        self.assertEqual(names.count("checkpoint_save_end_time"), 2)
        self.assertEqual(names.count("checkpoint_restore_start_time"), 1)

    def evaluations(self, script: str) -> list[str]:
        """What this script tells of evaluations, steps and checkpoints, in order."""
        names = {"custom_badput_event_start_time": "eval", "custom_badput_event_end_time": "end",
                 "step_end_time": "step", "checkpoint_save_start_time": "save"}
        said = [one for one in self.told(script)
                if one.get("custom_badput_event_type") != "unexplained"]
        for one in said:
            if "custom_badput_event_type" in one:
                self.assertEqual(one["custom_badput_event_type"], "eval")
        return [names[name] for name in self.names(said) if name in names]

    def test_an_evaluation_is_told_however_the_script_makes_it(self) -> None:
        ways = {
            "by eval() and train()": "model.eval(); model(x); model.train()",
            "without gradients": """
with torch.no_grad():
    for batch in DataLoader(others): model(batch)""",
            "in inference mode, and back at the next batch": """
model.eval()
with torch.inference_mode():
    for batch in DataLoader(others): model(batch)""",
            "with batches fetched with gradients": """
model.eval()
for batch in DataLoader(others):
    with torch.no_grad(): model(batch)""",
        }
        script = """
import torch, sys
from torch.utils.data import DataLoader
model = torch.nn.Linear(4, 1)
x, data, others = torch.ones(1, 4), [torch.ones(4)] * 2, [torch.ones(4)] * 3
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
train = torch.nn.Module.train
for epoch in range(2):
    model.train()
    for batch in DataLoader(data):
        model(batch).sum().backward()
        optimizer.step()
    EVALUATE
    loader = DataLoader(data)
    next(iter(loader))
    torch.save(model.state_dict(), "a.pt")
assert torch.nn.Module.train is train
"""
        code = ""  # one process each is slow
        for way in ways.values():
            code += script.replace("    EVALUATE", "\n".join(
                f"    {line}" for line in way.strip().split("\n")))
            code += "torch.save({'x': 1}, 'end-of-way')\n"
        once = ["step", "step", "eval", "end", "save"]
        self.assertEqual(self.evaluations(code), (once * 2 + ["save"]) * len(ways))

    def unexplained(self) -> list[float]:
        """How many seconds each stretch took that was told as such; entries are in their order."""
        said = [one for one in self.said() if "kind" not in one]
        times = [next(value for key, value in one.items() if key.endswith("_time"))
                 for one in said]
        self.assertEqual(times, sorted(times))
        ends = [time for one, time in zip(said, times)
                if one.get("custom_badput_event_type") == "unexplained"]
        return [end - begin for begin, end in zip(ends[::2], ends[1::2])]

    def test_what_no_hook_sees_before_a_step_begins_is_unexplained(self) -> None:
        ways = {  # what a script does between steps; W waits for so long as is unexplained
            "a generator of its own": "W(); one(optimizer)",
            "a save by pickle":
                "one(optimizer); pickle.dump(model.state_dict(), open('a', 'wb')); W()",
            "an evaluation without eval() or loader": """
one(optimizer)
with torch.no_grad(): W(); model(x)""",
            "gradients of several batches": """
for _ in range(3): W(1/3); model(x).sum().backward()
time.sleep(0.1)  # clips, say
optimizer.step()""",
            "two optimizers, each after a backward()":
                "W(); one(optimizer); model(x).sum().backward(); other.step()",
            "two optimizers after one backward()":
                "W(); model(x).sum().backward(); optimizer.step(); other.step()",
            "a module that transforms data": "x = transform(x); W(); one(optimizer)",
            "a module of modules": """
optimizer.zero_grad(); W()
nested(x).sum().backward(); optimizer.step()""",
            "a save that is told": "one(optimizer); torch.save(model.state_dict(), 'b'); W()",
            "a fetch that is told": "W(); fetch(); one(optimizer)",
            "without a module": """
W()
(model.weight * x).sum().backward(); optimizer.step()""",
            "work alone": "slow = True; one(optimizer); slow = False",
        }
        script = MODEL.replace("import os", "import pickle, os") + """
from torch.utils.data import DataLoader
class Slow(torch.nn.Linear):
    def forward(self, x):
        if slow: time.sleep(0.1)
        return super().forward(x)
class Data(torch.utils.data.Dataset):
    def __len__(self): return 100
    def __getitem__(self, index): time.sleep(0.05); return torch.ones(4)
slow, model, x = False, Slow(4, 1), torch.ones(2, 4)
nested = torch.nn.Sequential(torch.nn.Sequential(model))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
other, transform = torch.optim.SGD(model.parameters(), lr=0.1), torch.nn.Identity()
loader = iter(DataLoader(Data()))
def fetch(): next(loader)
waited = 0
def W(part=1):
    global waited
    begin = time.time(); time.sleep(0.1 * part); waited += time.time() - begin
def told(): print(waited, flush=True)
one(optimizer); one(optimizer)
"""
        for what, way in ways.items():
            with self.subTest(what):
                self.listener.packets()
                done = self.run_script(script + "for _ in range(4):\n" + "\n".join(
                    "    " + line for line in way.strip().split("\n"))
                    + "\none(optimizer)\ntold()\n")
                waited = float(done.stdout)
                # What lies between, the script's own code, is part of it.
                self.assertAlmostEqual(sum(self.unexplained()), waited, delta=0.05 + waited * 0.1)

    def test_what_is_no_evaluation_is_training(self) -> None:
        self.assertEqual(self.evaluations(MODEL + """
teacher = torch.nn.Linear(4, 1).eval()
model.eval()           # as what was loaded may be, before the first step
for _ in range(3): one(optimizer)
model.train()
teacher.eval(), teacher.train(), teacher.eval()
with torch.no_grad(): teacher(torch.ones(4)), optimizer.zero_grad()
one(optimizer)
"""), ["step"] * 4)
        self.assertEqual(self.evaluations(MODEL + """
for _ in range(4):
    model.train()
    one(optimizer)
    model.eval()       # trained so, once it is known
    one(optimizer)
"""), ["step", "eval", "end"] + ["step"] * 7)

    def test_a_save_and_a_resume_of_which_nothing_tells_the_step_are_told_as_such(self) -> None:
        self.run_script(MODEL + """
import io
for _ in range(3): one(optimizer)
buffer = io.BytesIO()
torch.save({"o": optimizer.state_dict()}, buffer)
open("bucket", "wb").write(buffer.getvalue())
torch.save(model.state_dict(), "pretrained.pt")
""")
        self.assertEqual(self.checkpoints(self.said()), [-2, 2])
        self.run_script(MODEL + """
import io
torch.load(io.BytesIO(open("bucket", "rb").read()))
one(torch.optim.SGD(model.parameters(), lr=0.1))
""")
        self.assertEqual([one.get("step", one.get("step_count")) for one in self.said()
                          if one.get("kind") == "checkpoint" or "step_end_time" in one], [-2, 0])

    def test_steps_go_on_as_a_checkpoint_says_that_was_saved_into_a_buffer(self) -> None:
        make = MODEL + "import io\noptimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        said = self.told(make + """
for _ in range(5): one(optimizer)
buffer = io.BytesIO()
torch.save({"o": optimizer.state_dict(), "global_step": 5}, buffer)
open("bucket", "wb").write(buffer.getvalue())
""")
        self.assertEqual(self.names(said)[-3:], ["checkpoint_save_start_time",
                                                 "checkpoint_save_end_time", "checkpoint"])
        self.assertEqual(said[-1]["step"], -2)
        self.assertEqual(self.steps(make + """
loaded = torch.load(io.BytesIO(open("bucket", "rb").read()))
optimizer.load_state_dict(loaded["o"])
one(optimizer), one(optimizer)
"""), [5, 6])

    def test_a_step_of_another_optimizer_says_that_the_one_under_way_goes_on(self) -> None:
        steps = self.steps(MODEL + """
first, critic = (torch.optim.SGD(model.parameters(), lr=0.1) for _ in range(2))
for _ in range(3):
    one(first)
    for _ in range(4): time.sleep(0.06); one(critic)
""")
        self.assertEqual(steps, sorted(steps))
        self.assertEqual(set(steps), {0, 1, 2})
        self.assertGreaterEqual(steps.count(1), 3)

    def test_where_a_start_goes_on_is_what_the_best_of_its_checkpoints_says(self) -> None:
        script = MODEL + """
# Of the first parameter Adam counts every second step only.
other = torch.nn.Parameter(torch.zeros(1))
optimizer = torch.optim.Adam([other, *model.parameters()], lr=0.1)
def save(name, **more): torch.save({"model": model.state_dict(), **more}, name)
def train(count):
    for i in range(count):
        optimizer.zero_grad()
        (model(torch.ones(2, 4)).sum() + (other.sum() if i % 2 else 0)).backward()
        optimizer.step()
if os.path.exists("last.pt"):
    optimizer.load_state_dict(torch.load("last.pt")["optimizer"])
    torch.load("best.pt")                                 # for its score
    torch.load("teacher.pt")
else:
    torch.save({"model": {}, "step": 7000}, "teacher.pt")
    train(10)
    save("best.pt")
    train(10)
    save("last.pt", optimizer=optimizer.state_dict())
train(2)
"""
        self.assertEqual(self.steps(script)[-3:], [19, 20, 21])
        self.assertEqual(self.steps(script), [20, 21])

    def test_a_checkpoint_that_the_script_reports_leaves_the_steps_to_the_hooks(self) -> None:
        script = MODEL + """
import elastrun
for i in range(5): one(optimizer)
elastrun.checkpoint_done(100)  # it counts in its own way
one(optimizer)
"""
        for first in (0, 5):
            said = self.told(script)
            self.assertEqual(self.steps(said), list(range(first, first + 6)))
            self.assertEqual(self.checkpoints(said), [first + 4])

    def test_a_script_that_reports_its_steps_does_so_after_a_restart(self) -> None:
        script = MODEL + """
import elastrun
for i in range(10, 16):
    one(optimizer)
    if i % 5 == 4: elastrun.step(i)
"""
        self.told(script)
        self.assertEqual(self.steps(script), [])

    def test_what_distils_or_fetches_without_gradients_trains(self) -> None:
        for around, each in (("", "with torch.no_grad(): teacher.eval(); teacher(batch)"),
                             ("@torch.no_grad()", "")):
            with self.subTest(around or each):
                self.run_script(MODEL + f"""
from torch.utils.data import DataLoader
teacher = torch.nn.Linear(4, 1).requires_grad_(False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
batches = iter(DataLoader([torch.ones(4)] * 40, batch_size=1))
{around}
def fetch(): return next(batches)
for i in range(40):
    batch = fetch()
    {each}
    optimizer.zero_grad()
    model(batch).sum().backward()
    time.sleep(0.01)
    optimizer.step()
""")
                # On a loaded machine some are unexplained: no hook sees what a teacher does.
                said = [one for one in self.said()
                        if one.get("custom_badput_event_type") != "unexplained"]
                names = self.names(said)
                self.assertEqual(names.count("step_end_time"), 40)
                self.assertLessEqual(names.count("custom_badput_event_start_time"), 2)

    @unittest.skipUnless(importlib.util.find_spec("safetensors"), "safetensors is not installed")
    def test_saves_by_safetensors_are_told(self) -> None:
        script = MODEL + """
from safetensors.torch import load_file, save_file
if os.path.exists("a.safetensors"): model.load_state_dict(load_file("a.safetensors"))
for i in range(4): one(optimizer)
save_file(model.state_dict(), "a.safetensors")
one(optimizer)
"""
        for first in (0, 4):
            said = self.told(script)
            self.assertEqual(self.checkpoints(said), [first + 3])
            self.assertEqual(self.steps(said)[0], first)

    def test_making_the_process_group_is_told(self) -> None:
        self.run_script("""
import os, torch.distributed as dist
from torch.distributed import distributed_c10d, init_process_group
assert dist.init_process_group is init_process_group is distributed_c10d.init_process_group
try: dist.init_process_group("no such backend", store=dist.HashStore(), rank=0, world_size=1)
except Exception: pass  # which one depends on the version of torch
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
dist.destroy_process_group()
""", fresh=True)
        self.assertEqual(self.names(self.said()),
                         2 * ["tpu_init_start_time", "tpu_init_end_time"])


if __name__ == "__main__":
    if importlib.util.find_spec("torch") is None:
        print("skipped: python3 has no torch")
        sys.exit(77)
    unittest.main()
