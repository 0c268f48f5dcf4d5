"""Every configuration composes, is commented, and says what the code does."""

from __future__ import annotations

import importlib.util
import inspect
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import hydra.utils
import pytest
from hydra import compose, initialize_config_module
from hydra.core.global_hydra import GlobalHydra
from hydra.plugins.completion_plugin import DefaultCompletionPlugin as Completer
from lightning.pytorch.loggers import Logger
from omegaconf import OmegaConf
from once import composed_once

from lightning_ubs import UBS, BatchSelection
from lightning_ubs.cli import main
from lightning_ubs.data import load, names
from lightning_ubs.data.entries import register_datasets
from lightning_ubs.data.readers.npz import write_npz
from lightning_ubs.experiment import expand
from lightning_ubs.experiment.build import build_data, build_loggers, build_selection, locate
from lightning_ubs.experiment.config import ConfigError, compose_train, resolved
from lightning_ubs.experiment.expand import expand_grid
from lightning_ubs.experiment.selection import settings_of, split_settings
from lightning_ubs.methods import find_method
from lightning_ubs.models import build_model
from lightning_ubs.strategies import Shuffled

ROOT = Path(__file__).parents[2]
CONFIGS = ROOT / "configs"


def choices(group: str) -> list[str]:
    return sorted(path.stem for path in (CONFIGS / group).glob("*.yaml") if path.stem != "default")


def compare_config(*overrides: str) -> dict[str, Any]:
    with initialize_config_module("lightning_ubs.configs", version_base="1.3"):
        plain: Any = OmegaConf.to_container(compose("compare", list(overrides)), resolve=True)
    return dict(plain)


@pytest.mark.parametrize("path", sorted(CONFIGS.rglob("*.yaml")), ids=lambda path: str(path.relative_to(CONFIGS)))
def test_every_field_has_a_comment(path: Path) -> None:
    before = ""
    for line in path.read_text(encoding="utf-8").split("    template: |")[0].splitlines():
        field = re.match(r"\s*[a-zA-Z_0-9]+:\s*\S", line)
        defaults = re.match(r"\s*-\s", line)
        assert not field or defaults or "#" in line or before.strip().startswith("#"), f"no comment: {line}"
        before = line


def offered(group: str) -> set[str]:
    """What Hydra itself lists, for help, tab completion and its messages."""
    register_datasets()
    with initialize_config_module("lightning_ubs.configs", version_base="1.3"):
        return set(GlobalHydra.instance().config_loader().get_group_options(group))


def test_every_dataset_of_the_catalog_is_a_choice_and_the_other_way_round() -> None:
    assert offered("data") == {*names(), "file", "default"}
    assert choices("data") == ["file"], "a dataset is added in one place, the catalog"


def test_help_and_tab_completion_list_the_datasets(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("data: ")]
    assert set(names()) <= set(line.removeprefix("data: ").split(", "))
    register_datasets()
    with initialize_config_module("lightning_ubs.configs", version_base="1.3"):
        completed = Completer(GlobalHydra.instance().config_loader())._query(config_name="train", line="data=yah")
    assert completed == ["data=yahoo-Arts1", "data=yahoo-Business1"]


@pytest.mark.parametrize("name", names())
def test_data_config_builds_the_dataset_it_is_named_after(name: str) -> None:
    data: Any = build_data(resolved(compose_train([f"data={name}"]))["data"])
    assert (data.name, data.batch_size, data.folds, data.seed) == (name, 128, 5, 42)


@pytest.mark.parametrize("name", [name for name in choices("selection") if not name.startswith("notebook_")])
def test_selection_config_states_the_defaults_of_the_code(name: str) -> None:
    config = resolved(compose_train([f"selection={name}"]))["selection"]
    row = find_method(config["strategy"])
    assert row is not None
    settings = settings_of(config)
    kind = row.strategy if settings.pop("of", None) is None else Shuffled
    own, shared = split_settings(row.strategy, settings)
    plain = {"ubs_b": {"lambda1": 0.0}, "ubs_c": {"lambda1": 1.0}, "ubs_d": {"correlation": None}}
    plain |= {f"{base}_lc": {"correlation": "mutual_information"} for base in ("active", "recent")}
    plain |= {"active_quantized": {"mode": "quantized"}, "random_filled": {"fill_last": True}}
    drawn = {"replacement": "systematic"} if row.key not in ("random", "balance", "infobatch") else {}
    drawing: dict[str, dict[str, Any]] = {f"{base}_half": {"epoch_size": 0.5} for base in ("random", "ubs", "loss")}
    drawing |= {f"{base}_batch": {"replacement": "batch"} for base in ("ubs", "active", "recent", "hard")}
    drawing |= {"class_aware_whole": {"end_epoch": 1.0}}
    drawing |= {"ubs_none": {"replacement": "none"}, "random_three_quarters": {"epoch_size": 0.75}}
    signature = inspect.signature(row.strategy).parameters
    expected = {key: parameter.default for key, parameter in signature.items()} | plain.get(name, {})
    assert own == expected
    callback = inspect.signature(BatchSelection).parameters
    warmup = {"warmup_epochs": BatchSelection().warmup_epochs}
    assert shared == {key: callback[key].default for key in shared} | warmup | drawn | drawing.get(name, {})
    for made in (build_selection(config, 0), hydra.utils.instantiate(config)):
        assert isinstance(made, BatchSelection)
        assert type(made.strategy) is kind
        # What a configuration says is what the callback does by itself, unless the configuration is for saying more.
        alone = BatchSelection(row.strategy(**own))
        assert made.replacement == drawing.get(name, {}).get("replacement", alone.replacement)


