"""Every code block and command in the README and in docs/ runs.

The blocks of a page run one after the other, in an empty folder that has a copy of ``examples/``:

* ``python`` blocks share one namespace, which begins with what pages suppose the reader to have (`reader.py`);
* in ``bash`` blocks, ``lightning-ubs ...`` and ``python FILE ...`` run in this process;
* a block that draws a warning of this package, such as that nothing is selected, fails: it would do so to its reader;
* a block whose first line is a comment with a path (``# conf/model/cnn.yaml``) is written to that file;
* ``yaml`` blocks are parsed, ``text`` and ``bibtex`` are left alone.

HTML comments on the lines before a block say what differs here:

* ``<!-- test: train KEY=VALUE ... -->`` gives ``lightning-ubs train`` these arguments, in the place of those it has;
  ``compare``, ``report``, ``data`` do likewise, and ``python`` for programs;
* ``<!-- test: replace A => B -->`` changes a text in the block;
* ``<!-- test: skip REASON -->`` leaves it out, and says why.
"""

from __future__ import annotations

import logging
import re
import runpy
import shlex
import shutil
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import reader
import torch
import yaml
from hydra.core.global_hydra import GlobalHydra
from own_warnings import own_warnings

from lightning_ubs.cli import main

pytestmark = pytest.mark.docs

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(
    r"(?P<notes>(?:^<!-- test: .*? -->\n)*)^(?P<fence>```)(?P<language>\w+)\n(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
# Commands that the tests or the site run elsewhere, or that change the environment.
ELSEWHERE = re.compile(
    r"^(python3 -m venv|(\S*/)?pip install|\S*/(pre-commit|pytest|ruff|mypy)|\S*/python -m sphinx|bash \.ci/)"
)


@dataclass(frozen=True)
class Block:
    """A fenced block and what its page says about running it."""

    language: str
    code: str
    notes: tuple[str, ...]

    def noted(self, word: str) -> list[str]:
        return [note.removeprefix(word).strip() for note in self.notes if note.startswith(f"{word} ")]


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text(encoding="utf-8")
    for found in BLOCK.finditer(text):
        notes = tuple(re.findall(r"<!-- test: (.*?) -->", found["notes"]))
        yield Block(found["language"], found["code"], notes)


def runs(page: Path) -> bool:
    return any(block.language in ("python", "bash", "yaml") for block in blocks(page))


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """What programs change in a process is put back."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    reader.writes(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    handlers, level = logging.root.handlers[:], logging.root.level
    modules = set(sys.modules)
    with torch.random.fork_rng(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    logging.root.handlers[:], logging.root.level = handlers, level
    GlobalHydra.instance().clear()
    for name in set(sys.modules) - modules:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


@pytest.mark.parametrize("page", [page for page in PAGES if runs(page)], ids=lambda page: str(page.relative_to(ROOT)))
def test_every_block_of_the_page_runs(
    page: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names: dict[str, Any] = reader.has()
    for block in blocks(page):
        if block.noted("skip"):
            continue
        code = block.code
        for change in block.noted("replace"):
            before, after = change.split(" => ")
            assert before in code, f"{page.name}: nothing to replace: {before}"
            code = code.replace(before, after)
        written = re.match(r"# ([\w./]+\.(?:yaml|py|csv))$", code.splitlines()[0])
        if written:
            path = Path(written[1])
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(code)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            if block.language == "python":
                exec(compile(code, f"{page.name}", "exec"), names)
            elif block.language == "yaml":
                assert yaml.safe_load(code), f"{page.name}: an empty configuration"
            elif block.language == "bash":
                for command in commands(code):
                    run(command, block, monkeypatch)
        told = [str(one.message) for one in caught] + capsys.readouterr().out.splitlines()
        assert not own_warnings(told), f"{page.name} warns of what it says itself: {code}"


def commands(code: str) -> Iterator[list[str]]:
    """Commands of a block, without comments and without those that run elsewhere."""
    for line in code.replace("\\\n", " ").splitlines():
        for one in line.split(" && "):
            if one.strip() and not one.startswith("#") and not ELSEWHERE.match(one.strip()):
                yield [word for word in shlex.split(one, comments=True) if not re.match(r"[A-Z_]+=", word)]


def run(command: list[str], block: Block, monkeypatch: pytest.MonkeyPatch) -> None:
    program, *arguments = command
    if program.endswith("lightning-ubs"):
        assert main(changed(arguments, block.noted(arguments[0]))) == 0, command
    else:
        assert program == "python", f"{command}: no test knows how to run this; add a note to the block"
        monkeypatch.setattr(sys, "argv", changed(arguments, block.noted("python")))
        try:
            runpy.run_path(arguments[0], run_name="__main__")
        except SystemExit as stopped:
            if stopped.code:
                raise


def changed(arguments: list[str], notes: list[str]) -> list[str]:
    """The arguments with those of the notes in the place of theirs."""
    given = {change.partition("=")[0]: change for note in notes for change in note.split()}
    return [*(given.pop(argument.partition("=")[0], argument) for argument in arguments), *given.values()]


def test_what_is_not_run_says_why() -> None:
    skipped = [(page.name, reason) for page in PAGES for block in blocks(page) for reason in block.noted("skip")]
    assert all(len(reason.split()) > 3 for _, reason in skipped), skipped


def test_every_fence_is_known() -> None:
    known = {"python", "bash", "yaml", "text", "bibtex"}
    unknown = {(page.name, block.language) for page in PAGES for block in blocks(page)} - {
        (page.name, language) for page in PAGES for language in known
    }
    assert not unknown
