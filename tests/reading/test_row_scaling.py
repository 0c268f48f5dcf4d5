"""The gradient of each sample is scaled where it arrives at the predictions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
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


class Net(nn.Module):
    """Rows do not meet in it; ``b·q`` predictions are made one label of one sample at a time."""

    def __init__(self, q: int = Q) -> None:
        super().__init__()
        self.body, self.head, self.other = nn.Linear(5, 4), nn.Linear(4, q), nn.Linear(q, q)
        self.per_label, self.labels = nn.Linear(8, 1), nn.Parameter(torch.randn(q, 4))
        self.temperature = nn.Parameter(torch.tensor(1.7))
        self.table = nn.Embedding(9, q)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).tanh())  # type: ignore[no-any-return]

    def one_by_one(self, x: Tensor) -> Tensor:
        h = self.body(x).tanh()
        b, q = len(x), len(self.labels)
        pairs = torch.cat([h[:, None].expand(b, q, 4), self.labels.expand(b, q, 4)], 2)
        return self.per_label(pairs.reshape(b * q, 8)).view(b, q)  # type: ignore[no-any-return]


Loss = Callable[[Net, Tensor, Tensor], Tensor]


def brier(z: Tensor, y: Tensor) -> Tensor:
    return (z.sigmoid() - y).square().mean()


def asymmetric(z: Tensor, y: Tensor) -> Tensor:
    p = z.sigmoid()
    hits = y * p.clamp(min=1e-8).log()
    misses = (1 - y) * (1 - (p - 0.05).clamp(min=0)).clamp(min=1e-8).log()
    return -(hits * (1 - p) + misses * p**4).sum()


def focal(z: Tensor, y: Tensor) -> Tensor:
    p = z.sigmoid()
    right = torch.where(y > 0, p, 1 - p)
    return (bce(z, y, reduction="none") * (1 - right) ** 2).mean()


def teacher(z: Tensor, y: Tensor) -> Tensor:
    return F.kl_div(F.log_softmax(z / 2, -1), y.softmax(-1), reduction="batchmean")


def smooth(net: Net, x: Tensor, y: Tensor) -> Tensor:
    """A penalty on the slope of the predictions: double backward."""
    x = x.clone().requires_grad_()
    z = net(x)
    (slope,) = torch.autograd.grad(z.sigmoid().sum(), x, create_graph=True)
    return bce(z, y) + 3 * slope.square().mean()


def sorted_rows(net: Net, x: Tensor, y: Tensor) -> Tensor:
    order = y.sum(1).argsort()
    return bce(net(x)[order], y[order])


def per_label(net: Net, x: Tensor, y: Tensor) -> Tensor:
    z = net(x)
    return torch.stack([bce(z[:, j], y[:, j], pos_weight=torch.tensor(j + 1.0)) for j in range(z.shape[1])]).mean()


def hidden(net: Net, x: Tensor, y: Tensor) -> Tensor:
    h = net.body(x).tanh()
    return bce(net.head(h), y) + 0.1 * h.square().mean() + 0.1 * h.abs().sum(1).mean()


def rare(net: Net, x: Tensor, y: Tensor) -> Tensor:
    """As many picked elements as there are samples."""
    z, chosen = net(x), torch.arange(y.shape[1]) == x.argmax(1, keepdim=True) % y.shape[1]
    return bce(z, y) + bce(z[chosen], y[chosen], reduction="none").mean() + 0.2 * F.softplus(z[chosen]).mean()


LOSSES: dict[str, Loss] = {
    "tempered, and Brier score": lambda net, x, y: bce(net(x) / 2, y) + brier(net(x), y),
    "tempered, and Brier score, of one z": lambda net, x, y: (lambda z: bce(z / 2, y) + brier(z, y))(net(x)),
    "by hand, with a teacher": lambda net, x, y: (lambda z: focal(z, y) + teacher(z, y))(net(x)),
    "slope": smooth,
    "asymmetric": lambda net, x, y: asymmetric(net(x), y),
    "focal": lambda net, x, y: focal(net(x), y),
    "squares": lambda net, x, y: (net(x) - y).square().mean(),
    "fused squares": lambda net, x, y: F.mse_loss(net(x).sigmoid(), y),
    "soft margins": lambda net, x, y: F.multilabel_soft_margin_loss(net(x), y),
    "exclusive": lambda net, x, y: F.cross_entropy(net(x), y.argmax(1), label_smoothing=0.1),
    "mean over samples first": lambda net, x, y: bce(net(x), y, reduction="none").mean(0).sum(),
    "one label after the other": per_label,
    "one loss per sample": lambda net, x, y: bce(net(x), y, reduction="none").sum(1).mean(),
    "a learned temperature": lambda net, x, y: bce(net(x) * net.temperature, y) + brier(net(x), y),
    "predictions of predictions": lambda net, x, y: (lambda z: bce(z, y) + bce(net.other(z.tanh()), y))(net(x)),
    "sums of products": lambda net, x, y: -torch.einsum("bq,bq->", F.logsigmoid(net(x)), y),
    "product of flat tensors": lambda net, x, y: -torch.dot(F.logsigmoid(net(x)).flatten(), y.flatten()),
    "turned": lambda net, x, y: bce(net(x).T, y.T),
    "hidden layers": hidden,
    "rare elements": rare,
    "rows sorted": sorted_rows,
    "[b·q, 1] viewed as (b, q)": lambda net, x, y: bce(net.one_by_one(x), y),
    "[1, b, q] squeezed": lambda net, x, y: bce(net(x[None]).squeeze(0), y),
    "[b, 1, q] squeezed": lambda net, x, y: bce(net(x[:, None]).squeeze(1), y),
    "(q, b) turned": lambda net, x, y: bce(net(x[None]).transpose(1, 2).squeeze(0).T.contiguous(), y),
    "half of the labels": lambda net, x, y: bce(net(x)[:, :2], y[:, :2]) + brier(net(x)[:, 2:], y[:, 2:]),
    "looked up": lambda net, x, y: bce(net.table(x[:, 1:3].abs().long()).mean(1), y),
    "an output in two parts": lambda net, x, y: (lambda first, second: bce(first, y[:, :1]) + second.square().mean())(
        *net(x).split([1, y.shape[1] - 1], 1)
    ),
    "a mask": lambda net, x, y: (lambda m: (bce(net(x), y, reduction="none") * m).sum() / 9)((x[:, :1] > 0).float()),
    "masked and filled": lambda net, x, y: bce(net(x).masked_fill(x[:, 1:2] > 0, 0.0), y),
    "one loss after the other": lambda net, x, y: torch.stack([bce(net(x[i]), y[i]) for i in range(len(x))]).mean(),
    "one sample after the other": lambda net, x, y: bce(torch.cat([net(row[None]) for row in x]), y),
    "rows scaled by themselves": lambda net, x, y: (bce(net(x), y, reduction="none").mean(1) ** 2).mean(),
}


# Their labels are the first axis for a while.
OF_UNLIKE_AXES = {"(q, b) turned"}


def gradients(net: Net, loss: Tensor) -> list[Tensor]:
    parts = torch.autograd.grad(loss, list(net.parameters()), allow_unused=True)
    return [torch.zeros_like(p) if part is None else part for p, part in zip(net.parameters(), parts, strict=True)]


def one_after_the_other(loss: Loss, net: Net, x: Tensor, y: Tensor, weights: Tensor) -> list[Tensor]:
    """Σ w·g over the samples, each in a batch of its own."""
    losses = [loss(net, x[i : i + 1], y[i : i + 1]) for i in range(len(x))]
    whole, total = loss(net, x, y).item(), sum(losses).item()  # type: ignore[attr-defined]
    # The loss is a mean over samples, or a sum.
    size = len(x) if abs(whole - total / len(x)) < abs(whole - total) else 1
    assert whole == pytest.approx(total / size, rel=1e-4)
    parts = [gradients(net, weight.float() / size * value) for weight, value in zip(weights, losses, strict=True)]
    return [torch.stack(parts_of_one).sum(0) for parts_of_one in zip(*parts, strict=True)]


def weighed(loss: Loss, net: Net, x: Tensor, y: Tensor, weights: Tensor, scaling: RowScaling) -> list[Tensor]:
    value = loss(net, x, y)
    scaling.start(value, weights)
    value.backward()
    scaling.stop()
    found = [torch.zeros_like(p) if p.grad is None else p.grad for p in net.parameters()]
    net.zero_grad()
    return found


def distance(found: list[Tensor], expected: list[Tensor]) -> float:
    """Of two gradients, relative to the second."""
    away = sum((f - e).square().sum() for f, e in zip(found, expected, strict=True))
    return float((away / sum(e.square().sum() for e in expected)) ** 0.5)


@pytest.mark.parametrize(("rows", "labels"), [(6, 3), (4, 4), (1, 3)], ids=["6 of 3", "4 of 4", "a single sample"])
@pytest.mark.parametrize("name", LOSSES)
def test_the_gradient_of_a_step_is_the_weighted_sum_of_those_of_its_samples(name: str, rows: int, labels: int) -> None:
    if rows == labels and name in OF_UNLIKE_AXES:
        pytest.skip("Neither the form nor the graph tells labels from samples.")
    torch.manual_seed(3)
    net, x = Net(labels), torch.randn(rows, 5)
    y, weights = torch.rand(rows, labels).round(), 4 * torch.rand(rows, dtype=torch.float64)
    y[:, 0] = 1
    expected = one_after_the_other(LOSSES[name], net, x, y, weights)
    assert distance(weighed(LOSSES[name], net, x, y, weights, RowScaling()), expected) < 1e-5
    plain = gradients(net, LOSSES[name](net, x, y))
    assert distance(plain, expected) > 0.05


def crops(net: Net, x: Tensor, y: Tensor) -> Tensor:
    """Two views of each sample in one tensor of 2b rows."""
    return bce(net(torch.cat([x, x + 1])), torch.cat([y, y]))


def learned_weights(net: Net, x: Tensor, y: Tensor) -> Tensor:
    """What a parameter that scales the whole loss learns depends on the samples."""
    return bce(net(x), y) * net.temperature


def penalty(net: Net, x: Tensor, y: Tensor) -> Tensor:
    weights = [p.square().sum() for p in net.parameters() if p.ndim > 1]
    return bce(net(x), y) + 0.1 * torch.stack(weights).sum() + 0.01 * (net.body.weight @ net.body.weight.T).norm()


def left(loss: Loss, net: Net, x: Tensor, y: Tensor, of: Loss) -> float:
    """The norm of one loss's gradient relative to that of another."""
    norms = [torch.cat([g.flatten() for g in gradients(net, one(net, x, y))]).norm() for one in (of, loss)]
    return float(norms[0] / norms[1])


