"""Data: readers, the catalogue of datasets, and a LightningDataModule over them."""

from lightning_ubs.data.catalog import entry, fetch, load, names
from lightning_ubs.data.datamodule import MultiLabelDataModule
from lightning_ubs.data.dataset import MultiLabelDataset
from lightning_ubs.data.embedded import latent_correlation, make_digits, make_synthetic
from lightning_ubs.data.entries import Entry, View
from lightning_ubs.data.folds import stratified_folds
from lightning_ubs.data.readers import read_dataset
from lightning_ubs.data.types import DataError, MultiLabelData

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
    "names",
    "read_dataset",
    "stratified_folds",
]
