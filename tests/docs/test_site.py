"""The site builds without a warning, its links lead somewhere, and it holds every message and every public name."""

from __future__ import annotations

import importlib
import inspect
import re
import runpy
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from once import once

import lightning_ubs

pytest.importorskip("sphinx")

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs" / "_ext"))
from raised_messages import FRAGMENTS, Message, messages  # noqa: E402

pytestmark = pytest.mark.docs

PUBLIC = ("", ".functional", ".state", ".strategies", ".data", ".models", ".metrics", ".report")
# Messages of one part: they wrap another's words, tell a fact that needs nothing, or say at once what is allowed.
ONE_PART = re.compile(
    r"raised ‹|: ‹[^›]*›$|it is (kept|cut off|written again)"
    r"|must be (a )?(whole )?numbers?|^give exactly|continues with"
)


class Links(HTMLParser):
    """The ids and the links of a page."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: set[str] = set()
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.ids |= {found["id"] or ""} if "id" in found else set()
        self.links |= {found[key] or "" for key in ("href", "src") if key in found}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return once(tmp_path_factory, "site", build) / "html"


def build(folder: Path) -> None:
    command = [sys.executable, "-m", "sphinx", "-W", "-q", "-b", "html", "-d", str(folder / "trees"), "docs"]
    built = subprocess.run([*command, str(folder / "html")], cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr


def test_the_site_builds_without_warnings_and_every_internal_link_leads_somewhere(site: Path) -> None:
    pages = {page.resolve(): Links(page) for page in site.rglob("*.html") if "_static" not in page.parts}
    assert len(pages) > 40
    broken = set()
    for page, seen in pages.items():
        for link in seen.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc or link.startswith("//"):
                continue  # other servers are not asked
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            anchor = unquote(parts.fragment)
            if not target.exists() or (anchor and target in pages and anchor not in pages[target].ids):
                broken.add((page.name, link))
    assert not broken


def test_nothing_on_the_site_is_loaded_from_another_server(site: Path) -> None:
    loaded = {
        found
        for page in site.rglob("*.html")
        for found in re.findall(r'<(?:script|img|iframe)[^>]* src="(https?:[^"]+)"', page.read_text(encoding="utf-8"))
    }
    assert not loaded


def test_every_message_is_on_the_troubleshooting_page(site: Path) -> None:
    shown = Plain(site / "troubleshooting.html").text
    missing = [message for message in messages() if squeezed(message.parts[0]) not in shown]
    assert len(messages()) > 200
    assert not missing


class Plain(HTMLParser):
    """The text of a page, without spaces and quotation marks, which the page sets in its own way."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self._text: list[str] = []
        self.feed(page.read_text(encoding="utf-8"))
        self.text = squeezed("".join(self._text))

    def handle_data(self, data: str) -> None:
        self._text.append(data)


def squeezed(text: str) -> str:
    return re.sub(r"[\s'\"“”‘’]", "", text)


def test_the_pages_stay_short() -> None:
    """Words of all pages but the method cards: in sentences, and together with those of tables and code."""
    prose = every = 0
    for page in [*(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "api").glob("*.md")]:
        fence = ""
        for line in re.sub(r"<!--.*?-->", "", page.read_text(encoding="utf-8"), flags=re.DOTALL).splitlines():
            if line.startswith(("```", ":::")):
                fence = "" if fence else line
            elif "{" not in fence:  # what a directive is told is not shown
                words = [word for word in re.sub(r"\]\([^)]*\)", "]", line).split() if re.search(r"\w", word)]
                every += len(words)
                prose += 0 if fence or line.startswith("|") else len(words)
    assert 5_000 < prose <= 13_000
    assert every <= 16_000


def test_the_picture_of_the_mechanism_is_that_of_the_equations() -> None:
    mechanism = runpy.run_path(str(ROOT / "docs" / "mechanism.py"))
    for theme in mechanism["THEMES"]:
        drawn = mechanism["mechanism"](theme)
        assert (ROOT / "docs" / f"mechanism_{theme}.svg").read_text(encoding="utf-8") == drawn
        assert "unsure to sure 100 : 1" in drawn


def test_messages_are_found_wherever_they_are_raised(tmp_path: Path) -> None:
    found = {message.text for message in messages()}
    assert "in_order=False loses which sample a prediction belongs to; use in_order=True." in found
    assert any("cycled in mid-epoch" in text for text in found), "constants of other modules are filled in"
    assert any(message.kind == "warning" for message in messages())
    assert "SelectionError" not in FRAGMENTS


def test_a_message_is_cut_into_what_was_seen_and_what_to_do() -> None:
    message = Message("m", "SelectionError", "x=‹x› is unknown; it must be a or b, such as a; use a.")
    assert message.parts == ("x=‹x› is unknown; it must be a or b, such as a", "use a.")
    assert Message("m", "warning", "Nothing is selected. Set more epochs.").parts[1] == "Set more epochs."


def test_every_message_says_what_to_do() -> None:
    sentences = [message for message in messages() if message.text.endswith(".")]
    silent = [one for one in sentences if not one.parts[1] and not ONE_PART.search(one.text)]
    assert not silent


def test_the_messages_that_the_page_explains_exist() -> None:
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    quotes = re.findall(r"^> (.+)$", page, re.MULTILINE)
    assert len(quotes) > 5
    texts = [message.text for message in messages()]
    for quote in quotes:
        parts = [part for part in (one.strip() for one in quote.split("…")) if part]
        assert any(all(part in text for part in parts) for text in texts), quote


@pytest.mark.parametrize("package", PUBLIC)
def test_every_public_name_is_in_the_api_pages(site: Path, package: str) -> None:
    module = importlib.import_module(f"lightning_ubs{package}")
    shown = "".join(page.read_text() for page in [*site.glob("api/*.html"), *site.glob("methods/*.html")])
    missing = []
    for name in module.__all__:
        documented = inspect.isclass(getattr(module, name)) or inspect.isfunction(getattr(module, name))
        home = "lightning_ubs" if package == ".strategies" else f"lightning_ubs{package}"
        if documented and f'id="{home}.{name}"' not in shown:
            missing.append(name)
    assert not missing


def test_every_strategy_has_a_method_card() -> None:
    cards = "".join(page.read_text() for page in (ROOT / "docs" / "methods").glob("*.md"))
    base = lightning_ubs.Strategy
    for name in lightning_ubs.strategies.__all__:
        kind = getattr(lightning_ubs, name)
        if issubclass(kind, base) and not inspect.isabstract(kind):
            assert f".. autoclass:: lightning_ubs.{name}\n" in cards, name
    for page in (ROOT / "docs" / "methods").glob("[!i]*.md"):
        assert "## Suggested settings" in page.read_text(), page.name
        assert "## When not" in page.read_text(), page.name
