"""The columns that a dataset shows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from lightning_ubs.reading.dataset import columns_of

N = 6
Y = torch.eye(3)[[0, 1, 2, 2, 1, 0]]


class Shows(Dataset[Any]):
    def __init__(self, **shown: Any) -> None:
        vars(self).update(shown)

    def __len__(self) -> int:
        return N

    def __getitem__(self, i: int) -> Any:
        return i


def shown(dataset: Any) -> list[tuple[str, tuple[int, ...]]]:
    return [(column.name, column.shape) for column in columns_of(dataset, ("labels", "y"))]


def test_columns_have_a_number_or_several_for_each_sample() -> None:
    dataset = Shows(
        weight=torch.rand(N),
        rank=np.arange(N),
        y=Y,
        scale=torch.tensor(2.0),
        gain=np.array(3.0),
        mean=torch.zeros(3),
        names=np.array(["a"] * N),
        words=["a"] * N,
        lists=Y.tolist(),
        uneven=[[1]] * (N - 1) + [[1, 2]],
    )
    assert shown(dataset) == [("y", (3,)), ("weight", ()), ("rank", ()), ("lists", (3,))]


def test_columns_of_a_table_are_those_that_hold_numbers() -> None:
    datasets = pytest.importorskip("datasets")
    table = datasets.Dataset.from_dict({"text": ["a"] * N, "number": list(range(N)), "labels": Y.tolist()})
    assert shown(table) == [("labels", (3,)), ("number", ())]
    assert shown(table.select([])) == []
