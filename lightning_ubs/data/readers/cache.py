"""What was parsed, kept in the user's cache folder until its source or the reader changes."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lightning_ubs._utils.files import sha256, user_cache, write_problem
from lightning_ubs.data.readers.budget import Budget
from lightning_ubs.data.readers.npz import MEMBERS, from_members, read_members, to_members, write_members
from lightning_ubs.data.readers.table import LabelSpec
from lightning_ubs.data.types import MultiLabelData, checked

log = logging.getLogger(__name__)

READER_VERSION = 2
"""To be raised whenever a reader returns something else for the same file."""

_KEPT = 64


def cache_key(path: Path, xml: Path | None, labels: LabelSpec) -> str:
    """Return 64 hexadecimal digits for the content of the source, its list of labels, and the version of the reader."""
    digests = [sha256(file) for file in (path, xml) if file is not None]
    by_name = xml is None and isinstance(labels, Sequence) and not isinstance(labels, str)
    chosen = None if xml is not None else [str(name) for name in labels] if by_name else labels  # type: ignore[union-attr]
    text = json.dumps([READER_VERSION, digests, chosen])
    return hashlib.sha256(text.encode()).hexdigest()


def cached(key: str, budget: Budget) -> MultiLabelData | None:
    """Return what was parsed before, or None where there is nothing, or nothing sound."""
    stored = _place(key)
    try:
        members = read_members(stored, (*MEMBERS, "checksum"), budget)
        told = str(members.pop("checksum")[()])
        if told != _checksum(key, members):
            raise ValueError("its checksum is wrong")
        return checked(from_members(members, budget), budget.source)
    except FileNotFoundError:
        return None
    except Exception as error:  # whatever is wrong with a cache, the source is still there
        log.warning("the cached copy %s is not used (%s); it is written again.", stored, error)
        return None


def keep(key: str, data: MultiLabelData) -> None:
    """Keep what was parsed, and drop the oldest of too many; a cache that cannot be written is no error."""
    stored, members = _place(key), to_members(data)
    try:
        stored.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_members(stored, members | {"checksum": np.asarray(_checksum(key, members))})
        for old in sorted(stored.parent.glob("*.npz"), key=lambda file: file.stat().st_mtime)[:-_KEPT]:
            old.unlink(missing_ok=True)
    except OSError as error:
        log.debug("not cached: %s", write_problem(error, stored.parent))


def _place(key: str) -> Path:
    return user_cache() / "parsed" / f"{key}.npz"


def _checksum(key: str, members: dict[str, Any]) -> str:
    digest = hashlib.sha256(key.encode())
    for name in sorted(members):
        array = np.ascontiguousarray(members[name])
        digest.update(f"{name} {array.dtype.str} {array.shape};".encode())
        digest.update(array.view(np.uint8).data if array.size else b"")
    return digest.hexdigest()
