"""Small files of every format, written by the tests themselves, and where the published ones would be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lightning_ubs.data import DataError, read_dataset

PUBLISHED = Path(__file__).parents[3] / "shared" / "data"
needs_published = pytest.mark.skipif(
    not PUBLISHED.is_dir(), reason="the published datasets are not beside the repository (../shared/data)"
)

XML = """<?xml version="1.0" encoding="utf-8"?>
<labels xmlns="http://mulan.sourceforge.net/labels">
<label name="b"></label>
<label name="a"><label name="c d"/></label>
</labels>
"""

DENSE = """% a comment
@RELATION small

@attribute x numeric
@Attribute 'y z' {red,'dark blue', green}
@attribute a {0,1}
@attribute b {1,0}
@attribute "c d" integer

@data
0.5,red,0,1,0
% another comment
-1e-3, 'dark blue' ,1,0,1

7,"green",1,1,0
"""

SPARSE = """@relation small-sparse
@attribute x real
@attribute y {no,yes}
@attribute z INTEGER
@attribute a {0,1}
@attribute b {0,1}
@attribute 'c d' {0,1}
@data
{3 1,0 1.5}
{}
{1 yes, 2 -4,5 1}
"""

DENSE_X = np.float32([[0.5, 0], [-1e-3, 1], [7, 2]])
DENSE_Y = np.uint8([[0, 1, 0], [1, 0, 1], [1, 1, 0]])
SPARSE_X = np.float32([[1.5, 0, 0], [0, 0, 0], [0, 1, -4]])
SPARSE_Y = np.uint8([[1, 0, 0], [0, 0, 0], [0, 0, 1]])


def write(path: Path, text: str, xml: str | None = XML) -> Path:
    """Write an ARFF file, and its list of labels beside it."""
    path.write_text(text, encoding="utf-8")
    if xml is not None:
        path.with_suffix(".xml").write_text(xml, encoding="utf-8")
    return path


def dense(features: object) -> np.ndarray:
    """Return features as an array."""
    return features.toarray() if hasattr(features, "toarray") else np.asarray(features)


def refused(path: str | Path, match: str, **options: Any) -> str:
    """What is said of a file that cannot be read: one sentence."""
    with pytest.raises(DataError, match=match) as caught:
        read_dataset(path, **options)
    told = str(caught.value)
    assert "\n" not in told
    assert told.endswith(".")
    assert caught.value.__cause__ is None
    return told
