from __future__ import annotations

import subprocess
import sys

import lightning as L
import numpy as np
import pytest
import scipy.sparse
import torch
from data_test_files import DENSE, PUBLISHED, dense, needs_published, write
from sklearn.preprocessing import MinMaxScaler
from torch.utils.data import DataLoader, Subset

from lightning_ubs.data import DataError, MultiLabelDataModule, make_synthetic
from lightning_ubs.data.preparation import MinMax

RNG = np.random.default_rng(0)
SPARSE = scipy.sparse.random(200, 30, 0.1, format="csr", dtype=np.float32, random_state=0)
LABELS = (RNG.random((200, 4)) < 0.3).astype(np.uint8)


def ready(*arguments, **options):
    data = MultiLabelDataModule(*arguments, **options)
    data.prepare_data()
    data.setup()
    return data


def gathered(loader):
    return tuple(torch.cat(parts) for parts in zip(*loader, strict=True))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("features", [SPARSE.toarray(), SPARSE])
def test_batches_hold_the_scaled_rows_in_the_order_of_the_indices(features, workers):
    data = ready(arrays=(features, LABELS), batch_size=16, num_workers=workers)
    reference = MinMaxScaler().fit(SPARSE.toarray()[data.train_indices])
    for loader, rows in ((data.val_dataloader(), data.val_indices), (data.test_dataloader(), data.test_indices)):
        x, y = gathered(loader)
        assert x.dtype == y.dtype == torch.float32
        np.testing.assert_allclose(x, reference.transform(SPARSE.toarray()[rows]), atol=1e-6)
        np.testing.assert_array_equal(y, LABELS[rows])
    sizes = [len(x) for x, _ in data.train_dataloader()]
    assert sum(sizes) == len(data.train_indices)
    assert max(sizes) == 16
    x, y = gathered(data.train_dataloader())
    assert (x.min(), x.max()) == (0, 1)
    assert (y.sum(0).numpy() == LABELS[data.train_indices].sum(0)).all()


def test_training_order_is_shuffled_and_reproducible_without_the_global_generator():
    first, second = ready("synthetic"), ready("synthetic")
    torch.manual_seed(1)
    x, _ = gathered(first.train_dataloader())
    torch.manual_seed(2)
    again, _ = gathered(second.train_dataloader())
    torch.testing.assert_close(x, again, rtol=0, atol=0)
    assert not torch.equal(x, first.train_dataset.features)


def test_train_dataset_exposes_features_and_labels_row_by_row():
    data = ready("synthetic")
    part = data.train_dataset
    assert part.labels.shape == (len(data.train_indices), 8)
    assert part.labels.dtype == torch.float32
    assert part.features.shape == (len(data.train_indices), 20)
    x, y = part[5]
    assert torch.equal(x, part.features[5])
    assert torch.equal(y, part.labels[5])
    assert torch.equal(part[-1][0], part.features[-1])
    with pytest.raises(IndexError):
        part[len(part)]


@pytest.mark.parametrize("features", [SPARSE.toarray(), SPARSE])
def test_the_dataset_also_works_with_a_plain_loader_and_through_a_subset(features):
    part = ready(arrays=(features, LABELS)).train_dataset
    expected = torch.from_numpy(dense(part.features))
    x, y = next(iter(DataLoader(part, batch_size=7)))
    assert torch.equal(x, expected[:7])
    assert torch.equal(y, part.labels[:7])
    x, _ = next(iter(DataLoader(Subset(part, [9, 3, 5]), batch_size=3)))
    assert torch.equal(x, expected[[9, 3, 5]])


def test_sparse_features_stay_sparse_in_the_dataset():
    part = ready(arrays=(SPARSE, LABELS)).train_dataset
    assert scipy.sparse.issparse(part.features)
    assert part.features.dtype == np.float32


