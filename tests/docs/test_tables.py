"""The numbers of README and of the results page are those of the committed stores."""

from __future__ import annotations

import csv
import json
import lzma
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from data_test_files import PUBLISHED, needs_published
from omegaconf import OmegaConf

pytest.importorskip("scipy")

from lightning_ubs import BatchSelection
from lightning_ubs.report import Report
from lightning_ubs.report.evidence import Difference, Evidence, Interval, holm, paired_interval
from lightning_ubs.report.results import load_results
from lightning_ubs.report.words import signed

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs"))
import method_tables  # noqa: E402
import model_tables  # noqa: E402
import stored_results  # noqa: E402
import tables  # noqa: E402

pytestmark = pytest.mark.docs


def words_of(page: str) -> str:
    return " ".join((ROOT / page).read_text(encoding="utf-8").split())


def rows_of(table: str) -> dict[str, dict[str, str]]:
    """Row → column → cell."""
    head, _, *lines = [line.strip("| ").split(" | ") for line in table.splitlines()]
    return {name: dict(zip(head[1:], cells, strict=True)) for name, *cells in lines}


def lines_of(store: str) -> list[dict[str, Any]]:
    """The lines of a store, read without the package."""
    text = lzma.decompress((ROOT / "docs" / "results" / store / "runs.jsonl.xz").read_bytes())
    return [json.loads(line) for line in text.splitlines()]


