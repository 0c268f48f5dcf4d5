"""One display for a whole grid: a live bar in a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from lightning_ubs._utils.extras import optional_import
from lightning_ubs.experiment.record import RunRecord
from lightning_ubs.experiment.store import ResultsStore

_PAUSE = 0.3


@contextmanager
def watched(
    store: ResultsStore, keys: Sequence[str], total: int, known: int, jobs: int, say: Callable[[str], None] | None
) -> Iterator[None]:
    """Show every run of ``keys`` that appears in the store while the block lasts, whoever does it.

    Args:
        store: To watch.
        keys: Of the runs that are not there yet.
        total: Runs of the grid.
        known: Those that were done before.
        jobs: Runs at a time.
        say: Takes lines; None: standard output, with a live bar in a terminal.
    """
    tell = say or _sayer()
    if not keys:
        tell(f"all {total} runs are already done")
        yield
        return
    tell(f"{total} runs{f', {known} already done' if known else ''}; {jobs} at a time")
    display = Bar(total, known) if say is None and sys.stdout.isatty() else Lines(total, known, tell)
    place, waiting, over = store.size(), set(keys), threading.Event()

    def look(place: int) -> int:
        records, place = store.after(place)
        for record in records:
            if record.key in waiting:
                waiting.discard(record.key)
                display.finished(record)
        return place

    def watch() -> None:
        reached = place
        while not over.wait(_PAUSE):
            reached = look(reached)
        look(reached)

    with display:
        watcher = threading.Thread(target=watch, name="grid progress", daemon=True)
        watcher.start()
        try:
            yield
        finally:
            over.set()
            watcher.join()


class Lines:
    """One line per finished run, with the time that the rest will take."""

    def __init__(self, total: int, known: int, say: Callable[[str], None] | None = None) -> None:
        self.total, self.known = total, known
        self.done = known
        self._say = say or _sayer()
        self._began = time.monotonic()

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def finished(self, record: RunRecord) -> None:
        """A run has finished or failed."""
        self.done += 1
        self._say(f"[{self.done}/{self.total}] {record.title}: {result_text(record)}; {self.summary()}")

    def summary(self) -> str:
        """Runs left, and how long they will take at the pace so far."""
        new, left = self.done - self.known, self.total - self.done
        rest = (time.monotonic() - self._began) / new * left if new else 0.0
        return f"{left} left" + (f", about {span(rest)}" if rest else "")


class Bar(Lines):
    """A live bar, with one line above it per finished run."""

    def __init__(self, total: int, known: int) -> None:
        super().__init__(total, known)
        rich = optional_import("rich.progress")
        self._bar: Any = rich.Progress(
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

    def finished(self, record: RunRecord) -> None:
        """Say what came out, above the bar."""
        self.done += 1
        self._bar.console.print(f"{record.title}: {result_text(record)}", markup=False, highlight=False)
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


def _sayer() -> Callable[[str], None]:
    """Writes lines to what is standard output now; a run in this process may send its own output elsewhere."""
    stream = sys.stdout

    def say(text: str) -> None:
        stream.write(text + "\n")
        stream.flush()

    return say
