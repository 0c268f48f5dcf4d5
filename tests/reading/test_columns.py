"""The columns that a dataset shows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, Subset

from lightning_ubs.reading import DatasetLabels
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


class Raises:
    """Raises whatever is asked of it, as a closed file does."""

    def __getattr__(self, name: str) -> Any:
        raise OSError(name)

    def __len__(self) -> int:
        raise OSError

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise OSError


class Lazy:
    """An array in a file that must not be read."""

    shape, dtype = (N, 3), np.dtype("f4")

    def __len__(self) -> int:
        return N

    def __getitem__(self, item: Any) -> Any:
        raise AssertionError("was read")

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise AssertionError("was read")


def image() -> Any:
    return pytest.importorskip("PIL.Image").new("RGB", (4, 4))


NO_COLUMNS: dict[str, Any] = {
    "paths and labels": lambda: [(f"{i}.png", [0, 1]) for i in range(N)],
    "paths and class lists": lambda: [(f"{i}.png", [1] * i) for i in range(N)],
    "pairs of tensors": lambda: [(torch.rand(3), torch.rand(2))] * N,
    "pairs of arrays": lambda: [(np.zeros(3), np.zeros(2))] * N,
    "records": lambda: [{"image": 1, "labels": [1]}] * N,
    "ragged lists": lambda: [[1] * i for i in range(N)],
    "nested lists": lambda: [[[1], [1, 2]]] * N,
    "mixed numbers": lambda: [1.0] * (N - 1) + ["a"],
    "missing numbers": lambda: [1.0] * (N - 1) + [None],
    "images": lambda: [image()] * N,
    "objects that raise": lambda: [Raises()] * N,
    "an object that raises": Raises,
    "an open file": Lazy,
    "open files": lambda: [Lazy()] * N,
    "an array of objects": lambda: np.array([[1] * i for i in range(N)], dtype=object),
    "a structured array": lambda: np.zeros(N, dtype=[("a", int)]),
    "dates": lambda: np.zeros(N, dtype="M8[s]"),
    "complex numbers": lambda: np.zeros((N, 3), dtype=complex),
    "complex numbers of torch": lambda: torch.zeros(N, 3, dtype=torch.complex64),
    "a nested tensor": lambda: torch.nested.nested_tensor([torch.zeros(i + 1) for i in range(N)]),
    "a jagged tensor": lambda: torch.nested.nested_tensor([torch.zeros(i + 1) for i in range(N)], layout=torch.jagged),
    "a tensor without data": lambda: torch.zeros(N, 3, device="meta"),
    "words in a frame": lambda: pytest.importorskip("pandas").DataFrame({"a": ["x"] * N, "b": range(N)}),
    "categories": lambda: pytest.importorskip("pandas").Series(["a"] * N, dtype="category"),
}


@pytest.mark.parametrize("kept", NO_COLUMNS)
@pytest.mark.parametrize("name", ["labels", "samples"])
def test_what_cannot_be_read_as_rows_of_numbers_is_no_column(kept: str, name: str) -> None:
    dataset = Shows(**{name: NO_COLUMNS[kept]()})
    assert DatasetLabels(None, dataset).column is None
    assert DatasetLabels(None, Subset(dataset, [2, 0])).others == []


def scipy_matrix(kind: str) -> Any:
    return getattr(pytest.importorskip("scipy.sparse"), kind)(Y.numpy())


COLUMNS: dict[str, Any] = {
    "csr": lambda: scipy_matrix("csr_matrix"),
    "coo": lambda: scipy_matrix("coo_array"),
    "lil": lambda: scipy_matrix("lil_matrix"),
    "torch coo": Y.to_sparse,
    "torch csr": Y.to_sparse_csr,
    "a list of tensors": lambda: list(Y),
    "a list of arrays": lambda: list(Y.numpy()),
    "a tuple of tuples": lambda: tuple(map(tuple, Y.tolist())),
    "a frame": lambda: pytest.importorskip("pandas").DataFrame(Y.numpy()),
    "half precision": Y.bfloat16,
    "with a gradient": lambda: Y.clone().requires_grad_(),
}


@pytest.mark.parametrize("kept", COLUMNS)
def test_labels_are_read_from_what_holds_them_in_memory(kept: str) -> None:
    for dataset, rows in (
        (Shows(labels=COLUMNS[kept]()), Y),
        (Subset(Shows(tags=COLUMNS[kept]()), [-1, 2]), Y[[-1, 2]]),
    ):
        assert torch.equal(DatasetLabels(None, dataset).matrix("Balance"), rows)


def test_a_property_that_raises_is_no_column() -> None:
    class Closed(Shows):
        @property
        def labels(self) -> Any:
            raise OSError("closed")

    assert shown(Closed(tags=Y)) == [("tags", (3,))]


def class_lists(lists: list[list[int]], classes: int) -> Any:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"labels": datasets.Sequence(datasets.ClassLabel(num_classes=classes))})
    return datasets.Dataset.from_dict({"labels": lists}, features=features)


def test_lists_of_classes_in_a_table_are_rows_of_labels() -> None:
    ragged = class_lists([[0, 2], [], [1]], 3)
    assert DatasetLabels(None, ragged).matrix("Balance").tolist() == [[1, 0, 1], [0, 0, 0], [0, 1, 0]]
    assert DatasetLabels(None, Subset(ragged, [2, 0])).matrix("Balance").tolist() == [[0, 1, 0], [1, 0, 1]]
    assert DatasetLabels(None, class_lists([[2], [0]], 3)).matrix("Balance").tolist() == [[0, 0, 1], [1, 0, 0]]
    yes_and_no = class_lists([[1, 0, 1], [0, 0, 1]], 2)
    assert DatasetLabels(None, yes_and_no).matrix("Balance").tolist() == [[1, 0, 1], [0, 0, 1]]
    datasets = pytest.importorskip("datasets")
    for lists in ([[1], [1, 2]], [[1, 0], None]):
        assert shown(datasets.Dataset.from_dict({"labels": lists})) == []
