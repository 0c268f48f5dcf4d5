"""The tables of a report as LaTeX, with booktabs."""

from __future__ import annotations

import math
from collections.abc import Sequence

from lightning_ubs.report.significance import Significance
from lightning_ubs.report.tables import Cell, Table
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
    lines = [
        r"\begin{tabular}{llllcc}",
        r"\toprule",
        r"Metric & Model & Method & Against & $p$ & $p$ (Holm) \\",
        r"\midrule",
    ]
    for test in tests:
        for pair in test.pairs:
            names = (test.units.metric.title, test.units.model, pair.ours, pair.theirs)
            lines.append(" & ".join([*map(latex_escape, names), f"{pair.p:.4f}", f"{pair.p_holm:.4f}"]) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def verdict_latex(verdicts: Sequence[Verdict]) -> str:
    """Gain and interval per comparison and metric."""
    lines = [
        r"\begin{tabular}{lllcc}",
        r"\toprule",
        r"Method & Against & Metric & Gain & 95\,\% interval \\",
        r"\midrule",
    ]
    for verdict in verdicts:
        for gain in verdict.gains:
            low, high = gain.interval.low, gain.interval.high
            bounds = f"[${low:+.4f}$, ${high:+.4f}$]" if math.isfinite(low) else "--"
            names = map(latex_escape, (verdict.ours, verdict.theirs, gain.metric.title))
            lines.append(" & ".join([*names, f"${gain.interval.mean:+.4f}$", bounds]) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


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
