"""Batch selection from LightningCLI: the callback and its strategy are plain classes, so YAML can name them.

Run it with ``python examples/lightning_cli.py fit --config examples/lightning_cli.yaml [--fast]``; every argument can
be overridden: ``--trainer.callbacks.strategy.init_args.lambda1=0.6``. It needs
``pip install -e ".[experiments]" 'jsonargparse[signatures]'``.
"""

from __future__ import annotations

import sys

from lightning.pytorch.cli import LightningCLI

from lightning_ubs.data import MultiLabelDataModule
from lightning_ubs.models import MLP

if __name__ == "__main__":
    if "--fast" in sys.argv:
        sys.argv[sys.argv.index("--fast") :] = ["--trainer.max_epochs=2", "--trainer.callbacks.warmup_epochs=1"]
    cli = LightningCLI(MLP, MultiLabelDataModule, save_config_callback=None, seed_everything_default=0)
    for callback in cli.trainer.callbacks:
        if type(callback).__name__ == "BatchSelection":
            print(f"Trained with {callback}.")
