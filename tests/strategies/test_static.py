"""Strategies that know P before the training: what P is, when it stops, and that they work with any module."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import lightning as L
import numpy as np
import pandas as pd
import pytest
import reference
import torch
from scipy import sparse
from tiny_training import D, N, Tiny, Watch, data, fit, loader, trainer
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_ubs import (
    Balance,
    BatchSelection,
    ClassAware,
    HardImbalance,
    RepeatFactor,
    SelectionError,
    Strategy,
    TrainingSet,
    Weighted,
)


def labels(seed: int = 0, n: int = 40, q: int = 5) -> np.ndarray:
    """Labels of which some are rare; some samples have none, and one label nobody has."""
    found = (np.random.default_rng(seed).random((n, q)) < np.geomspace(0.5, 0.03, q)).astype(np.float64)
    found[:, 2] = 0
    return found


def p_of(strategy: Strategy, matrix: Any, given: bool = True) -> np.ndarray:
    rows = torch.as_tensor(matrix)
    strategy.reset(TrainingSet(len(rows), labels=rows if given else None))
    return strategy.probabilities(1.0).numpy()


@pytest.mark.parametrize("seed", range(4))
def test_p_equals_the_reference(seed: int) -> None:
    matrix = labels(seed)
    assert (matrix.sum(1) == 0).any()
    expected = reference.class_aware(matrix)
    np.testing.assert_allclose(p_of(ClassAware(), matrix), expected / expected.sum(), rtol=1e-12)
    for threshold in (0.001, 0.1, 1.0):
        for frequency in ("image", "instance"):
            expected = reference.repeat_factors(matrix, threshold, frequency == "instance")
            found = p_of(RepeatFactor(threshold, frequency=frequency), matrix)
            np.testing.assert_allclose(found, expected / expected.sum(), rtol=1e-12)
    weights = np.random.default_rng(seed).random(40)
    np.testing.assert_allclose(p_of(Weighted(weights), matrix), weights / weights.sum(), rtol=1e-12)


def test_numbers_of_instances_count_where_frequency_is_by_instance() -> None:
    boxes = labels() * np.random.default_rng(1).integers(1, 9, (40, 5))
    expected = reference.repeat_factors(boxes, 0.3, by_instance=True)
    found = p_of(RepeatFactor(0.3, frequency="instance", labels=boxes), boxes, given=False)
    np.testing.assert_allclose(found, expected / expected.sum(), rtol=1e-12)


@pytest.mark.parametrize(
    "kind", [lambda: RepeatFactor(0.4), lambda: RepeatFactor(0.4, frequency="instance"), ClassAware]
)
def test_class_ids_mean_the_same_as_their_one_hot_rows(kind: Any) -> None:
    ids = np.random.default_rng(0).choice(6, size=50, p=[0.5, 0.3, 0.1, 0.0, 0.06, 0.04])
    np.testing.assert_allclose(p_of(kind(), ids), p_of(kind(), np.eye(6)[ids]), rtol=1e-12)


def test_without_any_label_every_sample_is_as_likely() -> None:
    for strategy in (ClassAware(), RepeatFactor(0.5)):
        assert p_of(strategy, np.zeros((4, 3))).tolist() == [0.25] * 4


@pytest.mark.parametrize(
    "of",
    [list, np.array, torch.tensor, lambda w: np.array(w, dtype=np.int32), lambda w: pd.Series(w, index=[7, 8, 9])],
)
def test_weights_come_as_lists_arrays_or_tensors(of: Any) -> None:
    assert p_of(Weighted(of([1, 0, 3])), np.zeros((3, 1))).tolist() == [0.25, 0.0, 0.75]


@pytest.mark.parametrize("of", [pd.DataFrame, sparse.csr_matrix, np.ndarray.tolist])
def test_labels_come_as_frames_sparse_matrices_or_lists(of: Any) -> None:
    matrix = labels()
    for kind in (ClassAware, partial(RepeatFactor, np.float32(0.5))):
        assert (p_of(kind(labels=of(matrix)), matrix, given=False) == p_of(kind(), matrix)).all()


def test_weights_whose_sum_is_no_float_are_weights() -> None:
    assert p_of(Weighted([1e308, 1e308]), np.zeros((2, 1))).tolist() == [0.5, 0.5]


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1.0, -2.0], r"weights\[1\]=-2\.0 .*at least 0"),
        ([float("nan"), 1.0], r"weights\[0\]=nan .*finite"),
        ([1.0, float("inf")], r"weights\[1\]=inf .*finite"),
        ([0.0, 0.0], "all 0.*positive"),
        ([], r"shape \[0\]; pass one number per training sample"),
        ([[1.0, 2.0]], r"shape \[1, 2\]"),
        (None, "NoneType are no numbers; pass one number"),
        ("ubs", "str are no numbers"),
        ([1 + 2j, 1], "list are no numbers"),
        ([1, [2]], "list are no numbers"),
    ],
)
def test_weights_that_cannot_be_drawn_by_are_refused(weights: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Weighted(weights)


def test_weights_of_another_number_of_samples_are_refused_before_training() -> None:
    with pytest.raises(SelectionError, match=f"there are 3 weights for {N} training samples; pass one number"):
        fit(BatchSelection(Weighted([1, 2, 3])))


@pytest.mark.parametrize("threshold", [0, -0.1, 1.5, float("nan"), "x", None])
def test_a_threshold_that_is_no_share_is_refused(threshold: Any) -> None:
    with pytest.raises(ValueError, match=r"threshold=.*share in \(0, 1\]"):
        RepeatFactor(threshold)


SOFT, MISSING = torch.full((N, 2), 0.1), torch.ones(N, 2) / 0 * 0


@pytest.mark.parametrize(
    "bad", [torch.zeros(3, 2), torch.zeros(N), -torch.ones(N, 2), torch.zeros(N, 2, 2), SOFT, MISSING]
)
def test_labels_of_no_use_are_refused(bad: Tensor) -> None:
    for strategy in (ClassAware(labels=bad), RepeatFactor(0.5, labels=bad)):
        with pytest.raises(SelectionError, match=f"{N} training samples; pass "):
            fit(BatchSelection(strategy))


def test_class_ids_in_a_column_are_refused_and_the_way_out_works() -> None:
    column = torch.arange(6).unsqueeze(1) % 3
    with pytest.raises(SelectionError, match=r"up to 2: one column .*labels\[:, 0\]"):
        p_of(ClassAware(labels=column), column, given=False)
    assert p_of(ClassAware(labels=column[:, 0]), column, given=False) == pytest.approx(1 / 6)


def test_labels_may_be_given_to_the_callback_or_found_as_class_ids_in_the_dataset() -> None:
    ids = torch.arange(N) % 4 // 2 + (torch.arange(N) == 7)
    expected = p_of(ClassAware(), ids.numpy())
    features = data().tensors[0]

    class Classes(Tiny):
        def loss(self, logits: Tensor, y: Tensor) -> Tensor:
            return nn.functional.cross_entropy(logits, y)

    for train, given in ((TensorDataset(features, ids), ids), (Listed(features, ids), None)):
        selection = BatchSelection(ClassAware(), labels=given)
        fit(selection, Classes(), loader(train), max_epochs=1)
        assert selection.probabilities.numpy() == pytest.approx(expected)
    with pytest.raises(SelectionError, match=r"ClassAware needs .* or labels=ids with one class id"):
        fit(BatchSelection(ClassAware()), Classes(), loader(TensorDataset(features, ids)))
    with pytest.raises(SelectionError, match=r"but HardImbalance needs.*for class ids, one_hot\(ids.long\(\)\)"):
        fit(BatchSelection(HardImbalance(), labels=ids.float()), Classes(), loader(TensorDataset(features, ids)))


@pytest.mark.parametrize("strategy", [Balance, HardImbalance])
def test_class_ids_draw_as_their_one_hot_matrix_does(strategy: Callable[[], Strategy]) -> None:
    ids = torch.arange(N) % 4 // 2 + (torch.arange(N) == 7)
    features = data().tensors[0]

    class Classes(Tiny):
        def loss(self, logits: Tensor, y: Tensor) -> Tensor:
            return nn.functional.cross_entropy(logits, y)

    drawn = []
    for train, given in (
        (TensorDataset(features, ids), nn.functional.one_hot(ids)),
        (TensorDataset(features, ids), ids),
        (Listed(features, ids), None),
    ):
        selection = BatchSelection(strategy(), labels=given, features=features, warmup_epochs=1)
        L.seed_everything(0, verbose=False)
        fit(selection, Classes(), loader(train), max_epochs=2)
        drawn.append((selection.plan.ids, selection.probabilities))
    assert all(torch.equal(ids, drawn[0][0]) for ids, _ in drawn)
    assert all(torch.equal(p, drawn[0][1]) for _, p in drawn)


class Listed(torch.utils.data.Dataset):
    """Class ids in ``targets``, as torchvision's datasets keep them."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.rows, self.targets = list(x), y.tolist()

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> Any:
        return self.rows[index], self.targets[index]


