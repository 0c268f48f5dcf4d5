"""Optional dependencies, imported where they are used and named when they are missing."""

from __future__ import annotations

import importlib
import importlib.util
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
            f"{module.split('.')[0]!r} is needed here and not installed; run: pip install 'lightning-ubs[{extra}]'.",
            name=error.name,
        ) from None


def require_experiments() -> None:
    """Say at the start, rather than in every run, that the extra which experiments need is not installed."""
    for module in ("joblib", "sklearn", "scipy", "pandas", "jinja2", "matplotlib", "rich"):
        if importlib.util.find_spec(module) is None:
            optional_import(module)
