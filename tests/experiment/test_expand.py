"""The runs of a grid, their identity, and the arguments that name them."""

from __future__ import annotations

import copy
from typing import Any, Literal

import pytest
import torch
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf
from omegaconf.errors import InterpolationKeyError
from once import composed_once

from lightning_ubs.experiment import expand
from lightning_ubs.experiment.config import ConfigError, check_types, compose_train, resolved, run_key
from lightning_ubs.experiment.engine import share_processors, started
from lightning_ubs.experiment.expand import expand_grid
from lightning_ubs.experiment.overrides import compare_overrides, quoted, report_overrides, train_overrides


@pytest.fixture(autouse=True)
def _composed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expand, "compose_train", composed_once)


def compare_config(*arguments: str) -> dict[str, Any]:
    """What `lightning-ubs compare` makes of its arguments."""
    with initialize_config_module("lightning_ubs.configs", version_base="1.3"):
        plain: Any = OmegaConf.to_container(compose("compare", compare_overrides(arguments)), resolve=True)
    return dict(plain)


@pytest.mark.parametrize("aside", [(), ("jobs=2", "results=mine"), ("--dry-run",), ("report.title=Mine",)])
def test_no_word_on_what_to_run_is_two_losses_with_ubs_and_without_on_rare_labels(aside: tuple[str, ...]) -> None:
    runs = expand_grid(compare_config(*aside))
    told = [(run.config["data"]["name"], run.config["model"]["loss"], run.config["selection"]["name"]) for run in runs]
    assert set(told) == {("tags", loss, name) for loss in ("bce", "weighted") for name in ("random", "ubs")}
    assert len(runs) == 20


def test_what_is_not_given_beside_other_arguments_is_random_ubs_and_infobatch_on_digits() -> None:
    runs = expand_grid(compare_config("trainer.max_epochs=20"))
    told = [(run.config["data"]["name"], run.config["model"]["loss"], run.config["selection"]["name"]) for run in runs]
    assert set(told) == {("digits", "bce", name) for name in ("random", "ubs", "infobatch")}
    assert len(runs) == 9


def test_the_warm_up_of_a_short_training_is_half_of_it_and_that_number_identifies_the_run() -> None:
    short = ("selection=ubs", "fold=0", "trainer.max_epochs=4")
    (given,) = expand_grid(compare_config(*short, "selection.warmup_epochs=2"))
    (run,) = expand_grid(compare_config(*short))
    (long,) = expand_grid(compare_config("selection=ubs", "fold=0"))
    assert run.config["selection"]["warmup_epochs"] == 2
    assert run.key == given.key
    assert long.config["selection"]["warmup_epochs"] == 5


def test_losses_are_swept_and_plain_cross_entropy_is_the_run_of_before() -> None:
    grid = ("selection=[random,ubs]", "fold=0")
    plain = expand_grid(compare_config(*grid))
    swept = expand_grid(compare_config(*grid, "model.loss=bce,weighted"))
    assert {run.identity.model for run in swept} == {"mlp loss=bce", "mlp loss=weighted"}
    assert {run.key for run in plain} == {run.key for run in swept if run.config["model"]["loss"] == "bce"}
    for alone in ("model.loss=weighted", "+train.model.loss=weighted"):  # in one store with the others, say
        told = {run.identity.model: run.key for run in expand_grid(compare_config(*grid, alone))}
        assert set(told) == {"mlp loss=weighted"}
        assert set(told.values()) <= {run.key for run in swept}


def test_grid_is_every_combination_with_pairs_side_by_side() -> None:
    arguments = ["data=[digits,synthetic]", "model=mlp,dela", "selection=[random,ubs]", "fold=0,1", "seed=[3,4]"]
    runs = expand_grid(compare_config(*arguments))
    assert len(runs) == len({run.key for run in runs}) == 2**5
    assert [run.config["selection"]["name"] for run in runs[:2]] == ["random", "ubs"]
    assert all(run.config["seed"] == 3 for run in runs[:16])


