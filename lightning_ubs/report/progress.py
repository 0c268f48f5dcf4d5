"""How far a long step has come: a live bar in a terminal, a few plain lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from lightning_ubs._utils.extras import optional_import

_MANY = 40
_LINES = 5


@contextmanager
def show_progress(what: str, total: int) -> Iterator[Callable[[], None]]:
    """Yield a function to call after each of ``total`` parts; a step of few parts shows nothing."""
    if total < _MANY:
        yield lambda: None
    elif sys.stderr.isatty():
        rich, console = optional_import("rich.progress"), optional_import("rich.console")
        with rich.Progress(console=console.Console(stderr=True), transient=True) as bar:
            task = bar.add_task(f"report: {what}", total=total)
            yield lambda: bar.advance(task)
    else:
        yield _Lines(what, total)


class _Lines:
    """Writes a line at each fifth of the way."""

    def __init__(self, what: str, total: int) -> None:
        self.what, self.total, self.done = what, total, 0

    def __call__(self) -> None:
        before, self.done = self.done, self.done + 1
        if self.done * _LINES // self.total > before * _LINES // self.total:
            sys.stdout.write(f"report: {self.done} of {self.total} {self.what}\n")
            sys.stdout.flush()
