"""Blocks: what a user may say, where bounds come from, plans of several ranks, training and resume in block order."""

from __future__ import annotations

import gc
import tracemalloc
from itertools import pairwise
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from resume_tools import Recorder, make_data
from tiny_training import Tiny, data, loader, trainer
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset

from lightning_ubs import UBS, ActiveBias, Balance, BatchSelection, Blocks, InfoBatch, Random, SelectionError
from lightning_ubs.selection.order import BlockOrder, BlockPlan
from lightning_ubs.selection.plan import BatchLayout


class Sized:
    def __init__(self, n: int, **known: Any) -> None:
        self.n = n
        vars(self).update(known)

    def __len__(self) -> int:
        return self.n


def plans(
    order: BlockOrder, world: int, n: int = 1003, p: Any = None, batch: int = 16, **layout: Any
) -> list[BlockPlan]:
    layouts = [BatchLayout(n, batch, world_size=world, rank=rank, **layout) for rank in range(world)]
    return [order.plan(5, 1, layout, p, False) for layout in layouts]


# What a user may say


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ({"size": 0}, "size=0"),
        ({"size": 2.5}, "size=2.5"),
        ({"window": 0}, "window=0"),
        ({"per_rank": 1}, "per_rank=1"),
        ({"size": 5, "bounds": [0, 5]}, "pass one of them"),
        ({"bounds": [1, 5]}, "ascend from 0"),
        ({"bounds": [0, 5, 4]}, "ascend from 0"),
        ({"bounds": [0, 2.5]}, "ascend from 0"),
        ({"bounds": "abc"}, "ascend from 0"),
        ({"bounds": [0]}, "ascend from 0"),
    ],
)
def test_blocks_that_cannot_be_are_refused(arguments: dict[str, Any], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        Blocks(**arguments)


def test_bounds_that_do_not_end_with_the_dataset_are_refused() -> None:
    with pytest.raises(SelectionError, match="end at sample 40, but the train dataset has 42"):
        Blocks(bounds=[0, 20, 40]).bounds_of(Sized(42))


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ({"order": 16}, "order=16 is not an order"),
        ({"order": Blocks(), "replacement": "batch"}, "replacement='batch' does not go with"),
        ({"order": Blocks(), "strategy": Balance()}, "Balance makes the batches of its epochs itself"),
    ],
)
def test_an_order_that_cannot_be_followed_is_refused(arguments: dict[str, Any], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        BatchSelection(**arguments)


# Where bounds come from


def test_a_dataset_tells_its_own_bounds() -> None:
    shown = Sized(10, block_bounds=[0, 4, 4, 10])
    assert Blocks().bounds_of(shown).tolist() == [0, 4, 10]
    assert Blocks(size=5).bounds_of(shown).tolist() == [0, 5, 10]
    assert Blocks().bounds_of(Sized(10_000)).tolist() == [0, 4096, 8192, 10_000]


def test_joined_datasets_join_their_bounds() -> None:
    class Shown(Sized, Dataset):
        pass

    joined = ConcatDataset([Shown(10, block_bounds=[0, 4, 10]), Shown(3), Shown(5, block_bounds=lambda: [0, 1, 5])])
    assert Blocks().bounds_of(joined).tolist() == [0, 4, 10, 13, 14, 18]


def test_a_part_of_a_dataset_has_the_bounds_of_its_samples_if_they_ascend() -> None:
    whole = Sized(10, block_bounds=[0, 4, 8, 10])
    part = Subset(whole, [1, 3, 4, 6, 7])  # type: ignore[arg-type]
    assert Blocks().bounds_of(part).tolist() == [0, 2, 5]
    with pytest.warns(UserWarning, match=r"do not ascend.*Subset\(dataset, sorted\(indices\)\)"):
        assert Blocks().bounds_of(Subset(whole, [3, 1])).tolist() == [0, 2]  # type: ignore[arg-type]
    assert Blocks().bounds_of(Subset(Sized(5), [3, 1])).tolist() == [0, 2]  # type: ignore[arg-type]


def test_record_batches_of_a_hugging_face_dataset_are_blocks() -> None:
    datasets = pytest.importorskip("datasets")
    parts = [datasets.Dataset.from_dict({"x": list(range(n))}) for n in (5, 3, 7)]
    joined = datasets.concatenate_datasets(parts)
    assert Blocks().bounds_of(joined).tolist() == [0, 5, 8, 15]
    assert len(Blocks().bounds_of(joined.shuffle(seed=0))) == 2


def test_chunks_of_hdf5_are_blocks(tmp_path) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "data.h5", "w") as file:
        x = file.create_dataset("x", (25, 3), chunks=(4, 3))
        y = file.create_dataset("y", (25, 2), chunks=(10, 2))
        assert Blocks().bounds_of(x).tolist() == [0, 4, 8, 12, 16, 20, 24, 25]
        assert Blocks().bounds_of(Sized(25, x=x, y=y)).tolist() == [0, 10, 20, 25]


