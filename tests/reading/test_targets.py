"""Where the true labels of a batch are found, and the shape that they are given."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NamedTuple

import lightning as L
import pytest
import torch
from torch import Tensor

from lightning_ubs import SelectionError
from lightning_ubs.reading.targets import batch_targets, in_shape, named_targets

B, Q = 4, 3
X, Y = torch.randn(B, 5), (torch.rand(B, Q) > 0.5).float()
MODULE = L.LightningModule()


@pytest.mark.parametrize("name", ["labels", "label", "targets", "target", "y", "Y", "multi_hot"])
def test_labels_are_found_under_each_usual_name(name: str) -> None:
    for batch in ({"x": X, name: Y}, SimpleNamespace(x=X, **{name: Y})):
        assert batch_targets(batch) is not None
        assert torch.equal(batch_targets(batch), Y)  # type: ignore[arg-type]
    assert batch_targets({"x": X, "truth": Y}) is None


class Named(NamedTuple):
    y: Tensor
    first: Tensor
    second: Tensor


def test_the_only_tensor_of_the_right_shape_in_a_tuple_is_taken_and_of_several_none() -> None:
    for batch in ((torch.arange(B), X, Y), [Y, X, "name"], (X, Y)):
        found = batch_targets(batch, (B, Q))
        assert found is not None
        assert torch.equal(found, Y)
    assert batch_targets((Y, X, 1 - Y), (B, Q)) is None
    assert batch_targets((X, X, Y)) is None, "without a shape, a longer tuple tells nothing"
    named = batch_targets(Named(Y, 1 - Y, 1 - Y), (B, Q))
    assert named is not None
    assert torch.equal(named, Y)


@pytest.mark.parametrize("returned", [None, torch.zeros(()), {"loss": torch.zeros(())}], ids=["none", "loss", "dict"])
def test_a_key_is_looked_for_in_what_is_returned_and_then_in_the_batch(returned: Any) -> None:
    found = named_targets("truth", MODULE, returned, {"x": X, "truth": Y})
    assert found is not None
    assert torch.equal(found, Y)
    assert named_targets("truth", MODULE, returned, (X, Y)) is None
    assert named_targets("truth", MODULE, {"truth": 1 - Y}, {"truth": Y}).sum() == (1 - Y).sum()  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("found", "width", "expected"),
    [
        (Y.bool(), Q, Y),
        (Y[:, 0], 1, Y[:, :1]),
        (Y[:, :1].long(), 1, Y[:, :1]),
        (torch.tensor([2, 0, -100, 1]), Q, torch.eye(4)[[2, 0, 3, 1], :Q]),
    ],
    ids=["matrix", "vector", "one column", "class indices, one ignored"],
)
def test_labels_get_the_shape_of_the_predictions(found: Tensor, width: int, expected: Tensor) -> None:
    shaped = in_shape(found, torch.zeros(B, width))
    assert shaped.dtype == torch.float32
    assert torch.equal(shaped, expected)


@pytest.mark.parametrize(
    ("found", "seen"), [(None, "none"), (Y[:, :2], r"\[4, 2\]"), (Y[:, 0], r"\[4\]"), (Y[:3], r"\[3, 3\]")]
)
def test_labels_of_another_shape_are_refused(found: Any, seen: str) -> None:
    with pytest.raises(SelectionError, match=rf"true labels of shape \[4, 3\], but found .*{seen}; pass targets="):
        in_shape(found, torch.zeros(B, Q))
