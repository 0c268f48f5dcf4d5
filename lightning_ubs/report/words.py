"""Numbers and lists as people read them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def signed(value: float, decimals: int = 4) -> str:
    """A difference with its sign and a real minus.

    >>> signed(0.01234), signed(-0.5)
    ('+0.0123', '−0.5000')
    """
    return f"{value:+.{decimals}f}".replace("-", "−")


def plain(value: float) -> str:
    """A size with two significant digits.

    >>> plain(0.01234), plain(3.14159), plain(0.0000012)
    ('0.012', '3.1', '0.0000012')
    """
    text = np.format_float_positional(value, precision=2, unique=False, fractional=False, trim="-")
    return str(text)


def count_of(count: int, noun: str) -> str:
    """A number with its noun.

    >>> count_of(1, "split"), count_of(3, "split")
    ('1 split', '3 splits')
    """
    return f"{count} {noun}{'s' * (count != 1)}"


def pvalue(value: float) -> str:
    """A p-value with four decimals, never a bare zero.

    >>> pvalue(0.00001), pvalue(0.0312)
    ('< 0.0001', '0.0312')
    """
    return "< 0.0001" if value < 0.0001 else f"{value:.4f}"


def p_text(value: float) -> str:
    """A p-value within a sentence.

    >>> p_text(0.00001), p_text(0.0312)
    ('p < 0.0001', 'p = 0.0312')
    """
    text = pvalue(value)
    return f"p {text}" if text.startswith("<") else f"p = {text}"


def join(names: Sequence[str], most: int | None = None) -> str:
    """A list in a sentence; of more than ``most`` names the rest is a number.

    >>> join(["a"]), join(["a", "b", "c"]), join(["a", "b", "c", "d"], most=2)
    ('a', 'a, b and c', 'a, b and 2 more')
    """
    if most is not None and len(names) > most:
        names = [*names[:most], f"{len(names) - most} more"]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def runs_of(count: int, total: int) -> str:
    """How many of the runs.

    >>> runs_of(2, 5), runs_of(1, 1)
    ('2 of 5 runs', '1 of 1 run')
    """
    return f"{count} of {total} run{'s' * (total != 1)}"
