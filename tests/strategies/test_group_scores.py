"""Weights per group that a function of the user's updates at each epoch's start."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tiny_training import N, Tiny, fit, loader, trainer
from torch import Tensor

from lightning_ubs import BatchSelection, Blocks, GroupScores, SelectionError, TrainingSet

GROUPS = [i % 3 for i in range(N)]


class Asked:
    """Doubles the weight of the last group, and writes down when it was asked."""

    def __init__(self) -> None:
        self.calls: list[tuple[list[float], float]] = []

    def __call__(self, weights: Tensor, progress: float) -> Tensor:
        self.calls.append((weights.tolist(), progress))
        return weights * torch.tensor([1.0, 1.0, 2.0])


@pytest.mark.parametrize("order", [None, Blocks(size=10, window=2)])
def test_weights_are_asked_for_once_an_epoch_and_samples_come_as_often_as_their_group_says(order: Any) -> None:
    asked = Asked()
    _, watch, _ = fit(BatchSelection(GroupScores(GROUPS, scores=asked), order=order), max_epochs=3)
    assert [weights for weights, _ in asked.calls] == [[1, 1, 1], [1, 1, 2], [1, 1, 4]]
    progress = [share for _, share in asked.calls]
    assert progress == sorted(set(progress))
    for epoch, weight in ((0, 2), (1, 4), (2, 8)):
        expected = np.array([1, 1, weight])[GROUPS]
        p = watch.shown[epoch]["probabilities"].numpy()
        np.testing.assert_allclose(p, expected / expected.sum(), rtol=1e-12)
        counts = np.bincount([i for batch in watch.plans[epoch] for i in batch], minlength=N)
        assert (np.abs(counts - N * p) < 1).all()


def test_equal_weights_are_a_shuffled_pass_and_an_end_makes_the_rest_plain() -> None:
    selection = BatchSelection(GroupScores(GROUPS, scores=lambda w, p: w), epoch_size=None)
    _, watch, _ = fit(selection, max_epochs=1)
    assert sorted(i for batch in watch.plans[0] for i in batch) == list(range(N))
    _, watch, _ = fit(BatchSelection(GroupScores(GROUPS, scores=lambda w, p: [0, 0, 1]), end_epoch=1), max_epochs=2)
    assert {i % 3 for batch in watch.plans[0] for i in batch} == {2}
    assert sorted(i for batch in watch.plans[1] for i in batch) == list(range(N))


@pytest.mark.parametrize("of", [list, np.array, torch.tensor, lambda g: np.array(g, dtype=np.uint8)])
def test_groups_come_as_lists_arrays_or_tensors_and_some_may_be_empty(of: Any) -> None:
    strategy = GroupScores(of([0, 2, 2]), scores=lambda weights, progress: [1, 1e300, 3])
    strategy.reset(TrainingSet(3))
    strategy.measure()
    np.testing.assert_allclose(strategy.probabilities(1.0).numpy(), [1 / 7, 3 / 7, 3 / 7])
    assert strategy.measured.weights is not None
    np.testing.assert_allclose(strategy.measured.weights.numpy(), [1 / 3, 1, 1])


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ([0.0, 1.0], r"type torch\.float32 .*one whole number"),
        ([0, -1], "at least 0 per sample"),
        ([], r"shape \[0\]"),
        ([[0, 1]], r"shape \[1, 2\]"),
        (["web", "books"], r"are no numbers; .*return_inverse=True"),
        (None, "NoneType are no numbers"),
    ],
)
def test_groups_that_are_none_are_refused(groups: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GroupScores(groups, scores=Asked())


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ([1.0, 2.0], "return 3 finite numbers"),
        ([1.0, 2.0, float("nan")], "return 3 finite numbers"),
        ([1.0, 2.0, -1.0], "of at least 0"),
        (None, "NoneType, which are no numbers; return 3"),
        ([0, 0, 0], "0 for every group"),
    ],
)
def test_scores_that_cannot_be_drawn_by_are_refused(answer: Any, message: str) -> None:
    with pytest.raises(SelectionError, match=message):
        fit(BatchSelection(GroupScores(GROUPS, scores=lambda weights, progress: answer)), max_epochs=1)


def test_scores_that_are_no_function_and_other_numbers_of_samples_are_refused() -> None:
    with pytest.raises(ValueError, match="is no function; pass one of"):
        GroupScores(GROUPS, scores=[1, 2, 3])  # type: ignore[arg-type]
    with pytest.raises(SelectionError, match=f"groups of 2 samples for {N} training samples"):
        fit(BatchSelection(GroupScores([0, 1], scores=Asked())))


def test_a_resume_with_other_groups_is_refused(tmp_path: Any) -> None:
    _, _, made = fit(BatchSelection(GroupScores(GROUPS, scores=Asked())), max_epochs=1)
    made.save_checkpoint(tmp_path / "one.ckpt")
    others = BatchSelection(GroupScores([0] * N, scores=lambda weights, progress: weights))
    with pytest.raises(SelectionError, match="weights of 3 groups, but there are 1"):
        trainer(others, max_epochs=2).fit(Tiny(), loader(), ckpt_path=tmp_path / "one.ckpt")


def test_scores_may_grow_for_as_long_as_they_are_numbers() -> None:
    strategy = GroupScores([0, 1], scores=lambda weights, progress: [1e308, 1e308])
    strategy.reset(TrainingSet(2))
    strategy.measure()
    assert strategy.probabilities(1.0).tolist() == [0.5, 0.5]
