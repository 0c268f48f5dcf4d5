"""Files that are small on the disk and huge in memory: refused in time, by one sentence that says how to read them."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import struct
import time
import tracemalloc
import zipfile

import numpy as np
import pytest
import scipy.io
import scipy.sparse
import sklearn.datasets  # noqa: F401 - its import is not what a file takes
from data_test_files import DENSE, DENSE_X, write

from lightning_ubs.cli import main
from lightning_ubs.data import DataError, MultiLabelDataModule, read_dataset
from lightning_ubs.data.readers.budget import MAX_BYTES, Budget, asked

SMALL = 500_000
"""The budget of these tests; each bomb unpacks to, or claims, far more."""

ZEROS = bytes(8_000_000)
ROWS = DENSE.partition("0.5,red")[0].encode() + b"7,green,1,1,0\n" * 80_000


def integers(*values):
    return struct.pack(f">{len(values)}i", *values)


def chars(text):
    return integers(0x40009, len(text)) + text.encode()


def r_variable(value):
    return b"RDX2\nX\n" + integers(2, 196610, 131840, 0x402, 1) + chars("set") + value + integers(254)


def compact_sequence(size):
    """An R object of a few bytes that stands for 1, 2, ..., size."""
    name = integers(2, 1) + chars("compact_intseq") + integers(254)
    return integers(238) + name + integers(14, 3) + struct.pack(">3d", size, 1, 1) + integers(254)


def npz(**members):
    stream = io.BytesIO()
    np.savez_compressed(stream, **members)
    return stream.getvalue()


def npz_that_claims(shape):
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    stream = io.BytesIO(npz(Y=np.eye(3, 2, dtype=np.uint8)))
    with zipfile.ZipFile(stream, "a") as archive:
        archive.writestr("X.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header)
    return stream.getvalue()


def mat(compressed=False, **variables):
    stream = io.BytesIO()
    scipy.io.savemat(stream, variables, do_compression=compressed)
    return stream.getvalue()


def mat_that_claims_two_billion_rows():
    whole = mat(data=scipy.sparse.csc_matrix(np.eye(77, 2)), target=np.eye(2, 77))
    sides, claimed = struct.pack("<2i", 77, 2), struct.pack("<2i", 2**31 - 1, 2)
    assert whole.count(sides) == 1
    return whole.replace(sides, claimed)


def sparse_arff(rows, labels):
    attributes = "".join(f"@attribute l{j} {{0,1}}\n" for j in range(labels))
    return f"@relation 'r: -C {labels}'\n{attributes}@attribute x real\n@data\n".encode() + b"{}\n" * rows


def parquet(rows):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    stream = io.BytesIO()
    zeros = pa.array(np.zeros(rows))
    pq.write_table(pa.table({"x": zeros, "l": zeros}), stream, compression="zstd")
    return stream.getvalue()


BOMBS = {
    "gzip, one line": ("s.arff.gz", lambda: gzip.compress(ZEROS), {}),
    "gzip, many lines": ("s.arff.gz", lambda: gzip.compress(ROWS), {"labels": -1}),
    "bzip2, one line": ("s.arff.bz2", lambda: bz2.compress(ZEROS), {}),
    "bzip2, many lines": ("s.arff.bz2", lambda: bz2.compress(ROWS), {"labels": -1}),
    "xz, many lines": ("s.arff.xz", lambda: lzma.compress(ROWS, preset=0), {"labels": -1}),
    "comments": ("s.arff.gz", lambda: gzip.compress(b"%\n" * 1_000_000), {}),
    "many attributes": ("s.arff", lambda: sparse_arff(1, 5000), {}),
    "many samples times many labels": ("s.arff", lambda: sparse_arff(2000, 300), {}),
    "csv": ("s.csv.gz", lambda: gzip.compress(b"x,y,l\n" + b"1,2,1\n" * 200_000), {"labels": "l"}),
    "svmlight": ("s.svm.gz", lambda: gzip.compress(b"1,2 1:1\n" * 200_000), {}),
    "svmlight with a huge index": ("s.svm", lambda: b"1 2000000000:1\n2 1:1\n", {}),
    "zip": ("s.npz", lambda: npz(X=np.zeros((1_000_000, 1), np.float32), Y=np.ones((1, 1))), {}),
    "zip with many labels": ("s.npz", lambda: npz(X=np.zeros((1, 1)), Y=np.ones((1_000_000, 1), np.uint8)), {}),
    "npz with a wide sparse X": (
        "s.npz",
        lambda: npz(X_data=[1.0], X_indices=[0], X_indptr=[0, 1], X_shape=[1, 2**40], Y=[[1]]),
        {},
    ),
    "zlib inside MATLAB": ("s.mat", lambda: mat(True, data=np.zeros((1_000_000, 1)), target=np.ones((1, 1))), {}),
    "MATLAB, claimed rows": ("s.mat", mat_that_claims_two_billion_rows, {}),
    "MATLAB, square sparse target": (
        "s.mat",
        lambda: mat(data=np.ones((9999, 1)), target=scipy.sparse.csc_matrix((9999, 9000))),
        {},
    ),
    "R, zeros": ("s.rda", lambda: gzip.compress(r_variable(integers(14, 1_000_000) + ZEROS)), {}),
    "R, ones": ("s.rda", lambda: gzip.compress(r_variable(integers(13, 1_000_000) + b"\1" * 4_000_000)), {}),
    "R, bzip2": ("s.rda", lambda: bz2.compress(r_variable(integers(14, 1_000_000) + ZEROS)), {}),
    "R, many objects": ("s.rda", lambda: gzip.compress(r_variable(integers(19, 10**5) + integers(13, 0) * 10**5)), {}),
    "R, compact sequence": ("s.rda", lambda: r_variable(compact_sequence(1e8)), {}),
    "parquet": ("s.parquet", lambda: parquet(200_000), {"labels": "l"}),
}  # fmt: skip


@pytest.mark.parametrize("case", BOMBS)
def test_a_file_that_would_fill_more_than_its_budget_is_refused_in_time_and_memory(tmp_path, case):
    name, content, options = BOMBS[case]
    (tmp_path / name).write_bytes(content())
    tracemalloc.start()
    start = time.monotonic()
    try:
        with pytest.raises(DataError) as caught:
            read_dataset(tmp_path / name, max_bytes=SMALL, cache=False, **options)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    told = str(caught.value)
    assert told.startswith(f"{name}: ")
    assert "more than 500,000 bytes" in told
    assert "max_bytes=NUMBER" in told
    assert "LIGHTNING_UBS_MAX_BYTES=NUMBER" in told
    assert told.endswith(".")
    assert "\n" not in told
    assert peak < 20 * SMALL
    assert time.monotonic() - start < 10


@pytest.mark.parametrize("shape", [(10**12, 9), (3, 10**11), (2**40, 2**40), (-3, 4)])
def test_a_size_that_is_only_claimed_is_not_allocated(tmp_path, shape):
    (tmp_path / "s.npz").write_bytes(npz_that_claims(shape))
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=r"s\.npz: "):
            read_dataset(tmp_path / "s.npz")
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


def test_an_r_vector_that_claims_billions_of_values_is_not_allocated(tmp_path):
    (tmp_path / "s.rda").write_bytes(r_variable(integers(14, 2**31 - 1)))
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match="ends too early"):
            read_dataset(tmp_path / "s.rda")
        assert tracemalloc.get_traced_memory()[1] < 4 * 2**20
    finally:
        tracemalloc.stop()


def test_the_budget_comes_from_the_argument_then_the_environment(tmp_path, monkeypatch):
    path = write(tmp_path / "s.arff", DENSE)
    monkeypatch.setenv("LIGHTNING_UBS_MAX_BYTES", "100")
    with pytest.raises(DataError, match="more than 100 bytes"):
        read_dataset(path)
    np.testing.assert_array_equal(read_dataset(path, max_bytes=10**6).X, DENSE_X)
    with pytest.raises(DataError, match="more than 200 bytes"):
        MultiLabelDataModule(path=path, max_bytes=200).setup()
    monkeypatch.setenv("LIGHTNING_UBS_MAX_BYTES", "1000000")
    np.testing.assert_array_equal(read_dataset(path, cache=False).X, DENSE_X)


def test_convert_takes_the_budget_too(tmp_path, capsys):
    path = write(tmp_path / "s.arff", DENSE)
    assert main(["data", "convert", str(path), "max_bytes=100"]) == 1
    assert "more than 100 bytes" in capsys.readouterr().err
    assert not (tmp_path / "s.npz").exists()
    assert main(["data", "convert", str(path), "max_bytes=100000"]) == 0
    assert main(["data", "convert", str(path), "max_bytes=much"]) == 1
    assert "max_bytes=much must be a whole number of bytes" in capsys.readouterr().err


@pytest.mark.parametrize("value", [0, -5, "many", "1e9"])
def test_a_budget_that_is_no_number_is_refused(value, monkeypatch):
    with pytest.raises(DataError, match="must be a whole number of bytes"):
        asked(value)
    monkeypatch.setenv("LIGHTNING_UBS_MAX_BYTES", str(value))
    with pytest.raises(DataError, match="LIGHTNING_UBS_MAX_BYTES="):
        asked(None)


def test_the_default_grows_with_the_file_up_to_four_gibibytes(tmp_path, monkeypatch):
    monkeypatch.delenv("LIGHTNING_UBS_MAX_BYTES", raising=False)
    path = tmp_path / "s"
    limits = []
    for size in (0, 10_000, 20_000):
        path.write_bytes(bytes(size))
        limits.append(Budget.of(path).limit)
    assert limits[2] - limits[1] == limits[1] - limits[0] > 582 * 10_000, (
        "published files unpack to 582 times their size"
    )
    with path.open("wb") as stream:
        stream.truncate(10**10)
    assert Budget.of(path).limit == MAX_BYTES == 4 * 2**30
    assert Budget.of(path, 10**11).limit == 10**11


def test_a_small_file_with_a_million_hashed_features_is_read_by_default(tmp_path):
    rows = "".join(f"{row % 2} {row + 1}:1 {2**20}:1\n" for row in range(2000))
    (tmp_path / "s.svm").write_text(rows)
    assert read_dataset(tmp_path / "s.svm", cache=False).X.shape == (2000, 2**20)


def test_kilobytes_of_bzip2_are_refused_by_default_before_they_are_all_unpacked(tmp_path):
    (tmp_path / "s.arff.bz2").write_bytes(bz2.compress(b"%\n" * 2_000_000) * 50)
    assert (tmp_path / "s.arff.bz2").stat().st_size < 10_000
    with pytest.raises(DataError, match=r"takes more than 1[678],[0-9]+,[0-9]+ bytes"):
        read_dataset(tmp_path / "s.arff.bz2")
