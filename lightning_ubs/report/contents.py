"""Everything that a report says, computed once, before any of it is laid out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lightning_ubs.report.cautions import find_cautions
from lightning_ubs.report.paper import PaperCell, compare_with_paper, paper_comparisons, read_paper
from lightning_ubs.report.results import Results
from lightning_ubs.report.saving import find_savings, saving_sentence
from lightning_ubs.report.significance import Significance, result_tests, run_tests, table_units
from lightning_ubs.report.speed import Speed, measure_speed
from lightning_ubs.report.tables import Table, build_tables
from lightning_ubs.report.traces import Extremes, TracedRun, find_extremes, find_traces
from lightning_ubs.report.verdict import Verdict, judge, summary


@dataclass(frozen=True)
class PaperPart:
    """The paper's printed tables, tests of them, and its values beside ours by metric."""

    tables: Sequence[Table]
    tests: Sequence[Significance]
    cells: Sequence[tuple[Table, Sequence[PaperCell]]]


@dataclass(frozen=True)
class Report:
    """All numbers and words of the report."""

    title: str
    results: Results
    tables: Sequence[Table]
    tests: Sequence[Significance]
    verdicts: Sequence[Verdict]
    summary: str
    cautions: Sequence[str]
    speeds: Sequence[Speed]
    savings: Sequence[str]
    traced: Sequence[TracedRun]
    samples: Sequence[Extremes]
    paper: PaperPart | None


def make_report(results: Results, title: str, paper: Path | None = None, margin: float | None = None) -> Report:
    """Compute the report of these results.

    Args:
        results: The runs.
        title: Heading of the page.
        paper: CSV of printed tables to show beside ours.
        margin: Loss in the first metric up to which a cheaper training counts as no worse.
    """
    tables = build_tables(results)
    tests = result_tests(results, tables)
    verdicts = judge(results, tests)
    traced = find_traces(results)
    return Report(
        title=title,
        results=results,
        tables=tables,
        tests=tests,
        verdicts=verdicts,
        summary=summary(verdicts),
        cautions=find_cautions(results),
        speeds=[speed for method in results.methods if (speed := measure_speed(results, method)) is not None],
        savings=[saving_sentence(saving, margin) for saving in find_savings(results, margin)],
        traced=traced,
        samples=find_extremes(traced),
        paper=None if paper is None else _paper_part(results, tables, read_paper(paper)),
    )


def _paper_part(results: Results, ours: Sequence[Table], printed: Sequence[Table]) -> PaperPart:
    by_key = {table.metric.key: table for table in printed}
    tests = [
        run_tests(table_units(table, block), paper_comparisons(table.methods), block.ranked)
        for table in printed
        for block in table.blocks
    ]
    cells = [
        (table, found)
        for table in ours
        if table.metric.key in by_key and (found := compare_with_paper(table, by_key[table.metric.key], results))
    ]
    return PaperPart(printed, tests, cells)
