"""One fit among others: other loaders, samplers, tuners, averaging callbacks, copies and manual backward passes."""

from __future__ import annotations

import copy
import inspect
import pickle
import warnings
from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import BatchSizeFinder, LearningRateFinder, StochasticWeightAveraging
from lightning.pytorch.utilities import CombinedLoader
from tiny_training import D, N, Q, Tiny, data, fit, loader, trainer
from torch import nn
from torch.utils.data import DataLoader, Sampler, SequentialSampler

from lightning_ubs import UBS, BatchSelection, EvaluationPass, Random, SelectionError


class BareBackward(Tiny):
    """Trains without a word to Lightning."""

    def __init__(self, own_optimizer: bool = True) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.own_optimizer = own_optimizer
        self.steps = 0

    def training_step(self, batch: Any, batch_idx: int) -> None:
        self.steps += 1
        optimizer = self.optimizers(use_pl_optimizer=not self.own_optimizer)
        optimizer.zero_grad()
        super().training_step(batch, batch_idx).backward()
        optimizer.step()
        if not self.own_optimizer:
            optimizer.zero_grad()


@pytest.mark.parametrize("own_optimizer", [False, True])
def test_a_bare_backward_is_refused_in_the_first_step(own_optimizer: bool) -> None:
    module = BareBackward(own_optimizer)
    with pytest.raises(SelectionError, match=r"self\.manual_backward\(loss\) instead of loss\.backward\(\)"):
        fit(BatchSelection(warmup_epochs=1), module, limit_train_batches=3)
    assert module.steps == 1


class SkipsFirst(Tiny):
    """Leaves out the first steps, as one does with unusable batches."""

    def __init__(self, returns: bool) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.returns = returns

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if batch_idx == 0:
            return None
        optimizer = self.optimizers()
        x, y = batch
        logits = self(x)
        self.record(x, logits)
        loss = self.loss(logits, y)
        optimizer.zero_grad()
        loss.backward() if self.returns else self.manual_backward(loss)
        optimizer.step()
        return {"loss": loss, "logits": logits} if self.returns else None


@pytest.mark.parametrize("returns", [False, True])
def test_both_ways_out_of_a_bare_backward_work_and_steps_may_be_left_out(returns: bool) -> None:
    selection = BatchSelection(warmup_epochs=1)
    fit(selection, SkipsFirst(returns), max_epochs=3, limit_train_batches=4)
    assert selection.times_drawn.sum() == 3 * 3 * 8
    selection.settle()
    assert selection.strategy.memory.visits[:N].sum() == 3 * 3 * 8


def test_an_epoch_of_limited_length_without_any_prediction_is_refused() -> None:
    class Silent(Tiny):
        def training_step(self, batch: Any, batch_idx: int) -> None:
            return None

    with pytest.raises(SelectionError, match="no step of epoch 0"):
        fit(BatchSelection(warmup_epochs=1), Silent(), limit_train_batches=3)


class Augments(Tiny):
    """Augments on the device, where the trainer trains."""

    def __init__(self) -> None:
        super().__init__()
        self.augmented: list[bool] = []

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        x, y = batch
        self.augmented.append(self.trainer.training)
        return (torch.cat([x[:, :1], x[:, 1:] * 0], 1), y) if self.trainer.training else batch


def test_an_evaluation_pass_predicts_samples_that_are_not_augmented() -> None:
    seen = {}

    def predict(module: L.LightningModule, batch: Any) -> Any:
        assert module.trainer.validating
        seen.update(zip(batch[0][:, 0].int().tolist(), batch[0], strict=True))
        return module(batch[0])

    class Stage(L.Callback):
        def on_train_batch_start(self, trainer: L.Trainer, *_: Any) -> None:
            assert trainer.training

    module = Augments()
    made = trainer(BatchSelection(warmup_epochs=1, refresh=EvaluationPass(predict=predict)), Stage(), max_epochs=2)
    made.fit(module, loader())
    assert torch.equal(torch.stack([seen[i] for i in range(N)]), data().tensors[0])
    assert module.augmented.count(True) == 12


