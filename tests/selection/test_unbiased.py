"""Weighed gradients: their mean is that of plain shuffling, whatever the samples are drawn by."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import lightning as L
import pytest
import torch
from tiny_training import D, N, Q, Tiny, data, fit, loader, trainer
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from lightning_ubs import UBS, ActiveBias, BatchSelection, InfoBatch, LossBias, Random, SelectionError, Strategy
from lightning_ubs.functional import importance_weights

Loss = Callable[[Tensor, Tensor], Tensor]


def from_halves(z: Tensor, y: Tensor) -> Tensor:
    return -(y * F.logsigmoid(z) + (1 - y) * F.logsigmoid(-z)).mean()


def focal(z: Tensor, y: Tensor) -> Tensor:
    """The gradient reaches the logits both through the cross-entropy and through the sigmoid."""
    p = z.sigmoid()
    right = p * y + (1 - p) * (1 - y)
    return (F.binary_cross_entropy_with_logits(z, y, reduction="none") * (1 - right) ** 2).mean()


def asymmetric(z: Tensor, y: Tensor) -> Tensor:
    p = z.sigmoid()
    hits, misses = y * p.clamp(min=1e-8).log(), (1 - y) * (1 - (p - 0.05).clamp(min=0)).clamp(min=1e-8).log()
    return -(hits * (1 - p) + misses * p**4).mean()


def picked(z: Tensor, y: Tensor) -> Tensor:
    rare = y > 0
    extra = F.binary_cross_entropy_with_logits(z[rare], y[rare], reduction="none").sum() / z.numel()
    return F.binary_cross_entropy_with_logits(z, y) + extra


LOSSES: dict[str, Loss] = {
    "asymmetric": asymmetric,
    "squares": lambda z, y: (z.sigmoid() - y).square().mean(),
    "of z/2, and another term of z": lambda z, y: (
        F.binary_cross_entropy_with_logits(z / 2, y) + (z.sigmoid() - y).square().mean()
    ),
    "with logits": F.binary_cross_entropy_with_logits,
    "of probabilities": lambda z, y: F.binary_cross_entropy(z.sigmoid().clamp(1e-6, 1 - 1e-6), y),
    "log-sigmoids": from_halves,
    "focal": focal,
    "flattened": lambda z, y: F.binary_cross_entropy_with_logits(z.flatten(), y.flatten()),
    "positive weights": lambda z, y: F.binary_cross_entropy_with_logits(z, y, pos_weight=torch.tensor(3.0)),
    "exclusive classes": lambda z, y: F.cross_entropy(z, y.argmax(1)),
    "with another term of the same head": lambda z, y: (
        0.3 * F.binary_cross_entropy_with_logits(z, y) + (z.sigmoid() - y).square().mean()
    ),
}


class Double(Tiny):
    """Float64; keeps each step's gradient and what it follows from."""

    def __init__(self, loss: Loss = F.binary_cross_entropy_with_logits, lr: float = 0.3) -> None:
        torch.manual_seed(1)
        super().__init__(lr=lr)
        self.double()
        self.loss = loss
        self.steps: list[tuple[int, Tensor, Tensor, Tensor]] = []

    def on_after_backward(self) -> None:
        assert self.net.weight.grad is not None
        ids = torch.tensor(self.seen[self.current_epoch][-1][0])
        self.steps.append((self.current_epoch, ids, self.net.weight.detach().clone(), self.net.weight.grad.clone()))


def doubles(n: int = N) -> TensorDataset:
    return TensorDataset(*(part.double() for part in data(n).tensors))


def row_by_row(module: Double, weight: Tensor, ids: Tensor, counts: Tensor) -> Tensor:
    """The gradient of the mean over samples of their own loss times what they count, one sample after the other."""
    x, y = doubles().tensors
    weight = weight.clone().requires_grad_()
    logits = F.linear(x[ids, 1:], weight, module.net.bias.detach())
    losses = [count * module.loss(z[None], y[i][None]) for z, i, count in zip(logits, ids, counts, strict=True)]
    return torch.autograd.grad(torch.stack(losses).mean(), weight)[0]


