"""A user's own classes in configurations: found, filled in, protected, and complained about in one sentence."""

from __future__ import annotations

import datetime
import functools
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hydra import compose, initialize_config_module
from lightning.pytorch.callbacks import EarlyStopping
from omegaconf import OmegaConf
from own_code import CNN, ImageData, Unsure

from lightning_ubs import UBS, BatchSelection
from lightning_ubs.cli import main
from lightning_ubs.data import MultiLabelDataModule
from lightning_ubs.experiment.build import (
    build_callbacks,
    build_data,
    build_network,
    build_selection,
    instantiate,
    locate,
)
from lightning_ubs.experiment.config import ConfigError, compose_train, resolved, run_key
from lightning_ubs.experiment.expand import expand_grid
from lightning_ubs.experiment.overrides import compare_overrides
from lightning_ubs.experiment.own_code import fingerprint
from lightning_ubs.experiment.store import ResultsStore


def grid(*arguments: str) -> dict[str, Any]:
    with initialize_config_module("lightning_ubs.configs", version_base="1.3"):
        plain: Any = OmegaConf.to_container(compose("compare", compare_overrides(arguments)), resolve=True)
    return dict(plain)


class Sized(CNN):
    def __init__(self, num_features: int, num_labels: int, fold: int, seed: int, other: int = 1) -> None:
        super().__init__(num_labels=num_labels)
        self.told = num_features, num_labels, fold, seed, other


def test_a_model_is_told_what_it_takes_and_nothing_is_overruled() -> None:
    data = MultiLabelDataModule("synthetic")
    target = "test_instantiate.Sized"
    made: Any = build_network({"_target_": target}, data, "x", fold=2, seed=5)
    assert made.told == (20, 8, 2, 5, 1)
    made = build_network({"_target_": target, "num_labels": 3, "other": 9}, data, "x", fold=2, seed=5)
    assert made.told == (20, 3, 2, 5, 9)
    assert isinstance(build_network({"_target_": "own_code.CNN"}, ImageData(), "x"), CNN)


def test_data_are_told_fold_and_seed() -> None:
    made: Any = build_data({"_target_": "own_code.ImageData", "count": 7}, fold=1, seed=4)
    assert (made.seed, made.count) == (4, 7)


def test_a_selection_may_be_a_strategy_or_a_whole_callback() -> None:
    own = {"_target_": "own_code.Unsure", "sharpness": 3.0, "warmup_epochs": 2, "label": "mine"}
    made = build_selection(own, seed=6)
    assert isinstance(made.strategy, Unsure)
    assert (made.strategy.sharpness, made.start_epoch, made.seed) == (3.0, 2, 6)
    nested = {"_target_": "lightning_ubs.UBS", "lambda1": 0.7}
    made = build_selection({"_target_": "lightning_ubs.BatchSelection", "strategy": nested, "end_epoch": 9}, seed=6)
    assert isinstance(made.strategy, UBS)
    assert (made.strategy.lambda1, made.end_epoch, made.seed) == (0.7, 9, 6)


def test_dotted_paths_stand_for_groups_and_share_the_keys_of_all_selections() -> None:
    arguments = ["selection=[random,own_code.Unsure]", "data=own_code.ImageData", "model=own_code.CNN"]
    runs = expand_grid(grid(*arguments, "monitor=val_auc", "selection.warmup_epochs=1", "fold=[0,1]"))
    told = [(run.identity.data, run.identity.model, run.identity.label, run.identity.seed) for run in runs]
    assert told == [("ImageData", "CNN", label, seed) for seed in (0, 1) for label in ("Random", "Unsure")]
    assert [run.make_selection().start_epoch for run in runs] == [1] * 4
    assert {(run.identity.monitor, run.identity.mode, run.identity.fold) for run in runs} == {("val_auc", "max", 0)}


def test_own_settings_are_swept_and_appear_in_the_names() -> None:
    arguments = ["selection=[ubs,own_code.Unsure]", "selection.sharpness=1,4", "data=synthetic", "fold=0"]
    runs = expand_grid(grid(*arguments))
    assert [run.identity.label for run in runs] == ["UBS", "Unsure sharpness=1", "Unsure sharpness=4"]
    strategy: Any = runs[-1].make_selection().strategy
    assert strategy.sharpness == 4


