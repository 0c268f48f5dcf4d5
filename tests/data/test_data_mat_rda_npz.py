from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zipfile

import numpy as np
import pandas as pd
import pytest
import rdata
import scipy.io
import scipy.sparse
from data_test_files import PUBLISHED, dense, needs_published

from lightning_ubs.data import DataError, MultiLabelData, read_dataset
from lightning_ubs.data.readers.budget import Budget
from lightning_ubs.data.readers.mat import read_matrices
from lightning_ubs.data.readers.npz import write_npz

RNG = np.random.default_rng(0)
X = np.round(RNG.normal(size=(9, 4)), 3).astype(np.float32)
Y = (RNG.random((9, 3)) < 0.4).astype(np.uint8)


def refused(path, match, **options):
    with pytest.raises(DataError, match=match) as caught:
        read_dataset(path, **options)
    told = str(caught.value)
    assert "\n" not in told
    assert path.name in told
    assert caught.value.__cause__ is None


# MATLAB


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("features", [X, X.T, scipy.sparse.csc_matrix(X), X.astype(np.float64)])
@pytest.mark.parametrize("labels", [Y, Y.T, scipy.sparse.csc_matrix(Y.T.astype(float))])
def test_mat_is_read_in_either_orientation(tmp_path, features, labels, signed, compressed):
    if signed:
        labels = 2.0 * dense(labels) - 1
    content = {"name": "a set", "data": features, "target": labels, "other": np.array([{"a": 1}], dtype=object)}
    scipy.io.savemat(tmp_path / "s.mat", content, do_compression=compressed)
    data = read_dataset(tmp_path / "s.mat")
    assert scipy.sparse.issparse(data.X) == scipy.sparse.issparse(features)
    assert data.X.dtype == np.float32
    np.testing.assert_array_equal(dense(data.X), X)
    np.testing.assert_array_equal(data.Y, Y)
    assert (len(data.label_names), len(data.feature_names)) == (3, 4)


def test_mat_shapes_that_fit_twice_give_the_reading_with_more_samples(tmp_path):
    wide = np.arange(20, dtype=np.float32).reshape(2, 10)
    scipy.io.savemat(tmp_path / "s.mat", {"data": wide, "target": (wide > 5).astype(float)})
    data = read_dataset(tmp_path / "s.mat")
    np.testing.assert_array_equal(data.X, wide.T)
    np.testing.assert_array_equal(data.Y, wide.T > 5)


def test_mat_reader_equals_scipy_for_every_number_type():
    kinds = ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f4", "f8", "b1"]
    content = {f"v_{kind}": (10 * X).astype(kind) for kind in kinds} | {"s": scipy.sparse.csc_matrix(X)}
    stream = io.BytesIO()
    scipy.io.savemat(stream, content)
    ours, theirs = read_matrices(stream.getvalue(), Budget("s.mat", 10**6)), scipy.io.loadmat(stream)
    assert ours.keys() == content.keys()
    for name, value in ours.items():
        np.testing.assert_array_equal(dense(value), dense(theirs[name]))


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ({"data": X}, "'data' and 'target' are needed"),
        ({"data": X, "target": Y[:5]}, "do not say which side"),
        ({"data": X, "target": np.eye(9)}, "do not say which side"),
        ({"data": X, "target": Y * 2.5}, "found the value 2.5"),
        ({"data": np.where(X > 0, np.nan, X), "target": Y}, "finite"),
        ({"data": "text", "target": Y}, "are needed"),
        ({"data": X + 1j, "target": Y}, "are needed"),
    ],
)
def test_mat_that_does_not_fit_is_refused(tmp_path, content, match):
    scipy.io.savemat(tmp_path / "s.mat", content)
    refused(tmp_path / "s.mat", match)


def test_truncated_mat_is_refused_at_any_length(tmp_path):
    scipy.io.savemat(tmp_path / "whole.mat", {"data": X, "target": Y})
    whole = (tmp_path / "whole.mat").read_bytes()
    for size in range(130, len(whole), 7):
        (tmp_path / "cut.mat").write_bytes(whole[:size])
        refused(tmp_path / "cut.mat", "too early|are needed|contradicts|lacks")


def test_matlab_73_says_how_to_save_again(tmp_path):
    (tmp_path / "s.mat").write_bytes(b"MATLAB 7.3 MAT-file" + bytes(600))
    refused(tmp_path / "s.mat", "-v7")


# R


