"""``lightning-ubs train``: one run, from what Hydra composed to a run folder."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning_ubs._utils.files import write_file
from lightning_ubs.errors import ConfigError
from lightning_ubs.experiment.claims import Claims
from lightning_ubs.experiment.config import (
    GROUPS,
    check_run,
    check_types,
    compose_train,
    resolved,
    target_of,
    unknown_key,
)
from lightning_ubs.experiment.from_config import Names, configured_run
from lightning_ubs.experiment.grid import prepare_folder
from lightning_ubs.experiment.planned import PlannedRun
from lightning_ubs.experiment.record import RunRecord
from lightning_ubs.experiment.run import write_summary
from lightning_ubs.experiment.store import ResultsStore

if TYPE_CHECKING:
    from omegaconf import DictConfig


def train(config: DictConfig, say: Callable[[str], None]) -> float:
    """Do one run in Hydra's output folder, and return the best value of its monitored metric.

    The folder gets ``config.yaml`` (resolved), ``metrics.json``, ``checkpoints/best.ckpt``, ``log/metrics.csv`` and
    ``trace.npz``. With ``results``, the run is added to that store, unless it is there already.
    """
    from hydra.core.hydra_config import HydraConfig
    from omegaconf import OmegaConf

    hydra_config = HydraConfig.get()
    folder = Path(hydra_config.runtime.output_dir)
    plain = resolved(OmegaConf.to_container(config, resolve=False))  # type: ignore[arg-type]
    groups = [one for one in hydra_config.overrides.task if one.partition("=")[0] in GROUPS]
    defaults = compose_train(groups)
    for name, value in plain.items():
        if name not in defaults:
            raise unknown_key(name, value, defaults)
    check_types(plain, defaults)
    check_run(plain)
    run = configured_run(plain, _names(plain, hydra_config.runtime.choices))
    write_file(folder / "config.yaml", OmegaConf.to_yaml(OmegaConf.create(plain)))
    if plain["results"] is None:
        record = _executed(run, folder, None)
    else:
        store = ResultsStore(plain["results"])
        prepare_folder(store)
        claims = Claims(store.folder.resolve())
        try:
            with claims.take(run.key) as claim:
                if claim is None:
                    raise ConfigError(
                        f"another process does this run now, for {str(store.folder)!r}; wait for it, or choose another "
                        "results folder."
                    )
                found = [one for one in store.records() if one.key == run.key and one.finished]
                if found:
                    say(f"this run is already in {store.folder}: best {found[-1].monitor} {found[-1].monitored:.4f}")
                    return found[-1].monitored
                record = _executed(run, folder, store)
                store.append(record)
        finally:
            claims.tidy()
    write_summary(record, folder)
    metrics = ", ".join(f"{name} {metric.value:.4f}" for name, metric in record.metrics.items())
    stage = "test" if any(metric.stage == "test" for metric in record.metrics.values()) else "validation"
    say(f"{stage}, at the best validation epoch {record.best_epoch}: {metrics}")
    for warning in record.warnings:
        say(f"note: {warning}")
    say(f"run folder: {folder}")
    return record.monitored


def _executed(run: PlannedRun, folder: Path, store: ResultsStore | None) -> RunRecord:
    try:
        with warnings.catch_warnings():
            _quiet()
            return run.execute(folder, store)
    except Exception as error:
        if store is not None and not isinstance(error, ConfigError):
            store.append(run.failed(str(error) or type(error).__name__))
        raise


def _names(config: dict[str, Any], choices: Any) -> Names:
    """Groups of the user's own are called as they were chosen."""
    own = {group: str(choices.get(group)) if target_of(config[group]) else None for group in ("data", "model")}
    return Names(own["data"], own["model"])


def _quiet() -> None:
    """Leave out what Lightning says about itself."""
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    for text in (".*does not have many workers.*", ".*LeafSpec.*", ".*available but not used.*"):
        warnings.filterwarnings("ignore", text)
