"""What takes long to make is made once, also where the tests of a file run in several processes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock


def once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """The folder that ``make`` fills; other processes wait for it, and use it as well."""
    own = factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / name
    with FileLock(f"{folder}.lock"):
        if not (folder / "made").exists():
            folder.mkdir(exist_ok=True)
            make(folder)
            (folder / "made").touch()
    return folder
