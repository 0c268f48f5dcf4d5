"""From predictions to the plan of an epoch, without a Trainer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from no_host_wait import forbid_host_wait
from torch import Tensor

from lightning_ubs import UBS, ActiveBias, InfoBatch, Random, RecencyBias, SelectionError
from lightning_ubs.selection.plan import BatchLayout
from lightning_ubs.selection.planner import Schedule, Selector
from lightning_ubs.strategies import Strategy, TrainingSet

N, Q = 10, 3


@dataclass
class Seen:
    probs: Tensor
    usable: Tensor
    targets: Tensor | None = None


def alone(probabilities: Tensor) -> Tensor:
    return probabilities


def make(strategy: Strategy | None = None, start: int = 1, end: int = 4, seed: int = 3, **options: Any) -> Selector:
    """A selector of 10 samples in batches of 4, 4 and 2; epochs from ``start`` on are selected."""
    strategy = UBS(window=2) if strategy is None else strategy
    strategy.reset(TrainingSet(N))
    selector = Selector(strategy, seed, options.pop("replacement", "batch"), **options)
    selector.lay_out(BatchLayout(N, 4))
    selector.schedule = Schedule(start, end)
    return selector


def predictions(epoch: int) -> Tensor:
    """What the model predicts for each sample in an epoch."""
    return torch.rand(N, Q, generator=torch.Generator().manual_seed(epoch))


def train(selector: Selector, epoch: int, last: int | None = None) -> None:
    """Train an epoch, or its first ``last`` batches."""
    plan = selector.prepare(epoch, alone)
    for k in range(len(plan) if last is None else last):
        ids = plan.global_batch(k)
        selector.learn(k, Seen(predictions(epoch)[ids], torch.ones(len(ids), dtype=torch.bool)))
        selector.finish_batch(k)


def test_a_plan_is_made_once_for_an_epoch_and_a_layout() -> None:
    selector = make()
    first = selector.prepare(0, alone)
    assert selector.prepare(0, alone) is first
    selector.lay_out(BatchLayout(N, 5))
    other = selector.prepare(0, alone)
    assert len(other) == 2
    assert torch.equal(other.ids, first.ids)
    following = selector.prepare(1, alone)
    assert (following.epoch, selector.plan) == (1, following)
    selector.drop_plan()
    assert selector.plan is None
    assert torch.equal(selector.prepare(1, alone).ids, following.ids)


def test_warm_up_is_a_shuffled_pass_and_later_epochs_follow_the_probabilities() -> None:
    selector = make(UBS(window=2, s0=1e6))
    train(selector, 0)
    assert sorted(selector.plan.ids.tolist()) == list(range(N))
    assert selector.pressure == 1.0
    assert torch.equal(selector.probabilities, torch.full((N,), 1 / N, dtype=torch.float64))
    train(selector, 1)
    assert selector.pressure == pytest.approx(1e6)
    assert torch.equal(selector.probabilities, selector.strategy.probabilities(selector.pressure))
    heaviest = int(selector.probabilities.argmax())
    assert all(heaviest in batch.tolist() for batch in list(selector.plan)[:2])


def test_plain_passes_beside_the_training_depend_on_seed_and_epoch_alone() -> None:
    selector, other = make(), make(UBS(lambda1=1.0))
    before = selector.shuffled_plan(2)
    train(selector, 0)
    assert selector.plan.epoch == 0
    assert torch.equal(selector.shuffled_plan(2).ids, before.ids)
    assert torch.equal(other.shuffled_plan(2).ids, before.ids)
    assert before.epoch == 2
    assert not torch.equal(make(seed=4).shuffled_plan(2).ids, before.ids)


@pytest.mark.parametrize(
    ("strategy", "selected"),
    [(UBS(), [False, False, True, True, True]), (InfoBatch(), [False, False, True, False, False])],
)
def test_epochs_are_selected_from_the_start_and_some_strategies_end_plainly(
    strategy: Strategy, selected: list[bool]
) -> None:
    selector = make(strategy)
    selector.schedule = Schedule.of(strategy, 2, 3, 5)
    assert [selector.selects(epoch) for epoch in range(5)] == selected


def test_a_strategy_without_warm_up_selects_at_once() -> None:
    assert make(Random(), start=2).selects(0)


def test_all_processes_agree_on_the_probabilities_that_are_shared() -> None:
    agreed = torch.zeros(N, dtype=torch.float64)
    agreed[:4] = 0.25
    asked: list[Tensor] = []

    def share(probabilities: Tensor) -> Tensor:
        asked.append(probabilities)
        return agreed

    selector = make()
    train(selector, 0)
    plan = selector.prepare(1, share)
    assert len(asked) == 1
    assert torch.equal(selector.probabilities, agreed)
    assert set(plan.ids.tolist()) == {0, 1, 2, 3}
    selector.drop_plan()
    selector.prepare(1, share)
    assert len(asked) == 1, "P of an epoch is measured once"


def test_predictions_reach_the_samples_that_were_planned_and_unusable_ones_reach_none() -> None:
    selector = make()
    plan = selector.prepare(0, alone)
    probs = predictions(0)
    assert selector.first_fault() is None
    for k in range(3):
        ids = plan.global_batch(k)
        usable = torch.ones(len(ids), dtype=torch.bool)
        if k == 1:
            usable[2] = False
        selector.learn(k, Seen(probs[ids], usable))
    bad = int(plan.global_batch(1)[2])
    rows, counts = selector.strategy.memory.rows(0, N)
    assert counts.tolist() == [0 if i == bad else 1 for i in range(N)]
    good = [i for i in range(N) if i != bad]
    assert torch.equal(rows[good, -1], probs[good])
    assert selector.first_fault() == (1, bad)
    selector.prepare(1, alone)
    assert selector.first_fault() is None


def test_a_sample_twice_in_a_batch_counts_as_one_visit() -> None:
    selector = make(replacement="full")
    certain = torch.zeros(N, dtype=torch.float64)
    certain[7] = 1
    train(selector, 0)
    plan = selector.prepare(1, lambda _: certain)
    assert set(plan.ids.tolist()) == {7}
    for k in range(3):
        ids = plan.global_batch(k)
        selector.learn(k, Seen(predictions(1)[ids], torch.ones(len(ids), dtype=torch.bool)))
    assert selector.strategy.memory.visits[:N].tolist() == [1] * 7 + [1 + 3] + [1] * 2


def test_trained_ids_are_those_of_the_batches_that_were_trained() -> None:
    selector = make()
    assert selector.trained_ids().tolist() == []
    assert selector.trained_ids().dtype == torch.int64
    plan = selector.prepare(0, alone)
    selector.finish_batch(0)
    selector.skip_batch(1)
    selector.finish_batch(2)
    assert selector.trained_ids().tolist() == [*plan.global_batch(0).tolist(), *plan.global_batch(2).tolist()]
    assert selector.metrics(0.0)["distinct_share"] == 6 / N
    assert selector.prepare(1, alone).epoch == 1
    assert selector.trained_ids().tolist() == []
    selector.resume_at(2)
    assert selector.trained_ids().tolist() == selector.plan.ids[:8].tolist()


def test_metrics_say_what_was_trained() -> None:
    selector = make()
    train(selector, 0)
    assert selector.metrics(1.5) == {
        "pressure": 1.0,
        "effective_sample_size": pytest.approx(N),
        "distinct_share": 1.0,
        "seconds": 1.5,
    }
    train(selector, 1)
    selector.skip_batch(2)
    selector.skip_batch(2)
    before = selector.strategy.measured.correlation
    shown = selector.metrics(2.0)
    assert shown["effective_sample_size"] == pytest.approx(1 / float((selector.probabilities**2).sum()))
    assert shown["effective_sample_size"] < N - 0.5
    assert shown["mean_uncertainty"] == pytest.approx(float(selector.strategy.measured.uncertainty.mean()))
    assert shown["steps_without_predictions"] == 2.0
    assert "correlation_drift" not in shown, "there was no correlation before"
    train(selector, 2)
    after = selector.strategy.measured.correlation
    assert selector.metrics(0.0)["correlation_drift"] == pytest.approx(float((after - before).abs().mean()))
    assert selector.metrics(0.0)["correlation_drift"] > 0
    assert "steps_without_predictions" not in selector.metrics(0.0)


def test_drift_is_not_told_again_when_nothing_new_was_predicted() -> None:
    selector = make(Random(), start=0)
    selector.prepare(0, alone)
    selector.prepare(1, alone)
    assert selector.drift is None


@pytest.mark.parametrize("batches", [0, 2, None])
def test_a_state_goes_on_with_the_same_plans(batches: int | None) -> None:
    selector, resumed = make(), make(seed=99)
    for epoch in range(2):
        train(selector, epoch)
    train(selector, 2, batches)
    selector.joined_epoch = 1
    state = selector.state_dict()
    assert (state["epoch"], state["batch"]) == (2, {0: 0, 2: 2, None: 3}[batches])
    assert (state["num_samples"], state["global_batch_size"], state["version"]) == (N, 4, 1)
    resumed.load_state_dict(state)
    assert (resumed.seed, resumed.joined_epoch, resumed.pressure) == (3, 1, selector.pressure)
    assert resumed.is_measured(2)
    assert not resumed.is_measured(3)

    def refuse(_: Tensor) -> Tensor:
        raise AssertionError("P of the epoch is in the checkpoint")

    assert torch.equal(resumed.prepare(2, refuse).ids, selector.plan.ids)
    for k in range(batches if batches is not None else 3, 3):
        for one in (selector, resumed):
            ids = one.plan.global_batch(k)
            one.learn(k, Seen(predictions(2)[ids], torch.ones(len(ids), dtype=torch.bool)))
    assert torch.equal(resumed.prepare(3, alone).ids, selector.prepare(3, alone).ids)


def test_a_saved_state_does_not_change_when_training_goes_on() -> None:
    selector = make()
    train(selector, 0)
    state = selector.state_dict()
    saved = state["probabilities"].clone()
    selector.probabilities.zero_()
    assert torch.equal(state["probabilities"], saved)


def test_a_state_before_anything_was_planned_says_so() -> None:
    selector = make()
    state = selector.state_dict()
    assert (state["epoch"], state["batch"], state["probabilities_epoch"]) == (-1, 0, -1)
    assert "probabilities" not in state
    selector.layout = None
    assert selector.state_dict()["global_batch_size"] == 0
    other = make()
    other.load_state_dict(state)
    assert other.probabilities is None
    assert not other.is_measured(0)


def test_a_skipped_batch_counts_as_done_in_a_state() -> None:
    selector = make()
    selector.prepare(0, alone)
    selector.skip_batch(0)
    assert selector.state_dict()["batch"] == 1
    selector.prepare(1, alone)
    assert selector.state_dict()["batch"] == 0
    assert selector.skipped_batches == 0


def test_a_compact_state_has_weights_but_no_predictions() -> None:
    selector = make(compact=True)
    for epoch in range(2):
        train(selector, epoch)
    assert "history" not in selector.state_dict()["strategy_state"]
    assert "weights" in selector.state_dict()["strategy_state"]
    full = make()
    train(full, 0)
    assert "history" in full.state_dict()["strategy_state"]


def test_forgetting_starts_anew() -> None:
    selector, fresh = make(), make()
    for epoch in range(2):
        train(selector, epoch)
    selector.skip_batch(0)
    selector.forget()
    assert selector.layout is None
    assert (selector.plan, selector.probabilities, selector.drift) == (None, None, None)
    assert (selector.pressure, selector.joined_epoch, selector.skipped_batches) == (1.0, 0, 0)
    assert selector.schedule == Schedule(0, 0)
    assert not selector.is_measured(1)
    selector.strategy.reset(TrainingSet(N))
    selector.lay_out(BatchLayout(N, 4))
    assert selector.state_dict().items() >= {"epoch": -1, "batch": 0}.items()
    selector.schedule = Schedule(1, 4)
    for one in (selector, fresh):
        train(one, 0)
    assert torch.equal(selector.prepare(1, alone).ids, fresh.prepare(1, alone).ids)


def test_arguments_that_differ_from_those_of_a_checkpoint_are_named() -> None:
    selector = make(UBS(lambda1=0.3, window=2))
    state = selector.state_dict()
    assert selector.changed_arguments(state) == {}
    other = make(UBS(lambda1=0.4, window=2, temperature=2.0))
    assert other.changed_arguments(state) == {"lambda1": ("0.3", "0.4"), "temperature": ("None", "2.0")}
    state["arguments"].pop("lambda1")
    assert other.changed_arguments(state) == {"temperature": ("None", "2.0")}
    state.pop("arguments")
    assert other.changed_arguments(state) == {}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "version 2"),
        ({"strategy": "RecencyBias"}, "RecencyBias, but this run uses UBS"),
        ({"num_samples": 11}, "11 training samples, but this run has 10"),
    ],
)
def test_a_state_of_another_kind_is_refused(change: dict[str, Any], message: str) -> None:
    selector = make()
    train(selector, 0)
    with pytest.raises(SelectionError, match=message):
        make().load_state_dict(selector.state_dict() | change)


def test_a_state_that_was_written_before_the_dataset_was_known_is_read() -> None:
    make().load_state_dict(make().state_dict() | {"num_samples": 0})


def test_what_needs_a_loader_or_a_plan_says_so() -> None:
    selector = make()
    with pytest.raises(SelectionError, match="no epoch is planned"):
        selector.learn(0, Seen(torch.rand(4, Q), torch.ones(4, dtype=torch.bool)))
    assert selector.first_fault() is None
    selector.layout = None
    with pytest.raises(SelectionError, match="no train loader"):
        selector.prepare(0, alone)


def test_another_number_of_labels_is_refused() -> None:
    selector = make()
    train(selector, 0)
    selector.check_labels(torch.rand(2, Q))
    for refuse in (
        lambda: selector.check_labels(torch.rand(2, Q + 1)),
        lambda: selector.learn(0, Seen(torch.rand(4, Q + 1), torch.ones(4, dtype=torch.bool))),
    ):
        with pytest.raises(SelectionError, match=r"4 labels, but 3 were remembered"):
            refuse()


BAD = {
    "too few": torch.full((N - 1,), 1 / N),
    "not a number": torch.full((N,), torch.nan),
    "infinite": torch.full((N,), torch.inf),
    "one infinite": torch.cat([torch.tensor([torch.inf]), torch.ones(N - 1)]),
    "negative": torch.cat([torch.tensor([-0.5]), torch.ones(N - 1)]),
    "nothing": torch.zeros(N),
}


@pytest.mark.parametrize("kind", BAD)
def test_probabilities_that_cannot_be_drawn_from_are_refused(kind: str) -> None:
    selector = make()
    train(selector, 0)
    with pytest.raises(SelectionError, match="UBS returned probabilities"):
        selector.prepare(1, lambda _: BAD[kind])


def test_probabilities_may_be_zero_for_some_and_become_double() -> None:
    selector = make()
    train(selector, 0)
    some = torch.ones(N)
    some[0] = 0
    selector.prepare(1, lambda _: some.requires_grad_())
    assert selector.probabilities.dtype == torch.float64
    assert not selector.probabilities.requires_grad
    assert 0 not in selector.plan.ids.tolist()


@pytest.mark.parametrize("strategy", [UBS(), RecencyBias(), ActiveBias(mode="quantized")])
def test_pressure_falls_to_one_at_the_end_of_the_schedule(strategy: Strategy) -> None:
    selector = make(strategy)
    pressures = []
    for epoch in range(6):
        train(selector, epoch)
        pressures.append(selector.pressure)
    assert pressures[:2] == [1.0, pytest.approx(100.0)]
    assert pressures[1] > pressures[2] > pressures[3] > pressures[4] == pressures[5] == 1.0


@pytest.mark.parametrize(("options", "last"), [({}, 2), ({"fill_last": True}, 4)])
def test_only_a_filled_last_batch_of_a_selected_epoch_is_full(options: dict[str, bool], last: int) -> None:
    selector = make(**options)
    train(selector, 0)
    assert [len(batch) for batch in selector.plan] == [4, 4, 2]
    train(selector, 1)
    assert [len(batch) for batch in selector.plan] == [4, 4, last]


def test_predictions_on_another_device_are_learned_there_without_waiting_for_it() -> None:
    selector = make()
    plan = selector.prepare(0, alone)
    for k in range(3):
        size = len(plan.global_batch(k))
        with forbid_host_wait():
            selector.learn(k, Seen(torch.rand(size, Q, device="meta"), torch.ones(size, device="meta").bool()))
    assert selector.strategy.memory.visits.device.type == selector._fault.device.type == "meta"


def test_one_sample_is_the_whole_set() -> None:
    strategy = UBS()
    strategy.reset(TrainingSet(1))
    selector = Selector(strategy, 0, "batch")
    selector.lay_out(BatchLayout(1, 4))
    selector.prepare(0, alone)
    selector.finish_batch(0)
    assert selector.metrics(0.0)["distinct_share"] == 1.0


def test_a_state_that_does_not_say_when_selection_joined_joined_at_the_start() -> None:
    state = make().state_dict()
    del state["joined_epoch"]
    selector = make()
    selector.joined_epoch = 5
    selector.load_state_dict(state)
    assert selector.joined_epoch == 0


def test_only_plain_arguments_of_a_strategy_are_saved() -> None:
    class Listed(Random):
        def __init__(self, share: float = 0.5, favorites: tuple[int, ...] = (1, 2), name: str | None = None) -> None:
            super().__init__()
            self.share, self.favorites, self.name = share, favorites, name

    assert make(Listed()).state_dict()["arguments"] == {"share": "0.5", "name": "None"}
