"""Multi-label models: a plain MLP and the paper's three base classifiers."""

from __future__ import annotations

from typing import Any

from lightning_ubs.models.base import MultiLabelModule
from lightning_ubs.models.clif import CLIF
from lightning_ubs.models.dela import DELA
from lightning_ubs.models.mlp import MLP
from lightning_ubs.models.mpvae import MPVAE
from lightning_ubs.models.presets import check_model, original_lr, preset

__all__ = ["CLIF", "DELA", "MLP", "MPVAE", "MultiLabelModule", "build_model", "original_lr", "preset"]

_CLASSES: dict[str, type[MultiLabelModule]] = {"mlp": MLP, "mpvae": MPVAE, "clif": CLIF, "dela": DELA}


def build_model(
    name: str, num_features: int, num_labels: int, dataset: str | None = None, **overrides: Any
) -> MultiLabelModule:
    """Return a model by name, with the settings of `preset` for the dataset unless overridden.

    >>> type(build_model("dela", 103, 14, dataset="yeast", lr=1e-4)).__name__
    'DELA'
    """
    check_model(name)
    return _CLASSES[name](num_features, num_labels, **(preset(name, dataset) | overrides))
