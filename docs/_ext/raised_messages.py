"""Every message that the package raises or warns with, read from its source, and the directive that lists them.

In a page, ``{messages}`` with dotted names of modules lists the messages of these modules and of those below them,
without those that have a minus::

    :::{messages} lightning_ubs -lightning_ubs.data
    :::
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

import lightning_ubs

PACKAGE = Path(lightning_ubs.__file__).parent
WARNINGS = ("rank_zero_warn", "warnings.warn", "log.warning", "_warn_once")
# Words inside another message or for programmers, which no user reads alone.
FRAGMENTS = ("AttributeError", "IndexError", "NotImplementedError", "KeyError", "TypeError")


@dataclass(frozen=True, order=True)
class Message:
    """One message: its module, what it is, and its words, with ‹names› for what is filled in."""

    module: str
    kind: str
    text: str

    def below(self, modules: list[str]) -> bool:
        """Whether it is a message of one of these modules, or of one below them."""
        return any(f"{self.module}.".startswith(f"{name}.") for name in modules)

    @property
    def parts(self) -> tuple[str, str]:
        """What was seen, and what to do; the second is empty where the message has one part only."""
        cuts = [*re.finditer(r"; (?!it is |which )", self.text)] or [*re.finditer(r"\. (?=[A-Z])|: (?!‹)", self.text)]
        if not cuts:
            return self.text, ""
        cut = cuts[-1]
        return self.text[: cut.start()].rstrip(".:;"), self.text[cut.end() :]


@cache
def messages() -> tuple[Message, ...]:
    """All messages of the package, by module and text."""
    return tuple(sorted({found for path in PACKAGE.rglob("*.py") for found in _of_file(path)}))


def _of_file(path: Path) -> Iterator[Message]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    module = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
    constants = _constants(tree)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        called = ast.unparse(node.func)
        name = called.rpartition(".")[2]
        kind = "warning" if called in WARNINGS else name if re.search(r"(Error|Failed)$", name) else ""
        text = _words(node.args[0], constants)
        if kind and kind not in FRAGMENTS and text is not None and " " in text.strip():
            yield Message(module, kind, " ".join(text.replace("%s", "‹…›").split()))


@cache
def _of_module(name: str) -> dict[str, ast.expr]:
    path = PACKAGE.parent.joinpath(*name.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return _own_constants(ast.parse(file.read_text(encoding="utf-8"))) if file.is_file() else {}


def _constants(tree: ast.Module) -> dict[str, ast.expr]:
    """Names that stand for a text in a module, its own and those that it imports."""
    found = _own_constants(tree)
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("lightning_ubs"):
            theirs = _of_module(node.module or "")
            found |= {one.asname or one.name: theirs[one.name] for one in node.names if one.name in theirs}
            for one in node.names:  # modules, whose constants are read as attributes
                found |= _of_module(f"{node.module}.{one.name}")
    return found


def _own_constants(tree: ast.Module) -> dict[str, ast.expr]:
    assigned = [node for node in tree.body if isinstance(node, ast.Assign)]
    texts = [node for node in assigned if isinstance(node.value, ast.Constant | ast.JoinedStr)]
    return {target.id: node.value for node in texts for target in node.targets if isinstance(target, ast.Name)}


def _words(node: ast.expr, constants: dict[str, ast.expr]) -> str | None:
    """The text of an expression, or None if it is no text."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return "".join(_words(part, constants) or "" for part in node.values)
    if isinstance(node, ast.FormattedValue):
        return _filled_in(node.value, constants)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = _words(node.left, constants), _words(node.right, constants)
        return None if left is None or right is None else left + right
    if isinstance(node, ast.Name | ast.Attribute):
        known = constants.get(node.id if isinstance(node, ast.Name) else node.attr)
        return None if known is None else _words(known, constants)
    return None


def _filled_in(node: ast.expr, constants: dict[str, ast.expr]) -> str:
    known = _words(node, constants) if isinstance(node, ast.Name | ast.Attribute) else None
    if known is not None:
        return known
    if ast.unparse(node).endswith("__name__"):
        return "‹class›"
    while isinstance(node, ast.Call | ast.Subscript):
        node = node.func if isinstance(node, ast.Call) else node.value
    name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else "…"
    return "‹…›" if name in ("join", "len", "str", "sorted", "…") else f"‹{name.strip('_').replace('_', ' ')}›"


class MessageList(SphinxDirective):
    """Lists the messages of some modules: what was seen, what to do, what it is."""

    required_arguments = 1
    final_argument_whitespace = True
    has_content = True

    def run(self) -> list[nodes.Node]:
        """A definition list, one entry per message."""
        names = self.arguments[0].split()
        wanted = [name for name in names if not name.startswith("-")]
        others = [name.removeprefix("-") for name in names if name.startswith("-")]
        self.env.note_dependency(__file__)
        listed = [one for one in messages() if one.below(wanted) and not one.below(others)]
        if not listed:
            raise self.error(f"no messages in {', '.join(wanted)}")
        entries = [_entry(one) for one in sorted(listed, key=lambda one: (one.kind, one.text))]
        return [nodes.definition_list("", *entries, classes=["messages"], support_smartquotes=False)]


def _entry(message: Message) -> nodes.definition_list_item:
    seen, to_do = message.parts
    term = nodes.term("", "", nodes.Text(seen), classes=["message"])
    advice = nodes.paragraph("", "", nodes.Text(f"{to_do[:1].upper()}{to_do[1:]}"))
    advice += nodes.inline("", f" {message.kind}, {message.module}", classes=["origin"])
    return nodes.definition_list_item("", term, nodes.definition("", advice))


def setup(app: Any) -> dict[str, Any]:
    """Register the directive."""
    app.add_directive("messages", MessageList)
    return {"version": "1", "parallel_read_safe": True}