def mldr(features=X, labels=Y, index=None, **columns):
    names = [f"f{j}" for j in range(features.shape[1])] + [f"l{j}" for j in range(labels.shape[1])]
    frame = pd.DataFrame(np.hstack([features.astype(float), labels.astype(float)]), columns=names)
    frame = frame.assign(**columns)
    index = [features.shape[1] + 1 + j for j in range(labels.shape[1])] if index is None else index
    return {"name": "set", "dataset": frame, "labels": pd.DataFrame({"index": index, "count": 1.0})}


@pytest.mark.parametrize("compress", [bytes, gzip.compress, bz2.compress, lzma.compress])
def test_rda_is_read_as_the_labels_frame_says(tmp_path, compress):
    extra = {".labelcount": Y.sum(1).astype(float), ".SCUMBLE": 0.5}
    rdata.write_rda(tmp_path / "s.rda", {"unrelated": 3.0, "set": mldr(**extra)}, compression=None)
    raw = (tmp_path / "s.rda").read_bytes()
    assert raw.startswith(b"RDX")
    (tmp_path / "s.rda").write_bytes(compress(raw))
    data = read_dataset(tmp_path / "s.rda")
    np.testing.assert_array_equal(data.X, X)
    np.testing.assert_array_equal(data.Y, Y)
    assert data.label_names == ["l0", "l1", "l2"]
    assert data.feature_names == ["f0", "f1", "f2", "f3"]


def test_rda_with_mostly_zeros_becomes_sparse(tmp_path):
    features = np.where(X > 1, X, 0)
    rdata.write_rda(tmp_path / "s.rda", {"set": mldr(features)})
    data = read_dataset(tmp_path / "s.rda")
    assert scipy.sparse.issparse(data.X)
    np.testing.assert_array_equal(data.X.toarray(), features)


def test_rda_factor_is_coded_by_level(tmp_path):
    color = pd.Categorical(
        ["red", "blue", "red", "green", "blue", "red", "red", "red", "red"], ["red", "green", "blue"]
    )
    bit = pd.Categorical([str(value) for value in Y[:, 0]], ["1", "0"])
    rdata.write_rda(tmp_path / "s.rda", {"set": mldr(X, Y[:, :1], index=[7], color=color, bit=bit)})
    data = read_dataset(tmp_path / "s.rda")
    assert data.feature_names[-1] == "color"
    np.testing.assert_array_equal(data.X[:, -1], [0, 2, 0, 1, 2, 0, 0, 0, 0])
    np.testing.assert_array_equal(data.Y[:, 0], Y[:, 0])


@pytest.mark.parametrize(
    ("variables", "match"),
    [
        ({"x": 1.0}, "no mldr object"),
        ({"set": mldr(index=[5, 6, 8])}, "does not fit"),
        ({"set": mldr(index=[5, 6, 6])}, "does not fit"),
        ({"set": mldr(index=[1, 6, 7])}, "labels must be 0 or 1"),
        ({"set": mldr(words=pd.Series(["a"] * 9, dtype=object))}, "holds no numbers"),
        ({"set": mldr(np.where(X > 1, np.nan, X))}, "finite"),
    ],
)
def test_rda_that_does_not_fit_is_refused(tmp_path, variables, match):
    rdata.write_rda(tmp_path / "s.rda", variables)
    refused(tmp_path / "s.rda", match)


def test_truncated_rda_is_refused_at_any_length(tmp_path):
    rdata.write_rda(tmp_path / "s.rda", {"set": mldr()}, compression=None)
    whole = (tmp_path / "s.rda").read_bytes()
    for size in range(0, len(whole), 13):
        (tmp_path / "cut.rda").write_bytes(whole[:size])
        refused(tmp_path / "cut.rda", "cut.rda")


@needs_published
@pytest.mark.filterwarnings("ignore:Missing constructor")
def test_published_rda_equals_the_rdata_package():
    path = PUBLISHED / "original" / "mldr_rda" / "langlog.rda"
    frame = rdata.read_rda(path)["langlog"]["dataset"]
    data = read_dataset(path, cache=False)
    np.testing.assert_array_equal(data.X.toarray(), frame[data.feature_names].to_numpy(np.float32))
    np.testing.assert_array_equal(data.Y, frame[data.label_names].to_numpy())


# NPZ

MEMBERS = {"X": X, "Y": Y, "label_names": np.array(["a", "b", "c"]), "feature_names": np.array(list("wxyz"))}
SPARSE = scipy.sparse.csr_matrix(np.where(X > 0, X, 0))
PARTS = {"X_data": SPARSE.data, "X_indices": SPARSE.indices, "X_indptr": SPARSE.indptr, "X_shape": np.array([9, 4])}