def test_ablations_are_named_as_the_report_expects() -> None:
    ablations = ("ubs", "ubs_b", "ubs_c", "ubs_d", "active_lc", "recent_lc")
    told = {name: compose_train([f"selection={name}"])["selection"] for name in ablations}
    assert [(told[n]["name"], told[n]["variant"]) for n in ("ubs", "ubs_b", "ubs_c", "ubs_d")] == [
        ("ubs", ""), ("ubs", "B"), ("ubs", "C"), ("ubs", "D")
    ]  # fmt: skip
    assert (told["active_lc"]["name"], told["active_lc"]["variant"]) == ("active", "Active_LC")
    assert (told["recent_lc"]["name"], told["recent_lc"]["variant"]) == ("recent", "Recent_LC")


@pytest.mark.parametrize("name", choices("model"))
def test_model_config_has_only_arguments_of_the_model(name: str) -> None:
    config = compose_train([f"model={name}"])["model"]
    assert config["name"] == name
    model = build_model(name, 5, 3)
    accepted = set(inspect.signature(type(model)).parameters)
    assert set(config) - {"name"} <= accepted
    assert config["lr"] == (3e-3 if name == "mlp" else 1e-4)


def test_every_logger_builds(tmp_path: Path) -> None:
    ours = ("csv", "tensorboard", "none")
    counts = {name: len(build_loggers(compose_train([f"logger={name}"])["logger"], tmp_path)) for name in ours}
    assert counts == {"csv": 1, "tensorboard": 2, "none": 0}


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_loggers_of_lightning_take_the_arguments_that_their_configurations_give(name: str, tmp_path: Path) -> None:
    config = compose_train([f"logger={name}"])["logger"]
    kind = locate(config["_target_"])
    assert issubclass(kind, Logger)
    ours = {"_target_", "name", "image_every_n_epochs"}
    assert set(config) - ours <= set(inspect.signature(kind).parameters)
    if importlib.util.find_spec(name) is None:
        with pytest.raises(ConfigError, match=rf"logger: .*{kind.__name__} raised ModuleNotFoundError"):
            build_loggers(config, tmp_path)


def test_keys_that_users_override_reach_the_strategy() -> None:
    overrides = ["selection=ubs", "selection.lambda1=0.6", "selection.window=7", "selection.s0=64"]
    config = resolved(compose_train([*overrides, "selection.warmup_epochs=3", "selection.bins=10", "seed=9"]))
    selection = build_selection(config["selection"], config["seed"])
    strategy = selection.strategy
    assert isinstance(strategy, UBS)
    assert (strategy.lambda1, strategy.window, strategy.s0, strategy.bins) == (0.6, 7, 64.0, 10)
    assert selection.start_epoch == 3
    assert config["selection"]["seed"] == 9