def test_paired_runs_differ_in_nothing_but_the_selection() -> None:
    grid = compare_config("selection=[random,ubs]", "fold=1", "seed=7")
    first, second = (copy.deepcopy(run.config) for run in expand_grid(grid))
    assert first["selection"].pop("seed") == second["selection"].pop("seed") == 7
    assert first["selection"].pop("warmup_epochs") == second["selection"].pop("warmup_epochs")
    del first["selection"], second["selection"]
    assert first == second


def test_swept_values_name_their_runs_and_leave_others_alone() -> None:
    runs = expand_grid(compare_config("selection=[random,ubs]", "selection.lambda1=0.2,0.4", "fold=0"))
    assert [run.identity.label for run in runs] == ["Random", "UBS λ1=0.2", "UBS λ1=0.4"]
    assert "lambda1" not in runs[0].config["selection"]


def test_a_single_value_is_set_without_a_name() -> None:
    (run,) = expand_grid(compare_config("selection=ubs", "selection.s0=64", "model.hidden=[8,8]", "fold=0"))
    assert (run.config["selection"]["s0"], run.config["model"]["hidden"], run.identity.label) == (64, [8, 8], "UBS")


def test_several_sweeps_change_one_setting_after_the_other() -> None:
    sweeps = "sweeps=[{},{selection:{lambda1:[0.2,0.4]}},{selection:{window:[3,5]},model:{lr:[0.1]}}]"
    runs = expand_grid(compare_config("selection=[random,ubs]", sweeps, "trainer.max_epochs=7", "fold=0"))
    labels = [run.identity.label for run in runs]
    assert labels == ["Random", "Random", "UBS", "UBS λ1=0.2", "UBS λ1=0.4", "UBS T=3", "UBS T=5"]
    assert [run.config["model"]["lr"] for run in runs] == [0.003, 0.1, 0.003, 0.003, 0.003, 0.1, 0.1]
    assert {run.config["trainer"]["max_epochs"] for run in runs} == {7}


def test_swept_model_values_become_models_of_their_own() -> None:
    runs = expand_grid(compare_config("selection=ubs", "model.lr=0.1,0.01", "fold=0"))
    assert [run.identity.model for run in runs] == ["mlp lr=0.1", "mlp lr=0.01"]


def test_command_line_beats_the_experiment_and_its_scale() -> None:
    arguments = ["experiment=lambda_sensitivity", "scale=smoke", "selection.lambda1=0.3", "trainer.max_epochs=2"]
    runs = expand_grid(compare_config(*arguments, "fold=0"))
    assert [(run.config["selection"]["lambda1"], run.config["trainer"]["max_epochs"]) for run in runs] == [(0.3, 2)]


def test_settings_by_dataset_go_before_those_of_all_and_behind_the_command_line() -> None:
    given = ["data=[Yahoo-Arts,digits,nowhere]", "selection=random", "fold=0", "+train.model.lr=0.5"]
    own = ["+by_data.yahoo-Arts1.model.lr=0.1", "+by_data.nowhere.trainer.max_epochs=7", "+by_data.scene.model.lr=0.2"]
    runs = expand_grid(compare_config(*given, *own))
    assert [(run.config["model"]["lr"], run.config["trainer"]["max_epochs"]) for run in runs] == [
        (0.1, 100),
        (0.5, 100),
        (0.5, 7),
    ]
    runs = expand_grid(compare_config(*given, *own, "model.lr=0.3"))
    assert {run.config["model"]["lr"] for run in runs} == {0.3}
    assert {run.identity.model for run in runs} == {"mlp"}


