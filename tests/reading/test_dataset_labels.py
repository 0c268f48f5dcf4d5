"""The labels and features of all samples are found in datasets as people build them."""

from __future__ import annotations

from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from tiny_training import N, Q, Tiny, data, fit, loader, trainer
from torch import Tensor
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset

from lightning_ubs import UBS, Balance, BatchSelection, HardImbalance, SelectionError
from lightning_ubs.reading import DatasetLabels, feature_matrix, training_labels

X, Y = data().tensors
INDEX = torch.arange(N)
BINARY = (torch.rand(N, 9, generator=torch.Generator().manual_seed(1)) > 0.5).float()


class Shows(Dataset[Any]):
    """A dataset with the attributes that a test gives it."""

    def __init__(self, **shown: Any) -> None:
        vars(self).update(shown)

    def __len__(self) -> int:
        return N

    def __getitem__(self, i: int) -> Any:
        return X[i], Y[i]


def table(**columns: Any) -> Any:
    return pytest.importorskip("datasets").Dataset.from_dict(columns)


def found(dataset: Any) -> Tensor:
    return DatasetLabels(None, dataset).matrix("Balance")


DATASETS: dict[str, Any] = {
    "pair": lambda: TensorDataset(X, Y),
    "binary features": lambda: TensorDataset(BINARY, Y),
    "index first": lambda: TensorDataset(INDEX, X, Y),
    "labels in the middle": lambda: TensorDataset(X, Y, torch.rand(N)),
    "a weight of ones": lambda: TensorDataset(X, torch.ones(N, 1), Y),
    "labels": lambda: Shows(labels=Y, masks=BINARY),
    "label": lambda: Shows(label=Y.bool()),
    "targets as lists": lambda: Shows(targets=Y.tolist()),
    "y as array": lambda: Shows(y=Y.numpy().astype("uint8"), x=X.numpy()),
    "an attribute of any name": lambda: Shows(annotations=Y, names=[f"{i}.png" for i in range(N)], size=3),
    "table": lambda: table(text=["a"] * N, ids=[[1, 2]] * 20 + [[1, 2, 3]] * (N - 20), labels=Y.tolist()),
    "table with any name": lambda: table(text=["a"] * N, number=list(range(N)), genres=Y.long().tolist()),
    "table as tensors": lambda: table(input_ids=[[5, 6]] * N, labels=Y.tolist()).with_format("torch"),
    "subset of all": lambda: Subset(TensorDataset(INDEX, X, Y), range(N)),
    "joined": lambda: ConcatDataset(
        [TensorDataset(INDEX[:10], X[:10], Y[:10]), TensorDataset(INDEX[10:], X[10:], Y[10:])]
    ),
    "joined from three": lambda: ConcatDataset(
        [TensorDataset(X[rows], Y[rows]) for rows in (slice(0, 10), slice(10, 12), slice(12, N))]
    ),
    "a matrix beside class indices": lambda: Shows(label=Y.argmax(1), y=Y),
    "joined tables": lambda: ConcatDataset([table(labels=Y[:30].tolist()), table(labels=Y[30:].tolist())]),
}


@pytest.mark.parametrize("name", DATASETS)
def test_labels_are_found_by_what_they_are(name: str) -> None:
    assert torch.equal(found(DATASETS[name]()), Y)


@pytest.mark.parametrize("name", DATASETS)
def test_labels_are_found_through_nested_subsets(name: str) -> None:
    once = torch.randperm(N, generator=torch.Generator().manual_seed(2))[:30]
    twice = list(range(29, 5, -2))
    inner = Subset(DATASETS[name](), once.tolist())
    assert torch.equal(found(Subset(inner, twice)), Y[once[twice]])
    rows = DatasetLabels(None, Subset(inner, twice)).column
    assert rows is not None
    assert torch.equal(rows.rows(torch.tensor([3, 0, 3])).float(), Y[once[twice]][[3, 0, 3]])


@pytest.mark.parametrize(
    ("dataset", "seen"),
    [
        (TensorDataset(BINARY, X, Y), "tensors[0] [42, 9], tensors[1] [42, 6], tensors[2] [42, 3]"),
        (Shows(one=Y, two=BINARY), "one [42, 3], two [42, 9]"),
        (Shows(), "nothing"),
        (ConcatDataset([Shows(labels=Y), Shows()]), "nothing"),
    ],
)
def test_labels_that_cannot_be_told_are_listed_with_the_way_out(dataset: Any, seen: str) -> None:
    for strategy in (Balance, HardImbalance):
        with pytest.raises(SelectionError) as error:
            fit(BatchSelection(strategy(), warmup_epochs=1), train=loader(dataset))
        assert f"it shows: {seen}" in str(error.value)
        assert "labels=matrix" in str(error.value)


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (Y.argmax(1), r"labels has shape \[42\], but Balance needs \[samples, labels\] of 0 and 1 for 42 samples"),
        (Y + 3, r"labels \(labels\) hold values other than 0 and 1; pass labels="),
    ],
    ids=["class indices", "grades"],
)
def test_labels_that_are_no_matrix_of_zeros_and_ones_are_refused(labels: Tensor, words: str) -> None:
    with pytest.raises(SelectionError, match=words):
        found(Shows(labels=labels))


