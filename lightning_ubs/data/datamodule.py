"""A LightningDataModule over any catalog entry, any file, or arrays, and the dataset that it hands out.

The dataset gives whole batches, and makes sparse features dense only there.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, overload

import numpy as np
import numpy.typing as npt
import torch
from lightning import LightningDataModule
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate
from typing_extensions import override

from lightning_ubs.data import catalog
from lightning_ubs.data.folds import Rows, split
from lightning_ubs.data.preparation import MinMax
from lightning_ubs.data.readers import LabelSpec, read_dataset
from lightning_ubs.data.types import Features, MultiLabelData, binary_labels, checked, is_sparse, numbered
from lightning_ubs.errors import DataError

Sample: TypeAlias = tuple[Tensor, Tensor]


class ReadyBatch(Sequence[Sample]):
    """The samples of one batch, already stacked: ``x`` (b, d) and ``y`` (b, q).

    It is also a sequence of samples, so that a plain ``DataLoader`` without :func:`collate` still works.
    """

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        """Return the batch size b."""
        return len(self.x)

    @overload
    def __getitem__(self, index: int) -> Sample: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Sample]: ...
    def __getitem__(self, index: int | slice) -> Sample | Sequence[Sample]:
        """Return one sample (d,), (q,), or a part of the batch."""
        if isinstance(index, slice):
            return ReadyBatch(self.x[index], self.y[index])
        return self.x[index], self.y[index]


def collate(samples: Sequence[Any]) -> Any:
    """Return a ready batch as it is; stack anything else as PyTorch does."""
    if isinstance(samples, ReadyBatch):
        return samples.x, samples.y
    return default_collate(list(samples))


class MultiLabelDataset(Dataset[Sample]):
    """Features and labels; sample i is ``(x, y)``, float32 of shapes (d,) and (q,).

    Attributes:
        features: X (n, d), a float32 tensor, or a CSR matrix that becomes dense one batch at a time.
        labels: Y (n, q), a float32 tensor.
    """

    def __init__(self, features: Features, labels: npt.NDArray[np.uint8]) -> None:
        self.features = features if is_sparse(features) else torch.from_numpy(features)
        self.labels = torch.from_numpy(labels).float()

    def __len__(self) -> int:
        """Return the number of samples n."""
        return len(self.labels)

    def __getitem__(self, index: int) -> Sample:
        """Return one sample."""
        if not -len(self) <= index < len(self):
            raise IndexError(f"sample {index} is out of range for {len(self)} samples")
        index %= len(self)
        x, y = self._rows([index])
        return x[0], y[0]

    def __getitems__(self, indices: Sequence[int]) -> ReadyBatch:
        """Return one batch at once; PyTorch's loader asks for it."""
        return ReadyBatch(*self._rows(indices))

    def _rows(self, indices: Sequence[int]) -> Sample:
        ids = torch.as_tensor(indices, dtype=torch.int64)
        if isinstance(self.features, Tensor):
            return self.features[ids], self.labels[ids]
        return torch.from_numpy(self.features[ids.numpy()].toarray()), self.labels[ids]


