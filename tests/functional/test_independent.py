"""Independent draws by sorted uniform numbers."""

from __future__ import annotations

import itertools

import pytest
import torch
from chance import assert_distributed_as, rows_of, seeded

from lightning_ubs.functional import batches
from lightning_ubs.functional.batches import IndependentDraws

PROBS = [0.1, 0.0, 0.2, 0.7, 0.0]


@pytest.mark.parametrize("block", [2**20, 7])
def test_neighboring_draws_follow_the_probabilities_independently(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "_DRAWS", block)
    drawn = IndependentDraws(torch.tensor(PROBS, dtype=torch.float64))(30_000, seeded())
    triples = {ids: PROBS[ids[0]] * PROBS[ids[1]] * PROBS[ids[2]] for ids in itertools.product(range(5), repeat=3)}
    assert_distributed_as(rows_of(drawn.view(-1, 3)), triples)


@pytest.mark.parametrize(("gap", "drawn"), [([0.0, 1.0], 2), ([1.0, 0.0], 5)])
def test_a_number_at_either_end_falls_on_a_possible_sample(
    gap: list[float], drawn: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.Tensor, "exponential_", lambda self, generator: self.copy_(self.new_tensor(gap)))
    probs = torch.tensor([0, 0, 0.1, 0.3, 0, 0.6, 0, 0], dtype=torch.float64)
    assert IndependentDraws(probs)(1, seeded()).tolist() == [drawn]


def test_no_draws_at_all_are_an_empty_tensor() -> None:
    assert IndependentDraws(torch.ones(3))(0, seeded()).shape == (0,)


@pytest.mark.parametrize("count", [0, 1, 10, 25])
def test_blocks_together_make_exactly_as_many_draws(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "_DRAWS", 10)
    assert IndependentDraws(torch.ones(4))(count, torch.Generator().manual_seed(0)).shape == (count,)
