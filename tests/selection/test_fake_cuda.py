"""Update, refresh and draw with the state on a GPU: no two devices meet, and nothing waits but the copy of P.

The machine needs no GPU: tensors are fake, they have a device and a shape but no values.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from fake_cuda import DeviceWaitError, fake_cuda, inside
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensor

from lightning_ubs import (
    UBS,
    ActiveBias,
    Balance,
    HardImbalance,
    InfoBatch,
    LossBias,
    Random,
    RecencyBias,
    Strategy,
)
from lightning_ubs.selection import planner as selectors
from lightning_ubs.selection.plan import BatchLayout
from lightning_ubs.selection.planner import Schedule, Selector
from lightning_ubs.state import Shard, shard
from lightning_ubs.strategies import TrainingSet, uncertainty

N, B, Q = 16, 8, 3
CUDA = torch.device("cuda", 0)
LC = {"correlation": "mutual_information"}

STRATEGIES: dict[str, Strategy] = {
    "UBS": UBS(),
    "UBS, plain sum": UBS(correlation=None, quantizer="ceil"),
    "UBS, temperature": UBS(temperature=2.0, bins=7),
    "RecencyBias": RecencyBias(),
    "Recent_LC": RecencyBias(**LC),
    "ActiveBias": ActiveBias(),
    "Active_LC": ActiveBias(mode="quantized", **LC),
    "ActiveBias, smoothed": ActiveBias(smoothing=0.1, ddof=0),
    "HardImbalance": HardImbalance(),
    "LossBias": LossBias(),
    "LossBias, proportional": LossBias(mode="proportional"),
    "InfoBatch": InfoBatch(),
    "InfoBatch, uncertainty": InfoBatch(score="uncertainty"),
    "Balance": Balance(),
    "Random": Random(),
}


class Seen(NamedTuple):
    probs: Tensor
    usable: Tensor
    targets: Tensor


def seen() -> Seen:
    probs = torch.rand(B, Q, device=CUDA)
    return Seen(probs, torch.ones(B, dtype=torch.bool, device=CUDA), torch.zeros(B, Q, device=CUDA))


def run(
    strategy: Strategy, dtype: Any = None, shard: Shard | None = None, passes: int = 0, **options: Any
) -> list[str]:
    """Three epochs with predictions on the GPU; returns the device that P was copied from in those selected."""
    labels = torch.arange(N).remainder(4).unsqueeze(1).eq(torch.arange(Q)).float()
    features = torch.arange(2.0 * N).view(N, 2)
    strategy.reset(TrainingSet(N, labels, features, torch.float32 if dtype is None else dtype, shard))
    drawn_from, copied = torch.arange(1.0, N + 1).double() / (N * (N + 1) / 2), []

    def copy(probabilities: Tensor, num_samples: int, strategy: Strategy) -> Tensor:
        assert (probabilities.shape, probabilities.dtype) == ((N,), torch.float64)
        copied.append(probabilities.device.type)
        return drawn_from

    selector = Selector(strategy, 0, options.pop("replacement", "batch"), **options)
    selector.lay_out(BatchLayout(N, B))
    selector.schedule = Schedule(1, 5)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(selector, "_measure", inside(selector._measure))
        patched.setattr(selectors, "drawable", copy)  # P is copied to the host here, once per epoch
        for epoch in range(3):
            plan = selector.prepare(epoch, lambda probabilities: probabilities)
            assert plan.ids.numel() == N
            assert not isinstance(plan.ids, FakeTensor)
            with fake_cuda():
                for batch in range(len(plan) if "predictions" in strategy.needs else 0):
                    selector.learn(batch, seen())
                for _ in range(passes):
                    samples = torch.rand(3, N, Q, device=CUDA)
                    strategy.refresh(torch.arange(N, device=CUDA), samples, torch.zeros_like(samples[0]))
    return copied


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_stays_on_the_gpu_and_waits_for_nothing_but_p(name):
    strategy = STRATEGIES[name]
    learns = "predictions" in strategy.needs
    assert run(strategy)[-2:] == (["cuda"] * 2 if learns else ["cpu"] * 2)


@pytest.mark.parametrize("replacement", ["batch", "none", "full", "systematic"])
def test_every_way_of_drawing(replacement):
    assert run(UBS(), replacement=replacement) == ["cuda"] * 2


def test_filled_batches():
    assert run(UBS(), fill_last=True) == ["cuda"] * 2


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.uint8])
def test_every_type_of_history(dtype):
    assert run(UBS(), dtype) == ["cuda"] * 2


@pytest.mark.parametrize("name", [name for name, strategy in STRATEGIES.items() if "predictions" in strategy.needs])
def test_evaluation_passes_with_several_predictions(name):
    assert run(STRATEGIES[name], passes=1) == ["cuda"] * 2


@pytest.mark.parametrize("name", ["UBS", "Recent_LC", "Active_LC"])
def test_an_uncertainty_that_is_not_kept(name, monkeypatch):
    monkeypatch.setattr(uncertainty, "SNAPSHOT_BYTES", 0)
    assert run(STRATEGIES[name]) == ["cuda"] * 2


@pytest.mark.parametrize("name", ["UBS", "Recent_LC", "Active_LC"])
def test_a_sharded_memory(name, monkeypatch):
    monkeypatch.setattr(shard, "all_gather", lambda rows, most, device: rows.repeat(2))
    monkeypatch.setattr(shard, "sum_over_processes", lambda values, device: 2 * values)
    assert run(STRATEGIES[name], shard=Shard(N, 1, 2, CUDA), passes=1) == ["cuda"] * 2


class Waits(UBS):
    def update(self, ids: Tensor, probs: Tensor, targets: Tensor | None = None) -> None:
        super().update(ids, probs, targets)
        self.wait(probs)


@pytest.mark.parametrize(
    ("wait", "error"),
    [
        (lambda probs: probs.sum().item(), DataDependentOutputException),
        (lambda probs: bool((probs > 0).all()), DataDependentOutputException),
        (lambda probs: probs.nonzero(), DeviceWaitError),
        (lambda probs: probs[probs > 0.5], DeviceWaitError),
        (lambda probs: probs.cpu(), DeviceWaitError),
        (lambda probs: torch.zeros(B, Q).copy_(probs), DeviceWaitError),
        (lambda probs: probs + torch.ones(B, Q), RuntimeError),
    ],
)
def test_waits_and_mixed_devices_would_be_noticed(wait, error):
    Waits.wait = staticmethod(wait)
    with pytest.raises(error):
        run(Waits())
