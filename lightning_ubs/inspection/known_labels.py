"""The true labels of the training samples and what they are called, for looking inside a selection."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Subset

from lightning_ubs.errors import SelectionError
from lightning_ubs.reading import Column, DatasetLabels


class KnownLabels:
    """Keeps where the labels can be read, and reads them when they are asked for.

    Of a dataset only its column of labels is kept after the training.

    Args:
        names: what the user calls the labels; None looks for ``label_names`` in the datamodule and in the dataset, then
            for the dataset's ``classes``.

    >>> KnownLabels(["beach", "sunset"]).names(2)
    ['beach', 'sunset']
    """

    def __init__(self, names: Sequence[str] | None = None) -> None:
        if isinstance(names, str) or not (names is None or all(isinstance(name, str) for name in names)):
            raise ValueError(f"label_names={names!r} is no list of names; pass one text per label.")
        self._given = None if names is None else list(names)
        self._found: list[str] = []
        self._column: Column | None = None

    def see(self, labels: DatasetLabels, *places: Any) -> None:
        """A dataset shows its labels; ``places`` may know what they are called."""
        self._column = labels.column
        self._found = next((names for names in map(_names_in, places) if names), [])

    def names(self, num_labels: int) -> list[str] | None:
        """One name per label; None where nobody says."""
        if self._given is not None and len(self._given) != num_labels:
            raise SelectionError(
                f"label_names holds {len(self._given)} names, but there are {num_labels} labels; pass one name per "
                "label."
            )
        return self._given or (self._found if len(self._found) == num_labels else None)

    def position(self, label: str | int, num_labels: int) -> int:
        """Which label is meant by a name or a number."""
        names = self.names(num_labels) or []
        if label in names:
            return names.index(str(label))
        if isinstance(label, int) and 0 <= label < num_labels:
            return label
        known = ", ".join(names[:10]) + (" …" if len(names) > 10 else "")
        raise SelectionError(
            f"label={label!r} is not known; use a number from 0 to {num_labels - 1}"
            + (f", or {known}." if known else ".")
        )

    def matrix(self, num_samples: int, num_labels: int | None = None) -> Tensor | None:
        """The labels (n, q) as uint8 of 0 and 1, on the CPU; None where they are not known, or are no such labels.

        Class indices (n,) become one-hot rows. ``num_labels`` is q, where predictions tell it.
        """
        if self._column is None or self._column.length != num_samples:
            return None
        values = self._column.all()
        if values.ndim == 1 and num_labels != 1 and not values.is_floating_point() and bool((values >= 0).all()):
            classes = num_labels or max(int(values.max()) + 1, len(self._given or self._found))
            return (values.unsqueeze(1) == torch.arange(classes)).to(torch.uint8)
        values = values.unsqueeze(1) if values.ndim == 1 else values
        fits = values.ndim == 2 and num_labels in (None, values.shape[1])
        return values.to(torch.uint8) if fits and bool(((values == 0) | (values == 1)).all()) else None


def _names_in(place: Any) -> list[str]:
    while isinstance(place, Subset):
        place = place.dataset
    for attribute in ("label_names", "classes"):
        names = getattr(place, attribute, None)
        if isinstance(names, Sequence) and not isinstance(names, str) and len(names):
            return [str(name) for name in names]
    return []
