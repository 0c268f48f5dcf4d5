"""`compare` as a new user meets it: own model, data, metric and strategy, in a script, a notebook and by Hydra."""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from own_code import CNN, ImageData, Images, Unsure
from report_fixtures import save
from torch.utils.data import DataLoader

from lightning_ubs import (
    UBS,
    BatchSelection,
    Blocks,
    ClassAware,
    EpochSize,
    EvaluationPass,
    GroupScores,
    LossBias,
    Random,
    Shuffled,
    compare,
)
from lightning_ubs.cli import main
from lightning_ubs.comparison import Comparison
from lightning_ubs.experiment.config import ConfigError, digest
from lightning_ubs.experiment.from_objects import fold_seed_pairs, plan_from_objects
from lightning_ubs.experiment.own_code import fingerprint
from lightning_ubs.experiment.record import RunRecord
from lightning_ubs.experiment.selection import described
from lightning_ubs.experiment.store import ResultsStore
from lightning_ubs.report.cautions import find_cautions
from lightning_ubs.report.results import Results
from lightning_ubs.report.significance import result_tests, run_tests
from lightning_ubs.report.tables import build_table, build_tables
from lightning_ubs.report.training_cost import find_savings, measure_speed
from lightning_ubs.report.verdict import gain_of, judge

OWN = Path(__file__).parent / "own_code.py"
QUICK = {"max_epochs": 4, "accelerator": "cpu"}
CALL = """
result = compare(
    module=lambda: CNN(channels=3),
    data=lambda seed: ImageData(seed),
    selections={
        "UBS": BatchSelection(UBS(), warmup_epochs=1), "mine": BatchSelection(Unsure(sharpness=1.0), warmup_epochs=1)
    },
    seeds=2, trainer={"max_epochs": 4, "accelerator": "cpu"}, monitor="val_auc", results="results", jobs=1,
)
print(result)
"""
IMPORT = "from lightning_ubs import UBS, BatchSelection, compare\n"


def gains(text: str) -> list[str]:
    """What a verdict says of gains; times differ from run to run."""
    return [line for line in text.splitlines() if " against " in line or "Other metrics" in line]


def in_script(folder: Path) -> Callable[[], str]:
    """Everything in one file that is run, so that its classes are those of ``__main__``."""
    (folder / "script.py").write_text(f"{OWN.read_text()}\n{IMPORT}\nif __name__ == '__main__':\n    {indented(CALL)}")
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "script.py"], cwd=folder, env=environment, stdout=-1, stderr=-1, text=True
    )

    def result() -> str:
        out, err = process.communicate()
        assert process.returncode == 0, err
        return out

    return result


def in_notebook(folder: Path) -> str:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    code = [OWN.read_text().replace("from __future__ import annotations\n", ""), IMPORT, CALL]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(one) for one in code])
    nbclient.NotebookClient(notebook, timeout=240, resources={"metadata": {"path": str(folder)}}).execute()
    return "".join(output.get("text", "") for output in notebook.cells[-1].outputs)


