"""How far something long has come: a live bar in a terminal, a few plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from lightning_ubs._utils.extras import optional_import

_MANY = 40
_LINES = 5
Say = Callable[[str], None]


class Lines:
    """One line per finished part, with the time that the rest will take.

    Args:
        total: Parts in all.
        known: Those that were done before.
        say: Takes lines; None: standard output.
    """

    def __init__(self, total: int, known: int, say: Say | None = None) -> None:
        self.total, self.known = total, known
        self.done = known
        self._say = say or to_stdout()
        self._began = time.monotonic()

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def finished(self, title: str, outcome: str) -> None:
        """Count a part that has finished or failed, and tell how."""
        self.done += 1
        self._say(f"[{self.done}/{self.total}] {title}: {outcome}; {self.summary()}")

    def summary(self) -> str:
        """Parts left, and how long they will take at the pace so far."""
        new, left = self.done - self.known, self.total - self.done
        rest = (time.monotonic() - self._began) / new * left if new else 0.0
        return f"{left} left" + (f", about {span(rest)}" if rest else "")


class Bar(Lines):
    """A live bar, with one line above it per finished part."""

    def __init__(self, total: int, known: int, unit: str = "runs") -> None:
        super().__init__(total, known)
        rich = optional_import("rich.progress")
        self._bar: Any = rich.Progress(
            rich.TextColumn(f"{{task.completed:.0f}}/{{task.total:.0f}} {unit}"),
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

    def finished(self, title: str, outcome: str) -> None:
        """Say what came out, above the bar."""
        self.done += 1
        self._bar.console.print(f"{title}: {outcome}", markup=False, highlight=False)
        self._bar.update(self._task, completed=self.done, description=self.summary())


@contextmanager
def passing_bar(text: str, total: float) -> Iterator[Callable[[float], None] | None]:
    """A bar on standard error that vanishes at the end; yield what takes how much is done, None where there is none."""
    if not sys.stderr.isatty():
        yield None
        return
    try:
        rich, console = optional_import("rich.progress"), optional_import("rich.console")
    except ModuleNotFoundError:
        yield None
        return
    with rich.Progress(console=console.Console(stderr=True), transient=True) as bar:
        task = bar.add_task(text, total=total)
        yield lambda done: bar.update(task, completed=done)


@contextmanager
def show_progress(what: str, total: int) -> Iterator[Callable[[], None]]:
    """Yield a function to call after each of ``total`` parts of a report; a step of few parts shows nothing."""
    done = 0
    if total < _MANY:
        yield lambda: None
        return
    with passing_bar(f"report: {what}", total) as show:

        def advance() -> None:
            nonlocal done
            before, done = done, done + 1
            if show is not None:
                show(done)
            elif done * _LINES // total > before * _LINES // total:
                to_stdout()(f"report: {done} of {total} {what}")

        yield advance


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


def to_stdout() -> Say:
    """Write lines to what is standard output now; a run in this process may send its own output elsewhere."""
    stream = sys.stdout

    def say(text: str) -> None:
        stream.write(text + "\n")
        stream.flush()

    return say
