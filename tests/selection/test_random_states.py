"""What a checkpoint of a failed step holds: the generators as they were before its batch was fetched."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
from tiny_training import trainer

from lightning_ubs.selection.random_states import RandomStates, capture

CPU = torch.device("cpu")
DRAWS: dict[str, Callable[[], object]] = {
    "nothing": lambda: None,
    "NumPy": np.random.rand,
    "one of two normals": np.random.randn,
    "two normals": lambda: np.random.randn(2),
    "seeds": lambda: np.random.seed(3),
    "Python": random.random,
    "torch": lambda: torch.rand(1),
}


@pytest.mark.parametrize("first", DRAWS)
@pytest.mark.parametrize("second", DRAWS)
def test_states_are_those_before_the_last_fetch(first: str, second: str) -> None:
    np.random.seed(0)
    states = RandomStates(trainer(), enabled=True)
    states.begin(None)
    for draw in (first, second, second):
        DRAWS[draw]()
        states.before_fetch()
        expected = capture(CPU)
        DRAWS["one of two normals"]()  # in the step, which fails
        found = states.state_dict()
        assert found is not None
        assert torch.equal(found["states"][0], expected)
