"""The examples run as a user runs them, with little data and few epochs."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hydra.core.global_hydra import GlobalHydra
from own_warnings import own_warnings
from tiny_training import fit

from lightning_ubs import BatchSelection
from lightning_ubs.strategies import TrainingSet

pytestmark = pytest.mark.docs

EXAMPLES = Path(__file__).parents[1] / "examples"
Run = Callable[..., str]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Run]:
    """Runs an example in an empty folder, in this process because an import of torch takes seconds."""
    monkeypatch.chdir(tmp_path)

    def run(name: str, *arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", [str(EXAMPLES / name), *arguments])
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        assert not own_warnings(str(one.message) for one in caught), f"{name} draws a warning of ours"
        assert not list(tmp_path.iterdir()), f"{name} leaves something behind"
        return capsys.readouterr().out

    with torch.random.fork_rng():
        yield run
    GlobalHydra.instance().clear()


def test_the_quickstart_prints_both_curves_and_what_was_drawn(run: Run) -> None:
    told = run("quickstart.py", "--fast")
    curves = {name: row.split() for name, row in re.findall(r"^  (shuffled|with UBS) +([\d. ]+)$", told, re.MULTILINE)}
    assert set(curves) == {"shuffled", "with UBS"}
    assert all(float(row[-1]) > 0.6 for row in curves.values()), told
    gain = re.search(r"UBS minus shuffled at the end, one by one: ([+-]\d\.\d{4})$", told, re.MULTILINE)
    assert gain is not None
    assert float(gain[1]) == pytest.approx(float(curves["with UBS"][-1]) - float(curves["shuffled"][-1]), abs=2e-4)
    drawn = [float(one) for one in re.findall(r"^  [123]  (\d\.\d\d)  #+$", told, re.MULTILINE)]
    assert len(drawn) == 3
    assert min(drawn) < 1 < max(drawn)


def test_the_custom_strategy_prefers_the_images_that_are_hard(run: Run) -> None:
    told = run("custom_strategy.py", "--fast")
    assert "Validation Macro-AUC after 4 epochs: 0." in told
    visits = [float(value) for value in re.findall(r"trained on (\d\.\d\d) times", told)]
    assert len(visits) == 3
    assert visits[0] < visits[1] < visits[2]


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


def test_your_own_model_is_compared(run: Run) -> None:
    told = run("compare_own_model.py", "--fast")
    assert "UBS against Random" in told
    assert len(re.findall(r"^\d +(?:Random|UBS|InfoBatch) +[01] +0\.\d+", told, re.MULTILINE)) == 6


def test_lightning_cli_reads_callback_and_strategy_from_yaml(run: Run) -> None:
    pytest.importorskip("jsonargparse")
    config = ["fit", "--config", str(EXAMPLES / "lightning_cli.yaml")]
    told = run("lightning_cli.py", *config, "--trainer.callbacks.strategy.init_args.lambda1=0.6", "--fast")
    assert "Trained with BatchSelection(strategy=UBS(lambda1=0.6), warmup_epochs=1)." in told


def test_a_hydra_application_takes_the_callback_from_two_lines(run: Run) -> None:
    told = run("hydra_app.py", "selection@callbacks.selection=recent", "--fast")
    assert re.search(r"RecencyBias\(.*Macro-AUC 0\.\d{4}", told)


def test_a_hugging_face_classifier_is_read_through_its_loss(run: Run) -> None:
    pytest.importorskip("transformers")
    told = run("huggingface_text.py", "--fast")
    assert re.findall(r"^w = (\d\.\d\d): ", told, re.MULTILINE)[:1] == ["1.00"]


def test_images_that_are_drawn_most_are_shown(run: Run) -> None:
    told = run("images.py", "--fast")
    assert "Training loss in the last epoch: 0." in told
    assert [len(line) for line in told.splitlines()].count(5 * 16 + 4 * 3) == 16, "two rows of five images, 8 x 8"


def test_a_weighted_loss_stands_beside_a_selection(run: Run) -> None:
    told = run("weighted_loss.py", "--fast")
    found = re.findall(
        r"^(plain|weighted) +loss, (Random|ClassAware) +average precision: rare 0\.\d+", told, re.MULTILINE
    )
    assert len(set(found)) == 4


def test_one_class_per_sample_needs_nothing_but_cross_entropy(run: Run) -> None:
    told = run("multi_class.py", "--fast")
    accuracies = re.findall(r"^(\w+) +accuracy: rare classes \d\.\d+, others (0\.\d+)$", told, re.MULTILINE)
    assert [name for name, _ in accuracies] == ["Random", "UBS", "ClassAware"]
    assert all(float(value) > 0.7 for _, value in accuracies), told


def test_fine_tuning_selects_while_the_backbone_is_frozen_and_after(run: Run) -> None:
    told = run("frozen_features.py", "--fast")
    trained = [int(one) for one in re.findall(r"epoch +\d: +(\d+) parameters trained", told)]
    assert trained == [1290, 1290, 9610, 9610]
    precision = [float(one) for one in re.findall(r"mAP (0\.\d+)", told)]
    assert precision[-1] > precision[1] + 0.1


def test_a_memmap_is_read_block_by_block(run: Run) -> None:
    told = run("streams.py", "--fast")
    touched = re.search(r"a batch touched, mean: (\d\.\d); shuffled .* would be (\d+\.\d)$", told, re.MULTILINE)
    assert touched is not None
    assert float(touched[1]) <= 4 < 9 < float(touched[2])


def test_a_loop_in_fabric_trains_with_a_strategy(run: Run) -> None:
    told = run("fabric.py", "--fast")
    assert re.findall(r"pressure +(\d+\.0)", told) == ["1.0", "100.0", "1.0"]
    losses = [float(one) for one in re.findall(r"drawn (0\.\d+)", told)]
    assert losses[2] < losses[0] < 0.7


def test_the_loop_in_fabric_takes_about_twenty_lines() -> None:
    source = (EXAMPLES / "fabric.py").read_text().partition("    strategy = UBS()")[2]
    assert len([line for line in source.splitlines() if line.strip() and "#" not in line.strip()[:1]]) <= 20


def test_wandb_gets_curves_and_pictures_offline(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    told = run("wandb_offline.py", "--fast")
    assert re.search(r"^selection/pressure +1", told, re.MULTILINE)
    pictures = re.search(r"^(\d+) pictures$", told, re.MULTILINE)
    assert pictures is not None
    assert int(pictures[1]) >= 4


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
        assert "[--fast]" in source, f"{path.name} takes no --fast"
        assert f'"{path.name}"' in tests, f"{path.name} is not run"