class MultiLabelDataModule(LightningDataModule):
    """One fold of a multi-label dataset, as the paper uses it: 80 % training, 10 % validation, 10 % test.

    The folds come from iterative stratification; half of the held-out fold (at random) validates, half tests.
    Features are min-max scaled; the fit uses the training part, so validation and test values may leave [0, 1].
    Batches are ``(x, y)``, float32 of shapes (b, d) and (b, q). Sparse features stay sparse until a batch is made.

    Give exactly one of ``name``, ``path`` and ``arrays``.

    Args:
        name: A dataset of the catalog, such as ``"yeast"`` or ``"digits"``.
        path: A file that :func:`lightning_ubs.data.read_dataset` reads.
        arrays: ``(X, Y)``; X (n, d) is an array or a SciPy sparse matrix, Y (n, q) holds 0 and 1.
        labels: For ``path``: which columns are labels, see :func:`lightning_ubs.data.read_dataset`.
        max_bytes: What a file may unpack to, see :func:`lightning_ubs.data.read_dataset`.
        data_dir: For ``name``: where its files are or go, see :func:`lightning_ubs.data.load`.
        view: For ``name``: ``"paper"`` (the paper's selection of features and labels) or ``"full"``.
        fold: Which fold is held out, from 0.
        folds: Number of folds.
        seed: Of the folds, of the validation half, and of the training order.
        batch_size: Samples per batch.
        num_workers: Loader processes; 0 loads in the main one.
        fit_on: ``"train"``, or ``"all"`` to fit the scaling on all rows, as the paper's released code does.
        min_label_positives: Labels with fewer positives in the whole data are left out; 0 keeps all.

    >>> data = MultiLabelDataModule("synthetic", fold=1)
    >>> data.setup()
    >>> data.num_features, data.num_labels, len(data.train_indices), len(data.val_indices)
    (20, 8, 800, 100)
    """

    def __init__(
        self,
        name: str | None = None,
        *,
        path: str | Path | None = None,
        arrays: tuple[Any, Any] | None = None,
        labels: LabelSpec = None,
        max_bytes: int | None = None,
        data_dir: str | Path | None = None,
        view: Literal["paper", "full"] = "paper",
        fold: int = 0,
        folds: int = 5,
        seed: int = 42,
        batch_size: int = 128,
        num_workers: int = 0,
        fit_on: Literal["train", "all"] = "train",
        min_label_positives: int = 0,
    ) -> None:
        super().__init__()
        _check_source(name, path, arrays)
        if labels is not None and path is None:
            raise ValueError(
                f"labels={labels!r} says which columns of a file are labels, but {name or 'a matrix Y'} has labels "
                "already; leave it out, or give a file of your own with path=FILE (on the command line: data=file "
                "data.path=FILE)."
            )
        if fit_on not in ("train", "all"):
            raise ValueError(f"fit_on={fit_on!r} must be 'train' or 'all'; the default is 'train'.")
        if view not in ("paper", "full"):
            raise ValueError(f"view={view!r} must be 'paper' or 'full'; the default is 'paper'.")
        if folds < 2 or not 0 <= fold < folds:
            raise ValueError(f"fold={fold} of folds={folds}: folds must be at least 2 and fold from 0 to folds - 1.")
        for argument, value, least, default in (
            ("batch_size", batch_size, 1, 128),
            ("num_workers", num_workers, 0, 0),
            ("min_label_positives", min_label_positives, 0, 0),
            ("seed", seed, 0, 42),
        ):
            if value < least:
                raise ValueError(f"{argument}={value} must be at least {least}; the default is {default}.")
        if name is not None:
            catalog.entry(name)
        self.name = name
        self.path, self.arrays, self.labels, self.max_bytes = path, arrays, labels, max_bytes
        self.data_dir, self.view = data_dir, view
        self.fold, self.folds, self.seed = fold, folds, seed
        self.batch_size, self.num_workers = batch_size, num_workers
        self.fit_on, self.min_label_positives = fit_on, min_label_positives
        self._state: _Fold | None = None

    @override
    def prepare_data(self) -> None:
        """Download what is missing."""
        if self.name is not None:
            catalog.fetch(self.name, self.data_dir)

    @override
    def setup(self, stage: str | None = None) -> None:
        """Load, split and scale; a second call does nothing."""
        if self._state is not None:
            return
        data = self._read()
        if self.min_label_positives:
            data = _with_frequent_labels(data, self.min_label_positives)
        rows = split(data.Y, self.fold, self.folds, self.seed)
        scaling = MinMax.fit(data.X if self.fit_on == "all" else data.X[rows[0]])
        train, val, test = (MultiLabelDataset(scaling.apply(data.X[part]), data.Y[part]) for part in rows)
        self._state = _Fold(rows, (train, val, test), data.label_names, data.feature_names)

    def _read(self) -> MultiLabelData:
        if self.arrays is not None:
            return _from_arrays(*self.arrays)
        if self.path is not None:
            return read_dataset(self.path, self.labels, max_bytes=self.max_bytes)
        return catalog.load(str(self.name), self.data_dir, view=self.view, max_bytes=self.max_bytes)

    def check_file(self) -> None:
        """Raise now, rather than in :meth:`setup`, if ``path`` cannot be read; what was parsed is kept for later."""
        if self.path is not None:
            self._read()

    @property
    def _ready(self) -> _Fold:
        if self._state is None:
            raise RuntimeError("the data is not loaded yet; call setup() first.")
        return self._state

    @property
    def train_dataset(self) -> MultiLabelDataset:
        """The training part, scaled."""
        return self._ready.parts[0]

    @property
    def val_dataset(self) -> MultiLabelDataset:
        """The validation part, scaled."""
        return self._ready.parts[1]

    @property
    def test_dataset(self) -> MultiLabelDataset:
        """The test part, scaled."""
        return self._ready.parts[2]

    @property
    def train_indices(self) -> Rows:
        """Rows of the whole data that train, ascending."""
        return self._ready.rows[0]

    @property
    def val_indices(self) -> Rows:
        """Rows of the whole data that validate, ascending."""
        return self._ready.rows[1]

    @property
    def test_indices(self) -> Rows:
        """Rows of the whole data that test, ascending."""
        return self._ready.rows[2]

    @property
    def num_features(self) -> int:
        """Number of features d."""
        return len(self.feature_names)

    @property
    def num_labels(self) -> int:
        """Number of labels q."""
        return len(self.label_names)

    @property
    def label_names(self) -> list[str]:
        """The names of the labels."""
        return self._ready.label_names

    @property
    def feature_names(self) -> list[str]:
        """The names of the features."""
        return self._ready.feature_names

    @override
    def train_dataloader(self) -> DataLoader[Sample]:
        """Return the training batches, shuffled by a generator of their own; the last one may be short."""
        generator = torch.Generator().manual_seed(self.seed)
        return self._loader(self.train_dataset, shuffle=True, generator=generator)

    @override
    def val_dataloader(self) -> DataLoader[Sample]:
        """Return the validation batches, in the order of ``val_indices``."""
        return self._loader(self.val_dataset)

    @override
    def test_dataloader(self) -> DataLoader[Sample]:
        """Return the test batches, in the order of ``test_indices``."""
        return self._loader(self.test_dataset)

    def _loader(self, dataset: MultiLabelDataset, **options: Any) -> DataLoader[Sample]:
        return DataLoader(
            dataset,
            batch_size=self.batch_size,
            num_workers=self.num_workers,
            collate_fn=collate,
            persistent_workers=self.num_workers > 0,
            **options,
        )


