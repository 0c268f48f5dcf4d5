"""Ids are verified, not believed: a batch that is not the planned one stops the run before anything is learned."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from observe_tools import Layout, assert_true_head, train
from tiny_training import N, Q, Tiny, Watch, data, fit, loader, trainer
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits as bce
from torch.utils.data import DataLoader, TensorDataset

from lightning_ubs import UBS, Balance, BatchSelection, HardImbalance, Random, SelectionError
from lightning_ubs.reading import DatasetLabels, IdVerification
from lightning_ubs.reading.comparison import Verdict, are_rows_permuted, compare, has_mixed_values
from lightning_ubs.selection.plan import BatchLayout, EpochPlan

X, Y = data().tensors


def stacked(samples: list[Any]) -> Any:
    return torch.stack([x for x, _ in samples]), torch.stack([y for _, y in samples])


def sorting(samples: list[Any]) -> Any:
    return stacked(sorted(samples, key=lambda sample: float(sample[0][1])))


def refused(module: Tiny | None = None, train: Any = None, **options: Any) -> str:
    """The message, where the weights stayed as they were."""
    module = Tiny() if module is None else module
    before = {name: value.clone() for name, value in module.state_dict().items()}
    with pytest.raises(SelectionError) as error:
        fit(BatchSelection(options.pop("strategy", UBS()), warmup_epochs=1, **options), module, train, max_epochs=3)
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items()), "nothing was learned"
    return str(error.value)


class ByHand(Tiny):
    def loss(self, logits: Tensor, y: Tensor) -> Tensor:
        p = logits.sigmoid()
        return -(y * p.log() + (1 - y) * (1 - p).log()).mean()


class Manual(Tiny):
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:
        self.manual_backward(super().training_step(batch, batch_idx))
        self.optimizers().step()


@pytest.mark.parametrize(
    ("strategy", "module", "workers"),
    [(UBS, Tiny, 0), (UBS, Tiny, 2), (UBS, ByHand, 0), (UBS, Manual, 0), (HardImbalance, Tiny, 0), (Balance, Tiny, 0)],
)
def test_a_collate_function_that_sorts_is_found_by_the_labels(strategy: Any, module: Any, workers: int) -> None:
    message = refused(module(), loader(collate_fn=sorting, num_workers=workers), strategy=strategy())
    assert "epoch 0, batch 0" in message
    for cause in ("sorts or drops", "shard", "ids=False"):
        assert cause in message


def test_a_later_backward_pass_is_compared_where_the_first_cannot_be() -> None:
    class Adversarial(Manual):
        def training_step(self, batch: Any, batch_idx: int) -> None:
            numbers = batch[0][:, 0].long()
            critic = self(X[numbers])[:, :2]
            self.manual_backward(bce(critic, torch.ones_like(critic)))
            self.manual_backward(bce(self(X[numbers]), Y[numbers]))

    hidden = [(X[i], "no label") for i in range(N)]
    collate = {"collate_fn": lambda rows: (torch.stack([x for x, _ in rows]),)}
    sorted_ = {"collate_fn": lambda rows: (torch.stack(sorted((x for x, _ in rows), key=lambda x: float(x[1]))),)}
    train(Adversarial(), loader(hidden, **collate), labels=Y)
    assert "the labels of the planned samples" in refused(Adversarial(), loader(hidden, **sorted_), labels=Y)


class Watching(BatchSelection):
    """Counts the steps in which modules are watched."""

    watched = 0

    def on_train_batch_start(self, *args: Any) -> None:
        super().on_train_batch_start(*args)
        self.watched += bool(torch.nn.modules.module._global_forward_hooks)


def test_modules_are_watched_in_the_first_step_at_most() -> None:
    for strategy, steps in ((UBS(), 1), (Balance(), 0), (Random(), 0)):
        selection = Watching(strategy, warmup_epochs=1)
        fit(selection, max_epochs=2)
        assert selection.watched == steps


class Shard(TensorDataset):
    """Each process holds other samples than the ids say, as a shard of its own would."""

    def __getitem__(self, i: int) -> Any:
        return super().__getitem__((i + 21) % N)


def test_a_dataset_that_returns_other_samples_is_found_by_the_labels() -> None:
    assert "not the labels of the planned samples" in refused(train=loader(Shard(X, Y)))


def with_ids(samples: list[Any]) -> Any:
    x, y = stacked(samples)
    return {"x": x, "y": y, "id": x[:, 0].long()}


class FromDict(Tiny):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return super().training_step((batch["x"], batch["y"]), batch_idx)


@pytest.mark.parametrize("ids", ["id", lambda batch: batch["id"], lambda batch: batch["x"][:, 0].int().tolist()])
def test_ids_may_be_a_key_or_a_function(ids: Any) -> None:
    module = FromDict()
    strategy = train(module, loader(collate_fn=with_ids), ids=ids)
    assert_true_head(module, strategy)
    message = refused(FromDict(), loader(collate_fn=lambda s: with_ids(s[::-1])), ids=ids)
    assert "epoch 0, batch 0: the batch holds the samples" in message
    assert "sorts or drops" in message


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        ("index", r"ids='index' is not a key of the batch \(\['id', 'x', 'y'\]\)"),
        (lambda batch: ["a"] * len(batch["x"]), "returned list, which are not sample ids"),
        (lambda batch: batch["id"][1:], "the batch holds the samples"),
    ],
)
def test_ids_that_are_no_ids_are_refused(ids: Any, words: str) -> None:
    with pytest.raises(SelectionError, match=words):
        train(FromDict(), loader(collate_fn=with_ids), ids=ids)


@pytest.mark.parametrize("ids", [True, 3, ["id"]])
def test_ids_of_another_type_are_refused_at_once(ids: Any) -> None:
    with pytest.raises(ValueError, match="ids="):
        BatchSelection(ids=ids)


def test_verification_can_be_switched_off() -> None:
    train(Tiny(), loader(collate_fn=sorting), ids=False)


def test_a_sorted_batch_is_nothing_to_random_selection() -> None:
    fit(BatchSelection(Random()), train=loader(collate_fn=sorting), max_epochs=2)


class LateShard(Shard):
    """The right samples in the warm-up, other ones as soon as samples are selected."""

    asked = 0

    def __getitem__(self, i: int) -> Any:
        self.asked += 1
        return TensorDataset.__getitem__(self, i) if self.asked <= 5 * N else super().__getitem__(i)


def test_the_first_selected_epoch_is_verified_however_late() -> None:
    with pytest.raises(SelectionError, match="epoch 5, batch 0"):
        fit(BatchSelection(warmup_epochs=5), train=loader(LateShard(X, Y)), max_epochs=7)


def test_a_step_is_compared_until_it_could_be_compared() -> None:
    verification = IdVerification()
    assert not verification.is_due, "before a fit"
    verification.check_targets((Y,))
    verification.begin(DatasetLabels(None, data()))
    plan = EpochPlan(0, torch.arange(N), BatchLayout(N, 8))
    verification.start_step(plan, 0, selected=False, batch=None)
    verification.check_targets((Y[:8, :2],))
    assert verification.is_due, "two columns cannot be compared with three"
    verification.check_targets((Y[:8],))
    assert not verification.is_due
    verification.check_targets((1 - Y[:8],))


def test_the_first_steps_and_the_first_of_each_epoch_are_verified() -> None:
    verification = IdVerification()
    verification.begin(DatasetLabels(None, data()))
    due = []
    for epoch in range(9):
        for k in range(6):
            plan = EpochPlan(epoch, torch.arange(N), BatchLayout(N, 7))
            verification.start_step(plan, k, selected=epoch >= 6, batch=None)
            if verification.is_due:
                due.append((epoch, k))
    assert due == [(0, k) for k in range(4)] + [(epoch, 0) for epoch in range(1, 9)]


class Mixing(Layout):
    """Mixup as people write it: one target that is mixed, or two losses."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        share, other = 0.8, torch.arange(len(x)).roll(1)
        logits = self.net(share * x[:, 1:] + (1 - share) * x[other, 1:])
        if self.way == "two losses":
            return share * bce(logits, y) + (1 - share) * bce(logits, y[other])
        if self.way == "classes":
            y = nn.functional.one_hot(y, Q).float()
            return nn.functional.cross_entropy(logits, share * y + (1 - share) * y[other])
        return bce(logits, share * y + (1 - share) * y[other])