def test_what_depends_on_samples_but_has_no_row_for_each_is_refused_with_its_share() -> None:
    torch.manual_seed(3)
    net, x, y = Net(), torch.randn(B, 5), Y

    def both(net: Net, x: Tensor, y: Tensor) -> Tensor:
        return bce(net(x), y) + 0.3 * crops(net, x, y)

    share = left(both, net, x, y, lambda *of: 0.3 * crops(*of))
    match = (
        rf"^{100 * share:.2g} % of the gradient does not pass through the predictions.*\[12, 3\].*importance_weights"
    )
    with pytest.raises(SelectionError, match=match) as refused:
        RowScaling().start(both(net, x, y), WEIGHTS)
    assert 'unbiased="predictions"' in str(refused.value)
    assert all(p.grad is None for p in net.parameters())

    parts = weighed(lambda *of: bce(of[0](of[1]), of[2]), net, x, y, WEIGHTS, RowScaling())
    rest = gradients(net, 0.3 * crops(net, x, y))
    accepted = weighed(both, net, x, y, WEIGHTS, RowScaling(accepts_rest=True))
    assert distance(accepted, [part + left for part, left in zip(parts, rest, strict=True)]) < 1e-5


def test_a_loss_without_any_row_per_sample_is_refused_even_if_a_rest_is_accepted() -> None:
    net, x = Net(), torch.randn(B, 5)
    for accepts in (True, False):
        with pytest.raises(
            SelectionError, match=r"has one row for each of the 6 samples.*\[12, 3\].*importance_weights"
        ):
            RowScaling(accepts).start(crops(net, x, Y), WEIGHTS)


