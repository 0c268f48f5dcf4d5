"""The table of methods agrees with the classes and the configurations, and any other name finds its place."""

from __future__ import annotations

import csv
import shutil
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


MARGIN = '''
"""Margin: samples whose least certain label is near to one half."""

from dataclasses import dataclass

import torch

from lightning_ubs.functional import min_max_scale, selection_probabilities
from lightning_ubs.state import spare_row_zeros
from lightning_ubs.strategies.base import Strategy


@dataclass(kw_only=True, eq=False, repr=False)
class Margin(Strategy):
    """Draws samples near the border more often.

    Args:
        sharpness: Pressure, at least 1.
    """

    sharpness: float = 4.0

    def reset(self, data):
        super().reset(data)
        self.margins = spare_row_zeros(data.num_samples)

    def update(self, ids, probs, targets=None):
        self.margins[ids] = (probs - 0.5).abs().amin(1).float()

    def probabilities(self, pressure):
        return selection_probabilities(min_max_scale(-self.margins[:-1]), self.sharpness)

    def state_dict(self):
        return {"margins": self.margins.clone()}

    def load_state_dict(self, state):
        self.margins = state["margins"].clone()
'''

ADDED = """
import sys
from pathlib import Path
import lightning_ubs
from lightning_ubs.cli import main

assert Path(lightning_ubs.__file__).parent == Path("lightning_ubs").resolve()
quick = ["data=synthetic", "trainer.max_epochs=2", "trainer.accelerator=cpu", "selection.warmup_epochs=1"]
assert main(["train", "selection=margin", "selection.sharpness=2", *quick, "hydra.run.dir=run"]) == 0
assert main(["train", "selection=margin", "selection.sharpnes=2", *quick]) == 1
assert main(["compare", "data=synthetic", "model=mlp", "selection=margin,random", "seed=0,1", "fold=0", *quick[1:],
             "results=kept", "engine=sequential", "trace=false"]) == 0
from lightning_ubs.experiment.store import ResultsStore
print(sorted({record.label for record in ResultsStore("kept").records() if record.finished}))
sys.path.append(sys.argv[1])
from all_strategies import all_strategies
print("Margin" in all_strategies())
"""


def test_a_method_is_added_by_its_file_and_one_row_of_the_table(tmp_path: Path) -> None:
    ignore = shutil.ignore_patterns("__pycache__")
    copy = shutil.copytree(ROOT / "lightning_ubs", tmp_path / "lightning_ubs", ignore=ignore)
    shutil.copytree(CONFIGS.parent, copy / "configs", ignore=ignore)
    (copy / "strategies" / "margin.py").write_text(MARGIN)
    table = (copy / "methods.py").read_text()
    row = 'KnownMethod("margin", "Margin", "margin.Margin", Look("#123456", "#654321")),'
    (copy / "methods.py").write_text(table.replace('    KnownMethod("ubs",', f'    {row}\n    KnownMethod("ubs",', 1))
    (tmp_path / "added.py").write_text(ADDED)
    command = [sys.executable, "added.py", str(ROOT / "tests" / "helpers")]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-2:] == ["['Margin', 'Random']", "True"]
    assert "did you mean sharpness?" in result.stderr
