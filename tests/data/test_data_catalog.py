from __future__ import annotations

import csv
import logging
import shutil

import numpy as np
import pytest
import scipy.sparse
from data_test_files import PUBLISHED, dense, needs_published

from lightning_ubs.data import DataError, entry, load, names
from lightning_ubs.data.entries import ENTRIES
from lightning_ubs.data.preparation import frequent_labels, most_frequent_features, realign

PAPER = {  # name in the paper: n, d, q
    "scene": (2407, 294, 6), "yeast": (2417, 103, 14), "Corel5k": (5000, 499, 374), "rcv1subset1": (6000, 944, 101),
    "rcv1subset2": (6000, 944, 101), "rcv1subset3": (6000, 944, 101), "yahoo-Arts": (7484, 2314, 25),
    "yahoo-Business": (11214, 2192, 28), "bibtex": (7395, 1836, 159), "tmc2007": (28596, 500, 22),
    "enron": (1702, 1001, 53), "cal500": (502, 68, 174), "LLOG-F": (1460, 1004, 75),
}  # fmt: skip
SHIFTS = {1: 1, 2: 12, 3: 14}


def members(name):
    with np.load(PUBLISHED / f"{name}.npz", allow_pickle=False) as archive:
        return {key: archive[key] for key in archive.files}


@pytest.mark.parametrize("name", PAPER)
def test_the_papers_thirteen_datasets_are_known_by_the_papers_names_with_its_counts(name):
    for spelling in (name, name.lower(), name.upper()):
        known = entry(spelling)
        view = (known.view.d, known.view.q) if known.view else (known.d, known.q)
        assert (known.n, *view) == PAPER[name]


def test_all_other_datasets_are_known_too():
    others = {"langlog", "emotions", "digits", "tags", "synthetic", *(f"rcv1subset{k}_aligned" for k in SHIFTS)}
    assert len(names()) == len(set(names())) == 13 + len(others)
    assert others <= set(names())
    assert {known.name for known in ENTRIES if known.embedded} == {"digits", "tags", "synthetic"}


def test_users_are_told_of_what_is_wrong():
    assert {known.name for known in ENTRIES if known.defects} == {"rcv1subset1", "rcv1subset2", "rcv1subset3", "LLOG-F"}
    assert "shifted left by 12 columns" in entry("rcv1subset2").defects
    assert "langlog" in entry("LLOG-F").defects
    assert "500 features where the paper has 490" in entry("tmc2007").remark


def test_the_catalog_says_what_is_repaired_what_the_paper_calls_it_and_what_belongs_together():
    repaired = {known.name: known.repairs for known in ENTRIES if known.repairs}
    assert repaired == {"langlog": "LLOG-F"} | {f"rcv1subset{k}_aligned": f"rcv1subset{k}" for k in SHIFTS}
    assert all(entry(name).defects for name in repaired.values())
    assert {entry(known.paper_name).name for known in ENTRIES if known.paper_name} == {
        entry(name).name for name in PAPER
    }
    assert not any(known.paper_name for known in ENTRIES if known.repairs)
    assert {known.family for known in ENTRIES if known.name.startswith("rcv1")} == {"rcv1"}
    assert (entry("yeast").source, entry("digits").source) == ("tsoumakas/mulan", "made by this package")
    assert {known.folder for known in ENTRIES if known.realigned} == {f"rcv1subset{k}" for k in SHIFTS}
    assert entry("langlog").folder == "langlog"


def test_unknown_name_suggests_a_known_one():
    with pytest.raises(DataError, match="did you mean yeast"):
        entry("yaest")


@needs_published
def test_every_file_is_pinned_as_in_the_published_table():
    with (PUBLISHED / "CATALOG.csv").open() as stream:
        table = {(row["dataset"], row["path"]): row for row in csv.DictReader(stream)}
    pinned = {(known.name, file.path): file for known in ENTRIES if not known.realigned for file in known.files}
    assert pinned.keys() == table.keys()
    for key, file in pinned.items():
        row = table[key]
        expected = (row["repository"], row["commit"], int(row["bytes"]), row["sha256"])
        assert (file.repository, file.commit, file.bytes, file.sha256) == expected


@needs_published
@pytest.mark.parametrize("name", [name for name in names() if not entry(name).embedded])
def test_counts_cardinality_and_selection_are_those_of_the_archive(name):
    known, archive = entry(name), members(name)
    full = load(name, PUBLISHED, view="full")
    assert (*full.X.shape, full.Y.shape[1]) == (known.n, known.d, known.q)
    assert full.Y.sum() / known.n == pytest.approx(known.cardinality, abs=6e-4)
    paper = load(name, PUBLISHED)
    columns = archive.get("top_idx", np.arange(known.d))
    kept = archive.get("paper_label_idx", np.arange(known.q))
    assert abs(paper.X - full.X[:, columns]).sum() == 0
    np.testing.assert_array_equal(paper.Y, archive["Y"][:, kept])
    assert paper.feature_names == archive["feature_names"][columns].tolist()
    assert paper.label_names == archive["label_names"][kept].tolist()
    assert scipy.sparse.issparse(paper.X) == ("X" not in archive)
    assert paper.X.dtype == np.float32


