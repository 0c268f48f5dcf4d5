"""Warnings of this package among those that a program gave: its documentation and examples must not draw any."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "docs" / "_ext"))
from raised_messages import messages

_NOTES = ("nothing was selected", "Nothing was selected")


def own_warnings(lines: Iterable[str]) -> list[str]:
    """Those of the lines that hold a warning which the source of this package raises, or say that none was selected."""
    return [line for line in lines if _pattern().search(line) or any(note in line for note in _NOTES)]


@cache
def _pattern() -> re.Pattern[str]:
    texts = [re.split(r"‹[^›]*›", one.text) for one in messages() if one.kind == "warning"]
    told = [parts for parts in texts if sum(map(len, parts)) > 20]  # the others pass on words of another
    return re.compile("|".join(".*".join(map(re.escape, parts)) for parts in told))
