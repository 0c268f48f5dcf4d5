"""The format of a file, by its content, and by its name where the content says nothing."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

from lightning_ubs.data.readers.stream import first_bytes
from lightning_ubs.errors import DataError

Format = Literal["arff", "csv", "mat", "npz", "parquet", "rda", "svmlight"]
TEXT: tuple[Format, ...] = ("arff", "csv", "svmlight")

_BY_ENDING: dict[str, Format] = {
    ".arff": "arff", ".csv": "csv", ".tsv": "csv", ".svm": "svmlight", ".svmlight": "svmlight", ".libsvm": "svmlight",
}  # fmt: skip
_PACKED = (".gz", ".bz2", ".xz")
_PAIR = re.compile(rb"(?:[0-9]++|qid):[-+]?[0-9.]++(?:[eE][-+]?[0-9]++)?")
_LABELS = re.compile(rb"[-+0-9.eE,]++")


def bare_name(path: Path) -> str:
    """Return the name of a file without the ending of a compression.

    >>> bare_name(Path("data/yeast.arff.gz"))
    'yeast.arff'
    """
    name = path.name
    return name[: -len(path.suffix)] if path.suffix.lower() in _PACKED else name


def detect_format(path: Path) -> Format:
    """Return the format of a file.

    Raises:
        DataError: It is none of those that can be read.
    """
    head = first_bytes(path)
    if head.startswith(b"PK\x03\x04"):
        return "npz"
    if head.startswith(b"PAR1"):
        return "parquet"
    if head.startswith((b"RDX", b"RDA", b"RDB")):
        return "rda"
    if head.startswith((b"\x89HDF", b"MATLAB 7.3")):
        raise DataError(f"{path.name}: MATLAB 7.3 (HDF5) files are not supported; save it again with -v7.")
    if head.startswith(b"MATLAB 5.0"):
        return "mat"
    lines = (line.strip() for line in head.removeprefix(b"\xef\xbb\xbf").splitlines())
    first = next((line for line in lines if line and not line.startswith((b"%", b"#"))), b"")
    named = _BY_ENDING.get(Path(bare_name(path)).suffix.lower())
    if named == "arff" or first.lower().startswith((b"@relation", b"@attribute")):
        return "arff"
    if named is not None:
        return named
    if _is_svmlight(first, cut=b"\n" not in head):
        return "svmlight"
    raise DataError(
        f"{path.name}: this is not an ARFF, CSV, svmlight, Parquet, MATLAB, R (.rda) or .npz file; give one of these, "
        "complete and with its usual ending."
    )


def _is_svmlight(line: bytes, cut: bool) -> bool:
    """Return whether a line reads ``LABEL,... INDEX:VALUE ...``; the last word of a cut line does not count."""
    words = line.partition(b"#")[0].split()
    words = words[:-1] if cut and len(line) > 4000 else words
    pairs = words[1:] if words and _LABELS.fullmatch(words[0]) else words
    return bool(pairs) and all(_PAIR.fullmatch(word) for word in pairs)
