"""Mutation testing: change one operator, constant or statement at a time, and see whether a test notices.

    python -m benchmarks.mutants functional state --jobs 2     # whole parts; results go to mutants.json
    python -m benchmarks.mutants observe --sample 200          # a random sample, always the same
    python -m benchmarks.mutants observe --again mutants.json  # only those that survived an earlier run

Tests are collected once. A first process runs them and notes which lines of the package each of them executes. Then a
process is forked for each mutant, gets the changed bytecode and runs the tests that execute the changed line, quickest
first, up to the first failure. A mutant that runs into the time limit counts as killed.

Not mutated, because no promise depends on it: docstrings, annotations, decorators, imports, ``__repr__``, and the
wording of messages (everything inside ``raise``, logging and warnings, and every f-string).
"""

from __future__ import annotations

import argparse
import ast
import builtins
import copy
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
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "lightning_ubs"
_CALLBACK = [
    *("test_callback_reference", "test_callback_ids", "test_callback_metrics", "test_callback_refusals", "test_faults"),
    *("test_checkpoint_state", "test_resume", "test_epoch_size", "test_one_clock", "test_evaluation_pass"),
    *("test_unbiased", "test_living_with_others", "test_callback_no_wait", "test_callback_loaders", "test_selector"),
]
# Part → sources, and the tests that may kill its mutants.
PARTS: dict[str, tuple[list[str], list[str]]] = {
    "functional": (["functional/*.py"], ["functional", "strategies"]),
    "state": (["state/*.py"], ["state", "strategies"]),
    "strategies": (["strategies/*.py"], ["strategies", *_CALLBACK]),
    "sampling": (["sampling.py"], ["test_sampling", "test_planned_loader", *_CALLBACK]),
    "selector": (["selector.py"], _CALLBACK),
    "observe": (["observe/*.py"], ["observe", *_CALLBACK]),
}
# These start other processes, which a mutant does not reach.
_OTHER_PROCESSES = ["test_the_line_is_seen_in_a_default_run"]

_SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    **{ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq},
    **{ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And},
    **{ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult},
    **{ast.Mod: ast.Mult, ast.Pow: ast.Mult, ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr},
}
_NAMES = {"min": "max", "max": "min", "any": "all", "all": "any", "floor": "ceil", "ceil": "floor", "argmax": "argmin"}
_NAMES |= {"argmin": "argmax", "floor_": "ceil_", "isfinite": "isnan", "searchsorted": "bucketize"}
_SILENT = {"debug", "info", "warning", "warn", "rank_zero_warn", "rank_zero_info", "call_repr"}
_BLOCKS = (ast.If, ast.While, ast.For, ast.With, ast.Try, ast.FunctionDef, ast.ClassDef)


@dataclass(frozen=True)
class Mutant:
    """One change of one place; ``path`` leads to it in the syntax tree of its file."""

    file: str
    line: int
    last_line: int
    number: int
    what: str
    owner: str


