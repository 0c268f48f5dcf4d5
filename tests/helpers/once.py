"""What takes long to make is made once, also where the tests of a file run in several processes."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from lightning_ubs.experiment.config import compose_train


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


@cache
def _composed(overrides: tuple[str, ...]) -> dict[str, Any]:
    return compose_train(overrides)


def composed_once(overrides: Sequence[str] = ()) -> dict[str, Any]:
    """What `compose_train` gives, for the planning of many grids of this package's own configurations.

    It takes nine tenths of the time of planning. Nobody changes what it returns.
    """
    return _composed(tuple(overrides))