def test_chunks_of_zarr_are_blocks(tmp_path) -> None:
    zarr = pytest.importorskip("zarr")
    x = zarr.create_array(store=str(tmp_path / "x.zarr"), shape=(25, 3), chunks=(10, 3), dtype="f4")
    assert Blocks().bounds_of(Sized(25, x=x)).tolist() == [0, 10, 20, 25]


# Plans


@pytest.mark.parametrize("per_rank", [False, True])
@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("selected", [False, True])
def test_ranks_hold_the_parts_of_each_global_batch(per_rank: bool, world: int, selected: bool) -> None:
    p = torch.rand(1003, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) ** 3 if selected else None
    order = BlockOrder(Blocks(size=40, window=3, per_rank=per_rank), Sized(1003))
    for size in (None, 500, 37):
        ranks = plans(order, world, p=p, epoch_samples=size)
        for k in range(len(ranks[0])):
            parts = [plan[k] for plan in ranks]
            assert torch.equal(ranks[0].global_batch(k), torch.cat(parts))
            assert [len(part) for part in parts] == ranks[0].rank_sizes(k)
            behind = ranks[0].ids[k * ranks[0].layout.global_batch_size :][:20]
            assert torch.equal(ranks[-1].rows(k, len(behind)), behind)


def test_several_ranks_select_what_one_does_and_with_per_rank_each_reads_blocks_of_its_own() -> None:
    one = plans(BlockOrder(Blocks(size=40, window=3), Sized(1003)), 1, batch=32)[0]
    two = plans(BlockOrder(Blocks(size=40, window=3), Sized(1003)), 2)[0]
    assert torch.equal(one.ids, two.ids)
    own = plans(BlockOrder(Blocks(size=40, window=3, per_rank=True), Sized(1003)), 2)
    blocks = [set((torch.cat(list(plan)) // 40).tolist()) for plan in own]
    assert len(blocks[0] & blocks[1]) <= 3
    assert torch.equal(torch.cat([torch.cat(list(plan)) for plan in own]).sort().values, torch.arange(1003))


def test_epochs_that_are_shorter_continue_through_one_shuffled_pass() -> None:
    order = BlockOrder(Blocks(size=10, window=2), Sized(90))
    layout = BatchLayout(90, 8, epoch_samples=30)
    ids = torch.cat([order.plan(epoch, 3, layout, None, False).ids for epoch in range(6)])
    assert torch.equal(ids[:90].sort().values, torch.arange(90))
    assert torch.equal(ids[90:].sort().values, torch.arange(90))
    assert not torch.equal(ids[:90], ids[90:])


def test_the_memory_of_a_plan_does_not_grow_with_the_epoch() -> None:
    def peak(n: int) -> int:
        p = torch.rand(n, dtype=torch.float64)
        order = BlockOrder(Blocks(size=1024, window=4), Sized(n))
        gc.collect()
        tracemalloc.start()
        plan = order.plan(0, 0, BatchLayout(n, 128), p, False)
        for k in range(0, len(plan), 16):
            plan[k]
        result = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return result

    assert peak(2**21) < 1.5 * peak(2**18) + 2**17


# Training


@pytest.mark.parametrize("strategy", [UBS(), ActiveBias(), InfoBatch(), Random()], ids=lambda s: type(s).__name__)
def test_training_reads_what_was_planned_a_few_blocks_at_a_time(strategy: Any) -> None:
    module, size, window = Tiny(), 6, 2
    selection = BatchSelection(strategy, warmup_epochs=1, order=Blocks(size=size, window=window))
    trainer(selection, max_epochs=3).fit(module, loader(num_workers=2))
    for batches in module.ids().values():
        order = [sample for batch in batches for sample in batch]
        firsts: dict[int, int] = {}
        lasts: dict[int, int] = {}
        for place, sample in enumerate(order):
            firsts.setdefault(sample // size, place)
            lasts[sample // size] = place
        for place in range(len(order)):
            assert sum(firsts[block] <= place <= lasts[block] for block in firsts) <= window
    assert isinstance(selection.plan, BlockPlan)
    assert [b for batch in selection.plan for b in batch.tolist()] == [i for b in module.ids()[2] for i in b]


def test_a_prediction_is_credited_to_the_sample_that_it_is_of() -> None:
    module = Tiny()
    selection = BatchSelection(UBS(), warmup_epochs=1, order=Blocks(size=5, window=3))
    trainer(selection, max_epochs=3).fit(module, loader())
    known: list[list[torch.Tensor]] = [[] for _ in range(42)]
    for steps in module.seen.values():
        for ids, probs in steps:
            for sample in set(ids):  # a sample that comes twice in a batch counts once
                known[sample].append(probs[ids.index(sample)])
    values, counts = selection.strategy.memory.rows(0, 42)
    for sample, mine in enumerate(known):
        count = min(len(mine), values.shape[1])
        assert int(counts[sample]) == count
        if count:
            torch.testing.assert_close(values[sample, -count:].cpu(), torch.stack(mine[-count:]))


class Cut(L.Callback):
    def __init__(self, moment: tuple[int, int] | None, path: Any) -> None:
        self.moment, self.path = moment, path

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if (trainer.current_epoch, batch_idx) == self.moment:
            trainer.save_checkpoint(self.path)
            raise InterruptedError("cut")


@pytest.mark.parametrize("moment", [(0, 4), (3, 2), (3, 6)])
def test_a_resume_in_mid_epoch_with_other_workers_is_bit_equal(moment: tuple[int, int], tmp_path) -> None:
    def run(cut: tuple[int, int] | None, workers: int, ckpt: Any = None) -> tuple[Recorder, BatchSelection]:
        module = Recorder()
        selection = BatchSelection(UBS(), warmup_epochs=2, order=Blocks(size=6, window=3))
        fitted = trainer(selection, Cut(cut, tmp_path / "cut.ckpt"), max_epochs=5)
        try:
            fitted.fit(module, DataLoader(make_data(), batch_size=8, num_workers=workers), ckpt_path=ckpt)
        except InterruptedError:
            assert cut
        return module, selection

    whole, one = run(None, 0)
    before, _ = run(moment, 2)
    after, two = run(None, 1, tmp_path / "cut.ckpt")
    assert before.seen | after.seen == whole.seen
    for mine, theirs in pairwise([whole.state_dict(), after.state_dict()]):
        assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    assert torch.equal(one.probabilities, two.probabilities)
    assert torch.equal(one.state_dict()["times_drawn"], two.state_dict()["times_drawn"])


def test_a_resume_with_other_blocks_says_so(tmp_path) -> None:
    path = tmp_path / "cut.ckpt"
    first = trainer(BatchSelection(UBS(), order=Blocks(size=6)), Cut((1, 1), path))
    with pytest.raises(InterruptedError):
        first.fit(Tiny(), loader())
    with pytest.warns(UserWarning, match="order=Blocks"):
        trainer(BatchSelection(UBS(), order=Blocks(size=7))).fit(Tiny(), loader(), ckpt_path=path)


def test_other_readers_of_the_loader_change_nothing() -> None:
    class Reads(L.Callback):
        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            for _ in zip(range(3), trainer.train_dataloader, strict=False):
                pass

    seen = []
    for callbacks in ([], [Reads()]):
        torch.manual_seed(0)
        module = Tiny()
        selection = BatchSelection(UBS(), warmup_epochs=1, order=Blocks(size=6, window=2))
        trainer(selection, *callbacks, max_epochs=3).fit(module, loader(data()))
        seen.append(module.ids())
    assert seen[0] == seen[1]


def test_bounds_may_be_arrays_and_tensors() -> None:
    for bounds in (np.array([0, 20, 42]), torch.tensor([0, 20, 42]), (0, 20, 42)):
        assert Blocks(bounds=bounds).bounds_of(Sized(42)).tolist() == [0, 20, 42]
