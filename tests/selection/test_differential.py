"""Random configurations equal the slow reference; ``tests/helpers/differential.py`` runs more of them."""

from __future__ import annotations

import pytest
import torch
from differential import check, configuration

IN_CI = 48


@pytest.mark.parametrize("part", range(6))
def test_random_configurations_equal_the_reference(part: int) -> None:
    epochs = 0
    for number in range(part, IN_CI, 6):
        torch.manual_seed(number)
        epochs += check(configuration(number))
    assert epochs > 8
