"""Only the sampler of the one train loader is replaced; everything else stays the user's."""

from __future__ import annotations

from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch.utilities import CombinedLoader
from tiny_training import N, Tiny, Watch, data, fit, loader, trainer
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler

from lightning_ubs import UBS, BatchSelection, SelectionError, SelectionSampler


def chosen(**options: Any) -> BatchSelection:
    return BatchSelection(UBS(), **{"warmup_epochs": 1} | options)


class Own(DataLoader[Any]):
    """A user's loader with an argument of its own."""

    def __init__(self, dataset: Any, flavor: str = "plain", **options: Any) -> None:
        super().__init__(dataset, **options)
        self.flavor = flavor


def test_the_dataset_is_the_users_object_and_is_not_wrapped() -> None:
    dataset = data()
    train = loader(dataset)
    _, _, made = fit(chosen(), train=train)
    assert made.train_dataloader is not None
    assert made.train_dataloader.dataset is dataset
    assert isinstance(made.train_dataloader.sampler, SelectionSampler)
    assert train.dataset is dataset
    assert isinstance(train.sampler, RandomSampler)


def test_the_loader_keeps_its_options() -> None:
    def collate(samples: list[Any]) -> Any:
        return torch.utils.data.default_collate(samples)

    train = loader(collate_fn=collate, num_workers=2, prefetch_factor=3, timeout=60, drop_last=True)
    _, _, made = fit(chosen(), train=train, max_epochs=2)
    rebuilt = made.train_dataloader
    assert rebuilt is not None
    for name in ("collate_fn", "num_workers", "prefetch_factor", "timeout", "drop_last", "batch_size", "pin_memory"):
        assert getattr(rebuilt, name) == getattr(train, name)


def test_a_loader_class_of_the_users_own_is_kept() -> None:
    train = Own(data(), flavor="own", batch_size=8, shuffle=True)
    module, watch, made = fit(chosen(), train=train)
    assert type(made.train_dataloader) is Own
    assert module.ids() == watch.plans


def test_a_loader_class_with_arguments_of_its_own_is_kept_with_them() -> None:
    class Module(L.LightningDataModule):
        def train_dataloader(self) -> Any:
            return Own(data(), "own", batch_size=8, shuffle=True)

    selection = chosen()
    made = trainer(selection)
    made.fit(Tiny(), datamodule=Module())
    assert made.train_dataloader is not None
    assert (type(made.train_dataloader), made.train_dataloader.flavor) == (Own, "own")


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("in_hook", [False, True], ids=["given", "made in a hook"])
def test_a_plain_batch_sampler_of_the_users_own_keeps_its_batches(drop_last: bool, in_hook: bool) -> None:
    class Module(L.LightningDataModule):
        def train_dataloader(self) -> Any:
            return DataLoader(data(), batch_sampler=BatchSampler(RandomSampler(range(N)), 8, drop_last))

    selection, module = chosen(), Tiny()
    watch = Watch(selection)
    made = trainer(selection, watch, max_epochs=3)
    if in_hook:
        made.fit(module, datamodule=Module())
    else:
        made.fit(module, Module().train_dataloader())
    assert module.ids() == watch.plans
    assert [len(ids) for ids in module.ids()[2]] == [8] * 5 + [2] * (not drop_last)


def test_validation_and_test_loaders_are_left_alone() -> None:
    val, test = loader(shuffle=False), loader(shuffle=False)

    class Tested(Tiny):
        def test_step(self, batch: Any, batch_idx: int) -> None:
            self.log("loss", self.loss(self(batch[0]), batch[1]))

    module, _, made = fit(chosen(), Tested(), val=val)
    assert made.val_dataloaders is val
    assert isinstance(val.sampler, SequentialSampler)
    made.validate(module, val, verbose=False)
    made.test(module, test, verbose=False)
    assert made.test_dataloaders is test
    made.predict(module, DataLoader(data().tensors[0], batch_size=8))
    assert isinstance(test.sampler, SequentialSampler)


def test_after_training_the_trainer_is_as_it_was() -> None:
    selection = chosen()
    made = trainer(selection)
    before = made.strategy.process_dataloader
    made.fit(Tiny(), loader())
    assert made.strategy.process_dataloader == before
    assert "process_dataloader" not in vars(made.strategy)
    assert "dataloader" not in vars(made.fit_loop._data_source)


def test_after_a_training_that_failed_the_trainer_is_as_it_was() -> None:
    class Failing(Tiny):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            raise RuntimeError("out of luck")

    made, module = trainer(chosen()), Failing()
    with pytest.raises(RuntimeError, match="out of luck"):
        made.fit(module, loader())
    assert "process_dataloader" not in vars(made.strategy)
    assert all(not part._forward_hooks for part in module.modules())


