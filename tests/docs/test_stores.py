"""Every committed run is one that a command on the pages of results plans: given another folder, it does it again."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

pytest.importorskip("scipy")

from data_test_files import PUBLISHED
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf
from once import composed_once

from lightning_ubs.data.entries import register_datasets
from lightning_ubs.experiment import expand
from lightning_ubs.experiment.expand import expand_grid
from lightning_ubs.experiment.overrides import compare_overrides
from lightning_ubs.experiment.store import ResultsStore

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs"))
import tables  # noqa: E402

pytestmark = pytest.mark.docs

COMMAND = re.compile(r"^lightning-ubs compare (.*results=docs/results/(\w+))$", re.MULTILINE)
# Stores with runs of a dataset that is not in the catalog.
BY_HAND = ("alternatives", "alternatives_settings", "short")
# A script makes it, with training samples sorted by label, which no command does.
BY_SCRIPT = ("locality",)
STORES = sorted(
    name for path in (ROOT / "docs" / "results").glob("*/runs.jsonl*") if (name := path.parent.name) not in BY_SCRIPT
)


@cache
def commands() -> list[tuple[str, str]]:
    """Arguments and the store they name."""
    pages = "\n".join(page.read_text(encoding="utf-8") for page in tables.PAGES)
    return COMMAND.findall(pages)


def planned(arguments: str) -> set[str]:
    register_datasets()
    with initialize_config_module("lightning_ubs.configs", version_base="1.3"):
        config = compose("compare", compare_overrides(shlex.split(arguments)))
    return {run.key for run in expand_grid(OmegaConf.to_container(config, resolve=True))}  # type: ignore[arg-type]


@pytest.mark.parametrize("store", STORES)
def test_every_committed_run_is_planned_by_a_command_on_the_page(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if store in BY_HAND:
        if not PUBLISHED.is_dir():
            pytest.skip("a run is known by the content of stackex_chess.npz, which is not beside the repository")
        monkeypatch.setenv("LIGHTNING_UBS_DATA", str(PUBLISHED))
    monkeypatch.setattr(expand, "compose_train", composed_once)
    keys = {key for arguments, name in commands() if name == store for key in planned(arguments)}
    assert {record.key for record in ResultsStore(ROOT / "docs" / "results" / store).records()} <= keys


def test_every_command_on_the_pages_has_its_store() -> None:
    assert {store for _, store in commands()} == set(STORES)


def test_the_committed_stores_are_packed_and_compact() -> None:
    files = [path for path in (ROOT / "docs" / "results").rglob("*") if path.is_file()]
    assert {path.name for path in files if path.name.startswith("runs")} == {"runs.jsonl.xz"}
    assert sum(path.stat().st_size for path in files) < 10e6


def test_the_command_on_the_page_rebuilds_the_committed_report(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "results_in_detail.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"`lightning-ubs (report docs/results/main_table [^`]*)`", page)
    words = [*shlex.split(command), f"report.output={tmp_path}"]
    subprocess.run([sys.executable, "-m", "lightning_ubs", *words], cwd=ROOT, check=True, capture_output=True)
    kept, made = (
        (folder / "index.html").read_text(encoding="utf-8")
        for folder in (ROOT / "docs" / "results" / "main_table" / "report", tmp_path)
    )
    drawn = re.compile(r"<svg.*?</svg>", re.DOTALL)  # last digits of a coordinate may be another machine's
    assert drawn.sub("", made) == drawn.sub("", kept)
    assert len(drawn.findall(made)) == len(drawn.findall(kept))
