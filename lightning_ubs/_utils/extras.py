"""Optional dependencies, imported where they are used and named when they are missing."""

from __future__ import annotations

import importlib
import importlib.util
import json
from importlib.metadata import PackageNotFoundError, distribution
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname


def optional_import(module: str, extra: str = "experiments") -> Any:
    """Import ``module``; if it is missing, say which extra of this package has it.

    >>> optional_import("math").pi > 3
    True
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or module.split(".")[0] != error.name.split(".")[0]:
            raise
        raise ModuleNotFoundError(
            f"{module.split('.')[0]!r} is needed here and not installed; run: pip install {installable(extra)}.",
            name=error.name,
        ) from None


def installable(extra: str) -> str:
    """What pip must be given to add an extra to this package, from where the package itself was installed.

    The installer wrote down a clone, a wheel or a repository (PEP 610), and nothing for a package index.
    """
    try:
        origin = json.loads(distribution("lightning-ubs").read_text("direct_url.json") or "{}")
    except PackageNotFoundError:  # imported from a folder that was never installed
        origin = {"url": "", "dir_info": {"editable": True}}
    url, vcs = origin.get("url"), origin.get("vcs_info")
    if url is None:
        return f"'lightning-ubs[{extra}]'"
    if origin.get("dir_info", {}).get("editable"):
        return f"-e '{url2pathname(urlsplit(url).path) or '.'}[{extra}]'"
    source = f"{vcs['vcs']}+{url}@{vcs['commit_id']}" if vcs else url
    return f"'lightning-ubs[{extra}] @ {source}'"


def require_experiments() -> None:
    """Say at the start, rather than in every run, that the extra which experiments need is not installed."""
    for module in ("joblib", "sklearn", "scipy", "pandas", "jinja2", "matplotlib", "rich"):
        if importlib.util.find_spec(module) is None:
            optional_import(module)