def plain_epochs(watch: Watch) -> list[bool]:
    return [sorted(i for batch in watch.plans[epoch] for i in batch) == list(range(N)) for epoch in sorted(watch.plans)]


HEAVY = [1.0] * (N - 2) + [30.0, 30.0]


@pytest.mark.parametrize(
    ("options", "plain"),
    [
        ({}, [False] * 3 + [True] * 3),
        ({"end_epoch": 1}, [False] + [True] * 5),
        ({"end_epoch": 4}, [False] * 4 + [True] * 2),
        ({"end_epoch": 0.34}, [False] * 2 + [True] * 4),
        ({"end_epoch": 0.2}, [False] + [True] * 5),
        ({"end_epoch": 0.01}, [False] + [True] * 5),
        ({"end_epoch": 1.0}, [False] * 6),
        ({"start_epoch": 2}, [True] * 2 + [False] + [True] * 3),
        ({"start_epoch": 4}, [True] * 4 + [False, True]),
        ({"warmup_epochs": 5}, [False] * 3 + [True] * 3),
    ],
)
def test_emphasis_comes_first_and_then_plain_passes(options: dict[str, Any], plain: list[bool]) -> None:
    module, watch, _ = fit(BatchSelection(Weighted(HEAVY), **options), max_epochs=6)
    assert plain_epochs(watch) == plain
    assert module.ids() == watch.plans


