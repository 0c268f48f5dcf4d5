"""Ranks that divide the history select what ranks that copy it do. All of them talk over gloo."""

from __future__ import annotations

import pytest
import torch
from ddp_worker import STATE, run
from gloo import alone, global_batches, launch, read
from resume_tools import STRATEGIES, make_selection

from lightning_ubs import UBS, BatchSelection, SelectionError, Strategy
from lightning_ubs.experiment.build import build_selection
from lightning_ubs.experiment.config import compose_train, resolved, run_key
from lightning_ubs.selection.options import check_shard
from lightning_ubs.state import Shard
from lightning_ubs.strategies import TrainingSet

SHARDED, REPLICATED = {"memory": "sharded"}, {"memory": "replicated"}
LC = {"strategy": {"correlation": "mutual_information"}}
# 50 samples are no multiple of 2 or 3 batches of 4, and no multiple of 3.
CASES = {name: {"name": name} for name in STRATEGIES if name != "D2ACE"} | {  # D2ACE keeps all rows everywhere
    "Weighted": {"name": "Weighted", "strategy": {"weights": [1.0 + i % 5 for i in range(50)]}},
    "GroupScores": {"name": "GroupScores", "strategy": {"groups": [i % 3 for i in range(50)]}},
    "Active_LC": {"name": "ActiveBias", **LC},
    "Recent_LC": {"name": "RecencyBias", **LC},
    "UBS_D": {"strategy": {"correlation": None}},
    "bytes": {"selection": {"history_dtype": "uint8"}},
    "compact": {"selection": {"save_state": "weights"}},
    "model": {"sharded": True},
}
# Three processes run those that differ in their history or draws.
OF_THREE = ("UBS", "UBS, evaluated", "UBS, shorter and unbiased", "Active_LC")
MEASURES = {
    "two samples": {"name": "UBS", "samples": 2, "labels": 3, "correlation": "mutual_information"},
    "blocks": {"name": "UBS", "samples": 5003, "labels": 70, "correlation": "mutual_information", "dtype": "bfloat16"},
    "sparse": {"name": "UBS", "samples": 4003, "labels": 130, "correlation": "mutual_information", "power": 9},
    "no snapshot": {"name": "RecencyBias", "samples": 5003, "labels": 70, "snapshot": 0},
    "moments": {"name": "ActiveBias", "samples": 5003, "labels": 70, "correlation": "mutual_information"},
    "mc": {"name": "UBS", "samples": 3001, "labels": 90, "mc": True},
}
CORRELATIONS = {
    "panels": {"samples": 350, "labels": 150, "memory": 2**18},
    "sparse panels": {"samples": 3500, "labels": 150, "memory": 2**20, "power": 9},
}
CHECKS = {name: {"check": "measure", **job} for name, job in MEASURES.items()} | {
    name: {"check": "correlate", **job} for name, job in CORRELATIONS.items()
}


def job(case: dict, memory: dict, **others: object) -> dict:
    common = {"samples": 50, "batch_size": 4, "trainer": {"max_epochs": 4}}
    return common | case | {"selection": case.get("selection", {}) | memory} | others


def both(cases: dict[str, dict]) -> dict[str, dict]:
    memories = {"sharded": SHARDED, "replicated": REPLICATED}
    return {f"{name}, {word}": job(case, memory) for name, case in cases.items() for word, memory in memories.items()}


# 48 samples are four batches of 12, which one, two and three processes share evenly.
LONG = {"samples": 48, "trainer": {"max_epochs": 5}}


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """One process with all rows: the whole run, and one that was cut."""
    folder = tmp_path_factory.mktemp("first")
    alone(folder / "whole", **job({}, REPLICATED, **LONG, batch_size=12))
    run(job({}, SHARDED, **LONG, batch_size=12, cut=[3, 1], folder=str(folder / "cut")), world=1)
    return folder


