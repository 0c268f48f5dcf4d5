"""Checks of constructor arguments; each refusal names the argument, its value and what is allowed."""

from __future__ import annotations

import difflib
import math
import numbers
from collections.abc import Iterable
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
    raise ValueError(f"{name}={value!r} is unknown; {did_you_mean(str(value), map(str, allowed))}{listed}.")


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The words that introduce a list of valid values: a close match if there is one.

    >>> did_you_mean("lambda", ["lambda1", "window"])
    "did you mean 'lambda1'? Use "
    """
    close = difflib.get_close_matches(word, list(known), n=1)
    return f"did you mean {close[0]!r}? Use " if close else "use "
