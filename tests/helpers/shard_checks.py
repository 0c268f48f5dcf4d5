"""What one process of several compares between a memory of its own rows and one of all rows."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist

from lightning_ubs import UBS, ActiveBias, RecencyBias, UncertaintyStrategy
from lightning_ubs.functional import correlation_of_chunks, uncertainty_correlation
from lightning_ubs.state import Shard
from lightning_ubs.strategies import TrainingSet, uncertainty

STRATEGIES = {"UBS": UBS, "ActiveBias": ActiveBias, "RecencyBias": RecencyBias}


def check(job: dict[str, Any]) -> None:
    """Compare as ``job`` says; raises where anything differs by a bit."""
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    {"measure": check_measure, "correlate": check_correlation}[job["check"]](job)


def check_measure(job: dict[str, Any]) -> None:
    n, q = job["samples"], job["labels"]
    whole, own = (_made(job, Shard(n) if alone else _shard(n)) for alone in (True, False))
    ids = own.shard.ids
    with patch.object(uncertainty, "SNAPSHOT_BYTES", job.get("snapshot", 2**28)):
        for _ in range(2):
            for strategy in (whole, own):
                _learn(strategy, q, job)
            expected, found = whole.measure(), own.measure()
            assert torch.equal(found.weights, expected.weights)
            assert torch.equal(own.probabilities(9.0), whole.probabilities(9.0))
            assert (found.correlation is None) == (job.get("correlation") is None)
            assert found.correlation is None or torch.equal(found.correlation, expected.correlation)
            assert torch.equal(own.current_uncertainty(), whole.current_uncertainty()[ids.start : ids.stop])
            assert torch.allclose(found.mean_uncertainty, expected.mean_uncertainty, rtol=1e-12)
    _check_state(own, whole)
    held = [sum(v.nbytes for v in vars(one.memory).values() if torch.is_tensor(v)) for one in (own, whole)]
    most = -(-n // own.shard.world_size)
    assert held[0] <= held[1] * (most + 1) / (n + 1)
    assert own.footprint(q)[0] <= whole.footprint(q)[0] * most / n


def check_correlation(job: dict[str, Any]) -> None:
    """With so little memory that labels are counted in several passes, and values mostly in one bin."""
    n, q = job["samples"], job["labels"]
    values = torch.rand(n, q, generator=torch.Generator().manual_seed(1)) ** job.get("power", 1)
    shard, rows = _shard(n), 100

    def chunks() -> Any:
        return (values[first:last][own] for first, last, own in shard.blocks(rows))

    options = {"bins": 5, "memory": job["memory"]}
    whole = correlation_of_chunks(lambda: torch.split(values, rows), n, q, **options)
    assert torch.equal(correlation_of_chunks(chunks, n, q, total=shard.total, **options), whole)
    assert torch.allclose(whole, uncertainty_correlation(values), rtol=0, atol=1e-12)


def _shard(n: int) -> Shard:
    return Shard(n, dist.get_rank(), dist.get_world_size())


def _made(job: dict[str, Any], shard: Shard) -> UncertaintyStrategy:
    strategy = STRATEGIES[job["name"]](correlation=job.get("correlation"))
    dtype = getattr(torch, job.get("dtype", "float32"))
    strategy.reset(TrainingSet(job["samples"], history_dtype=dtype, shard=shard))
    return strategy


def _learn(strategy: UncertaintyStrategy, q: int, job: dict[str, Any]) -> None:
    generator = torch.Generator().manual_seed(0)
    n = strategy.num_samples
    for ids in torch.split(torch.randperm(n, generator=generator)[: 2 * n // 3 + 1], 1000):
        strategy.update(ids, torch.rand(len(ids), q, generator=generator) ** job.get("power", 1))
    if job.get("mc"):
        strategy.refresh(torch.arange(n), torch.rand(3, n, q, generator=generator))


def _check_state(own: UncertaintyStrategy, whole: UncertaintyStrategy) -> None:
    """Process 0 saves what one process alone would; and what that saves is read by any number of processes."""
    expected, found = whole.state_dict(), own.state_dict()
    rows = {"history", "visits", "mean", "squares", "spread"}
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        wanted = value[:0] if name in rows and dist.get_rank() else value
        same = torch.equal(found[name], wanted) if torch.is_tensor(value) else found[name] == value
        assert same, name
        assert not torch.is_tensor(value) or found[name].untyped_storage().nbytes() == found[name].nbytes
    own.load_state_dict(expected)
    again = own.state_dict()
    assert all(torch.equal(again[name], found[name]) for name in rows & again.keys())