def test_every_table_and_picture_is_up_to_date() -> None:
    done = subprocess.run([sys.executable, "docs/tables.py", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_every_table_is_shown_somewhere_and_a_changed_number_is_noticed() -> None:
    pages = [page.read_text(encoding="utf-8") for page in tables.PAGES]
    marked = {name for page in pages for _, name, _ in tables.MARKED.findall(page)}
    filed = {name for page in pages for name in tables.FILED.findall(page)}
    assert marked | filed == set(tables.TABLES)
    assert {path.stem for path in (ROOT / "docs" / "numbers").iterdir()} == filed
    assert all(any(f"({name}.svg)" in page for page in pages) for name in tables.PICTURES)
    for page in (page for page in pages if tables.MARKED.search(page)):
        number = next(found for found in tables.MARKED.finditer(page))
        start = page.index("0.", number.start())
        changed = page[: start + 2] + str((int(page[start + 2]) + 1) % 10) + page[start + 3 :]
        assert tables.filled(changed) == page


def test_no_saving_is_shown_as_the_pages_say() -> None:
    """The report's own verdict on the store, with the default margin and a wide one."""
    records = [run.record for run in load_results(ROOT / "docs" / "results" / "savings").runs]
    for chosen in (records, [one for one in records if one.data in tables.RARE]):
        for margin in (None, 0.005):
            report = Report.of(chosen, margin=margin)
            assert report.savings is not None
            assert not any(one.shown for one in report.savings.found)
    said = Report.of(records).summary
    assert "On tmc2007-500, Random's best epoch is 12 of 80 (median; 9 to 12)" in said
    assert "a plain training of 12 epochs does the same; compare against that." in said
    assert "On tmc2007-500 it is 12 of 80 with plain shuffling" in words_of("README.md")
    assert "No saving of training is shown" in words_of("docs/results.md")


def test_what_the_pages_say_of_a_quarter_of_the_training_is_in_its_store() -> None:
    detail, by_data = words_of("docs/results_in_detail.md"), tables.savings()
    for method, name in (("Loss", "Macro-AUC "), ("UBS", "")):
        found = Evidence.of(
            Difference(run.dataset, str(fold), 0, run.metrics["macro_auc"] - base.metrics["macro_auc"])
            for data in tables.RARE
            for fold, run in by_data[data][method, 20].items()
            for base in [by_data[data]["Random", 80][fold]]
        )
        assert found.units == 9
        span = f"{signed(found.interval().low)} to {signed(found.interval().high)}"
        assert f"{name}{signed(found.mean)}, {'95 % ' * (method == 'Loss')}{span}" in detail
    shown = rows_of(tables.savings_table())
    gained = [re.findall(r"\(([+−][\d.]+)", shown[f"{data}, UBS"]["20 epochs"])[0] for data in tables.RARE]
    assert "By set, UBS with 20 epochs is at {}, {} and {}".format(*gained) in detail


def test_what_the_correction_for_all_methods_leaves_on_rare_labels_is_said() -> None:
    """Holm over the methods of the table, by hand."""
    cells = [tables.of_budget(data, budget) for data in tables.RARE for budget in tables.BUDGETS]
    methods = [method for method in cells[0] if method != "Random"]
    found = {method: stored_results.evidence(cells, method, "map") for method in methods}
    smallest = min(found.values(), key=lambda one: one.p())
    left = {method for method, one in found.items() if one.mean > 0 and one.interval(1 - 0.05 / 7).low > 0}
    assert len(methods) == 7
    assert smallest is found["Random half"], "so UBS is the second of Holm's steps"
    ubs = found["UBS"].interval(1 - 0.05 / 6)
    page = words_of("docs/results.md")
    assert f"corrected for seven methods {ubs.low:.4f} to {ubs.high:.4f})" in page
    assert left <= {"UBS"}
    assert "`LossBias` has 0.0208 (0.0028 to 0.0387), which the correction does not leave." in page


def test_the_method_cards_say_what_the_table_says() -> None:
    card, row = words_of("docs/methods/loss_bias.md"), rows_of(tables.savings_equal())["Loss"]
    gain = re.findall(r"[+−]([\d.]+)", row["macro average precision, mean of these"])
    lost = re.findall(r"[+−]([\d.]+)", row["plenty of samples (3 folds): Macro-AUC"])
    assert "{} ({} to {})".format(*gain) in card
    assert f"{lost[0]} Macro-AUC ({lost[2]} to {lost[1]}, three folds, alone)" in card


def test_what_the_correction_for_six_methods_leaves_by_kind_is_said() -> None:
    left = []
    for name, by_data in method_tables.kinds().items():
        methods = [method for method in next(iter(by_data.values())) if method != "Random"]
        for metric, _, _ in method_tables.METRICS[:2]:
            found = [stored_results.evidence(by_data.values(), method, metric) for method in methods]
            adjusted = zip(methods, found, holm([one.p() for one in found]), strict=True)
            left += [(name, metric, method, one.mean > 0) for method, one, p in adjusted if p < 0.05]
    assert left == [("rcv1, yahoo, bibtex", "macro_auc", "UBS", True)]
    said = "the gain of UBS in Macro-AUC is the only one of this table that stays above 0, and no loss stays below"
    assert said in words_of("docs/results_in_detail.md")


def test_what_survives_on_rare_labels_is_in_the_table() -> None:
    rows, page = rows_of(tables.savings_equal()), words_of("docs/results.md")
    column = "macro average precision, mean of these"
    for method, said in (("UBS", "gains {} ({} to {}; "), ("Loss", "{} ({} to {})")):
        mean, low, high = re.findall(r"[+−]([\d.]+)", rows[method][column])
        assert rows[method][column].startswith("**+")
        assert said.format(mean, low, high) in page
    bold = {
        (method, budget): "**" in row[f"rare labels, Macro-AUC, {budget} epochs"]
        for method, row in rows.items()
        for budget in tables.BUDGETS
        if method in ("UBS", "Loss", "UBS batch")
    }
    assert [key for key, marked in bold.items() if marked] == [("UBS", 20)]
    gain = rows["UBS"][column].strip("*")
    assert f"with UBS {gain} average precision from the same training" in words_of("README.md")


def test_the_gain_over_eight_sets_is_said_to_hold_at_one_learning_rate_only() -> None:
    drawn = stored_results.complete(stored_results.stored("drawing"))
    chosen = stored_results.complete(stored_results.stored("main_table"))
    both = [runs for data, runs in chosen.items() if data in drawn]
    found = stored_results.evidence(both, "UBS").interval()
    words = f"{signed(found.mean)}"
    assert len(both) == 7
    assert f"{words} ({signed(found.low)} to {signed(found.high)})" in words_of("docs/results_in_detail.md")


def test_a_number_of_the_savings_is_that_of_its_runs() -> None:
    """By hand from the store's lines."""
    found = lines_of("savings")
    chosen = [
        one["metrics"]["macro_auc"]["value"]
        for one in found
        if (one["data"], one["label"], one["max_epochs"]) == ("bibtex", "Loss", 20)
        and one["fold"] in tables.savings()["bibtex"]["Random", 80]
    ]
    assert chosen
    assert f"{sum(chosen) / len(chosen):.4f}" in tables.savings_table()


def test_the_decision_on_the_default_way_of_drawing_is_what_its_store_says() -> None:
    runs = {
        (run.data, run.method.label, run.unit[0]): run.metrics["macro_auc"] for run in stored_results.stored("drawing")
    }
    sets = sorted({data for data, _, _ in runs})

    def gain_over(other: str) -> Interval:
        return paired_interval(
            [sum(runs[data, "UBS", fold] - runs[data, other, fold] for fold in range(5)) / 5 for data in sets]
        )

    gain, whole = gain_over("UBS batch"), gain_over("Random")
    said = f"({signed(whole.mean)}, {signed(whole.low)} to {signed(whole.high)}), also corrected for the five methods"
    assert said in words_of("docs/results_in_detail.md")
    words = f"Macro-AUC {signed(gain.mean)}, "
    assert len(sets) == 8
    for page, aside in (("results_in_detail", ""), ("paper", "95 % interval over the sets ")):
        assert f"{words}{aside}{signed(gain.low)} to {signed(gain.high)}" in words_of(f"docs/{page}.md")
    assert gain.mean > 0, "at least as good"
    assert BatchSelection().replacement == "systematic"


def test_what_is_trained_to_convergence_has_the_settings_that_were_chosen_on_random_alone() -> None:
    assert {run.method.label for run in stored_results.stored("settings")} == {"Random"}
    chosen = tables.chosen_settings()
    for name in ("main_table", "ablation_mlp", "sensitivity"):
        config = OmegaConf.load(ROOT / "configs" / "experiment" / f"{name}.yaml")
        for data in config.grid.data:
            assert (config.by_data[data].model.lr, config.by_data[data].trainer.max_epochs) == chosen[data], (
                name,
                data,
            )


def test_no_method_shows_a_gain_on_the_papers_sets_as_the_pages_say() -> None:
    gains = [line for line in method_tables.main_summary().splitlines() if "gain over Random" in line]
    assert len(gains) == len(method_tables.METRICS)
    assert not any("**+" in line for line in gains)
    for page in ("README.md", "docs/results.md"):
        assert "o method shows a gain over" in words_of(page)


def test_the_page_of_results_is_read_in_three_minutes() -> None:
    """Of its tables a reader takes a few cells."""
    lines = (ROOT / "docs" / "results.md").read_text(encoding="utf-8").splitlines()
    assert sum(len(line.split()) for line in lines if not line.startswith(("|", "<!--"))) < 800


def test_what_the_pages_say_of_the_two_kinds_of_sets_is_in_their_tables() -> None:
    gains, soon = (list(rows_of(one()).values()) for one in (method_tables.by_kind, method_tables.how_soon))
    auc, precision, others = (re.findall(r"[+−][\d.]+", gains[row]["UBS"]) for row in (0, 1, 2))
    page = words_of("docs/results.md")
    assert "macro average precision, {} ({} to {})".format(*precision) in page
    assert f"needs {soon[0]['UBS'].replace(' (', ' × the epochs of Random (')} to the validation score" in page
    assert "In Macro-AUC, {} ({} to {}), this is exploratory".format(*auc) in page
    assert "* **On the seven other sets it is behind**: {} ({} to {}) in Macro-AUC, alone".format(*others) in page


def test_the_claims_on_the_page_are_those_of_the_main_table() -> None:
    page = words_of("docs/results.md")
    rows = {
        line.split(" | ")[0].strip("| "): line.strip(" |").split(" | ")
        for line in method_tables.main_summary().splitlines()
    }
    ranks = dict(zip(next(iter(rows.values()))[1:], rows["Macro-AUC: average rank"][1:], strict=True))
    p = dict(zip(next(iter(rows.values()))[1:], rows["Macro-AUC: Wilcoxon's p, Holm"][1:], strict=True))
    said = f"average rank {ranks['UBS batch']} of 7 in Macro-AUC, Random {ranks['Random']}"
    assert f"{said}; drawn systematically {ranks['UBS']}" in page
    assert f"Wilcoxon with Holm: {p['Active batch']}, {p['Hard batch']}, {p['Recent batch']})" in page
    by_data = stored_results.complete(stored_results.stored("main_table"))
    paper = {data: runs for data, runs in by_data.items() if data in method_tables.PAPER_SETS}
    lost = paired_interval(stored_results.set_gains(paper, "UBS", base="UBS batch"))
    assert f"costs UBS {lost.mean:.4f} Macro-AUC ({lost.low:.4f} to {lost.high:.4f})" in page


def test_the_table_of_claims_repeats_the_numbers_by_set() -> None:
    page, by_data = words_of("docs/results.md"), stored_results.complete(stored_results.stored("main_table"))

    def gain_on(data: str, method: str) -> tuple[str, str]:
        gain = paired_interval(stored_results.gains(by_data[data][method], by_data[data]["Random"]))
        return f"{gain.mean:+.3f}".replace("-", "−"), f"{(gain.high - gain.low) / 2:.3f}"

    for data in ("yeast", "enron"):
        assert "{} {} ± {}".format(data, *gain_on(data, "Balance")) in page
    assert f"most on cal500 ({gain_on('cal500', 'UBS')[0]})" in page
    soon = rows_of(method_tables.speed_by_set())["yahoo-Arts1"]["UBS"]
    six, others = (row["UBS"].split(" ")[0] for row in list(rows_of(method_tables.how_soon()).values())[:2])
    said = f"on yahoo-Arts {soon} × the epochs of Random, on the rcv1, yahoo and bibtex sets {six}, on the others"
    assert f"{said} {others}." in page
    costs = {name: row["median"] for name, row in rows_of(tables.epoch_costs()).items()}
    wide, tiny = (costs[f"UBS epoch / plain, MLP, {size}"] for size in ("yahoo-Arts' shape", "yeast's size"))
    clif = costs["1 + UBS's own clock / epoch, CLIF"]
    assert f"{clif} with CLIF, {wide} with an MLP of that size, {tiny} where an epoch takes 26 ms" in page


def test_of_the_settings_of_ubs_only_the_way_of_drawing_shows_as_the_page_says() -> None:
    rows = [line.strip("| ").split(" | ") for line in method_tables.sensitivity().splitlines()[2:]]
    assert not any("**+" in cell for row in rows for cell in row)
    bounds = {row[0]: [float(one.replace("−", "-")) for one in re.findall(r"[+−][\d.]+", row[3])] for row in rows[1:]}
    assert "which a correction for so many settings does not leave" in words_of("docs/results_in_detail.md")
    worse = {name: (mean, low, high) for name, (mean, low, high) in bounds.items() if high < 0}
    assert set(worse) == {"UBS replacement=batch"}
    mean, low, high = (abs(one) for one in worse["UBS replacement=batch"])
    assert f"UBS is behind by {mean:.4f} ({high:.4f} to {low:.4f})" in words_of("docs/results_in_detail.md")


BASELINES = ("Random", "released Random")


def test_what_the_pages_say_of_the_released_baseline_is_in_its_table() -> None:
    rows, page = rows_of(method_tables.notebooks()), words_of("docs/results_in_detail.md")
    scene = {column: cell.lstrip("+") for column, cell in rows["clif, scene"].items()}
    assert f"UBS is {scene['UBS batch − released Random']} ahead of the released Random" in page
    assert f"as soon as it is shuffled and has weight decay: {scene['Random − released Random']}." in page
    assert f"UBS − Random, {scene['UBS batch − Random']} is left" in page
    for column in ("Random − released Random", "UBS batch − released Random"):
        said = re.findall(r"with CLIF on scene ([\d.]+) and ([\d.]+)", words_of("docs/results.md"))
        assert scene[column].split(" ")[0] in said[0]
    emotions, yeast = rows["clif, emotions"], rows["clif, yeast"]
    assert f"by {emotions['Random − released Random'].lstrip('−')} and level with it" in page
    half = [float(one) for one in yeast["Random − released Random"].lstrip("−").split(" ± ")]
    assert half[0] < half[1], "level with it"
    assert all(row[f"UBS batch − {other}"].startswith("−") for row in (emotions, yeast) for other in BASELINES)
    released = [row["Random − released Random"] for name, row in rows.items() if name.startswith("mlp, ")]
    assert len(released) == 4
    assert all(cell.startswith("+") for cell in released)
    mean, low, high = re.findall(r"[+−][\d.]+", rows["**mlp, mean of the sets**"]["Random − released Random"])
    assert f"by {mean.lstrip('+')} on average ({low} to {high})" in page


def test_with_the_papers_models_no_method_shows_a_gain_as_the_pages_say() -> None:
    gains = {name: row for name, row in rows_of(model_tables.paper_models_summary()).items() if ": gain in" in name}
    assert sum(name.startswith("all ") for name in gains) == len(method_tables.METRICS)
    assert not any("**+" in cell for row in gains.values() for cell in row.values())
    cells = rows_of(model_tables.paper_models())
    models, every = words_of("docs/results_models.md"), f"all {len(cells)} cells"
    over = gains[f"{every}: gain in Macro-AUC"]
    assert f"Over {every} UBS is behind by" in models
    lost = {name: behind(over[name]) for name in ("UBS", "UBS batch")}
    assert f"UBS is behind by {lost['UBS']}, and" in models
    assert f"released code by {lost['UBS batch']}" in models
    evidence = stored_results.evidence(
        [
            runs
            for by_data in model_tables.by_model(stored_results.stored("paper_models")).values()
            for runs in by_data.values()
        ],
        "UBS",
    )
    assert evidence.p() > 0.05
    ranks = rows_of(model_tables.paper_models_summary())[f"{every}: average rank in Macro-AUC"]
    said = f"average rank is {ranks['UBS batch']} of 7, Random's {ranks['Random']}, Balance's {ranks['Balance']};"
    assert f"{said} drawn systematically it is last, {max(ranks.values())}." in words_of("docs/results.md")
    assert ranks["UBS"] == max(ranks.values())
    assert f"UBS is behind by {lost['UBS']}, which cannot be told from 0" in words_of("docs/results.md")
    for model in ("CLIF", "DELA"):
        scene = {column: float(cell.strip("*")) for column, cell in cells[f"{model}, scene"].items()}
        assert scene["Random"] > scene["UBS, printed"] > scene["Random, printed"]
    none = [float(cells[f"{model}, cal500"][name].strip("*")) for model in ("CLIF", "MPVAE") for name in ranks]
    assert f"all values lie between {min(none):.4f} and {max(none):.4f}" in models
    assert f"not even with DELA ({cells['DELA, cal500']['Random'].strip('*')} with Random)" in models
    whole = {
        f"{model}, {data}": runs
        for model, by_data in model_tables.by_model(stored_results.stored("paper_models")).items()
        for data, runs in by_data.items()
    }
    apart = re.findall(
        r"[+−][\d.]+", stored_results.interval(stored_results.evidence(whole.values(), "UBS", base="UBS batch"))
    )
    assert "cannot be told apart ({}, {} to {})".format(*apart) in words_of("docs/results.md")
    learned = {name: runs for name, runs in whole.items() if stored_results.mean(runs["Random"]) > 0.51}
    assert len(learned) == len(whole) - 2
    means = [-np.mean(stored_results.set_gains(learned, method)) for method in ("UBS", "UBS batch")]
    ranking = stored_results.mean(whole["clif, cal500"]["Random"], "ranking_loss")
    assert f"its ranking loss with Random is {ranking:.4f};" in models
    assert "without the two cells at chance {:.4f} and {:.4f}.".format(*means) in models
    page, scene = words_of("docs/results_in_detail.md"), cells["CLIF, scene"]
    gain = float(scene["UBS, printed"]) - float(scene["Random, printed"])
    assert f"a gain of {gain:.4f} there, from {scene['Random, printed']} to {scene['UBS, printed']}, both" in page
    assert f"the {scene['Random'].strip('*')} of plain shuffling here" in page


def test_the_order_of_methods_is_not_that_in_which_runs_finished() -> None:
    runs = list(stored_results.stored("ablation_mlp"))
    forwards, backwards = (stored_results.complete(one)["yeast"] for one in (runs, reversed(runs)))
    assert list(forwards) == list(backwards)
    assert [name for name in forwards if name.startswith("UBS")] == ["UBS", "UBS-B", "UBS-C", "UBS-D"]


def test_after_three_times_the_epochs_every_method_stands_in_its_own_column() -> None:
    """By hand from the store's lines."""
    found = lines_of("three_times")
    whole = model_tables.by_model(stored_results.stored("three_times"))
    rows = {name: row for name, row in rows_of(model_tables.three_times()).items() if "300 epochs" in name}
    for name, row in rows.items():
        model, data = (words.lower() for words in name.split(", ")[:2])
        for method, folds in whole[model][data].items():
            chosen = [
                one["metrics"]["macro_auc"]["value"]
                for one in found
                if (one["model"], one["data"], one["label"]) == (model, data, method) and one["fold"] in folds
            ]
            assert row[method].startswith(f"{sum(chosen) / len(chosen):.4f} ("), (name, method)
    assert rows


def test_what_the_pages_say_of_three_times_the_epochs_is_in_its_tables() -> None:
    rows, summary = rows_of(model_tables.three_times()), rows_of(model_tables.three_times_summary())
    page, short_page = words_of("docs/results_models.md"), words_of("docs/results.md")
    late = {
        epochs: sum(
            int(row["best among the last 5"].split(" of 35")[0]) for name, row in rows.items() if epochs in name
        )
        for epochs in ("100 epochs", "300 epochs")
    }
    assert len(rows) == 12, "three models on two sets, after 100 and 300 epochs"
    assert "in {300 epochs} of 210 runs instead of {100 epochs}.".format_map(late) in page

    before, after = (row for name, row in summary.items() if "gain in" in name)
    said = {method: behind(after[method]) for method in ("UBS", "UBS batch")}
    short = {method: before[method].split(" ")[0].lstrip("−") for method in said}
    assert f"over the six cells by {said['UBS']} instead of {short['UBS']}, " in page
    assert f"drawn batch by batch by {said['UBS batch']} instead of {short['UBS batch']}." in page
    assert f"behind Random on scene and yeast by {said['UBS']}: two sets cannot tell." in short_page
    for method in ("Balance", "Active batch", "Recent batch", "Hard batch"):
        assert after[method].split("(")[1].startswith("−"), "no method is ahead of Random by more than chance"
    for name, row in rows.items():
        for method in said if "300 epochs" in name else ():
            gain, half = (number(one) for one in row[f"{method} − Random"].split(" ± "))
            assert gain < 0, "behind in all six"
            assert (-gain > half) == ("yeast" in name), "on yeast by more than chance, on scene not"


def test_the_ranks_and_gains_of_three_times_the_epochs_on_its_page_are_in_its_tables() -> None:
    summary, page = rows_of(model_tables.three_times_summary()), words_of("docs/results_models.md")
    before, after = (row for name, row in summary.items() if "average rank" in name)
    assert before["Random"] == after["Random"]
    assert f"Random keeps its average rank of {after['Random']}." in page
    batch = f"it falls from {before['UBS batch']} to {after['UBS batch']}."
    assert f"UBS stays behind with {after['UBS']}, and drawn batch by batch {batch}" in page
    assert sorted(after, key=lambda method: float(after[method]))[-2:] == ["UBS", "UBS batch"]


def behind(cell: str) -> str:
    """A loss with its interval, signs turned round."""
    mean, low, high = (float(one.replace("−", "-")) for one in re.findall(r"[+−][\d.]+", cell))
    return f"{-mean:.4f} ({-high:.4f} to {-low:.4f})".replace("-", "−")


def number(text: str) -> float:
    """The first number of a cell."""
    return float(text.split(" ")[0].replace("−", "-"))


def test_what_the_pages_say_of_texts_with_clif_is_in_its_table() -> None:
    rows, page = rows_of(model_tables.text_sets()), words_of("docs/results_models.md")
    means = {}
    for name, row in rows.items():
        for method in ("UBS", "UBS batch"):
            for words in ("", ", average precision"):
                gain, half = (float(one.replace("−", "-")) for one in row[f"{method} − Random{words}"].split(" ± "))
                assert gain < half, "a gain"
                means[name.split(",")[0], method + words] = gain + half
    assert {name for name, high in means.items() if high < 0} == {("LLOG-F", "UBS")}
    llog = {name.split(",")[0]: row for name, row in rows.items()}["LLOG-F"]
    assert f"On LLOG-F it is behind by {llog['UBS − Random'].lstrip('−')}, alone" in page
    assert float(llog["Random"]) > float(llog["UBS, printed"])
    assert float(rows["enron, 5 folds"]["Random"]) < float(rows["enron, 5 folds"]["Random, printed"])


def test_what_the_page_says_of_the_authors_rates_is_in_its_table() -> None:
    rows, page = rows_of(model_tables.authors_rate()), words_of("docs/results_models.md")
    total = rows.pop(f"all {len(rows) - 1} cells")
    slow, own = ([number(row[f"Random, {rate}"]) for row in rows.values()] for rate in ("1e-4", "authors' rate"))
    late = [total[f"Random's best among the last 5, {rate}"] for rate in ("authors' rate", "1e-4")]
    better = [after > before for before, after in zip(slow, own, strict=True)]
    assert "in {} runs instead of {}, and".format(late[0], late[1].split(" ")[0]) in page
    assert f"Random gains in {sum(better)} of {len(rows)} cells" in page
    _, after, before, best = max(
        (after - before, after, before, name) for name, after, before in zip(rows, own, slow, strict=True)
    )
    assert "most with {} on {} ".format(*best.split(", ")) + f"({after:.4f} instead of {before:.4f})" in page
    over = [total[f"{method} − Random, authors' rate"] for method in ("UBS", "UBS batch")]
    assert "it cannot be told from Random: {}, drawn batch by batch {}.".format(*over) in page
    assert all(re.search(r"\(−.* to \+", one) for one in over)
    ahead, behind = set(), set()
    for name, row in rows.items():
        for method in ("UBS", "UBS batch"):
            gained, half = (number(one) for one in row[f"{method} − Random, authors' rate"].split(" ± "))
            ahead |= {(name, method)} if gained > half else set()
            behind |= {(name, method)} if gained < -half else set()
    assert ahead == {("DELA, cal500", "UBS")}
    gain = "UBS − Random, authors' rate"
    assert {("CLIF, yeast", "UBS"), ("CLIF, yeast", "UBS batch")} <= behind
    assert f"it is ahead, alone: DELA on cal500 ({rows['DELA, cal500'][gain]}, on" in page
    runs = model_tables.by_model(stored_results.stored("authors_rate"))["dela"]["cal500"]
    seen = [np.mean([run.record.monitored for run in runs[method].values()]) for method in ("Random", "UBS")]
    assert f"on validation data it is behind there, by {seen[0] - seen[1]:.4f}." in page


def test_what_the_paper_prints_for_ubs_beside_plain_shuffling_at_the_authors_rates() -> None:
    rows, printed = rows_of(model_tables.authors_rate()), rows_of(model_tables.paper_models())
    theirs = {name: row["UBS, printed"] for name, row in printed.items() if name in rows and row["UBS, printed"] != "–"}
    more = [name for name, value in theirs.items() if number(rows[name]["Random, authors' rate"]) > float(value)]
    words = {4: "four", 5: "five", 6: "six", 9: "nine"}
    page = words_of("docs/results_models.md")
    assert (
        f"in {words[len(more)]} of the {words[len(theirs)]} cells that the paper has: on scene with each model, and"
        in page
    )
    assert set(more) == {"CLIF, scene", "DELA, scene", "MPVAE, scene", "DELA, yeast"}
    reached = {model: rows[f"{model}, cal500"]["Random, authors' rate"] for model in ("CLIF", "DELA", "MPVAE")}
    assert all(float(own) < float(printed[f"{model}, cal500"]["Random, printed"]) for model, own in reached.items())


def test_what_the_page_says_of_yahoo_arts_with_clif_is_in_its_table() -> None:
    soon = rows_of(model_tables.yahoo_arts())["UBS"]["epochs to the score that both reach, against Random"]
    assert f"on yahoo-Arts [{soon}]" in words_of("docs/results.md")


@needs_published
def test_of_the_sets_with_a_released_baseline_only_scene_is_sorted_by_label() -> None:
    """How much label frequencies differ between batches of the file, against shuffled ones."""
    for data in ("scene", "yeast", "emotions", "cal500"):
        labels = np.load(PUBLISHED / f"{data}.npz", allow_pickle=False)["Y"].astype(float)
        shuffled = labels[np.random.default_rng(0).permutation(len(labels))]
        in_order, random = (
            np.mean([np.square(rows[first : first + 128].mean(0)).mean() for first in range(0, len(rows) - 127, 128)])
            for rows in (labels - labels.mean(0), shuffled - labels.mean(0))
        )
        assert (in_order > 50 * random) == (data == "scene")
        assert in_order < 4 * random or data == "scene"


def test_the_files_of_numbers_hold_the_tables() -> None:
    with open(ROOT / "docs" / "numbers" / "savings.csv", newline="", encoding="utf-8") as file:
        found = {row.pop("Macro-AUC"): row for row in csv.DictReader(file)}
    assert found == rows_of(tables.savings_table())


def test_the_readme_decides_with_numbers_of_the_pages_behind_it() -> None:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 120
    _, bullets = "\n".join(lines).split("## Use it if … / don't if …")
    bullets = bullets.split("\n## ")[0]
    behind = words_of("docs/alternatives.md") + words_of("docs/results.md")
    number = r"[+−]0\.\d{4}"
    found = re.findall(rf"{number}(?: \({number} to {number}\))?", " ".join(bullets.split()))  # an interval as a whole
    assert len(re.findall(number, bullets)) >= 8
    assert {one for one in found if one not in behind} == set()