def test_settings_by_loss_go_before_those_by_dataset_and_behind_the_command_line() -> None:
    given = ["data=[Yahoo-Arts,digits]", "selection=random", "fold=0", "+by_data.yahoo-Arts1.model.lr=0.1"]
    own = ["+by_loss.weighted.Yahoo-Arts.model.lr=0.2", "+by_loss.weighted.yahoo-Arts1.trainer.max_epochs=7"]
    own.append("+by_loss.bce.digits.trainer.max_epochs=5")
    both = "++sweep.model.loss=[bce,weighted]"
    found = [
        (run.identity.data, run.config["model"]["loss"], run.config["model"]["lr"], run.config["trainer"]["max_epochs"])
        for run in expand_grid(compare_config(*given, *own[1:], both))
    ]
    assert found == [
        ("yahoo-Arts1", "bce", 0.1, 100),
        ("yahoo-Arts1", "weighted", 0.1, 7),
        ("digits", "bce", 0.003, 5),
        ("digits", "weighted", 0.003, 100),
    ]
    rates = [run.config["model"]["lr"] for run in expand_grid(compare_config(*given, own[0], both))]
    assert rates == [0.1, 0.2, 0.003, 0.003]
    runs = expand_grid(compare_config(*given, *own[1:], both, "trainer.max_epochs=3"))
    assert {run.config["trainer"]["max_epochs"] for run in runs} == {3}
    assert {run.identity.model for run in runs} == {"mlp loss=bce", "mlp loss=weighted"}
    without = expand_grid(compare_config(*given, own[2], "model.loss=bce"))
    assert [run.config["trainer"]["max_epochs"] for run in without] == [100, 5]


def test_a_dataset_may_be_written_as_in_the_paper() -> None:
    runs = expand_grid(compare_config("data=[Yahoo-Arts,yahoo-Arts1]", "selection=ubs", "fold=0"))
    assert [run.config["data"]["name"] for run in runs] == ["yahoo-Arts1"]


def test_the_same_run_is_planned_once() -> None:
    assert len(expand_grid(compare_config("selection=[ubs,ubs]", "fold=[0,0]"))) == 1


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("selection.lamda1=0.5", ["selection.lamda1=0.5", "did you mean lambda1?"]),
        ("selection=[ubs,rndom]", ["selection=rndom", "did you mean random?"]),
        ("model=clfi", ["model=clfi", "did you mean clif?"]),
        ("selection.lambda1=0.5,2", ["selection.lambda1=2", "[0, 1]"]),
        ("selection.window=2.5", ["selection.window=2.5", "whole number"]),
        ("fold=[0,5]", ["data.fold=5", "folds"]),
        ("fold=[]", ["fold=[]", "nothing to run"]),
        ("+by_data.yeats.model.lr=0.1", ["by_data.yeats", "did you mean yeast?"]),
        ("+by_loss.bce.yeats.model.lr=0.1", ["by_loss.bce.yeats", "did you mean yeast?"]),
        ("+by_loss.wieghted.yeast.model.lr=0.1", ["by_loss.wieghted", "did you mean weighted?"]),
        ("+by_loss.bce.yeast.model.dropuot=0.1", ["model.dropuot=0.1", "did you mean dropout?"]),
        ("+by_data.yeast.model.dropuot=0.1", ["model.dropuot=0.1", "did you mean dropout?"]),
        ("seed=-1", ["seed=-1", "at least 0"]),
        ("trainer.max_epochs=0", ["trainer.max_epochs=0", "at least 1"]),
    ],
)
def test_a_grid_that_cannot_be_is_refused_before_anything_runs(argument: str, words: list[str]) -> None:
    with pytest.raises(ConfigError) as raised:
        expand_grid(compare_config(argument))
    assert all(word in str(raised.value) for word in words), raised.value


def test_identity_is_what_decides_the_numbers_and_nothing_else() -> None:
    config = resolved(compose_train())
    for group, key, value in (
        ("trainer", "enable_progress_bar", False),
        ("data", "num_workers", 2),
        ("data", "data_dir", "elsewhere"),
        ("selection", "label", "Another"),
        ("selection", "s0", 100),
        ("logger", "name", "none"),
    ):
        other = copy.deepcopy(config)
        other[group][key] = value
        assert run_key(other) == run_key(config), key
    keys = {run_key(config)}
    for group, key, value in (
        ("selection", "lambda1", 0.6),
        ("selection", "variant", "B"),
        ("data", "fold", 1),
        ("model", "lr", 0.1),
        ("trainer", "max_epochs", 31),
    ):
        other = copy.deepcopy(config)
        other[group][key] = value
        keys.add(run_key(other))
    keys.add(run_key(config | {"seed": 1}))
    assert len(keys) == 7