class NoBias(Double):
    """Its bias does not change, so that a step follows from its weight alone."""

    def __init__(self, loss: Loss = F.binary_cross_entropy_with_logits, lr: float = 0.3) -> None:
        super().__init__(loss, lr)
        self.net.bias.requires_grad_(False)


def unbiased(strategy: Any = None, **options: Any) -> BatchSelection:
    given = {"warmup_epochs": 1, "replacement": "systematic", "unbiased": True}
    return BatchSelection(strategy or LossBias(s0=50.0), **given | options)


@pytest.mark.parametrize("name", LOSSES)
def test_each_gradient_is_that_of_a_weighted_loss(name: str) -> None:
    module, watch, _ = fit(unbiased(), NoBias(LOSSES[name]), loader(doubles()), max_epochs=4)
    assert len(module.steps) == 4 * 6
    for epoch, ids, weight, gradient in module.steps:
        counts = importance_weights(watch.shown[epoch]["probabilities"])[ids]
        assert torch.allclose(gradient, row_by_row(module, weight, ids, counts), rtol=0, atol=1e-8)
        assert epoch in (0, 3) or len(ids) < 8 or counts.max() / counts.min() > 1.5


class Positives(Strategy):
    """Samples with the first label come five times as often."""

    warms_up = False
    needs = frozenset()

    def probabilities(self, pressure: float) -> Tensor:
        weights = 1 + 4 * doubles(self.num_samples).tensors[1][:, 0]
        return weights / weights.sum()


@pytest.mark.parametrize("epoch_size", [None, 0.5])
@pytest.mark.parametrize("replacement", ["systematic", "full"])
def test_the_mean_gradient_of_many_epochs_is_the_full_gradient_and_else_it_is_not(
    replacement: Any, epoch_size: Any
) -> None:
    n, epochs = 14, 100
    errors = {}
    for flag in (True, False):
        module = NoBias(lr=0.0)
        selection = unbiased(Positives(), replacement=replacement, epoch_size=epoch_size, unbiased=flag)
        # Batches of equal size, so that a mean of batches is a mean of samples.
        fit(selection, module, loader(doubles(n), batch_size=7), max_epochs=epochs)
        means = torch.stack([gradient for *_, gradient in module.steps]).view(epochs, -1, Q, D - 1).mean(1)
        x, y = doubles(n).tensors
        full = torch.autograd.grad(module.loss(module(x), y), module.net.weight)[0]
        spread = means.std(0) / epochs**0.5
        errors[flag] = ((means.mean(0) - full) / spread).abs()
    assert errors[True].max() < 4
    assert errors[False].max() > 8


@pytest.mark.parametrize("flag", [True, "annealed"])
def test_plain_epochs_are_trained_exactly_as_without_weights(flag: Any) -> None:
    for strategy, options in ((UBS, {"warmup_epochs": 9}), (Random, {})):
        plain, *_ = fit(unbiased(strategy(), unbiased=False, **options), Double(), loader(doubles()))
        weighed, *_ = fit(unbiased(strategy(), unbiased=flag, **options), Double(), loader(doubles()))
        assert plain.ids() == weighed.ids()
        assert torch.equal(plain.net.weight, weighed.net.weight)


class Weights(L.Callback):
    """The weights that the selection shows in training_step, by epoch and in order of ids."""

    def __init__(self, selection: BatchSelection) -> None:
        self.selection = selection
        self.shown: dict[int, list[Tensor]] = {}

    def on_train_batch_start(self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, k: int) -> None:
        shown = self.selection.importance_weights
        assert shown is not None
        assert shown.shape == (len(batch[0]),)
        assert shown.dtype == torch.float32
        self.shown.setdefault(trainer.current_epoch, []).append(shown)


