from __future__ import annotations

import numpy as np
import pytest
from data_test_files import DENSE, DENSE_X, SPARSE, SPARSE_X, write

from lightning_ubs.data import DataError, names, read_dataset
from lightning_ubs.data.commands import UsageError, convert_file, get_dataset, list_datasets, run, show_dataset


def test_list_is_an_aligned_table_that_needs_no_network(tmp_path):
    lines = list_datasets(tmp_path).splitlines()
    head, rows = lines[0], lines[1 : 1 + len(names())]
    assert [row.split()[0] for row in rows] == names()
    place = head.index("where")
    assert {row[place:].split("  ")[0] for row in rows} == {"to download", "embedded"}
    assert "DEFECTIVE" in next(row for row in rows if row.startswith("rcv1subset1 "))
    assert "DEFECTIVE" not in next(row for row in rows if row.startswith("rcv1subset1_aligned "))
    assert next(row for row in rows if row.startswith("yahoo-Arts1")).split()[1:5] == ["7484", "2314", "25", "1.654"]
    assert str(tmp_path) in lines[-2]
    assert max(map(len, rows)) <= 120


def test_list_tells_what_is_already_here(tmp_path):
    np.savez(tmp_path / "scene.npz", a=1)
    row = next(row for row in list_datasets(tmp_path).splitlines() if row.startswith("scene"))
    assert row.split()[5] == "local"


def test_show_tells_defects_checksums_and_where_to_put_the_files(tmp_path):
    told = show_dataset("RCV1subset3", tmp_path)
    assert "shifted left by 14 columns" in " ".join(told.split())
    assert "3676392175cf3c44749e23b07d50f538e26e540b2521ff91b42e415cf8eb0fcc" in told
    assert str(tmp_path / "rcv1subset3") in told
    assert "2% most frequent features (944)" in told
    assert "at least 2 positives (25)" in " ".join(show_dataset("yahoo-arts").split())
    assert str(tmp_path / "rcv1subset3") in show_dataset("rcv1subset3_aligned", tmp_path)
    assert "file" not in show_dataset("digits")


def test_get_of_an_embedded_set_needs_nothing():
    assert "2000 samples, 64 features (dense), 10 labels" in get_dataset("digits")


@pytest.mark.parametrize(("text", "expected"), [(DENSE, DENSE_X), (SPARSE, SPARSE_X)])
def test_convert_writes_what_read_dataset_reads(tmp_path, text, expected):
    source = write(tmp_path / "s.arff", text)
    told = convert_file(source)
    assert told.startswith(str(tmp_path / "s.npz"))
    data, original = read_dataset(tmp_path / "s.npz"), read_dataset(source, cache=False)
    assert type(data.X) is type(original.X)
    assert abs(data.X - original.X).sum() == 0
    np.testing.assert_array_equal(data.Y, original.Y)
    assert data[2:] == original[2:]
    assert {path.name for path in tmp_path.iterdir()} == {"s.arff", "s.xml", "s.npz"}
    convert_file(source, tmp_path / "t.npz", labels=-1)
    assert read_dataset(tmp_path / "t.npz").label_names == ["c d"]


def test_convert_refuses_a_target_it_cannot_write(tmp_path):
    source = write(tmp_path / "s.arff", DENSE)
    with pytest.raises(DataError, match=r"must end in \.npz"):
        convert_file(source, tmp_path / "s.csv")
    with pytest.raises(DataError, match="cannot be written"):
        convert_file(source, tmp_path / "absent" / "s.npz")
    convert_file(source)
    with pytest.raises(DataError, match="same file"):
        convert_file(tmp_path / "s.npz")


def test_the_help_of_convert_names_every_format_key_and_default():
    told = run(["convert", "--help"])
    assert told == run(["convert", "-h"]) == run(["convert", "s.csv", "--help"])
    words = ("ARFF", "CSV", "svmlight", "Parquet", "MATLAB", "R ", "NPZ", "labels=", "max_bytes=", "4 GiB", "[OUT]")
    assert all(word in told for word in words)
    assert max(map(len, told.splitlines())) <= 120


@pytest.mark.parametrize("command", ["list", "show", "get"])
def test_every_command_has_its_help(command):
    told = run([command, "--help"])
    assert told.startswith(f"lightning-ubs data {command}")
    assert "data_dir=FOLDER" in told
    assert f"data {command}" in run(["--help"])
    assert run([]) == run(["--help"])


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (["lst"], "there is no command 'data lst'"),
        (["show"], "data show NAME"),
        (["convert", "a", "b", "c"], r"data convert FILE \[OUT\]"),
        (["convert", "a", "data_dir=x"], "valid keys: labels, max_bytes"),
        (["list", "labels=x"], "valid keys: data_dir"),
    ],
)
def test_a_command_line_that_is_not_understood_says_what_is(arguments, match):
    with pytest.raises(UsageError, match=match):
        run(arguments)