@pytest.mark.parametrize("end", [3, 0.5])
def test_any_strategy_without_a_falling_pressure_stops_at_the_end_that_is_chosen(end: float) -> None:
    selection = BatchSelection(HardImbalance(pressure=64), warmup_epochs=1, end_epoch=end)
    _, watch, _ = fit(selection, max_epochs=6)
    assert plain_epochs(watch) == [True, False, False, True, True, True]
    _, watch, _ = fit(BatchSelection(HardImbalance(pressure=64), warmup_epochs=1), max_epochs=6)
    assert plain_epochs(watch) == [True] + [False] * 5


@pytest.mark.parametrize("end", [0.0, -0.5, 1.5, float("nan")])
def test_an_end_that_is_neither_epoch_nor_share_is_refused(end: float) -> None:
    with pytest.raises(ValueError, match="end_epoch="):
        BatchSelection(Weighted([1.0]), start_epoch=1, end_epoch=end)


def test_half_of_an_endless_training_is_refused_and_an_end_allows_it() -> None:
    with pytest.raises(SelectionError, match="set max_epochs, or pass BatchSelection"):
        fit(BatchSelection(Weighted(HEAVY)), max_epochs=-1)
    with pytest.raises(SelectionError, match="set max_epochs"):
        fit(BatchSelection(HardImbalance(), end_epoch=0.5), max_epochs=-1)
    _, watch, _ = fit(BatchSelection(Weighted(HEAVY), end_epoch=2), max_epochs=-1, max_time={"seconds": 2})
    assert plain_epochs(watch)[:4] == [False, False, True, True]


class Regression(L.LightningModule):
    """Two heads, manual optimization, no cross-entropy and no labels."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.heads = nn.ModuleList([nn.Linear(D, 1), nn.Linear(D, 2)])
        self.losses: list[float] = []

    def training_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        loss = (self.heads[0](x) - y).square().mean() + self.heads[1](x).abs().mean()
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()
        self.losses.append(float(loss.detach()))

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.01)


@pytest.mark.parametrize("epoch_size", [None, 0.5])
def test_a_regression_trains_with_weights(epoch_size: Any) -> None:
    x = torch.randn(N, D, generator=torch.Generator().manual_seed(0))
    module, selection = Regression(), BatchSelection(Weighted(HEAVY), end_epoch=1.0, epoch_size=epoch_size)
    made = trainer(selection, max_epochs=6)
    made.fit(module, DataLoader(TensorDataset(x, x[:, :1] * 2), batch_size=8))
    assert sum(module.losses[-6:]) < sum(module.losses[:6])
    assert (selection.times_drawn[-2:] > 20 * (epoch_size or 1)).all()


def test_the_schedule_is_previewed() -> None:
    figure = BatchSelection(ClassAware()).plot_schedule(max_epochs=10, n=N)
    assert len(figure.axes[0].patches) == 5


def test_other_weights_after_a_resume_are_told(tmp_path: Any) -> None:
    _, _, made = fit(BatchSelection(Weighted(HEAVY)), max_epochs=2)
    made.save_checkpoint(tmp_path / "two.ckpt")
    again = trainer(BatchSelection(Weighted(HEAVY[::-1])), max_epochs=3)
    with pytest.warns(UserWarning, match=r"weights=.*checkpoint: "):
        again.fit(Tiny(), loader(), ckpt_path=tmp_path / "two.ckpt")
