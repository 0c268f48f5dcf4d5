"""Files of the user's own: CSV, svmlight, Parquet and NPZ, by every way in which they are read."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import socket
import sys

import numpy as np
import pytest
import scipy.sparse
from data_test_files import dense, refused
from sklearn.datasets import dump_svmlight_file
from sklearn.preprocessing import MultiLabelBinarizer

from lightning_ubs.cli import main
from lightning_ubs.data import DataError, MultiLabelDataModule, read_dataset

RNG = np.random.default_rng(3)
X = np.round(RNG.normal(size=(40, 3)), 3).astype(np.float32)
Y = (RNG.random((40, 2)) < 0.5).astype(np.uint8)
NAMES = ["size", "label_a", "weight", "label b", "age"]
TABLE = np.column_stack([X[:, 0], Y[:, 0], X[:, 1], Y[:, 1], X[:, 2]])


def csv_text(separator=",", end="\n"):
    lines = [separator.join(NAMES)] + [separator.join(f"{cell:.9g}" for cell in row) for row in TABLE]
    return end.join(lines) + end


def same(data, features=X, labels=Y):
    np.testing.assert_array_equal(dense(data.X), features)
    np.testing.assert_array_equal(data.Y, labels)
    assert data.X.dtype == np.float32
    assert data.Y.dtype == np.uint8


# CSV


@pytest.mark.parametrize("labels", ["label", "label*", ["label b", "label_a"]])
@pytest.mark.parametrize("separator", [",", ";", "\t"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_csv_labels_are_chosen_by_name_or_prefix(tmp_path, labels, separator, end):
    (tmp_path / "s.csv").write_bytes(csv_text(separator, end).encode())
    data = read_dataset(tmp_path / "s.csv", labels=labels)
    same(data)
    assert data.label_names == ["label_a", "label b"]
    assert data.feature_names == ["size", "weight", "age"]


def test_csv_labels_may_be_one_column_a_count_or_an_xml_list(tmp_path):
    path = tmp_path / "s.csv"
    path.write_text("a,l1,l10\n2,0,1\n3,1,0\n")
    assert read_dataset(path, labels="l1").label_names == ["l1"], "a column's own name is not a prefix"
    assert read_dataset(path, labels=-2).label_names == ["l1", "l10"]
    (tmp_path / "l.xml").write_text('<labels><label name="l10"/></labels>')
    assert read_dataset(path, labels=tmp_path / "l.xml").label_names == ["l10"]
    assert read_dataset(path, labels=str(tmp_path / "l.xml")).label_names == ["l10"]


@pytest.mark.parametrize("compress", [bytes, gzip.compress, bz2.compress, lzma.compress])
def test_csv_may_be_compressed_quoted_and_say_true_and_false(tmp_path, compress):
    text = '\ufeff"x, y", "l"\n"1.5", true\n-2,False\n\n3e1,yes\n'
    (tmp_path / "s.csv.gz").write_bytes(compress(text.encode()))
    data = read_dataset(tmp_path / "s.csv.gz", labels=["l"])
    same(data, np.float32([[1.5], [-2], [30]]), np.uint8([[1], [0], [1]]))
    assert data.feature_names == ["x, y"]


BROKEN = {
    "labels unknown": ("x,l\n1,0\n", None, "its labels are not known.*labels=PREFIX"),
    "no such prefix": ("x,l\n1,0\n", "topic", "no column is called 'topic' or begins .* are 'x', 'l'"),
    "no such name": ("x,l\n1,0\n", ["l", "m"], r"\['m'\] are not among them"),
    "no feature left": ("lx,l\n1,0\n", "l*", "no feature is left"),
    "missing cell": ("x,l\n1,0\n,1\n", "l", "line 3, column 'x': the value is missing"),
    "NA": ("x,l\nNA,0\n", "l", "line 2, column 'x': the value is missing"),
    "words": ("x,l\n1,0\nred,1\n", "l", "line 3, column 'x': 'red' is not a number; encode"),
    "short row": ("x,y,l\n1,0\n", "l", "line 2: 2 values for 3 columns"),
    "label not binary": ("x,l\n1,2\n", "l", "label 'l': labels must be 0 or 1"),
    "infinite": ("x,l\n1e99,1\n", "l", "finite"),
    "twice": ("x,x,l\n1,2,0\n", "l", "two columns are called 'x'"),
    "nameless": ("x,,l\n1,2,0\n", "l", "column 2 has no name"),
    "no rows": ("x,l\n", "l", "no row follows"),
    "empty": ("", "l", "no column is called 'l'"),
    "open quote": ('x,l\n"1,0\n', "l", r"line [0-9]: .*correct the line"),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN)
def test_csv_that_does_not_fit_is_refused_with_its_line(tmp_path, case):
    text, labels, match = BROKEN[case]
    (tmp_path / "s.csv").write_text(text)
    assert refused(tmp_path / "s.csv", match, labels=labels).startswith("s.csv")


# svmlight


@pytest.mark.parametrize("zero_based", [True, False])
@pytest.mark.parametrize("name", ["s.svm", "s.libsvm", "s.txt", "s.svm.gz"])
def test_svmlight_is_read_as_scikit_learn_writes_it(tmp_path, zero_based, name):
    features = scipy.sparse.csr_matrix(np.where(X > 0, X, 0) + np.float64([0.25, 0, 0]), dtype=np.float32)
    stream = io.BytesIO()
    dump_svmlight_file(features, Y, stream, zero_based=zero_based, multilabel=True)
    content = stream.getvalue()
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    data = read_dataset(tmp_path / name)
    assert scipy.sparse.issparse(data.X)
    same(data, features.toarray())
    assert data.label_names == ["0", "1"]


def test_svmlight_labels_are_named_by_their_numbers(tmp_path):
    (tmp_path / "s.svm").write_text("# a comment\n7,3 1:0.5 4:2\n 2:1 # no label\n12 1:1\n")
    data = read_dataset(tmp_path / "s.svm")
    assert data.label_names == ["3", "7", "12"]
    np.testing.assert_array_equal(data.Y, MultiLabelBinarizer().fit_transform([(7, 3), (), (12,)]))
    np.testing.assert_array_equal(data.X.toarray(), [[0.5, 0, 0, 2], [0, 1, 0, 0], [1, 0, 0, 0]])


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("1 1:2\n1 x:2\n", "line 2: "),
        ("1 1:2\n1 1:2 3:\n", "line 2: "),
        ("1 1:2\nred 1:2\n", "line 2: "),
        ("1 1:2 \n1 3:1 2:1\n", "line 2: .*sorted"),
        (" 1:2\n 2:1\n", "no line has a label"),
        ("", "no line has a label|0 samples|s.svm"),
    ],
)
def test_svmlight_that_does_not_fit_is_refused_with_its_line(tmp_path, text, match):
    (tmp_path / "s.svm").write_text(text)
    assert refused(tmp_path / "s.svm", match).startswith("s.svm")


# Parquet


@pytest.fixture
def parquet(tmp_path):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    def write(path=tmp_path / "s.parquet", **columns):
        pq.write_table(pa.table(columns), path, row_group_size=16)
        return path

    return write


def test_parquet_is_read_column_by_column(parquet):
    columns = dict(zip(NAMES, TABLE.T, strict=True)) | {"label_a": Y[:, 0].astype(bool), "label b": Y[:, 1]}
    data = read_dataset(parquet(**columns), labels="label")
    same(data)
    assert data.label_names == ["label_a", "label b"]
    assert data.feature_names == ["size", "weight", "age"]


def test_parquet_that_does_not_fit_is_refused(parquet, tmp_path):
    refused(parquet(x=["a", "b"], l=[0, 1]), "column 'x' is of type .*string.*encode", labels="l")
    refused(parquet(x=[1.0, None], l=[0, 1]), "column 'x': a value is missing", labels="l")
    refused(parquet(x=[1.0, 2.0], l=[0, 3]), "label 'l': labels must be 0 or 1", labels="l")
    refused(parquet(x=[1.0, 2.0], l=[0, 1]), "its labels are not known")
    whole = parquet(x=[1.0, 2.0], l=[0, 1]).read_bytes()
    (tmp_path / "cut.parquet").write_bytes(whole[:-20])
    refused(tmp_path / "cut.parquet", "cannot be read", labels="l")


def test_parquet_without_pyarrow_says_what_to_install(tmp_path, monkeypatch):
    (tmp_path / "s.parquet").write_bytes(b"PAR1" + bytes(20))
    for name in ("pyarrow", "pyarrow.parquet"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install .*\[parquet\]'"):
        read_dataset(tmp_path / "s.parquet", labels="l")


# NPZ


@pytest.mark.parametrize("sparse", [False, True])
def test_npz_needs_no_names(tmp_path, sparse):
    matrix = scipy.sparse.csr_matrix(X)
    parts = {"X_data": matrix.data, "X_indices": matrix.indices, "X_indptr": matrix.indptr, "X_shape": matrix.shape}
    np.savez(tmp_path / "s.npz", **(parts if sparse else {"X": X.astype(np.float64)}), Y=Y.astype(bool))
    data = read_dataset(tmp_path / "s.npz")
    same(data)
    assert data.label_names == ["label_0", "label_1"]
    assert data.feature_names == ["feature_0", "feature_1", "feature_2"]


# All of them, by every way


def write_all(folder, parquet):
    (folder / "a.csv").write_text(csv_text())
    parquet(folder / "b.parquet", **dict(zip(NAMES, TABLE.T, strict=True)))
    dump_svmlight_file(X, Y, str(folder / "c.svm"), multilabel=True)
    np.savez(folder / "d.npz", X=X, Y=Y)
    return {"a.csv": "label", "b.parquet": "label", "c.svm": None, "d.npz": None}


def test_convert_and_the_data_module_read_them_all(tmp_path, parquet, capsys):
    for name, labels in write_all(tmp_path, parquet).items():
        options = [f"labels={labels}"] if labels else []
        assert main(["data", "convert", str(tmp_path / name), str(tmp_path / "out.npz"), *options]) == 0
        assert "40 samples, 3 features" in capsys.readouterr().out
        same(read_dataset(tmp_path / "out.npz"))
        module = MultiLabelDataModule(path=tmp_path / name, labels=labels, folds=2)
        module.setup()
        assert (module.num_features, module.num_labels, len(module.train_indices)) == (3, 2, 20)


QUICK = [
    "trainer.max_epochs=1",
    "selection=random",
    "trainer.enable_progress_bar=false",
    "hydra.run.dir=run",
    "trace=false",
]


def test_train_reads_a_file_of_the_users_own(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.csv").write_text(csv_text())
    assert main(["train", "data=file", "data.path=mine.csv", "data.labels=label", "data.folds=2", *QUICK]) == 0
    assert "macro_auc" in capsys.readouterr().out


def test_a_bad_file_fails_before_the_first_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.csv").write_text(csv_text() + "1,0,red,1,0\n")
    grid = ["compare", "data=[synthetic,file]", "fold=0", "jobs=1", "results=out"]
    assert main([*grid, "data.path=mine.csv", "data.labels=label"]) == 1
    assert main(["compare", "data=file", "data.path=mine.csv", "data.labels=label", "jobs=1", "results=out"]) == 1
    told = capsys.readouterr().err.splitlines()
    assert "data.path='mine.csv' does not go with name='synthetic'" in told[0]
    assert "mine.csv, line 42, column 'weight': 'red' is not a number" in told[1]
    assert len(told) == 2
    assert not (tmp_path / "out" / "runs.jsonl").exists()


def test_a_path_with_a_named_dataset_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.csv").write_text(csv_text())
    assert main(["train", "data=digits", "data.path=mine.csv", *QUICK]) == 1
    told = capsys.readouterr().err
    assert len(told.splitlines()) == 1
    assert "data.path='mine.csv' does not go with name='digits'" in told
    assert "data=file data.path=FILE" in told


# What is no file


def test_what_is_there_but_no_file_is_named_as_what_it_is(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "fifo.arff")
    with socket.socket(socket.AF_UNIX) as server:
        monkeypatch.chdir(tmp_path)  # a socket's path must be short
        server.bind("sock.arff")
        for name, kind in (
            ("", "folder"),
            ("fifo.arff", "named pipe"),
            ("sock.arff", "socket"),
            ("/dev/null", "device"),
        ):
            refused(tmp_path / name, f"this is a {kind}, not a file; give")
    refused(tmp_path / "none.arff", "no such file; check the path")
    (tmp_path / "file").touch()
    refused(tmp_path / "file" / "below.arff", "no such file; check the path")
    refused("nul\0byte.arff", "this path cannot be used")
    refused(tmp_path / "none.arff", "labels='a.xml': no such file|no such file", labels="a.xml")


def test_a_name_that_is_too_long_is_one_sentence(tmp_path, capsys):
    told = refused(tmp_path / ("x" * 5000), "cannot be used .*[Nn]ame too long")
    assert len(told) < 500
    (tmp_path / "s.csv").write_text(csv_text())
    long = str(tmp_path / ("x" * 300 + ".npz"))
    assert main(["data", "convert", str(tmp_path / "s.csv"), long, "labels=label"]) == 1
    assert "the name is too long" in capsys.readouterr().err
    assert main(["data", "convert", "y" * 5000]) == 1
    assert len(capsys.readouterr().err.splitlines()) == 1
    with pytest.raises(DataError, match="cannot be used"):
        MultiLabelDataModule(path="z" * 5000).setup()
