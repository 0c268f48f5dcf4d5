"""The gradient of each sample is scaled where it arrives at the predictions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits as bce
from torch.utils._python_dispatch import TorchDispatchMode

from lightning_ubs import SelectionError
from lightning_ubs.reading.gradient import RowScaling

B, Q = 6, 3
GENERATOR = torch.Generator().manual_seed(0)
Y = (torch.rand(B, Q, generator=GENERATOR) > 0.5).float()
WEIGHTS = torch.rand(B, generator=GENERATOR, dtype=torch.float64) + 0.5
NET, OTHER = nn.Linear(5, Q), nn.Linear(5, 2 * Q)


def inputs() -> Tensor:
    return torch.randn(B, 5, generator=torch.Generator().manual_seed(1)).requires_grad_()


def gradient(loss: Any, weights: Tensor | None = None, starts: int = 1) -> Tensor:
    """Of the inputs, whose rows do not meet before the loss."""
    x, scaling = inputs(), RowScaling()
    value = loss(x)
    for _ in range(starts if weights is not None else 0):
        scaling.start(value, weights)  # type: ignore[arg-type]
    value.backward()
    scaling.stop()
    assert x.grad is not None
    return x.grad


@pytest.mark.parametrize("starts", [1, 2], ids=["once", "started again"])
def test_the_rows_of_the_gradient_are_scaled_once(starts: int) -> None:
    def loss(x: Tensor) -> Tensor:
        return bce(NET(x), Y)

    expected = gradient(loss) * WEIGHTS[:, None].float()
    torch.testing.assert_close(gradient(loss, WEIGHTS, starts), expected)


def test_a_backward_pass_after_the_end_is_not_scaled() -> None:
    x, scaling = inputs(), RowScaling()
    loss = bce(NET(x), Y)
    scaling.start(loss, WEIGHTS)
    scaling.stop()
    loss.backward()
    assert x.grad is not None
    assert torch.equal(x.grad, gradient(lambda x: bce(NET(x), Y)))


def test_only_the_part_of_an_output_that_the_cross_entropy_reads_is_scaled() -> None:
    def read(x: Tensor) -> Tensor:
        return bce(OTHER(x).split(Q, 1)[0], Y)

    def both(x: Tensor) -> Tensor:
        first, second = OTHER(x).split(Q, 1)
        return bce(first, Y) + second.square().mean()

    scaled = gradient(read) * WEIGHTS[:, None].float()
    torch.testing.assert_close(gradient(read, WEIGHTS), scaled)
    torch.testing.assert_close(gradient(both, WEIGHTS), scaled + gradient(both) - gradient(read))


def test_a_loss_without_a_cross_entropy_is_refused() -> None:
    with pytest.raises(SelectionError, match=r"no binary or multi-class cross-entropy.*importance_weights"):
        RowScaling().start((NET(inputs()) - Y).square().mean(), WEIGHTS)


@pytest.mark.parametrize("steps", [1, 2, 6])
def test_predictions_that_are_computed_from_others_are_refused_however_far_apart(steps: int) -> None:
    first = NET(inputs())
    second = first
    for _ in range(steps):
        second = second.tanh()
    with pytest.raises(SelectionError, match=r"weighed twice.*importance_weights"):
        RowScaling().start(bce(first, Y) + bce(second, Y), WEIGHTS)


@pytest.mark.timeout(60)
def test_heads_on_a_deep_body_with_shortcuts_are_scaled_each_without_walking_every_path() -> None:
    """Sixty shortcuts make 2**60 paths."""

    def loss(x: Tensor) -> Tensor:
        hidden = x
        for _ in range(60):
            hidden = hidden + 0.1 * hidden.tanh()
        return bce(NET(hidden), Y) + 0.3 * bce(OTHER(hidden)[:, :Q], Y)

    torch.testing.assert_close(gradient(loss, WEIGHTS), gradient(loss) * WEIGHTS[:, None].float())


class Results(TorchDispatchMode):
    """Notes the dtypes of all products."""

    def __init__(self) -> None:
        super().__init__()
        self.products: set[torch.dtype] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.mul.Tensor:
            self.products.add(result.dtype)
        return result


@pytest.mark.parametrize(
    ("dtype", "precise"),
    [(torch.bfloat16, torch.float32), (torch.float32, torch.float32), (torch.float64, torch.float64)],
)
def test_weights_are_multiplied_in_float32_or_as_precisely_as_the_gradient_is(
    dtype: torch.dtype, precise: torch.dtype
) -> None:
    """Some devices have no float64."""
    x = inputs().detach()[:, :Q].to(dtype).requires_grad_()
    loss = bce(x.tanh(), Y.to(dtype))
    scaling = RowScaling()
    scaling.start(loss, WEIGHTS)
    with Results() as results:
        loss.backward()
    assert results.products >= {precise}
    assert torch.float64 not in results.products - {dtype}
    assert x.grad is not None
    assert x.grad.dtype == dtype
