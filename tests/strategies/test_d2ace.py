"""D2ACE against the slow reference, and where its parts come from."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import reference
import torch
from tiny_training import N, Tiny, data, fit, loader
from torch.utils.data import TensorDataset

from lightning_ubs import D2ACE, BatchSelection, Shuffled, TrainingSet
from lightning_ubs.functional import correlation, neighborhood_labels

SIZE, Q, D = 31, 4, 5


def shown(seed: int, steps: int = 45) -> tuple[list[tuple[np.ndarray, np.ndarray]], np.ndarray, np.ndarray]:
    """Steps of (ids, predictions), labels and features; some samples are never seen, and nobody has the last label."""
    rng = np.random.default_rng(seed)
    labels = (rng.random((SIZE, Q)) < [0.7, 0.4, 0.15, 0.0]).astype(np.float64)
    features = rng.random((SIZE, D)).astype(np.float32)
    steps_ = []
    for _ in range(steps):
        ids = rng.choice(SIZE - 3, size=6, replace=False)
        steps_.append((ids, np.clip(rng.random((6, Q)) * 1.2 - 0.1, 0, 1).astype(np.float32)))
    return steps_, labels, features


def trained(
    strategy: D2ACE, seed: int, with_features: bool = True, steps: int = 45
) -> tuple[D2ACE, list[Any], Any, Any]:
    steps_, labels, features = shown(seed, steps)
    rows = torch.from_numpy(features) if with_features else None
    strategy.reset(TrainingSet(SIZE, torch.from_numpy(labels).float(), rows))
    histories: list[Any] = [[] for _ in range(SIZE)]
    for ids, probs in steps_:
        strategy.update(torch.from_numpy(ids), torch.from_numpy(probs), torch.from_numpy(labels[ids]).float())
        for i, row in zip(ids, probs, strict=True):
            histories[i].append(row.tolist())
    return strategy, histories, labels, features


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("with_features", [True, False])
@pytest.mark.parametrize(("hardness", "offset"), [("paper", 1.0), ("code", 2.0)])
@pytest.mark.parametrize("progress", [0.0, 0.4, 0.9])
def test_p_equals_the_reference(
    seed: int, with_features: bool, hardness: Any, offset: float, progress: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(correlation, "_BLOCK_ROWS", 7)
    monkeypatch.setattr(correlation, "_BLOCK_CELLS", 7)
    strategy, histories, labels, features = trained(D2ACE(hardness=hardness), seed, with_features)
    strategy.progress = progress
    strategy.measure()
    beta = {0.0: 0.7, 0.4: 0.5, 0.9: 0.3}[progress]
    expected = reference.d2ace(histories, labels, features if with_features else None, 6.0, beta, offset=offset)
    np.testing.assert_allclose(strategy.probabilities(6.0).numpy(), expected, rtol=1e-5)
    assert (np.ptp(expected) > 0).all()


def test_its_parameters_reach_the_equations() -> None:
    made = D2ACE(lambda1=0.2, window=3, neighbors=2, beta_start=1.0, beta_end=0.5)
    strategy, histories, labels, features = trained(made, 5)
    strategy.progress = 0.4
    strategy.measure()
    expected = reference.d2ace(histories, labels, features, 3.0, 0.75, window=3, lambda1=0.2, neighbors=2)
    np.testing.assert_allclose(strategy.probabilities(3.0).numpy(), expected, rtol=1e-5)
    assert [round(D2ACE(s0=8).pressure_at(epoch, 10, 99), 4) for epoch in (10, 99, 120)] == [8.0, 1.0, 1.0]


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_first_visits_give_numbers(steps: int) -> None:
    strategy, *_ = trained(D2ACE(), 0, steps=steps)
    strategy.measure()
    found = strategy.probabilities(8.0)
    assert found.isfinite().all()
    assert (found > 0).all()
    assert found.sum().item() == pytest.approx(1)


def test_its_shuffled_control_deals_what_it_finds_at_the_same_point_of_the_training() -> None:
    strategy, *_ = trained(D2ACE(), 1)
    strategy.progress = 0.9
    strategy.measure()
    expected = strategy.probabilities(4.0)
    control = Shuffled(strategy=strategy)
    assert control.uses == {"features"}
    strategy.progress, control.progress = 0.0, 0.9
    control.measure()
    assert torch.equal(control.probabilities(4.0).sort().values, expected.sort().values)


def test_one_sample_is_its_own_neighborhood() -> None:
    assert neighborhood_labels(torch.tensor([[1, 0]]), torch.rand(1, 2), 6).tolist() == [[True, False]]


def test_certain_and_wrong_predictions_are_hard_without_becoming_infinite() -> None:
    strategy = D2ACE(neighbors=0)
    strategy.reset(TrainingSet(2, torch.tensor([[1.0], [0.0]])))
    strategy.update(torch.arange(2), torch.tensor([[0.0], [0.0]]), torch.tensor([[1.0], [0.0]]))
    strategy.measure()
    assert strategy.probabilities(4.0)[0] > strategy.probabilities(4.0)[1]


def test_a_training_follows_the_reference_with_the_features_of_the_dataset_or_without() -> None:
    for neighbors in (6, 0):
        selection = BatchSelection(D2ACE(neighbors=neighbors), warmup_epochs=1)
        module, watch, _ = fit(selection, max_epochs=5)
        x, y = data().tensors
        for epoch in (1, 2, 4):
            histories = module.histories(epoch)
            beta = 0.7 - 0.4 * min(1.0, max(0.0, (epoch / 5 - 0.1) / 0.6))
            pressure = reference.pressure(epoch, 1, 4, 8.0)
            features = x.numpy() if neighbors else None
            expected = reference.d2ace(histories, y.numpy().astype(float), features, pressure, beta)
            found = watch.shown[epoch]["probabilities"].numpy()
            np.testing.assert_allclose(found, expected, rtol=2e-3)
        assert module.ids() == watch.plans


def test_without_any_features_it_trains_on_labels_alone() -> None:
    class Rows(torch.utils.data.Dataset[Any]):
        def __init__(self) -> None:
            self.inner = data()
            self.labels = self.inner.tensors[1]

        def __len__(self) -> int:
            return N

        def __getitem__(self, index: int) -> Any:
            return self.inner[index]

    selection = BatchSelection(D2ACE(), warmup_epochs=1)
    fit(selection, Tiny(), loader(Rows()), max_epochs=3)
    strategy: Any = selection.strategy
    assert torch.equal(strategy._around, strategy._labels)
    fit(BatchSelection(D2ACE(), features=torch.rand(N, 2), warmup_epochs=1), Tiny(), loader(Rows()), max_epochs=2)


def test_frames_and_suspicious_labels_have_its_numbers() -> None:
    selection = BatchSelection(D2ACE(), warmup_epochs=1)
    fit(selection, train=loader(TensorDataset(*data().tensors)), max_epochs=3)
    frame = selection.to_frame()
    assert frame[["mean_uncertainty", "latest_loss", "weight"]].notna().all().all()
    assert selection.uncertainty.shape == (N, 3)
    assert len(selection.suspicious_labels(5)) == 5


@pytest.mark.parametrize("name", ["lambda1", "beta_start", "beta_end"])
def test_shares_out_of_range_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=rf"{name}=1.5 .*in \[0, 1\]"):
        D2ACE(**{name: 1.5})


def test_other_forms_of_hardness_are_refused() -> None:
    with pytest.raises(ValueError, match=r"hardness='exp' is unknown.*'paper' or 'code'"):
        D2ACE(hardness="exp")  # type: ignore[arg-type]
