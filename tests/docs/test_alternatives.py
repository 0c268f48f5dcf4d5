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
    throughout, first, factor, ubs, loss, d2ace = (
        selected[f"weighted or balanced: {name}"]
        for name in ("label throughout", "label first", "Repeat factor", "UBS", "Loss", "D2ACE")
    )
    against, control = (known[f"weighted or balanced: UBS − {name}"] for name in ("label first", "UBS, shuffled P"))
    weighted, balanced, asymmetric = (losses[f"{name} − BCE"] for name in ("weighted", "balanced", "asymmetric"))
    gains = ", ".join(f"{cell} on {data}" for data, cell in weighted.items() if data not in (OVER, PRECISION))
    same = " and ".join(cell for data, cell in balanced.items() if data not in (OVER, PRECISION) and cell != "–")
    sets = ("rcv1subset1_aligned", "bibtex", "yahoo-Arts1")
    early, late = ([best_epoch(data, loss) for data in sets] for loss in ("weighted", "bce"))
    thirds = {
        name: [row[f"{third} labels"] for third in made.THIRDS] for name, row in tables["short_frequency"].items()
    }
    plain, emphasis = (thirds[f"Corel5k, weighted: {name}"] for name in ("plain shuffling", "label first"))
    values = [[cell.split(" ")[0] for cell in row] for row in (plain, emphasis)]
    assert answer(weighted) == "better"
    assert {answer(row) for row in (first, factor, ubs, loss, d2ace, against, control)} == {"undecided"}
    assert not {answer(row) for name, row in selected.items() if name.endswith(("UBS", "Loss", "D2ACE"))} & {"better"}
    return [
        f"the weighted loss gains {gains} in Macro-AUC over BCE: better, {bounds(weighted)} over the three.",
        f"The balanced loss gains {same} on the two sets where it ran, better on each.",
        f"worse than BCE on stackex_chess ({asymmetric['stackex_chess']})",
        f"in epoch {early[0]} of 40 on rcv1subset1_aligned, {early[1]} on bibtex and {early[2]} on yahoo-Arts1, and "
        f"with BCE in {late[0]}, {late[1]} and {late[2]}; on Corel5k it is in epoch "
        f"{best_epoch('Corel5k', 'weighted')} of 40.",
        f"label first gains {first[PRECISION]} in average precision, repeat factors {factor[PRECISION]};",
        f"in Macro-AUC {bounds(first)} and {bounds(factor)}, undecided over the three sets, and repeat factors are "
        f"better on stackex_chess ({factor['stackex_chess']}) and Corel5k ({factor['Corel5k']}).",
        f"resampling is at {throughout['rcv1subset1_aligned']} on rcv1subset1_aligned.",
        f"UBS gains {bounds(ubs)} in Macro-AUC and {ubs[PRECISION]} in average precision, LossBias {bounds(loss)} and "
        f"D2ACE {bounds(d2ace)} in Macro-AUC: all undecided.",
        f"UBS is at {bounds(against)} in Macro-AUC, undecided, and at {against[PRECISION]} in average precision;",
        f"against its own probabilities dealt to random samples at {bounds(control)}, undecided.",
        f"draws the rarest third {emphasis[0].split('(')[1].split(' ')[0]} times as often, and its precision is at "
        f"{values[1][0]} against {values[0][0]} of plain shuffling, while the medium and the frequent third go from "
        f"{values[0][1]} to {values[1][1]} and from {values[0][2]} to {values[1][2]}.",
    ]


def answer(row: dict[str, str]) -> str:
    """Over all sets."""
    return row[OVER].split(": ")[0]


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
