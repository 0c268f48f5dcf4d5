from __future__ import annotations

import bz2
import gzip

import arff
import numpy as np
import pytest
import scipy.sparse
from data_test_files import (
    DENSE,
    DENSE_X,
    DENSE_Y,
    PUBLISHED,
    SPARSE,
    SPARSE_X,
    SPARSE_Y,
    XML,
    needs_published,
    refused,
    write,
)
from hypothesis import given
from hypothesis import strategies as st

from lightning_ubs.data import MultiLabelData, read_dataset


def test_the_result_has_exactly_the_four_documented_fields(tmp_path):
    data = read_dataset(write(tmp_path / "a.arff", DENSE))
    assert isinstance(data, MultiLabelData)
    assert data._fields == ("X", "Y", "label_names", "feature_names")
    assert type(data.label_names) is list
    assert type(data.feature_names) is list


def test_dense_mulan_file_codes_levels_and_orders_labels_as_in_the_file(tmp_path):
    data = read_dataset(write(tmp_path / "small.arff", DENSE))
    assert data.X.dtype == np.float32
    np.testing.assert_array_equal(data.X, DENSE_X)
    assert data.Y.dtype == np.uint8
    np.testing.assert_array_equal(data.Y, DENSE_Y)
    assert data.label_names == ["a", "b", "c d"]
    assert data.feature_names == ["x", "y z"]


def test_sparse_file_stays_sparse_and_its_omitted_cells_are_the_first_level(tmp_path):
    data = read_dataset(write(tmp_path / "small.arff", SPARSE))
    assert scipy.sparse.issparse(data.X)
    assert data.X.format == "csr"
    assert data.X.dtype == np.float32
    np.testing.assert_array_equal(data.X.toarray(), SPARSE_X)
    np.testing.assert_array_equal(data.Y, SPARSE_Y)


@pytest.mark.parametrize("compress", [gzip.compress, bz2.compress])
@pytest.mark.parametrize("name", ["small.arff.gz", "small.arff.bz2", "anything.dat"])
def test_compression_is_told_by_content(tmp_path, compress, name):
    (tmp_path / name).write_bytes(compress(DENSE.encode()))
    (tmp_path / "labels.xml").write_text(XML)
    data = read_dataset(tmp_path / name, labels=tmp_path / "labels.xml")
    np.testing.assert_array_equal(data.X, DENSE_X)
    np.testing.assert_array_equal(data.Y, DENSE_Y)


@pytest.mark.parametrize("name", ["s.arff", "s-train.arff", "s-test.arff", "s-sparse.arff", "s-train-sparse.arff"])
def test_label_list_is_found_beside_the_file(tmp_path, name):
    (tmp_path / "s.xml").write_text(XML)
    (tmp_path / "decoy.xml").write_text(XML.replace('"a"', '"x"'))
    assert read_dataset(write(tmp_path / name, DENSE, xml=None)).label_names == ["a", "b", "c d"]


def test_labels_may_be_named_or_counted(tmp_path):
    path = write(tmp_path / "s.arff", DENSE, xml=None)
    assert read_dataset(path, labels=["c d", "a"]).label_names == ["a", "c d"]
    assert read_dataset(path, labels=-1).label_names == ["c d"]
    told = refused(path, "found the value 0.5", labels=2)
    assert "s.arff" in told


RELATIONS = [
    ("'Music: -C 2'", ["a", "b"]),
    ("'Music: -C -2 -split-number 5'", ["y", "z"]),
    ('"it\'s \\" quoted: -C 1"', ["a"]),
    ("'it\\'s: -C -1'", ["z"]),
    ("Bare: -C 2", ["a", "b"]),
    ("'-C 1'", ["a"]),
]


@pytest.mark.parametrize(("relation", "expected"), RELATIONS)
def test_meka_count_is_honored_with_its_sign(tmp_path, relation, expected):
    text = (
        f"@relation {relation}\n" + "".join(f"@attribute {name} {{0,1}}\n" for name in "abxyz") + "@data\n1,0,1,0,1\n"
    )
    data = read_dataset(write(tmp_path / "m.arff", text, xml=None))
    assert data.label_names == expected
    assert data.Y.tolist() == [[{"a": 1, "b": 0, "y": 0, "z": 1}[name] for name in expected]]


def test_labels_are_read_by_what_their_levels_say(tmp_path):
    text = "@relation 'r: -C 4'\n@attribute a {1,0}\n@attribute b {false,true}\n@attribute c {-1,1}\n@attribute d {1}\n"
    path = write(tmp_path / "r.arff", text + "@attribute x real\n@data\n1,true,-1,1,3\n0,false,1,1,4\n", xml=None)
    assert read_dataset(path).Y.tolist() == [[1, 1, 0, 1], [0, 0, 1, 1]]


