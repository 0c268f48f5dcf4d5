"""What is read from the graph of a loss, and what is not taken for predictions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits as bce
from torch.nn.functional import cross_entropy, multilabel_soft_margin_loss

from lightning_ubs.reading import loss_graph
from lightning_ubs.reading.loss_graph import Candidate, LossGraph, Pulls, follow
from lightning_ubs.reading.predictions import Kind, as_rows, kind_by_origin, to_probabilities

B, Q = 8, 3
GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(B, 5, generator=GENERATOR)
Y = (torch.rand(B, Q, generator=GENERATOR) > 0.5).float()
NET, OTHER = nn.Linear(5, Q), nn.Linear(5, Q)


def search(loss: Tensor) -> list[Candidate]:
    return LossGraph(loss, B).candidates


def only(loss: Tensor) -> Candidate:
    (found,) = search(loss)
    return found


def shown(candidate: Candidate) -> Tensor:
    assert candidate.predictions is not None
    return candidate.predictions


NO_ROWS: dict[str, Any] = {
    "masked": lambda z: bce(z[Y > 0], Y[Y > 0]),
    "masked to as many as rows": lambda z: bce(z.flatten()[torch.arange(B)], torch.ones(B)),
    "taken, as many as rows": lambda z: bce(z.take(torch.arange(B)), torch.ones(B)),
    "one element each": lambda z: bce(z.gather(1, Y.argmax(1, keepdim=True)).squeeze(1), torch.ones(B)),
    "half the rows": lambda z: bce(z[: B // 2], Y[: B // 2]),
    "pixels": lambda z: bce(z[:, :, None].expand(B, Q, 4), torch.ones(B, Q, 4)),
    "classes of pixels": lambda z: cross_entropy(z[:, :, None].expand(B, Q, 4), torch.zeros(B, 4, dtype=torch.int64)),
}


@pytest.mark.parametrize("loss", NO_ROWS)
def test_what_has_no_row_per_sample_is_not_taken_for_predictions(loss: str) -> None:
    graph = LossGraph(NO_ROWS[loss](NET(X)), B)
    assert graph.candidates == []
    assert graph.unfitting


FLAT: dict[str, Any] = {
    "label by label": lambda z: z.T.flatten(),
    "flattened": lambda z: z.flatten(),
    "flattened after a change of precision": lambda z: z.double().flatten(),
    "flattened after an axis was added": lambda z: z.unsqueeze(1).flatten(),
    "flattened and changed in precision": lambda z: z.flatten().double(),
}


@pytest.mark.parametrize("form", FLAT)
def test_flattened_predictions_get_their_rows_back(form: str) -> None:
    logits = NET(X)
    flat, targets = FLAT[form](logits), FLAT[form](Y)
    found = only(bce(flat, targets.to(flat.dtype)))
    assert torch.equal(shown(found), logits.to(flat.dtype))
    assert torch.equal(found.targets[0], Y.to(flat.dtype))


@pytest.mark.parametrize("rows", [B, Q])
def test_transposed_predictions_are_turned_back_also_where_there_are_as_many_labels_as_samples(rows: int) -> None:
    logits = NET(X)[:rows]
    candidates = LossGraph(bce(logits.T, Y[:rows].T), rows).candidates
    assert any(torch.equal(shown(one), logits) and torch.equal(one.targets[0], Y[:rows]) for one in candidates)
    assert len(candidates) == (1 if rows == B else 2)


def test_exclusive_classes_are_found_with_their_targets() -> None:
    logits = NET(X)
    for targets in (Y.softmax(1), Y.argmax(1)):
        found = search(cross_entropy(logits, targets))
        assert {one.origin for one in found} == {found[0].origin}
        assert all(one.kind is Kind.SOFTMAX for one in found)
        torch.testing.assert_close(shown(found[0]), logits.log_softmax(1))
        assert any(torch.equal(target, targets) for one in found for target in one.targets)


def test_targets_that_a_soft_cross_entropy_multiplies_with_a_minus_are_the_targets() -> None:
    assert torch.equal(only((-Y * NET(X).log_softmax(1)).sum(1).mean()).targets[0], Y)


@pytest.mark.parametrize("form", [lambda t: t, lambda t: t.squeeze(1), lambda t: t.unsqueeze(2)])
def test_a_single_logit_is_one_label(form: Any) -> None:
    logits = nn.Linear(5, 1)(X)
    found = only(bce(form(logits), form(Y[:, :1])))
    assert torch.equal(shown(found), logits)
    assert torch.equal(found.targets[0], Y[:, :1])


def test_both_halves_of_the_soft_margin_are_one_head_with_the_sign_of_the_logits() -> None:
    for logits in (NET(X), -NET(X).abs()):
        found = search(multilabel_soft_margin_loss(logits, Y))
        assert len(found) == 2
        assert found[0].origin == found[1].origin
        for one in found:
            assert torch.equal(shown(one), logits)


SCALED: dict[str, Any] = {
    "by its targets": lambda z: z * (1 - Y) * 5 + z * Y,
    "by a sign": lambda z: z * (2 * Y - 1),
    "by a number per sample": lambda z: z * (X[:, :1].abs() + 1),
    "twice": lambda z: z * (Y + 1) / (X[:, :1].abs() + 1),
    "chosen": lambda z: torch.where(Y > 0, z * 2, z),
}


@pytest.mark.parametrize("way", SCALED)
def test_what_scales_logits_sample_by_sample_is_taken_out(way: str) -> None:
    logits = NET(X)
    torch.testing.assert_close(shown(only(bce(SCALED[way](logits), Y))), logits)


MASKED: dict[str, Any] = {
    "product": lambda z: z * Y,
    "masked_fill": lambda z: z.masked_fill(Y > 0, -1e4),
    "where": lambda z: torch.where(Y > 0, z, torch.zeros(())),
}


@pytest.mark.parametrize("way", MASKED)
def test_logits_that_are_masked_cannot_be_read_but_their_head_is_known(way: str) -> None:
    logits = NET(X)
    for loss in (bce(MASKED[way](logits), Y), MASKED[way](logits).sigmoid().mean()):
        found = only(loss)
        assert found.predictions is None
        assert found.edge == (logits.grad_fn, 0)


@pytest.mark.parametrize(
    "model", [lambda z: 8 * z, lambda z: z + torch.ones(Q), lambda z: z * torch.arange(1.0, Q + 1)]
)
def test_numbers_that_are_the_same_for_all_samples_belong_to_the_model(model: Any) -> None:
    logits = model(NET(X))
    assert torch.equal(shown(only(bce(logits, Y))), logits)


def test_the_gradient_at_a_candidate_is_that_of_autograd_and_nobody_notices() -> None:
    heard: list[Tensor] = []
    logits = NET(X)
    logits.register_hook(heard.append)
    logits.retain_grad()
    p = logits.sigmoid()
    loss = 3 * (bce(logits * 2, Y) + (p * Y).sum(1, keepdim=True).mean() + (p[:, :1] - logits).square().sum())
    head = (logits.grad_fn, 0)
    pulls = Pulls([head, *[one.edge for one in LossGraph(loss, B).candidates]])
    torch.autograd.grad(loss, NET.weight, retain_graph=True)  # another pass before it counts for nothing
    logits.grad = None
    loss.backward()
    assert len(heard) == 2
    assert logits.grad is not None
    found = pulls.at(head)
    assert found is not None
    torch.testing.assert_close(found, logits.grad)
    pulls.stop()
    assert pulls.at(head) is None
    NET.weight.grad = NET.bias.grad = None


def test_the_gradient_below_what_can_run_only_once_is_seen_and_it_runs_once() -> None:
    runs = []

    class Once(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, value: Tensor) -> Tensor:
            return value.clone()

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            runs.append(1)
            return gradient

    logits = NET(X)
    pulls = Pulls([(logits.grad_fn, 0)])
    bce(Once.apply(logits), Y).backward()
    assert pulls.at((logits.grad_fn, 0)) is not None
    assert runs == [1]


def test_a_known_place_is_followed_and_another_form_is_noticed() -> None:
    place = search(bce(NET(X), Y) + 0.3 * bce(OTHER(X), Y))[0].place
    logits = NET(X)
    again = follow(bce(logits, Y) + 0.3 * bce(OTHER(X), Y), B, place)
    assert again is not None
    assert torch.equal(shown(again), logits)
    assert torch.equal(again.targets[0], Y)
    for other in (bce(logits, Y), bce(logits, Y) + bce(OTHER(X), Y), logits.mean(), torch.zeros(())):
        assert follow(other, B, place) is None


def test_the_search_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    value = NET(X)
    for _ in range(3000):
        value = value + 1
    assert search(value.mean()) == []
    monkeypatch.setattr(loss_graph, "SEARCH_LIMIT", 10)
    for _ in range(20):
        value = bce(value, Y).expand(B, Q)
    assert len(search(value.mean())) <= 10


def test_a_loss_without_a_graph_shows_nothing() -> None:
    assert search(torch.zeros(())) == []


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
        (lambda z: z.sigmoid() @ torch.eye(Q), None),
        (lambda z: torch.bmm(z.softmax(1).unsqueeze(1), z.sigmoid().unsqueeze(2).expand(B, Q, Q)), None),
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
        ((1, 8, 3), 8, None),
        ((8, 3, 2), 8, None),
        ((), 8, None),
    ],
)
def test_shapes(shape: tuple[int, ...], rows: int, expected: tuple[int, ...] | None) -> None:
    found = as_rows(torch.zeros(shape), rows)
    assert (None if found is None else tuple(found.shape)) == expected
    assert as_rows(torch.zeros(shape, dtype=torch.int64), rows) is None
