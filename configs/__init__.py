"""Hydra configuration groups, installed as ``lightning_ubs.configs``."""
