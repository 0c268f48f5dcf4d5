"""Constructor arguments: checked, read back, and shown.

Each refusal names the argument, its value and what is allowed.
"""

from __future__ import annotations

import difflib
import inspect
import math
import numbers
from collections.abc import Iterable
from dataclasses import is_dataclass
from typing import Any


def check_range(name: str, value: float, low: float, high: float | None = None, whole: bool = False) -> None:
    """Refuse a ``value`` that is not finite, outside [low, high], or (if ``whole``) not a whole number.

    >>> check_range("bins", 1, 2, whole=True)
    Traceback (most recent call last):
    ValueError: bins=1 is out of range; it must be a whole number of at least 2.
    """
    number = isinstance(value, numbers.Real) and math.isfinite(value)
    if not number or value < low or (high is not None and value > high) or (whole and value % 1):
        kind = "a whole number" if whole else "a number"
        allowed = f"of at least {low:g}" if high is None else f"in [{low:g}, {high:g}]"
        raise ValueError(f"{name}={value!r} is out of range; it must be {kind} {allowed}.")


def check_choice(name: str, value: Any, allowed: Iterable[Any]) -> None:
    """Refuse a ``value`` that is not one of ``allowed``.

    >>> check_choice("quantizer", "flor", ("floor", "ceil"))
    Traceback (most recent call last):
    ValueError: quantizer='flor' is unknown; did you mean 'floor'? Use 'floor' or 'ceil'.
    """
    allowed = list(allowed)
    if value in allowed:
        return
    *first, last = map(repr, allowed)
    listed = f"{', '.join(first)} or {last}" if first else last
    raise ValueError(f"{name}={value!r} is unknown; {did_you_mean(repr(value), map(repr, allowed), f'use {listed}.')}")


def did_you_mean(word: str, known: Iterable[str], hint: str) -> str:
    """A hint for an unknown word: the known one that was probably meant, if there is one, then ``hint``.

    >>> did_you_mean("Lamda1", ["lambda1", "window"], "valid keys are lambda1, window.")
    'did you mean lambda1? Valid keys are lambda1, window.'
    >>> did_you_mean("x", ["lambda1", "window"], "valid keys are lambda1, window.")
    'valid keys are lambda1, window.'
    """
    by_case = {name.lower(): name for name in known}
    close = difflib.get_close_matches(word.lower(), by_case, n=1)
    return f"did you mean {by_case[close[0]]}? {hint[0].upper()}{hint[1:]}" if close else hint


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
