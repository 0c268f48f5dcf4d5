"""Random configurations equal the slow reference; ``python tests/test_differential.py 300`` runs more of them."""

from __future__ import annotations

import sys

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


if __name__ == "__main__":
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 300
    compared = 0
    for number in range(count):
        torch.manual_seed(number)
        compared += check(configuration(number))
        print(f"\r{number + 1} of {count} configurations, {compared} epochs equal", end="", flush=True)
    print()
