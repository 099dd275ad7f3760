# SPDX-License-Identifier: Apache-2.0
"""A Lightning training that knows nothing of elastrun and clocks itself, for frameworks_test.py
beside it. Crashes in two attempts; plain SGD, so that only the checkpoint knows the step.
"""
import glob
import os
import time

from measured_clock import Numbers, clock, stepped  # whose import starts the clock
import lightning.pytorch as pl
import torch
from torch.utils.data import DataLoader


class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, _):
        time.sleep(0.05)
        return self.layer(batch).pow(2).mean()

    def validation_step(self, batch, _):
        time.sleep(0.1)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


class Clock(pl.Callback):
    def on_validation_start(self, *_):
        clock("evaluate")

    def on_validation_end(self, *_):
        clock("evaluated")

    def on_train_batch_end(self, trainer, *_):
        stepped(trainer.global_step)


class Files(pl.plugins.TorchCheckpointIO):
    def load_checkpoint(self, *args, **kwargs):
        clock("load")
        loaded = super().load_checkpoint(*args, **kwargs)
        clock("loaded")
        return loaded


class Trainer(pl.Trainer):
    def save_checkpoint(self, *args, **kwargs):
        clock("save")
        super().save_checkpoint(*args, **kwargs)
        clock("saved", self.global_step)


saving = pl.callbacks.ModelCheckpoint("saved", every_n_train_steps=10, save_top_k=-1)
trainer = Trainer(max_epochs=4, accelerator="cpu", devices=1, logger=False, callbacks=[
    Clock(), saving], plugins=[Files()], enable_progress_bar=False, enable_model_summary=False)
found = sorted(glob.glob("saved/*.ckpt"), key=os.path.getmtime)
trainer.fit(Model(), DataLoader(Numbers(10, 0.02, True)), DataLoader(Numbers(6, 0.01)),
            ckpt_path=found[-1] if found else None)
clock("end")