BROKEN = {
    "no data": (DENSE.partition("@data")[0], "ends before @data"),
    "no rows": (DENSE.partition("0.5,red")[0], "no row"),
    "short row": (DENSE.replace("7,", ""), "line 15: 4 values for 5 attributes"),
    "half a row": (DENSE[:-8], "line 15"),
    "bad number": (DENSE.replace("7,", "seven,"), "line 15.*float"),
    "bad level": (DENSE.replace("red,0", "pink,0"), "line 11.*pink.*not a declared level"),
    "missing value": (DENSE.replace("7,", "?,"), "missing"),
    "overflow": (DENSE.replace("7,", "1e60,"), "finite"),
    "not a number": (DENSE.replace("7,", "nan,"), "finite"),
    "open quote": (DENSE.replace('"green"', '"green'), "quotes"),
    "string attribute": (DENSE.replace("x numeric", "x string"), "type 'string'"),
    "twice declared": (DENSE.replace("'y z'", "x"), "declared twice"),
    "twice the level": (DENSE.replace("{1,0}", "{1,1}"), "level twice"),
    "label not binary": (DENSE.replace("@attribute a {0,1}", "@attribute a {0,1,2}"), "0 or 1"),
    "numeric label": (DENSE.replace("0.5,red,0,1,0", "0.5,red,0,1,3"), "0 or 1"),
    "stray keyword": (DENSE.replace("@attribute a", "@feature a"), "expected @attribute"),
    "sparse among dense": (DENSE + "{0 1}\n", "1 values for 5"),
    "dense among sparse": (SPARSE + "1,2,3,4,5,6\n", "sparse row"),
    "index too large": (SPARSE.replace("2 -4", "6 1"), "exceeds"),
    "index twice": (SPARSE.replace("2 -4", "1 yes"), "twice"),
    "sparse junk": (SPARSE.replace("2 -4", "two -4"), "index value"),
    "empty": ("", "ends before"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_malformed_file_is_refused_in_one_sentence_that_names_it(tmp_path, case):
    text, match = BROKEN[case]
    assert refused(write(tmp_path / "small.arff", text), match).startswith("small.arff")
    assert not list(tmp_path.glob("*.cache.npz"))


def test_a_label_list_that_does_not_fit_is_refused(tmp_path):
    path = write(tmp_path / "s.arff", DENSE, xml=None)
    refused(path, "labels are not known")
    refused(path, "no such file", labels="absent.xml")
    refused(path, "'nobody'.* not among them", labels=["a", "nobody"])
    refused(path, "repeats", labels=["a", "a"])
    refused(path, "5 labels do not fit", labels=5)
    refused(path, "0 labels do not fit", labels=0)
    refused(tmp_path / "absent.arff", "no such file")


XML_BOMB = XML.replace("<labels", '<!DOCTYPE l [<!ENTITY e "eeee"><!ENTITY f "&e;&e;&e;&e;">]><labels', 1)
BAD_XML = {
    "entities": (XML_BOMB, "DOCTYPE"),
    "cut": (XML[:-20], "well-formed"),
    "no labels": ("<labels></labels>", "no <label"),
    "nameless": ("<labels><label/></labels>", "no name"),
    "twice": (XML.replace('"b"', '"a"'), "twice"),
    "not xml": ("a\nb\n", "well-formed"),
}


@pytest.mark.parametrize("case", BAD_XML)
def test_bad_label_list_is_refused(tmp_path, case):
    xml, match = BAD_XML[case]
    assert refused(write(tmp_path / "small.arff", DENSE, xml), match).startswith("small.xml")


def test_a_header_that_makes_backtracking_parsers_hang_is_refused_at_once(tmp_path):
    text = "@relation r\n@attribute a {" + ",".join("a" * 5000) + " ;\n@data\n"
    refused(write(tmp_path / "r.arff", text), "type '{a,a")
    refused(write(tmp_path / "q.arff", "@relation r\n@attribute " + "'" + "\\'" * 50000), "not an attribute")
    refused(write(tmp_path / "w.arff", DENSE.replace("7,", "7 " + " " * 100_000 + "'',")), "quotes")


CELL = st.text("abé17 ,;%'\"\\", min_size=1, max_size=8).filter(lambda text: text == text.strip())


@given(
    levels=st.lists(CELL, min_size=2, max_size=4, unique=True),
    values=st.lists(st.tuples(st.floats(width=32, allow_nan=False, allow_infinity=False), st.integers(0, 99))),
    sparse=st.booleans(),
)
def test_what_liac_arff_writes_is_read_as_liac_arff_reads_it(tmp_path_factory, levels, values, sparse):
    rows = [[number, levels[choice % len(levels)], str(choice % 2)] for number, choice in [*values, (1.5, 3)]]
    attributes = [("a number", "REAL"), ("it's", levels), ("label", ["0", "1"])]
    if sparse:
        rows = [{j: cell for j, cell in enumerate(row) if cell not in (0, levels[0], "0")} for row in rows]
    text = arff.dumps({"relation": "r", "description": "", "attributes": attributes, "data": rows})
    path = write(tmp_path_factory.mktemp("arff") / "r.arff", text, xml=None)
    kind = arff.LOD if sparse else arff.DENSE
    expected = arff.loads(text, encode_nominal=True, return_type=kind)["data"]
    if sparse:
        expected = [[row.get(j, 0) for j in range(3)] for row in expected]
    data = read_dataset(path, labels=["label"])
    features = data.X.toarray() if scipy.sparse.issparse(data.X) else data.X
    np.testing.assert_array_equal(features, np.float32([row[:2] for row in expected]))
    np.testing.assert_array_equal(data.Y[:, 0], [row[2] for row in expected])


@needs_published
@pytest.mark.parametrize("name", ["yeast/yeast-train.arff", "cal500/cal500.arff", "meka/Music.arff"])
def test_dense_published_file_equals_liac_arff(name):
    path = PUBLISHED / "original" / name
    data = read_dataset(path, cache=False)
    with path.open() as stream:
        content = arff.load(stream, encode_nominal=True)
    names = [attribute for attribute, _ in content["attributes"]]
    table = np.float32(content["data"])
    np.testing.assert_array_equal(data.X, table[:, [names.index(name) for name in data.feature_names]])
    np.testing.assert_array_equal(data.Y, table[:, [names.index(name) for name in data.label_names]])
