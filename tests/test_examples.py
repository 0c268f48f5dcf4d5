"""The examples run as a user runs them."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_training import fit

from lightning_ubs import BatchSelection

EXAMPLES = Path(__file__).parents[1] / "examples"


def run(name: str, folder: Path, *arguments: str) -> str:
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    result = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_the_quickstart_prints_both_results_and_saves_a_figure(tmp_path: Path) -> None:
    told = run("quickstart.py", tmp_path, "--epochs", "3", "--seeds", "1", "--output", "figures/curves.png")
    results = dict(re.findall(r"^  (shuffled batches|UBS) +(0\.\d{4})", told, re.MULTILINE))
    assert set(results) == {"shuffled batches", "UBS"}
    assert all(float(value) > 0.6 for value in results.values()), told
    gain = re.search(r"UBS minus shuffled: ([+-]\d\.\d{4}); UBS is ahead in (\d) of 1", told)
    assert gain is not None
    assert float(gain[1]) == pytest.approx(float(results["UBS"]) - float(results["shuffled batches"]), abs=2e-4)
    assert (tmp_path / "figures/curves.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["figures"], "nothing else is left behind"


def test_the_custom_strategy_prefers_the_images_that_are_hard(tmp_path: Path) -> None:
    told = run("custom_strategy.py", tmp_path, "--epochs", "4")
    assert "Validation Macro-AUC after 4 epochs: 0." in told
    visits = [float(value) for value in re.findall(r"trained on (\d\.\d\d) times", told)]
    assert len(visits) == 3
    assert visits[0] < visits[1] < visits[2]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["quickstart.py", "custom_strategy.py"])
def test_help_and_bad_arguments(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, code in ((["--help"], 0), (["--epochs", "1"], 2)):
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        with pytest.raises(SystemExit) as stopped:
            runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        assert stopped.value.code == code
    told = capsys.readouterr()
    assert "--epochs" in told.out
    assert "must be at least 2" in told.err


def test_the_custom_strategy_survives_a_checkpoint() -> None:
    kind: Any = runpy.run_path(str(EXAMPLES / "custom_strategy.py"))["LossBias"]
    torch.manual_seed(0)
    selection = BatchSelection(kind(), warmup_epochs=1)
    module, watch, _ = fit(selection)
    assert module.ids() == watch.plans
    other = kind()
    other.reset(selection.strategy.num_samples)
    other.load_state_dict(selection.strategy.state_dict())
    assert torch.equal(other.probabilities(1.0), selection.strategy.probabilities(1.0))
    assert other.probabilities(1.0).sum().item() == pytest.approx(1)


def test_the_custom_strategy_is_about_twenty_lines() -> None:
    source = (EXAMPLES / "custom_strategy.py").read_text()
    body = source.split("class LossBias(Strategy):")[1].split("class CountVisits")[0]
    code = [line for line in body.splitlines() if line.strip() and not line.strip().startswith('"""')]
    assert len(code) <= 20
