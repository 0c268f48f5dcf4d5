"""Whether block order costs accuracy on data that are stored sorted: windows of blocks against an order of all samples.

``python -m benchmarks.locality [--data NAME ...] [--folds 5] [--epochs 20]`` trains the MLP on sets of the catalog
whose training samples are sorted by their first label, the worst case for a small window. Runs are kept in ``results``;
the verdict of each set goes by the rules of ``compare``.
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

import numpy as np
import torch

from lightning_ubs import UBS, BatchSelection, Blocks, compare
from lightning_ubs.data import MultiLabelDataModule
from lightning_ubs.data.datamodule import MultiLabelDataset
from lightning_ubs.models import build_model

BLOCKS = 46
WINDOWS = (1, 4, 16, BLOCKS)


class Sorted(MultiLabelDataModule):
    """A fold whose training samples lie sorted by the first label that they have; those without any come last."""

    def setup(self, stage: str | None = None) -> None:
        """Load, split, scale and sort."""
        if self._state is not None:
            return
        super().setup(stage)
        assert self._state is not None
        train, *others = self._state.parts
        has = train.labels > 0
        first = torch.where(has.any(1), has.int().argmax(1), has.shape[1])
        order = first.argsort(stable=True)
        ordered = MultiLabelDataset(train.features[order.numpy()], train.labels[order].numpy().astype(np.uint8))
        self._state = self._state._replace(parts=(ordered, *others))


def data_of(kind: type[Sorted], name: str, fold: int) -> Sorted:
    """One fold of a set."""
    return kind(name, fold=fold)


def module_of(datamodule: Any) -> Any:
    """The MLP of the other comparisons."""
    return build_model("mlp", datamodule.num_features, datamodule.num_labels, lr=3e-3)


def selections(size: int) -> dict[str, BatchSelection]:
    """UBS in an order of all samples, and in block order."""
    found = {"UBS": BatchSelection(UBS())}
    for window in WINDOWS:
        name = "all blocks" if window == BLOCKS else f"{window} of {BLOCKS} blocks"
        found[f"UBS, {name}"] = BatchSelection(UBS(), order=Blocks(size=size, window=window))
    return found


def main() -> None:
    """Train what is missing, and print the verdict of each set."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", nargs="+", default=["yahoo-Arts1", "bibtex", "tmc2007-500"])
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--results", default="results/locality")
    parser.add_argument("--jobs", type=int)
    options = parser.parse_args()
    for name in options.data:
        kind = type(name, (Sorted,), {})  # a record names its data by their class
        data = partial(data_of, kind, name)
        first = data(0)
        first.prepare_data()
        first.setup()
        found = compare(
            module_of,
            data,
            selections(-(-len(first.train_dataset) // BLOCKS)),
            seeds=[0],
            folds=options.folds,
            trainer={"max_epochs": options.epochs, "accelerator": "cpu", "logger": False},
            monitor="val_macro_auc",
            results=options.results,
            jobs=options.jobs,
            engine="sequential",
            trace=False,
        )
        print(f"{name}\n{found}\n", flush=True)


if __name__ == "__main__":
    main()
