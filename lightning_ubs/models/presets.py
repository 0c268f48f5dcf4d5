"""The original authors' settings per dataset, and what this package chooses where they gave none."""

from __future__ import annotations

from typing import Any

_Settings = dict[str, dict[str, Any]]

# From the authors' scripts. "text" (sparse word counts, Corel5k's visual words) is their bibtex, "dense",
# for any other data, their yeast: these two extensions are this package's choice.
_MPVAE: _Settings = {
    "scene": {"nll_weight": 0.1, "ranking_weight": 40.0},
    "mirflickr": {"nll_weight": 0.1, "ranking_weight": 200.0},
    "text": {"nll_weight": 10.0, "ranking_weight": 0.1},
    "dense": {"nll_weight": 0.1, "ranking_weight": 20.0},
}
_CLIF: _Settings = {
    "cal500": {"embedding_dim": 64, "link_weight": 1e-4, "in_layers": 1},
    "scene": {"embedding_dim": 128, "link_weight": 1e-3, "in_layers": 1},
    "yeast": {"embedding_dim": 256, "link_weight": 1e-3, "in_layers": 1},
    "corel5k": {"embedding_dim": 256, "link_weight": 1e-4, "in_layers": 1},
    "rcv1": {"embedding_dim": 256, "link_weight": 1e-1, "in_layers": 1},
    "tmc2007": {"embedding_dim": 256, "link_weight": 1.0, "in_layers": 2},
    "other": {"embedding_dim": 256, "link_weight": 1e-3, "in_layers": 1},
}
_CLIF_BETA = {"cal500": 0.4, "scene": 0.4, "yeast": 0.4, "corel5k": 0.3, "rcv1": 0.1, "tmc2007": 0.3}
_DELA: _Settings = {
    "corel5k": {"beta": 1e-4, "latent_dim": 50, "dropout": 0.0, "lr_ratio": 1.0},
    "rcv1": {"beta": 1e-3, "latent_dim": 50, "dropout": 0.7, "lr_ratio": 1.0},
    "tmc2007": {"beta": 1e-3, "latent_dim": 64, "dropout": 0.0, "lr_ratio": 0.1},
    "other": {"beta": 1e-3, "latent_dim": 50, "dropout": 0.0, "lr_ratio": 1.0},
}
_LEARNING_RATE: dict[str, dict[str, float]] = {
    "mpvae": {"scene": 2e-3, "yeast": 6e-4, "bibtex": 2.5e-4, "delicious": 5e-4, "mirflickr": 7.5e-4},
    "dela": {"corel5k": 3e-3, "rcv1": 3e-3, "tmc2007": 3e-3},
}
_TEXT = ("rcv1", "yahoo", "tmc2007", "bibtex", "delicious", "enron", "llog-f", "langlog", "corel5k")
_FAMILIES = ("rcv1", "yahoo", "tmc2007")
MODELS = ("mlp", "mpvae", "clif", "dela")
"""Names that `preset` and `build_model` know."""


def preset(model: str, dataset: str | None, calibration: bool = False) -> dict[str, Any]:
    """Return the constructor arguments of a model for a dataset; an unlisted one gets the default.

    Learning rates are not among them, because an experiment uses one for all; see `original_lr`.

    Args:
        model: One of `MODELS`.
        dataset: Name of a dataset, in any case; None for the model's own defaults.
        calibration: Include CLIF's β, which its authors tuned by hand per dataset; without it β stays 0.5.

    >>> preset("clif", "scene")
    {'embedding_dim': 128, 'link_weight': 0.001, 'in_layers': 1}
    >>> preset("dela", "rcv1subset2")["dropout"]
    0.7
    """
    check_model(model)
    if dataset is None or model == "mlp":
        return {}
    family = _family(dataset)
    if model == "mpvae":
        return dict(_MPVAE.get(family) or _MPVAE["text" if family in _TEXT else "dense"])
    if model == "dela":
        return dict(_DELA.get(family, _DELA["other"]))
    settings = dict(_CLIF.get(family, _CLIF["other"]))
    return settings | ({"beta": _CLIF_BETA.get(family, 0.5)} if calibration else {})


def original_lr(model: str, dataset: str | None = None) -> float:
    """Return the learning rate that the model's authors used for a dataset, 1e-3 where they gave none.

    >>> original_lr("mpvae", "yeast"), original_lr("clif", "yeast")
    (0.0006, 0.001)
    """
    check_model(model)
    return _LEARNING_RATE.get(model, {}).get("" if dataset is None else _family(dataset), 1e-3)


def check_model(model: str) -> None:
    """Raise if there is no model of this name."""
    if model not in MODELS:
        raise ValueError(f"model must be one of {', '.join(MODELS)}, got {model!r}; choose one of them.")


def _family(dataset: str) -> str:
    name = dataset.lower()
    return next((family for family in _FAMILIES if name.startswith(family)), name)
