"""The page in a real browser: nothing overflows, every figure has a size."""

from __future__ import annotations

import html
import itertools
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from report_fixtures import fake_run, fake_trace, full_results, save

from lightning_ubs.report import build_report

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="no chromium on PATH")]

# The page sits in a frame of the wanted width; the parent, of the same origin, measures it.
FRAME = """<!doctype html><iframe id="page" style="width:{width}px;height:900px;border:0" srcdoc="{page}"></iframe>
<pre id="measured"></pre>
<script>
const frame = document.getElementById("page");
frame.onload = () => {{
  const root = frame.contentDocument;
  const shut = root.documentElement.scrollHeight;
  root.querySelectorAll("details").forEach(item => item.open = true);
  const size = item => item.getBoundingClientRect();
  const figures = [...root.querySelectorAll("figure svg")];
  document.getElementById("measured").textContent = JSON.stringify({{
    width: frame.contentWindow.innerWidth,
    scroll: root.documentElement.scrollWidth,
    height: shut,
    tables: root.querySelectorAll("table").length,
    figures: figures.length,
    flat: figures.filter(item => size(item).height < 60 || size(item).width < 200).length,
    cut: figures.flatMap(item => [...item.querySelectorAll("text")].filter(text =>
      size(text).right > size(item).right + 9 || size(text).left < size(item).left - 9).map(text => text.textContent)),
    images: [...root.querySelectorAll("svg image")].filter(item => size(item).width < 1).length,
    title: root.title,
    moved: [...root.querySelectorAll(".scroll")].filter(box => {{
      box.scrollLeft = 200;
      const first = box.querySelector("tbody th[scope=row]");
      return box.scrollLeft > 50 && first && Math.abs(size(first).left - size(box).left) > 2;
    }}).length,
    wide: [...root.querySelectorAll(".wrap *")].filter(item =>
      !item.closest(".scroll, svg, nav") && size(item).right > frame.contentWindow.innerWidth + 1).length,
  }});
}};
</script>"""


def measure(page: Path, width: int, folder: Path) -> dict[str, object]:
    frame = folder / f"frame{width}.html"
    frame.write_text(FRAME.format(width=width, page=html.escape(page.read_text(), quote=True)))
    done = subprocess.run(
        [
            str(CHROMIUM),
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--hide-scrollbars",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            f"--user-data-dir={folder / f'profile{width}'}",
            "--window-size=1400,1000",
            "--dump-dom",
            frame.as_uri(),
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    found = re.search(r'<pre id="measured">(.*?)</pre>', done.stdout, flags=re.DOTALL)
    assert found is not None
    return dict(json.loads(html.unescape(found[1])))


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results")
    full_results(folder, folds=2, models=("clif",))
    long = "a-very-long-data-set-name-without-any-space-" * 3
    save(folder, *(fake_run(long, "clif", selection) for selection in ("random", "ubs")))
    save(folder, fake_run("wide", status="failed", error="Error: " + "x" * 900, metrics={}, curves={}))
    return build_report(folder, formats=("html",))


@pytest.mark.parametrize("width", [360, 390, 768, 1280])
def test_nothing_overflows_and_no_figure_is_missing(page: Path, width: int, tmp_path: Path) -> None:
    measured = measure(page, width, tmp_path)
    assert measured["width"] == width
    assert measured["scroll"] == width
    assert (measured["flat"], measured["images"], measured["wide"]) == (0, 0, 0)
    assert measured["figures"] == page.read_text().count("<figure")
    assert measured["cut"] == []
    assert measured["moved"] == 0  # the first column of every table stays in sight


@pytest.mark.parametrize(("width", "most"), [(1280, 3500), (390, 6000)])
def test_the_answer_to_a_small_question_is_a_short_page(width: int, most: int, tmp_path: Path) -> None:
    for selection, fold in itertools.product(("random", "active", "ubs", "recent"), range(5)):
        traced = (selection, fold) == ("ubs", 0)
        record = fake_run(selection=selection, fold=fold, trace=traced)
        store = save(tmp_path / "results", record)
        if traced:
            store.write_trace(record.key, **fake_trace())
    page = build_report(tmp_path / "results", formats=("html",), command="lightning-ubs compare data=yeast")
    measured = measure(page, width, tmp_path)
    assert int(str(measured["height"])) <= most
    assert (measured["scroll"], measured["wide"]) == (width, 0)
