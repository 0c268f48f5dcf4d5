"""Losses for rare and hard labels against their closed forms, and beside every selection that reads a loss."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import lightning as L
import pytest
import torch
from tiny_training import trainer as quiet_trainer
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from lightning_ubs import UBS, BatchSelection, HardImbalance, InfoBatch, LossBias, SelectionError
from lightning_ubs.experiment.config import compose_train, resolved, run_key
from lightning_ubs.models import CLIF, DELA, MLP, build_model
from lightning_ubs.models.losses import WEIGHTED, LossName, asymmetric_loss, focal_loss, label_loss, positive_weights

LOSSES: tuple[LossName, ...] = get_args(LossName)
MODELS: list[Any] = [MLP, CLIF, DELA]


def data(n: int = 40) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(n, 4, generator=generator)
    y = torch.stack([x[:, 0] > 0.9, x[:, 1] > 0.5, x[:, 2] < 2], 1).float()
    return x, torch.cat([y, torch.zeros(n, 1)], 1)  # rare, common, always, never


def fit(model: Any, *callbacks: L.Callback, rows: Any = None, epochs: int = 3, **options: Any) -> L.Trainer:
    own = quiet_trainer(*callbacks, max_epochs=epochs)
    own.fit(model, DataLoader(rows or TensorDataset(*data()), batch_size=8), **options)
    return own


def test_weights_of_positives_are_the_ratio_of_negatives_or_its_root() -> None:
    y = data()[1]
    frequency = y.double().mean(0)
    weighted, balanced = (positive_weights(y, loss) for loss in WEIGHTED)
    seen = frequency > 0
    ratio = (1 - frequency[seen]) / frequency[seen]
    torch.testing.assert_close(balanced[seen].double(), ratio, rtol=1e-6, atol=0)
    torch.testing.assert_close(weighted[seen].double(), ratio.sqrt(), rtol=1e-6, atol=0)
    assert bool(torch.isfinite(weighted).all() and torch.isfinite(balanced).all()), "a label without positives"


@pytest.mark.parametrize("loss", LOSSES)
def test_each_loss_is_its_closed_form(loss: LossName) -> None:
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(50, 4, generator=generator, dtype=torch.float64) * 3
    y = (torch.rand(50, 4, generator=generator) < 0.3).double()
    p, weights = torch.sigmoid(logits), torch.tensor([1.0, 2.0, 0.5, 7.0], dtype=torch.float64)
    shifted = (p - 0.05).clamp(min=0)
    expected = {
        "bce": -(y * p.log() + (1 - y) * (1 - p).log()),
        "weighted": -(weights * y * p.log() + (1 - y) * (1 - p).log()),
        "balanced": -(weights * y * p.log() + (1 - y) * (1 - p).log()),
        "focal": -(y * (1 - p) ** 2 * p.log() + (1 - y) * p**2 * (1 - p).log()),
        "asymmetric": -(y * (1 - p) * p.log() + (1 - y) * shifted**4 * (1 - shifted).log()),
    }[loss].mean()
    found = label_loss(loss, logits.float(), y, weights.float() if loss in WEIGHTED else None)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("loss", [focal_loss, asymmetric_loss])
def test_certain_predictions_have_finite_losses_and_gradients(loss: Any) -> None:
    logits = torch.tensor([[-200.0, 200.0], [200.0, -200.0]], requires_grad=True)
    found = loss(logits, torch.tensor([[1.0, 1.0], [0.0, 0.0]]))
    found.backward()
    assert bool(found.isfinite())
    assert logits.grad is not None
    assert bool(logits.grad.isfinite().all())


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("loss", LOSSES)
def test_a_model_is_trained_with_the_loss_of_the_frequencies_of_its_training_set(kind: Any, loss: LossName) -> None:
    x, y = data()
    torch.manual_seed(0)
    model = kind(4, 4, loss=loss)
    fit(model, rows=TensorDataset(x[:30], y[:30]), epochs=1)
    if loss in WEIGHTED:
        assert torch.equal(model.positive_weights, positive_weights(y[:30], loss))
    model.eval()
    value = model.loss_and_probs(x, y)[0]
    assert bool(value.isfinite())
    # `log(p / (1 - p))` of the same pass gives the term of the labels; what a model adds to it is the same with BCE.
    torch.manual_seed(3)
    total, probs = model.loss_and_probs(x, y)
    torch.manual_seed(3)
    weights, scale = getattr(model, "positive_weights", None), model.num_labels if kind is DELA else 1
    model.loss = "bce"
    plain = model.loss_and_probs(x, y)[0]
    logits = probs.logit()
    expected = scale * (label_loss(loss, logits, y, weights) - label_loss("bce", logits, y))
    torch.testing.assert_close(total - plain, expected, rtol=1e-3, atol=1e-4)


def test_frequencies_are_saved_and_given_ones_are_kept(tmp_path: Path) -> None:
    x, y = data()
    model = MLP(4, 4, loss="balanced")
    with pytest.raises(RuntimeError, match=r"loss='balanced' has no label frequencies: call .*set_label_frequencies"):
        model.loss_and_probs(x, y)
    model.set_label_frequencies(y[:20])
    trainer = fit(model, epochs=1)
    assert torch.equal(model.positive_weights, positive_weights(y[:20], "balanced"))
    trainer.save_checkpoint(tmp_path / "m.ckpt")
    again = MLP.load_from_checkpoint(tmp_path / "m.ckpt", weights_only=True)
    assert torch.equal(again.loss_and_probs(x, y)[0], model.loss_and_probs(x, y)[0])
    with pytest.raises(ValueError, match=r"labels must have shape \(n, 4\)"):
        model.set_label_frequencies(y[:, :2])


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(TensorDataset(*data()))


def test_what_has_no_such_loss_is_refused_in_a_sentence() -> None:
    with pytest.raises(RuntimeError, match="has no label frequencies: call"):
        fit(MLP(4, 4, loss="weighted"), rows=Stream())
    with pytest.raises(ValueError, match=r"loss='focal' does not fit MPVAE.*; leave loss out, or choose mlp"):
        build_model("mpvae", 4, 4, loss="focal")
    with pytest.raises(ValueError, match=r"loss='weigthed' is unknown; did you mean 'weighted'\?"):
        build_model("mlp", 4, 4, loss="weigthed")


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("strategy", [HardImbalance, LossBias, InfoBatch, UBS])
def test_every_selection_that_reads_a_loss_trains_with_each(strategy: Any, loss: LossName) -> None:
    selection = BatchSelection(strategy(), warmup_epochs=1)
    fit(MLP(4, 4, hidden=[8], loss=loss), selection)
    assert selection.probabilities is not None
    assert bool(selection.probabilities.isfinite().all())


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("loss", LOSSES)
def test_unbiased_gradients_are_those_of_the_weighed_loss(kind: Any, loss: LossName) -> None:
    """Of a batch drawn with P, each sample's gradient counts 1/(nP): as its own loss times this weight would give."""

    class Watch(L.Callback):
        found: dict[str, Tensor]

        def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
            last = (trainer.current_epoch, trainer.fit_loop.epoch_loop.batch_idx) == (1, 0)
            if last and selection.importance_weights is not None:
                self.weights = selection.importance_weights.float()
                self.ids = selection.plan[0]
                self.before = {name: one.detach().clone() for name, one in pl_module.state_dict().items()}
                self.gradient = pl_module.heads_of.weight.grad.clone()

    torch.manual_seed(0)
    model = kind(4, 4, loss=loss)
    model.heads_of = model.network[-1] if kind is MLP else model.heads
    # CLIF's and DELA's other terms have no row per sample, so only the part of the predictions can be weighed.
    unbiased: Any = True if kind is MLP else "predictions"
    if kind is not MLP:
        with pytest.raises(SelectionError, match=r"% of the gradient does not pass .*unbiased=.predictions"):
            fit(kind(4, 4, loss=loss), BatchSelection(LossBias(), warmup_epochs=1, unbiased=True))
    watch, selection = Watch(), BatchSelection(LossBias(), warmup_epochs=1, unbiased=unbiased)
    fit(model, selection, watch)
    assert watch.weights.unique().numel() > 1
    if kind is DELA:  # draws noise in its step, so that it cannot be repeated here
        return
    x, y = data()
    model.load_state_dict(watch.before)
    model.train()
    model.zero_grad()
    for row, weight in zip(watch.ids, watch.weights, strict=True):
        loss_of_one = model.loss_and_probs(x[row : row + 1], y[row : row + 1])[0]
        (weight / len(watch.ids) * loss_of_one).backward()
    torch.testing.assert_close(model.heads_of.weight.grad, watch.gradient, rtol=1e-3, atol=1e-6)


def test_a_run_with_the_loss_of_before_keeps_its_key() -> None:
    config = resolved(compose_train(["data=yeast", "model=mlp"]))
    without = config | {"model": {name: value for name, value in config["model"].items() if name != "loss"}}
    other = config | {"model": config["model"] | {"loss": "weighted"}}
    assert run_key(config) == run_key(without) != run_key(other)