@pytest.fixture(scope="module")
def two(first, tmp_path_factory):
    cut = job({}, SHARDED, **LONG, batch_size=6, cut=[3, 1])
    jobs = both(CASES) | CHECKS | {"cut": cut, "cut, copied": cut | {"selection": REPLICATED}}
    return launch(tmp_path_factory.mktemp("two"), 2, jobs)


@pytest.fixture(scope="module")
def three(first, two, tmp_path_factory):
    goes_on = {
        "from 1": job({}, SHARDED, **LONG, resume=str(first / "cut" / "cut.ckpt")),
        "from 2": job({}, SHARDED, **LONG, resume=str(two / "cut" / "cut.ckpt")),
        "from copied": job({}, SHARDED, **LONG, resume=str(two / "cut, copied" / "cut.ckpt")),
        "to copied": job({}, REPLICATED, **LONG, resume=str(two / "cut" / "cut.ckpt")),
    }
    return launch(
        tmp_path_factory.mktemp("three"), 3, both({name: CASES[name] for name in OF_THREE}) | CHECKS | goes_on
    )


RUNS = [("two", name) for name in CASES] + [("three", name) for name in OF_THREE]


@pytest.fixture
def folder(request, processes):
    return request.getfixturevalue(processes)


@pytest.mark.parametrize(("processes", "name"), RUNS)
def test_sharded_processes_select_what_replicated_ones_do_to_the_last_bit(folder, name):
    sharded, copied = (read(folder / f"{name}, {memory}") for memory in ("sharded", "replicated"))
    assert sorted(i for rank in sharded for i in rank["kept"]) == list(range(50))
    assert max(len(rank["kept"]) for rank in sharded) == -(-50 // len(sharded))
    assert global_batches(sharded) == global_batches(copied)
    for mine, theirs in zip(sharded, copied, strict=True):
        assert mine["failed"] is None
        assert torch.equal(mine["weights"], theirs["weights"])
        for key in set(STATE) - {"uncertainty"}:
            for here, there in zip(mine["epochs"], theirs["epochs"], strict=True):
                assert (here[key] is None) == (there[key] is None)
                assert here[key] is None or torch.equal(here[key], there[key]), key
    for number, whole in enumerate(copied[0]["epochs"]):
        if whole["uncertainty"] is not None:
            parts = [rank["epochs"][number]["uncertainty"] for rank in sharded]
            assert torch.equal(torch.cat(parts), whole["uncertainty"])


@pytest.mark.parametrize(("processes", "name"), RUNS)
def test_process_zero_saves_the_checkpoint_that_replicated_processes_do(folder, name):
    (sharded, *_), (copied, *_) = (read(folder / f"{name}, {memory}") for memory in ("sharded", "replicated"))
    assert_equal(sharded["state"], copied["state"])


def assert_equal(mine: object, theirs: object) -> None:
    if isinstance(mine, dict):
        assert mine.keys() == theirs.keys()
        for key in mine:
            assert_equal(mine[key], theirs[key])
    else:
        assert torch.equal(mine, theirs) if torch.is_tensor(mine) else mine == theirs


@pytest.mark.parametrize("case", ["from 1", "from 2", "from copied", "to copied"])
def test_three_processes_go_on_with_the_same_samples_from_any_number_of_processes(first, three, case):
    whole, resumed = read(first / "whole")[0]["seen"], global_batches(read(three / case))
    assert min(resumed) == (3, 2)
    assert resumed == {key: whole[key] for key in whole if key >= (3, 2)}


@pytest.mark.parametrize("memory", [SHARDED, REPLICATED])
def test_one_process_goes_on_with_the_same_samples_from_two_sharded_ones(first, two, tmp_path, memory):
    resumed = alone(tmp_path, **job({}, memory, **LONG, batch_size=12, resume=str(two / "cut" / "cut.ckpt")))["seen"]
    whole = read(first / "whole")[0]["seen"]
    assert resumed == {key: whole[key] for key in whole if key >= (3, 2)}


def test_with_one_process_sharded_is_replicated(first, tmp_path):
    sharded = alone(tmp_path, **job({}, SHARDED, **LONG, batch_size=12))
    copied = read(first / "whole")[0]
    assert sharded["seen"] == copied["seen"]
    assert sharded["kept"] == list(range(48))
    assert_equal(sharded["state"], copied["state"])


def test_rows_that_were_divided_otherwise_are_not_gone_on_with():
    strategy = UBS()
    strategy.reset(TrainingSet(6))
    strategy.shard = Shard(6, 1, 2)
    check_shard(strategy, Shard(6, 1, 2))
    with pytest.raises(SelectionError, match=r"kept the samples of range\(3, 6\).*range\(0, 6\).*from a checkpoint"):
        check_shard(strategy, Shard(6))


def test_the_configuration_divides_the_memory_and_the_run_is_the_same():
    plain, sharded = (resolved(compose_train(["data=yeast", *one])) for one in ([], ["selection.memory=sharded"]))
    assert build_selection(sharded["selection"], 0).memory == "sharded"
    assert build_selection(plain["selection"], 0).memory == "replicated"
    assert run_key(plain) == run_key(sharded)


def test_an_unknown_memory_is_refused():
    with pytest.raises(ValueError, match=r"memory='shared' is unknown; did you mean 'sharded'\? Use 'replicated' or"):
        make_selection(memory="shared")


def test_a_strategy_that_would_keep_everything_is_refused():
    class Own(Strategy):
        def probabilities(self, pressure):
            return self.uniform()

    with pytest.raises(ValueError, match=r"not possible with Own.*self\.shard.*leave memory out\."):
        BatchSelection(Own(), memory="sharded")


def test_a_memory_that_ignores_its_shard_is_refused():
    class Own(UBS):
        def new_state(self, num_labels, device):
            self.shard, kept = Shard(self.num_samples), self.shard
            state = super().new_state(num_labels, device)
            self.shard = kept
            return state

    strategy = Own()
    strategy.reset(TrainingSet(6))
    strategy.shard = Shard(6, 1, 2)
    with pytest.raises(ValueError, match=r"Own\.new_state keeps the rows of all samples.*shard=self\.shard"):
        strategy.update(torch.tensor([4]), torch.rand(1, 2))


def test_a_state_without_all_rows_is_refused():
    strategy, other = UBS(), UBS()
    for one, samples in ((strategy, 6), (other, 3)):
        one.reset(TrainingSet(samples))
    other.update(torch.arange(3), torch.rand(3, 2))
    with pytest.raises(ValueError, match=r"3 rows for 6 samples.*process 0.*load what"):
        strategy.load_state_dict(other.state_dict())


def test_predictions_that_another_process_keeps_are_counted_there():
    strategy = UBS()
    strategy.reset(TrainingSet(6))
    strategy.shard = Shard(6, rank=1, world_size=2)
    strategy.update(torch.arange(6), torch.rand(6, 2))
    _, counts = strategy.mean_predictions(0, 6)
    assert counts.tolist() == [0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize("n", [1, 2, 7, 12, 100])
@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_every_row_is_kept_by_one_process_and_lies_in_its_blocks_once(n, world):
    shards = [Shard(n, rank, world) for rank in range(world)]
    assert [i for shard in shards for i in shard.ids] == list(range(n))
    for shard in shards:
        rows = shard.rows(torch.arange(n + 1))
        assert rows[shard.ids.start : shard.ids.stop].tolist() == list(range(len(shard)))
        assert (rows != n if world == 1 else rows != len(shard)).sum() == len(shard)
        for size in (1, 4, 5, 1000):
            blocks = list(shard.blocks(size))
            assert blocks[0][0] == 0
            assert [i for first, last, own in blocks for i in range(first, last)[own]] == list(shard.ids)
            assert all(first % size == 0 and last == min(first + size, n) for first, last, _ in blocks)
