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


def rows_of(table: str, bold: str = "") -> dict[str, dict[str, str]]:
    """Row → column → cell, without what makes it bold, or with it."""
    head, _, *lines = [line.replace("**", bold).strip("| ").split(" | ") for line in table.splitlines()]
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
    selected, known = (tables[f"short_{name}"] for name in ("selections", "knowledge"))
    throughout, first, factor, ubs, loss, d2ace = (
        selected[f"weighted or balanced: {name}"]
        for name in ("label throughout", "label first", "Repeat factor", "UBS", "Loss", "D2ACE")
    )
    plain_loss = selected["BCE: label first"]
    against, control = (known[f"weighted or balanced: UBS − {name}"] for name in ("label first", "UBS, shuffled P"))
    losses = rows_of(made.ALTERNATIVE_TABLES["short_losses"](), bold="**")
    weighted, balanced, asymmetric = (losses[f"{name} − BCE"] for name in ("weighted", "balanced", "asymmetric"))
    sets = ("rcv1subset1_aligned", "bibtex", "yahoo-Arts1")
    early, late = ([best_epoch(data, loss) for data in sets] for loss in ("weighted", "bce"))
    thirds = {
        name: [row[f"{third} labels"] for third in made.THIRDS] for name, row in tables["short_frequency"].items()
    }
    plain, emphasis = (thirds[f"Corel5k: {name}"] for name in ("plain shuffling", "label first"))
    bibtex_plain, bibtex = (thirds[f"bibtex: {name}"][0] for name in ("plain shuffling", "label first"))
    by_ubs = [float(drawn(cells[0])) for name, cells in thirds.items() if name.endswith(": UBS")]
    both = [data for data, loss in made.chosen() if loss == "weighted" and (data, "bce") in made.chosen()]
    values = [[cell.split(" ")[0] for cell in row] for row in (plain, emphasis)]
    assert (answer(balanced), answer(asymmetric), answer(loss)) == ("better", "worse", answer(d2ace))
    told = rows_of(made.ALTERNATIVE_TABLES["short_selections"](), bold="**")
    by_model = [row for name, row in told.items() if name.endswith(("UBS", "Loss", "D2ACE"))]
    by_model += rows_of(made.ALTERNATIVE_TABLES["short_knowledge"](), bold="**").values()
    assert "better" not in {answer(row) for row in by_model}
    assert {better_on(row) for row in by_model} == {"none"}
    return [
        f"the weighted loss is at {spread(weighted)} against BCE in Macro-AUC, better on {ahead(weighted)} and worse "
        f"on {better_on(weighted, '**−')}; over all of them the difference is {bounds(weighted)}, {answer(weighted)}",
        f"and in average precision {weighted[PRECISION].strip('*')}.",
        f"The balanced loss is better on {ahead(balanced)} where it ran, and over them: {bounds(balanced)}.",
        f"the asymmetric one is worse over {sets_of(asymmetric)}, {bounds(asymmetric)}.",
        f"in epoch {early[0]} of 40 on rcv1subset1_aligned, {early[1]} on bibtex and {early[2]} on yahoo-Arts1, and "
        f"with BCE in {late[0]}, {late[1]} and {late[2]}.",
        f"With BCE label first gains {plain_loss[PRECISION].strip('*')} in average precision and {bounds(plain_loss)} "
        f"in Macro-AUC, {answer(plain_loss)}.",
        f"On top of the weighted or balanced loss it gains {first[PRECISION].strip('*')} and {bounds(first)}, "
        f"{answer(first)}, and depends on the set, {ends(first)}.",
        f"Repeat factors gain {factor[PRECISION].strip('*')} and {bounds(factor)}, {answer(factor)}, "
        f"{ends(factor)}, and are better on {better_on(told['weighted or balanced: Repeat factor'])}.",
        f"throughout the training, label first is at {bounds(throughout)} in Macro-AUC over {sets_of(throughout)}, "
        f"{answer(throughout)}.",
        f"UBS gains {bounds(ubs)} in Macro-AUC, {answer(ubs)}, and {ubs[PRECISION].strip('*')} in average precision,",
        f"LossBias {bounds(loss)} and D2ACE {bounds(d2ace)} in Macro-AUC over {sets_of(loss)}, {answer(loss)}.",
        f"Against label first UBS is at {bounds(against)} in Macro-AUC, {answer(against)}, and at "
        f"{against[PRECISION].strip('*')} in average precision;",
        f"against its own probabilities dealt to random samples at {bounds(control)} over {sets_of(control)}, "
        f"{answer(control)}.",
        f"draws the rarest third {drawn(emphasis[0])} times as often, and its precision is at "
        f"{values[1][0]} against {values[0][0]} of plain shuffling, while the medium and the frequent third go from "
        f"{values[0][1]} to {values[1][1]} and from {values[0][2]} to {values[1][2]}.",
        f"On bibtex it draws that third {drawn(bibtex)} times as often, and its precision goes from "
        f"{bibtex_plain.split(' ')[0]} to {bibtex.split(' ')[0]}.",
        f"UBS draws samples with the rarest third of the labels {min(by_ubs):.2f} to {max(by_ubs):.2f} times as often "
        "as plain shuffling.",
        f"Weighing the loss brings it forward on {sum(map(comes_sooner, both))} of {len(both)} sets:",
    ]


def drawn(cell: str) -> str:
    """How often, against plain passes."""
    return cell.split("(")[1].split(" ")[0]


def comes_sooner(data: str) -> bool:
    """Whether plain shuffling is at its best in an earlier epoch where the loss is weighted."""
    return best_epoch(data, "weighted") < best_epoch(data, "bce")


def better_on(row: dict[str, str], sign: str = "**+") -> str:
    """The sets on which the verdict is better, or with the other sign worse."""
    return " and ".join(data for data, cell in row.items() if data != PRECISION and cell.startswith(sign)) or "none"


def sets_of(row: dict[str, str]) -> str:
    """On how many sets there is a number."""
    return f"{sum(cell != '–' for data, cell in row.items() if data not in (OVER, PRECISION))} sets"


def ahead(row: dict[str, str]) -> str:
    """On how many sets the verdict is better, of how many."""
    cells = [cell for data, cell in row.items() if data not in (OVER, PRECISION) and cell != "–"]
    bold = sum(cell.startswith("**+") for cell in cells)
    return f"all {len(cells)} sets" if bold == len(cells) else f"{bold} of {len(cells)} sets"


def ends(row: dict[str, str]) -> str:
    """The smallest and the largest mean of a set, and which sets these are."""
    cells = [(cell, data) for data, cell in row.items() if data not in (OVER, PRECISION) and cell != "–"]
    cells = sorted(cells, key=lambda one: float(one[0].replace("−", "-")))
    return " to ".join(f"{cell} on {data}" for cell, data in (cells[0], cells[-1]))


def spread(row: dict[str, str]) -> str:
    """The smallest and the largest mean of a set."""
    cells = [cell for data, cell in row.items() if data not in (OVER, PRECISION) and cell != "–"]
    cells = sorted((cell.strip("*") for cell in cells), key=lambda cell: float(cell.replace("−", "-")))
    return f"{cells[0]} to {cells[-1]}"


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
    limit = made.SHORT_EPOCHS if data in made.SMALL else made.LONG_EPOCHS
    return int(curves[one.rate or one.short_rate][:limit].argmax()) + 1


@pytest.mark.parametrize("number", range(len(sentences())))
def test_what_the_page_says_is_in_the_stores(number: int) -> None:
    assert sentences()[number] in PAGE