def test_a_parameter_that_learns_from_the_value_of_the_loss_is_named() -> None:
    net, x = Net(), torch.randn(B, 5)
    with pytest.raises(SelectionError, match=r"^\d+(\.\d+)? % of the gradient does not pass"):
        RowScaling().start(learned_weights(net, x, Y), WEIGHTS)


def test_a_penalty_on_weights_depends_on_no_sample_and_counts_as_ever() -> None:
    torch.manual_seed(3)
    for rows in (3, 4, 5):  # as many as there are labels, hidden units and features
        net, x, y = Net(), torch.randn(rows, 5), torch.ones(rows, Q)
        of_samples = weighed(lambda *of: bce(of[0](of[1]), of[2]), net, x, y, 4 * WEIGHTS[:rows], RowScaling())
        rest = gradients(net, penalty(net, x, y) - bce(net(x), y))
        expected = [part + left for part, left in zip(of_samples, rest, strict=True)]
        assert distance(weighed(penalty, net, x, y, 4 * WEIGHTS[:rows], RowScaling()), expected) < 1e-5


def test_a_rest_is_found_in_the_first_step_of_a_later_epoch_and_one_of_weight_zero_is_none() -> None:
    net, x, scaling = Net(), torch.randn(B, 5), RowScaling()

    def step(weight: float) -> None:
        scaling.start(bce(net(x), Y) + weight * crops(net, x, Y), WEIGHTS)
        scaling.stop()

    for _ in range(5):
        step(0.0)
    scaling.begin_epoch()
    with pytest.raises(SelectionError, match="does not pass through the predictions"):
        step(0.1)
    scaling.begin_fit()
    with pytest.raises(SelectionError, match="does not pass through the predictions"):
        step(0.1)


