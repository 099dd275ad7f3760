# SPDX-License-Identifier: Apache-2.0
"""A training by Hugging Face's Trainer that knows nothing of elastrun and clocks itself, for
frameworks_test.py beside it. Crashes in two attempts; plain SGD.
"""
import glob
import time

from measured_clock import Numbers, clock, stepped  # whose import starts the clock
import torch
from transformers import Trainer, TrainerCallback, TrainingArguments


class Named(Numbers):
    def __getitem__(self, index):
        return {"x": super().__getitem__(index)}


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def forward(self, x=None):
        time.sleep(0.05 if self.training else 0.1)
        return {"loss": self.layer(x).pow(2).mean()}


class Clock(TrainerCallback):
    def on_step_end(self, args, state, control, **_):
        stepped(state.global_step)


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
trainer = Clocked(model, settings, train_dataset=Named(10, 0.02, True),
                  eval_dataset=Named(6, 0.01), callbacks=[Clock()],
                  optimizers=(optimizer, None))
trainer.train(resume_from_checkpoint=bool(glob.glob("saved/checkpoint-*")))
clock("end")