def test_folds_partition_the_data_and_depend_on_the_seed_only():
    parts = [ready("synthetic", fold=fold) for fold in range(5)]
    held_out = np.concatenate([np.concatenate([part.val_indices, part.test_indices]) for part in parts])
    assert sorted(held_out) == list(range(1000))
    again, other = ready("synthetic", fold=2), ready("synthetic", fold=2, seed=7)
    np.testing.assert_array_equal(parts[2].train_indices, again.train_indices)
    np.testing.assert_array_equal(parts[2].val_indices, again.val_indices)
    assert set(parts[2].test_indices) != set(other.test_indices)


def test_label_with_fewer_positives_than_folds_does_not_crash():
    labels = LABELS.copy()
    labels[:, 0] = 0
    labels[3, 1], labels[:, 1] = 1, labels[:, 1] * 0
    labels[7, 1] = 1
    for fold in range(5):
        assert ready(arrays=(SPARSE, labels), fold=fold).num_labels == 4


def test_rare_labels_can_be_left_out():
    labels = LABELS.copy()
    labels[:, 2] = 0
    labels[:9, 2] = 1
    assert ready(arrays=(SPARSE, labels), min_label_positives=9).label_names == [f"label_{j}" for j in range(4)]
    assert ready(arrays=(SPARSE, labels), min_label_positives=10).label_names == ["label_0", "label_1", "label_3"]
    with pytest.raises(DataError, match="leaves no label"):
        ready(arrays=(SPARSE, labels), min_label_positives=201)


def test_scaling_can_be_fitted_on_all_rows():
    features = make_synthetic().X
    data = ready("synthetic", fit_on="all")
    expected = MinMaxScaler().fit_transform(features)
    np.testing.assert_allclose(data.test_dataset.features, expected[data.test_indices], atol=1e-5)
    train = ready("synthetic")
    outside = (train.test_dataset.features < 0) | (train.test_dataset.features > 1)
    assert outside.any(), "validation and test rows are not part of the fit"


def test_scaling_equals_scikit_learn_with_constant_and_shifted_columns():
    values = np.float32(RNG.normal(size=(40, 5)))
    values[:, 1], values[:, 2], values[:, 3] = 3, 0, np.abs(values[:, 3]) + 1
    values[values[:, 0] < 0, 0] = 0
    fitted, others = values[:30], values[30:]
    others[0, 1] = 9
    expected = MinMaxScaler().fit(fitted).transform(others)
    expected[:, 1:3] = 0
    for form in (np.asarray, scipy.sparse.csr_matrix):
        scaled = MinMax.fit(form(fitted)).apply(form(others))
        assert scipy.sparse.issparse(scaled) == (form is not np.asarray)
        np.testing.assert_allclose(dense(scaled), expected, atol=1e-6)
        assert dense(MinMax.fit(form(fitted)).apply(form(fitted))).max() == 1.0


def test_a_file_is_a_source_too(tmp_path):
    rows = "".join(f"{j}.5,red,{j % 2},{(j + 1) % 2},{j % 3 // 2}\n" for j in range(60))
    path = write(tmp_path / "s.arff", DENSE.partition("0.5,red")[0] + rows)
    data = ready(path=path, folds=3)
    assert (data.num_features, data.num_labels) == (2, 3)
    assert data.label_names == ["a", "b", "c d"]
    assert ready(path=str(path), labels=-1).label_names == ["c d"]


def test_tensors_and_lists_are_arrays_too():
    x, y = torch.rand(50, 3), (torch.rand(50, 2) < 0.5).float()
    assert ready(arrays=(x, y)).num_features == 3
    assert ready(arrays=(x.tolist(), y.int().tolist())).num_labels == 2


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({}, "exactly one"),
        ({"name": "digits", "arrays": (SPARSE, LABELS)}, "exactly one"),
        ({"name": "digits", "path": "x.arff"}, r"path='x.arff' does not go with name='digits'.*data=file"),
        ({"name": "digits", "labels": 3}, r"labels=3 .* but digits has labels already; leave it out, or .* path=FILE"),
        ({"name": "didgits"}, "did you mean digits"),
        ({"name": "digits", "fold": 5}, "fold=5"),
        ({"name": "digits", "folds": 1}, "folds=1"),
        ({"name": "digits", "batch_size": 0}, "batch_size=0"),
        ({"name": "digits", "fit_on": "test"}, "fit_on='test'"),
        ({"name": "digits", "view": "half"}, "view='half'"),
        ({"name": "digits", "seed": -1}, "seed=-1"),
    ],
)
def test_wrong_arguments_are_refused_by_the_constructor(options, match):
    with pytest.raises(ValueError, match=match):
        MultiLabelDataModule(**options)


