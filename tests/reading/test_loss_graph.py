"""What is read from the graph of a loss, and what is not taken for predictions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits as bce
from torch.nn.functional import cross_entropy, multilabel_soft_margin_loss

from lightning_ubs.reading import loss_graph
from lightning_ubs.reading.loss_graph import LossTerm, follow, search
from lightning_ubs.reading.main_term import main_term
from lightning_ubs.reading.predictions import Kind, kind_by_origin, to_probabilities
from lightning_ubs.reading.shapes import as_rows

B, Q = 8, 3
GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(B, 5, generator=GENERATOR)
Y = (torch.rand(B, Q, generator=GENERATOR) > 0.5).float()
NET, OTHER = nn.Linear(5, Q), nn.Linear(5, Q)


def main(loss: Tensor, num_labels: int | None = None) -> LossTerm | list[LossTerm]:
    return main_term(search(loss, B), num_labels)


HEADS: dict[str, Any] = {
    "weighted aux": lambda z, a: bce(z, Y) + 0.3 * bce(a, Y),
    "both scaled": lambda z, a: (bce(z, Y) + bce(a, Y) / 5) * 7,
    "further from the loss": lambda z, a: 0.3 * bce(a, Y) + bce(z, Y, reduction="none").sum(1).mean().reshape(()),
    "in a list": lambda z, a: sum([bce(z, Y), 0.3 * bce(a, Y)]),
    "weighted by a row": lambda z, a: (
        (bce(z, Y, reduction="none")).mean() + (bce(a, Y, reduction="none") * X[:, :1]).mean()
    ),
    "contrastive": lambda z, a: bce(z, Y) + 0.1 * cross_entropy(a @ a.T, torch.arange(B)),
}


@pytest.mark.parametrize("loss", HEADS)
def test_the_head_that_is_scaled_less_is_the_main_one(loss: str) -> None:
    logits = NET(X)
    found = main(HEADS[loss](logits, OTHER(X)))
    assert isinstance(found, LossTerm)
    assert torch.equal(found.predictions, logits)


UNCLEAR: dict[str, Any] = {
    "sum": lambda z, a: bce(z, Y) + bce(a, Y),
    "list": lambda z, a: sum([bce(z, Y), bce(a, Y), bce(z + a, Y)]),
    "mean": lambda z, a: 0.5 * bce(z, Y) + 0.5 * bce(a, Y),
    "the other counts more": lambda z, a: bce(z, Y) + 3 * bce(a, Y),
    "one of each kind": lambda z, a: bce(z, Y) + cross_entropy(a, Y.argmax(1)),
}


@pytest.mark.parametrize("loss", UNCLEAR)
def test_heads_of_which_none_is_clearly_the_main_one_are_all_named(loss: str) -> None:
    found = main(UNCLEAR[loss](NET(X), OTHER(X)))
    assert isinstance(found, list)
    assert len(found) >= 2
    assert all(f"[{B}, {Q}]" in str(term) for term in found)


def test_the_number_of_labels_decides_between_heads() -> None:
    logits = NET(X)
    loss = bce(logits, Y) + cross_entropy(X @ OTHER.weight.T @ torch.randn(Q, B), torch.arange(B))
    found = main(loss, num_labels=Q)
    assert isinstance(found, LossTerm)
    assert torch.equal(found.predictions, logits)
    assert main(bce(logits[:, :1], Y[:, :1]), num_labels=Q) == []


NO_ROWS: dict[str, Any] = {
    "masked": lambda z: bce(z[Y > 0], Y[Y > 0]),
    "masked to as many as rows": lambda z: bce(z.flatten()[torch.arange(B)], torch.ones(B)),
    "taken, as many as rows": lambda z: bce(z.take(torch.arange(B)), torch.ones(B)),
    "one element each": lambda z: bce(z.gather(1, Y.argmax(1, keepdim=True)).squeeze(1), torch.ones(B)),
    "label by label": lambda z: bce(z.T.flatten(), Y.T.flatten()),
    "half the rows": lambda z: bce(z[: B // 2], Y[: B // 2]),
    "pixels": lambda z: bce(z[:, :, None].expand(B, Q, 4), torch.ones(B, Q, 4)),
    "classes of pixels": lambda z: cross_entropy(z[:, :, None].expand(B, Q, 4), torch.zeros(B, 4, dtype=torch.int64)),
}


@pytest.mark.parametrize("loss", NO_ROWS)
def test_what_has_no_row_per_sample_is_not_taken_for_predictions(loss: str) -> None:
    terms = search(NO_ROWS[loss](NET(X)), B)
    assert terms
    assert main_term(terms, None) == []


FLAT: dict[str, Any] = {
    "flattened": lambda z: z.flatten(),
    "flattened after a change of precision": lambda z: z.double().flatten(),
    "flattened after an axis was added": lambda z: z.unsqueeze(1).flatten(),
    "flattened and changed in precision": lambda z: z.flatten().double(),
}


@pytest.mark.parametrize("form", FLAT)
def test_flattened_predictions_get_their_rows_back(form: str) -> None:
    logits = NET(X)
    flat = FLAT[form](logits)
    found = main(bce(flat, Y.flatten().to(flat.dtype)))
    assert isinstance(found, LossTerm)
    assert torch.equal(found.predictions, logits.to(flat.dtype))
    assert torch.equal(found.targets[0], Y.to(flat.dtype))


def test_exclusive_classes_are_found_with_their_targets() -> None:
    logits = NET(X)
    for targets in (Y.softmax(1), Y.argmax(1)):
        found = main(cross_entropy(logits, targets))
        assert isinstance(found, LossTerm)
        assert found.kind is Kind.SOFTMAX
        torch.testing.assert_close(found.predictions, logits.log_softmax(1))
        assert any(torch.equal(one, targets) for one in found.targets)


@pytest.mark.parametrize("form", [lambda t: t, lambda t: t.squeeze(1), lambda t: t.unsqueeze(2)])
def test_a_single_logit_is_one_label(form: Any) -> None:
    logits = nn.Linear(5, 1)(X)
    found = main(bce(form(logits), form(Y[:, :1])))
    assert isinstance(found, LossTerm)
    assert torch.equal(found.predictions, logits)
    assert torch.equal(found.targets[0], Y[:, :1])


def test_targets_of_the_soft_margin_are_read_where_they_weigh_both_halves() -> None:
    logits = NET(X)
    found = main(multilabel_soft_margin_loss(logits, Y))
    assert isinstance(found, LossTerm)
    assert torch.equal(found.predictions, logits)
    assert torch.equal(found.targets[0], Y)
    weighted = main(-(3 * Y * nn.functional.logsigmoid(logits) + (1 - Y) * nn.functional.logsigmoid(-logits)).mean())
    assert isinstance(weighted, LossTerm)
    assert torch.equal(weighted.predictions, logits)
    assert weighted.targets == ()


def test_a_negative_distance_keeps_its_sign() -> None:
    logits = -NET(X).abs()
    found = main(multilabel_soft_margin_loss(logits, Y))
    assert isinstance(found, LossTerm)
    assert torch.equal(found.predictions, logits)


def test_a_known_place_is_followed_and_another_form_is_noticed() -> None:
    place = main(bce(NET(X), Y) + 0.3 * bce(OTHER(X), Y)).place  # type: ignore[union-attr]
    logits = NET(X)
    again = follow(bce(logits, Y) + 0.3 * bce(OTHER(X), Y), B, place)
    assert again is not None
    assert torch.equal(again.predictions, logits)
    assert torch.equal(again.targets[0], Y)
    for other in (bce(logits, Y), bce(logits, Y) + bce(OTHER(X), Y), logits.mean(), torch.zeros(())):
        assert follow(other, B, place) is None


def test_the_search_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    value = NET(X)
    for _ in range(3000):
        value = value + 1
    assert search(value.mean(), B) == []
    monkeypatch.setattr(loss_graph, "SEARCH_LIMIT", 10)
    for _ in range(20):
        value = bce(value, Y).expand(B, Q)
    assert len(search(value.mean(), B)) <= 10


def test_a_loss_without_a_graph_shows_nothing() -> None:
    assert search(torch.zeros(()), B) == []


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda z: z, Kind.LOGITS),
        (lambda z: z.bfloat16().reshape(-1, Q), Kind.LOGITS),
        (lambda z: X @ NET.weight.T, Kind.LOGITS),
        (lambda z: (X.unsqueeze(1) @ NET.weight.T).squeeze(1), Kind.LOGITS),
        (lambda z: torch.bmm(X.unsqueeze(1), NET.weight.T.expand(B, -1, -1)), Kind.LOGITS),
        (lambda z: nn.functional.conv1d(X.unsqueeze(1), NET.weight.unsqueeze(1)), Kind.LOGITS),
        (lambda z: z.sigmoid().clone().unsqueeze(2).squeeze(2).t(), Kind.PROBS),
        (lambda z: z.sigmoid(), Kind.PROBS),
        (lambda z: z.softmax(1), Kind.PROBS),
        (lambda z: z.log_softmax(1), Kind.SOFTMAX),
        (lambda z: nn.functional.logsigmoid(z), Kind.LOG_PROBS),
        (lambda z: z.sigmoid().log(), Kind.LOG_PROBS),
        (lambda z: z * 1.5, None),
        (lambda z: z.detach(), None),
    ],
)
def test_the_last_operation_tells_what_a_tensor_holds(make: Any, kind: Kind | None) -> None:
    assert kind_by_origin(make(NET(X))) == kind


def test_every_kind_becomes_the_same_probabilities() -> None:
    logits = NET(X).detach()
    probs = logits.sigmoid()
    for raw, kind in ((logits, Kind.LOGITS), (probs, Kind.PROBS), (probs.log(), Kind.LOG_PROBS)):
        read, usable = to_probabilities(raw, kind)
        torch.testing.assert_close(read, probs)
        assert usable.all()
    for raw in (logits, logits.log_softmax(1), logits + 5):
        torch.testing.assert_close(to_probabilities(raw, Kind.SOFTMAX)[0], logits.softmax(1))
    spoilt = logits.clone()
    spoilt[2, 1] = torch.nan
    for kind in Kind:
        read, usable = to_probabilities(spoilt, kind)
        assert not usable[2]
        assert read.isfinite().all()
    vanished = torch.tensor([[0.0, -torch.inf], [-torch.inf, -torch.inf]])
    assert to_probabilities(vanished, Kind.SOFTMAX)[1].tolist() == [True, False]
    assert to_probabilities(vanished, Kind.LOG_PROBS)[1].tolist() == [True, True]
    endless = torch.tensor([[0.0, torch.inf], [0.0, 1.0]])
    assert to_probabilities(endless, Kind.SOFTMAX)[1].tolist() == [False, True]


@pytest.mark.parametrize(
    ("shape", "rows", "expected"),
    [
        ((8,), 8, (8, 1)),
        ((1,), 1, (1, 1)),
        ((8, 1), 8, (8, 1)),
        ((8, 3, 1), 8, (8, 3)),
        ((8, 1, 3), 8, (8, 3)),
        ((1, 3), 1, (1, 3)),
        ((8, 3), 4, None),
        ((24,), 8, None),
        ((8, 3, 2), 8, None),
        ((), 8, None),
    ],
)
def test_shapes(shape: tuple[int, ...], rows: int, expected: tuple[int, ...] | None) -> None:
    found = as_rows(torch.zeros(shape), rows)
    assert (None if found is None else tuple(found.shape)) == expected
    assert as_rows(torch.zeros(shape, dtype=torch.int64), rows) is None
