"""U, C, w and P of a real training equal the slow reference, from predictions that the test recorded itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import reference
import torch
from tiny_training import N, Q, Tiny, Watch, data, fit, loader

from lightning_ubs import UBS, ActiveBias, BatchSelection, HardImbalance, RecencyBias

EPOCHS, WARMUP = 6, 2


def assert_shown(shown: dict[str, Any], expected: np.ndarray, correlated: bool, tolerance: float = 1e-6) -> np.ndarray:
    """U, C and w; gives the unscaled weights of the reference."""
    np.testing.assert_allclose(shown["uncertainty"].numpy(), expected, atol=tolerance)
    assert shown["uncertainty"].dtype == torch.float32
    matrix = reference.correlation(expected) if correlated else None
    if matrix is not None:
        np.testing.assert_allclose(shown["correlation"].numpy(), matrix, atol=1e-9)
    raw = reference.raw_weights(expected, matrix)
    np.testing.assert_allclose(shown["weights"].numpy(), reference.scale(raw), atol=10 * tolerance)
    return raw


def uncertainty_of(strategy: Any, module: Tiny, epoch: int) -> np.ndarray:
    known = module.histories(epoch)
    if isinstance(strategy, UBS):
        return reference.label_uncertainty([rows[-strategy.window :] for rows in known], Q, strategy.lambda1)
    if isinstance(strategy, RecencyBias):
        measure = lambda rows, j: reference.recency_entropy([r[j] for r in rows[-strategy.window :]])  # noqa: E731
    else:
        measure = lambda rows, j: reference.spread([r[j] for r in rows])  # noqa: E731
    return np.array([[measure(rows, j) for j in range(Q)] for rows in known])


def assert_epochs_follow_the_reference(strategy: Any, module: Tiny, watch: Watch, end: int = EPOCHS - 1) -> None:
    for steps in module.seen.values():  # the first of several places in a batch counts
        for k, (ids, probs) in enumerate(steps):
            first = [ids.index(i) for i in dict.fromkeys(ids)]
            steps[k] = ([ids[place] for place in first], probs[first])
    assert watch.shown[0]["uncertainty"] is None
    assert watch.shown[0]["weights"] is None
    for epoch in range(1, EPOCHS):
        shown = watch.shown[epoch]
        expected = uncertainty_of(strategy, module, epoch)
        raw = assert_shown(shown, expected, strategy.correlation is not None)
        if epoch < WARMUP:
            assert shown["pressure"] == 1.0
            assert shown["probabilities"].tolist() == pytest.approx([1 / N] * N)
        elif strategy.decays:
            pressure = reference.pressure(epoch, WARMUP, end, 100.0)
            assert shown["pressure"] == pytest.approx(pressure)
            probabilities = reference.probabilities(reference.scale(raw), pressure)
            np.testing.assert_allclose(shown["probabilities"].numpy(), probabilities, rtol=1e-6)
            assert shown["probabilities"].max() / shown["probabilities"].min() == pytest.approx(pressure)
        else:
            np.testing.assert_allclose(shown["probabilities"].numpy(), reference.proportional(raw), rtol=1e-4)


STRATEGIES = {
    "ubs": lambda: UBS(window=3),
    "ubs without fluctuation": lambda: UBS(lambda1=0.0),
    "ubs without entropy": lambda: UBS(lambda1=1.0),
    "ubs without correlation": lambda: UBS(correlation=None),
    "recency": RecencyBias,
    "recency with correlation": lambda: RecencyBias(correlation="mutual_information"),
    "active": ActiveBias,
    "active quantized with correlation": lambda: ActiveBias(mode="quantized", correlation="mutual_information"),
}


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_epoch_shows_what_the_reference_computes_from_the_epochs_before(name: str) -> None:
    torch.manual_seed(0)
    strategy = STRATEGIES[name]()
    module, watch, _ = fit(BatchSelection(strategy, warmup_epochs=WARMUP, seed=3), max_epochs=EPOCHS)
    assert_epochs_follow_the_reference(strategy, module, watch)


@pytest.mark.parametrize(
    "way", [{"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}, {"drop_last": True}]
)
def test_workers_and_dropped_batches_change_nothing_in_it(way: dict[str, Any]) -> None:
    torch.manual_seed(1)
    strategy = UBS()
    module, watch, _ = fit(BatchSelection(strategy, warmup_epochs=WARMUP), train=loader(**way), max_epochs=EPOCHS)
    assert_epochs_follow_the_reference(strategy, module, watch)


@pytest.mark.parametrize("replacement", ["batch", "none", "full"])
def test_other_ways_of_drawing_change_nothing_in_it(replacement: Any) -> None:
    class Noisy(Tiny):
        """Predicts something else for a sample that comes twice in a batch."""

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.net(x[:, 1:] + torch.randn_like(x[:, 1:]))

    torch.manual_seed(2)
    strategy = UBS()
    selection = BatchSelection(strategy, warmup_epochs=WARMUP, replacement=replacement)
    module, watch, _ = fit(selection, Noisy(), max_epochs=EPOCHS)
    assert_epochs_follow_the_reference(strategy, module, watch)


def test_limited_epochs_leave_samples_unseen_and_the_reference_agrees() -> None:
    torch.manual_seed(3)
    strategy = UBS()
    module, watch, _ = fit(BatchSelection(strategy, warmup_epochs=WARMUP), max_epochs=EPOCHS, limit_train_batches=2)
    assert_epochs_follow_the_reference(strategy, module, watch)
    assert any(not rows for rows in module.histories(WARMUP))


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true"])
def test_low_precision_predictions_become_probabilities_in_single_precision(precision: Any) -> None:
    torch.manual_seed(4)
    strategy = UBS(lambda1=0.0)
    module, watch, _ = fit(BatchSelection(strategy, warmup_epochs=WARMUP), max_epochs=EPOCHS, precision=precision)
    assert_epochs_follow_the_reference(strategy, module, watch)


def test_after_training_the_attributes_are_those_of_the_start_of_the_last_epoch() -> None:
    torch.manual_seed(5)
    selection = BatchSelection(UBS(), warmup_epochs=WARMUP)
    module, watch, _ = fit(selection, max_epochs=EPOCHS)
    last = watch.shown[EPOCHS - 1]
    for name in ("uncertainty", "correlation", "weights", "probabilities"):
        assert torch.equal(getattr(selection, name), last[name])
    assert selection.pressure == 1.0 == last["pressure"]
    assert selection.plan is not None
    assert [batch.tolist() for batch in selection.plan] == module.ids()[EPOCHS - 1]
    assert selection.plan[0].dtype == torch.int64


def test_start_and_end_of_selection_can_be_set() -> None:
    torch.manual_seed(6)
    selection = BatchSelection(UBS(s0=64.0), start_epoch=3, end_epoch=5)
    _, watch, _ = fit(selection, max_epochs=8)
    assert [watch.shown[epoch]["pressure"] for epoch in range(8)] == pytest.approx([1, 1, 1, 64, 8, 1, 1, 1])


@pytest.mark.parametrize("returned", ["probs", "logits"])
def test_hard_imbalance_equals_the_reference_in_every_epoch(returned: str) -> None:
    class Returning(Tiny):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            x, y = batch
            logits = self(x)
            self.record(x, logits)
            output = logits if returned == "logits" else logits.sigmoid()
            return {"loss": self.loss(logits, y), returned: output}

    torch.manual_seed(7)
    selection = BatchSelection(HardImbalance(neighbours=3), warmup_epochs=WARMUP)
    module, watch, _ = fit(selection, Returning(), max_epochs=EPOCHS)
    features, labels = (tensor.numpy() for tensor in data().tensors)
    importance = reference.imbalance_weights(labels, features, 3)
    for epoch in range(WARMUP, EPOCHS):
        loss = [
            reference.cross_entropy(rows[-1], labels[i].tolist()) if rows else 0.0
            for i, rows in enumerate(module.histories(epoch))
        ]
        expected = reference.hardness_probabilities(importance * loss, 8.0)
        np.testing.assert_allclose(watch.shown[epoch]["probabilities"].numpy(), expected, rtol=1e-6)
        assert watch.shown[epoch]["pressure"] == 8.0


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", torch.float16])
def test_a_history_in_half_precision_follows_the_reference_closely(dtype: Any) -> None:
    torch.manual_seed(8)
    selection = BatchSelection(UBS(correlation=None), warmup_epochs=WARMUP, history_dtype=dtype)
    module, watch, _ = fit(selection, max_epochs=EPOCHS)
    expected = uncertainty_of(selection.strategy, module, EPOCHS - 1)
    np.testing.assert_allclose(watch.shown[EPOCHS - 1]["uncertainty"].numpy(), expected, atol=2e-2)
    assert selection.strategy.memory.values.element_size() == 2


def test_the_drawn_samples_follow_the_probabilities() -> None:
    torch.manual_seed(9)
    selection = BatchSelection(UBS(s0=1e4), warmup_epochs=2, end_epoch=10_000)
    module, watch, _ = fit(selection, Tiny(lr=1e-6), max_epochs=42)
    counts = np.zeros(N)
    for epoch in range(2, 42):
        for ids in module.ids()[epoch]:
            counts[ids] += 1
    likely = watch.shown[41]["probabilities"].numpy() > 1 / N
    assert counts[likely].mean() > 2 * counts[~likely].mean()
