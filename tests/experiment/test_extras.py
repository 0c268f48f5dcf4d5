"""The extras can be installed together, with the versions that the constraints name."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pinned() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pairs = (line.split("==") for line in lines if line and not line.startswith("#"))
    return {plain(name): version for name, version in pairs}


def needed(requirement: Requirement, seen: set[str]) -> Iterator[Requirement]:
    """A requirement and all that it brings, as far as it is installed."""
    yield requirement
    name = str(requirement)
    if name in seen:
        return
    seen.add(name)
    try:
        found = distribution(requirement.name)
    except PackageNotFoundError:
        return
    for text in found.requires or ():
        other = Requirement(text)
        extras = requirement.extras or {""}
        if other.marker is None or any(other.marker.evaluate({"extra": extra}) for extra in extras):
            yield from needed(other, seen)


@pytest.mark.parametrize("extra", ["experiments", "ray", "dask", "docs"])
def test_everything_that_an_extra_brings_is_pinned_to_a_version_that_fits(extra: str) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    pins = pinned()
    wanted = [Requirement(text) for text in extras[extra] if not text.startswith("lightning-ubs")]
    assert wanted
    for requirement in (one for first in wanted for one in needed(first, set())):
        version = pins.get(plain(requirement.name))
        assert version is not None, f"{requirement} is not pinned"
        assert requirement.specifier.contains(version, prereleases=True), f"{requirement} against {version}"