class Several(Tiny):
    """Trains on all loaders, each by a head of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.ModuleDict({name: nn.Linear(D - 1, Q) for name in "ab"})
        self.drawn: dict[str, list[list[int]]] = {"a": [], "b": []}

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        losses, found = [], {}
        for name, given in batch.items():
            if given is not None:
                self.drawn[name].append(given[0][:, 0].long().tolist())
                found[name] = self.heads[name](given[0][:, 1:])
                losses.append(self.loss(found[name], given[1]))
        return {"loss": sum(losses), **found}


def of_loader(name: str, **options: Any) -> BatchSelection:
    return BatchSelection(Random(), loader=name, warmup_epochs=1, **options)


def test_selections_from_two_loaders_do_not_pair_their_samples() -> None:
    module = Several()
    selections = of_loader("a"), of_loader("b")
    trainer(*selections, max_epochs=3).fit(module, {name: loader() for name in "ab"})
    paired = sum(
        one == other for pair in zip(*module.drawn.values(), strict=True) for one, other in zip(*pair, strict=True)
    )
    assert paired < 15, "by chance it is 3 of 126"
    again = Several()
    trainer(of_loader("a"), of_loader("b"), max_epochs=3).fit(again, {name: loader() for name in "ab"})
    assert again.drawn == module.drawn


def test_a_selection_that_is_alone_draws_the_same_with_and_without_a_name_for_its_loader() -> None:
    module, (plain, *_) = Several(), fit(BatchSelection(Random(), warmup_epochs=1), max_epochs=3)
    trainer(of_loader("b"), max_epochs=3).fit(module, {name: loader() for name in "ab"})
    assert module.drawn["b"] == [ids for steps in plain.ids().values() for ids in steps]


class OfDataset(Sampler[int]):
    """Has the dataset, and asks it for its length or for more."""

    def __init__(self, dataset: Any, way: str) -> None:
        self.dataset, self.way = dataset, way

    def __len__(self) -> int:
        return len(self.dataset)

    def __iter__(self) -> Any:
        n = len(self.dataset)
        if self.way == "by value":
            return iter(sorted(range(n), key=lambda i: float(self.dataset[i][0][1])))
        return iter({"backwards": list(range(n))[::-1], "shuffled": torch.randperm(n).tolist()}[self.way])


@pytest.mark.parametrize("way", ["by value", "backwards"])
def test_a_sampler_whose_order_means_something_is_refused(way: str) -> None:
    items = data()
    with pytest.raises(SelectionError, match=r"OfDataset\) would be lost"):
        fit(BatchSelection(), train=DataLoader(items, 8, sampler=OfDataset(items, way)))


def test_a_sampler_that_asks_its_dataset_for_nothing_but_the_length_is_replaced() -> None:
    items = data()
    module, watch, _ = fit(
        BatchSelection(warmup_epochs=1), train=DataLoader(items, 8, sampler=OfDataset(items, "shuffled")), max_epochs=2
    )
    assert module.ids() == watch.plans


def test_a_part_of_the_dataset_in_order_is_refused() -> None:
    with pytest.raises(SelectionError, match=r"SequentialSampler\) would be lost.*Subset"):
        fit(BatchSelection(), train=DataLoader(data(), 8, sampler=SequentialSampler(range(10))))


def test_a_loader_that_does_not_shuffle_is_told_once_that_its_order_is_decided() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit(BatchSelection(warmup_epochs=1), train=loader(shuffle=False), max_epochs=3)
        shuffled = len(caught)
        fit(BatchSelection(warmup_epochs=1), max_epochs=3)
    told = [number for number, one in enumerate(caught) if "shuffle=False" in str(one.message)]
    assert len(told) == 1
    assert told[0] < shuffled


@pytest.mark.parametrize("other", [84, 42, 20])
def test_a_loader_that_ends_before_the_others_is_followed_to_its_end(other: int) -> None:
    selection = BatchSelection(UBS(), warmup_epochs=1, loader="a", outputs="a")
    module = Several()
    loaders = {"a": loader(), "b": loader(data(other, seed=1))}
    trainer(selection, max_epochs=3).fit(module, CombinedLoader(loaders, "max_size"))
    assert len(module.drawn["a"]) == 18
    assert len(module.drawn["b"]) == 3 * -(-other // 8)
    assert selection.times_drawn.sum() == 3 * N
    selection.settle()
    assert selection.strategy.memory.visits[:N].sum() == 3 * N
    assert selection.trained_ids.sort().values.tolist() == sorted(i for step in module.drawn["a"][12:] for i in step)


class Tunable(Tiny):
    """Its batch size and learning rate may be searched."""

    def __init__(self) -> None:
        super().__init__()
        self.batch_size = 8

    def train_dataloader(self) -> Any:
        return loader(batch_size=self.batch_size)

    def val_dataloader(self) -> Any:
        return loader(shuffle=False)


@pytest.mark.parametrize("kind", [BatchSizeFinder, LearningRateFinder])
def test_counts_of_draws_survive_a_tuner(kind: Any, tmp_path: Any) -> None:
    options = {"max_trials": 2, "init_val": 4} if kind is BatchSizeFinder else {"num_training_steps": 5}
    selection, module = BatchSelection(warmup_epochs=1), Tunable()
    made = trainer(selection, kind(**options), max_epochs=3, default_root_dir=tmp_path)
    made.fit(module)
    assert selection.times_drawn.sum() == 3 * N
    assert selection.last_epoch_drawn.max() == 2


class Normalized(Tiny):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(D - 1)

    def forward(self, x: Any) -> Any:
        return self.net(self.norm(x[:, 1:]))


def test_the_pressure_ends_in_the_last_epoch_that_is_trained_also_where_averaging_adds_one() -> None:
    def pressures(module: Tiny) -> list[float]:
        selection = BatchSelection(UBS(s0=16.0), warmup_epochs=1)
        averaging = StochasticWeightAveraging(swa_lrs=0.01, swa_epoch_start=3)
        seen = []

        class Pressure(L.Callback):
            def on_train_epoch_start(self, *_: Any) -> None:
                seen.append(selection.pressure)

        trainer(selection, averaging, Pressure(), max_epochs=5).fit(module, loader())
        assert selection.times_drawn is not None
        assert selection.times_drawn.sum() == 5 * N
        return seen

    plain = pressures(Tiny())
    assert plain == pytest.approx([1, 16, 16 ** (2 / 3), 16 ** (1 / 3), 1])
    assert pressures(Normalized()) == pytest.approx([*plain, 1])


class Copies(L.Callback):
    """Makes loaders of its own from the trainer's, in mid-epoch."""

    def __init__(self) -> None:
        self.copies: list[Any] = []

    def on_train_batch_end(self, trainer: L.Trainer, *args: Any) -> None:
        if args[-1] == 2:
            given = trainer.train_dataloader
            assert b"trainer" not in pickle.dumps(given)
            self.copies = [copy.copy(given), copy.deepcopy(given), pickle.loads(pickle.dumps(given))]


