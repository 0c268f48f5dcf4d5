"""One display for a whole grid: a live bar in a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from lightning_ubs._extras import optional_import
from lightning_ubs.experiment.record import RunRecord


class Display(Protocol):
    """What the grid tells while it runs."""

    def started(self, title: str) -> None:
        """A run has begun."""

    def finished(self, title: str, record: RunRecord) -> None:
        """A run has ended, well or not."""


@contextmanager
def progress_display(total: int, known: int, jobs: int) -> Iterator[Display]:
    """The display that fits standard output."""
    if total == known:
        _say(f"all {total} runs are there already")
        yield Lines(total, known, jobs)
        return
    there = f", {known} there already" if known else ""
    _say(f"{total} runs{there}; {jobs} at a time")
    if not sys.stdout.isatty():
        yield Lines(total, known, jobs)
        return
    with Bar(total, known, jobs) as bar:
        yield bar


class Pace:
    """Counts runs and tells how long the rest will take."""

    def __init__(self, total: int, known: int, jobs: int) -> None:
        self.total, self.known, self.jobs = total, known, jobs
        self.done = known
        self.running: set[str] = set()
        self._began = time.monotonic()

    def started(self, title: str) -> None:
        """A run has begun, perhaps for the second time."""
        self.running.add(title)

    def finished(self, title: str, record: RunRecord) -> None:
        """A run has ended."""
        self.running.discard(title)
        self.done += 1

    def remaining(self) -> float | None:
        """Seconds, from the pace so far; None before the first run has ended."""
        new = self.done - self.known
        return (time.monotonic() - self._began) / new * (self.total - self.done) if new else None

    def summary(self) -> str:
        """Running, left and time left."""
        rest = self.remaining()
        left = self.total - self.done - len(self.running)
        return f"{len(self.running)} running, {left} left" + (f", about {span(rest)}" if rest else "")


class Lines(Pace):
    """One line per finished run."""

    def finished(self, title: str, record: RunRecord) -> None:
        """Say what came out."""
        super().finished(title, record)
        _say(f"[{self.done}/{self.total}] {title}: {result_text(record)}; {self.summary()}")


class Bar(Pace):
    """A live bar, with one line above it per finished run."""

    def __init__(self, total: int, known: int, jobs: int) -> None:
        super().__init__(total, known, jobs)
        rich = optional_import("rich.progress")
        self._bar = rich.Progress(
            rich.TextColumn("{task.completed:.0f}/{task.total:.0f} runs"),
            rich.BarColumn(),
            rich.TimeElapsedColumn(),
            rich.TextColumn("{task.description}", markup=False),
        )
        self._task = self._bar.add_task("", total=total, completed=known)

    def __enter__(self) -> Bar:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def started(self, title: str) -> None:
        """Show it as running."""
        super().started(title)
        self._refresh()

    def finished(self, title: str, record: RunRecord) -> None:
        """Say what came out, above the bar."""
        super().finished(title, record)
        self._bar.console.print(f"{title}: {result_text(record)}", markup=False, highlight=False)
        self._refresh()

    def _refresh(self) -> None:
        self._bar.update(self._task, completed=self.done, description=self.summary())


def result_text(record: RunRecord) -> str:
    """The outcome of a run in a few words."""
    if not record.finished:
        return f"FAILED: {str(record.error).splitlines()[-1]}"
    return f"best {record.monitor} {record.monitored:.4f} in {span(record.seconds or 0)}"


def span(seconds: float) -> str:
    """A length of time for people.

    >>> span(4.2), span(75), span(7300)
    ('4 s', '1 min 15 s', '2 h 1 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
