"""Data: readers, the catalog of datasets, and a LightningDataModule over them."""

import importlib
from typing import TYPE_CHECKING, Any

from lightning_ubs.data.catalog import entry, fetch, load, names
from lightning_ubs.data.entries import Entry, View
from lightning_ubs.data.folds import stratified_folds
from lightning_ubs.data.readers import read_dataset
from lightning_ubs.data.synthetic import latent_correlation, make_digits, make_synthetic, make_tags
from lightning_ubs.data.types import MultiLabelData
from lightning_ubs.errors import DataError

if TYPE_CHECKING:
    from lightning_ubs.data.datamodule import MultiLabelDataModule, MultiLabelDataset

__all__ = [
    "DataError",
    "Entry",
    "MultiLabelData",
    "MultiLabelDataModule",
    "MultiLabelDataset",
    "View",
    "entry",
    "fetch",
    "latent_correlation",
    "load",
    "make_digits",
    "make_synthetic",
    "make_tags",
    "names",
    "read_dataset",
    "stratified_folds",
]

_NEED_TORCH = {"MultiLabelDataModule": "datamodule", "MultiLabelDataset": "datamodule"}


def __getattr__(name: str) -> Any:
    """Import what needs torch when it is first asked for, so that the catalog answers before torch is loaded."""
    if name not in _NEED_TORCH:
        raise AttributeError(f"module 'lightning_ubs.data' has no attribute {name!r}")
    return getattr(importlib.import_module(f"lightning_ubs.data.{_NEED_TORCH[name]}"), name)