def by_hydra(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    write_configs(folder)
    monkeypatch.chdir(folder)
    grid = ["model=cnn", "data=mine", "selection=[random,ubs,my_strategy]", "monitor=val_auc", "seed=[0,1]", "fold=0"]
    quick = ["trainer.max_epochs=4", "trainer.accelerator=cpu", "selection.warmup_epochs=1", "engine=sequential"]
    assert main(["compare", "--config-dir", "conf", *grid, *quick, "results=results", "report.formats=[csv]"]) == 0
    return capsys.readouterr().out


def write_configs(folder: Path) -> None:
    shutil.copy(OWN, folder)
    for name, text in {
        "model/cnn": "_target_: own_code.CNN\nchannels: 3\n",
        "data/mine": "_target_: own_code.ImageData\n",
        "selection/my_strategy": "_target_: own_code.Unsure\nsharpness: 1.0\nlabel: mine\n",
    }.items():
        path = folder / "conf" / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def indented(code: str) -> str:
    return code.strip().replace("\n", "\n    ")


@pytest.mark.slow
def test_script_notebook_and_hydra_give_the_same_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [tmp_path / name for name in ("script", "notebook", "hydra")]
    for folder in folders:
        folder.mkdir()
    script = in_script(folders[0])
    notebook = in_notebook(folders[1])
    hydra = by_hydra(folders[2], capsys, monkeypatch)
    told = gains(script())
    assert any(line.startswith("UBS against Random: undecided") for line in told)
    assert any(line.startswith("mine against Random: undecided") for line in told)
    assert gains(notebook) == told
    assert gains(hydra) == told
    stores = [ResultsStore(folder / "results").records() for folder in folders]
    assert [len(records) for records in stores] == [6, 6, 6]
    curves = [sorted((r.label, r.seed, tuple(r.curves["val_auc"])) for r in records) for records in stores]
    assert curves[0] == curves[1] == curves[2]


def quick(folder: Path, **changes: Any) -> Comparison:
    settings: dict[str, Any] = {
        "module": CNN,
        "data": lambda seed: ImageData(seed),
        "selections": {"mine": BatchSelection(Unsure(), warmup_epochs=1)},
        "seeds": 2,
        "trainer": QUICK,
        "monitor": "val_auc",
        "results": folder,
        "engine": "sequential",
    }
    return compare(**settings | changes)


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    return quick(tmp_path_factory.mktemp("compare"))


def test_random_is_always_the_baseline_and_the_runs_are_paired(result: Comparison) -> None:
    by_label: dict[str, list[RunRecord]] = {}
    for record in result.records:
        by_label.setdefault(record.label, []).append(record)
    assert {label: [one.seed for one in records] for label, records in by_label.items()} == {
        "Random": [0, 1], "mine": [0, 1]
    }  # fmt: skip
    for baseline, own in zip(by_label["Random"], by_label["mine"], strict=True):
        for curve in ("train_loss", "val_auc"):
            assert baseline.curves[curve][0] == own.curves[curve][0], "same weights, data and order in the warm-up"
            assert baseline.curves[curve][2:] != own.curves[curve][2:]
    assert by_label["Random"][0].curves != by_label["Random"][1].curves


def test_any_metric_is_recorded_with_its_direction_and_where_it_comes_from(result: Comparison) -> None:
    record = result.records[0]
    assert set(record.metrics) == {"auc", "loss"}
    assert (record.metrics["auc"].higher_is_better, record.metrics["loss"].higher_is_better) == (True, False)
    assert {metric.stage for metric in record.metrics.values()} == {"val"}
    assert record.best_epoch is not None
    assert record.metrics["auc"].value == record.curves["val_auc"][record.best_epoch] == record.monitored
    assert (record.data, record.model, record.samples_trained) == ("ImageData", "CNN", 4 * 64)


def test_the_result_has_a_verdict_a_frame_and_a_report(result: Comparison) -> None:
    assert str(result) == result.verdict
    assert "mine against Random" in result.verdict
    frame = result.frame()
    assert list(frame["selection"]) == ["Random", "mine"] * 2
    assert {"data", "model", "fold", "seed", "val_auc", "val_loss", "epochs", "seconds"} <= set(frame)
    page = result.report(formats=["html"])
    assert page.is_file()
    assert "mine" in page.read_text()


def test_the_printed_verdict_and_the_page_compute_each_table_and_test_once(result: Comparison, tmp_path: Path) -> None:
    # A second budget of plain shuffling, without which no savings are looked for.
    shorter = [replace(one, key=one.key[::-1], max_epochs=3) for one in result.records if one.label == "Random"]
    records = [*result.records, *shorter]
    save(tmp_path, *records)
    again = Comparison(records, tmp_path, result.monitor)
    whole = (Results.__init__, build_tables, result_tests, judge, find_savings, measure_speed, find_cautions)
    by_metric = (build_table, run_tests, gain_of)
    calls = Counter[str]()

    def count(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            calls.update(part.__qualname__ for part in (*whole, *by_metric) if frame.f_code is part.__code__)

    sys.setprofile(count)
    try:
        str(again)
        again.report(formats=["html", "csv", "latex"])
    finally:
        sys.setprofile(None)
    metrics = len(again._report.results.metrics)
    assert metrics == 2
    assert calls == {part.__qualname__: 1 for part in whole} | {part.__qualname__: metrics for part in by_metric}


def test_a_second_call_does_only_what_is_new_and_changed_code_is_new(
    result: Comparison, capsys: pytest.CaptureFixture[str]
) -> None:
    quick(result.results)
    assert "all 4 runs are already done" in capsys.readouterr().out

    class Wider(CNN):
        def __init__(self) -> None:
            super().__init__(channels=6)

    again = quick(result.results, module=Wider, selections={}, seeds=1)
    assert "1 runs; 1 at a time" in capsys.readouterr().out
    assert [record.model for record in again.records] == ["Wider"]


def test_controls_that_emphasize_nothing_are_added_by_one_word(tmp_path: Path) -> None:
    own = {"Loss": LossBias(), "short": BatchSelection(UBS(), warmup_epochs=1, epoch_size=0.5)}
    found = quick(tmp_path, selections=own, seeds=1, controls=True)
    added = {record.label: record for record in found.records}
    assert list(added) == [
        *("Random", "Loss", "short", "Loss, shuffled P", "short, shuffled P"),
        "Random, 0.5 of an epoch",
    ]
    assert added["short"].samples_trained == added["short, shuffled P"].samples_trained
    assert added["short"].samples_trained == added["Random, 0.5 of an epoch"].samples_trained
    assert added["short, shuffled P"].parameters["of"] == "short"
    assert added["short, shuffled P"].parameters["epoch_size"] == 0.5
    assert "shuffled P against" not in found.verdict
    again = quick(tmp_path, selections={"Loss": LossBias(s0=10.0)}, seeds=1, controls=True)
    dealt = next(record for record in again.records if record.label == "Loss, shuffled P")
    assert dealt.key != added["Loss, shuffled P"].key, "settings of the strategy tell its controls apart"


def test_the_split_of_each_run_is_recorded(tmp_path: Path, result: Comparison) -> None:
    splits = {record.seed: record.split for record in result.records}
    assert all(splits.values())
    assert splits[0] != splits[1]
    same = quick(tmp_path, data=lambda: ImageData(0), seeds=3, trainer={**QUICK, "max_epochs": 2})
    assert len({record.split for record in same.records}) == 1
    assert "over 3 seeds on one split of the data: says nothing about another split" in same.verdict


class WithTestStep(CNN):
    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.log("test_auc", torch.tensor(0.25))


def loaders(fold: int, seed: int) -> dict[str, DataLoader[Any]]:
    sets = {"train": Images(32 + fold, seed), "val": Images(32, 7), "test": Images(16, 8)}
    return {name: DataLoader(images, batch_size=16, shuffle=name == "train") for name, images in sets.items()}


class Weighed(CNN):
    """The same network with another loss."""

    def __init__(self, weight: float = 4.0) -> None:
        super().__init__()
        self.weight = weight


def test_modules_by_name_are_each_trained_with_each_selection(tmp_path: Path, result: Comparison) -> None:
    modules = {"BCE": CNN, "weighted": lambda: Weighed(9.0), "the same": lambda: Weighed(9.0)}
    found = quick(tmp_path, module=modules, seeds=1, trainer=QUICK | {"max_epochs": 2})
    cells = [(record.model, record.label) for record in found.records]
    assert cells == [(name, label) for name in modules for label in ("Random", "mine")]
    assert len({record.key for record in found.records}) == 6, "a module's name is part of the key"
    assert {record.model for record in ResultsStore(tmp_path).records()} == set(modules)
    assert set(found.frame()["model"]) == set(modules)
    assert {record.model for record in result.records} == {"CNN"}, "one module alone is called by its class"


def test_the_keys_of_one_module_are_those_of_before() -> None:
    pairs = fold_seed_pairs(lambda seed: ImageData(seed), 2, None)
    selections = {"UBS": UBS(), "Random": Random()}

    def keys(module: Any) -> list[str]:
        monitored: Any = ("val_auc", "max")
        return [one.key for one in plan_from_objects(module, ImageData, selections, pairs, QUICK, monitored, True)]

    shared = {
        "code": [fingerprint(CNN), fingerprint(ImageData)],
        "trainer": {name: fingerprint(value) for name, value in QUICK.items()},
        "monitor": ["val_auc", "max"],
    }
    told = [described(label, one) for label, one in selections.items()]
    methods = [{name: one[name] for name in ("selection", "parameters")} for one in told]
    assert keys(CNN) == [digest([shared, method, fold, seed]) for fold, seed in pairs for method in methods]
    assert set(keys({"CNN": CNN})).isdisjoint(keys(CNN))


class OwnCallback(BatchSelection):
    """A callback of the user's own."""


def keys_of(*selections: Any) -> list[str]:
    """The key of a run of each."""
    named = {str(number): one for number, one in enumerate(selections)}
    runs = plan_from_objects(CNN, ImageData, named, [(0, 0)], QUICK, ("val_auc", "max"), True)
    return [run.key for run in runs]


def predict(module: Any, batch: Any) -> Any:
    return module(batch["image"])


@pytest.mark.parametrize(
    "changed",
    [
        {"refresh": EvaluationPass()},
        {"refresh": EvaluationPass(mc_samples=2)},
        {"refresh": EvaluationPass(predict=predict)},
        {"refresh": EvaluationPass(predict=lambda module, batch: module(batch["image"]))},
        {"order": Blocks(4)},
        {"order": Blocks(4, window=2)},
        {"order": Blocks(bounds=[0, 4, 64])},
        {"epoch_size": EpochSize(1.0, 0.5)},
        {"epoch_size": 0.5},
        {"unbiased": True},
        {"unbiased": "annealed"},
        {"end_epoch": 9},
        {"start_epoch": 0},
        {"warmup_epochs": 1},
        {"replacement": "full"},
        {"fill_last": True},
        {"history_dtype": "uint8"},
        {"outputs": "logits"},
        {"outputs": predict},
        {"targets": "y"},
        {"kind": "logits"},
        {"labels": torch.ones(64, 3)},
        {"labels": np.zeros((64, 3))},
        {"features": torch.ones(64, 2)},
        {"loader": "first"},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_selections_that_differ_in_one_argument_are_runs_of_their_own(changed: dict[str, Any]) -> None:
    others = [{"refresh": EvaluationPass(mc_samples=3)}, {"refresh": EvaluationPass(predict=lambda *_: None)}]
    others += [{"order": Blocks(8)}, {"labels": torch.zeros(64, 4)}, {"outputs": "probs"}, {"history_dtype": "float16"}]
    selections = [BatchSelection(UBS(), **arguments) for arguments in ({}, changed, *others)]
    assert len(set(keys_of(*selections))) == len(selections)


def test_strategies_that_differ_in_one_argument_are_runs_of_their_own() -> None:
    halves = [0] * 32 + [1] * 32
    scores = [GroupScores(halves, scores=lambda w, p: [1.0, 2.0]), GroupScores(halves, scores=lambda w, p: [2.0, 1.0])]
    matrices = [ClassAware(labels=torch.eye(4)), ClassAware(labels=torch.ones(4, 4)), ClassAware()]
    dealt = [Shuffled(strategy=UBS(window=3)), Shuffled(strategy=UBS(window=4)), Shuffled(strategy=LossBias())]
    own = [BatchSelection(Unsure()), OwnCallback(Unsure())]
    all_of_them = [*scores, *matrices, *dealt, *own]
    assert len(set(keys_of(*all_of_them))) == len(all_of_them)


def test_where_things_are_kept_tells_no_runs_apart() -> None:
    for arguments in ({"memory": "sharded"}, {"device": "cpu"}, {"log_metrics": False}, {"history_dtype": "float32"}):
        with pytest.raises(ConfigError, match="'0' and '1' are the same method"):
            keys_of(UBS(), BatchSelection(UBS(), **arguments))


def test_the_keys_of_selections_are_those_of_released_stores() -> None:
    described_before = {
        "lambda1": 0.5,
        "window": 5,
        "correlation": "mutual_information",
        "temperature": None,
        "s0": 100.0,
        "bins": 5,
        "log_base": math.e,
        "quantizer": "floor",
        "warmup_epochs": 5,
        "start_epoch": 5,
        "end_epoch": None,
        "replacement": "systematic",
        "epoch_size": None,
        "unbiased": False,
        "fill_last": False,
        "refresh": None,
    }
    assert described("UBS", UBS())["parameters"] == described_before
    blocks = described("UBS", BatchSelection(UBS(), order=Blocks(bounds=[0, 4, 64]), epoch_size=EpochSize(1.0, 0.5)))[
        "parameters"
    ]
    assert blocks == described_before | {
        "order": repr(Blocks(bounds=[0, 4, 64])),
        "bounds": digest([0, 4, 64]),
        "epoch_size": "EpochSize(end=0.5)",
    }


def test_loaders_folds_and_a_test_step_are_used(tmp_path: Path) -> None:
    late = BatchSelection(UBS(), warmup_epochs=5)
    settings = {"selections": {"UBS": late}, "seeds": [3, 5], "trainer": QUICK | {"max_epochs": 2}}
    found = quick(tmp_path, module=lambda datamodule: WithTestStep(), data=loaders, **settings)
    assert [(one.fold, one.seed, one.label) for one in found.records] == [
        (0, 3, "Random"), (0, 3, "UBS"), (1, 5, "Random"), (1, 5, "UBS")
    ]  # fmt: skip
    record = found.records[-1]
    assert (record.metrics["auc"].value, record.metrics["auc"].stage) == (0.25, "test")
    assert record.metrics["loss"].stage == "val"
    assert record.shape["n"] == 33
    (warning,) = record.warnings
    assert warning.startswith("UBS: nothing was selected, because training had 2 epochs and selection begins after 5")


def test_checkpoints_and_loggers_of_the_users_own_live_beside_those_of_a_run(tmp_path: Path) -> None:
    own = [ModelCheckpoint(tmp_path / "mine", monitor="val_auc", mode="max"), LearningRateMonitor()]
    trainer = QUICK | {"max_epochs": 2, "callbacks": own, "logger": CSVLogger(tmp_path / "logs")}
    found = quick(tmp_path / "results", selections=UBS(), seeds=1, trainer=trainer)
    assert [record.label for record in found.records] == ["Random", "UBS"]
    assert all(record.finished for record in found.records)
    assert list((tmp_path / "mine").glob("*.ckpt"))


def loaders_with_workers(seed: int) -> dict[str, DataLoader[Any]]:
    sets = {"train": Images(32, seed), "val": Images(32, 7)}
    return {name: DataLoader(one, 16, shuffle=name == "train", num_workers=1) for name, one in sets.items()}


@pytest.mark.slow
def test_loaders_may_have_workers_of_their_own_in_the_processes_of_a_grid(tmp_path: Path) -> None:
    settings = {"selections": [], "seeds": 1, "trainer": QUICK | {"max_epochs": 1}}
    in_processes = quick(tmp_path / "loky", data=loaders_with_workers, engine="loky", jobs=1, **settings)
    here = quick(tmp_path / "here", data=loaders_with_workers, **settings)
    assert [one.status for one in in_processes.records] == ["ok"]
    assert in_processes.records[0].metrics == here.records[0].metrics


class Silent(CNN):
    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_acc", 0.5)


class DataWithoutVal(ImageData):
    val_dataloader = None


class LogsSteps(CNN):
    def training_step(self, batch: dict[str, torch.Tensor], batch_idx: int) -> dict[str, torch.Tensor]:
        found = super().training_step(batch, batch_idx)
        self.log("step_loss", found["loss"])
        return found


def breaks(*_: Any) -> Any:
    raise RuntimeError("the disk is\nelsewhere")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"module": breaks}, r"^module raised RuntimeError: the disk is elsewhere"),
        ({"data": breaks}, r"^data raised RuntimeError: the disk is elsewhere"),
        ({"module": CNN()}, r"^module=CNN\(\.\.\.\) is an object; give a class or function"),
        ({"module": {"BCE": CNN, "x": CNN()}}, r"^module\['x'\]=CNN\(\.\.\.\) is an object; give a class or function"),
        ({"module": {}}, r"^module=\{\} names nothing to train; give one or more"),
        ({"module": {1: CNN}}, r"^module has the key 1; give each module a name"),
        ({"data": None}, r"^data has no value; give a class or function .* Loaders of the module's own go there"),
        ({"trainer": 30}, r"^trainer=int\(\.\.\.\) is an object; give the arguments of a Trainer"),
        ({"module": dict}, r"^module returned dict; return a LightningModule"),
        ({"data": lambda: 3}, r"^data returned int; return a LightningDataModule"),
        ({"data": lambda seed: ImageData(seed, 32 + seed)}, r"^data give 32 training samples with seed 0 and 33 with"),
        ({"selections": {"x": "ubs"}}, r"^selections\['x'\]='ubs' is neither a strategy nor"),
        ({"selections": {"a": UBS(), "b": UBS()}}, r"^the selections 'a' and 'b' are the same method"),
        ({"monitor": None}, r"^monitor has no value; say which"),
        ({"monitor": "val_loss"}, r"^monitor='val_loss' is better when it is small, but mode='max'"),
        ({"mode": "up"}, r"^mode='up' is unknown; use 'max' or 'min'"),
        ({"seeds": 0}, r"^seeds=0 must be a number of at least 1"),
        ({"folds": 3}, r"^folds=3 needs data that take one"),
        ({"jobs": 0}, r"^jobs=0 is out of range"),
        ({"engine": "spark"}, r"^engine='spark' is unknown"),
    ],
)
def test_what_cannot_be_is_one_sentence_before_any_run(
    changes: dict[str, Any], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigError, match=sentence) as raised:
        quick(tmp_path / "none", **changes)
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "none").exists()
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"module": Silent}, r"^monitor='val_auc' is not logged by the module; did you mean val_acc\? It logs"),
        ({"trainer": QUICK | {"color": "red"}}, r"^trainer: lightning\.Trainer does not take 'color'"),
        (
            {"module": LogsSteps, "monitor": "step_loss", "mode": "min"},
            r"^monitor='step_loss' is logged in training, .* validation_step logs: val_auc, val_loss\.$",
        ),
        ({"data": lambda: DataWithoutVal(0)}, r"^monitor='val_auc' was never logged, because nothing was validated"),
        ({"trainer": QUICK | {"fast_dev_run": True}}, r"^trainer: fast_dev_run=True keeps no checkpoint"),
        ({"trainer": QUICK | {"fast_dev_run": 3}}, r"^trainer: fast_dev_run=3 keeps no checkpoint"),
        ({"trainer": QUICK | {"enable_checkpointing": False}}, r"^trainer: enable_checkpointing=False keeps no"),
        ({"trainer": QUICK | {"barebones": True}}, r"^trainer: barebones=True keeps no checkpoint .* leave it out"),
        ({"trainer": QUICK | {"max_epochs": -1}}, r"^trainer: training would never end; set max_epochs\.$"),
        ({"trainer": QUICK | {"max_time": "soon"}}, r"^trainer: "),
        ({"trainer": QUICK | {"devices": 2}}, r"^trainer: its settings ask for 2 processes.*use trainer\.devices=1"),
    ],
)
def test_what_only_a_run_can_find_stops_after_the_first(changes: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=sentence):
        quick(tmp_path, **changes)
    (record,) = ResultsStore(tmp_path).records()
    assert not record.finished


def test_an_object_that_cannot_be_sent_is_named(tmp_path: Path) -> None:
    import threading

    def make() -> CNN:
        assert not lock.locked()
        return CNN()

    lock = threading.Lock()
    with pytest.raises(ConfigError, match=r"cannot be sent to another process .* create it inside the function"):
        quick(tmp_path / "none", module=make)


def test_a_missing_extra_is_said_once_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "jinja2" else find(name))
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(ModuleNotFoundError, match=r"'jinja2' is needed .* pip install .*\[experiments\]'"):
        quick(tmp_path / "none")


def test_the_users_generators_are_left_as_they_were(result: Comparison) -> None:
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    quick(result.results)
    assert torch.equal(torch.rand(1), expected)


def test_a_selection_that_is_given_is_not_changed(result: Comparison) -> None:
    given = BatchSelection(Random(), seed=77)
    quick(result.results, selections={"Random": given}, seeds=1)
    assert given.seed == 77
    assert given.plan is None
    assert math.isfinite(result.records[0].monitored)
