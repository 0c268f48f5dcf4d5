"""The catalog: find a dataset by name, fetch it, load it, check its counts."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np

from lightning_ubs._utils.checks import did_you_mean
from lightning_ubs._utils.extras import optional_import
from lightning_ubs.data.download import data_folder, fetch_file
from lightning_ubs.data.entries import ENTRIES, Entry
from lightning_ubs.data.preparation import paper_view, realign
from lightning_ubs.data.readers import read_dataset
from lightning_ubs.data.synthetic import make_digits, make_synthetic, make_tags
from lightning_ubs.data.types import MultiLabelData, is_sparse
from lightning_ubs.errors import DataError

log = logging.getLogger(__name__)

_BY_NAME = {name.lower(): entry for entry in ENTRIES for name in (entry.name, *entry.aliases)}
_EMBEDDED: dict[str, Callable[[], MultiLabelData]] = {
    "digits": make_digits,
    "tags": make_tags,
    "synthetic": make_synthetic,
}


def names() -> list[str]:
    """Return the names of all datasets.

    >>> names()[:3]
    ['scene', 'yeast', 'Corel5k']
    """
    return [entry.name for entry in ENTRIES]


def entry(name: str) -> Entry:
    """Return what is known of a dataset; case does not matter, and the paper's names are understood.

    >>> entry("Yahoo-Arts").name
    'yahoo-Arts1'
    """
    found = _BY_NAME.get(str(name).lower())
    if found is None:
        hint = did_you_mean(str(name), names(), f"choose from {', '.join(names())}.")
        raise DataError(f"no dataset is called {name!r}; {hint}")
    return found


def location(known: Entry, data_dir: str | Path | None = None) -> Literal["embedded", "local", "to download"]:
    """Return whether a dataset is made by the package, already on this machine, or to be fetched."""
    if known.embedded:
        return "embedded"
    folder = data_folder(data_dir)
    here = _published(known, folder) is not None or _archive(known, folder) is not None
    return "local" if here else "to download"


def _published(known: Entry, folder: Path) -> list[Path] | None:
    """Return the published files, or None unless all are there."""
    paths = [folder / known.folder / file.name for file in known.files]
    return paths if all(os.path.isfile(path) for path in paths) else None


def _archive(known: Entry, folder: Path) -> Path | None:
    """Return a file of the documented format: the dataset itself, or what it is derived from."""
    candidates = (folder / f"{name}.npz" for name in (known.name, *known.aliases, known.folder))
    return next((path for path in candidates if os.path.isfile(path)), None)


def fetch(name: str, data_dir: str | Path | None = None, download: bool = True) -> list[Path]:
    """Return the files of a dataset, fetched if they are absent; an embedded one has none.

    Published files are verified by their checksums. A ``NAME.npz`` in the folder has none to be verified by: it is
    used only where the published files are absent, and a warning says so.

    Args:
        name: A name of the catalog.
        data_dir: See :func:`load`.
        download: False refuses to use the network.
    """
    known, folder = entry(name), data_folder(data_dir)
    archive = _archive(known, folder) if _published(known, folder) is None else None
    if archive is not None:
        _warn_once(
            f"{known.name} is read from {archive}, which is not a published file, so no checksum can verify it; "
            f"remove it to use the published files."
        )
        return [archive]
    return [fetch_file(file, folder / known.folder, download) for file in known.files]


@functools.cache
def _warn_once(text: str) -> None:
    log.warning(text)


def load(
    name: str,
    data_dir: str | Path | None = None,
    view: Literal["paper", "full"] = "paper",
    download: bool = True,
    max_bytes: int | None = None,
) -> MultiLabelData:
    """Return a dataset of the catalog, fetched if it is not on this machine.

    Args:
        name: Such as ``"yeast"``; see :func:`names`.
        data_dir: The folder that holds ``NAME.npz``, or the published files in ``NAME/``. Default: the environment
            variable LIGHTNING_UBS_DATA, else ``~/.cache/lightning-ubs``. Downloads go there too.
        view: ``"paper"`` for the paper's selection of features and labels, ``"full"`` for all.
        download: False refuses to use the network.
        max_bytes: What a file may unpack to, see :func:`lightning_ubs.data.read_dataset`.

    Raises:
        DataError: The name is unknown, the files cannot be had, or they are not what was published.
    """
    known = entry(name)
    if view not in ("paper", "full"):
        raise DataError(f"view={view!r} must be 'paper' or 'full'; the default is 'paper'.")
    if known.embedded:
        return _EMBEDDED[known.name]()
    if known.defects:
        log.warning("%s: %s", known.name, known.defects)
    data = _read(known, fetch(name, data_dir, download), max_bytes)
    _expect(data, known.name, known.n, known.d, known.q)
    if view == "paper" and known.view is not None:
        data = paper_view(data, known.view)
        _expect(data, f"{known.name}, the paper's view", known.n, known.view.d, known.view.q)
    return data


def _read(known: Entry, paths: list[Path], max_bytes: int | None) -> MultiLabelData:
    xml = next((path for path in paths if path.suffix == ".xml"), None)
    parts = [read_dataset(path, labels=xml, max_bytes=max_bytes) for path in paths if path != xml]
    data = parts[0] if len(parts) == 1 else _stack(parts)
    ready = paths[0].name == f"{known.name}.npz"
    return realign(data, known.realigned) if known.realigned and not ready else data


def _stack(parts: list[MultiLabelData]) -> MultiLabelData:
    """Return the rows of several files with the same columns, one file below the other."""
    if is_sparse(parts[0].X):
        features = optional_import("scipy.sparse").vstack([part.X for part in parts], format="csr")
    else:
        features = np.vstack([part.X for part in parts])
    return parts[0]._replace(X=features, Y=np.vstack([part.Y for part in parts]))


def _expect(data: MultiLabelData, what: str, n: int, d: int, q: int) -> None:
    found = (*data.X.shape, data.Y.shape[1])
    if found != (n, d, q):
        raise DataError(
            f"{what}: found {found[0]} samples, {found[1]} features and {found[2]} labels instead of {n}, {d} and {q}; "
            "remove the file and fetch it again."
        )
