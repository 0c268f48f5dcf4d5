"""``lightning-ubs data list | show | get | convert``: the command line, and what each says, as text."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from lightning_ubs._utils.files import write_problem
from lightning_ubs.data import catalog
from lightning_ubs.data.download import address, data_folder
from lightning_ubs.data.entries import ENTRIES, Entry
from lightning_ubs.data.readers import LabelSpec, read_dataset
from lightning_ubs.data.readers.budget import asked
from lightning_ubs.data.readers.npz import write_npz
from lightning_ubs.data.readers.stream import bare_name
from lightning_ubs.data.types import MultiLabelData, is_sparse
from lightning_ubs.errors import DataError, UsageError

_WIDTH = 100
_DATA_DIR = "  data_dir=FOLDER    where the files are or go; default: $LIGHTNING_UBS_DATA, else the user's cache folder"
_CONVERT = """\
Reads a multi-label file and writes it as NPZ: X (or its CSR parts), Y, label_names and feature_names. OUT ends in
.npz; default: the name of FILE with that ending, beside it. FILE may be

  ARFF        of Mulan (its XML list of labels beside it) or MEKA (-C in its relation), dense or sparse
  CSV         .csv or .tsv, with a line of names; numbers, true/false or yes/no in the cells
  svmlight    or libsvm, several labels per line: LABEL,LABEL INDEX:VALUE ...
  Parquet     numeric columns; needs pyarrow
  MATLAB      up to version 7, with the matrices data and target
  R           .rda with an object of the package mldr
  NPZ         with X and Y

