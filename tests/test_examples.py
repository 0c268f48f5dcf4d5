"""The examples run as a user runs them, with little data and few epochs."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hydra.core.global_hydra import GlobalHydra
from tiny_training import fit

from lightning_ubs import BatchSelection
from lightning_ubs.strategies import TrainingSet

EXAMPLES = Path(__file__).parents[1] / "examples"
Run = Callable[..., str]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Run]:
    """Runs an example in an empty folder, in this process because an import of torch takes seconds."""
    monkeypatch.chdir(tmp_path)

    def run(name: str, *arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", [str(EXAMPLES / name), *arguments])
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out

    with torch.random.fork_rng():
        yield run
    GlobalHydra.instance().clear()


def test_the_quickstart_prints_both_results_and_saves_a_figure(run: Run, tmp_path: Path) -> None:
    told = run("quickstart.py", "--epochs", "3", "--seeds", "1", "--output", "figures/curves.png")
    results = dict(re.findall(r"^  (shuffled batches|UBS) +(0\.\d{4})", told, re.MULTILINE))
    assert set(results) == {"shuffled batches", "UBS"}
    assert all(float(value) > 0.6 for value in results.values()), told
    gain = re.search(r"UBS minus shuffled: ([+-]\d\.\d{4}); UBS is ahead in (\d) of 1", told)
    assert gain is not None
    assert float(gain[1]) == pytest.approx(float(results["UBS"]) - float(results["shuffled batches"]), abs=2e-4)
    assert (tmp_path / "figures/curves.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["figures"], "nothing else is left behind"


def test_the_custom_strategy_prefers_the_images_that_are_hard(run: Run, tmp_path: Path) -> None:
    told = run("custom_strategy.py", "--epochs", "4")
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
    other.reset(TrainingSet(selection.strategy.num_samples))
    other.load_state_dict(selection.strategy.state_dict())
    assert torch.equal(other.probabilities(1.0), selection.strategy.probabilities(1.0))
    assert other.probabilities(1.0).sum().item() == pytest.approx(1)


def test_the_custom_strategy_is_about_twenty_lines() -> None:
    source = (EXAMPLES / "custom_strategy.py").read_text()
    body = source.split("class LossBias(Strategy):")[1].split("if __name__")[0]
    code = [line for line in body.splitlines() if line.strip() and not line.strip().startswith('"""')]
    assert len(code) <= 20


def test_your_own_model_is_compared(run: Run, tmp_path: Path) -> None:
    told = run("compare_own_model.py", "--fast")
    assert "UBS against Random" in told
    assert "InfoBatch: 25 % fewer samples" in told
    assert (tmp_path / "results/own_model/runs.jsonl").is_file()


def test_lightning_cli_reads_callback_and_strategy_from_yaml(run: Run) -> None:
    pytest.importorskip("jsonargparse")
    config = ["fit", "--config", str(EXAMPLES / "lightning_cli.yaml")]
    quick = ["--trainer.max_epochs=2", "--trainer.callbacks.warmup_epochs=1"]
    told = run("lightning_cli.py", *config, *quick, "--trainer.callbacks.strategy.init_args.lambda1=0.6")
    assert "Trained with BatchSelection(strategy=UBS(lambda1=0.6, window=5" in told
    assert "warmup_epochs=1" in told


def test_a_hydra_application_takes_the_callback_from_two_lines(run: Run) -> None:
    told = run("hydra_app.py", "trainer.max_epochs=2", "selection@callbacks.selection=recent")
    assert re.search(r"RecencyBias\(.*Macro-AUC 0\.\d{4}", told)


def test_a_hugging_face_classifier_is_read_through_its_loss(run: Run) -> None:
    pytest.importorskip("transformers")
    told = run("huggingface_text.py", "--fast")
    assert re.findall(r"^w = (\d\.\d\d): ", told, re.MULTILINE)[:1] == ["1.00"]


def test_images_are_drawn_and_shown(run: Run, tmp_path: Path) -> None:
    assert "Training loss in the last epoch: 0." in run("images.py", "--fast")
    assert (tmp_path / "images.png").read_bytes().startswith(b"\x89PNG")


def test_half_the_training_has_half_the_steps(run: Run) -> None:
    told = run("half_the_training.py", "--fast")
    steps = [int(one) for one in re.findall(r"(\d+) steps", told)]
    assert steps == [153, 78, 78]


def test_importance_weights_by_hand_have_mean_one(run: Run) -> None:
    told = run("importance_weights.py", "--fast")
    mean = re.search(r"last epoch: (\d\.\d+)", told)
    assert mean is not None
    assert float(mean[1]) == pytest.approx(1, abs=0.02)


def test_two_processes_hold_the_same_probabilities(tmp_path: Path) -> None:
    # Lightning starts the second process with the arguments of the first, so this one needs a process of its own.
    command = [sys.executable, str(EXAMPLES / "two_processes.py"), "--fast"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    assert re.findall(r"epoch (\d): equal P", done.stdout) == ["0", "1", "2"]


def test_a_resumed_training_has_the_same_weights(run: Run) -> None:
    assert "weights equal bit by bit: True" in run("resume.py", "--fast")


def test_every_example_is_short_and_documented_and_tested() -> None:
    tests = Path(__file__).read_text()
    for path in EXAMPLES.glob("*.py"):
        source = path.read_text()
        assert len(source.splitlines()) < 80, f"{path.name} is long"
        assert f"python examples/{path.name}" in source, f"{path.name} does not say how it is run"
        assert f'"{path.name}"' in tests, f"{path.name} is not run"
