"""The table of methods agrees with the classes and the configurations, and any other name finds its place."""

from __future__ import annotations

import csv
from pathlib import Path

import lightning_ubs.strategies
from lightning_ubs.methods import METHODS, SPARE_LOOKS, find_method, looks, method_order
from lightning_ubs.strategies import Strategy

ROOT = Path(__file__).parents[1]
CONFIGS = ROOT / "configs" / "selection"
PAPER = ROOT / "lightning_ubs" / "report" / "paper_tables.csv"


def test_every_row_has_its_class_its_configuration_and_a_look_of_its_own() -> None:
    assert len({row.key for row in METHODS}) == len({row.look for row in METHODS}) == len(METHODS)
    for row in METHODS:
        assert issubclass(row.strategy, Strategy)
        assert (CONFIGS / f"{row.key}.yaml").is_file()
    public = {
        name
        for name in lightning_ubs.strategies.__all__
        if issubclass(getattr(lightning_ubs.strategies, name), Strategy)
        # These take weights or groups of the user's own, which no configuration has.
        and name not in ("Strategy", "UncertaintyStrategy", "Weighted", "GroupScores")
    }
    assert {row.class_name for row in METHODS} == public


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
