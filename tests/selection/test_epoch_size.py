"""A selected epoch trains on as many samples as a plain one, or on as many as the user asks for."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from tiny_training import N, Tiny, fit, loader

from lightning_ubs import (
    UBS,
    ActiveBias,
    Balance,
    BatchSelection,
    HardImbalance,
    LossBias,
    Random,
    RecencyBias,
    SelectionError,
)

STRATEGIES = (UBS, ActiveBias, RecencyBias, HardImbalance, Balance, Random, LossBias)
WAYS = ("batch", "none", "full", "systematic")


def sizes(module: Any) -> dict[int, list[int]]:
    return {epoch: [len(ids) for ids in batches] for epoch, batches in module.ids().items()}


@pytest.mark.parametrize("replacement", WAYS)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_epoch_has_the_batches_of_a_plain_pass(strategy: Any, replacement: Any) -> None:
    """42 samples in batches of 8: the last batch has 2."""
    module, watch, _ = fit(BatchSelection(strategy(), warmup_epochs=1, replacement=replacement), max_epochs=3)
    assert sizes(module) == dict.fromkeys(range(3), [8] * 5 + [2])
    assert module.ids() == watch.plans


@pytest.mark.parametrize("replacement", WAYS)
def test_a_dropped_last_batch_is_dropped_in_selected_epochs_too(replacement: Any) -> None:
    module, *_ = fit(
        BatchSelection(warmup_epochs=1, replacement=replacement), train=loader(drop_last=True), max_epochs=3
    )
    assert sizes(module) == dict.fromkeys(range(3), [8] * 5)


@pytest.mark.parametrize("replacement", ["batch", "full", "systematic"])
def test_the_papers_full_last_batch_is_an_option(replacement: Any) -> None:
    module, watch, _ = fit(BatchSelection(warmup_epochs=1, replacement=replacement, fill_last=True), max_epochs=3)
    assert sizes(module) == {0: [8] * 5 + [2], 1: [8] * 6, 2: [8] * 6}
    assert module.ids() == watch.plans


def test_random_with_a_filled_last_batch_is_its_control() -> None:
    plain, *_ = fit(BatchSelection(Random()), max_epochs=3)
    filled, watch, _ = fit(BatchSelection(Random(fill_last=True)), max_epochs=3)
    assert sizes(filled) == dict.fromkeys(range(3), [8] * 6)
    assert filled.ids() == watch.plans
    for epoch, batches in filled.ids().items():
        assert batches[:5] == plain.ids()[epoch][:5]
        assert batches[5][:2] == plain.ids()[epoch][5]
        assert len(set(batches[5])) == 8


@pytest.mark.parametrize(
    ("epoch_size", "expected"), [(0.5, [8, 8, 5]), (20, [8, 8, 4]), (0.01, [1]), (42, None), (1, None)]
)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_epochs_have_the_size_that_is_asked_for(strategy: Any, epoch_size: Any, expected: Any) -> None:
    selection = BatchSelection(strategy(), warmup_epochs=2, epoch_size=epoch_size)
    steps: list[int] = []

    class Scheduled(Tiny):
        def configure_optimizers(self) -> Any:
            steps.append(int(self.trainer.estimated_stepping_batches))
            return super().configure_optimizers()

    module, watch, made = fit(selection, Scheduled(), max_epochs=4)
    expected = expected or [8] * 5 + [2]
    assert sizes(module) == dict.fromkeys(range(4), expected)
    assert module.ids() == watch.plans
    assert steps == [4 * len(expected)]
    assert made.num_training_batches == len(expected)


@pytest.mark.parametrize("strategy", [UBS, Random])
@pytest.mark.parametrize("epoch_size", [0.25, 0.4, 17])
def test_short_plain_epochs_walk_on_through_shuffled_passes(strategy: Any, epoch_size: Any) -> None:
    module, *_ = fit(BatchSelection(strategy(), warmup_epochs=9, epoch_size=epoch_size), max_epochs=8)
    trained = [i for epoch in range(8) for ids in module.ids()[epoch] for i in ids]
    passes = [trained[first : first + N] for first in range(0, len(trained), N)]
    assert all(sorted(one) == list(range(N)) for one in passes[:-1])
    assert len(set(passes[-1])) == len(passes[-1])


def test_a_sample_that_comes_twice_in_a_batch_is_remembered_once() -> None:
    """17 of 42 samples an epoch: passes begin in the middle of a batch."""
    selection = BatchSelection(warmup_epochs=99, epoch_size=17)
    module, *_ = fit(selection, max_epochs=20)
    visits = Counter(i for epochs in module.ids().values() for ids in epochs for i in set(ids))
    assert any(len(set(ids)) < len(ids) for epochs in module.ids().values() for ids in epochs)
    assert selection.strategy.memory.visits[:N].tolist() == [visits[i] for i in range(N)]


@pytest.mark.parametrize("value", [0, -1, 1.5, float("nan"), "half", {"strat": 1.0}])
def test_impossible_sizes_are_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="epoch_size"):
        BatchSelection(epoch_size=value)


def test_more_samples_than_there_are_is_refused() -> None:
    with pytest.raises(SelectionError, match="epoch_size=43 is more than the 42 training samples"):
        fit(BatchSelection(epoch_size=43))


def test_an_epoch_without_a_whole_batch_is_refused_where_the_rest_is_dropped() -> None:
    with pytest.raises(SelectionError, match=r"7 samples has no whole batch of 8.*drop_last=False"):
        fit(BatchSelection(epoch_size=7), train=loader(drop_last=True))


def test_filling_needs_repeats() -> None:
    with pytest.raises(ValueError, match="fill_last=True needs repeated samples"):
        BatchSelection(fill_last=True, replacement="none")


def test_systematic_drawing_of_uniform_probabilities_is_a_shuffled_pass() -> None:
    selection = BatchSelection(UBS(s0=1.0), warmup_epochs=1, replacement="systematic")
    module, *_ = fit(selection, max_epochs=3)
    for epoch in (1, 2):
        assert sorted(i for ids in module.ids()[epoch] for i in ids) == list(range(N))


def test_systematic_epochs_draw_each_sample_as_often_as_its_probability_says() -> None:
    selection = BatchSelection(UBS(s0=30.0), warmup_epochs=1, replacement="systematic")
    module, watch, _ = fit(selection, max_epochs=4)
    for epoch in (1, 2):
        expected = watch.shown[epoch]["probabilities"] * N
        drawn = torch.tensor([i for ids in module.ids()[epoch] for i in ids]).bincount(minlength=N)
        assert ((drawn >= (expected - 1e-9).floor()) & (drawn <= (expected + 1e-9).ceil())).all()
        assert all(len(set(ids)) == len(ids) for ids in module.ids()[epoch])
