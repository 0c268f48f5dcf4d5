"""Label correlation may serve for several epochs."""

from __future__ import annotations

import pytest
import torch

from lightning_ubs import UBS, ActiveBias, RecencyBias, UncertaintyStrategy
from lightning_ubs.experiment.build import build_selection
from lightning_ubs.experiment.config import compose_train, resolved, run_key
from lightning_ubs.functional import sample_weights, uncertainty_correlation
from lightning_ubs.strategies import TrainingSet

N, Q = 60, 4
LC = {"correlation": "mutual_information"}


def learn(strategy: UncertaintyStrategy, epoch: int) -> None:
    strategy.update(torch.arange(N), torch.rand(N, Q, generator=torch.Generator().manual_seed(epoch)))


def correlations(strategy: UncertaintyStrategy, epochs: range) -> list[torch.Tensor]:
    found = []
    for epoch in epochs:
        learn(strategy, epoch)
        measured = strategy.measure()
        assert torch.equal(measured.weights, sample_weights(measured.uncertainty, measured.correlation))
        found.append(measured.correlation)
    return found


@pytest.mark.parametrize("kind", [UBS, ActiveBias, RecencyBias])
def test_correlation_is_computed_anew_every_k_epochs_and_used_in_between(kind):
    strategy = kind(correlation_every=3, **LC)
    strategy.reset(TrainingSet(N))
    found = correlations(strategy, range(7))
    assert [found[i] is found[i - 1] for i in range(1, 7)] == [True, True, False, True, True, False]
    every = kind(**LC)
    every.reset(TrainingSet(N))
    for epoch, fresh in enumerate(correlations(every, range(7))):
        assert torch.equal(found[epoch], fresh) == (epoch % 3 == 0)
    assert torch.equal(found[6], uncertainty_correlation(strategy.measured.uncertainty))


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_a_resume_computes_it_in_the_same_epochs(cut):
    whole, first, second, compact = (UBS(correlation_every=3) for _ in range(4))
    for strategy in (whole, first, second, compact):
        strategy.reset(TrainingSet(N))
    found = correlations(whole, range(7))
    correlations(first, range(cut))
    second.load_state_dict(first.state_dict())
    resumed = correlations(second, range(cut, 7))
    assert all(torch.equal(*pair) for pair in zip(resumed, found[cut:], strict=True))
    compact.load_state_dict(first.compact_state_dict())
    learn(compact, cut)
    assert torch.equal(compact.measure().correlation, found[cut - 1]) == (cut < 3)


def test_a_reset_forgets_it():
    strategy, found = UBS(correlation_every=3), []
    for seed in (range(1), range(1, 2)):
        strategy.reset(TrainingSet(N))
        found += correlations(strategy, seed)
    assert torch.equal(found[1], uncertainty_correlation(strategy.measured.uncertainty))


def test_it_is_a_key_of_the_configuration_and_runs_without_it_keep_theirs():
    plain, third = (resolved(compose_train(["data=yeast", *one])) for one in ([], ["selection.correlation_every=3"]))
    assert build_selection(third["selection"], 0).strategy.correlation_every == 3
    before = dict(plain) | {"selection": {k: v for k, v in plain["selection"].items() if k != "correlation_every"}}
    assert run_key(plain) == run_key(before) != run_key(third)