def changes(tree: ast.Module) -> Iterator[tuple[ast.stmt, list[str], str, Any]]:
    """Every change: the statement it lies in, the names of what encloses it, a description, and how to make it."""

    def statements(body: list[ast.stmt], owner: list[str]) -> Iterator[tuple[ast.stmt, list[str], str, Any]]:
        for place, statement in enumerate(body):
            if isinstance(statement, ast.FunctionDef | ast.ClassDef):
                if statement.name == "__repr__":
                    continue
                if isinstance(statement, ast.FunctionDef):
                    for expression in [*statement.args.defaults, *filter(None, statement.args.kw_defaults)]:
                        yield from within(statement, owner, expression)
                yield from statements(statement.body, [*owner, statement.name])
                continue
            if isinstance(statement, ast.Import | ast.ImportFrom | ast.Assert) or _is_text(statement):
                continue
            if owner and isinstance(statement, ast.Assign | ast.AugAssign | ast.Expr | ast.Raise | ast.Return):
                yield from removed(statement, owner, body, place)
            if isinstance(statement, ast.Raise):
                continue
            for field, value in ast.iter_fields(statement):
                if field in ("annotation", "target", "targets", "handlers", "body", "orelse", "finalbody"):
                    continue
                for part in value if isinstance(value, list) else [value]:
                    if isinstance(part, ast.AST):
                        yield from within(statement, owner, part)
            if isinstance(statement, ast.AugAssign):
                yield from swapped(statement, owner, statement, "op")
            if isinstance(statement, ast.If | ast.While) and not isinstance(statement.test, ast.Compare | ast.BoolOp):
                yield from negated(statement, owner, statement, "test")
            for inner in ("body", "orelse", "finalbody"):
                yield from statements(getattr(statement, inner, []), owner)
            for handler in getattr(statement, "handlers", []):
                yield from statements(handler.body, owner)

    def removed(statement: ast.stmt, owner: list[str], body: list[ast.stmt], place: int) -> Iterator[Any]:
        if isinstance(statement, ast.Return):
            if statement.value is not None and not _is(statement.value, None):
                yield statement, owner, "return None", _setter(statement, "value", ast.Constant(None))
        elif isinstance(statement, ast.Assign):
            if not _is(statement.value, None):
                yield statement, owner, "assign None", _setter(statement, "value", ast.Constant(None))
        elif not (isinstance(statement, ast.Expr) and _is_silent(statement.value)):
            name = type(statement).__name__.lower()

            def remove() -> None:
                body[place] = ast.copy_location(ast.Pass(), statement)

            yield statement, owner, f"remove {name}", remove

    def within(statement: ast.stmt, owner: list[str], expression: ast.AST) -> Iterator[Any]:
        if isinstance(expression, ast.JoinedStr) or (isinstance(expression, ast.Call) and _is_silent(expression)):
            return
        for node in [expression]:
            if isinstance(node, ast.Compare):
                for index in range(len(node.ops)):
                    yield from swapped(statement, owner, node.ops, index)
            elif isinstance(node, ast.BinOp | ast.BoolOp):
                yield from swapped(statement, owner, node, "op")
            elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
                change = _replace_by(tree, node, node.operand)
                yield statement, owner, f"drop {type(node.op).__name__}", change
            elif isinstance(node, ast.IfExp):
                yield from negated(statement, owner, node, "test")
            elif isinstance(node, ast.comprehension):
                for index in range(len(node.ifs)):
                    yield statement, owner, "drop filter", _deleter(node.ifs, index)
            elif isinstance(node, ast.Constant):
                other = _other_constant(node.value)
                if other is not None:
                    text = f"{node.value!r} -> {other!r}"
                    yield statement, owner, text, _setter(node, "value", other)
            elif isinstance(node, ast.Attribute) and node.attr in _NAMES:
                yield (
                    statement,
                    owner,
                    f".{node.attr} -> .{_NAMES[node.attr]}",
                    _setter(node, "attr", _NAMES[node.attr]),
                )
            elif isinstance(node, ast.Name) and node.id in _NAMES:
                yield statement, owner, f"{node.id} -> {_NAMES[node.id]}", _setter(node, "id", _NAMES[node.id])
            elif isinstance(node, ast.Call):
                for index, keyword in enumerate(node.keywords):
                    yield statement, owner, f"drop {keyword.arg}=", _deleter(node.keywords, index)
            for child in ast.iter_child_nodes(node):
                yield from within(statement, owner, child)

    def swapped(statement: ast.stmt, owner: list[str], holder: Any, key: Any) -> Iterator[Any]:
        old = holder[key] if isinstance(holder, list) else getattr(holder, key)
        new = _SWAPS.get(type(old))
        if new is not None:
            text = f"{type(old).__name__} -> {new.__name__}"
            yield statement, owner, text, _setter(holder, key, new())

    def negated(statement: ast.stmt, owner: list[str], holder: Any, key: str) -> Iterator[Any]:
        old = getattr(holder, key)
        if not isinstance(old, ast.UnaryOp):
            yield statement, owner, "negate", _setter(holder, key, ast.copy_location(ast.UnaryOp(ast.Not(), old), old))

    yield from statements(tree.body, [])


