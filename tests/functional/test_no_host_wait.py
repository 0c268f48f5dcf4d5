"""No equation makes the host wait for the device; only the drawing of a plan may."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from no_host_wait import HostWaitError, forbid_host_wait

from lightning_ubs import functional as F

n, T, q = 6, 4, 3

EQUATIONS: dict[str, Callable[[str], object]] = {
    "binary_entropy": lambda device: F.binary_entropy(torch.rand(n, q, device=device)),
    "window_fluctuation": lambda device: F.window_fluctuation(*history(device)),
    "tempered": lambda device: F.tempered(torch.rand(n, q, device=device), 2.0),
    "sample_cross_entropy": lambda device: F.sample_cross_entropy(*torch.rand(2, n, q, device=device)),
    "unknown_as_largest": lambda device: F.unknown_as_largest(torch.rand(n, device=device)),
    "pruned_probabilities": lambda device: F.pruned_probabilities(torch.rand(n, device=device), 0.5),
    "label_uncertainty": lambda device: F.label_uncertainty(*history(device), 0.5, 2.0),
    "uncertainty_correlation": lambda device: F.uncertainty_correlation(torch.rand(n, q, device=device)),
    "correlation_of_chunks": lambda device: F.correlation_of_chunks(
        lambda: [torch.rand(n, q, device=device)] * 2, 2 * n, q
    ),
    "raw_weights": lambda device: F.raw_weights(torch.rand(n, q, device=device), torch.rand(q, q, device=device)),
    "min_max_scale": lambda device: F.min_max_scale(torch.rand(n, device=device)),
    "sample_weights": lambda device: F.sample_weights(torch.rand(n, q, device=device)),
    "selection_probabilities": lambda device: F.selection_probabilities(torch.rand(n, device=device), 10.0),
    "prediction_spread": lambda device: F.prediction_spread(torch.rand(n, q, device=device), history(device)[1]),
    "recency_entropy": lambda device: F.recency_entropy(*history(device)),
    "proportional_probabilities": lambda device: F.proportional_probabilities(torch.rand(n, device=device)),
    "hardness_probabilities": lambda device: F.hardness_probabilities(torch.rand(n, device=device), 8.0),
    "importance_weights": lambda device: F.importance_weights(torch.rand(n, device=device)),
    "imbalance_weights": lambda device: F.imbalance_weights(
        torch.rand(n, q, device=device).round(), torch.rand(n, 2, device=device)
    ),
    "repeat_factors": lambda device: F.repeat_factors(torch.rand(n, q, device=device).round(), 0.5),
    "class_aware_weights": lambda device: F.class_aware_weights(torch.rand(n, q, device=device).round()),
    "neighborhood_labels": lambda device: F.neighborhood_labels(
        torch.rand(n, q, device=device).round(), torch.rand(n, 2, device=device), 2
    ),
    "label_hardness": lambda device: F.label_hardness(*torch.rand(2, n, q, device=device)),
    "repeats_in_rows": lambda device: F.repeats_in_rows(torch.randint(0, n, (2, T), device=device)),
    "weighted_order": lambda device: F.weighted_order(
        torch.rand(n, device=device), torch.Generator(device="cpu" if device == "meta" else device)
    ),
}
WAITING_IS_FINE = {
    "draw_epoch",
    "draw_plan",
    "fill_last_batch",
    "check_replacement",
    "effective_sample_size",
    "expected_distinct",
    "selection_pressure",
    "shuffled_pass",
    "stratified_order",
}


def history(device: str) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.rand(n, T, q, device=device), torch.randint(0, T + 1, (n,), device=device)


def test_every_public_function_is_covered() -> None:
    assert set(EQUATIONS) | WAITING_IS_FINE == set(F.__all__)


@pytest.mark.parametrize("name", EQUATIONS)
def test_equation_runs_where_reading_a_tensor_is_forbidden(name: str) -> None:
    with forbid_host_wait():
        EQUATIONS[name]("cpu")


@pytest.mark.parametrize("name", sorted(set(EQUATIONS) - {"weighted_order"}))
def test_equation_runs_on_a_device_that_has_no_values(name: str) -> None:
    EQUATIONS[name]("meta")


@pytest.mark.parametrize(
    "waiting",
    [
        lambda x: x.sum().item(),
        lambda x: x.nonzero(),
        lambda x: x[x > 0.5],
        lambda x: x.tolist(),
        lambda x: x.cpu(),
        lambda x: bool((x > 0).all()),
        lambda x: float(x[0]),
        lambda x: torch.equal(x, x),
        lambda x: x.numpy(),
    ],
)
def test_the_guard_itself_catches_waiting(waiting: Callable[[torch.Tensor], object]) -> None:
    with forbid_host_wait(), pytest.raises(HostWaitError):
        waiting(torch.rand(3))
