"""Several processes do what one would. Every test looks at real processes that talk over gloo."""

from __future__ import annotations

import re

import pytest
import torch
from ddp_worker import STATE
from gloo import alone, global_batches, launch, read
from resume_tools import STRATEGIES

from lightning_ubs import SelectionError

PAIRED = {name: {"name": name} for name in STRATEGIES} | {"blocks": {"selection": {"order": {"size": 6, "window": 3}}}}
# Last batches of 5, which two ranks cannot halve, and of 1, which both take.
UNDIVIDED = (37, 33)
UNEVEN = [(sampler, workers) for sampler in (False, True) for workers in (0, 1)]


def assert_ranks_hold_the_same(ranks: list[dict]) -> None:
    for other in ranks[1:]:
        assert torch.equal(other["weights"], ranks[0]["weights"])
        for mine, theirs in zip(ranks[0]["epochs"], other["epochs"], strict=True):
            for key in STATE:
                assert (mine[key] is None) == (theirs[key] is None)
                assert mine[key] is None or torch.equal(mine[key], theirs[key]), key
        for drawn in ("times_drawn", "last_epoch_drawn"):
            assert torch.equal(ranks[0]["state"][drawn], other["state"][drawn])
        left, right = ranks[0]["state"]["strategy_state"], other["state"]["strategy_state"]
        assert all(torch.equal(left[k], right[k]) for k in left if isinstance(left[k], torch.Tensor))


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    folder = tmp_path_factory.mktemp("two")
    jobs = {name: job | {"batch_size": 4} for name, job in PAIRED.items()}
    jobs["cut"] = {"batch_size": 4, "cut": [3, 2]}
    jobs["resumed"] = {"batch_size": 4, "resume": str(folder / "cut" / "cut.ckpt")}
    jobs["sharded"] = {"batch_size": 4, "sharded": True}
    drops = {"batch_size": 4, "module": "drops"}
    jobs["drops"] = drops
    jobs["drops cut"] = drops | {"cut": [3, 2]}
    jobs["drops resumed"] = drops | {"resume": str(folder / "drops cut" / "cut.ckpt")}
    for samples in UNDIVIDED:
        jobs[f"{samples} samples"] = {"batch_size": 4, "samples": samples}
    return launch(folder, 2, jobs)


@pytest.fixture(scope="module")
def clock(tmp_path_factory):
    """Two processes, and all that may happen to their loaders and loops."""
    folder = tmp_path_factory.mktemp("clock")
    small = {"batch_size": 4, "trainer": {"max_epochs": 4}}
    end = {"selection": {"end_epoch": 5}}
    steps = {"batch_size": 4, "trainer": {"max_epochs": -1, "max_steps": 42}} | end
    jobs = {
        "plain": small,
        "rank0 reads": small | {"readers": [0]},
        "all read": small | {"readers": [0, 1], "workers": 1, "read_at": 3},
        "steps": steps,
        "steps cut": steps | {"trainer": {"max_epochs": -1, "max_steps": 28}, "save_epoch": 3},
        "steps resumed": steps | {"resume": str(folder / "steps cut" / "end.ckpt")},
        "stateful": small | {"loader": "stateful"},
        "stateful cut": small | {"loader": "stateful", "cut": [2, 3]},
        "stateful resumed": small | {"loader": "stateful", "resume": str(folder / "stateful cut" / "cut.ckpt")},
        "distributed": small | {"loader": "distributed", "distributed_sampler": False},
        "nested": small | {"loader": "nested", "module": "nested", "key": "b", "selection": {"loader": "b"}},
        "fetches": small | {"module": "fetches"},
        "full": small | {"name": "Random", "samples": 50, "selection": {"replacement": "full"}},
        "one batch": {"batch_size": 26, "trainer": {"max_epochs": 4}},
        "limited": small | {"trainer": {"max_epochs": 3, "limit_train_batches": 2}},
        "without": small | {"without": True, "save_epoch": 1, "trainer": {"max_epochs": 2}},
        "joins": {
            "batch_size": 4,
            "trainer": {"max_epochs": 6},
            "resume": str(folder / "without" / "end.ckpt"),
        },
        "given": small | {"loader": "given", "distributed_sampler": False},
        "two selections": small
        | {
            "loader": "two",
            "module": "both",
            "key": "b",
            "second": True,
            "selection": {"loader": "b", "outputs": "own"},
        },
        "finder": small | {"module": "tunable", "finder": True},
        "other arguments": small
        | {
            "strategy": {"correlation": None},
            "resume": str(folder / "stateful cut" / "cut.ckpt"),
            "loader": "stateful",
        },
        "sorted": small | {"loader": "sorted"},
        "shard": small | {"loader": "shard", "distributed_sampler": False},
        "hidden": small | {"loader": "hidden", "distributed_sampler": False},
        "other rank": small | {"loader": "other_rank", "distributed_sampler": False},
    }
    return launch(folder, 2, jobs)


