"""Small changes of the package's source, one at a time, and how to put one into the running process."""

from __future__ import annotations

import ast
import builtins
import copy
import gc
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "lightning_ubs"

_PAIRS = [(ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.Eq, ast.NotEq), (ast.Is, ast.IsNot), (ast.In, ast.NotIn)]
_PAIRS += [(ast.And, ast.Or), (ast.Add, ast.Sub), (ast.Mult, ast.Div), (ast.BitOr, ast.BitAnd)]
_SWAPS: dict[type[ast.AST], type[ast.AST]] = {one: other for pair in _PAIRS for one, other in (pair, pair[::-1])}
_SWAPS |= {ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult, ast.Pow: ast.Mult}
_NAMES = {"min": "max", "max": "min", "any": "all", "all": "any", "floor": "ceil", "ceil": "floor", "argmax": "argmin"}
_NAMES |= {"argmin": "argmax", "floor_": "ceil_", "isfinite": "isnan", "searchsorted": "bucketize"}
_SILENT = {"debug", "info", "warning", "warn", "rank_zero_warn", "rank_zero_info", "call_repr"}
_BLOCKS = (ast.If, ast.While, ast.For, ast.With, ast.Try, ast.FunctionDef, ast.ClassDef)


@dataclass(frozen=True)
class Mutant:
    """The ``number``-th change of a file, in the statement from ``line`` to ``last_line``."""

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


def find_mutants(patterns: list[str]) -> list[Mutant]:
    """All mutants of some files of the package, in the order of the source."""
    found = []
    for file in sorted(path for pattern in patterns for path in PACKAGE.glob(pattern)):
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
