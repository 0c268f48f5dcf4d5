"""What selection cannot work with is refused before anything is lost, in one sentence that ends with a hint."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import lightning as L
import pytest
import torch
from tiny_training import N, Q, Tiny, data, fit, loader, trainer
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from lightning_ubs import UBS, ActiveBias, Balance, BatchSelection, HardImbalance, Random, RecencyBias, SelectionError


def refused(match: str, selection: BatchSelection | None = None, train: Any = None, **options: Any) -> None:
    module = Tiny()
    with pytest.raises(SelectionError, match=match):
        fit(selection or BatchSelection(warmup_epochs=1), module, train=train, **options)
    assert not module.seen, "nothing was trained"


@pytest.mark.parametrize(("warmup", "epochs"), [(4, 4), (9, 4)])
def test_a_warm_up_that_never_ends_warns(warmup: int, epochs: int) -> None:
    with pytest.warns(UserWarning, match=rf"warm-up of {warmup} epochs.*max_epochs={epochs}.*nothing will be selected"):
        fit(BatchSelection(warmup_epochs=warmup), max_epochs=epochs)


@pytest.mark.parametrize("selection", [BatchSelection(warmup_epochs=3), BatchSelection(Random(), warmup_epochs=9)])
def test_a_warm_up_that_ends_or_does_not_exist_does_not_warn(selection: BatchSelection) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit(selection, max_epochs=4)
    assert not [w for w in caught if "selected" in str(w.message)]


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(data())


def test_an_iterable_dataset_is_refused() -> None:
    refused("IterableDataset.*map-style", train=DataLoader(Stream(), batch_size=8))


def test_a_loader_that_loses_the_order_is_refused() -> None:
    refused("in_order=False.*in_order=True", train=loader(num_workers=2, in_order=False))


class OwnBatches(BatchSampler):
    pass


@pytest.mark.parametrize(
    "options",
    [
        {"batch_sampler": OwnBatches(SequentialSampler(range(N)), 8, False), "shuffle": None, "batch_size": 1},
        {"batch_sampler": [[0, 1], [2, 3]], "shuffle": None, "batch_size": 1},
        {"batch_size": None, "shuffle": False},
    ],
    ids=["subclass", "list", "no batches"],
)
def test_a_custom_batch_sampler_is_refused(options: dict[str, Any]) -> None:
    refused("custom batch_sampler.*batch_size=", train=DataLoader(data(), **options))


@pytest.mark.parametrize(
    "sampler",
    [
        SubsetRandomSampler(range(10)),
        WeightedRandomSampler([1.0] * N, N),
        RandomSampler(range(N), replacement=True),
        RandomSampler(range(N), num_samples=10),
    ],
    ids=["subset", "weighted", "with replacement", "part"],
)
def test_a_sampler_that_would_be_lost_is_refused(sampler: Any) -> None:
    refused(rf"{type(sampler).__name__}.*would be lost.*shuffle=True", train=loader(shuffle=False, sampler=sampler))


@pytest.mark.parametrize("options", [{"shuffle": True}, {"shuffle": False}])
def test_plain_samplers_are_replaced(options: dict[str, Any]) -> None:
    module, watch, _ = fit(BatchSelection(warmup_epochs=1), train=loader(**options), max_epochs=2)
    assert module.ids() == watch.plans


@pytest.mark.parametrize("share", [1, 0.5])
def test_overfit_batches_is_refused(share: float) -> None:
    refused("overfit_batches.*limit_train_batches", overfit_batches=share)


def test_a_train_loader_that_is_none_is_refused() -> None:
    class Batches:
        def __iter__(self) -> Iterator[Any]:
            return iter(loader())

    refused("Batches, not a torch DataLoader", train=Batches())


@pytest.mark.parametrize("strategy", [UBS, RecencyBias, lambda: ActiveBias(mode="quantized")])
def test_endless_training_needs_an_end_epoch(strategy: Any) -> None:
    refused(
        "max_epochs=-1.*end_epoch", BatchSelection(strategy(), warmup_epochs=1), max_epochs=-1, max_time="00:01:00:00"
    )


def test_endless_training_with_an_end_epoch_decays_to_it() -> None:
    selection = BatchSelection(UBS(s0=100.0), warmup_epochs=1, end_epoch=3)
    _, watch, _ = fit(selection, max_epochs=-1, max_steps=6 * 5)
    assert [watch.shown[epoch]["pressure"] for epoch in range(5)] == pytest.approx([1, 100, 10, 1, 1])


@pytest.mark.parametrize("strategy", [Random, Balance, HardImbalance, ActiveBias])
def test_endless_training_is_fine_without_falling_pressure(strategy: Any) -> None:
    module, watch, _ = fit(BatchSelection(strategy(), warmup_epochs=1), max_epochs=-1, max_steps=6 * 3)
    assert module.ids() == watch.plans


class Bare(Dataset[Any]):
    """A dataset that shows neither labels nor features."""

    def __init__(self, **shown: Any) -> None:
        self._items = data()
        for name, value in shown.items():
            setattr(self, name, value)

    def __len__(self) -> int:
        return N

    def __getitem__(self, i: int) -> Any:
        return self._items[i]


FEATURES, LABELS = data().tensors


@pytest.mark.parametrize("strategy", [Balance, HardImbalance])
def test_missing_labels_say_how_to_pass_them(strategy: Any) -> None:
    refused(
        rf"{strategy.__name__} needs the labels.*BatchSelection\(\.\.\., labels=matrix\)",
        BatchSelection(strategy(), warmup_epochs=1),
        train=loader(Bare()),
    )


def test_missing_features_say_how_to_pass_them() -> None:
    refused(
        r"HardImbalance needs the features.*features=matrix",
        BatchSelection(HardImbalance(), warmup_epochs=1, labels=LABELS),
        train=loader(Bare()),
    )


@pytest.mark.parametrize("strategy", [Balance, HardImbalance])
@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (LABELS[:-1], r"shape \[41, 3\].*for 42 samples"),
        (LABELS[:, 0], r"shape \[42\].*\[samples, labels\]"),
        (LABELS.unsqueeze(2), r"shape \[42, 3, 1\]"),
        (LABELS + 1, "other than 0 and 1"),
        (object(), "object is not a matrix"),
    ],
    ids=["too few", "one column", "three axes", "values", "no matrix"],
)
def test_labels_of_a_wrong_shape_are_refused(strategy: Any, labels: Any, words: str) -> None:
    refused(rf"labels .*{words}", BatchSelection(strategy(), warmup_epochs=1, labels=labels))


def test_features_of_a_wrong_shape_are_refused() -> None:
    refused(
        r"features has shape \[10, 6\].*for 42 samples",
        BatchSelection(HardImbalance(), warmup_epochs=1, features=FEATURES[:10]),
    )


@pytest.mark.parametrize(
    "dataset",
    [
        Bare(labels=LABELS, features=FEATURES),
        Bare(targets=LABELS.tolist(), data=FEATURES.numpy()),
        Bare(y=LABELS.numpy().astype("uint8"), x=FEATURES.reshape(N, 2, 3)),
    ],
    ids=["labels", "targets as lists", "arrays and images"],
)
@pytest.mark.parametrize("strategy", [Balance, HardImbalance])
def test_matrices_are_read_from_the_dataset_or_taken_as_given(dataset: Any, strategy: Any) -> None:
    whole = loader(torch.utils.data.Subset(dataset, list(range(N))))
    given = BatchSelection(strategy(), warmup_epochs=1, labels=LABELS, features=FEATURES)
    runs = []
    for selection, train in ((BatchSelection(strategy(), warmup_epochs=1), whole), (given, loader(Bare()))):
        torch.manual_seed(0)
        runs.append(fit(selection, train=train, max_epochs=3).module.ids())
    assert runs[0] == runs[1]


def test_sparse_matrices_are_taken_as_well() -> None:
    from scipy import sparse

    labels, features = sparse.csr_matrix(LABELS.numpy()), sparse.csr_matrix(FEATURES.numpy())
    runs = []
    for one, two in ((labels, features), (LABELS, FEATURES)):
        torch.manual_seed(0)
        runs.append(fit(BatchSelection(HardImbalance(), warmup_epochs=1, labels=one, features=two)).module.ids())
    assert runs[0] == runs[1]


@pytest.mark.parametrize(
    ("targets", "words"),
    [
        ("truth", "found none.*targets="),
        (lambda module, outputs, batch: batch[1][:, 0], r"of shape \[8, 3\].*shape \[8\]"),
        (lambda module, outputs, batch: batch[1].tolist(), "found none"),
    ],
)
def test_targets_that_are_missing_or_of_the_wrong_shape_are_refused(targets: Any, words: str) -> None:
    with pytest.raises(SelectionError, match=words):
        fit(BatchSelection(HardImbalance(), warmup_epochs=1, targets=targets))


@pytest.mark.parametrize(
    "targets", [lambda module, outputs, batch: batch[1], "truth"], ids=["function", "key of what is returned"]
)
def test_targets_may_be_named(targets: Any) -> None:
    class Returning(Tiny):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return {"loss": super().training_step(batch, batch_idx), "truth": batch[1]}

    runs = []
    for source in (None, targets):
        torch.manual_seed(0)
        selection = BatchSelection(HardImbalance(), warmup_epochs=1, targets=source)
        runs.append(fit(selection, Returning()).module.ids())
    assert runs[0] == runs[1]


def test_two_callbacks_for_one_loader_are_refused() -> None:
    class Mine(BatchSelection):
        """Lightning refuses two of a class; these are of two classes."""

    with pytest.raises(SelectionError, match="two BatchSelection callbacks"):
        trainer(BatchSelection(warmup_epochs=1), Mine(Random())).fit(Tiny(), loader())


def test_a_number_of_labels_that_changes_is_refused() -> None:
    class Changing(Tiny):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            x, y = batch
            logits = self(x)
            return {"loss": self.loss(logits, y), "logits": logits[:, : Q - (batch_idx > 2)]}

    with pytest.raises(SelectionError, match="2 labels, but 3 were remembered"):
        fit(BatchSelection(warmup_epochs=1), Changing())


def test_a_dataset_that_changes_its_size_is_refused() -> None:
    class Module(L.LightningDataModule):
        def train_dataloader(self) -> Any:
            assert self.trainer is not None
            return loader(data(N - self.trainer.current_epoch))

    made = trainer(BatchSelection(warmup_epochs=1), reload_dataloaders_every_n_epochs=1)
    with pytest.raises(SelectionError, match="changed from 42 to 41 samples"):
        made.fit(Tiny(), datamodule=Module())


def test_a_strategy_that_gives_no_probabilities_is_named() -> None:
    class Broken(UBS):
        def probabilities(self, pressure: float) -> torch.Tensor:
            return super().probabilities(pressure) * float("nan")

    with pytest.raises(SelectionError, match="Broken returned probabilities that are not 42 finite"):
        fit(BatchSelection(Broken(), warmup_epochs=1))


def test_selection_without_a_trainer_has_nothing_to_show() -> None:
    selection = BatchSelection()
    assert selection.plan is selection.uncertainty is selection.probabilities is selection.weights is None
    assert selection.pressure == 1.0