def test_annealed_weights_grow_to_the_unbiased_ones_over_the_selected_epochs() -> None:
    selection = unbiased(LossBias(mode="proportional"), unbiased="annealed")
    weights = Weights(selection)
    watch_trainer = trainer(selection, weights, max_epochs=6)
    shown: dict[int, Tensor] = {}

    class Keep(L.Callback):
        def on_train_epoch_start(self, trainer: L.Trainer, *_: Any) -> None:
            shown[trainer.current_epoch] = selection.probabilities.clone()  # type: ignore[union-attr]

    watch_trainer.callbacks.append(Keep())  # type: ignore[attr-defined]
    module = Tiny()
    watch_trainer.fit(module, loader())
    for epoch in range(6):
        ids = torch.tensor([i for batch in module.ids()[epoch] for i in batch])
        exponent = (0, 0, 0.25, 0.5, 0.75, 1)[epoch]
        expected = importance_weights(shown[epoch])[ids] ** exponent
        assert torch.allclose(torch.cat(weights.shown[epoch]).double(), expected, rtol=1e-6)
    assert selection.importance_weights is None


def test_annealing_needs_a_last_epoch() -> None:
    with pytest.raises(SelectionError, match="the last epoch, at which selection should end, is unknown"):
        fit(unbiased(ActiveBias(), unbiased="annealed"), max_epochs=-1)


class ByHand(Double):
    """Weighs its loss itself, as the documentation says."""

    selection: BatchSelection

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        logits = self(x)
        self.record(x, logits)
        losses = F.binary_cross_entropy_with_logits(logits, y, reduction="none").mean(1)
        assert self.selection.importance_weights is not None
        return (losses * self.selection.importance_weights).mean()


def test_weighing_by_hand_gives_the_same_training() -> None:
    module = ByHand()
    module.selection = unbiased(unbiased=False)
    fit(module.selection, module, loader(doubles()))
    other, *_ = fit(unbiased(), Double(), loader(doubles()))
    assert module.ids() == other.ids()
    assert torch.allclose(module.net.weight, other.net.weight, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    "options",
    [
        {"accumulate_grad_batches": 2},
        {"gradient_clip_val": 0.05},
        {"gradient_clip_val": 0.01, "gradient_clip_algorithm": "value"},
    ],
)
def test_accumulated_and_clipped_gradients_are_those_of_a_weighted_loss(options: dict[str, Any]) -> None:
    by_hand = ByHand()
    by_hand.selection = unbiased(unbiased=False)
    fit(by_hand.selection, by_hand, loader(doubles()), **options)
    weighed, *_ = fit(unbiased(), Double(), loader(doubles()), **options)
    plain, *_ = fit(unbiased(unbiased=False), Double(), loader(doubles()), **options)
    assert torch.allclose(weighed.net.weight, by_hand.net.weight, rtol=0, atol=1e-6)
    assert not torch.allclose(weighed.net.weight, plain.net.weight, rtol=0, atol=1e-3)


def test_mixed_precision_weighs_as_well() -> None:
    class Mixed(NoBias):
        def __init__(self) -> None:
            super().__init__()
            self.float()

    module, watch, _ = fit(unbiased(), Mixed(), precision="bf16-mixed")
    for epoch, ids, weight, gradient in module.steps:
        counts = importance_weights(watch.shown[epoch]["probabilities"])[ids]
        expected = row_by_row(module.double(), weight.double(), ids, counts)
        assert torch.allclose(gradient.double(), expected, rtol=0, atol=2e-2 * float(expected.abs().max()))