def test_rows_that_are_given_are_scaled_where_lengths_say_nothing() -> None:
    """Four labels first, of four samples: only who knows the head knows which axis is which."""
    torch.manual_seed(3)
    net, x, y, weights = Net(4), torch.randn(4, 5), torch.rand(4, 4).round(), 4 * WEIGHTS[:4]
    z = net(x[None]).transpose(1, 2).squeeze(0).T.contiguous()
    loss = bce(z, y)
    scaling = RowScaling()
    scaling.start(loss, weights, head=(z.grad_fn, 0))
    loss.backward()
    scaling.stop()
    found = [torch.zeros_like(p) if p.grad is None else p.grad for p in net.parameters()]
    expected = one_after_the_other(lambda *of: bce(of[0](of[1]), of[2]), net, x, y, weights)
    assert distance(found, expected) < 1e-5


def test_what_is_under_the_predictions_is_not_weighed_twice() -> None:
    net, x = Net(), torch.randn(B, 5)
    h = net.body(x).tanh()
    repeated = h[:, None].expand(B, Q, 4).reshape(B * Q, 4)
    z = net.per_label(torch.cat([repeated, repeated], 1)).view(B, Q)
    with pytest.raises(SelectionError, match=r"weighed twice.*importance_weights"):
        RowScaling().start(bce(z, Y) + repeated.square().mean(), WEIGHTS)


def test_a_compiled_part_is_refused_without_a_number_where_it_cannot_be_measured() -> None:
    class Once(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, z: Tensor) -> Tensor:
            return z.clone()

        @staticmethod
        def backward(context: Any, *gradients: Tensor) -> Any:
            raise RuntimeError("compiled for one backward pass")

    net, x = Net(), torch.randn(B, 5)
    with pytest.raises(SelectionError, match=r"^a part of the gradient does not pass through the predictions"):
        RowScaling().start(bce(Once.apply(net(x)), Y) + crops(net, x, Y), WEIGHTS)  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("rows", [1, 5])
def test_one_label_whose_axis_is_squeezed_away_is_weighed_in_a_batch_of_one_sample_too(rows: int) -> None:
    net, x, y, weights = Net(1), torch.randn(rows, 5), torch.rand(rows, 1).round(), 4 * WEIGHTS[:rows]
    found = weighed(lambda *of: bce(of[0](of[1]).squeeze(), of[2].squeeze()), net, x, y, weights, RowScaling())
    expected = one_after_the_other(lambda *of: bce(of[0](of[1]), of[2]), net, x, y, weights)
    assert distance(found, expected) < 1e-5


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