class OfSeveral(Tiny):
    """Trains on the batches of two loaders; records those of the chosen one."""

    def __init__(self, key: Any) -> None:
        super().__init__()
        self.key = key
        self.others: list[list[int]] = []

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        keys = batch if isinstance(batch, dict) else range(len(batch))
        for key in keys:
            if key != self.key and batch[key] is not None:
                self.others.append([round(i) for i in batch[key][0][:, 0].tolist()])
        x, y = batch[self.key]
        logits = self(x)
        self.record(x, logits)
        return self.loss(logits, y)


def several(kind: str) -> Any:
    small = loader(data(10), shuffle=False, batch_size=5)
    if kind == "dict":
        return {"main": loader(), "extra": small}, "main"
    if kind == "list":
        return [small, loader()], 1
    return CombinedLoader({"extra": small, "main": loader()}, mode="max_size_cycle"), "main"


@pytest.mark.parametrize("kind", ["dict", "list", "combined"])
@pytest.mark.parametrize("workers", [0, 2])
def test_one_of_several_loaders_is_selected_from_and_the_others_are_not(kind: str, workers: int) -> None:
    loaders, key = several(kind)
    if workers and kind == "dict":
        loaders["main"] = loader(num_workers=workers)
    selection = chosen(loader=key)
    module = OfSeveral(key)
    watch = Watch(selection)
    trainer(selection, watch).fit(module, loaders)
    assert module.ids() == watch.plans
    assert module.others == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]] * (4 * 3)


@pytest.mark.parametrize("kind", ["dict", "list", "combined"])
def test_several_loaders_without_saying_which_are_refused(kind: str) -> None:
    loaders, _ = several(kind)
    keys = r"\['main', 'extra'\]" if kind == "dict" else r"\[0, 1\]" if kind == "list" else r"\['extra', 'main'\]"
    with pytest.raises(SelectionError, match=rf"several loaders.*loader= one of {keys}"):
        trainer(chosen()).fit(OfSeveral("main"), loaders)


def test_a_loader_that_is_not_there_names_those_that_are() -> None:
    with pytest.raises(SelectionError, match=r"loader='mian'.*\['main', 'extra'\]"):
        trainer(chosen(loader="mian")).fit(OfSeveral("main"), several("dict")[0])


def test_naming_a_loader_where_there_is_one_is_refused() -> None:
    with pytest.raises(SelectionError, match="single loader; leave loader out"):
        trainer(chosen(loader="main")).fit(Tiny(), loader())


def test_a_shorter_loader_that_would_be_cycled_is_refused() -> None:
    with pytest.raises(SelectionError, match=r"'extra' is shorter.*min_size"):
        trainer(chosen(loader="extra")).fit(OfSeveral("extra"), several("dict")[0])


def test_a_refused_loader_leaves_no_trace_in_those_of_the_next_fit() -> None:
    changed = {name: vars(DataLoader)[name] for name in ("__init__", "__setattr__")}
    with pytest.raises(SelectionError, match="single loader"):
        trainer(chosen(loader="main")).fit(Tiny(), loader())
    assert changed == {name: vars(DataLoader)[name] for name in changed}
    fit(chosen(), train=Own(data(), flavor="own", batch_size=8), max_epochs=1)


def test_the_shorter_loader_is_fine_where_the_shortest_sets_the_length() -> None:
    loaders = CombinedLoader(several("dict")[0], mode="min_size")
    selection = chosen(loader="extra", labels=None)
    module, watch = OfSeveral("extra"), Watch(selection)
    trainer(selection, watch).fit(module, loaders)
    assert module.ids() == watch.plans


def test_a_dict_of_one_loader_needs_no_name() -> None:
    class FromDict(Tiny):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return super().training_step(batch["only"], batch_idx)

    module, watch, _ = fit(chosen(), FromDict(), train={"only": loader()})
    assert module.ids() == watch.plans


def test_two_loaders_can_have_a_selection_each() -> None:
    class Both(OfSeveral):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = super().training_step(batch, batch_idx)
            logits = {key: self.net(batch[key][0][:, 1:]) for key in ("a", "b")}
            return {"loss": loss + self.loss(logits["b"], batch["b"][1]), **logits}

    first, second = chosen(loader="a", outputs="a", seed=1), chosen(loader="b", outputs="b", seed=2)
    module, watches = Both("a"), (Watch(first), Watch(second))
    trainer(first, second, *watches).fit(module, {"a": loader(), "b": loader(data(seed=1))})
    assert module.ids() == watches[0].plans
    epochs = [module.others[k : k + 6] for k in range(0, 24, 6)]
    assert dict(enumerate(epochs)) == watches[1].plans
    assert watches[0].plans != watches[1].plans
