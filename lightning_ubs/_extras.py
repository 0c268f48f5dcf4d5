"""Optional dependencies, imported where they are used and named when they are missing."""

from __future__ import annotations

import importlib
from typing import Any


def optional_import(module: str, extra: str = "experiments") -> Any:
    """Import ``module``; if it is missing, say which extra of this package brings it.

    >>> optional_import("math").pi > 3
    True
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or module.split(".")[0] != error.name.split(".")[0]:
            raise
        raise ModuleNotFoundError(
            f"{module!r} is needed here and not installed; run: pip install 'lightning-ubs[{extra}]'",
            name=error.name,
        ) from None
