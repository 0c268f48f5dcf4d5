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
    raise ValueError(f"{name}={value!r} is unknown; {did_you_mean(repr(value), map(repr, allowed), f'use {listed}.')}")


def did_you_mean(word: str, known: Iterable[str], way_out: str) -> str:
    """The way out of an unknown word, after the known word that was probably meant, if there is one.

    >>> did_you_mean("Lamda1", ["lambda1", "window"], "valid keys are lambda1, window.")
    'did you mean lambda1? Valid keys are lambda1, window.'
    >>> did_you_mean("x", ["lambda1", "window"], "valid keys are lambda1, window.")
    'valid keys are lambda1, window.'
    """
    by_case = {name.lower(): name for name in known}
    close = difflib.get_close_matches(word.lower(), by_case, n=1)
    return f"did you mean {by_case[close[0]]}? {way_out[0].upper()}{way_out[1:]}" if close else way_out