@needs_published
@pytest.mark.parametrize("number", SHIFTS)
def test_aligned_rcv1_is_derived_from_the_published_one(number, tmp_path):
    (tmp_path / f"rcv1subset{number}.npz").symlink_to(PUBLISHED / f"rcv1subset{number}.npz")
    derived = load(f"rcv1subset{number}_aligned", tmp_path, view="full", download=False)
    expected = load(f"rcv1subset{number}_aligned", PUBLISHED, view="full")
    assert (derived.X != expected.X).nnz == 0
    np.testing.assert_array_equal(derived.Y, expected.Y)
    halves = [part.mean(0) for part in (derived.Y[:3000], derived.Y[3000:])]
    assert np.corrcoef(halves)[0, 1] > 0.99


def test_realign_moves_the_second_half_back():
    from lightning_ubs.data import MultiLabelData

    truth = np.uint8([[1, 0, 1], [0, 1, 0], [1, 1, 0], [0, 1, 1]])
    features = np.float32([[0.5, 0, 0], [0, 0.25, 0], [0.5, 0, 1], [0, 0, 0]])
    published = truth.copy()
    published[2:, :2], published[2:, 2] = truth[2:, 1:], 0
    data = realign(MultiLabelData(scipy.sparse.csr_matrix(features), published, list("abc"), list("xyz")), 1)
    np.testing.assert_array_equal(data.Y, truth)
    np.testing.assert_array_equal(data.X.toarray(), features * [1, 1, 0] + np.float32([[0, 0, 0]] * 4))


def test_frequency_ties_go_to_the_lower_column_and_stored_zeros_do_not_count():
    matrix = scipy.sparse.csr_matrix(np.float32([[1, 1, 1, 1], [0, 1, 1, 1]]))
    matrix.data[-1] = 0
    assert most_frequent_features(matrix, 0.5).tolist() == [1, 2]
    assert most_frequent_features(matrix, 0.75).tolist() == [0, 1, 2]
    assert most_frequent_features(matrix.toarray(), 0.75).tolist() == [0, 1, 2]
    assert frequent_labels(np.uint8([[1, 0, 1], [1, 0, 0]]), 1).tolist() == [0, 2]


@needs_published
@pytest.mark.parametrize(
    ("name", "folder"),
    [("scene", "scene"), ("yeast", "yeast"), ("Corel5k", "Corel5k"), ("LLOG-F", "LLOG-F"), ("langlog", "mldr_rda")],
)
def test_published_files_put_there_by_hand_are_found_and_equal_the_archive(name, folder, tmp_path):
    shutil.copytree(PUBLISHED / "original" / folder, tmp_path / name)
    data, expected = load(name, tmp_path, download=False), load(name, PUBLISHED)
    np.testing.assert_array_equal(dense(data.X), dense(expected.X))
    np.testing.assert_array_equal(data.Y, expected.Y)
    assert load(name, tmp_path, download=False).label_names == data.label_names


@needs_published
def test_loading_defective_data_warns(caplog):
    with caplog.at_level(logging.WARNING):
        load("langlog", PUBLISHED)
        assert "labels" not in caplog.text
        load("LLOG-F", PUBLISHED)
    assert "its 75 'labels' are words" in caplog.text.lower()


def test_file_with_other_counts_is_refused(tmp_path):
    np.savez(
        tmp_path / "yeast.npz", X=np.ones((3, 2)), Y=np.eye(3, 2), label_names=["a", "b"], feature_names=["x", "y"]
    )
    with pytest.raises(DataError, match="found 3 samples, 2 features and 2 labels instead of 2417, 103 and 14"):
        load("yeast", tmp_path, download=False)


def test_file_with_another_checksum_is_refused(tmp_path):
    (tmp_path / "yeast").mkdir()
    (tmp_path / "yeast" / "yeast.arff").write_text("@relation another\n")
    with pytest.raises(DataError, match=r"SHA-256 is .*, but 55c07a3b.* was published; remove it"):
        load("yeast", tmp_path, download=False)


def test_data_folder_is_the_argument_then_the_environment_then_the_cache(tmp_path, monkeypatch):
    from lightning_ubs.data.download import data_folder

    for variable in ("LIGHTNING_UBS_DATA", "LIGHTNING_UBS_CACHE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert data_folder() == tmp_path / "cache" / "lightning-ubs"
    monkeypatch.setenv("LIGHTNING_UBS_DATA", str(tmp_path / "env"))
    assert data_folder() == tmp_path / "env"
    assert data_folder(tmp_path / "here") == tmp_path / "here"


def test_view_must_be_known():
    with pytest.raises(DataError, match="'paper' or 'full'"):
        load("digits", view="half")
