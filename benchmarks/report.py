"""Build the report of a grid as large as the paper's, made up: 14 datasets × 3 models × 6 methods × 5 folds.

    python benchmarks/report.py [--formats html svg csv latex] [--keep FOLDER]

Prints wall time, processor time of this process and its children, and the size of the page. The results are drawn from
a seed and true of nothing.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "helpers"))

from report_fixtures import METHODS, fake_run, fake_trace

from lightning_ubs.data import catalog
from lightning_ubs.experiment.store import ResultsStore
from lightning_ubs.report import build_report


def make_results(folder: Path) -> int:
    """Write the runs, those of UBS with their traces, and return how many there are."""
    store = ResultsStore(folder)
    folder.mkdir(parents=True, exist_ok=True)
    lines = []
    for data in [name for name in catalog.names() if name not in ("digits", "synthetic")][:14]:
        for model in ("mpvae", "clif", "dela"):
            for fold in range(5):
                for method in METHODS:
                    record = fake_run(data, model, method, fold, epochs=100, trace=method == "ubs")
                    if record.trace:
                        store.write_trace(record.key, **fake_trace([f"label {i}" for i in range(50)], 5000))
                    lines.append(record.to_json())
    store.path.write_text("\n".join(lines) + "\n")
    return len(lines)


def main() -> None:
    """Make the results, build the report and print what it took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--formats", nargs="+", default=["html", "svg", "csv", "latex"])
    parser.add_argument("--keep", type=Path, help="folder for results and report; default: a temporary one")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or Path(temporary)
        runs = make_results(folder)
        wall, before = time.perf_counter(), os.times()
        page = build_report(folder, formats=options.formats)
        wall, after = time.perf_counter() - wall, os.times()
        spent = sum(after[:4]) - sum(before[:4])
        size = page.stat().st_size / 1e6 if page.is_file() else 0.0
        print(f"{runs} runs: {wall:.1f} s of wall time, {spent:.1f} s of processor time, page {size:.1f} MB")


if __name__ == "__main__":
    main()
