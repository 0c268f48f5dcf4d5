"""Mutation testing: change one operator, constant or statement at a time, and see whether a test notices.

    python -m benchmarks.mutants functional state --jobs 2     # whole parts; results go to mutants.json
    python -m benchmarks.mutants reading --sample 200          # a random sample, always the same
    python -m benchmarks.mutants reading --again mutants.json  # only those that survived an earlier run

Tests are collected once. A first process runs them and notes which lines of the package each of them executes. Then a
process is forked for each mutant, gets the changed bytecode and runs the tests that execute the changed line, quickest
first, up to the first failure. A mutant that runs into the time limit counts as killed.

Not mutated, because no promise depends on it: docstrings, annotations, decorators, imports, ``__repr__``, and the
wording of messages (everything inside ``raise``, logging and warnings, and every f-string), ``__init__.py``.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any

import hypothesis
import pytest

from benchmarks.mutations import PACKAGE, ROOT, Mutant, apply, find_mutants, live_functions

# Part → sources, and the tests that may kill its mutants.
PARTS: dict[str, tuple[list[str], list[str]]] = {
    "functional": (["functional/*.py"], ["functional", "strategies", "inspection"]),
    "state": (["state/*.py"], ["state", "strategies"]),
    "strategies": (["strategies/*.py"], ["strategies", "inspection", "selection"]),
    "selection": (["selection/*.py"], ["selection"]),
    "reading": (["reading/*.py"], ["reading", "selection"]),
}
# These start other processes, which a mutant does not reach.
_OTHER_PROCESSES = ["test_the_line_is_seen_in_a_default_run"]


class Driver:
    """A pytest plugin that runs mutants instead of the tests it collected."""

    def __init__(self, mutants: list[Mutant], jobs: int, limit: float, enough: float) -> None:
        self.mutants, self.jobs, self.limit, self.enough = mutants, jobs, limit, enough
        self.results: list[dict[str, Any]] = []
        self._fails = False
        self._broken: set[str] = set()

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Leave out what a mutant cannot reach."""
        items[:] = [item for item in items if not any(name in item.nodeid for name in _OTHER_PROCESSES)]

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Fork once for the map from lines to tests, then once per mutant."""
        if session.testsfailed:
            raise SystemExit("tests could not be collected; run pytest first.")
        items = {item.nodeid: item for item in session.items}
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "map.json")
            child = os.fork()
            if child == 0:
                _in_child(lambda: self._map(list(items.values()), file), folder)
            os.waitpid(child, 0)
            seconds, lines = json.loads(file.read_text())
        report(f"{len(items)} tests, {sum(seconds.values()):.0f} s with tracing; {len(self.mutants)} mutants")
        self._live = live_functions()
        gc.freeze()
        self._run_all(items, seconds, lines)
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """One failure is enough; what fails without a mutant can tell nothing of one."""
        if report.failed:
            if self._fails:
                os._exit(1)
            self._broken.add(report.nodeid)
            globals()["report"](f"fails without a mutant, so left out: {report.nodeid}")

    def _map(self, items: list[pytest.Item], file: Path) -> None:
        """Run all tests once; note their seconds, and which tests execute each line."""
        seconds: dict[str, float] = {}
        lines: dict[str, dict[int, list[str]]] = {}
        prefix = str(PACKAGE)
        seen: set[tuple[str, int]] = set()

        def local(frame: FrameType, event: str, _: Any) -> Any:
            if event == "line":
                seen.add((frame.f_code.co_filename, frame.f_lineno))
            return local

        def on_call(frame: FrameType, event: str, _: Any) -> Any:
            return local if frame.f_code.co_filename.startswith(prefix) else None

        for item, following in itertools.zip_longest(items, items[1:]):
            seen.clear()
            start = time.perf_counter()
            threading.settrace(on_call)
            sys.settrace(on_call)
            item.ihook.pytest_runtest_protocol(item=item, nextitem=following)
            sys.settrace(None)
            seconds[item.nodeid] = time.perf_counter() - start
            if item.nodeid in self._broken:
                continue
            for name, line in seen:
                lines.setdefault(str(Path(name).relative_to(ROOT)), {}).setdefault(line, []).append(item.nodeid)
        file.write_text(json.dumps([seconds, lines]))

    def _run_all(self, items: dict[str, pytest.Item], seconds: dict[str, float], lines: dict[str, Any]) -> None:
        waiting, running = list(self.mutants), {}
        while waiting or running:
            while waiting and len(running) < self.jobs:
                mutant = waiting.pop(0)
                near = lines.get(mutant.file, {})
                rows = range(mutant.line, mutant.last_line + 1)
                tests = {test for row in rows for test in near.get(str(row), [])}
                if mutant.is_made_on_import:
                    tests |= {test for row in near.values() for test in row}
                ordered = self._quickest(tests, seconds)
                limit = min(self.limit, 20 + 3 * sum(seconds[test] for test in ordered))
                folder = tempfile.mkdtemp()
                child = os.fork()
                if child == 0:
                    _in_child(lambda: self._run(mutant, [items[test] for test in ordered]), folder)  # noqa: B023
                running[child] = mutant, time.monotonic(), limit, folder, len(ordered)
            time.sleep(0.005)
            for child, (mutant, start, limit, folder, count) in list(running.items()):
                done, status = os.waitpid(child, os.WNOHANG)
                late = time.monotonic() - start > limit
                if not done and not late:
                    continue
                if not done:
                    os.killpg(child, signal.SIGKILL)
                    os.waitpid(child, 0)
                shutil.rmtree(folder, ignore_errors=True)
                code = -1 if not done else os.waitstatus_to_exitcode(status)
                verdict = {0: "survived", 3: "not applied", -1: "timeout"}.get(code, "killed")
                del running[child]
                took = round(time.monotonic() - start, 2)
                self.results.append(asdict(mutant) | {"verdict": verdict, "seconds": took, "tests": count})
                if verdict != "killed":
                    report(
                        f"{verdict}: {mutant.file}:{mutant.line} {mutant.owner} [{mutant.what}] {count} tests, {took} s"
                    )

    def _quickest(self, tests: set[str], seconds: dict[str, float]) -> list[str]:
        ordered = sorted(tests, key=lambda test: seconds[test])
        total = list(itertools.accumulate(seconds[test] for test in ordered))
        return [test for test, so_far in zip(ordered, total, strict=True) if so_far <= self.enough] or ordered[:1]

    def _run(self, mutant: Mutant, items: list[pytest.Item]) -> None:
        self._fails = True
        try:
            applied = apply(mutant, self._live)
        except Exception:
            os._exit(1)  # It cannot even be imported.
        if not applied:
            os._exit(3)
        for item, following in itertools.zip_longest(items, items[1:]):
            item.ihook.pytest_runtest_protocol(item=item, nextitem=following)


def _in_child(work: Any, folder: str) -> None:
    os.setsid()
    os.environ["PYTEST_DEBUG_TEMPROOT"] = tempfile.tempdir = folder
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    try:
        work()
    except BaseException as error:
        report(f"{type(error).__name__}: {error}")
        os._exit(2)
    os._exit(0)


def report(line: str) -> None:
    """A line on the error stream, also while pytest captures."""
    os.write(_ERRORS, f"{line}\n".encode())


_ERRORS = os.dup(2)


def main() -> None:
    """See the top of this file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="+", choices=PARTS)
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--sample", type=int, help="take this many mutants of each part, at random")
    parser.add_argument("--seed", type=int, default=0, help="of the random sample")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds for one mutant")
    parser.add_argument("--enough", type=float, default=600.0, help="seconds of tests that a mutant must survive")
    parser.add_argument("--again", type=Path, help="only what survived in this file of results")
    parser.add_argument("--file", default="", help="only sources whose path contains this")
    parser.add_argument("--tests", nargs="*", help="test files instead of the part's own")
    parser.add_argument("--out", type=Path, default=Path("mutants.json"))
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sample = None if options.again else options.sample
    mutants = [mutant for part in options.parts for mutant in _chosen(part, sample, options.seed)]
    mutants = [mutant for mutant in mutants if options.file in mutant.file]
    if options.again:
        survivors = {
            (r["file"], r["number"]) for r in json.loads(options.again.read_text()) if r["verdict"] == "survived"
        }
        mutants = [mutant for mutant in mutants if (mutant.file, mutant.number) in survivors]
    tests = options.tests or _tests(options.parts)
    driver = Driver(mutants, options.jobs, options.limit, options.enough)
    arguments = ["-q", "-p", "no:cacheprovider", "-p", "no:randomly", "-p", "no:xdist", "--capture=fd", *tests]
    hypothesis.settings.register_profile(
        "mutants",
        derandomize=True,
        database=None,
        deadline=None,
        phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
    )
    hypothesis.settings.load_profile("mutants")
    pytest.main(arguments, plugins=[driver])
    options.out.write_text(json.dumps(driver.results, indent=1))
    for part in options.parts:
        files = {mutant.file for mutant in find_mutants(PARTS[part][0])}
        own = [r["verdict"] for r in driver.results if r["file"] in files]
        report(f"{part}: {len(own)} mutants, " + ", ".join(f"{own.count(v)} {v}" for v in sorted(set(own))))


def _chosen(part: str, sample: int | None, seed: int) -> list[Mutant]:
    mutants = find_mutants(PARTS[part][0])
    if sample is None or sample >= len(mutants):
        return mutants
    return sorted(random.Random(seed).sample(mutants, sample), key=lambda mutant: (mutant.file, mutant.number))


def _tests(parts: list[str]) -> list[str]:
    found: dict[str, None] = {}
    for part in parts:
        sources, tests = PARTS[part]
        found |= dict.fromkeys(str(p) for pattern in sources for p in sorted(PACKAGE.glob(pattern)))
        places = [ROOT / "tests" / name for name in tests]
        found |= dict.fromkeys(str(p if p.is_dir() else p.with_suffix(".py")) for p in places)
    return [name for name in found if Path(name).exists()]


if __name__ == "__main__":
    main()
