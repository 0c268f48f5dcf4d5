"""The same numbers as CSV and LaTeX."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence
from typing import Any

from lightning_ubs.report.paper import Beside
from lightning_ubs.report.results import Results
from lightning_ubs.report.significance import Significance
from lightning_ubs.report.speed import Speed
from lightning_ubs.report.tables import Cell, Table
from lightning_ubs.report.traces import Extremes
from lightning_ubs.report.verdict import Verdict

_LATEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "%": r"\%",
    "#": r"\#",
    "_": r"\_",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "λ": r"$\lambda$",
}


def latex_escape(text: str) -> str:
    r"""Text as LaTeX prints it.

    >>> latex_escape("Recent_LC & 5%")
    'Recent\\_LC \\& 5\\%'
    """
    return "".join(_LATEX.get(character, character) for character in text)


def table_csv(table: Table) -> str:
    """One line per value: metric, model, dataset, method, value, rank, spread, runs."""
    return _csv(
        ("metric", "model", "dataset", "method", "value", "rank", "spread", "runs"),
        (
            (
                table.measure.title,
                block.model,
                data,
                method,
                _number(cell.value),
                cell.rank,
                _number(cell.spread),
                cell.runs,
            )
            for block in table.blocks
            for data, row in block.rows.items()
            for method, cell in zip(table.methods, row, strict=True)
            if cell is not None
        ),
    )


def rank_csv(tables: Sequence[Table]) -> str:
    """Average ranks of all tables."""
    return _csv(
        ("metric", "model", "method", "average_rank"),
        (
            (table.measure.title, block.model, method, f"{rank:.4f}")
            for table in tables
            for block in table.blocks
            if block.average_ranks is not None
            for method, rank in zip(table.methods, block.average_ranks, strict=True)
        ),
    )


def table_latex(table: Table) -> str:
    """A booktabs table with one block per model."""
    columns = len(table.methods)
    lines = [
        rf"\begin{{tabular}}{{l{'c' * columns}}}",
        r"\toprule",
        " & ".join(["Dataset", *(rf"\textit{{{latex_escape(name)}}}" for name in table.methods)]) + r" \\",
    ]
    for block in table.blocks:
        lines += [r"\midrule", rf"\multicolumn{{{columns + 1}}}{{c}}{{{latex_escape(block.model)}}} \\", r"\midrule"]
        for data, row in block.rows.items():
            lines.append(" & ".join([latex_escape(data), *(_latex_cell(cell) for cell in row)]) + r" \\")
        if block.average_ranks is not None:
            best = min(block.average_ranks)
            ranks = [rf"\textbf{{{rank:.2f}}}" if rank == best else f"{rank:.2f}" for rank in block.average_ranks]
            lines += [r"\midrule", " & ".join(["Avg (Rank)", *ranks]) + r" \\"]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def significance_csv(tests: Sequence[Significance]) -> str:
    """Wilcoxon's test of the reference method against each competitor, and Friedman's over all."""
    rows: list[Sequence[Any]] = []
    for test in tests:
        head = (test.units.measure.title, test.units.model, test.units.kind)
        rows += [
            (*head, "Wilcoxon", pair.competitor, pair.pairs, pair.wins, pair.losses, pair.p, pair.p_holm)
            for pair in test.pairs
        ]
        if test.ranks is not None:
            rows.append((*head, "Friedman", "", test.ranks.count, "", "", test.ranks.p, ""))
    return _csv(("metric", "model", "unit", "test", "competitor", "pairs", "wins", "losses", "p", "p_holm"), rows)


def significance_latex(tests: Sequence[Significance]) -> str:
    """P-values with Holm's correction in brackets."""
    lines = [r"\begin{tabular}{lllcc}", r"\toprule", r"Metric & Model & Competitor & $p$ & $p$ (Holm) \\", r"\midrule"]
    for test in tests:
        for pair in test.pairs:
            names = (test.units.measure.title, test.units.model, pair.competitor)
            lines.append(" & ".join([*map(latex_escape, names), f"{pair.p:.4f}", f"{pair.p_holm:.4f}"]) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def verdict_csv(verdicts: Sequence[Verdict]) -> str:
    """Gain, interval and datasets per competitor and metric."""
    return _csv(
        ("competitor", "metric", "gain", "low", "high", "pairs", "unit", "verdict", "better", "worse", "datasets"),
        (
            (
                verdict.competitor,
                gain.measure.title,
                _number(gain.interval.mean),
                _number(gain.interval.low),
                _number(gain.interval.high),
                gain.interval.pairs,
                gain.unit,
                gain.interval.verdict,
                gain.better,
                gain.worse,
                len(gain.datasets),
            )
            for verdict in verdicts
            for gain in verdict.gains
        ),
    )


def speed_csv(speeds: Sequence[Speed]) -> str:
    """Epochs and seconds to the baseline's best validation score, and cost per epoch."""
    return _csv(
        ("method", "pairs", "reached", "epochs", "random_epochs", "seconds", "random_seconds", "cost_per_epoch"),
        (
            (
                speed.method.label,
                speed.pairs,
                speed.reached,
                _number(speed.epochs),
                _number(speed.baseline_epochs),
                _number(speed.seconds),
                _number(speed.baseline_seconds),
                _number(speed.cost),
            )
            for speed in speeds
        ),
    )


def samples_csv(found: Sequence[Extremes]) -> str:
    """The samples selected most and least."""
    return _csv(
        ("data", "model", "method", "end", "row", "times_selected", "mean_uncertainty", "fluctuation", "labels"),
        (
            (one.run.data, one.run.model, one.run.method.label, end, sample.row, sample.times,
             _number(sample.uncertainty), _number(sample.fluctuation), " | ".join(sample.labels))
            for one in found
            for end, samples in (("most", one.most), ("least", one.least))
            for sample in samples
        ),
    )  # fmt: skip


def failed_csv(results: Results) -> str:
    """Runs that failed, with their errors."""
    names = ("key", "data", "model", "selection", "variant", "fold", "seed", "error")
    return _csv(names, ([record.get(name, "") for name in names] for record in results.failed))


def beside_csv(metric: str, cells: Sequence[Beside]) -> str:
    """The paper's values beside ours."""
    return _csv(
        ("metric", "model", "dataset", "method", "paper", "ours", "difference"),
        ((metric, c.model, c.data, c.method, _number(c.paper), _number(c.ours), _number(c.difference)) for c in cells),
    )


def _latex_cell(cell: Cell | None) -> str:
    if cell is None:
        return "--"
    text = f"{cell.value:.4f}" + (f"({cell.rank})" if cell.rank is not None else "")
    spread = rf"{{\scriptsize$\pm${cell.spread:.4f}}}" if math.isfinite(cell.spread) else ""
    return rf"\textbf{{{text}}}{spread}" if cell.best else text + spread


def _number(value: float) -> str:
    return repr(value) if math.isfinite(value) else ""


def _csv(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return buffer.getvalue()
