"""Configurations for Hydra, by group, found as ``pkg://lightning_ubs.configs``; datasets and methods are registered."""

from lightning_ubs.data.entries import register_datasets
from lightning_ubs.methods import register_methods

register_datasets()
register_methods()
