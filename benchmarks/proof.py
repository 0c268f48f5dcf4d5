"""What the proof of a step's predictions costs, and following them in every other step."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from benchmarks.measure import Row, clock, ratio, summary
from lightning_ubs.reading.heads import BackwardPass
from lightning_ubs.reading.loss_graph import follow

ROWS, WIDTH, LABELS, LAYERS = 128, 64, 25, 200


def proof_rows(repeats: int, quick: bool) -> Iterator[Row]:
    """A step of 200 linear layers with the proof and without, and its own milliseconds; then with a place followed."""
    torch.manual_seed(0)
    layers = [part for _ in range(LAYERS - 1) for part in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    net = nn.Sequential(*layers, nn.Linear(WIDTH, LABELS))
    x, y = torch.randn(ROWS, WIDTH), (torch.rand(ROWS, LABELS) < 0.1).float()
    for name, loss in {"cross-entropy": binary_cross_entropy_with_logits, "by hand": _by_hand}.items():
        proving, plain = _step(net, x, y, loss, True), _step(net, x, y, loss, False)
        what = f"a step of {LAYERS} layers with the proof / without, {name}"
        yield ratio(what, proving, plain, repeats, None, "the walk over the graph, and one sum over labels per head")
        own = [1000 * proving() for _ in range(4 * repeats)]
        yield summary(f"the proof itself, {name}, ms", own[repeats:], None, "first steps, and once per epoch")
    value = binary_cross_entropy_with_logits(net(x), y)
    (head,) = BackwardPass(value, ROWS, [], [], 0).heads()
    place = head.place.term
    assert place is not None
    followed = [1000 * statistics.mean(_seconds(lambda: follow(value, ROWS, place)) for _ in range(100))] * repeats
    yield summary("following a known place, ms", followed, None, "a few steps down the graph")


def _by_hand(z: Tensor, y: Tensor) -> Tensor:
    p = z.sigmoid()
    return -(y * p.clamp(min=1e-8).log() + (1 - y) * (1 - p).clamp(min=1e-8).log()).mean()


def _step(net: nn.Module, x: Tensor, y: Tensor, loss: Callable[..., Tensor], proves: bool) -> Callable[[], float]:
    """One forward and backward pass; gives the seconds of the proof."""

    def step() -> float:
        value = loss(net(x), y)
        if not proves:
            value.backward()
            return 0.0
        begun = clock()
        seen = BackwardPass(value, len(x), [y], [], 0)
        searched = clock()
        value.backward()
        proved = clock()
        seen.heads()
        seen.stop()
        return searched - begun + clock() - proved

    return step


def _seconds(work: Callable[[], object]) -> float:
    begun = clock()
    work()
    return clock() - begun
