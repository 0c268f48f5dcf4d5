"""``lightning-ubs train``: one run, from what Hydra composed to a run folder."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_ubs.experiment.config import (
    GROUPS,
    ConfigError,
    check_run,
    check_types,
    compose_train,
    resolved,
    run_key,
)
from lightning_ubs.experiment.grid import prepare_folder
from lightning_ubs.experiment.run import execute, failure, write_summary
from lightning_ubs.experiment.store import ResultsStore

if TYPE_CHECKING:
    from omegaconf import DictConfig


def train(config: DictConfig, say: Callable[[str], None]) -> float:
    """Do one run in Hydra's output folder, and return its best validation Macro-AUC.

    The folder gets ``config.yaml`` (resolved), ``metrics.json``, ``checkpoints/best.ckpt``, ``log/metrics.csv`` and
    ``trace.npz``. With ``results``, the run is added to that store, unless it is there already.
    """
    from hydra.core.hydra_config import HydraConfig
    from omegaconf import OmegaConf

    hydra_config = HydraConfig.get()
    folder = Path(hydra_config.runtime.output_dir)
    run = resolved(OmegaConf.to_container(config, resolve=False))  # type: ignore[arg-type]
    groups = [one for one in hydra_config.overrides.task if one.partition("=")[0] in GROUPS]
    check_types(run, compose_train(groups))
    check_run(run)
    store = None if run["results"] is None else ResultsStore(run["results"])
    if store is not None:
        prepare_folder(store)
        found = [one for one in store.records() if one.key == run_key(run) and one.finished]
        if found:
            say(f"this run is in {store.folder} already: best {found[-1].monitor} {found[-1].monitored:.4f}")
            return found[-1].monitored
    OmegaConf.save(OmegaConf.create(run), folder / "config.yaml")
    try:
        with warnings.catch_warnings():
            _quiet()
            record = execute(run, folder, store)
    except Exception as error:
        if store is not None and not isinstance(error, ConfigError):
            store.append(failure(run, str(error) or type(error).__name__))
        raise
    if store is not None:
        store.append(record)
    write_summary(record, folder)
    metrics = ", ".join(f"{name} {metric.value:.4f}" for name, metric in record.metrics.items())
    say(f"test, at the best validation epoch {record.best_epoch}: {metrics}")
    say(f"run folder: {folder}")
    return record.monitored


def _quiet() -> None:
    """Leave out what Lightning says about itself."""
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    for text in (".*does not have many workers.*", ".*LeafSpec.*", ".*available but not used.*"):
        warnings.filterwarnings("ignore", text)
