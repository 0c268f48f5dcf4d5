"""A training in a process of its own that a test may kill. Run by test_faults.py."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from resume_tools import Recorder, make_data, make_loader, make_selection, make_trainer

EPOCHS = 8


class Slow(Callback):
    """Gives the test time to act, and says how far training is."""

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        print(f"step {trainer.global_step}", flush=True)
        time.sleep(0.05)


if __name__ == "__main__":
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    steps = ModelCheckpoint(folder, filename="last", every_n_train_steps=5, enable_version_counter=False)
    trainer = make_trainer(folder, [make_selection(), steps, Slow()], max_epochs=EPOCHS)
    trainer.fit(Recorder(), make_loader(make_data(), workers=1))
