"""What modules return is remembered while they are watched, and nothing of it stays on them."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import nn

from lightning_ubs.reading.modules import ModuleWatch, parts

X = torch.randn(4, 5)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))], ids=["copy", "pickle"])
def test_a_module_that_is_watched_can_be_copied_and_its_copy_is_not_watched(copied: Any) -> None:
    net, watch = nn.Linear(5, 3), ModuleWatch()
    watch.start(net)
    other = copied(net)
    assert torch.equal(other(X), net.forward(X))
    assert not watch.seen
    net(X)
    assert [seen.module for seen in watch.seen] == [net]
    watch.stop()
    net(X)
    assert len(watch.seen) == 1
    assert not net._forward_hooks


def test_each_part_of_an_output_keeps_its_name() -> None:
    hidden, scores = torch.zeros(4, 5), torch.zeros(4, 3)
    for output, names in (
        ({"hidden": hidden, "note": "x", "scores": scores}, ["hidden", "scores"]),
        ((hidden, scores), ["0", "1"]),
        ([None, scores], ["1"]),
        ({"hidden": hidden, "logits": scores}, ["logits"]),
        (scores, [""]),
        ("nothing", []),
    ):
        found = list(parts(output))
        assert [part.part for part in found] == names
        assert not found or found[-1].tensor is scores