def test_a_file_is_known_by_its_content(tmp_path: Any) -> None:
    keys = []
    for name, content in (("a.npz", b"1"), ("b.npz", b"1"), ("c.npz", b"2")):
        (tmp_path / name).write_bytes(content)
        keys.append(run_key(resolved(compose_train(["data=file", f"data.path={tmp_path / name}"]))))
    assert keys[0] == keys[1] != keys[2]


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("lambda1", "abc", "a number"),
        ("lambda1", float("nan"), "a number"),
        ("window", 2.5, "a whole number"),
        ("window", True, "a whole number"),
        ("bins", None, "a whole number"),
    ],
)
def test_a_value_of_the_wrong_type_is_named(key: str, value: Any, allowed: str) -> None:
    defaults = compose_train()
    config = copy.deepcopy(defaults)
    config["selection"][key] = value
    with pytest.raises(ConfigError, match=rf"selection\.{key}=.* must be {allowed}; the default is"):
        check_types(config, defaults)


def test_arguments_in_short_form_are_written_out() -> None:
    assert train_overrides(["data=Yahoo-Arts,YEAST", "seed=1"]) == ["data=yahoo-Arts1,yeast", "seed=1"]
    assert train_overrides(["data=nosuch"]) == ["data=nosuch"]
    assert compare_overrides(["--cfg", "job", "data.fold=0,1", "data=yeast"]) == [
        "--cfg", "job", "grid.fold=[0,1]", "grid.data=yeast"
    ]  # fmt: skip
    assert compare_overrides(["folds=[0,1]", "seeds=3"]) == ["grid.fold=[0,1]", "grid.seed=3"]
    assert report_overrides(["--help"]) == ["--help"]


@pytest.mark.parametrize("text", ["a b", "it's", "comma,brace}", "100%", "tail\\", "\\'x"])
def test_any_folder_name_reaches_the_report_unchanged(text: str) -> None:
    from hydra.core.override_parser.overrides_parser import OverridesParser

    assert OverridesParser.create().parse_override(f"results={quoted(text)}").value() == text


REFERENCES = [
    "${seed}", "${trainer.max_epochs}", "${flag}", "${oc.select:seed,7}", "${oc.select:none, 7}", "${.own}", "${again}",
    "no ${seed}", "${data.name}", "${rates}", "${rates.1}", "${oc.select:a.b,${seed}}",
]  # fmt: skip


@pytest.mark.parametrize("text", REFERENCES)
def test_references_are_resolved_as_omegaconf_does(text: str) -> None:
    config: dict[str, Any] = {"seed": 3, "trainer": {"max_epochs": 5}, "data": {"name": "x"}, "flag": True}
    config |= {"rates": [0.1, "${seed}"], "again": "${trainer.max_epochs}", "part": {"own": 2, "read": text}}
    assert resolved(config) == OmegaConf.to_container(OmegaConf.create(config), resolve=True)
    assert config["part"]["read"] == text, "the configuration itself stays as it is"


def test_a_reference_that_omegaconf_does_not_know_is_not_guessed() -> None:
    with pytest.raises(InterpolationKeyError):
        resolved({"seed": 3, "part": "${seed,7}"})


def test_threads_are_divided_among_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert share_processors(1, 100) == (1, 1)
    monkeypatch.delenv("OMP_NUM_THREADS")
    processors, threads = share_processors(None, 100)
    assert threads == 1
    assert share_processors(1, 100) == (1, processors)
    assert share_processors(8, 3)[0] == 3
    with pytest.raises(ConfigError, match="jobs=0"):
        share_processors(0, 3)


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "jobs"), [("loky", None), ("sequential", None), ("sequential", 1)])
def test_a_run_alone_has_as_many_threads_as_among_others(
    engine: Literal["loky", "sequential"], jobs: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More threads round last digits differently, and training makes them grow."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    found = []
    for runs in (1, 4):
        with started(engine, jobs, runs) as (count, call):
            found += call(_threads, range(runs), count)
    assert set(found) == {share_processors(jobs, 4)[1]}


def _threads(run: int) -> int:
    return torch.get_num_threads()
