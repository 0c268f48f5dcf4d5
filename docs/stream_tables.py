"""The table of docs/streams.md: what block order costs on data that are stored sorted by label."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from stored_results import ByMethod, counted, evidence, interval, mean, stored, table

ORDERS = {
    "UBS, 1 of 46 blocks": "1 of 46 blocks",
    "UBS, 4 of 46 blocks": "4 of 46 blocks",
    "UBS, 16 of 46 blocks": "16 of 46 blocks",
    "UBS, all blocks": "all 46 blocks",
    "Random": "Random, any order",
}


def locality() -> str:
    """Macro-AUC of UBS in block order against UBS in an order of all samples, by window."""
    cells: dict[str, ByMethod] = defaultdict(lambda: defaultdict(dict))
    for run in stored("locality"):
        # Blocks are of another size in each set, which reports tell apart.
        cells[run.data][run.method.label.partition(" (order=")[0]][run.unit[0]] = run
    rows = [["UBS, any order", *(f"{mean(runs['UBS']):.4f}" for runs in cells.values())]]
    for order, name in ORDERS.items():
        rows.append([name, *(interval(evidence([runs], order, base="UBS")) for runs in cells.values())])
    return table(["window", *(f"{data}, {counted(runs['UBS'])}" for data, runs in cells.items())], rows)


STREAM_TABLES: dict[str, Callable[[], str]] = {"locality": locality}