def test_a_resume_restores_the_random_numbers_of_every_rank(two):
    whole, resumed = read(two / "drops"), read(two / "drops resumed")
    assert min(resumed[0]["seen"]) == (3, 3)
    assert torch.equal(resumed[0]["weights"], whole[0]["weights"])
    states = whole[0]["state"]["random"]["states"]
    assert not torch.equal(states[0], states[1]), "each rank drew its own"


@pytest.mark.parametrize("samples", UNDIVIDED)
def test_a_last_batch_that_does_not_divide_is_trained_as_by_one_process(two, tmp_path, samples):
    ranks, single = read(two / f"{samples} samples"), alone(tmp_path, batch_size=8, samples=samples)
    ids = {
        key: list(dict.fromkeys(ids)) if samples % 8 == 1 and key[1] == 4 else ids
        for key, ids in global_batches(ranks).items()
    }
    assert ids == single["seen"]
    torch.testing.assert_close(ranks[0]["weights"], single["weights"], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("case", ["rank0 reads", "all read", "stateful", "distributed", "nested", "fetches", "given"])
def test_two_processes_train_as_ever(clock, case):
    plain, other = read(clock / "plain"), read(clock / case)
    assert_ranks_hold_the_same(other)
    assert global_batches(other) == global_batches(plain)
    assert torch.equal(other[0]["weights"], plain[0]["weights"])
    assert [rank["reads"] > 0 for rank in other] == {
        "rank0 reads": [True, False],
        "all read": [True, True],
    }.get(case, [False, False])


@pytest.mark.parametrize(
    ("cut", "whole", "done"), [("steps resumed", "steps", 28), ("stateful resumed", "stateful", 18)]
)
def test_two_processes_resume_with_the_same_ids(clock, cut, whole, done):
    resumed, before = read(clock / cut), read(clock / whole)
    assert_ranks_hold_the_same(resumed)
    flat = [ids for _, ids in sorted(global_batches(before).items())]
    assert [ids for _, ids in sorted(global_batches(resumed).items())] == flat[done:]
    assert torch.equal(resumed[0]["weights"], before[0]["weights"])


def test_two_processes_join_a_checkpoint_written_without_selection(clock):
    joined = read(clock / "joins")
    assert_ranks_hold_the_same(joined)
    assert min(joined[0]["seen"]) == (2, 0)
    assert joined[0]["state"]["joined_epoch"] == 2
    for epoch in (2, 3):
        trained = [i for key, ids in global_batches(joined).items() if key[0] == epoch for i in ids]
        assert sorted(trained) == list(range(52)), "its warm-up is counted from here"


@pytest.mark.parametrize("case", ["full", "one batch", "limited"])
def test_two_processes_hold_the_same_in_unusual_epochs(clock, case):
    ranks = read(clock / case)
    assert_ranks_hold_the_same(ranks)
    last = max(key[0] for key in ranks[0]["seen"])
    trained = {i for key, ids in global_batches(ranks).items() if key[0] == last for i in ids}
    samples = 50 if case == "full" else 52
    assert ranks[0]["metrics"]["selection/distinct_share"] == pytest.approx(len(trained) / samples)


def test_two_processes_use_the_arguments_of_the_constructor(clock):
    ranks = read(clock / "other arguments")
    assert_ranks_hold_the_same(ranks)
    assert any("correlation=None (checkpoint: 'mutual_information')" in one for one in ranks[0]["warnings"])
    assert "correlation" not in ranks[0]["state"]["strategy_state"]


def test_two_selections_in_two_processes_have_their_own_names_and_agree(clock):
    ranks = read(clock / "two selections")
    assert_ranks_hold_the_same(ranks)
    assert {"selection/a/pressure", "selection/b/pressure"} <= set(ranks[0]["metrics"])


def test_two_processes_stand_aside_for_the_learning_rate_finder(clock):
    ranks = read(clock / "finder")
    assert_ranks_hold_the_same(ranks)
    assert global_batches(ranks).keys() == global_batches(read(clock / "plain")).keys()


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("sorted", r"not the labels of the planned samples.*collate function that sorts"),
        ("shard", r"datasets of the 2 processes differ .*\[26, 26\].*give every process the whole dataset"),
        ("hidden", r"shard of its own.*SelectionSampler\(dataset\)"),
        ("other rank", r"DistributedSampler is for rank . of 2"),
    ],
)
def test_processes_whose_ids_would_differ_are_refused_before_anything_is_trained(clock, case, words):
    for rank in read(clock / case):
        assert rank["failed"] is not None
        assert re.search(words, rank["failed"])
        assert len(rank["seen"]) <= (case == "sorted"), "nothing was learned"


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    jobs = {
        f"{sampler}-{workers}": {
            "samples": 50,
            "batch_size": 4,
            "trainer": {"max_epochs": 4},
            "distributed_sampler": sampler,
            "workers": workers,
        }
        for sampler, workers in UNEVEN
    }
    return launch(tmp_path_factory.mktemp("three"), 3, jobs)


