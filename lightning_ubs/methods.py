"""The methods of batch selection of this package: one row says all that identifies one.

A method that is added is named here once, and nowhere else: `selection=KEY`, `compare`, reports and the tests of all
methods find it by its row. A file ``configs/selection/KEY.yaml`` may say what its settings mean; without one, they are
the fields of its class. Users' own methods need no row: `method_order` and `looks` place and color any name.
"""

from __future__ import annotations

import importlib
import importlib.resources
import inspect
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightning_ubs.strategies import Strategy


@dataclass(frozen=True)
class Look:
    """How a method is drawn: a tone on light ground, one on dark, a dash pattern of Matplotlib, a line width.

    Hues follow Okabe and Ito's set for color-blind readers; the dashes tell methods apart without any color.
    """

    color: str
    dark: str
    dash: Any = "-"
    width: float = 1.5


@dataclass(frozen=True)
class KnownMethod:
    """A method of this package. The order of `METHODS` is that of tables and figures.

    Attributes:
        key: In ``selection=KEY``, in ``configs/selection`` and in results.
        label: Name to display.
        class_name: Of its strategy in ``lightning_ubs.strategies``, or ``"file.Class"`` of a file there.
        look: How it is drawn.
        paper: Its column in the paper's tables; empty if it is not in them.
        aliases: Other keys that results may hold.
    """

    key: str
    label: str
    class_name: str
    look: Look
    paper: str = ""
    aliases: tuple[str, ...] = ()

    @property
    def strategy(self) -> type[Strategy]:
        """Its class."""
        file, _, name = self.class_name.rpartition(".")
        found: type[Strategy] = getattr(importlib.import_module(f"lightning_ubs.strategies.{file}".rstrip(".")), name)
        return found


BASELINE = "random"
"""Key of the method that all others are compared with."""
REFERENCE = "ubs"
"""Key of the paper's own method."""
CONTROL = "shuffled"
"""Key of the control that deals a method's probabilities to random samples."""

METHODS: tuple[KnownMethod, ...] = (
    KnownMethod("random", "Random", "Random", Look("#454c56", "#dbe1e8", (0, (5, 2))), "Random"),
    KnownMethod("balance", "Balance", "Balance", Look("#009e73", "#1fa881", (0, (1, 1.3))), "Balance"),
    KnownMethod(
        "active", "Active", "ActiveBias", Look("#cc6fa5", "#d97fb3", (0, (4, 1.5, 1, 1.5))), "Active", ("activebias",)
    ),
    KnownMethod("active_quantized", "Active-Q", "ActiveBias", Look("#8e3b72", "#e6a3cb", (0, (4, 1.5)))),
    KnownMethod(
        "recent",
        "Recent",
        "RecencyBias",
        Look("#0060a8", "#5ab0f0", (0, (7, 1.5))),
        "Recent",
        ("recency", "recencybias"),
    ),
    KnownMethod(
        "hard", "Hard", "HardImbalance", Look("#dd9c00", "#f5cf55", (0, (3, 1, 1, 1, 1, 1))), "Hard", ("hardimbalance",)
    ),
    KnownMethod("loss", "Loss", "LossBias", Look("#4b6b00", "#a9c94a", (0, (2, 1, 4, 1))), aliases=("lossbias",)),
    KnownMethod(
        "repeat_factor",
        "Repeat factor",
        "RepeatFactor",
        Look("#7a6a00", "#d6c95a", (0, (5, 1, 2, 1))),
        aliases=("rfs",),
    ),
    KnownMethod("class_aware", "Class-aware", "ClassAware", Look("#00767c", "#4fd0d6", (0, (1, 1, 4, 1)))),
    KnownMethod("infobatch", "InfoBatch", "InfoBatch", Look("#6a3fb5", "#bba0f5", (0, (6, 1, 1, 1)))),
    KnownMethod("d2ace", "D2ACE", "D2ACE", Look("#a03a00", "#ffa66b", (0, (3, 1)))),
    KnownMethod("shuffled", "UBS, shuffled P", "Shuffled", Look("#7a7a7a", "#a8a8a8", (0, (1, 3)))),
    KnownMethod("ubs", "UBS", "UBS", Look("#c23b00", "#ff7433", "-", 2.3), "Ours"),
)

SPARE_LOOKS: tuple[Look, ...] = (
    Look("#6f4fb8", "#b39cf0", (0, (2, 1))),
    Look("#20899b", "#6fd3e3", (0, (6, 2, 1, 2))),
    Look("#7d5a3c", "#c9a483", (0, (1, 2))),
    Look("#5f7d1d", "#b0cf63", (0, (3, 2))),
    Look("#a3364a", "#f0909f", (0, (8, 2, 2, 2))),
    Look("#3d4f8f", "#9badf0", (0, (2, 2, 6, 2))),
)
"""For methods that are not in `METHODS`."""


def register_methods() -> None:
    """Let ``selection=KEY`` choose the methods that have no file ``configs/selection/KEY.yaml``."""
    from hydra.core.config_store import ConfigStore

    files = importlib.resources.files("lightning_ubs.configs").joinpath("selection")
    store = ConfigStore.instance()
    there = store.repo.get("selection", {})
    for row in METHODS:
        if files.joinpath(f"{row.key}.yaml").is_file() or f"{row.key}.yaml" in there:
            continue
        plain = (int, float, str, bool, type(None))
        own = inspect.signature(row.strategy).parameters
        node = {
            "defaults": ["default", "_self_"],
            "name": row.key,
            "strategy": row.key,
            "label": row.label,
            **{name: one.default for name, one in own.items() if isinstance(one.default, plain)},
        }
        store.store(group="selection", name=row.key, node=node, provider="lightning-ubs")


def find_method(name: str) -> KnownMethod | None:
    """The row whose key, label, class, paper name or alias this is, in any case; None for a user's own.

    >>> find_method("RecencyBias").label, find_method("Ours").key, find_method("mine")
    ('Recent', 'ubs', None)
    """
    wanted = name.lower()
    rows = [row for row in METHODS if wanted == row.key] or [
        row
        for row in METHODS
        if wanted in map(str.lower, (row.label, row.class_name.rpartition(".")[2], row.paper, *row.aliases))
    ]
    return rows[0] if name and rows else None


def method_order(selection: str) -> tuple[int, str]:
    """A key to sort methods by: the table's order, the paper's own last, users' own between them by name.

    >>> sorted(["ubs", "mine", "random", "hard"], key=method_order)
    ['random', 'hard', 'mine', 'ubs']
    """
    row = find_method(selection)
    if row is None:
        return len(METHODS), selection
    return (len(METHODS) + 1 if row.key == REFERENCE else METHODS.index(row)), ""


def looks(names: Iterable[str]) -> dict[str, Look]:
    """A look per name. One of this package's has its own; others get one by their name, different while any is left.

    >>> looks(["ubs", "mine"])["mine"] == looks(["mine", "random"])["mine"]
    True
    """
    chosen: dict[str, Look] = {}
    for name in dict.fromkeys(names):
        row = find_method(name)
        if row is not None and row.look not in chosen.values():
            chosen[name] = row.look
            continue
        start = zlib.crc32(name.encode()) % len(SPARE_LOOKS)
        turned = SPARE_LOOKS[start:] + SPARE_LOOKS[:start]
        chosen[name] = next((look for look in turned if look not in chosen.values()), turned[0])
    return chosen
