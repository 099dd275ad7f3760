# SPDX-License-Identifier: Apache-2.0
"""A training by Hugging Face's Trainer that knows nothing of elastrun and clocks itself, for
frameworks_test.py beside it. Crashes in two attempts; plain SGD.
"""
import glob
import os
import time

from measured_clock import ATTEMPT, CRASHES, clock

clock("spawned")
import torch  # noqa: E402
from torch.utils.data import Dataset  # noqa: E402
from transformers import Trainer, TrainerCallback, TrainingArguments  # noqa: E402


class Numbers(Dataset):
    def __init__(self, length, seconds, clocked=False):
        self.length, self.seconds, self.clocked = length, seconds, clocked

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        if self.clocked:
            clock("fetch")
        time.sleep(self.seconds)
        if self.clocked:
            clock("fetched")
        return {"x": torch.full((4,), float(index % 5))}


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def forward(self, x=None):
        time.sleep(0.05 if self.training else 0.1)
        return {"loss": self.layer(x).pow(2).mean()}


class Clock(TrainerCallback):
    def on_step_end(self, args, state, control, **_):
        clock("step", state.global_step)
        if state.global_step == CRASHES.get(ATTEMPT):
            time.sleep(0.3)  # until the last step is told
            clock("crash")
            os._exit(5)


class Clocked(Trainer):
    def evaluate(self, *args, **kwargs):
        clock("evaluate")
        metrics = super().evaluate(*args, **kwargs)
        clock("evaluated")
        return metrics

    def _load_from_checkpoint(self, *args, **kwargs):
        clock("load")
        super()._load_from_checkpoint(*args, **kwargs)
        clock("loaded")

    def _save_checkpoint(self, *args, **kwargs):
        clock("save")
        super()._save_checkpoint(*args, **kwargs)
        clock("saved", self.state.global_step)


model = Model()
settings = TrainingArguments(
    "saved", num_train_epochs=4, per_device_train_batch_size=1, per_device_eval_batch_size=1,
    eval_strategy="epoch", save_strategy="steps", save_steps=10, use_cpu=True, report_to=[],
    disable_tqdm=True, logging_strategy="no", prediction_loss_only=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
trainer = Clocked(model, settings, train_dataset=Numbers(10, 0.02, True),
                  eval_dataset=Numbers(6, 0.01), callbacks=[Clock()],
                  optimizers=(optimizer, None))
trainer.train(resume_from_checkpoint=bool(glob.glob("saved/checkpoint-*")))
clock("end")