# Runs of one fold and, where the paper has them, of all its datasets.
SIZES = {
    "first": 4,
    "paper_table": 13 * 3 * 6,
    "ablation": 8,
    "lambda_sensitivity": 2 * 11,
    "grid_s0_T": 2 * 20,
    "convergence": 4 * 6,
    "correlation_drift": 1,
    "time": 6 * 3,
    "savings": 4 * 8 * 3,
    "drawing": 8 * 6,
    "settings": 18 * 4,
    "main_table": 17 * 7,
    "notebooks": 4 * 2 * 5 * 2,
    "paper_models": 4 * 3 * 7,
    "three_times": 2 * 3 * 7,
    "authors_rate": 4 * 3 * 3,
    "text_sets": 3 * 3,
    "yahoo_arts": 3,
    "ablation_mlp": 5 * 9,
    "sensitivity": 5 * (1 + 4 + 6 + 2 + 3 + 2 + 3 + 2),
    "alternatives_settings": 14 * 4 * 3,
    "alternatives": 14 * 4 * 8,
    "short": 14 * 4 * 8,
    "alternatives_clif": 3 * 3 * 2,
}
FOLDS = {"time": [0], "savings": [0, 1, 2], "settings": [0], "alternatives_settings": [0]}
EPOCHS = {"savings": {20, 40, 80}, "drawing": {80}, "settings": {80, 160}, "main_table": {20, 40, 80}}
EPOCHS |= {"three_times": {300}, "ablation_mlp": {20, 40, 80}, "sensitivity": {20, 40, 80}}
EPOCHS |= {"first": {60}}
EPOCHS |= {"alternatives_settings": {40, 80}, "alternatives": {20, 40, 80}, "short": {10, 20}}
# The one dataset of the experiments that is not in the catalog; they call it data=file.
BY_HAND = "stackex_chess"
# How the paper's own experiments draw.
PAPER = ("paper_table", "ablation", "lambda_sensitivity", "grid_s0_T", "convergence", "correlation_drift", "time")


@pytest.mark.parametrize("name", choices("experiment"))
def test_every_experiment_runs_as_designed_on_datasets_that_exist(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_npz(tmp_path / f"{BY_HAND}.npz", load("digits"))
    monkeypatch.setenv("LIGHTNING_UBS_DATA", str(tmp_path))
    monkeypatch.setattr(expand, "compose_train", composed_once)
    config = compare_config(f"experiment={name}")
    assert config["grid"]["fold"] == FOLDS.get(name, [0, 1, 2, 3, 4])
    config["grid"]["fold"] = [0]
    runs = expand_grid(config)
    assert len(runs) == SIZES[name]
    assert {run.identity.data for run in runs} <= {BY_HAND, *names()}
    assert {run.config["trainer"]["max_epochs"] for run in runs} == EPOCHS.get(name, {100})
    assert config["results"] == f"results/{name}"


@pytest.mark.parametrize("name", choices("experiment"))
def test_every_experiment_has_a_small_form(name: str) -> None:
    config = compare_config(f"experiment={name}", "scale=smoke")
    grid, whole = config["grid"], compare_config(f"experiment={name}")
    assert (grid["data"], grid["fold"], grid["seed"]) == (["synthetic"], [0, 1], [0])
    assert (grid["model"], grid["selection"]) == (whole["grid"]["model"], whole["grid"]["selection"])
    assert config["sweep"] == whole["sweep"] | {"trainer": {"max_epochs": [3]}}
    assert config["train"]["selection"] == {"warmup_epochs": 1} | ({"replacement": "batch"} if name in PAPER else {})
    assert config["results"] == f"results/{name}-smoke"


@pytest.mark.slow
def test_configs_are_found_from_a_wheel_and_by_another_application(tmp_path: Path) -> None:
    source = tmp_path / "source"
    ignore = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in ("lightning_ubs", "configs"):
        shutil.copytree(ROOT / name, source / name, ignore=ignore)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    build = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        str(source),
        "--no-deps",
        "--no-build-isolation",
        "-q",
        "-w",
        str(tmp_path),
    ]
    subprocess.run(build, check=True, capture_output=True)
    installed = tmp_path / "installed"
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        wheel.extractall(installed)
    packed = {
        path.relative_to(installed / "lightning_ubs" / "configs") for path in installed.rglob("configs/**/*.yaml")
    }
    assert packed == {path.relative_to(CONFIGS) for path in CONFIGS.rglob("*.yaml")}
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "mine.yaml").write_text(
        "defaults:\n  - data: yeast\n  - selection@callbacks.selection: ubs\n  - _self_\nseed: 3\nhydra:\n  searchpath: [pkg://lightning_ubs.configs]\n"
        "  output_subdir: null\n  run: {dir: .}\n"
    )
    (tmp_path / "app" / "mine.py").write_text(
        "import hydra, lightning_ubs\n"
        "@hydra.main(version_base='1.3', config_path='.', config_name='mine')\n"
        "def main(config):\n"
        "    selection = hydra.utils.instantiate(config.callbacks.selection)\n"
        "    print(lightning_ubs.__file__, selection.strategy.lambda1, selection.seed, config.data.name)\n"
        "main()\n"
    )
    run = subprocess.run(
        [sys.executable, "mine.py", "callbacks.selection.lambda1=0.7", "data=emotions"],
        cwd=tmp_path / "app",
        env={"PYTHONPATH": str(installed), "PATH": "", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    file, lambda1, seed, data = run.stdout.split()
    assert (Path(file).is_relative_to(installed), lambda1, seed, data) == (True, "0.7", "3", "emotions")