def test_callbacks_are_made_and_what_is_none_is_refused() -> None:
    target = "lightning.pytorch.callbacks.EarlyStopping"
    (made,) = build_callbacks({"early": {"_target_": target, "monitor": "val_auc", "patience": 7}})
    assert isinstance(made, EarlyStopping)
    assert made.patience == 7
    with pytest.raises(ConfigError, match=r"callbacks\.x=3 has no _target_; give one"):
        build_callbacks({"x": 3})
    with pytest.raises(ConfigError, match=r"callbacks\.x: own_code\.CNN is not a Lightning callback"):
        build_callbacks({"x": {"_target_": "own_code.CNN"}})


@pytest.mark.parametrize("target", ["os.system", "builtins.eval", "subprocess.run", "torch.os.system"])
def test_what_hydra_blocks_stays_blocked(target: str, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    call = {"_target_": target, "_args_": [f"touch {mark}"]}
    for config in (call, {"_target_": "own_code.CNN", "channels": call}):
        with pytest.raises(ConfigError, match=r"raised|may not call"):
            build_network(config, ImageData(), "x")
    assert not mark.exists()


def test_what_hydra_blocks_stays_blocked_under_another_name(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    mark.touch()
    for target in ("shutil.rmtree", "os.remove", "torch.os.remove", "torch.os.remove.__call__"):
        with pytest.raises(ConfigError, match=r"raised|may not call"):
            instantiate("model", {"_target_": "builtins.dict", "x": {"_target_": target, "_args_": [str(mark)]}})
        assert mark.exists(), target


class Wrapped:
    def __init__(self, *values: Any) -> None:
        self.values = values


two = functools.partial(Wrapped, 2)


def layers(count: int) -> torch.nn.Module:
    return torch.nn.Sequential(*[torch.nn.ReLU() for _ in range(count)])


def test_nested_parts_may_come_from_anywhere_else() -> None:
    parts = [
        {"_target_": "datetime.timedelta", "minutes": 5},
        {"_target_": "collections.OrderedDict", "a": 1},
        {"_target_": "torch.tensor", "data": [1.0]},
        {"_target_": "own_code.nn.Linear", "in_features": 1, "out_features": 1},
        {"_target_": "test_instantiate.two"},
        {"_target_": "lightning_ubs.UBS", "_partial_": True},
        {"_target_": "test_instantiate.layers", "count": 3},
    ]
    made = instantiate("model", {"_target_": "test_instantiate.Wrapped", "_args_": parts})
    assert made.values[0] == datetime.timedelta(minutes=5)
    assert made.values[1] == {"a": 1}
    assert made.values[2].tolist() == [1.0]
    assert isinstance(made.values[3], torch.nn.Linear)
    assert made.values[4].values == (2,)
    assert isinstance(made.values[5](), UBS)
    assert len(made.values[6]) == 3


def network(config: dict[str, Any]) -> Any:
    return build_network(config, ImageData(), "x")


def selection(config: dict[str, Any]) -> BatchSelection:
    return build_selection(config, 0)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: locate("no_such_module.Thing"), r"^_target_='no_such_module\.Thing' cannot be imported"),
        (lambda: locate("own_code.Nothing"), r"^_target_='own_code\.Nothing' cannot be imported"),
        (lambda: network({"_target_": "own_code.CNN", "depth": 3}), r"^model: own_code\.CNN raised"),
        (lambda: network({"_target_": "own_code.Unsure"}), r"^model: own_code\.Unsure returned Unsure"),
        (lambda: network({"name": "mlp"}), r"^model=mlp needs num_features"),
        (lambda: selection({"_target_": "own_code.CNN"}), r"^selection: own_code\.CNN returned CNN; return a"),
        (lambda: selection({"_target_": "own_code.Unsure", "sharp": 1}), r"no key 'sharp' in selection; did you"),
        (lambda: build_data({"_target_": "own_code.CNN"}), r"^data: own_code\.CNN returned CNN; return a Lightning"),
        (lambda: expand_grid(grid("model=own_code.CNN", "fold=0")), r"^monitor has no value; say which value"),
        (lambda: expand_grid(grid("selection=own_code.Unsre")), r"^_target_='own_code\.Unsre' cannot be imported"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_sentence(make: Any, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence) as raised:
        make()
    assert "\n" not in str(raised.value)


def test_a_run_is_another_one_when_the_users_code_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    keys = []
    for body in ("return 1", "return 1  # the same", "return 2"):
        (tmp_path / "changing.py").write_text(f'HELP = 3\ndef model():\n    """Some words: {body}."""\n    {body}\n')
        sys.modules.pop("changing", None)
        config = resolved(compose_train()) | {"model": {"_target_": "changing.model"}}
        sys.dont_write_bytecode, before = True, sys.dont_write_bytecode
        keys.append(run_key(config))
        sys.dont_write_bytecode = before
    assert keys[0] == keys[1] != keys[2]


SCALE = 2.0


def scaled() -> float:
    return SCALE * inner()


def inner() -> float:
    return 1.0


def test_a_fingerprint_follows_what_the_code_refers_to(monkeypatch: pytest.MonkeyPatch) -> None:
    prints = [fingerprint(scaled)]
    monkeypatch.setitem(globals(), "SCALE", 3.0)
    prints.append(fingerprint(scaled))
    monkeypatch.setitem(globals(), "inner", lambda: 5.0)
    prints.append(fingerprint(scaled))
    assert len(set(prints)) == 3
    assert fingerprint(scaled) == prints[2]
    rate = 0.1
    first = fingerprint(lambda: torch.tensor(rate))
    rate = 0.2
    assert fingerprint(lambda: torch.tensor(rate)) != first
    assert fingerprint(lambda: "resnet18") != fingerprint(lambda: "resnet50")
    assert fingerprint(lambda: 1 + 2) == fingerprint(lambda: 3)
    assert fingerprint(EarlyStopping("a")) != fingerprint(EarlyStopping("b"))


def defaults(value: float) -> Any:
    def first(rate: float = 1.0) -> float:
        return rate

    def second(rate: float = value) -> float:
        return rate

    return lambda: (first, second)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (torch.ones(3), torch.zeros(3)),
        (torch.ones(3, dtype=torch.bfloat16), torch.zeros(3, dtype=torch.bfloat16)),
        (torch.eye(3).to_sparse(), 2 * torch.eye(3).to_sparse()),
        (np.ones(3), np.zeros(3)),
        (np.array(["a", 1], dtype=object), np.array(["a", 2], dtype=object)),
        (np.float64(1), np.float64(2)),
        (Path("a"), Path("b")),
        (range(3), range(4)),
        (torch.float16, torch.float32),
    ],
)
def test_a_fingerprint_follows_values_of_any_kind(one: Any, other: Any) -> None:
    assert fingerprint(lambda: one) != fingerprint(lambda: other)
    assert fingerprint(lambda: one) == fingerprint(lambda: one)


