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

from lightning_ubs.report.words import signed

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs"))
import alternative_tables as made  # noqa: E402

pytestmark = pytest.mark.docs

PAGE = " ".join((ROOT / "docs" / "alternatives.md").read_text(encoding="utf-8").split())
OVER, PRECISION = "these sets", "macro average precision"
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
    for store in ("short",):
        splits: dict[tuple[str, int], set[str]] = {}
        for (data, _, _, fold), line in lines_of(store).items():
            splits.setdefault((data, fold), set()).add(line["split"])
        assert splits
        assert all(len(found) == 1 for found in splits.values())


def rows_of(table: str) -> dict[str, dict[str, str]]:
    """Row → column → cell, without what is bold."""
    head, _, *lines = [line.replace("**", "").strip("| ").split(" | ") for line in table.splitlines()]
    return {name: dict(zip(head[1:], cells, strict=True)) for name, *cells in lines}


def test_a_cell_is_the_mean_difference_of_the_folds_read_by_hand() -> None:
    lines = lines_of("short")
    found = [
        np.mean(
            [value(lines, data, loss, "Class-aware", fold) - value(lines, data, loss, "Random", fold) for loss in two]
        )
        for two in [("weighted", "balanced")]
        for data in ["stackex_chess"]
        for fold in range(5)
    ]
    cell = rows_of(made.ALTERNATIVE_TABLES["short_selections"]())["weighted or balanced: label first"]["stackex_chess"]
    assert cell == signed(float(np.mean(found)))


def value(lines: Lines, data: str, loss: str, label: str, fold: int, metric: str = "macro_auc") -> float:
    return float(lines[data, loss, label, fold]["metrics"][metric]["value"])


def sentences() -> list[str]:
    """What the page says, with the numbers of the stores."""
    tables = {name: rows_of(make()) for name, make in made.ALTERNATIVE_TABLES.items()}
    losses, selected, known = (tables[f"short_{name}"] for name in ("losses", "selections", "knowledge"))
    first, factor, ubs = (selected[f"weighted or balanced: {name}"] for name in ("label first", "Repeat factor", "UBS"))
    against = known["weighted or balanced: UBS − label first"]
    weighted, balanced = losses["weighted − BCE"], losses["balanced − BCE"]
    gains = ", ".join(f"{cell} on {data}" for data, cell in weighted.items() if data not in (OVER, PRECISION))
    same = ", ".join(cell for data, cell in balanced.items() if data not in (OVER, PRECISION))
    early = [best_epoch("rcv1subset1_aligned", loss) for loss in ("weighted", "balanced")]
    return [
        f"`weighted` gains Macro-AUC over BCE: {gains}; `balanced` {same}.",
        f"at its best in epoch {early[0]} of 40 with the weighted and {early[1]} with the balanced loss on "
        f"rcv1subset1_aligned, in epoch {best_epoch('stackex_chess', 'balanced')} of 80 with the balanced one on "
        "stackex_chess",
        f"label first gains {first[PRECISION]} in average precision, repeat factors {factor[PRECISION]}",
        f"on stackex_chess both gain in Macro-AUC ({first['stackex_chess']} and {factor['stackex_chess']})",
        f"UBS gains {ubs[PRECISION]} in average precision and {bounds(ubs)} in Macro-AUC: undecided;",
        f"against label first it is at {against[PRECISION]} and {bounds(against)}: undecided as well",
        f"UBS is worse than plain shuffling ({selected['BCE: UBS']['stackex_chess']})",
    ]


def bounds(row: dict[str, str]) -> str:
    """Over all sets, without the answer."""
    return row[OVER].split(": ")[1]


def best_epoch(data: str, loss: str) -> int:
    """Of plain shuffling on fold 0, at the rate that was chosen."""
    one = made.chosen()[data, loss]
    curves = made.validation()[data, loss]
    return int(curves[one.rate or one.short_rate].argmax()) + 1


@pytest.mark.parametrize("number", range(len(sentences())))
def test_what_the_page_says_is_in_the_stores(number: int) -> None:
    assert sentences()[number] in PAGE