class _Fold(NamedTuple):
    rows: tuple[Rows, Rows, Rows]
    parts: tuple[MultiLabelDataset, MultiLabelDataset, MultiLabelDataset]
    label_names: list[str]
    feature_names: list[str]


def _check_source(name: str | None, path: object, arrays: object) -> None:
    if name is not None and path is not None:
        raise ValueError(
            f"path={str(path)!r} does not go with name={name!r}, which has files of its own; for a file of your own "
            "leave the name out (on the command line: data=file data.path=FILE)."
        )
    if sum(source is not None for source in (name, path, arrays)) != 1:
        raise ValueError("give exactly one of name, path and arrays, for example MultiLabelDataModule('digits').")


def _from_arrays(features: Any, labels: Any) -> MultiLabelData:
    if isinstance(features, torch.Tensor):
        features = features.detach().cpu().numpy()
    if isinstance(labels, torch.Tensor):
        labels = labels.detach().cpu().numpy()
    if isinstance(features, np.ndarray | list | tuple) or not is_sparse(features):
        features = np.ascontiguousarray(features, dtype=np.float32)
    else:
        features = features.tocsr().astype(np.float32)
    if features.ndim != 2:
        raise DataError(f"arrays: X must be a matrix (n, d), got shape {features.shape}; reshape it.")
    target = binary_labels(labels, "arrays")
    names = numbered("label", target.shape[1]), numbered("feature", features.shape[1])
    return checked(MultiLabelData(features, target, *names), "arrays")


def _with_frequent_labels(data: MultiLabelData, least: int) -> MultiLabelData:
    kept = np.flatnonzero(data.Y.sum(axis=0, dtype=np.int64) >= least)
    if kept.size == 0:
        raise DataError(f"min_label_positives={least} leaves no label; choose a smaller number.")
    names = [data.label_names[j] for j in kept]
    return data._replace(Y=np.ascontiguousarray(data.Y[:, kept]), label_names=names)