def test_the_way_out_is_one() -> None:
    class FromThree(Tiny):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return super().training_step(batch[1:], batch_idx)

    three = TensorDataset(BINARY, X, Y)
    fit(BatchSelection(Balance(), labels=Y), FromThree(), train=loader(three), max_epochs=2)
    fit(BatchSelection(HardImbalance(), 1, labels=Y, features=X), FromThree(), train=loader(three), max_epochs=2)


@pytest.mark.parametrize("strategy", [Balance, HardImbalance, UBS])
def test_strategies_work_on_index_features_labels(strategy: Any) -> None:
    class FromThree(Tiny):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return super().training_step(batch[1:], batch_idx)

    runs = []
    for dataset in (TensorDataset(INDEX, X, Y), Subset(TensorDataset(INDEX, X, Y), range(N))):
        torch.manual_seed(0)
        module, watch, _ = fit(BatchSelection(strategy(), warmup_epochs=1), FromThree(), loader(dataset), max_epochs=3)
        assert module.ids() == watch.plans
        runs.append(module.ids())
    torch.manual_seed(0)
    pair, _, _ = fit(BatchSelection(strategy(), warmup_epochs=1), max_epochs=3)
    assert runs[0] == runs[1] == pair.ids()


def test_features_are_what_is_not_the_labels() -> None:
    for dataset, expected in (
        (TensorDataset(INDEX, X, Y), X),
        (TensorDataset(Y, X), X),
        (Shows(labels=Y, data=X.reshape(N, 2, 3)), X),
        (Shows(labels=Y, pixels=X.numpy()), X),
        (Subset(TensorDataset(INDEX, X, Y), [4, 2]), X[[4, 2]]),
    ):
        assert torch.equal(feature_matrix(None, dataset, "HardImbalance", DatasetLabels(None, dataset)), expected)


@pytest.mark.parametrize("given", [Y[:5], [*Y.tolist(), [0.0] * Q], torch.tensor([0.0] * 5)])
def test_labels_and_features_of_another_number_of_samples_are_refused(given: Any) -> None:
    with pytest.raises(SelectionError, match=r"labels has shape \[(5|43).*needed for 42 samples; pass labels="):
        DatasetLabels(given, data())
    with pytest.raises(SelectionError, match=r"features has shape \[(5|43).*needed for 42 samples; pass features="):
        feature_matrix(given, data(), "HardImbalance", DatasetLabels(None, data()))


class Asking(Tiny):
    """Asks for the labels before it trains."""

    def on_fit_start(self) -> None:
        self.found = training_labels(self.trainer)


class Module(L.LightningDataModule):
    """Its loader shows no labels."""

    def __init__(self, **shown: Any) -> None:
        super().__init__()
        vars(self).update(shown)

    def train_dataloader(self) -> Any:
        return loader([(x, y) for x, y in zip(X, Y, strict=True)])


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (lambda: Module(train_labels=Y.tolist()), Y),
        (lambda: Module(train_labels=Y, train_dataset=TensorDataset(X, 1 - Y)), Y),
        (lambda: Module(train_dataset=TensorDataset(X, Y)), Y),
        (lambda: Module(), None),
        (lambda: loader(), Y),
        (lambda: loader(Shows(labels=Y.argmax(1))), None),
    ],
    ids=["labels", "labels before dataset", "dataset", "nothing", "loader", "class indices"],
)
def test_labels_of_all_samples_are_found_before_training(source: Any, expected: Tensor | None) -> None:
    module = Asking()
    trainer(max_epochs=1, limit_train_batches=1).fit(module, source())
    assert (module.found is None) == (expected is None)
    assert expected is None or torch.equal(module.found, expected)


def test_several_feature_matrices_are_listed() -> None:
    dataset = TensorDataset(X, X[:, :2], Y)
    with pytest.raises(SelectionError, match=r"needs the features.*tensors\[0\] \[42, 6\].*features=matrix"):
        feature_matrix(None, dataset, "HardImbalance", DatasetLabels(None, dataset))


def test_nothing_is_copied_before_it_is_asked_for() -> None:
    class Counting(np.ndarray):
        reads = 0

        def __getitem__(self, item: Any) -> Any:
            Counting.reads += np.size(item) if not isinstance(item, slice | tuple) else len(self)
            return super().__getitem__(item)

    labels = np.zeros((N, Q)).view(Counting)
    column = DatasetLabels(None, Shows(labels=labels)).column
    assert column is not None
    Counting.reads = 0
    assert column.rows(torch.tensor([5, 7])).shape == (2, Q)
    assert Counting.reads == 2
