"""The tables of a report as files: CSV for programs, LaTeX for papers."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence
from typing import Any

from lightning_ubs.report.paper import PaperCell
from lightning_ubs.report.results import Results
from lightning_ubs.report.significance import Significance
from lightning_ubs.report.tables import COLUMNS, Cell, LabelBlock, Table
from lightning_ubs.report.traces import Extremes
from lightning_ubs.report.training_cost import Ratio, Speed
from lightning_ubs.report.verdict import Verdict


def table_csv(table: Table) -> str:
    """One line per value: metric, model, dataset, method, value, rank, spread, runs."""
    return _csv(
        ("metric", "model", "dataset", "method", "value", "rank", "spread", "runs"),
        (
            (
                table.metric.title,
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
            (table.metric.title, block.model, method, f"{rank:.4f}")
            for table in tables
            for block in table.blocks
            if block.average_ranks is not None
            for method, rank in zip(table.methods, block.average_ranks, strict=True)
            if rank is not None
        ),
    )


def significance_csv(tests: Sequence[Significance]) -> str:
    """Wilcoxon's test of each comparison, and Friedman's over all."""
    rows: list[Sequence[Any]] = []
    for test in tests:
        head = (test.units.metric.title, test.units.model, test.units.kind)
        rows += [
            (*head, "Wilcoxon", pair.ours, pair.theirs, pair.pairs, pair.wins, pair.losses, pair.p, pair.p_holm)
            for pair in test.pairs
        ]
        if test.ranks is not None:
            rows.append((*head, "Friedman", "", "", test.ranks.count, "", "", test.ranks.p, ""))
    names = ("metric", "model", "unit", "test", "method", "against", "pairs", "wins", "losses", "p", "p_holm")
    return _csv(names, rows)


def verdict_csv(verdicts: Sequence[Verdict]) -> str:
    """Gain, interval and datasets per comparison and metric; the answer stands with the metric that decides.

    ``low`` and ``high`` are the interval alone, ``low_corrected`` and ``high_corrected`` for all comparisons.
    """
    interval = ("gain", "low", "high", "low_corrected", "high_corrected", "units", "unit", "answer")
    return _csv(
        ("method", "against", "metric", *interval, "positive", "negative", "datasets"),
        (
            (
                verdict.ours,
                verdict.theirs,
                gain.metric.title,
                _number(gain.interval.mean),
                _number(gain.interval.low),
                _number(gain.interval.high),
                _number(verdict.interval.low) if gain is verdict.primary else "",
                _number(verdict.interval.high) if gain is verdict.primary else "",
                gain.evidence.units,
                gain.evidence.kind,
                verdict.answer if gain is verdict.primary else "",
                gain.positive,
                gain.negative,
                len(gain.datasets),
            )
            for verdict in verdicts
            for gain in verdict.gains
        ),
    )


def speed_csv(speeds: Sequence[Speed]) -> str:
    """Epochs, samples and seconds to the validation score that both methods reach, as ratios with their intervals."""
    kinds = ("epochs", "samples", "seconds")
    names = [f"{kind}{end}" for kind in kinds for end in ("", "_low", "_high")]
    return _csv(
        ("method", "against", "pairs", *names, "cost_per_epoch"),
        (
            (speed.method.label, speed.against.label, speed.pairs,
             *(text for kind in kinds for text in _ratio(getattr(speed, kind))), _number(speed.cost))
            for speed in speeds
        ),
    )  # fmt: skip


def labels_csv(blocks: Sequence[LabelBlock]) -> str:
    """Average precision and draws by label frequency, decisions and probabilities."""
    return _csv(
        ("data", "model", "method", "runs", *COLUMNS),
        (
            (block.data, block.model, row.method.label, row.runs, *(_number(row.values[name]) for name in COLUMNS))
            for block in blocks
            for row in block.rows
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
    return _csv(names, ([getattr(record, name) for name in names] for record in results.failed))


def paper_csv(metric: str, cells: Sequence[PaperCell]) -> str:
    """The paper's values beside ours."""
    return _csv(
        ("metric", "model", "dataset", "method", "paper", "ours", "difference"),
        ((metric, c.model, c.data, c.method, _number(c.paper), _number(c.ours), _number(c.difference)) for c in cells),
    )


def _number(value: float) -> str:
    return repr(value) if math.isfinite(value) else ""


def _ratio(ratio: Ratio | None) -> tuple[str, str, str]:
    return ("", "", "") if ratio is None else (_number(ratio.value), _number(ratio.low), _number(ratio.high))


def _csv(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return buffer.getvalue()


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
            lines.append(" & ".join([latex_escape(data), *(_cell_text(cell) for cell in row)]) + r" \\")
        if block.average_ranks is not None:
            best = block.best_average
            ranks = [_rank_text(rank, rank == best) for rank in block.average_ranks]
            lines += [r"\midrule", " & ".join(["Avg (Rank)", *ranks]) + r" \\"]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def significance_latex(tests: Sequence[Significance]) -> str:
    """P-values of each comparison, alone and with Holm's correction."""
    rows = [
        [*map(latex_escape, (test.units.metric.title, test.units.model, pair.ours, pair.theirs)), *p_values]
        for test in tests
        for pair in test.pairs
        for p_values in [(f"{pair.p:.4f}", f"{pair.p_holm:.4f}")]
    ]
    return _tabular("llllcc", r"Metric & Model & Method & Against & $p$ & $p$ (Holm) \\", rows)


def verdict_latex(verdicts: Sequence[Verdict]) -> str:
    """Gain and interval per comparison and metric."""
    rows = []
    for verdict in verdicts:
        for gain in verdict.gains:
            low, high = gain.interval.low, gain.interval.high
            bounds = f"[${low:+.4f}$, ${high:+.4f}$]" if math.isfinite(low) else "--"
            names = map(latex_escape, (verdict.ours, verdict.theirs, gain.metric.title))
            rows.append([*names, f"${gain.interval.mean:+.4f}$", bounds])
    return _tabular("lllcc", r"Method & Against & Metric & Gain & 95\,\% interval \\", rows)


def _tabular(columns: str, heading: str, rows: Iterable[Sequence[str]]) -> str:
    begin = [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", heading, r"\midrule"]
    lines = [" & ".join(row) + r" \\" for row in rows]
    return "\n".join([*begin, *lines, r"\bottomrule", r"\end{tabular}", ""])


def _cell_text(cell: Cell | None) -> str:
    if cell is None:
        return "--"
    text = f"{cell.value:.4f}" + (f"({cell.rank})" if cell.rank is not None else "")
    spread = rf"{{\scriptsize$\pm${cell.spread:.4f}}}" if math.isfinite(cell.spread) else ""
    return rf"\textbf{{{text}}}{spread}" if cell.best else text + spread


def _rank_text(rank: float | None, best: bool) -> str:
    if rank is None:
        return "--"
    return rf"\textbf{{{rank:.2f}}}" if best else f"{rank:.2f}"