@pytest.mark.parametrize(
    ("arrays", "match"),
    [
        ((SPARSE, LABELS[:5]), "Y is 5 x 4"),
        ((SPARSE, LABELS * 2), "labels must be 0 or 1"),
        ((np.zeros(200), LABELS), "matrix"),
        ((np.full((200, 2), np.nan), LABELS), "finite"),
        ((SPARSE, LABELS[:, :0]), "0 labels"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(arrays, match):
    with pytest.raises(DataError, match=match):
        ready(arrays=arrays)


def test_asking_before_setup_says_what_to_do():
    with pytest.raises(RuntimeError, match=r"call setup\(\) first"):
        _ = MultiLabelDataModule("digits").num_labels


class Linear(L.LightningModule):
    def __init__(self, d, q):
        super().__init__()
        self.layer = torch.nn.Linear(d, q)

    def training_step(self, batch, _):
        return torch.nn.functional.binary_cross_entropy_with_logits(self.layer(batch[0]), batch[1])

    def validation_step(self, batch, _):
        self.log("loss", self.training_step(batch, 0))

    test_step = validation_step

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.05)


@pytest.mark.parametrize("features", [SPARSE.toarray(), SPARSE])
def test_a_trainer_fits_and_tests_with_it(tmp_path, features):
    data = MultiLabelDataModule(arrays=(features, LABELS))
    trainer = L.Trainer(
        max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=tmp_path,
    )  # fmt: skip
    trainer.fit(Linear(30, 4), datamodule=data)
    assert trainer.test(Linear(30, 4), datamodule=data, verbose=False)[0]["loss"] > 0


def test_digits_need_no_package_beyond_scikit_learn():
    code = """
import sys
absent = ["arff", "rdata", "pandas", "pyarrow", "requests", "iterstrat", "jinja2", "scikit_posthocs", "hydra"]
sys.modules.update(dict.fromkeys(absent))
from lightning_ubs.data import MultiLabelDataModule
from lightning_ubs.data.commands import list_datasets, show_dataset
data = MultiLabelDataModule("digits")
data.prepare_data(); data.setup()
x, y = next(iter(data.train_dataloader()))
assert x.shape == (128, 64) and y.shape == (128, 10)
assert "digits" in list_datasets() and "sha256" in show_dataset("yeast")
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@needs_published
def test_yahoo_never_becomes_dense():
    data = ready("yahoo-Arts", data_dir=PUBLISHED)
    part = data.train_dataset
    assert scipy.sparse.issparse(part.features)
    assert part.features.shape == (len(data.train_indices), 2314)
    x, y = next(iter(data.train_dataloader()))
    assert x.shape == (128, 2314)
    assert y.shape == (128, 25)
    assert (x.min() >= 0) & (x.max() <= 1)
    full = ready("yahoo-Arts", data_dir=PUBLISHED, view="full")
    assert scipy.sparse.issparse(full.train_dataset.features)
    assert (full.num_features, full.num_labels) == (23146, 26)


@needs_published
@pytest.mark.parametrize("name", ["yeast", "enron"])
def test_published_data_is_split_and_scaled(name):
    data = ready(name, data_dir=PUBLISHED, fold=3)
    everything = np.concatenate([data.train_indices, data.val_indices, data.test_indices])
    assert sorted(everything) == list(range(len(everything)))
    assert dense(data.train_dataset.features).max() == 1
    assert dense(data.train_dataset.features).min() == 0