Texts and R files may be compressed by gzip, bzip2 or xz.

  labels=PREFIX      columns of an ARFF, CSV or Parquet file whose names begin so (or the one column of this name)
  labels=[A,B]       columns by name
  labels=-3          the last 3 columns; labels=3: the first 3
  labels=FILE.xml    Mulan's list of labels
  max_bytes=NUMBER   what the file may unpack to and fill; default: $LIGHTNING_UBS_MAX_BYTES, else 4 GiB, or less for
                     a small file

  lightning-ubs data convert mine.csv labels=topic_
  lightning-ubs data convert big.arff.gz big.npz labels=-14 max_bytes=20000000000"""


class _Command(NamedTuple):
    form: str
    names: range
    keys: tuple[str, ...]
    help: str


_COMMANDS = {
    "list": _Command("data list", range(1), ("data_dir",), f"Lists all datasets.\n\n{_DATA_DIR}"),
    "show": _Command(
        "data show NAME", range(1, 2), ("data_dir",),
        f"Shows what is known about one dataset: counts, origin, defects, files and checksums.\n\n{_DATA_DIR}",
    ),
    "get": _Command(
        "data get NAME", range(1, 2), ("data_dir",), f"Downloads one dataset and checks it.\n\n{_DATA_DIR}"
    ),
    "convert": _Command("data convert FILE [OUT]", range(1, 3), ("labels", "max_bytes"), _CONVERT),
}  # fmt: skip

KEYS = {name: command.keys for name, command in _COMMANDS.items()}
"""The keys that each command takes."""


def run(arguments: Sequence[str]) -> str:
    """Return what ``lightning-ubs data`` with these arguments says.

    Raises:
        UsageError: The arguments cannot be understood.
        DataError: The command failed.
    """
    words = [one for one in arguments if "=" not in one or os.path.exists(one)]
    options = dict(one.split("=", 1) for one in arguments if one not in words)
    asks = {"--help", "-h"} & set(words)
    words = [word for word in words if word not in asks]
    if not words:
        return "\n".join(f"lightning-ubs {command.form}" for command in _COMMANDS.values()) + (
            "\n\nlightning-ubs data COMMAND --help says more."
        )
    name, names = words[0], words[1:]
    command = _COMMANDS.get(name)
    if command is None:
        raise UsageError(f"there is no command 'data {name}'; use data {', data '.join(_COMMANDS)}.")
    if asks:
        keys = " ".join(f"[{key}=...]" for key in command.keys)
        return f"lightning-ubs {command.form} {keys}\n\n{command.help}"
    if len(names) not in command.names:
        raise UsageError(f"'data {name}' was given {len(names)} names; use: lightning-ubs {command.form}.")
    for key, value in options.items():
        if key not in command.keys:
            raise UsageError(f"{key}={value}: 'data {name}' has no such key; valid keys: {', '.join(command.keys)}.")
    return _run(name, names, options)


def _run(command: str, names: Sequence[str], options: dict[str, str]) -> str:
    folder = options.get("data_dir")
    if command == "list":
        return list_datasets(folder)
    if command == "show":
        return show_dataset(names[0], folder)
    if command == "get":
        return get_dataset(names[0], folder)
    target = names[1] if len(names) > 1 else None
    return convert_file(names[0], target, _labels(options.get("labels")), asked(options.get("max_bytes")))


def _labels(text: str | None) -> LabelSpec:
    """Return labels as they are written on the command line: a count, a list in brackets, or one text.

    >>> _labels("-3"), _labels("[a, b c]"), _labels("topic_")
    (-3, ['a', 'b c'], 'topic_')
    """
    if text is None:
        return None
    if text.lstrip("-").isdigit():
        return int(text)
    return [name.strip() for name in text.strip("[]").split(",")] if text.startswith("[") else text


def list_datasets(data_dir: str | Path | None = None) -> str:
    """Return the table of all datasets; no network and no file is needed."""
    head = ("name", "n", "d", "q", "card.", "where", "note")
    rows = [head] + [_row(known, data_dir) for known in ENTRIES]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    right = {1, 2, 3, 4}
    lines = [
        "  ".join(
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    return "\n".join([
        *lines,
        "",
        "d and q are those of the paper's selection (view=paper, the default). embedded: made by the package, at once.",
        f"local: in {data_folder(data_dir)}. to download: fetched at first use, or by `lightning-ubs data get NAME`.",
        "DEFECTIVE: wrong as published; read `lightning-ubs data show NAME` before using it.",
    ])  # fmt: skip


def _row(known: Entry, data_dir: str | Path | None) -> tuple[str, ...]:
    d, q = (known.view.d, known.view.q) if known.view else (known.d, known.q)
    note = "DEFECTIVE as published" if known.defects else textwrap.shorten(known.remark, 60, placeholder=" ...")
    place = catalog.location(known, data_dir)
    return (known.name, str(known.n), str(d), str(q), f"{known.cardinality:.3f}", place, note)


def show_dataset(name: str, data_dir: str | Path | None = None) -> str:
    """Return all that is known of one dataset, its files and their checksums among it."""
    known = catalog.entry(name)
    facts = [
        ("name", ", also called ".join([known.name, *known.aliases])),
        ("samples", str(known.n)),
        ("features", str(known.d)),
        ("labels", str(known.q)),
        ("cardinality", f"{known.cardinality:.3f} labels per sample"),
        ("domain", known.domain),
        ("source", known.source),
        ("cite", known.citation),
        ("where", catalog.location(known, data_dir)),
    ]
    if known.view is not None:
        facts.append(("paper's view", _view_text(known)))
    further = (("repairs", known.repairs), ("DEFECTS", known.defects), ("remark", known.remark))
    facts += [(key, text) for key, text in further if text]
    lines = [_fact(key, text) for key, text in facts]
    for file in known.files:
        lines += [f"file          {file.name}, {file.bytes:,} bytes", f"  sha256      {file.sha256}"]
        lines.append(f"  from        {address(file)}")
    if known.files:
        lines.append(f"by hand       put the files above into {data_folder(data_dir) / known.folder}")
    return "\n".join(lines)


def _fact(key: str, text: str) -> str:
    return textwrap.fill(text, _WIDTH, initial_indent=key.ljust(14), subsequent_indent=" " * 14, break_on_hyphens=False)


def _view_text(known: Entry) -> str:
    view = known.view
    if view is None:
        return "all features and labels"
    text = f"the {view.feature_fraction:.0%} most frequent features ({view.d})"
    if view.label_positives:
        text += f", and the labels with at least {view.label_positives} positives ({view.q})"
    return text


def get_dataset(name: str, data_dir: str | Path | None = None) -> str:
    """Return where a dataset is and its counts; it is fetched if it is absent, and checked."""
    known = catalog.entry(name)
    data = catalog.load(name, data_dir, view="full")
    paths = catalog.fetch(name, data_dir)
    place = "made by the package" if known.embedded else ", ".join(str(path) for path in paths)
    return f"{known.name}: {_counts(data)}; {place}"


def convert_file(
    source: str | Path,
    target: str | Path | None = None,
    labels: LabelSpec = None,
    max_bytes: int | None = None,
) -> str:
    """Return what was written: a file that can be read, in the documented ``.npz`` format.

    Args:
        source: What :func:`lightning_ubs.data.read_dataset` reads.
        target: The file to write; default: the source's name with the ending ``.npz``, beside it.
        labels: See :func:`lightning_ubs.data.read_dataset`.
        max_bytes: See :func:`lightning_ubs.data.read_dataset`.
    """
    source = Path(source)
    target = Path(target) if target is not None else source.with_name(Path(bare_name(source)).stem + ".npz")
    if target.suffix != ".npz":
        raise DataError(f"{target}: the target must end in .npz; name it so.")
    data = read_dataset(source, labels, cache=False, max_bytes=max_bytes)
    try:
        if target.exists() and target.samefile(source):
            raise DataError(f"{target}: source and target are the same file; name another target.")
        write_npz(target, data)
    except OSError as error:
        raise DataError(f"{target} cannot be written: {write_problem(error, target.parent)}") from None
    return f"{target}: {_counts(data)}"


def _counts(data: MultiLabelData) -> str:
    kind = "sparse" if is_sparse(data.X) else "dense"
    cardinality = data.Y.sum() / len(data.Y)
    return (
        f"{data.X.shape[0]} samples, {data.X.shape[1]} features ({kind}), {data.Y.shape[1]} labels, "
        f"cardinality {cardinality:.3f}"
    )
