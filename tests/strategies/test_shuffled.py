"""The control that deals a strategy's probabilities to random samples."""

from __future__ import annotations

import pytest
import torch

from lightning_ubs import UBS, InfoBatch, LossBias
from lightning_ubs.strategies import Shuffled, Strategy, TrainingSet


def learned(strategy: Strategy) -> Strategy:
    """A strategy that has seen one prediction of each of 60 samples."""
    generator = torch.Generator().manual_seed(0)
    strategy.reset(TrainingSet(60))
    strategy.update(torch.arange(60), torch.rand(60, 4, generator=generator), torch.ones(60, 4))
    strategy.measure()
    return strategy


@pytest.mark.parametrize("kind", [UBS, LossBias, InfoBatch])
def test_the_same_probabilities_go_to_other_samples_in_each_epoch(kind: type[Strategy]) -> None:
    own, dealt = learned(kind()), learned(Shuffled(strategy=kind()))
    pressure = own.pressure_at(5, 5, 19)
    expected = own.probabilities(pressure)
    found = []
    for epoch in (5, 6, 5):
        assert dealt.pressure_at(epoch, 5, 19) == own.pressure_at(epoch, 5, 19)
        found.append(dealt.probabilities(pressure))
    assert torch.equal(found[0].sort().values, expected.sort().values)
    assert not torch.equal(found[0], expected)
    assert not torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2]), "an epoch that is resumed is dealt alike"


@pytest.mark.parametrize("kind", [UBS, LossBias, InfoBatch])
def test_epochs_and_gradients_are_as_those_of_the_strategy(kind: type[Strategy]) -> None:
    own, dealt = kind(), Shuffled(strategy=kind())
    for name in ("needs", "default_unbiased", "default_replacement", "default_epoch_size", "warms_up", "decays"):
        assert getattr(dealt, name) == getattr(own, name)
    assert dealt.default_end(5, 40) == own.default_end(5, 40)
    assert dealt.plain_from(30, True) == own.plain_from(30, True)


def test_its_state_is_that_of_the_strategy() -> None:
    before, after = learned(Shuffled(strategy=LossBias())), Shuffled(strategy=LossBias())
    after.reset(TrainingSet(60))
    after.load_state_dict(before.state_dict())
    after.measure()
    for one in (before, after):
        one.pressure_at(7, 5, 19)
    assert torch.equal(before.probabilities(8.0), after.probabilities(8.0))


def test_what_is_no_strategy_is_refused() -> None:
    with pytest.raises(ValueError, match="strategy='ubs' must be a strategy, such as UBS"):
        Shuffled(strategy="ubs")  # type: ignore[arg-type]
