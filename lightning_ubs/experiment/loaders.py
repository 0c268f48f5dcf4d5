"""Data in any of the forms that a user may have them, as a LightningDataModule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lightning.pytorch import LightningDataModule
from typing_extensions import override

from lightning_ubs.errors import ConfigError

_STAGES = ("train", "val", "test")


class LoaderData(LightningDataModule):
    """Loaders for training and validation.

    Args:
        train: a loader.
        val: a loader.
    """

    def __init__(self, train: Any, val: Any) -> None:
        super().__init__()
        self.train, self.val = train, val

    @override
    def train_dataloader(self) -> Any:
        return self.train

    @override
    def val_dataloader(self) -> Any:
        return self.val


class TestedLoaderData(LoaderData):
    """Loaders for training, validation and testing.

    Args:
        train: a loader.
        val: a loader.
        test: a loader.
    """

    def __init__(self, train: Any, val: Any, test: Any) -> None:
        super().__init__(train, val)
        self.test = test

    @override
    def test_dataloader(self) -> Any:
        return self.test


def as_datamodule(found: Any, source: str) -> LightningDataModule:
    """A datamodule as it is; two or three loaders, in order or by name, as a datamodule.

    >>> type(as_datamodule({"train": [1], "val": [2]}, "data")).__name__
    'LoaderData'
    """
    if isinstance(found, LightningDataModule):
        return found
    if isinstance(found, Mapping) and {"train", "val"} <= set(found) <= set(_STAGES):
        found = [found[stage] for stage in _STAGES if stage in found]
    if isinstance(found, Sequence) and not isinstance(found, str) and len(found) in (2, 3):
        return LoaderData(*found) if len(found) == 2 else TestedLoaderData(*found)
    raise ConfigError(
        f"{source} returned {type(found).__name__}; return a LightningDataModule, or loaders for training, validation "
        "and (if there is one) testing."
    )
