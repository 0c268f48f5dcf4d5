"""Configurations for Hydra, by group; ``pkg://lightning_ubs.configs`` finds them and registers datasets and methods."""

from lightning_ubs.data.entries import register_datasets
from lightning_ubs.methods import register_methods

register_datasets()
register_methods()