@pytest.mark.parametrize("way", ["one target", "two losses", "classes", "hidden labels"])
def test_mixed_samples_are_refused_with_the_reason_and_the_way_out(way: str) -> None:
    train_set: Any = TensorDataset(X, Y.argmax(1) if way == "classes" else Y)
    options = (
        {"collate_fn": lambda rows: stacked([train_set[int(i)] for (i,) in rows])} if way == "hidden labels" else {}
    )
    shown = TensorDataset(torch.arange(N)) if way == "hidden labels" else train_set
    message = refused(Mixing(way), DataLoader(shown, batch_size=8, shuffle=True, **options))
    for words in ("mixes samples (mixup, cutmix)", "ids=False", "clean predictions"):
        assert words in message
    train(Mixing(way), DataLoader(shown, batch_size=8, shuffle=True, **options), ids=False)


def test_clean_predictions_beside_mixed_ones_are_a_way_out() -> None:
    class Both(Mixing):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            clean = self.shown(batch[0], self.head(batch[0]))
            return {"loss": super().training_step(batch, batch_idx), "logits": clean.detach()}

    module = Both("one target")
    assert_true_head(module, train(module, ids=False))


SMOOTH: dict[str, Any] = {
    "symmetric": lambda y: y * 0.9 + 0.05,
    "one-sided": lambda y: y * 0.9,
    "per label": lambda y: y * torch.tensor([0.9, 0.8, 0.7]) + torch.tensor([0.01, 0.02, 0.03]),
}


