"""Settings per dataset, and the factory that applies them."""

from __future__ import annotations

from typing import Any

import pytest

from lightning_ubs.models import CLIF, DELA, MLP, MPVAE, build_model, original_lr, preset


@pytest.mark.parametrize(
    ("dataset", "weights"),
    [
        ("scene", (0.1, 40)), ("yeast", (0.1, 20)), ("cal500", (0.1, 20)), ("emotions", (0.1, 20)),
        ("bibtex", (10, 0.1)), ("Corel5k", (10, 0.1)), ("rcv1subset2_aligned", (10, 0.1)),
        ("yahoo-Arts1", (10, 0.1)), ("tmc2007-500", (10, 0.1)), ("enron", (10, 0.1)), ("LLOG-F", (10, 0.1)),
    ],
)  # fmt: skip
def test_mpvae_weights_per_dataset(dataset: str, weights: tuple[float, float]) -> None:
    assert preset("mpvae", dataset) == {"nll_weight": weights[0], "ranking_weight": weights[1]}


@pytest.mark.parametrize(
    ("dataset", "values"),
    [
        ("cal500", (64, 1e-4, 1, 0.4)), ("scene", (128, 1e-3, 1, 0.4)), ("yeast", (256, 1e-3, 1, 0.4)),
        ("Corel5k", (256, 1e-4, 1, 0.3)), ("rcv1subset1", (256, 1e-1, 1, 0.1)), ("rcv1subset3", (256, 1e-1, 1, 0.1)),
        ("tmc2007-500", (256, 1.0, 2, 0.3)), ("bibtex", (256, 1e-3, 1, 0.5)),
    ],
)  # fmt: skip
def test_clif_settings_per_dataset_and_calibration_only_on_request(dataset: str, values: tuple[Any, ...]) -> None:
    keys = ("embedding_dim", "link_weight", "in_layers", "beta")
    expected = dict(zip(keys, values, strict=True))
    assert preset("clif", dataset, calibration=True) == expected
    del expected["beta"]
    assert preset("clif", dataset) == expected


@pytest.mark.parametrize(
    ("dataset", "values"),
    [
        ("corel5k", (1e-4, 50, 0.0, 1.0)), ("rcv1subset1", (1e-3, 50, 0.7, 1.0)),
        ("tmc2007-500", (1e-3, 64, 0.0, 0.1)), ("yeast", (1e-3, 50, 0.0, 1.0)),
    ],
)  # fmt: skip
def test_dela_settings_per_dataset(dataset: str, values: tuple[float, ...]) -> None:
    assert preset("dela", dataset) == dict(zip(("beta", "latent_dim", "dropout", "lr_ratio"), values, strict=True))


def test_original_learning_rates() -> None:
    assert original_lr("mpvae", "scene") == 2e-3
    assert original_lr("mpvae", "yeast") == 6e-4
    assert original_lr("dela", "rcv1subset2") == 3e-3
    assert {original_lr(name) for name in ("mlp", "mpvae", "clif", "dela")} == {1e-3}
    for cls in (MLP, MPVAE, CLIF, DELA):
        assert cls(4, 3).lr == 1e-3


@pytest.mark.parametrize(("name", "cls"), [("mlp", MLP), ("mpvae", MPVAE), ("clif", CLIF), ("dela", DELA)])
def test_factory_builds_each_model_and_overrides_win(name: str, cls: type[Any]) -> None:
    model = build_model(name, 4, 3, dataset="tmc2007-500", lr=1e-4)
    assert type(model) is cls
    assert model.hparams["lr"] == 1e-4
    for key, value in preset(name, "tmc2007-500").items():
        assert model.hparams[key] == value
    assert build_model("dela", 4, 3, dataset="tmc2007-500", latent_dim=7).hparams["latent_dim"] == 7


def test_preset_can_be_changed_without_changing_the_table() -> None:
    preset("dela", "yeast")["beta"] = 7
    assert preset("dela", "yeast")["beta"] == 1e-3


@pytest.mark.parametrize("call", [lambda: preset("vae", "yeast"), lambda: build_model("vae", 4, 3)])
def test_unknown_models_are_refused_with_the_choices(call: Any) -> None:
    with pytest.raises(ValueError, match=r"mlp, mpvae, clif, dela.*'vae'"):
        call()
