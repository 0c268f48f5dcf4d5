"""The constructor arguments of an object, which it keeps under their own names."""

from __future__ import annotations

import inspect
from dataclasses import is_dataclass
from typing import Any

import torch


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


def call_repr(instance: object, omit: tuple[Any, ...] = ()) -> str:
    """The call that makes ``instance``, without arguments whose value is one of ``omit``.

    >>> class Point:
    ...     def __init__(self, x, y=None):
    ...         self.x, self.y = x, y
    >>> call_repr(Point(1), omit=(None,))
    'Point(x=1)'
    """
    arguments = {
        name: value
        for name, value in constructor_arguments(instance).items()
        if not any(value is omitted for omitted in omit)
    }
    return f"{type(instance).__name__}({', '.join(f'{name}={_short(value)}' for name, value in arguments.items())})"


def _short(value: Any) -> str:
    """``repr``, but shapes instead of the contents of matrices."""
    if isinstance(value, torch.Tensor) or hasattr(value, "shape"):
        return f"<{type(value).__name__} of shape {tuple(value.shape)}>"
    return getattr(value, "__qualname__", None) or repr(value)
