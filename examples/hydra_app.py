"""A Hydra application of your own, in the manner of lightning-hydra-template, with batch selection as a callback.

Run it with ``python examples/hydra_app.py [--fast]`` or, to change anything, ``python examples/hydra_app.py
callbacks.selection.lambda1=0.6 selection@callbacks.selection=recent trainer.max_epochs=10``. It needs
``pip install -e ".[experiments]"``. Its configuration is ``hydra_app.yaml``.
"""

from __future__ import annotations

import sys

import hydra
import lightning as L
from omegaconf import DictConfig


@hydra.main(version_base="1.3", config_path=".", config_name="hydra_app")
def main(config: DictConfig) -> None:
    """Instantiate everything that the configuration names, and train."""
    L.seed_everything(config.seed, verbose=False)
    data = hydra.utils.instantiate(config.data)
    model = hydra.utils.instantiate(config.model)
    callbacks = [hydra.utils.instantiate(one) for one in config.callbacks.values()]
    trainer = hydra.utils.instantiate(config.trainer, callbacks=callbacks)
    trainer.fit(model, datamodule=data)
    print(f"{callbacks[0].strategy}: Macro-AUC {trainer.callback_metrics['val_macro_auc']:.4f}")


if __name__ == "__main__":
    if "--fast" in sys.argv:
        sys.argv[sys.argv.index("--fast") :] = ["trainer.max_epochs=2", "callbacks.selection.warmup_epochs=1"]
    main()
