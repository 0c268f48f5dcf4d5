"""The table of methods agrees with the classes and the configurations, and any other name finds its place."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

import lightning_ubs.strategies
from lightning_ubs.methods import METHODS, SPARE_LOOKS, find_method, looks, method_order
from lightning_ubs.strategies import Strategy

ROOT = Path(__file__).parents[1]
CONFIGS = ROOT / "configs" / "selection"
PAPER = ROOT / "lightning_ubs" / "report" / "paper_tables.csv"


def test_every_row_has_its_class_its_configuration_and_a_look_of_its_own() -> None:
    assert len({row.key for row in METHODS}) == len({row.look for row in METHODS}) == len(METHODS)
    assert all(issubclass(row.strategy, Strategy) for row in METHODS)
    public = {
        name
        for name in lightning_ubs.strategies.__all__
        if issubclass(getattr(lightning_ubs.strategies, name), Strategy)
        # Weighted takes weights of the user's own, which no configuration has.
        and name not in ("Strategy", "UncertaintyStrategy", "Weighted")
    }
    assert public <= {row.class_name for row in METHODS}


NEW = """
from dataclasses import dataclass
import torch
from lightning_ubs.strategies.base import Strategy

@dataclass(kw_only=True, eq=False, repr=False)
class Corner(Strategy):
    needs = frozenset()
    share: float = 0.5

    def probabilities(self, pressure):
        weights = torch.ones(self.num_samples, dtype=torch.float64)
        weights[: int(self.share * self.num_samples)] = 9
        return weights / weights.sum()
"""
USE = """
import sys
import lightning_ubs.strategies
from lightning_ubs import methods
lightning_ubs.strategies.__path__.append(sys.argv[1])
methods.METHODS += (methods.KnownMethod("corner", "Corner", "Corner", methods.Look("#123456", "#abcdef")),)
from lightning_ubs.experiment.build import build_selection
from lightning_ubs.experiment.config import compose_train, resolved
from lightning_ubs.experiment.selection import described
made = build_selection(resolved(compose_train(["selection=corner", "selection.share=0.25"]))["selection"], seed=0)
print(made.strategy, described("Corner", made)["selection"], described("Corner", made)["parameters"]["share"])
"""


def test_a_method_is_added_by_its_file_and_its_row(tmp_path: Path) -> None:
    (tmp_path / "corner.py").write_text(NEW)
    run = subprocess.run([sys.executable, "-c", USE, str(tmp_path)], capture_output=True, text=True, check=False)
    assert run.stdout == "Corner(share=0.25) corner 0.25\n", run.stderr


def test_every_column_of_the_papers_tables_is_a_method() -> None:
    with open(PAPER, newline="", encoding="utf-8") as file:
        columns = {row["method"] for row in csv.DictReader(file)}
    assert columns == {row.paper for row in METHODS} - {""}
    assert all(find_method(column) is not None for column in columns)


def test_own_methods_keep_their_look_whoever_stands_beside_them() -> None:
    alone = looks(["mine"])["mine"]
    assert alone in SPARE_LOOKS
    assert looks(["random", "mine", "ubs"])["mine"] == alone
    many = looks([f"own {number}" for number in range(len(SPARE_LOOKS))])
    assert set(many.values()) == set(SPARE_LOOKS)


def test_own_methods_stand_between_the_baselines_and_ubs() -> None:
    names = ["ubs", "zeta", "alpha", "hard", "random"]
    assert sorted(names, key=method_order) == ["random", "hard", "alpha", "zeta", "ubs"]
