"""What every test here shares: one thread, a quiet Lightning, repeatable Hypothesis."""

from __future__ import annotations

import logging
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch
from hypothesis import HealthCheck, settings

torch.set_num_threads(1)

settings.register_profile(
    "repeatable",
    deadline=None,
    derandomize=True,
    max_examples=40,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
settings.load_profile("repeatable")

# What Lightning says of every small training, and what no test here is about.
NOISE = (
    "ignore:.*isinstance.treespec, LeafSpec.*",
    "ignore:.*You defined a `validation_step` but have no `val_dataloader`.*",
    "ignore:.*multi-threaded, use of fork.*:DeprecationWarning",
    "ignore:.*`persistent_workers=True`.*",
    "ignore:.*may be a bottleneck.*",
)


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Nothing that tests parse goes to the cache of the user who runs them."""
    os.environ["LIGHTNING_UBS_CACHE"] = str(tmp_path_factory.mktemp("cache"))


def pytest_configure(config: pytest.Config) -> None:
    for line in NOISE:
        config.addinivalue_line("filterwarnings", line)
    for name in ("lightning.pytorch", "lightning.fabric", "pytorch_lightning"):
        logging.getLogger(name).setLevel(logging.ERROR)
