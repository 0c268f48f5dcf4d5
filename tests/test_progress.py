"""What is shown of something long: lines where nobody watches, a bar in a terminal."""

from __future__ import annotations

import io
import sys

import pytest

pytest.importorskip("rich")

from rich.console import Console

from lightning_ubs._utils.progress import Bar, Lines, passing_bar, show_progress, span


def test_lines_count_what_is_done_and_left(capsys: pytest.CaptureFixture[str]) -> None:
    lines = Lines(total=5, known=2)
    lines.finished("yeast mlp UBS", "best")
    lines.finished("yeast mlp Random", "FAILED")
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("[3/5] yeast mlp UBS: best; 2 left")
    assert second.startswith("[4/5] yeast mlp Random: FAILED; 1 left")


def test_bar_shows_the_whole_grid_in_a_terminal() -> None:
    screen = io.StringIO()
    bar = Bar(total=3, known=1)
    bar._bar.live.console = Console(file=screen, force_terminal=True, width=100)
    with bar:
        bar.finished("[digits] Random", "best 0.5")
    assert "[digits] Random: best 0.5" in screen.getvalue()
    assert "2/3 runs" in screen.getvalue()
    assert "1 left" in screen.getvalue()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_bar_that_passes_is_drawn_in_a_terminal_and_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    with passing_bar("reading", 10) as show:
        assert show is None
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    with passing_bar("reading a.arff", 10) as show:
        assert show is not None
        show(5)
    assert "reading a.arff" in screen.getvalue()


def test_few_parts_show_nothing_and_many_five_lines(capsys: pytest.CaptureFixture[str]) -> None:
    for total in (39, 50):
        with show_progress("figures", total) as advance:
            for _ in range(total):
                advance()
    assert capsys.readouterr().out.splitlines() == [f"report: {done} of 50 figures" for done in (10, 20, 30, 40, 50)]


def test_spans_read_well() -> None:
    assert [span(value) for value in (0.4, 59.4, 59.6, 3599.6)] == ["0 s", "59 s", "1 min 0 s", "1 h 0 min"]
