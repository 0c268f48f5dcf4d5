"""What a loss compares with the labels is read as what it is: links and scales by hand, and what moves logits."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import WeightAveraging
from observe_tools import Keeping, Layout, train
from tiny_training import D, Q, data, loader, trainer
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_avg_fn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import TensorDataset

from lightning_ubs import BatchSelection, SelectionError
from lightning_ubs.reading.scale import Fit, Scale, fit_forms

bce = F.binary_cross_entropy_with_logits
Link = Callable[[Tensor], Tensor]
Loss = Callable[[Tensor, Tensor], Tensor]


def by_hand(p: Tensor, y: Tensor) -> Tensor:
    return -(y * (p + 1e-7).log() + (1 - y) * (1 - p + 1e-7).log()).mean()


def chosen(p: Tensor, y: Tensor) -> Tensor:
    return torch.where(y > 0, p, 1 - p).clamp(min=1e-8)


def asymmetric(p: Tensor, y: Tensor) -> Tensor:
    negative = (1 - p + 0.05).clamp(max=1)
    with torch.no_grad():
        weight = (1 - p * y - negative * (1 - y)).pow(y + 4 * (1 - y))
    return -((y * p.clamp(min=1e-8).log() + (1 - y) * negative.clamp(min=1e-8).log()) * weight).sum()


LOSSES: dict[str, Loss] = {
    "cross-entropy": by_hand,
    "weighted": lambda p, y: -((1 + 8 * y) * chosen(p, y).log() * torch.linspace(0.1, 2, p.shape[1])).mean(),
    "weighted samples": lambda p, y: -(chosen(p, y).log() * torch.linspace(0.1, 2, len(p)).unsqueeze(1)).mean(),
    "focal, 1": lambda p, y: -((1 - chosen(p, y)) * chosen(p, y).log()).mean(),
    "focal, 2": lambda p, y: -((1 - chosen(p, y)) ** 2 * chosen(p, y).log()).mean(),
    "focal, weights detached": lambda p, y: -((1 - chosen(p, y).detach()) ** 2 * chosen(p, y).log()).mean(),
    "asymmetric": asymmetric,
    "squares": lambda p, y: (p - y).square().mean(),
    "absolute differences": lambda p, y: (p - y).abs().mean(),
    "Dice": lambda p, y: 1 - 2 * (p * y).sum() / (p + y).sum(),
    "smoothed": lambda p, y: by_hand(p, 0.8 * y + 0.1),
    "soft": lambda p, y: by_hand(p, 0.5 * y + 0.25),
}
LINKS: dict[str, Link] = {
    **{f"sigmoid of {t} z": (lambda z, t=t: (t * z).sigmoid()) for t in (0.5, 0.8, 1.25, 1.5, 2.0, 3.0, 6.0)},
    "tanh": lambda z: (z.tanh() + 1) / 2,
    "probit": torch.special.ndtr,
    "complementary log-log": lambda z: 1 - (-z.exp()).exp(),
    "shifted": lambda z: (z + 1).sigmoid(),
    "squared": lambda z: z.sigmoid() ** 2,
    "hard": lambda z: F.hardsigmoid(2 * z),
    "arc tangent": lambda z: z.atan() / math.pi + 0.5,
}


def fitted(loss: Loss, link: Link, spread: float, rows: int = 32, steps: int = 1, dtype: Any = torch.float32) -> Scale:
    total = Fit()
    for seed in range(steps):
        generator = torch.Generator().manual_seed(seed)
        z = (spread * torch.randn(rows, 5, generator=generator)).to(dtype).requires_grad_()
        y = (torch.rand(rows, 5, generator=generator) < 0.3).float()
        loss(link(z.float()), y).backward()
        assert z.grad is not None
        total = total + fit_forms(z, z.grad, y, exclusive=False)
    return total.scale


@pytest.mark.parametrize(("rows", "steps"), [(32, 1), (4, 16)])
@pytest.mark.parametrize("spread", [0.3, 1.0, 3.0])
@pytest.mark.parametrize("loss", LOSSES)
def test_a_loss_of_the_sigmoid_has_a_form_that_is_known(loss: str, spread: float, rows: int, steps: int) -> None:
    scale = fitted(LOSSES[loss], torch.sigmoid, spread, rows, steps)
    assert scale is Scale.SHOWN or (rows == 4 and loss in ("smoothed", "soft") and scale is Scale.OPEN)


@pytest.mark.parametrize("spread", [0.3, 1.0, 3.0])
@pytest.mark.parametrize("link", LINKS)
def test_a_loss_of_anything_else_has_none_of_these_forms(link: str, spread: float) -> None:
    assert {fitted(loss, LINKS[link], spread) for loss in LOSSES.values()} <= {Scale.OTHER, Scale.OPEN, Scale.NONE}
    assert fitted(by_hand, LINKS[link], spread) is Scale.OTHER


@pytest.mark.parametrize("spread", [0.1, 0.3, 1.0, 3.0])
@pytest.mark.parametrize("loss", LOSSES)
def test_half_precision_refuses_nothing_that_is_right(loss: str, spread: float) -> None:
    scales = [fitted(LOSSES[loss], torch.sigmoid, spread, dtype=torch.bfloat16), Scale.SHOWN]
    scales += [fitted(LOSSES[loss], torch.sigmoid, spread, 4, 16, torch.bfloat16)]
    assert Scale.OTHER not in scales


@pytest.mark.parametrize("times", [1.0, 3.0])
def test_exclusive_classes_are_told_by_how_the_others_are_pulled(times: float) -> None:
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(32, 5, generator=generator, requires_grad=True)
    classes = torch.randint(5, (32,), generator=generator)
    p = (times * z).softmax(1).gather(1, classes.unsqueeze(1))
    ((1 - p**0.7) / 0.7).mean().backward()
    assert z.grad is not None
    seen = fit_forms(z.detach(), z.grad, F.one_hot(classes, 5).float(), exclusive=True)
    assert seen.scale is (Scale.SHOWN if times == 1 else Scale.OTHER)


def test_a_hinge_shows_no_scale() -> None:
    hinge: Loss = lambda z, y: F.relu(1 - (2 * y - 1) * z).mean()  # noqa: E731
    assert fitted(hinge, lambda z: z, 1.0, steps=2) is Scale.NONE


# Whole modules


class Step(Layout):
    """Gives (loss, the true probabilities)."""

    def __init__(self, way: Any, returned: str = "") -> None:
        super().__init__()
        self.way, self.returned = way, returned
        self.encoder = nn.Linear(D - 1, 8)
        self.prototypes = nn.Parameter(torch.randn(Q, 8))
        self.temperature = nn.Parameter(torch.tensor(1.0))
        self.other = nn.Linear(D - 1, Q)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        loss, probs = self.way(self, x[:, 1:], y)
        self.seen[self.current_epoch].append(([round(i) for i in x[:, 0].tolist()], probs.detach()))
        return {"loss": loss, self.returned: probs} if self.returned else loss


X, Y = data().tensors
CLASSES = TensorDataset(X, Y.argmax(1))


def assert_read(module: Step, strategy: Keeping) -> None:
    """What was read is what the model predicts, in every step from the first that was read on."""
    true = [step for epoch in sorted(module.seen) for step in module.seen[epoch]]
    assert len(strategy.told) >= len(true) - 2
    for (_, probs), (_, told, _) in zip(true[-len(strategy.told) :], strategy.told, strict=True):
        torch.testing.assert_close(told, probs, atol=1e-5, rtol=0)


def run(way: Any, dataset: Any = None, returned: str = "", **options: Any) -> None:
    torch.manual_seed(0)
    module = Step(way, returned)
    assert_read(module, train(module, loader(dataset, batch_size=21), **options))


READ: dict[str, Any] = {
    "three times": lambda m, z: 1 / (1 + (-3 * z).exp()),
    "exponentials": lambda m, z: (3 * z).exp() / (1 + (3 * z).exp()),
    "tanh": lambda m, z: (z.tanh() + 1) / 2,
    "probit": lambda m, z: 0.5 * (1 + torch.erf(z / math.sqrt(2))),
    "normal": lambda m, z: torch.special.ndtr(z),
    "complementary log-log": lambda m, z: 1 - (-z.exp()).exp(),
    "hard": lambda m, z: F.hardsigmoid(2 * z),
    "a learned temperature": lambda m, z: 1 / (1 + (-z * (m.temperature.exp() + 1)).exp()),
    "the square of the sigmoid": lambda m, z: z.sigmoid() ** 2,
    "its root": lambda m, z: z.sigmoid().sqrt(),
    "a part of it": lambda m, z: 0.9 * z.sigmoid() + 0.05,
    "a mean of two": lambda m, z: (z.sigmoid() + (2 * z - 1).sigmoid()) / 2,
    "where, against overflow": lambda m, z: torch.where(z >= 0, 1 / (1 + (-z).exp()), z.exp() / (1 + z.exp())),
}
COMPARING: dict[str, Loss] = {
    "logarithms": by_hand,
    "xlogy": lambda p, y: -(torch.xlogy(y, p) + torch.xlogy(1 - y, 1 - p)).mean(),
    "mse_loss": F.mse_loss,
    "smooth_l1_loss": F.smooth_l1_loss,
    "huber_loss": lambda p, y: F.huber_loss(y, p),
    "binary_cross_entropy": lambda p, y: F.binary_cross_entropy(p.clamp(0, 1), y),
}


@pytest.mark.parametrize("loss", COMPARING)
@pytest.mark.parametrize("link", READ)
def test_what_the_loss_compares_with_the_labels_is_read(link: str, loss: str) -> None:
    def way(m: Any, x: Tensor, y: Tensor) -> Any:
        probs = READ[link](m, m.net(x))
        return COMPARING[loss](probs, y), probs

    run(way)


def test_a_softmax_by_hand_is_read_where_its_logarithm_is_taken() -> None:
    def way(m: Any, x: Tensor, y: Tensor) -> Any:
        e = (3 * m.net(x)).exp()
        p = 0.9 * e / e.sum(1, keepdim=True) + 0.1 / Q
        return -(F.one_hot(y, Q) * p.log()).sum(1).mean(), p

    run(way, CLASSES)


def made(loss: Loss, link: Link) -> Any:
    def way(m: Any, x: Tensor, y: Tensor) -> Any:
        probs = link(m.net(x))
        return loss(probs, y), probs

    return way


def thrice(loss: Loss) -> Any:
    def way(m: Any, x: Tensor, y: Tensor) -> Any:
        z = 3 * m.net(x)
        return loss(z, y), z.softmax(1) if y.ndim == 1 else z.sigmoid()

    return way


def zlpr(z: Tensor, y: Tensor) -> Tensor:
    return (torch.log1p(((-z).exp() * y).sum(1)) + torch.log1p((z.exp() * (1 - y)).sum(1))).mean()


OF_LOGITS: dict[str, tuple[Loss, Any]] = {
    "log1p of exponentials": (lambda z, y: (torch.log1p(z.exp()) - y * z).mean(), None),
    "halves": (lambda z, y: (y * (1 + (-z).exp()).log() + (1 - y) * (1 + z.exp()).log()).mean(), None),
    "logaddexp": (lambda z, y: (torch.logaddexp(z, torch.zeros(())) - y * z).mean(), None),
    "sums of exponentials": (zlpr, None),
    "a chosen probability": (lambda z, y: -chosen(1 / (1 + (-z).exp()), y).log().mean(), None),
    "logsumexp": (lambda z, y: (z.logsumexp(1) - z.gather(1, y.unsqueeze(1)).squeeze(1)).mean(), CLASSES),
    "a picked softmax": (
        lambda z, y: -(z.exp() / z.exp().sum(1, keepdim=True)).gather(1, y.unsqueeze(1)).log().mean(),
        CLASSES,
    ),
}


def refused(way: Any, dataset: Any = None, **options: Any) -> str:
    with pytest.raises(SelectionError) as error:
        run(way, dataset, **options)
    return str(error.value)


@pytest.mark.parametrize("loss", OF_LOGITS)
def test_logits_that_only_a_module_shows_are_read_at_their_scale_and_refused_at_another(loss: str) -> None:
    of_logits, dataset = OF_LOGITS[loss]
    run(lambda m, x, y: (of_logits(z := m.net(x), y), z.softmax(1) if dataset else z.sigmoid()), dataset)
    message = refused(thrice(of_logits), dataset)
    assert "such as a temperature" in message
    run(thrice(of_logits), dataset, returned="probs")  # as the hint says
    kind = "softmax" if dataset else "logits"
    assert f"kind='{kind}'" in message
    torch.manual_seed(0)
    assert train(Step(thrice(of_logits)), loader(dataset, batch_size=21), kind=kind).told


CHANGED: dict[str, Link] = {
    "its square": lambda z: z.sigmoid() ** 2,
    "a part": lambda z: 0.9 * z.sigmoid() + 0.05,
    "cut off": lambda z: z.clamp(0, 1),
    "tanh": lambda z: (z.tanh() + 1) / 2,
}
BY_HAND: dict[str, Loss] = {
    "squares": lambda p, y: (p - y).square().mean(),
    "products": lambda p, y: ((y - p) * (y - p)).mean(),
    "absolute": lambda p, y: F.l1_loss(p, y),
    "chosen": lambda p, y: -chosen(p, y).log().mean(),
}


@pytest.mark.parametrize("loss", BY_HAND)
@pytest.mark.parametrize("link", CHANGED)
def test_what_the_loss_makes_of_a_sigmoid_is_not_taken_for_the_sigmoid(link: str, loss: str) -> None:
    way = made(BY_HAND[loss], CHANGED[link])
    assert "not as a loss of their sigmoid does" in refused(way)
    run(way, returned="probs")
    run(made(BY_HAND[loss], torch.sigmoid))
    run(made(lambda p, y: BY_HAND[loss](p, 0.8 * y + 0.1) if loss != "chosen" else by_hand(p, y), torch.sigmoid))


def cosine(m: Any, x: Tensor) -> Tensor:
    return F.linear(F.normalize(m.encoder(x)), F.normalize(m.prototypes)).clamp(-1 + 1e-6, 1 - 1e-6)


def one_hot(y: Tensor) -> Tensor:
    return F.one_hot(y, Q).float()


def put(scores: Tensor, y: Tensor, change: Link) -> Tensor:
    moved, rows = scores.clone(), torch.arange(len(y))
    moved[rows, y] = change(scores[rows, y])
    return moved


TREE = torch.tensor([[1.0, 1.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])


def closed(p: Tensor) -> Tensor:
    return (TREE * p.unsqueeze(1)).max(2).values


MOVED: dict[str, Any] = {
    "a margin": lambda m, x, y: (bce(m.net(x) - y, y), m.net(x).sigmoid()),
    "a margin on both sides": lambda m, x, y: (bce(m.net(x) - (y - 0.5), y), m.net(x).sigmoid()),
    "a scaled margin": lambda m, x, y: (bce(5 * (m.net(x) - 0.3 * y), y), (5 * m.net(x)).sigmoid()),
    "moved probabilities": lambda m, x, y: (
        F.binary_cross_entropy((m.net(x).sigmoid() - 0.05 * y).clamp(1e-6, 1 - 1e-6), y),
        m.net(x).sigmoid(),
    ),
    "a closed tree": lambda m, x, y: (
        F.binary_cross_entropy(
            ((1 - y) * closed(p := m.net(x).sigmoid()) + y * closed(y * p)).clamp(1e-6, 1 - 1e-6), y
        ),
        closed(p),
    ),
}
MOVED_CLASSES: dict[str, Any] = {
    "CosFace": lambda c, y: c - 0.35 * one_hot(y),
    "CosFace, put": lambda c, y: put(c, y, lambda t: t - 0.35),
    "ArcFace": lambda c, y: torch.where(one_hot(y) > 0, (c.acos() + 0.5).cos(), c),
    "ArcFace, mixed": lambda c, y: one_hot(y) * (c.acos() + 0.5).cos() + (1 - one_hot(y)) * c,
    "ArcFace, added": lambda c, y: (c.acos() + 0.5 * one_hot(y)).cos(),
    "ArcFace, put": lambda c, y: put(c, y, lambda t: (t.acos() + 0.5).cos()),
    "LDAM": lambda c, y: torch.where(one_hot(y) > 0, c - torch.tensor([0.5, 0.3, 0.2]), c),
    "scattered": lambda c, y: c.scatter_add(1, y.unsqueeze(1), torch.full((len(y), 1), -0.5)),
}


@pytest.mark.parametrize("way", MOVED)
def test_logits_that_the_labels_move_are_refused(way: str) -> None:
    assert "moved by these labels" in refused(MOVED[way])
    run(MOVED[way], returned="probs")


@pytest.mark.parametrize("way", MOVED_CLASSES)
def test_logits_of_classes_that_the_labels_move_are_refused(way: str) -> None:
    def step(m: Any, x: Tensor, y: Tensor) -> Any:
        scores = cosine(m, x)
        return F.cross_entropy(5 * MOVED_CLASSES[way](scores, y), y), (5 * scores).softmax(1)

    assert "moved by these labels" in refused(step, CLASSES)
    run(step, CLASSES, returned="probs")


UNMOVED: dict[str, Any] = {
    "a frozen branch": lambda m, x: m.net(x) + m.other(x).detach(),
    "a prior": lambda m, x: m.net(x) + torch.tensor([-1.0, 0.5, 2.0]),
    "a gate": lambda m, x: m.net(x) * m.other(x).detach().sigmoid() + m.other(x).tanh(),
    "a condition on the input": lambda m, x: torch.where(x[:, :1] > 0, m.net(x), m.other(x)),
}


@pytest.mark.parametrize("way", UNMOVED)
def test_what_the_model_adds_to_its_logits_is_part_of_them(way: str) -> None:
    run(lambda m, x, y: (bce(z := UNMOVED[way](m, x), y), z.sigmoid()))


def test_predictions_of_a_turned_product_are_one_head() -> None:
    run(lambda m, x, y: (bce(z := (m.prototypes[:, : D - 1] @ x.T).T, y), z.sigmoid()))


PULLED_BACK: dict[str, Loss] = {
    "smoothed log-sigmoid": lambda z, y: (
        -((0.8 * y + 0.1) * F.logsigmoid(z) + (0.9 - 0.8 * y) * F.logsigmoid(-z)).mean()
    ),
    "smoothed softplus": lambda z, y: ((0.8 * y + 0.1) * F.softplus(-z) + (0.9 - 0.8 * y) * F.softplus(z)).mean(),
    "a flood": lambda z, y: (by_hand(z.sigmoid(), y) - 0.6).abs() + 0.6,
    "a flood of each sample": lambda z, y: ((torch.log1p(z.exp()) - y * z).mean(1) - 0.6).abs().mean(),
}


@pytest.mark.parametrize("size", [3.0, 12.0])
@pytest.mark.parametrize("batch_size", [4, 21])
@pytest.mark.parametrize("loss", PULLED_BACK)
def test_a_pretrained_network_that_is_pulled_back_is_not_refused(loss: str, batch_size: int, size: float) -> None:
    torch.manual_seed(0)
    module = Step(lambda m, x, y: (PULLED_BACK[loss](z := m.net(x), y), z.sigmoid()))
    with torch.no_grad():
        module.net.weight.copy_(size * torch.eye(Q, D - 1))
        module.net.bias.zero_()
    strategy = train(module, loader(TensorDataset(X, (X[:, 1 : Q + 1] > 0).float()), batch_size=batch_size))
    assert_read(module, strategy)


LEVELS: dict[str, Loss] = {
    "cross-entropy": bce,
    "two log-sigmoids": lambda z, t: -(F.logsigmoid(z) * t + (F.logsigmoid(z) - z) * (1 - t)).sum(1).mean(),
}


@pytest.mark.parametrize("loss", LEVELS)
@pytest.mark.parametrize("ids", [None, False, lambda batch: batch[0][:, 0].round().long()])
def test_ordinal_levels_that_the_step_makes_of_classes_prove_the_predictions(loss: str, ids: Any) -> None:
    def step(m: Any, x: Tensor, y: Tensor) -> Any:
        z = m.net(x)[:, : Q - 1]
        return LEVELS[loss](z, (y.unsqueeze(1) > torch.arange(Q - 1)).float()), z.sigmoid()

    run(step, CLASSES, ids=ids)


AROUND: dict[str, Any] = {
    "bf16-mixed": (lambda m, x: m.net(x), {"precision": "bf16-mixed"}),
    "a compiled network": (lambda m, x: torch.compile(m.net, backend="aot_eager")(x), {}),
    "a checkpoint": (lambda m, x: checkpoint(m.net, x, use_reentrant=False), {}),
    "a re-entrant checkpoint": (lambda m, x: checkpoint(m.net, x.requires_grad_(), use_reentrant=True), {}),
    "accumulation": (lambda m, x: m.net(x), {"accumulate_grad_batches": 2}),
    "averaged weights": (lambda m, x: m.net(x), {"callbacks": True}),
}


@pytest.mark.parametrize("loss", ["cross-entropy", "by hand", "only a module"])
@pytest.mark.parametrize("around", AROUND)
def test_predictions_are_read_whatever_is_around_the_network(around: str, loss: str) -> None:
    predict, options = AROUND[around]
    if loss == "only a module" and around == "a compiled network":
        pytest.skip("what a compiled network returns cannot be watched, and the message says so")
    of_logits: Loss = {
        "cross-entropy": bce,
        "by hand": lambda z, y: by_hand(1 / (1 + (-z).exp()), y),
        "only a module": lambda z, y: (torch.log1p(z.exp()) - y * z).mean(),
    }[loss]

    def step(m: Any, x: Tensor, y: Tensor) -> Any:
        z = predict(m, x).float()
        return of_logits(z, y), z.sigmoid()

    torch._dynamo.reset()
    torch.manual_seed(0)
    module, strategy = Step(step), Keeping()
    extra = [WeightAveraging(avg_fn=get_ema_avg_fn())] if "callbacks" in options else []
    options = {name: value for name, value in options.items() if name != "callbacks"}
    made = trainer(BatchSelection(strategy, warmup_epochs=1), *extra, **({"max_epochs": 2} | options))
    made.fit(module, loader(batch_size=21))
    assert_read(module, strategy)


class Scaled(Step):
    """Manual optimization with a scaled loss."""

    def __init__(self, way: Any) -> None:
        super().__init__(way)
        self.automatic_optimization = False
        self.scaler = torch.amp.GradScaler("cpu")

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        optimizer = self.optimizers().optimizer
        optimizer.zero_grad()
        self.manual_backward(self.scaler.scale(super().training_step(batch, batch_idx)))
        self.scaler.step(optimizer)
        self.scaler.update()


@pytest.mark.parametrize("times", [1, 3])
def test_a_scaled_loss_shows_the_scale_of_logits_as_well(times: int) -> None:
    way = lambda m, x, y: (  # noqa: E731
        (torch.log1p((times * (z := m.net(x))).exp()) - times * y * z).mean(),
        (times * z).sigmoid(),
    )
    torch.manual_seed(0)
    module = Scaled(way)
    if times == 1:
        assert_read(module, train(module, loader(batch_size=21)))
    else:
        with pytest.raises(SelectionError, match="such as a temperature"):
            train(module, loader(batch_size=21))


def test_a_margin_is_seen_in_mixed_precision() -> None:
    assert "moved by these labels" in refused(MOVED["a margin"], precision="bf16-mixed")
