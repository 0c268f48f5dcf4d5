"""What a report says: every part computed when it is first asked for, and once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from lightning_ubs.report.cautions import find_cautions
from lightning_ubs.report.paper import PaperCell, compare_with_paper, paper_comparisons, read_paper
from lightning_ubs.report.results import Results
from lightning_ubs.report.significance import Significance, result_tests, run_tests, table_units
from lightning_ubs.report.tables import LabelBlock, Table, build_tables, find_label_blocks
from lightning_ubs.report.traces import Extremes, TracedRun, find_extremes, find_traces
from lightning_ubs.report.training_cost import Savings, Speed, find_savings, measure_speed
from lightning_ubs.report.verdict import Verdict, judge, margin_of, no_verdict, summary

TITLE = "Batch selection, compared"


@dataclass(frozen=True)
class PaperPart:
    """The paper's printed tables, tests of them, and its values beside ours by metric."""

    tables: Sequence[Table]
    tests: Sequence[Significance]
    cells: Sequence[tuple[Table, Sequence[PaperCell]]]


class Contents:
    """All numbers and words about a set of runs. Each part is computed when it is first asked for, and once.

    Args:
        results: The runs.
        margin: Differences that do not matter; None: `lightning_ubs.report.verdict.DEFAULT_MARGIN`.
        title: Heading of the page.
        paper: CSV of printed tables to show beside ours.
        command: What was typed to get here.
    """

    def __init__(
        self,
        results: Results,
        margin: float | None = None,
        title: str = TITLE,
        paper: Path | None = None,
        command: str = "",
    ) -> None:
        self.results = results
        self.margin = margin_of(results, margin)
        self.title = title
        self.command = command
        self._paper = paper

    @cached_property
    def tables(self) -> list[Table]:
        """One table per metric."""
        return build_tables(self.results)

    @cached_property
    def labels(self) -> list[LabelBlock]:
        """Rare and frequent labels, decisions and probabilities, by data and model."""
        return find_label_blocks(self.results)

    @cached_property
    def tests(self) -> list[Significance]:
        """Wilcoxon's and Friedman's tests by metric and model."""
        return result_tests(self.results, self.tables)

    @cached_property
    def verdicts(self) -> list[Verdict]:
        """One per comparison."""
        return judge(self.results, self.margin)

    @cached_property
    def speeds(self) -> list[Speed]:
        """How soon each method is where the one it is compared with gets."""
        found = [measure_speed(self.results, ours, theirs) for ours, theirs in self.results.comparisons]
        return [speed for speed in found if speed is not None]

    @cached_property
    def savings(self) -> Savings | None:
        """What cheaper trainings do; None where plain shuffling had one budget, so that nothing can be told."""
        return find_savings(self.results, self.margin) if self.results.several_budgets else None

    @cached_property
    def cautions(self) -> list[str]:
        """What a reader must know before believing the result."""
        return find_cautions(self.results)

    @cached_property
    def traced(self) -> list[TracedRun]:
        """Runs with the arrays that they left behind."""
        return find_traces(self.results)

    @cached_property
    def samples(self) -> list[Extremes]:
        """Samples selected most and least."""
        return find_extremes(self.traced)

    @cached_property
    def paper(self) -> PaperPart | None:
        """The paper's tables, if they were asked for."""
        if self._paper is None:
            return None
        printed = read_paper(self._paper)
        by_key = {table.metric.key: table for table in printed}
        tests = [
            run_tests(table_units(table, block), paper_comparisons(table.methods), block.ranked)
            for table in printed
            for block in table.blocks
        ]
        cells = [
            (table, found)
            for table in self.tables
            if table.metric.key in by_key
            and (found := compare_with_paper(table, by_key[table.metric.key], self.results))
        ]
        return PaperPart(printed, tests, cells)

    @property
    def answer(self) -> str:
        """The answer alone, in a sentence or a few."""
        return summary(self.verdicts) if self.verdicts else no_verdict(self.results)
