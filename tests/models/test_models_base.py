"""What holds for every model: probabilities without labels, gradients, metrics, checkpoints, bf16, torch.compile."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from lightning_ubs.metrics import HIGHER_IS_BETTER
from lightning_ubs.models import MLP, MultiLabelModule, build_model

NAMES = ("mlp", "mpvae", "clif", "dela")
D, Q = 9, 5


def batch(n: int = 16, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(n, D, generator=generator)
    y = (x[:, :Q] + 0.2 * torch.randn(n, Q, generator=generator) > 0.5).float()
    return x, y


def model_of(name: str, **overrides: Any) -> MultiLabelModule:
    torch.manual_seed(0)
    model = build_model(name, D, Q, **overrides)
    if name == "clif":
        model.set_label_graph(batch(64)[1])  # type: ignore[operator]
    return model


def trainer_of(folder: Path, **options: Any) -> L.Trainer:
    quiet: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    quiet |= {"enable_checkpointing": False, "max_epochs": 2}
    return L.Trainer(accelerator="cpu", devices=1, default_root_dir=folder, **(quiet | options))


def loader(n: int = 64) -> DataLoader[Any]:
    return DataLoader(TensorDataset(*batch(n)), batch_size=16)


@pytest.mark.parametrize("name", NAMES)
def test_training_step_returns_a_loss_and_detached_probabilities(name: str) -> None:
    model = model_of(name)
    x, y = batch()
    loss, probs = model.loss_and_probs(x, y)
    assert loss.shape == ()
    assert probs.shape == (16, Q)
    model.log = lambda *args, **kwargs: None  # type: ignore[method-assign,misc]
    output = model.training_step((x, y), 0)
    assert output["loss"].requires_grad
    assert not output["probs"].requires_grad
    assert output["probs"].dtype == torch.float32
    assert ((output["probs"] >= 0) & (output["probs"] <= 1)).all()


@pytest.mark.parametrize("name", NAMES)
def test_labels_do_not_leak_into_the_probabilities(name: str) -> None:
    model = model_of(name)
    x, y = batch()
    losses, probs = [], []
    for labels in (y, 1 - y, torch.zeros_like(y)):
        torch.manual_seed(5)
        loss, predicted = model.loss_and_probs(x, labels)
        losses.append(float(loss.detach()))
        probs.append(predicted)
    assert all(torch.equal(probs[0], other) for other in probs[1:])
    assert len(set(losses)) == 3


@pytest.mark.parametrize("name", NAMES)
def test_gradients_reach_every_trainable_parameter(name: str) -> None:
    model = model_of(name)
    for x, y in (batch(seed=1), batch(seed=2)):
        model.loss_and_probs(x, y)[0].backward()
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.isfinite().all(), key
        assert parameter.grad.abs().sum() > 0, key


@pytest.mark.parametrize("name", NAMES)
def test_evaluation_repeats_itself_and_is_what_forward_returns(name: str) -> None:
    model = model_of(name).eval()
    x, _ = batch()
    with torch.no_grad():
        first, second = model(x), model(x)
        assert torch.equal(first, second)
        assert torch.equal(first, model.predict_probs(x))
        assert torch.equal(first, model.predict_step((x, None), 0))
        assert torch.equal(first, model.predict_step(x, 0))
    assert ((first >= 0) & (first <= 1)).all()


@pytest.mark.parametrize(("name", "overrides"), [("mlp", {"dropout": 0.5}), ("mpvae", {}), ("dela", {})])
def test_training_passes_are_noisy(name: str, overrides: dict[str, Any]) -> None:
    model = model_of(name, **overrides)
    x, y = batch()
    assert not torch.equal(model.loss_and_probs(x, y)[1], model.loss_and_probs(x, y)[1])


@pytest.mark.parametrize("name", NAMES)
def test_fit_lowers_the_loss_and_logs_every_metric(name: str, tmp_path: Path) -> None:
    model = model_of(name, lr=2e-3, dataset="bibtex")  # MPVAE's settings elsewhere need thousands of steps
    trainer = trainer_of(tmp_path, max_epochs=25)
    x, y = batch(64)
    torch.manual_seed(0)
    before = float(model.loss_and_probs(x, y)[0].detach())
    trainer.fit(model, loader(), loader())
    torch.manual_seed(0)
    assert float(model.train().loss_and_probs(x, y)[0].detach()) < before
    logged = set(trainer.callback_metrics)
    assert {"train_loss", "val_skipped_labels"} | {f"val_{key}" for key in HIGHER_IS_BETTER} <= logged
    tested = trainer.test(model, loader(), verbose=False)[0]
    extra = {"test_skipped_labels", "test_macro_auc_half"}
    assert {f"test_{key}" for key in HIGHER_IS_BETTER} | extra == set(tested)
    assert tested["test_macro_auc_half"] > 0.6


@pytest.mark.parametrize("name", NAMES)
def test_checkpoints_restore_the_model_with_weights_only(name: str, tmp_path: Path) -> None:
    model = model_of(name, lr=2e-3)
    checkpoint = ModelCheckpoint(tmp_path, monitor="val_macro_auc", mode="max")
    trainer_of(tmp_path, callbacks=[checkpoint], enable_checkpointing=True).fit(model, loader(), loader())
    path = checkpoint.best_model_path
    assert torch.load(path, weights_only=True)["hyper_parameters"]["lr"] == 2e-3
    restored = type(model).load_from_checkpoint(path, weights_only=True).eval()
    state = torch.load(path, weights_only=True)["state_dict"]
    for key, value in restored.state_dict().items():
        assert torch.equal(value, state[key]), key
    assert restored.lr == 2e-3
    again = trainer_of(tmp_path).predict(restored, loader())
    model.load_state_dict(state)
    with torch.no_grad():
        for probs, (x, _) in zip(again or [], loader(), strict=True):
            assert torch.equal(probs, model.eval()(x))  # type: ignore[arg-type]


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true"])
@pytest.mark.parametrize("name", NAMES)
def test_bf16_stays_finite_and_hands_out_single_precision(name: str, precision: str, tmp_path: Path) -> None:
    seen: list[Tensor] = []

    class Watch(L.Callback):
        def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, *rest: Any) -> None:
            seen.append(outputs["probs"])

    model = model_of(name)
    trainer = trainer_of(tmp_path, precision=precision, callbacks=[Watch()])
    trainer.fit(model, loader(), loader())
    assert all(parameter.isfinite().all() for parameter in model.parameters())
    assert trainer.callback_metrics["train_loss"].isfinite()
    assert trainer.callback_metrics["val_macro_auc"].isfinite()
    assert all(probs.dtype == torch.float32 and probs.isfinite().all() for probs in seen)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler, and g++ is not installed")
@pytest.mark.parametrize("name", NAMES)
def test_compiled_forward_predicts_the_same(name: str) -> None:
    model = model_of(name).eval()
    x, _ = batch()
    torch._dynamo.reset()
    with torch.no_grad():
        expected = model(x)
        compiled = torch.compile(model.predict_probs)(x)
    assert torch.allclose(compiled, expected, atol=1e-5)


def test_a_model_of_constant_output_is_exposed(tmp_path: Path) -> None:
    model = MLP(D, Q)
    torch.nn.init.zeros_(model.network[-1].weight)  # type: ignore[arg-type]
    with pytest.warns(UserWarning, match="flatters"):
        result = trainer_of(tmp_path).test(model, loader(), verbose=False)[0]
    assert result["test_macro_auc"] == 1.0
    assert result["test_macro_auc_half"] == 0.5


@pytest.mark.parametrize(("kept", "thirds"), [(batch(64)[1], 3), (batch(64)[1].numpy(), 3), (["a", "b"], 0), (None, 0)])
def test_precision_by_label_frequency_is_logged_where_the_labels_are_shown(
    kept: Any, thirds: int, tmp_path: Path
) -> None:
    class Data(L.LightningDataModule):
        train_labels = kept

        def train_dataloader(self) -> Any:
            return loader()

        val_dataloader = train_dataloader

    trainer = trainer_of(tmp_path, max_epochs=1)
    trainer.fit(MLP(D, Q), datamodule=Data())
    logged = trainer.callback_metrics
    assert sum(f"val_map_{third}" in logged for third in ("rare", "medium", "frequent")) == thirds
    if thirds:  # of five labels two are rare, two medium, one is frequent
        parts = [2 * logged["val_map_rare"], 2 * logged["val_map_medium"], logged["val_map_frequent"]]
        assert sum(parts) / 5 == pytest.approx(float(logged["val_map"]))


def test_optimizer_is_adam_with_coupled_decay() -> None:
    optimizer = MLP(D, Q, lr=0.01).configure_optimizers()
    assert type(optimizer) is torch.optim.Adam
    group = optimizer.param_groups[0]
    assert (group["lr"], group["betas"], group["weight_decay"]) == (0.01, (0.9, 0.999), 1e-4)
    assert not group["decoupled_weight_decay"]


def test_learning_rate_warms_up_linearly_when_asked(tmp_path: Path) -> None:
    rates: list[float] = []

    class Watch(L.Callback):
        def on_train_batch_start(self, trainer: Any, *rest: Any) -> None:
            rates.append(trainer.optimizers[0].param_groups[0]["lr"])

    trainer_of(tmp_path, max_epochs=3, callbacks=[Watch()]).fit(MLP(D, Q, lr=0.8, lr_warmup_epochs=2), loader())
    assert rates == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.8, 0.8, 0.8, 0.8])


def test_mlp_has_the_layers_that_were_asked_for() -> None:
    assert [tuple(p.shape) for p in MLP(D, Q, hidden=(7, 3)).parameters()] == [(7, D), (7,), (3, 7), (3,), (Q, 3), (Q,)]
    assert [tuple(p.shape) for p in MLP(D, Q, hidden=()).parameters()] == [(Q, D), (Q,)]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"num_labels": 0}, "num_labels.*0"),
        ({"num_features": 0}, "num_features.*0"),
        ({"lr": -1.0}, "lr.*-1"),
        ({"lr_warmup_epochs": -2}, "lr_warmup_epochs.*-2"),
    ],
)
def test_impossible_sizes_are_refused(overrides: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MLP(**({"num_features": D, "num_labels": Q} | overrides))
