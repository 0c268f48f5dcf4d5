"""Every reader on the published files, against the independently made archives, cell by cell."""

from __future__ import annotations

import shutil
import subprocess
import sys

import numpy as np
import pytest
import scipy.sparse
from data_test_files import PUBLISHED, dense, needs_published

from lightning_ubs.data import read_dataset

pytestmark = needs_published

PAIRS = [
    ("yeast/yeast.arff", "yeast", True),
    ("emotions/emotions.arff", "emotions", True),
    ("cal500/cal500.arff", "cal500", True),
    ("enron/enron.arff", "enron", True),
    ("Corel5k/Corel5k-sparse.arff", "Corel5k", True),
    ("mldr_rda/langlog.rda", "langlog", True),
    ("LLOG-F/languagelog.mat", "LLOG-F", False),
]


def archived(name):
    with np.load(PUBLISHED / f"{name}.npz", allow_pickle=False) as archive:
        members = {key: archive[key] for key in archive.files}
    if "X" not in members:
        parts = (members["X_data"], members["X_indices"], members["X_indptr"])
        members["X"] = scipy.sparse.csr_matrix(parts, shape=tuple(members["X_shape"]))
    return members


@pytest.mark.parametrize(("file", "name", "has_names"), PAIRS)
def test_published_file_equals_its_archive(file, name, has_names):
    data, expected = read_dataset(PUBLISHED / "original" / file, cache=False), archived(name)
    np.testing.assert_array_equal(dense(data.X), dense(expected["X"]))
    np.testing.assert_array_equal(data.Y, expected["Y"])
    if has_names:
        assert scipy.sparse.issparse(data.X) == scipy.sparse.issparse(expected["X"])
        assert data.label_names == expected["label_names"].tolist()
        assert data.feature_names == expected["feature_names"].tolist()


@pytest.mark.parametrize(("name", "suffix"), [("scene", ""), ("emotions", ""), ("Corel5k", "-sparse")])
def test_training_and_test_file_together_hold_the_rows_of_the_whole(name, suffix):
    folder = PUBLISHED / "original" / name
    train, test = (read_dataset(folder / f"{name}-{part}{suffix}.arff", cache=False) for part in ("train", "test"))
    expected = archived(name)
    rows = np.vstack([np.hstack([dense(part.X), part.Y]) for part in (train, test)])
    whole = np.hstack([dense(expected["X"]), expected["Y"]])
    if name == "scene":
        np.testing.assert_array_equal(rows, whole)
    assert sorted(map(bytes, rows)) == sorted(map(bytes, whole))


def test_mat_of_the_paper_view_of_rcv1_has_the_archived_labels():
    data = read_dataset(PUBLISHED / "original" / "rcv1_top944_mat" / "rcv1s1.mat", cache=False)
    assert data.X.shape == (6000, 944)
    np.testing.assert_array_equal(data.Y, archived("rcv1subset1")["Y"])


@pytest.mark.parametrize(
    ("file", "shape", "labels"),
    [("Enron.arff.bz2", (1702, 1001), 53), ("Yeast.arff.bz2", (2417, 103), 14), ("Scene.arff.bz2", (2407, 294), 6)],
)
def test_meka_file_holds_the_samples_of_mulan(file, shape, labels):
    data = read_dataset(PUBLISHED / "original" / "meka" / file, cache=False)
    assert data.X.shape == shape
    assert data.Y.shape == (shape[0], labels)
    expected = archived(file.split(".")[0].lower())
    ours, theirs = (np.hstack([dense(part), bits]) for part, bits in ((data.X, data.Y), (expected["X"], expected["Y"])))
    if file.startswith("Yeast"):  # the same samples in another order
        ours, theirs = (np.array(sorted(map(tuple, table))) for table in (ours, theirs))
    np.testing.assert_array_equal(ours, theirs)


def test_yahoo_is_read_without_the_gigabytes_of_zeros_that_r_stores(tmp_path):
    shutil.copy(PUBLISHED / "original" / "mldr_rda" / "yahoo_arts.rda", tmp_path)
    code = (
        "import resource, sys; from lightning_ubs.data import read_dataset;"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss;"
        "read_dataset(sys.argv[1]);"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "yahoo_arts.rda")]
    grown = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    kilobytes = 1024 if sys.platform == "darwin" else 1
    assert grown / kilobytes < 300_000, "R stores 1.4 GB of zeros; they must not be held"
    data, expected = read_dataset(tmp_path / "yahoo_arts.rda"), archived("yahoo-Arts1")
    assert (expected["X"] != data.X).nnz == 0
    np.testing.assert_array_equal(data.Y, expected["Y"])
    assert data.label_names == expected["label_names"].tolist()
    assert data.feature_names == expected["feature_names"].tolist()
