"""What the page of alternatives says is in the committed stores, and was chosen as it says."""

from __future__ import annotations

import json
import lzma
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from omegaconf import OmegaConf

pytest.importorskip("scipy")

from lightning_ubs.report.statistics import MIN_DATASETS, holm
from lightning_ubs.report.words import signed

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs"))
import alternative_tables as made  # noqa: E402
import stored_results  # noqa: E402

PAGE = " ".join((ROOT / "docs" / "alternatives.md").read_text(encoding="utf-8").split())
Lines = dict[tuple[str, str, str, int], dict[str, Any]]


def lines_of(store: str) -> Lines:
    """(Set, loss, method, fold) → line, read without the package."""
    text = lzma.decompress((ROOT / "docs" / "results" / store / "runs.jsonl.xz").read_bytes())
    lines = [json.loads(line) for line in text.splitlines()]
    return {(one["data"], one["model"].split("loss=")[1], one["label"], one["fold"]): one for one in lines}


def test_the_experiments_have_the_settings_that_plain_shuffling_chose() -> None:
    for name in ("alternatives", "short"):
        config: Any = OmegaConf.to_container(OmegaConf.load(ROOT / "configs" / "experiment" / f"{name}.yaml"))
        common = config["train"]["trainer"]["max_epochs"]
        told = {
            ("stackex_chess" if data == "file" else data, loss): (
                given["model"]["lr"],
                given.get("trainer", {}).get("max_epochs", common),
            )
            for loss, sets in config["by_loss"].items()
            for data, given in sets.items()
        }
        wanted = {
            key: (one.short_rate, one.short_epochs) if name == "short" else (one.rate, one.epochs)
            for key, one in made.chosen().items()
        }
        assert told == {key: one for key, one in wanted.items() if one[0] is not None}


def test_settings_are_those_of_the_best_validation_score_read_by_hand() -> None:
    text = lzma.decompress((ROOT / "docs" / "results" / "alternatives_settings" / "runs.jsonl.xz").read_bytes())
    runs = [json.loads(line) for line in text.splitlines()]
    chess = {
        one["model"].split("lr=")[1]: one["curves"]["val_macro_auc"]
        for one in runs
        if one["data"] == "stackex_chess" and "loss=weighted" in one["model"]
    }
    assert len(chess) == 3
    one = made.chosen()["stackex_chess", "weighted"]
    assert f"{one.rate:g}" == max(chess, key=lambda rate: max(chess[rate]))
    assert f"{one.short_rate:g}" == max(chess, key=lambda rate: max(chess[rate][: one.short_epochs]))
    assert {one["selection"] for one in runs} == {"random"}
    assert {one["fold"] for one in runs} == {0}


def test_runs_that_are_compared_share_their_split_and_their_order_of_the_warm_up() -> None:
    for store in ("short", "alternatives"):
        splits: dict[tuple[str, int], set[str]] = {}
        for (data, _, _, fold), line in lines_of(store).items():
            splits.setdefault((data, fold), set()).add(line["split"])
        assert splits
        assert all(len(found) == 1 for found in splits.values())