@pytest.mark.parametrize("workers", [0, 2])
def test_the_train_loader_can_be_copied_and_pickled_while_it_is_read(workers: int) -> None:
    copies = Copies()
    selection = BatchSelection(warmup_epochs=1)
    made = trainer(selection, copies, max_epochs=2)
    module = Tiny()
    made.fit(module, loader(num_workers=workers, persistent_workers=workers > 0))
    for one in copies.copies:
        assert type(one) is DataLoader
        assert one.batch_size == 8
        read = torch.cat([x[:, 0] for x, _ in one]).long()
        assert sorted(read.tolist()) == list(range(N))
    assert len(module.ids()[1]) == 6


def test_the_first_selected_epoch_is_named_in_one_way_only() -> None:
    with pytest.raises(ValueError, match=r"warmup_epochs=9 and start_epoch=2 .*give one of them"):
        BatchSelection(warmup_epochs=9, start_epoch=2)
    assert BatchSelection().warmup_epochs == BatchSelection().start_epoch == 5
    assert BatchSelection(start_epoch=2).start_epoch == 2
    assert "warmup_epochs=5" in repr(BatchSelection(warmup_epochs=5))
    assert "warmup_epochs" not in repr(BatchSelection(start_epoch=2))


@pytest.mark.parametrize(
    ("options", "selected"),
    [
        ({"max_epochs": 2}, 1),
        ({"max_epochs": 5}, 2),
        ({"max_epochs": 9}, 4),
        ({"max_epochs": 10}, 5),
        ({"max_epochs": 12}, 5),
        ({"max_epochs": 100, "max_steps": 24}, 2),
    ],
)
def test_a_short_training_warms_up_for_at_most_half_of_it_and_says_so(
    options: dict[str, Any], selected: int, caplog: pytest.LogCaptureFixture
) -> None:
    selection = BatchSelection(UBS(s0=100))
    caplog.set_level("INFO")
    _, watch, _ = fit(selection, **options)
    pressures = [shown["pressure"] for _, shown in sorted(watch.shown.items())]
    assert [pressure > 1 for pressure in pressures[: selected + 1]] == [False] * selected + [True]
    assert selection.start_epoch == selected
    told = [one for one in caplog.messages if "The warm-up takes" in one]
    assert told == (
        []
        if selected == 5
        else [
            f"The warm-up takes {selected} instead of 5 epochs, so that the second half of this short training is "
            "selected; pass warmup_epochs=5 to keep the usual length."
        ]
    )


@pytest.mark.parametrize("given", [{"warmup_epochs": 5}, {"start_epoch": 5}])
def test_a_warm_up_that_the_user_chose_stays(given: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    with pytest.warns(UserWarning, match="warm-up of 5 epochs is not over"):
        fit(BatchSelection(UBS(), **given), max_epochs=4)
    assert "The warm-up takes" not in caplog.text


def test_an_explicit_start_is_the_start_of_the_next_fit_as_well() -> None:
    selection = BatchSelection(UBS())
    fit(selection, max_epochs=4)
    assert selection.start_epoch == 2
    fit(selection, max_epochs=12)
    assert selection.start_epoch == 5


def test_arguments_after_the_seed_are_given_by_name() -> None:
    kinds = {name: one.kind for name, one in inspect.signature(BatchSelection).parameters.items()}
    assert [name for name, kind in kinds.items() if kind is not inspect.Parameter.KEYWORD_ONLY] == [
        "strategy",
        "warmup_epochs",
        "seed",
    ]