class Twice(NoBias):
    """Two backward passes through one graph, by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        logits = self(x)
        self.record(x, logits)
        optimizer: Any = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(self.loss(logits, y), retain_graph=True)
        self.manual_backward(self.loss(logits, y))
        optimizer.step()


def test_every_backward_pass_of_a_step_is_weighed_once() -> None:
    module, watch, _ = fit(unbiased(), Twice(), loader(doubles()))
    for (epoch, ids, weight, first), (*_, both) in zip(module.steps[::2], module.steps[1::2], strict=True):
        expected = row_by_row(module, weight, ids, importance_weights(watch.shown[epoch]["probabilities"])[ids])
        assert torch.allclose(first, expected, rtol=0, atol=1e-8)
        assert torch.allclose(both, 2 * expected, rtol=0, atol=1e-8)


def test_several_heads_are_weighed_and_what_reads_no_predictions_is_not() -> None:
    class Heads(NoBias):
        def __init__(self) -> None:
            super().__init__()
            self.other = nn.Linear(D - 1, 2).double()

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            x, y = batch
            other = F.binary_cross_entropy_with_logits(self.other(x[:, 1:]), y[:, :2])
            return super().training_step(batch, batch_idx) + 0.1 * other + 0.5 * self.net.weight.square().sum()

    module, watch, _ = fit(unbiased(), Heads(), loader(doubles()))
    for epoch, ids, weight, gradient in module.steps:
        counts = importance_weights(watch.shown[epoch]["probabilities"])[ids]
        assert torch.allclose(gradient, row_by_row(module, weight, ids, counts) + weight, rtol=0, atol=1e-8)


def test_nothing_of_a_step_is_kept() -> None:
    class Watched(Tiny):
        def forward(self, x: Tensor) -> Tensor:
            logits = super().forward(x)
            self.logits = weakref.ref(logits)
            return logits

    class Look(L.Callback):
        def on_train_epoch_end(self, trainer: L.Trainer, pl_module: Any) -> None:
            gc.collect()
            assert pl_module.logits() is None

    trainer(unbiased(), Look(), max_epochs=2).fit(Watched(), loader())


@pytest.mark.parametrize("loss", [picked, lambda z, y: focal(z, y) + focal(z * 2 + 1, y)], ids=["picked", "refined"])
def test_terms_of_picked_elements_and_of_other_predictions_are_weighed(loss: Loss) -> None:
    module = NoBias(loss)
    selection = unbiased(outputs=lambda *_: module.seen[module.current_epoch][-1][1])
    _, watch, _ = fit(selection, module, loader(doubles()), max_epochs=4)
    for epoch, ids, weight, gradient in module.steps:
        counts = importance_weights(watch.shown[epoch]["probabilities"])[ids]
        assert torch.allclose(gradient, row_by_row(module, weight, ids, counts), rtol=0, atol=1e-8)


class Crops(NoBias):
    """Another view of each sample, in one tensor with that of the others."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        self.record(x, self(x))
        loss: Tensor = super().training_step(batch, batch_idx)
        return loss + self.loss(self(torch.cat([x, x + 1])), torch.cat([y, y]))


def test_what_has_no_row_per_sample_is_refused_before_anything_is_trained_unless_it_is_accepted() -> None:
    module = Crops()
    before = module.net.weight.clone()
    with pytest.raises(
        SelectionError, match=r'\d % of the gradient.*\[16, 3\].*unbiased="predictions".*importance_weights'
    ):
        fit(unbiased(warmup_epochs=3), module, loader(doubles()))
    assert not module.steps
    assert torch.equal(module.net.weight, before)
    accepted, *_ = fit(unbiased(unbiased="predictions"), Crops(), loader(doubles()))
    assert len(accepted.steps) == 4 * 6


class Bare(NoBias):
    """Optimizes by hand, past Lightning."""

    def __init__(self, backward: str, wrapped: bool = True) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.backward_by, self.wrapped = backward, wrapped

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        logits = self(x)
        self.record(x, logits)
        optimizer: Any = self.optimizers(use_pl_optimizer=self.wrapped)
        if batch_idx % 2 == 0:
            optimizer.zero_grad()
        loss = self.loss(logits, y)
        self.manual_backward(loss / 2) if self.backward_by == "manual_backward" else (loss / 2).backward()
        if batch_idx % 2 == 1:
            optimizer.step()
        return {"logits": logits}


@pytest.mark.parametrize("wrapped", [True, False])
@pytest.mark.parametrize(
    "selection", [lambda: unbiased(), lambda: BatchSelection(InfoBatch())], ids=["UBS", "InfoBatch"]
)
def test_a_backward_pass_that_no_hook_shows_is_refused_in_the_first_steps(selection: Any, wrapped: bool) -> None:
    module = Bare("backward", wrapped)
    with pytest.raises(SelectionError, match=r"unbiased=True.*call self\.manual_backward\(loss\)"):
        fit(selection(), module, loader(doubles()), limit_train_batches=4)
    assert len(module.seen[0]) <= 2
    trained, *_ = fit(selection(), Bare("manual_backward", wrapped), loader(doubles()), max_epochs=4)
    assert trained.ids()


