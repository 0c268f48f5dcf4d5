"""The command line, as users meet it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hydra.experimental.callback import Callback
from omegaconf import OmegaConf

import lightning_ubs
from lightning_ubs.cli import main
from lightning_ubs.experiment.store import ResultsStore

QUICK = ("data=synthetic", "trainer.max_epochs=2", "selection.warmup_epochs=1", "trainer.enable_progress_bar=false")
RETURNED: list[float] = []


class KeepReturn(Callback):
    """What a sweeper sees of a job."""

    def on_job_end(self, config: Any, job_return: Any, **kwargs: Any) -> None:
        RETURNED.append(job_return.return_value)


@pytest.fixture(autouse=True)
def _somewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # tests may share the machine
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)


def said(capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    captured = capsys.readouterr()
    return captured.out, captured.err


def test_train_leaves_a_whole_run_folder(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", *QUICK, "hydra.run.dir=here", "selection.lambda1=0.6", "results=kept"]) == 0
    names = {str(path.relative_to("here")) for path in Path("here").rglob("*") if path.is_file()}
    assert names >= {"config.yaml", "metrics.json", "checkpoints/best.ckpt", "log/metrics.csv", "trace.npz"}
    config = OmegaConf.load("here/config.yaml")
    assert (config.selection.lambda1, config.selection.seed) == (0.6, 0)
    metrics = json.loads(Path("here/metrics.json").read_text())
    assert 0.3 < metrics["metrics"]["macro_auc"]["value"] < 1
    assert "selection/pressure" in Path("here/log/metrics.csv").read_text()
    (record,) = ResultsStore("kept").records()
    assert record.metrics["map"].value == metrics["metrics"]["map"]["value"]
    out, _ = said(capsys)
    value = metrics["metrics"]["macro_auc"]["value"]
    assert re.search(rf"^macro_auc +{value:.4f} +higher +Macro-AUC$", out, re.MULTILINE)
    assert "BatchSelection reads predictions of 8 labels from" in out
    log = Path("here/train.log").read_text()
    assert all(words in log for words in ("BatchSelection reads", "macro_auc ", "run folder: "))
    assert "TPU" not in out + log, "what Lightning says of itself is left out"
    assert main(["train", *QUICK, "hydra.run.dir=there", "selection.lambda1=0.6", "results=kept"]) == 0
    assert "already" in said(capsys)[0]
    assert not Path("kept/claims").exists(), "nothing of a run that was not repeated is left behind"
    assert len(ResultsStore("kept").records()) == 1


def test_any_argument_of_a_trainer_is_a_key(capsys: pytest.CaptureFixture[str]) -> None:
    profiler = ["trainer.profiler._target_=lightning.pytorch.profilers.SimpleProfiler", "trainer.profiler.filename=p"]
    few = ["trainer.limit_train_batches=2", "trainer.limit_test_batches=1", *profiler]
    assert main(["train", *QUICK, *few, "hydra.run.dir=here"]) == 0
    assert OmegaConf.load("here/config.yaml").trainer.limit_train_batches == 2
    assert json.loads(Path("here/metrics.json").read_text())["shape"]["batches"] == 2
    assert list(Path("here").glob("fit-p*")) or list(Path().glob("**/fit-p*")), "the profiler was made and has written"
    grid = ["data=synthetic", "selection=random", "fold=0", "trainer.max_epochs=1", "engine=sequential", "results=out"]
    assert main(["compare", *grid, "trainer.limit_train_batches=2,3", "report.formats=[csv]"]) == 0
    found = {(one.model, one.shape["batches"]) for one in ResultsStore("out").records()}
    assert found == {("mlp limit_train_batches=2", 2), ("mlp limit_train_batches=3", 3)}


def test_the_keys_that_a_reader_names_are_those_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    Path("my.csv").write_text("a,t_x,t_y\n" + "\n".join(f"{row},{row % 2},{row % 3 % 2}" for row in range(40)))
    assert main(["train", "data=file", "data.path=my.csv"]) == 1
    assert "data.labels=PREFIX" in said(capsys)[1]
    assert main(["data", "convert", "my.csv"]) == 1
    assert " labels=PREFIX" in said(capsys)[1]
    way_out = ["data=file", "data.path=my.csv", "data.labels=t_", *QUICK[1:]]
    assert main(["train", *way_out, "hydra.run.dir=run"]) == 0


def test_sweep_runs_every_combination_and_returns_the_monitored_metric() -> None:
    RETURNED.clear()
    keep = "+hydra.callbacks.keep._target_=test_cli.KeepReturn"
    assert main(["train", "-m", *QUICK, "selection=random,ubs", "hydra.sweep.dir=sweep", keep]) == 0
    best = [json.loads(Path(f"sweep/{number}/metrics.json").read_text())["val_macro_auc"] for number in (0, 1)]
    assert pytest.approx(best) == RETURNED


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train", "selection.lamda1=0.6"], ["selection.lamda1=0.6", "did you mean lambda1?", "window"]),
        (["train", "selection.lambda1=2"], ["selection.lambda1=2", "[0, 1]"]),
        (["train", "selection.window=many"], ["selection.window='many'", "whole number"]),
        (["train", "selection=random", "selection.s0=9"], ["selection.s0=9", "selection=random", "warmup_epochs"]),
        (["train", "selecton=ubs"], ["selecton=ubs", "did you mean selection?"]),
        (["train", "selection=usb"], ["selection=usb", "did you mean ubs?"]),
        (["train", "data=yeest"], ["data=yeest", "did you mean yeast?"]),
        (["train", "trainer.max_epoch=3"], ["trainer.max_epoch=3", "did you mean max_epochs?"]),
        (["train", "trainer.limit_train_batchs=3"], ["did you mean limit_train_batches?", "lightning.Trainer"]),
        (["train", "trainer.limit_val_batches=few"], ["trainer: lightning.Trainer", "limit_val_batches='few'"]),
        (["train", "trainer.callbacks=[x]"], ["trainer.callbacks", "+callbacks.NAME._target_=CLASS"]),
        (["train", "labels=3"], ["labels=3", "did you mean data.labels=3?"]),
        (["compare", "lr=3"], ["lr=3", "did you mean model.lr=3?"]),
        (["train", "data=my.csv"], ["data=file data.path=my.csv", "data.labels="]),
        (["compare", "data=[yeast,my.csv]"], ["data=file data.path=my.csv", "data.labels="]),
        (["compare", "trainer.limit_train_batchs=3"], ["did you mean limit_train_batches?"]),
        (["train", "trainer.max_epochs=-1"], ["trainer.max_epochs=-1", "at least 1"]),
        (["train", "seed=-1"], ["seed=-1", "from 0"]),
        (["train", "data=file"], ["data.path", "data.path=FILE"]),
        (["train", "data=file", "data.path=no.arff"], ["no.arff", "no such file"]),
        (["train", "selection.s0=1,2"], ["selection.s0=1,2", "-m"]),
        (["train", "selection.s0=[1"], ["selection.s0=[1", "cannot read"]),
        (["report", "FOLDER", "report.title=The paper's"], ["cannot read", "report.title=\"'The paper\\'s'\""]),
        (["train", "experiment=ablation"], ["experiment", "lightning-ubs compare"]),
        (["compare", "selection.lamda1=0.6"], ["selection.lamda1=0.6", "did you mean lambda1?"]),
        (["compare", "jbos=2"], ["jbos=2", "did you mean jobs?"]),
        (["compare", "selections=ubs"], ["selections=ubs", "did you mean selection?"]),
        (["compare", "experiment=ablatoin"], ["experiment=ablatoin", "did you mean ablation?"]),
        (["compare", "sweep=1"], ["sweep=1", "sweep.KEY=VALUE"]),
        (["compare", "sweeps=[3]"], ["sweeps[0]=3"]),
        (["compare", "by_data=1"], ["by_data=1", "by_data.KEY=VALUE"]),
        (["compare", "by_loss.bce=2"], ["by_loss.bce=2", "'+by_loss.bce=VALUE'"]),
        (["compare", "trainer=5"], ["trainer=5", "trainer.KEY=VALUE"]),
        (
            ["train", "trainer=gpu"],
            ["trainer=gpu: trainer is a group", "trainer.KEY=VALUE, such as trainer.accelerator=gpu"],
        ),
        (["train", "callbacks=early"], ["callbacks=early", "+callbacks.NAME._target_=CLASS adds one"]),
        (["compare", "results=null"], ["results=None", "results=mine"]),
        (["compare", "trace=maybe"], ["trace='maybe'", "true or false"]),
        (["compare", "trace_epochs=3"], ["trace_epochs=3", "[0,10]"]),
        (["compare", "monitor=3"], ["monitor=3", "val_macro_auc"]),
        (["compare", "engine=foo", "dry_run=true"], ["engine='foo'", "loky"]),
        (["compare", "report=3"], ["report=3", "report=false"]),
        (["compare", "report.formats=pdf"], ["report.formats='pdf'", "html"]),
        (["compare", "report.margin=x"], ["report.margin='x'", "0.001"]),
        (["report", "nothing", "report=false"], ["report=False"]),
        (["train", "trace_epochs=3"], ["trace_epochs=3"]),
        (["train", "callbacks=7"], ["callbacks=7", "callbacks.KEY=VALUE"]),
        (["report", "nothing"], ["no results in 'nothing'", "lightning-ubs compare"]),
        (["report", "nothing", "report.titel=x"], ["report.titel=x", "did you mean title?"]),
        (["report", "nothing", "report.paper=true"], ["nothing"]),
        (["data", "show", "yeest"], ["yeest", "did you mean yeast?"]),
        (["data", "convert", "no.arff"], ["no.arff", "no such file"]),
    ],
)
def test_a_mistake_ends_with_one_sentence(
    arguments: list[str], words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIGHTNING_UBS_DATA", "nowhere")
    assert main(arguments) == 1
    _, err = said(capsys)
    assert len(err.splitlines()) == 1, err
    assert all(word in err for word in words), err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["trian"], ["'trian'", "did you mean train?"]),
        (["report"], ["lightning-ubs report FOLDER"]),
        (["compare", "-m"], ["-m"]),
        (["data", "lst"], ["data lst", "data list"]),
        (["data", "show"], ["data show NAME"]),
        (["data", "list", "color=red"], ["color=red", "data_dir"]),
    ],
)
def test_a_command_that_does_not_exist_ends_with_two(
    arguments: list[str], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    _, err = said(capsys)
    assert len(err.splitlines()) == 1
    assert all(word in err for word in words), err


def test_traceback_is_shown_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    with pytest.raises(ValueError, match="lambda1"):
        main(["train", "selection.lambda1=2"])
    assert os.environ["HYDRA_FULL_ERROR"] == "1"


@pytest.mark.parametrize("command", ["train", "compare", "report"])
def test_a_folder_that_cannot_be_written_is_named(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("file").touch()
    arguments = {
        "train": ["train", "hydra.run.dir=file/run"],
        "compare": ["compare", "results=file/results"],
        "report": ["report", "file/results"],
    }
    assert main(arguments[command]) == 1
    _, err = said(capsys)
    assert len(err.splitlines()) == 1
    assert "file/r" in err


def test_help_shows_the_keys_that_people_change(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    out, _ = said(capsys)
    assert all(word in out for word in ("train", "compare", "report", "data convert"))
    for command, words in (
        ("train", ["selection.lambda1=0.5", "lightning-ubs train data=yeast", "clif, dela, mlp, mpvae"]),
        ("compare", ["selection=[NAME,...]", "experiment=NAME", "grid_s0_T"]),
        ("report", ["report.paper"]),
    ):
        with pytest.raises(SystemExit) as ended:
            main([command, "--help"])
        assert ended.value.code == 0
        out, _ = said(capsys)
        assert all(word in out for word in words), out
    assert main(["train", "--cfg", "job", "selection.s0=7"]) == 0
    assert "  s0: 7\n" in said(capsys)[0]


def test_help_offers_no_choice_that_cannot_be_used(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    lines = dict(line.split(": ", 1) for line in said(capsys)[0].splitlines() if line.startswith(("data: ", "selec")))
    assert "default" not in lines["data"].split(", ")
    assert "default" not in lines["selection"].split(", ")
    assert {"digits", "file", "yeast"} <= set(lines["data"].split(", "))


def test_tab_completion_knows_commands_groups_and_keys(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["-sc", "install=bash"]) == 0
    assert said(capsys)[0].rstrip().endswith("-F hydra_bash_completion lightning-ubs")
    for line, words in (
        ("lightning-ubs co", {"compare"}),
        (
            "lightning-ubs train selection=active_",
            {f"selection=active_{one}" for one in ("batch", "lc", "quantized")},
        ),
        ("lightning-ubs compare model=c", {"model=clif"}),
        ("lightning-ubs compare seed=1 job", {"jobs="}),
        ("lightning-ubs compare trainer.limit_tr", {"trainer.limit_train_batches="}),
        ("lightning-ubs data ", {"list", "show", "get", "convert"}),
        ("lightning-ubs data show yea", {"yeast"}),
        ("lightning-ubs data get yeast ", {"data_dir="}),
        ("lightning-ubs data convert mine.csv la", {"labels="}),
        ("lightning-ubs report ", set()),
    ):
        monkeypatch.setenv("COMP_LINE", line)
        assert main(["-sc", "query=bash"]) == 0
        assert set(said(capsys)[0].split()) == words, line


def offered(line: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv("COMP_LINE", line)
    assert main(["-sc", "query=bash"]) == 0
    return said(capsys)[0].split()


@pytest.mark.slow
@pytest.mark.parametrize("command", ["train", "compare", "report"])
def test_tab_completion_offers_nothing_that_fails(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    program = f"lightning-ubs {command}"
    # A report is not completed before its folder is given, which the shell does.
    words = offered(f"{program} {'out ' if command == 'report' else ''}", capsys, monkeypatch)
    assert words
    seen = []
    while words:
        word = words.pop()
        if word.endswith(("=", ".")) and not word.startswith("hydra"):
            more = [one for one in offered(f"{program} {word}", capsys, monkeypatch) if one != word]
            # Values of a key that has none yet, such as fold=, are the user's own.
            words += [one for one in more if one.startswith(word)]
            seen += [] if more or word.endswith(".") else [f"{word}null"]
        elif not word.startswith("hydra"):
            seen.append(word)
    keys = {word.partition("=")[0] for word in seen}
    assert len(keys) > 4
    assert not [word for word in seen if word.endswith("=default") and word != "trainer=default"]
    # One value of each key; that every dataset and selection composes is shown elsewhere. Lightning's own defaults are
    # not all null.
    values = {one.partition("=")[0]: one for one in seen if not re.match(r"trainer\..*=null$", one)}
    keys_alone = [word for key, word in values.items() if "." in key]
    for together in (keys_alone, *([word] for key, word in values.items() if "." not in key)):
        folder = ["out"] if command == "report" else []
        assert main([command, *folder, *together, "--cfg", "job"]) == 0, (together, said(capsys)[1])
        said(capsys)


def test_a_dry_run_lists_what_is_there_and_judges_the_rest_by_it(capsys: pytest.CaptureFixture[str]) -> None:
    grid = ["compare", "data=synthetic", "trainer.max_epochs=2", "selection.warmup_epochs=1", "results=out", "jobs=1"]
    grid.append("selection=[random,ubs]")
    assert main([*grid, "fold=[0,1]", "--dry-run"]) == 0
    *runs, total, rest = said(capsys)[0].splitlines()
    assert [line[:5] for line in runs] == ["to do"] * 4
    assert total == "4 runs, 0 already done, 4 to do, 1 at a time"
    assert "unknown until one is finished" in rest
    assert not Path("out").exists()
    assert main([*grid, "fold=0", "engine=sequential", "report.formats=[csv]"]) == 0
    assert "UBS against Random" in said(capsys)[0]
    assert main([*grid, "fold=[0,1]", "dry_run=true"]) == 0
    *runs, total, rest = said(capsys)[0].splitlines()
    assert [line[:5] for line in runs] == ["there", "there", "to do", "to do"]
    assert rest.startswith("about ")
    assert rest.endswith("estimated from the 2 finished runs in out")


def test_a_null_of_a_model_is_the_authors_own(capsys: pytest.CaptureFixture[str]) -> None:
    quick = [*QUICK, "trainer.max_epochs=1", "model=mpvae", "data=synthetic", "hydra.run.dir=run"]
    assert main(["train", *quick, "model.lr=null"]) == 0
    assert "model.lr" not in said(capsys)[1]


def test_data_commands_say_what_they_did(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "list"]) == 0
    assert "digits" in said(capsys)[0]
    assert main(["data", "show", "yeast"]) == 0
    assert "2417" in said(capsys)[0]
    assert main(["data", "get", "synthetic"]) == 0
    assert "1000 samples" in said(capsys)[0]
    rows = "\n".join(f"{row / 9},{row % 2},{1 - row % 2}" for row in range(9))
    Path("a.arff").write_text(
        f"@relation a\n@attribute x numeric\n@attribute p {{0,1}}\n@attribute q {{0,1}}\n@data\n{rows}\n"
    )
    assert main(["data", "convert", "a.arff", "b.npz", "labels=-2"]) == 0
    assert "2 labels" in said(capsys)[0]
    assert Path("b.npz").is_file()
    assert main(["data", "convert", "a.arff", "c.npz", "labels=[p]"]) == 0
    assert "1 labels" in said(capsys)[0]


def test_the_command_runs_as_a_module_and_tells_its_version() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "lightning_ubs.cli", "--version"], capture_output=True, text=True, check=True
    )
    assert run.stdout == f"lightning-ubs {lightning_ubs.__version__}\n"


# How many runs one fold of the small form of each experiment has, a word that its page must show, and for large ones
# what of it is enough here.
EXPERIMENTS = {
    "paper_table": (6, "dela", "selection=[random,ubs]"),
    "ablation": (8, "Recent_LC"),
    "lambda_sensitivity": (3, "λ1", "selection.lambda1=0,0.5,1"),
    "grid_s0_T": (4, "s0", "selection.s0=2,100", "selection.window=3,5"),
    "convergence": (6, "Validation"),
    "first": (4, "UBS (weighted)"),
    "correlation_drift": (1, "drift"),
    "time": (6, "epoch"),
    "savings": (8, "UBS half"),
    "drawing": (6, "Random filled"),
    "settings": (4, "Random"),
    "main_table": (3, "UBS batch", "selection=[random,ubs_batch,ubs]"),
    "notebooks": (10, "Notebook UBS", "model=mlp"),
    "paper_models": (2, "dela", "model=dela", "selection=[random,ubs]"),
    "three_times": (2, "dela", "model=dela", "selection=[random,ubs]"),
    "authors_rate": (2, "dela", "model=dela", "selection=[random,ubs]"),
    "text_sets": (3, "clif"),
    "yahoo_arts": (3, "clif"),
    "ablation_mlp": (3, "UBS-D", "selection=[random,ubs,ubs_d]"),
    "sensitivity": (3, "T=2", "sweeps=[{},{selection:{window:[2,10]}}]"),
    "alternatives_settings": (4, "Random (balanced)", "model.loss=bce,balanced", "model.lr=0.001,0.01"),
    "alternatives": (4, "Repeat factor", "model.loss=bce,weighted", "selection=[random,repeat_factor]"),
    "short": (4, "UBS, shuffled P", "model.loss=balanced,asymmetric", "selection=[ubs,shuffled]"),
    "alternatives_clif": (2, "Random (weighted)", "selection=random"),
}


def test_the_small_form_of_every_experiment_is_run() -> None:
    assert set(EXPERIMENTS) == {path.stem for path in (Path(__file__).parents[2] / "configs/experiment").glob("*.yaml")}


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_small_form_of_every_experiment_runs_to_its_report(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    runs, word, *part = EXPERIMENTS[name]
    small = [f"experiment={name}", "scale=smoke", "fold=0", "seed=0", *map(str, part)]
    assert main(["compare", *small, "engine=sequential", "results=out", "report.formats=[html]"]) == 0
    records = ResultsStore("out").records()
    assert all(record.finished for record in records)
    assert len(records) == runs
    assert str(word) in Path("out/report/index.html").read_text()


@pytest.mark.slow
def test_an_experiment_runs_to_its_report_and_is_not_done_again(capsys: pytest.CaptureFixture[str]) -> None:
    command = [
        "compare",
        "experiment=ablation",
        "scale=smoke",
        "model=mlp",
        "fold=0",
        "engine=sequential",
        "results=out",
    ]
    assert main([*command, "report.formats=[html,csv]"]) == 0
    out, _ = said(capsys)
    assert "[8/8]" in out
    page = Path("out/report/index.html").read_text()
    assert "fluctuation only" in page
    assert "Active_LC" in page
    records = ResultsStore("out").records()
    assert {(one.selection, one.variant) for one in records} == {
        ("ubs", ""), ("ubs", "B"), ("ubs", "C"), ("ubs", "D"),
        ("active", ""), ("active", "Active_LC"), ("recent", ""), ("recent", "Recent_LC"),
    }  # fmt: skip
    assert not any(Path().glob("*.log"))
    assert main([*command, "report.formats=[html]"]) == 0
    assert "all 8 runs are already done" in said(capsys)[0]
    assert ResultsStore("out").records() == records


def test_a_comparison_without_a_report_still_says_its_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    grid = ["compare", "data=synthetic", "selection=[random,balance]", "fold=[0,1]", "engine=sequential", "scale=smoke"]
    assert main([*grid, "results=out", "report=false"]) == 0
    assert "Balance" in said(capsys)[0]
    assert not Path("out/report").exists()


def test_a_grid_of_no_dataset_that_exists_is_refused_before_its_first_run(capsys: pytest.CaptureFixture[str]) -> None:
    for names in ("yeest", "yeest,scen"):
        assert main(["compare", f"data=[{names}]", "engine=sequential", "results=out"]) == 1
        out, err = said(capsys)
        assert "no dataset is called 'yeest'; did you mean yeast?" in err
        assert "FAILED" not in out + err
    assert not Path("out").exists()


def test_an_impossible_dataset_is_recorded_and_the_rest_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    grid = ["compare", "data=[nosuch,synthetic]", "fold=0", "engine=sequential", "results=out", "report.formats=[html]"]
    assert main([*grid, "selection=[random,ubs]", "trainer.max_epochs=2", "selection.warmup_epochs=1"]) == 1
    out, err = said(capsys)
    assert len(err.splitlines()) == 1
    assert "2 of 4 runs failed" in err
    assert "'nosuch'" in err
    assert "report: out/report/index.html" in out
    records = ResultsStore("out").records()
    assert sorted((one.data, one.status) for one in records) == [
        ("nosuch", "failed"), ("nosuch", "failed"), ("synthetic", "ok"), ("synthetic", "ok")
    ]  # fmt: skip
    assert main(["report", "out", "report.output=again", "report.formats=[html]"]) == 0
    assert Path("again/index.html").is_file()