@pytest.mark.parametrize("sparse", [False, True])
def test_npz_comes_back_as_it_was_written(tmp_path, sparse):
    data = MultiLabelData(SPARSE if sparse else X, Y, ["a", "b", "ü"], list("wxyz"))
    write_npz(tmp_path / "s.npz", data)
    back = read_dataset(tmp_path / "s.npz")
    assert scipy.sparse.issparse(back.X) == sparse
    np.testing.assert_array_equal(dense(back.X), dense(data.X))
    np.testing.assert_array_equal(back.Y, Y)
    assert back[2:] == data[2:]
    assert [path.name for path in tmp_path.iterdir()] == ["s.npz"]


def test_npz_ignores_further_members(tmp_path):
    np.savez(tmp_path / "s.npz", **MEMBERS, top_idx=np.arange(2), n_train=5, note=np.array([{"a": 1}], dtype=object))
    np.testing.assert_array_equal(read_dataset(tmp_path / "s.npz").X, X)


class Bomb:
    def __reduce__(self):
        return exec, ("raise SystemExit('a pickle was executed')",)


BROKEN = {
    "pickle": (MEMBERS | {"label_names": np.array([Bomb()] * 3)}, "holds pickled objects, which are never loaded"),
    "no Y": ({"X": X}, "lacks Y;"),
    "no X": ({name: MEMBERS[name] for name in ("Y", "label_names", "feature_names")}, "lacks X"),
    "rows": (MEMBERS | {"Y": Y[:5]}, "X is 9 x 4, Y is 5 x 3"),
    "names": (
        MEMBERS | {"feature_names": np.array(["a"])},
        "feature_names must be a vector of 4",
    ),
    "values": (MEMBERS | {"Y": Y + 1}, "labels must be 0 or 1"),
    "text": (MEMBERS | {"X": X.astype(str)}, "numeric matrix"),
    "nan": (MEMBERS | {"X": np.full_like(X, np.nan)}, "finite"),
    "byte names": (MEMBERS | {"label_names": np.array([b"a", b"b", b"c"])}, "vector of 3 strings"),
    "csr range": (MEMBERS | PARTS | {"X_indices": SPARSE.indices + 4}, "contradict"),
    "csr ends": (MEMBERS | PARTS | {"X_indptr": SPARSE.indptr[::-1].copy()}, "contradict"),
    "csr size": (MEMBERS | PARTS | {"X_shape": np.array([2**62, 4])}, "contradict"),
    "csr kind": (MEMBERS | PARTS | {"X_indices": SPARSE.indices.astype(float)}, "whole numbers"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_npz_that_does_not_fit_is_refused(tmp_path, case):
    members, match = BROKEN[case]
    np.savez(tmp_path / "s.npz", **members)
    refused(tmp_path / "s.npz", match)


def test_truncated_npz_is_refused(tmp_path):
    write_npz(tmp_path / "s.npz", MultiLabelData(X, Y, list("abc"), list("wxyz")))
    whole = (tmp_path / "s.npz").read_bytes()
    for size in (0, 3, 50, len(whole) // 2, len(whole) - 1):
        (tmp_path / "cut.npz").write_bytes(whole[:size])
        refused(tmp_path / "cut.npz", "cut.npz")


def test_labels_argument_is_refused_where_the_file_names_its_labels(tmp_path):
    np.savez(tmp_path / "s.npz", **MEMBERS)
    refused(tmp_path / "s.npz", "is for ARFF", labels=3)


def test_unknown_format_is_refused(tmp_path):
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\r\n" + bytes(100))
    refused(tmp_path / "picture.png", "this is not an ARFF")


def test_npz_that_claims_a_trillion_empty_names_is_refused_at_once(tmp_path):
    header = b"{'descr': '<U0', 'fortran_order': False, 'shape': (1000000000000,), }"
    hostile = b"\x93NUMPY\x01\x00" + (len(header) + 1).to_bytes(2, "little") + header + b"\n"
    np.savez(tmp_path / "s.npz", **{name: value for name, value in MEMBERS.items() if name != "label_names"})
    with zipfile.ZipFile(tmp_path / "s.npz", "a") as archive:
        archive.writestr("label_names.npy", hostile)
    refused(tmp_path / "s.npz", "label_names must be a vector of 3 strings|cannot be read")