def test_by_hand_each_step_of_an_accumulated_gradient_is_weighed() -> None:
    module, watch, _ = fit(unbiased(), Bare("manual_backward"), loader(doubles()), max_epochs=4)
    assert len(module.steps) == 4 * 6
    for k in range(0, len(module.steps), 2):
        (epoch, ids, weight, first), (_, others, _, both) = module.steps[k : k + 2]
        counts = importance_weights(watch.shown[epoch]["probabilities"])
        parts = [row_by_row(module, weight, some, counts[some]) / 2 for some in (ids, others)]
        assert torch.allclose(first, parts[0], rtol=0, atol=1e-8)
        assert torch.allclose(both, parts[0] + parts[1], rtol=0, atol=1e-8)


def test_samples_that_are_never_drawn_are_refused() -> None:
    class Never(UBS):
        def probabilities(self, pressure: float) -> Tensor:
            return torch.cat([torch.zeros(2), torch.ones(N - 2)])

    with pytest.raises(SelectionError, match="never draws 2 of the samples"):
        fit(unbiased(Never()))


@pytest.mark.parametrize("flag", [True, "annealed"])
@pytest.mark.parametrize("replacement", ["batch", "none"])
def test_weights_need_a_way_of_drawing_whose_mean_is_exact(flag: Any, replacement: Any) -> None:
    with pytest.raises(ValueError, match=r"unbiased=.*use replacement='systematic' or 'full'\.$"):
        BatchSelection(unbiased=flag, replacement=replacement)


def test_infobatch_trains_on_fewer_samples_and_lets_the_easy_ones_count_more() -> None:
    selection = BatchSelection(InfoBatch(prune=0.5), warmup_epochs=2)
    weights = Weights(selection)
    assert (selection.epoch_size, selection.replacement, selection.unbiased) == (0.75, "systematic", True)
    made = trainer(selection, weights, max_epochs=16)
    module = Tiny()
    made.fit(module, loader())
    drawn = {epoch: [i for ids in batches for i in ids] for epoch, batches in module.ids().items()}
    assert {len(ids) for ids in drawn.values()} == {32}  # 0.75 · 42 samples
    for epoch in range(16):
        shown = torch.cat(weights.shown[epoch]).unique()
        if 2 <= epoch < 14:
            assert shown.tolist() == pytest.approx([shown[0].item(), 2 * shown[0].item()])
            assert shown[0] < 1 < shown[1]
        else:  # the warm-up, and the last eighth of the epochs
            assert shown.tolist() == [1.0]
    plain, *_ = fit(BatchSelection(Random(), epoch_size=0.75), max_epochs=16)
    assert {epoch for epoch in drawn if module.ids()[epoch] == plain.ids()[epoch]} == {0, 1, 14, 15}


def test_infobatch_ends_where_the_user_says() -> None:
    selection = BatchSelection(InfoBatch(), warmup_epochs=1, end_epoch=3, epoch_size=1)
    module, watch, _ = fit(selection, max_epochs=6)
    uniform = {epoch: len(shown["probabilities"].unique()) == 1 for epoch, shown in watch.shown.items()}
    assert uniform == {0: True, 1: False, 2: False, 3: True, 4: True, 5: True}
    assert all(sorted(i for ids in module.ids()[e] for i in ids) == list(range(N)) for e in (0, 3, 4, 5))


def test_infobatch_refuses_a_way_of_drawing_that_its_weights_do_not_fit() -> None:
    for replacement in ("batch", "none"):
        with pytest.raises(ValueError, match=rf"replacement='{replacement}' does not go with InfoBatch.*leave it out"):
            BatchSelection(InfoBatch(), replacement=replacement)
    assert BatchSelection(InfoBatch(), replacement="full", unbiased=False, epoch_size=0.5).epoch_size == 0.5
    with pytest.raises(SelectionError, match="the last epoch, at which selection should end, is unknown"):
        fit(BatchSelection(InfoBatch()), max_epochs=-1)
