"""The constructor arguments of an object, which it keeps under their own names."""

from __future__ import annotations

import inspect
from dataclasses import is_dataclass
from typing import Any


def constructor_arguments(instance: object) -> dict[str, Any]:
    """Arguments of ``instance``'s constructor and the values it keeps, in the order of the signature.

    Those of a dataclass begin with its own fields; the ones that it shares with others come after them. An attribute
    may show what an argument led to instead; the argument itself is then in ``given_arguments``.
    """
    given = getattr(instance, "given_arguments", {})
    kinds = type(instance).__mro__
    parameters = inspect.signature(type(instance).__init__).parameters.values()
    named = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) and p.name != "self"]
    if is_dataclass(instance):
        order = {name: None for kind in kinds for name in vars(kind).get("__annotations__", {})}
        named = [name for name in order if name in named] + [name for name in named if name not in order]
    return {
        name: given[name] if name in given else getattr(instance, name) for name in named if hasattr(instance, name)
    }


def call_repr(instance: object) -> str:
    """The call that makes ``instance``, without arguments that have their default values.

    >>> class Point:
    ...     def __init__(self, x, y=None):
    ...         self.x, self.y = x, y
    >>> call_repr(Point(1)), call_repr(Point(0, 2))
    ('Point(x=1)', 'Point(x=0, y=2)')
    """
    defaults = {name: one.default for name, one in inspect.signature(type(instance).__init__).parameters.items()}
    arguments = {
        name: value for name, value in constructor_arguments(instance).items() if not _is_default(value, defaults[name])
    }
    return f"{type(instance).__name__}({', '.join(f'{name}={_short(value)}' for name, value in arguments.items())})"


def _is_default(value: Any, default: Any) -> bool:
    plain = bool | int | float | str | None
    return value is default or (isinstance(value, plain) and isinstance(default, plain) and value == default)


def _short(value: Any) -> str:
    """``repr``, but shapes instead of the contents of matrices."""
    if isinstance(getattr(value, "shape", None), tuple):
        return f"<{type(value).__name__} of shape {tuple(value.shape)}>"
    return getattr(value, "__qualname__", None) or repr(value)
