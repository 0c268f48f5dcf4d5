from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    """Each test begins with an empty cache of parsed files; this is its folder."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("LIGHTNING_UBS_CACHE", str(folder))
    return folder / "parsed"
