"""Command-line arguments made ready for Hydra: shorter forms are understood, and written out."""

from __future__ import annotations

import functools
import importlib.resources
import re
from collections.abc import Sequence
from typing import Any

from lightning_ubs.experiment.config import CONFIG_MODULE, is_trainer_key

GRID_KEYS = ("data", "model", "selection", "fold", "seed")
_ALIASES = {"data.fold": "fold", "folds": "fold", "seeds": "seed"}
# Keys that say where, how fast and how it is shown, not what is run.
_ASIDE = re.compile(r"(results|name|jobs|engine|dry_run|trace|scale|report\.\w+|hydra\..*)=")
_RUN_KEY = re.compile(r"(data|model|selection|trainer)\..+")


def train_overrides(arguments: Sequence[str]) -> list[str]:
    """Overrides of ``train``: datasets in any case and by the paper's names, arguments of a Trainer under ``trainer``.

    >>> train_overrides(["data=Yahoo-Arts", "trainer.max_epochs=3", "trainer.limit_train_batches=2"])
    ['data=yahoo-Arts1', 'trainer.max_epochs=3', '++trainer.limit_train_batches=2']
    """
    return [_for_trainer(_known_data(one) if one.startswith("data=") else one) for one in arguments]


def compare_overrides(arguments: Sequence[str]) -> list[str]:
    """Overrides of ``compare``: keys of the grid without ``grid.``, and keys of ``train`` as ``train`` has them.

    >>> compare_overrides(["data=[yeast,scene]", "seed=0,1", "selection.lambda1=0.5,0.6", "jobs=2"])
    ['grid.data=[yeast,scene]', 'grid.seed=[0,1]', '++sweep.selection.lambda1=[0.5,0.6]', 'jobs=2']

    Without a word about what to run, it is the first look.

    >>> compare_overrides(["jobs=2"])
    ['experiment=first', 'jobs=2']
    """
    written = ["dry_run=true" if one == "--dry-run" else one for one in arguments]
    chosen = any(_is_override(one) and not _ASIDE.match(one) for one in written)
    ready = [_for_grid(one) if _is_override(one) else one for one in written]
    return ready if chosen else ["experiment=first", *ready]


def report_overrides(arguments: Sequence[str]) -> list[str]:
    """The results folder is the argument without a name.

    >>> report_overrides(["results/my runs", "report.paper=true"])
    ["results='results/my runs'", 'report.paper=true']
    """
    first = next((one for one in arguments if not one.startswith("-") and "=" not in one), None)
    return [f"results={quoted(one)}" if one is first else one for one in arguments]


def quoted(text: str) -> str:
    """A value that Hydra reads as this text, whatever is in it."""
    escaped = re.sub(r"(\\*)'", r"\1\1\\'", text)
    return "'" + re.sub(r"(\\+)$", r"\1\1", escaped) + "'"


def _is_override(argument: str) -> bool:
    return "=" in argument and not argument.startswith("-")


def _for_grid(argument: str) -> str:
    key, _, text = argument.partition("=")
    key = _ALIASES.get(key, key)
    if key in GRID_KEYS:
        return f"grid.{key}={_list_of(argument, text)}"
    bare = key.lstrip("+")
    if _RUN_KEY.fullmatch(bare) and key.startswith("+"):
        return f"++train.{bare}={text}"
    if _RUN_KEY.fullmatch(key):
        return f"++sweep.{key}=[{','.join(_values(argument, text))}]"
    return argument


def _for_trainer(argument: str) -> str:
    """Force a key that a group does not list, which Hydra adds only on request."""
    key = argument.partition("=")[0]
    if not key.startswith("trainer.") or key in _listed_trainer_keys():
        return argument
    return f"++{argument}" if is_trainer_key(key) else argument


@functools.cache
def _listed_trainer_keys() -> frozenset[str]:
    from omegaconf import OmegaConf

    text = importlib.resources.files(CONFIG_MODULE).joinpath("trainer/default.yaml").read_text(encoding="utf-8")
    return frozenset(f"trainer.{name}" for name in map(str, OmegaConf.create(text)))


def _list_of(argument: str, text: str) -> str:
    values = _values(argument, text)
    return text if len(values) == 1 else f"[{','.join(values)}]"


def _values(argument: str, text: str) -> list[str]:
    override = _parsed(argument)
    return list(override.sweep_string_iterator()) if override.is_sweep_override() else [text]


def _parsed(argument: str) -> Any:
    from hydra.core.override_parser.overrides_parser import OverridesParser

    return OverridesParser.create().parse_override(argument)


def _known_data(argument: str) -> str:
    from lightning_ubs.data import catalog
    from lightning_ubs.errors import DataError

    names = []
    for name in argument.removeprefix("data=").split(","):
        try:
            names.append(catalog.entry(name).name)
        except DataError:
            names.append(name)
    return "data=" + ",".join(names)
