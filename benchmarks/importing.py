"""What importing the package adds to importing Lightning."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Iterator

from benchmarks.measure import Row, summary

_LIGHTNING = "import lightning"
_OURS = "from lightning_ubs import UBS, BatchSelection"


def import_rows(repeats: int, quick: bool) -> Iterator[Row]:
    """Processor seconds of a fresh interpreter, in turn."""
    _seconds(_LIGHTNING), _seconds(_OURS)
    ratios = []
    for repeat in range(max(repeats, 9)):
        pair = [_LIGHTNING, _OURS]
        seconds = {one: _seconds(one) for one in (pair if repeat % 2 else reversed(pair))}
        ratios.append(seconds[_OURS] / seconds[_LIGHTNING])
    yield summary("import with BatchSelection and UBS / import lightning", ratios, 1.05, "the modules of the callback")


def _seconds(code: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", code], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
