"""What ``lightning-ubs data list | show | get | convert`` says, as text."""

from __future__ import annotations

import textwrap
from pathlib import Path

from lightning_ubs.data import catalog
from lightning_ubs.data.download import address, data_folder
from lightning_ubs.data.entries import ENTRIES, Entry
from lightning_ubs.data.readers import LabelSpec, read_dataset
from lightning_ubs.data.readers.npz import write_npz
from lightning_ubs.data.types import DataError, MultiLabelData, is_sparse

_WIDTH = 100


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
        ("cite", known.citation),
        ("where", catalog.location(known, data_dir)),
    ]
    if known.view is not None:
        facts.append(("paper's view", _view_text(known)))
    facts += [(key, text) for key, text in (("DEFECTS", known.defects), ("remark", known.remark)) if text]
    lines = [_fact(key, text) for key, text in facts]
    for file in known.files:
        lines += [f"file          {file.name}, {file.bytes:,} bytes", f"  sha256      {file.sha256}"]
        lines.append(f"  from        {address(file)}")
    if known.files:
        folder = data_folder(data_dir) / catalog.published_name(known)
        lines.append(f"by hand       put the files above into {folder}")
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
    """Fetch a dataset if it is absent, check it, and say where it is."""
    known = catalog.entry(name)
    data = catalog.load(name, data_dir, view="full")
    paths = catalog.fetch(name, data_dir)
    place = "made by the package" if known.embedded else ", ".join(str(path) for path in paths)
    return f"{known.name}: {_counts(data)}; {place}"


def convert_file(source: str | Path, target: str | Path | None = None, labels: LabelSpec = None) -> str:
    """Read any supported file and write the documented ``.npz`` format.

    Args:
        source: What :func:`lightning_ubs.data.read_dataset` reads.
        target: The file to write; default: the source's name with the ending ``.npz``, beside it.
        labels: For ARFF, see :func:`lightning_ubs.data.read_dataset`.
    """
    source = Path(source)
    stem = source.name.removesuffix(".gz").removesuffix(".bz2")
    target = Path(target) if target is not None else source.with_name(Path(stem).stem + ".npz")
    if target.suffix != ".npz":
        raise DataError(f"{target}: the target must end in .npz; name it so.")
    if target.exists() and target.resolve() == source.resolve():
        raise DataError(f"{target}: source and target are the same file; name another target.")
    data = read_dataset(source, labels, cache=False)
    try:
        write_npz(target, data)
    except OSError as error:
        raise DataError(f"{target}: cannot be written ({error.strerror}); choose another target.") from None
    return f"{target}: {_counts(data)}"


def _counts(data: MultiLabelData) -> str:
    kind = "sparse" if is_sparse(data.X) else "dense"
    cardinality = data.Y.sum() / len(data.Y)
    return (
        f"{data.X.shape[0]} samples, {data.X.shape[1]} features ({kind}), {data.Y.shape[1]} labels, "
        f"cardinality {cardinality:.3f}"
    )