@pytest.mark.parametrize("smoothing", SMOOTH)
def test_label_smoothing_is_no_mixing(smoothing: str) -> None:
    class Smooth(Tiny):
        def loss(self, logits: Tensor, y: Tensor) -> Tensor:
            return bce(logits, SMOOTH[smoothing](y))

    module = Smooth()
    assert_true_head(module, train(module))


DATASETS: dict[str, Any] = {
    "bool": Y.bool(),
    "int": Y.long(),
    "signs": 2 * Y - 1,
    "columns in another order": Y[:, [2, 0, 1]],
    "fewer columns": Y[:, :2],
    "grades": Y + 3,
}


@pytest.mark.parametrize("kept", DATASETS)
def test_labels_that_are_kept_in_another_form_are_no_mismatch(kept: str) -> None:
    class Kept(torch.utils.data.Dataset[Any]):
        labels = DATASETS[kept]

        def __len__(self) -> int:
            return N

        def __getitem__(self, i: int) -> Any:
            return X[i], Y[i]

    module = Tiny()
    assert_true_head(module, train(module, loader(Kept())))


def test_class_indices_are_compared_as_such() -> None:
    class Classes(Tiny):
        def loss(self, logits: Tensor, y: Tensor) -> Tensor:
            return nn.functional.cross_entropy(logits, y)

    classes = TensorDataset(X, Y.argmax(1))

    class Named(torch.utils.data.Dataset[Any]):
        targets = Y.argmax(1).tolist()

        def __len__(self) -> int:
            return N

        def __getitem__(self, i: int) -> Any:
            return classes[i]

    train(Classes(), loader(Named()))
    assert "not the labels of the planned samples" in refused(Classes(), loader(Named(), collate_fn=sorting))


def test_labels_that_the_user_gives_are_compared() -> None:
    class Hidden(TensorDataset):
        def __init__(self) -> None:
            self.tensors = ()

        def __len__(self) -> int:
            return N

        def __getitem__(self, i: int) -> Any:
            return X[i], Y[i]

    train(Tiny(), loader(Hidden()), labels=Y)
    assert "not the labels of the planned samples" in refused(train=loader(Hidden()), labels=Y.flip(0))