def _is(node: ast.AST, value: Any) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _is_silent(node: ast.AST) -> bool:
    name = getattr(node.func, "attr", getattr(node.func, "id", "")) if isinstance(node, ast.Call) else ""
    return name in _SILENT or name.endswith("Error")


def _other_constant(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    # A sentence is wording, a word without spaces is a key.
    return f"{value}XX" if isinstance(value, str) and value and " " not in value else None


def _setter(holder: Any, key: Any, new: Any) -> Any:
    def change() -> None:
        if isinstance(holder, list):
            holder[key] = new
        else:
            setattr(holder, key, new)

    return change


def _deleter(items: list[Any], index: int) -> Any:
    return lambda: items.pop(index)


def _replace_by(tree: ast.Module, old: ast.AST, new: ast.AST) -> Any:
    def change() -> None:
        class Replace(ast.NodeTransformer):
            def visit(self, node: ast.AST) -> Any:
                return new if node is old else self.generic_visit(node)

        Replace().visit(tree)

    return change


def find_mutants(part: str) -> list[Mutant]:
    """All mutants of a part, in the order of the source."""
    found = []
    for file in sorted(path for pattern in PARTS[part][0] for path in PACKAGE.glob(pattern)):
        name = str(file.relative_to(ROOT))
        for number, (statement, owner, what, _) in enumerate(changes(ast.parse(file.read_text()))):
            last = statement.end_lineno or statement.lineno
            if what == "drop strict=" or (what == "True -> False" and "strict=True" in ast.unparse(statement)):
                continue
            if isinstance(statement, _BLOCKS):
                last = statement.body[0].lineno - 1
            found.append(Mutant(name, statement.lineno, max(last, statement.lineno), number, what, ".".join(owner)))
    return found


def live_functions() -> dict[str, dict[tuple[str, int], FunctionType]]:
    """Per file of the package, its functions by qualified name and first line."""
    found: dict[str, dict[tuple[str, int], FunctionType]] = {}
    for function in gc.get_objects():
        if type(function) is FunctionType and function.__code__.co_filename.startswith(str(PACKAGE)):
            code = function.__code__
            found.setdefault(code.co_filename, {})[code.co_qualname, code.co_firstlineno] = function
    return found


def apply(mutant: Mutant, live: dict[str, dict[tuple[str, int], FunctionType]]) -> bool:
    """Put the mutant into this process; False if it changes nothing that can be replaced."""
    path = ROOT / mutant.file
    tree = ast.parse(path.read_text())
    statement, owner, _, change = list(changes(tree))[mutant.number]
    names = [statement.name] if isinstance(statement, ast.FunctionDef) else []
    change()
    ast.fix_missing_locations(tree)
    module = sys.modules[mutant.file.removesuffix(".py").replace("/", ".").removesuffix(".__init__")]
    code = compile(tree, str(path), "exec", dont_inherit=True)
    functions = live.get(str(path), {})
    if names:
        return _replace_defaults(functions, ".".join([*owner, *names]), statement, module)
    replaced = False
    for new in _codes(code):
        function = functions.get((new.co_qualname, new.co_firstlineno))
        if function is None or "<locals>" in new.co_qualname or new == function.__code__:
            continue
        if new.co_freevars != function.__code__.co_freevars:
            return False
        function.__code__ = new
        replaced = True
    return replaced or _replace_value(statement, owner, module)


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _replace_defaults(functions: dict[Any, FunctionType], name: str, statement: ast.FunctionDef, module: Any) -> bool:
    function = next((f for (qualname, _), f in functions.items() if qualname == name), None)
    if function is None:
        return False
    arguments = statement.args
    function.__defaults__ = tuple(_evaluated(node, module) for node in arguments.defaults) or None
    pairs = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    function.__kwdefaults__ = {a.arg: _evaluated(node, module) for a, node in pairs if node is not None} or None
    return True


def _replace_value(statement: ast.stmt, owner: list[str], module: Any) -> bool:
    """A constant of a module or a class, also where it was imported by name."""
    targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    if not isinstance(statement, ast.Assign | ast.AnnAssign) or statement.value is None:
        return False
    value = _evaluated(statement.value, module)
    holder = module
    for name in owner:
        holder = getattr(holder, name)
    if "__dataclass_fields__" in vars(holder):
        return False
    target = targets[0]
    if isinstance(target, ast.Name):
        pairs = [(target.id, value)]
    else:
        pairs = list(zip([name.id for name in target.elts], value, strict=True))  # type: ignore[union-attr]
    for name, new in pairs:
        old = getattr(holder, name)
        if old == new:
            continue
        setattr(holder, name, new)
        for other in [m for n, m in list(sys.modules.items()) if n.startswith("lightning_ubs") and holder is module]:
            if getattr(other, name, None) is old:
                setattr(other, name, new)
    return True


def _evaluated(node: ast.expr, module: Any) -> Any:
    return eval(compile(ast.Expression(copy.deepcopy(node)), "<mutant>", "eval"), vars(builtins) | vars(module))


class Driver:
    """A pytest plugin that runs mutants instead of the tests it collected."""

    def __init__(self, mutants: list[Mutant], jobs: int, limit: float, enough: float) -> None:
        self.mutants, self.jobs, self.limit, self.enough = mutants, jobs, limit, enough
        self.results: list[dict[str, Any]] = []
        self._fails = False

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
        """One failure is enough."""
        if report.failed:
            if self._fails:
                os._exit(1)
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

        for item, following in zip(items, [*items[1:], None], strict=True):
            seen.clear()
            start = time.perf_counter()
            threading.settrace(on_call)
            sys.settrace(on_call)
            item.ihook.pytest_runtest_protocol(item=item, nextitem=following)
            sys.settrace(None)
            seconds[item.nodeid] = time.perf_counter() - start
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
                if not tests or "." not in mutant.owner and mutant.owner == "":
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
        for item, following in zip(items, [*items[1:], None], strict=True):
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
    parser.add_argument("--limit", type=float, default=120.0, help="seconds for one mutant")
    parser.add_argument("--enough", type=float, default=600.0, help="seconds of tests that a mutant must survive")
    parser.add_argument("--again", type=Path, help="only what survived in this file of results")
    parser.add_argument("--file", default="", help="only sources whose path contains this")
    parser.add_argument("--tests", nargs="*", help="test files instead of the part's own")
    parser.add_argument("--out", type=Path, default=Path("mutants.json"))
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    mutants = [
        mutant for part in options.parts for mutant in _chosen(part, options.sample) if options.file in mutant.file
    ]
    if options.again:
        survivors = {
            (r["file"], r["number"]) for r in json.loads(options.again.read_text()) if r["verdict"] == "survived"
        }
        mutants = [mutant for mutant in mutants if (mutant.file, mutant.number) in survivors]
    tests = options.tests or _tests(options.parts)
    driver = Driver(mutants, options.jobs, options.limit, options.enough)
    arguments = ["-q", "-p", "no:cacheprovider", "-p", "no:randomly", "-p", "no:xdist", "--capture=fd", *tests]
    import hypothesis

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
        files = {mutant.file for mutant in find_mutants(part)}
        own = [r["verdict"] for r in driver.results if r["file"] in files]
        report(f"{part}: {len(own)} mutants, " + ", ".join(f"{own.count(v)} {v}" for v in sorted(set(own))))


def _chosen(part: str, sample: int | None) -> list[Mutant]:
    mutants = find_mutants(part)
    if sample is None or sample >= len(mutants):
        return mutants
    return sorted(random.Random(0).sample(mutants, sample), key=lambda mutant: (mutant.file, mutant.number))


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