@pytest.mark.parametrize("name", PAIRED)
def test_two_processes_select_what_one_with_the_double_batch_would(two, tmp_path, name):
    one = alone(tmp_path, **PAIRED[name], batch_size=8)
    both = read(two / name)
    assert global_batches(both) == one["seen"]
    assert_ranks_hold_the_same(both)
    for mine, theirs in zip(one["epochs"], both[0]["epochs"], strict=True):
        for key in STATE:
            assert (mine[key] is None) == (theirs[key] is None)
            assert mine[key] is None or torch.allclose(mine[key], theirs[key], rtol=0, atol=1e-6), key


@pytest.mark.parametrize(("distributed_sampler", "workers"), UNEVEN)
def test_three_processes_share_an_uneven_last_batch_without_a_hang(three, tmp_path, distributed_sampler, workers):
    one = alone(tmp_path, samples=50, batch_size=12, trainer={"max_epochs": 4})["seen"]
    ranks = read(three / f"{distributed_sampler}-{workers}")
    assert_ranks_hold_the_same(ranks)
    together = global_batches(ranks)
    assert set(together) == set(one)
    # 50 = 4 · 12 + 2: the last warm-up batch has fewer samples than there are processes, so one is repeated.
    assert len(together[0, 4]) == 3
    for key in [key for key in one if key[0] < 2]:
        assert together[key][: len(one[key])] == one[key]


def test_two_processes_cut_in_mid_epoch_and_resumed_equal_the_uninterrupted_run(two):
    resumed = read(two / "resumed")
    assert_ranks_hold_the_same(resumed)
    for before, after in zip(read(two / "UBS"), resumed, strict=True):
        assert min(after["seen"]) == (3, 3)
        assert after["seen"] == {key: before["seen"][key] for key in after["seen"]}
        assert torch.equal(after["weights"], before["weights"])


def test_resuming_with_another_number_of_processes_goes_on_and_says_that_the_order_differs(two, tmp_path):
    result = alone(tmp_path, batch_size=4, resume=str(two / "cut" / "cut.ckpt"))
    assert any("order of samples differs" in message for message in result["warnings"])
    assert max(key[0] for key in result["seen"]) == 4
    assert result["epochs"][-1]["probabilities"].sum().item() == pytest.approx(1)


def test_a_sharded_model_selects_what_an_unsharded_one_would(two):
    sharded, whole = read(two / "sharded"), read(two / "UBS")
    assert_ranks_hold_the_same(sharded)
    assert global_batches(sharded) == global_batches(whole)
    for mine, theirs in zip(sharded[0]["epochs"], whole[0]["epochs"], strict=True):
        assert torch.allclose(mine["probabilities"], theirs["probabilities"], rtol=0, atol=1e-6)


def test_a_strategy_that_was_never_run_is_refused(tmp_path):
    from lightning.pytorch.strategies import SingleDeviceStrategy, Strategy
    from resume_tools import Recorder, make_data, make_loader, make_selection, make_trainer

    trainer = make_trainer(tmp_path, [make_selection()])
    trainer.strategy.__class__ = type("Untried", (Strategy,), dict(vars(SingleDeviceStrategy)))
    with pytest.raises(SelectionError, match="not been run with Untried"):
        trainer.fit(Recorder(), make_loader(make_data()))
