"""Configurations for Hydra, by group; ``pkg://lightning_ubs.configs`` finds them, and registers the datasets."""

from lightning_ubs.data.entries import register_datasets

register_datasets()