def test_a_fingerprint_follows_every_function_in_turn() -> None:
    assert fingerprint(defaults(1.0)) != fingerprint(defaults(2.0))
    assert fingerprint(defaults(2.0)) == fingerprint(defaults(2.0))


def test_train_takes_own_parts_and_callbacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in {"model/cnn": "own_code.CNN", "data/mine": "own_code.ImageData"}.items():
        path = tmp_path / "conf" / f"{name}.yaml"
        path.parent.mkdir(parents=True)
        path.write_text(f"_target_: {text}\n")
    own = ["--config-dir", "conf", "model=cnn", "data=mine", "monitor=val_loss"]
    early = ["_target_=lightning.pytorch.callbacks.EarlyStopping", "monitor=val_loss", "patience=0", "min_delta=9"]
    stop = [f"+callbacks.early.{part}" for part in early]
    quick = ["trainer.max_epochs=6", "trainer.accelerator=cpu", "trainer.enable_progress_bar=false", "results=kept"]
    assert main(["train", *own, *stop, *quick, "hydra.run.dir=run"]) == 0
    (record,) = ResultsStore("kept").records()
    assert (record.data, record.model, record.mode, record.epochs) == ("mine", "cnn", "min", 2)
    assert record.monitored == min(value for value in record.curves["val_loss"] if value is not None)
    out = capsys.readouterr().out
    table = out[out.index("metric") :].splitlines()
    assert table[0].split() == ["metric", "validation", "better"]
    assert f"at the best validation epoch, {record.best_epoch} (from 0; 2 were trained)" in out
    assert "note: UBS: nothing was selected" in out
    assert main(["train", *own, *quick, "+color=red"]) == 1
    assert "color=red: there is no key 'color'" in capsys.readouterr().err
    assert isinstance(build_selection(compose_train()["selection"] | {"seed": 0}, 0), BatchSelection)