def test_the_labels_that_balance_works_with_are_those_of_the_loss() -> None:
    other = (torch.rand(N, 5, generator=torch.Generator().manual_seed(0)) > 0.5).float()

    class Confusing(torch.utils.data.Dataset[Any]):
        labels, truth = Y.flip(0), Y

        def __init__(self) -> None:
            self.truth, self.other = Y, other

        def __len__(self) -> int:
            return N

        def __getitem__(self, i: int) -> Any:
            return X[i], Y[i]

    message = refused(train=loader(Confusing()), strategy=Balance())
    assert "labels [42, 3], but the loss's targets are those of its truth [42, 3]" in message
    fit(BatchSelection(Balance(), labels=Y), train=loader(Confusing()), max_epochs=2)
    fit(BatchSelection(UBS(), warmup_epochs=1), train=loader(Confusing()), max_epochs=2)


def test_verification_holds_no_dataset_once_it_is_over() -> None:
    import gc
    import weakref

    dataset = data()
    ref = weakref.ref(dataset.tensors[1])
    verification = IdVerification()
    verification.begin(DatasetLabels(None, dataset))
    for epoch in range(4):
        verification.start_step(EpochPlan(epoch, torch.arange(N), BatchLayout(N, 21)), 0, selected=True, batch=None)
    verification.begin(None)
    del dataset
    gc.collect()
    assert ref() is None


def test_resuming_verifies_again() -> None:
    chosen = BatchSelection(UBS(), warmup_epochs=1)
    made = trainer(chosen, Watch(chosen), max_epochs=2)
    module = Tiny()
    made.fit(module, loader())
    made.fit_loop.max_epochs = 4
    with pytest.raises(SelectionError, match="epoch 2, batch 0"):
        made.fit(module, loader(collate_fn=sorting))


@pytest.mark.parametrize("seed", range(20))
def test_a_random_order_never_passes_and_the_right_one_always_does(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    labels = (torch.rand(16, 4, generator=generator) > 0.6).float()
    order = torch.randperm(16, generator=generator)
    assert compare(labels, labels) is Verdict.SAME
    if not torch.equal(labels[order], labels):
        assert compare(labels[order], labels) is Verdict.DIFFERENT
        assert are_rows_permuted(labels[order], labels)
    share = 0.5 + 0.5 * torch.rand(1, generator=generator, dtype=torch.float64)
    mixed = share * labels + (1 - share) * labels[order]
    if not torch.equal(labels[order], labels) and 0.55 < share < 0.98:
        assert compare(mixed, labels) is Verdict.MIXED
        assert has_mixed_values(mixed)


def test_what_cannot_be_compared_is_said_to_be_so() -> None:
    assert compare(torch.zeros(4, 3), torch.zeros(4, 2)) is Verdict.INCOMPARABLE
    assert compare(torch.zeros(4), torch.rand(4, 3, 2)) is Verdict.INCOMPARABLE
    assert compare(torch.tensor([0, 2, 1]), torch.eye(3)[[0, 2, 1]]) is Verdict.SAME
    assert compare(torch.tensor([0, 1, 1]), torch.eye(3)[[0, 2, 1]]) is Verdict.DIFFERENT
    assert compare(torch.tensor([0, -100, 1]), torch.tensor([0, 2, 1])) is Verdict.SAME
    assert compare(torch.tensor([[1.0], [0.0]]), torch.tensor([1, 0])) is Verdict.SAME
    assert compare(torch.tensor([[1.0, torch.nan]]), torch.tensor([[1.0, 0.0]])) is Verdict.SAME
    assert not has_mixed_values(torch.tensor([0, 1, 2]))
    assert not has_mixed_values(torch.tensor([0.05, 0.95]))
    assert not has_mixed_values(torch.tensor([-1.0, 0.0, 1.0]))
