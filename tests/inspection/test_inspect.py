"""Looking inside a selection: frames, pictures and what is drawn how often."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pandas as pd
import pytest
import torch
from lightning.pytorch.callbacks import LearningRateFinder
from resume_tools import STRATEGIES, make_data, make_loader, make_selection, make_trainer
from resume_tools import Recorder as Network
from tiny_training import N, Q, Tiny, Watch, data, fit, loader, trainer
from torch.utils.data import Subset, TensorDataset

from lightning_ubs import UBS, ActiveBias, Balance, BatchSelection, LossBias, Random, SelectionError, Strategy, Weighted
from lightning_ubs.functional import (
    draw_epoch,
    expected_distinct,
    selection_probabilities,
    uncertainty_correlation,
)
from lightning_ubs.inspection.frame import KnownLabels
from lightning_ubs.inspection.outlook import epoch_outlooks
from lightning_ubs.reading import DatasetLabels

COLUMNS = [
    "id", "weight", "probability", "times_drawn", "last_epoch_drawn", "mean_uncertainty", "fluctuation", "latest_loss",
    "labels",
]  # fmt: skip
NAMES = ["sky", "sea", "sand"]


@pytest.fixture(scope="module")
def trained() -> tuple[BatchSelection, Tiny, Watch]:
    torch.manual_seed(0)
    selection = BatchSelection(UBS(window=3), warmup_epochs=2, label_names=NAMES)
    module, watch, _ = fit(selection, max_epochs=6)
    return selection, module, watch


def test_each_row_agrees_with_what_the_training_steps_saw(trained: tuple[BatchSelection, Tiny, Watch]) -> None:
    selection, module, watch = trained
    frame = selection.to_frame()
    assert list(frame.columns) == COLUMNS
    drawn = [(i, epoch) for epoch, batches in module.ids().items() for batch in batches for i in batch]
    histories, labels = module.histories(6), data().tensors[1]
    assert frame["id"].tolist() == list(range(N))
    for i, row in frame.set_index("id").iterrows():
        epochs = [epoch for j, epoch in drawn if j == i]
        assert (row["times_drawn"], row["last_epoch_drawn"]) == (len(epochs), max(epochs))
        window = np.array(histories[i][-3:])
        assert row["fluctuation"] == pytest.approx(np.abs(np.diff(window, axis=0)).mean(), abs=1e-6)
        p, y = window[-1], labels[i].numpy()
        assert row["latest_loss"] == pytest.approx(-(y * np.log(p) + (1 - y) * np.log(1 - p)).mean(), rel=1e-4)
        assert row["labels"] == "; ".join(name for name, has in zip(NAMES, y, strict=True) if has)
    last = watch.shown[5]
    assert frame["mean_uncertainty"].to_numpy() == pytest.approx(last["uncertainty"].mean(1).numpy())
    assert frame["weight"].to_numpy() == pytest.approx(last["weights"].numpy())
    assert frame["probability"].to_numpy() == pytest.approx(last["probabilities"].numpy())


HAS = {
    "UBS": {"weight", "mean_uncertainty", "fluctuation", "latest_loss"},
    "ActiveBias": {"weight", "mean_uncertainty"},
    "RecencyBias": {"weight", "mean_uncertainty", "fluctuation", "latest_loss"},
    "HardImbalance": {"weight", "latest_loss"},
    "LossBias": {"weight", "latest_loss"},
    "InfoBatch": {"weight", "latest_loss"},
    "Balance": set(),
    "Random": set(),
}


@pytest.mark.parametrize("name", HAS)
def test_every_strategy_has_the_same_columns_and_nan_where_it_knows_nothing(name: str) -> None:
    selection = BatchSelection(STRATEGIES[name](), warmup_epochs=1)
    fit(selection, max_epochs=3)
    frame = selection.to_frame()
    assert list(frame.columns) == COLUMNS
    empty = {column for column in COLUMNS if frame[column].isna().all()}
    assert empty == {"weight", "mean_uncertainty", "fluctuation", "latest_loss"} - HAS[name]
    assert frame["times_drawn"].sum() == sum(len(selection.plan.ids) for _ in range(3))


def test_a_frame_can_be_had_in_every_hook_while_training() -> None:
    selection = BatchSelection(UBS(), warmup_epochs=1)
    sizes = []

    class Looks(L.Callback):
        def look(self, *_: Any) -> None:
            frame = selection.to_frame()
            sizes.append((len(frame), int(frame["times_drawn"].sum()), bool(frame["mean_uncertainty"].isna().all())))

        on_train_epoch_start = on_train_batch_end = on_train_epoch_end = look

    trainer(selection, Looks(), max_epochs=2).fit(Tiny(), loader())
    assert [size[0] for size in sizes] == [N] * 16
    assert [size[1] for size in sizes] == [0, 8, 16, 24, 32, 40, 42, 42, 42, 50, 58, 66, 74, 82, 84, 84]
    assert [size[2] for size in sizes] == [True] * 8 + [False] * 8


class Skips(Network):
    """No loss in some steps: their samples are not trained on."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return None if batch_idx == 1 else super().training_step(batch, batch_idx)


class Saves(L.Callback):
    def __init__(self, moment: tuple[int, int | None], path: Path) -> None:
        self.moment, self.path = moment, path

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if (trainer.current_epoch, batch_idx) == self.moment:
            trainer.save_checkpoint(self.path)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        if (trainer.current_epoch, None) == self.moment:
            trainer.save_checkpoint(self.path)


@pytest.mark.parametrize("moment", [(3, 2), (3, None)], ids=["mid-epoch", "epoch end"])
@pytest.mark.parametrize("save_state", ["full", "weights"])
def test_counts_of_a_resumed_run_are_those_of_an_uninterrupted_one(
    tmp_path: Path, moment: tuple[int, int | None], save_state: str
) -> None:
    whole, cut = (make_selection(save_state=save_state, replacement="full", end_epoch=5) for _ in range(2))
    path = tmp_path / "cut.ckpt"
    make_trainer(tmp_path, [whole, Saves(moment, path)]).fit(Skips(), make_loader(make_data()))
    resumed = make_trainer(tmp_path, [cut])
    resumed.fit(Skips(), make_loader(make_data()), ckpt_path=path)
    assert whole.times_drawn.sum() == 6 * (52 - 8)
    if save_state == "full":
        assert torch.equal(cut.times_drawn, whole.times_drawn)
        assert torch.equal(cut.last_epoch_drawn, whole.last_epoch_drawn)
    assert cut.times_drawn.sum() == whole.times_drawn.sum()


def test_counts_survive_a_learning_rate_finder() -> None:
    """It saves and restores the state of a selection that has seen nothing yet."""
    selection = BatchSelection(UBS(), warmup_epochs=1)
    finder = LearningRateFinder(num_training_steps=3, update_attr=False)
    trainer(finder, selection, max_epochs=2).fit(Tiny(), loader())
    assert selection.times_drawn.sum() == 2 * N


def test_a_checkpoint_of_the_first_release_leaves_the_counts_unknown_rather_than_wrong(tmp_path: Path) -> None:
    path = Path(__file__).parents[1] / "files" / "checkpoint_0_1_0.pt"
    selection = make_selection()
    make_trainer(tmp_path, [selection]).fit(Network(), make_loader(make_data()), ckpt_path=path)
    frame = selection.to_frame()
    assert frame["times_drawn"].isna().all()
    assert frame["last_epoch_drawn"].isna().all()
    assert frame["mean_uncertainty"].notna().all()
    assert "times_drawn" not in selection.state_dict()
    selection.plot_data_map()


def test_a_checkpoint_can_be_looked_at_without_training(trained: tuple[BatchSelection, Tiny, Watch]) -> None:
    selection, *_ = trained
    looked = BatchSelection(UBS(window=3), labels=data().tensors[1], label_names=NAMES)
    looked.load_state_dict(selection.state_dict())
    kept = [name for name in COLUMNS if name != "mean_uncertainty"]
    pd.testing.assert_frame_equal(looked.to_frame()[kept], selection.to_frame()[kept])
    now = selection.strategy.current_uncertainty().mean(1)  # U at the start of the epoch is not in a checkpoint
    assert looked.to_frame()["mean_uncertainty"].to_numpy() == pytest.approx(now.numpy())
    pd.testing.assert_frame_equal(looked.suspicious_labels(9), selection.suspicious_labels(9))
    assert torch.equal(looked.correlation, selection.correlation)
    unlabeled = BatchSelection(UBS(window=3))
    unlabeled.load_state_dict(selection.state_dict())
    assert unlabeled.to_frame()["latest_loss"].isna().all()
    with pytest.raises(SelectionError, match=r"true labels .* are not known .*labels=matrix"):
        unlabeled.suspicious_labels()


def test_a_fit_after_a_look_at_a_checkpoint_starts_anew(trained: tuple[BatchSelection, Tiny, Watch]) -> None:
    runs = []
    for look in (True, False):
        selection = BatchSelection(UBS(window=3), warmup_epochs=1)
        if look:
            selection.load_state_dict(trained[0].state_dict())
        torch.manual_seed(1)
        runs.append(fit(selection, max_epochs=3)[0].ids())
    assert runs[0] == runs[1]


def test_a_strategy_that_needs_the_data_says_so_when_a_checkpoint_is_looked_at() -> None:
    selection = BatchSelection(Balance())
    fit(selection, max_epochs=1)
    with pytest.raises(SelectionError, match=r"Balance needs the labels .* give the checkpoint to Trainer.fit"):
        BatchSelection(Balance()).load_state_dict(selection.state_dict())


@pytest.mark.parametrize("view", ["to_frame", "plot_data_map", "plot_correlation", "suspicious_labels"])
def test_before_any_fit_there_is_one_sentence(view: str) -> None:
    with pytest.raises(SelectionError, match=r"seen no training data yet.*call Trainer.fit with it first"):
        getattr(BatchSelection(), view)()


@pytest.mark.parametrize(
    ("strategy", "view", "sentence"),
    [
        (LossBias(), "plot_data_map", "no mean_uncertainty .* needs a strategy with a window, UBS or RecencyBias"),
        (ActiveBias(), "plot_data_map", "no fluctuation .* needs a strategy with a window, UBS or RecencyBias"),
        (UBS(correlation=None), "plot_correlation", "no label correlation .*; use UBS"),
        (LossBias(), "suspicious_labels", "remembers no predictions .* train with UBS, RecencyBias or ActiveBias"),
    ],
)
def test_what_a_strategy_does_not_have_is_refused_with_the_way_out(strategy: Any, view: str, sentence: str) -> None:
    selection = BatchSelection(strategy, warmup_epochs=1)
    fit(selection, max_epochs=2)
    with pytest.raises(SelectionError, match=sentence):
        getattr(selection, view)()


def test_too_early_is_said_as_such() -> None:
    selection = BatchSelection(UBS(), warmup_epochs=1)
    fit(selection, max_epochs=1)
    for view in (selection.plot_data_map, selection.plot_correlation):
        with pytest.raises(SelectionError, match="measured from the second epoch on"):
            view()


@pytest.mark.parametrize(("missing", "view"), [("pandas", "to_frame"), ("matplotlib.figure", "plot_correlation")])
def test_without_the_extra_one_sentence_names_it(
    trained: tuple[BatchSelection, Tiny, Watch], monkeypatch: pytest.MonkeyPatch, missing: str, view: str
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install .*\[experiments\]'\.$"):
        getattr(trained[0], view)()


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_a_frame_survives_a_file(trained: tuple[BatchSelection, Tiny, Watch], tmp_path: Path, ending: str) -> None:
    frame, path = trained[0].to_frame(), tmp_path / f"samples.{ending}"
    if ending == "csv":
        frame.to_csv(path, index=False)
        back = pd.read_csv(path, dtype={"times_drawn": "Int64", "last_epoch_drawn": "Int64", "labels": "string"})
        back["labels"] = back["labels"].fillna("")
    else:
        frame.to_parquet(path)
        back = pd.read_parquet(path)
    pd.testing.assert_frame_equal(back, frame, check_exact=False)


class Named(TensorDataset):
    label_names = ("a", "b", "c")


class NamedModule(L.LightningDataModule):
    label_names = ("x", "y", "z")

    def train_dataloader(self) -> Any:
        return loader(Named(*data().tensors))


@pytest.mark.parametrize(
    ("train", "given", "expected"),
    [
        (loader(Subset(Named(*data().tensors), range(N))), None, ["a", "b", "c"]),
        (NamedModule(), None, ["x", "y", "z"]),
        (NamedModule(), NAMES, NAMES),
    ],
)
def test_label_names_come_from_the_user_the_datamodule_or_the_dataset(
    train: Any, given: list[str] | None, expected: list[str]
) -> None:
    selection = BatchSelection(UBS(), warmup_epochs=1, label_names=given)
    trainer(selection, max_epochs=2).fit(Tiny(), train)
    assert [text.get_text() for text in selection.plot_correlation().axes[0].get_xticklabels()] == expected
    assert set(selection.suspicious_labels(N * Q)["label"]) == set(expected)
    assert set("; ".join(selection.to_frame()["labels"]).split("; ")) - {""} == set(expected)
    assert selection.plot_data_map(expected[1]).axes[0].get_title(loc="left").endswith(f"with {expected[1]}")


def test_names_that_cannot_be_read_are_looked_for_elsewhere() -> None:
    class Closed(TensorDataset):
        classes = NAMES

        @property
        def label_names(self) -> Any:
            raise OSError("closed")

    known = KnownLabels()
    known.see(DatasetLabels(None, data()), Closed(*data().tensors))
    assert known.names(Q) == NAMES


def test_a_wrong_number_of_names_is_refused() -> None:
    selection = BatchSelection(UBS(), warmup_epochs=1, label_names=["one"])
    fit(selection, max_epochs=2)
    with pytest.raises(SelectionError, match=r"holds 1 names, but there are 3 labels; pass one name per label"):
        selection.plot_correlation()
    with pytest.raises(ValueError, match=r"label_names='abc' must be a list of strings, one per label"):
        BatchSelection(label_names="abc")


def test_the_data_map_shows_the_frame_and_can_be_limited_to_a_label(
    trained: tuple[BatchSelection, Tiny, Watch],
) -> None:
    selection, *_ = trained
    frame = selection.to_frame().sort_values("times_drawn", kind="stable")
    for label, shown in ((None, frame), ("sea", frame[frame["labels"].str.contains("sea")])):
        points = selection.plot_data_map(label).axes[0].collections[0]
        expected = shown[["fluctuation", "mean_uncertainty"]].to_numpy()
        assert np.asarray(points.get_offsets()) == pytest.approx(expected, abs=1e-6)
        assert points.get_array().tolist() == shown["times_drawn"].tolist()
    with pytest.raises(SelectionError, match=r"label='see' is not known; use .* 0 to 2, or sky, sea, sand\."):
        selection.plot_data_map("see")


def test_class_indices_are_labels_as_well() -> None:
    class Exclusive(Tiny):
        def loss(self, logits: Any, y: Any) -> Any:
            return torch.nn.functional.cross_entropy(logits, y)

    features, labels = data().tensors
    classes = labels.argmax(1)
    selection = BatchSelection(UBS(), warmup_epochs=1, label_names=NAMES, labels=classes)
    fit(selection, Exclusive(), loader(TensorDataset(features, classes)), max_epochs=2)
    assert selection.to_frame()["labels"].tolist() == [NAMES[i] for i in classes.tolist()]
    assert selection.to_frame()["latest_loss"].notna().all()


@pytest.mark.parametrize("replacement", ["batch", "full", "systematic", "none"])
@pytest.mark.parametrize(("n", "b", "m"), [(300, 32, 300), (300, 150, 200)])
def test_expected_distinct_samples_are_the_mean_of_real_draws(replacement: Any, n: int, b: int, m: int) -> None:
    probabilities = selection_probabilities(torch.linspace(0, 1, n), 100.0)
    generator = torch.Generator().manual_seed(0)
    drawn = [len(draw_epoch(probabilities, b, m, generator, replacement).unique()) for _ in range(40)]
    assert expected_distinct(probabilities, b, m, replacement) == pytest.approx(np.mean(drawn), rel=0.015)


@pytest.mark.parametrize("name", HAS)
def test_the_schedule_is_known_before_any_training_and_comes_true(name: str) -> None:
    selection = BatchSelection(STRATEGIES[name](), warmup_epochs=2)
    outlooks = epoch_outlooks(selection, max_epochs=5, n=N, batch_size=8)
    _, watch, _ = fit(selection, max_epochs=5)
    assert [one.pressure for one in outlooks] == pytest.approx([watch.shown[epoch]["pressure"] for epoch in range(5)])
    plain = [one for one in outlooks if not one.selected]
    draws = sum(map(len, watch.plans[0]))
    assert all(one.effective_sample_size == N and one.distinct_share == draws / N for one in plain)
    if name in ("Random", "Balance"):
        assert all(one.distinct_share == 1 for one in outlooks)
    else:
        assert [one.selected for one in outlooks[:3]] == [False, False, True]
        assert 1 < outlooks[2].effective_sample_size < N


def test_with_the_true_weights_the_schedule_foretells_the_epoch() -> None:
    selection = BatchSelection(UBS(), warmup_epochs=2)
    _, watch, _ = fit(selection, max_epochs=5)
    for epoch in (2, 3, 4):
        outlook = epoch_outlooks(selection, 5, N, 8, weights=watch.shown[epoch]["weights"])[epoch]
        size = 1 / watch.shown[epoch]["probabilities"].square().sum().item()
        assert outlook.effective_sample_size == pytest.approx(size)


def test_the_schedule_is_a_picture_with_three_curves_that_shades_plain_epochs() -> None:
    figure = BatchSelection(UBS(), warmup_epochs=3).plot_schedule(max_epochs=10, n=500)
    assert [axes.get_ylabel() for axes in figure.axes] == [
        "Pressure", "Effective sample size", "Distinct samples, share"
    ]  # fmt: skip
    assert figure.axes[0].lines[0].get_ydata()[[0, 3, 9]] == pytest.approx([1, 100, 1])
    assert len(figure.axes[0].patches) == 3


def test_after_a_fit_the_schedule_needs_no_arguments_and_is_that_of_the_fit() -> None:
    selection = BatchSelection(UBS())
    with pytest.raises(
        SelectionError, match=r"cannot know max_epochs and n; pass plot_schedule\(max_epochs=..., n=..."
    ):
        selection.plot_schedule()
    _, watch, _ = fit(selection, max_epochs=6)
    outlooks = epoch_outlooks(selection)
    assert [one.pressure for one in outlooks] == pytest.approx([watch.shown[epoch]["pressure"] for epoch in range(6)])
    assert [one.selected for one in outlooks] == [False] * 3 + [True] * 3
    assert outlooks[-1].effective_sample_size == pytest.approx(1 / selection.probabilities.square().sum().item())
    figure = selection.plot_schedule()
    assert figure.axes[0].get_title(loc="left") == f"UBS, {N} samples"
    assert len(epoch_outlooks(selection, max_epochs=20)) == 20
    assert [one.selected for one in epoch_outlooks(selection, max_epochs=20)].index(True) == 5


@pytest.mark.parametrize("name", STRATEGIES)
def test_after_a_fit_every_strategy_shows_its_schedule(name: str) -> None:
    items = make_data()
    selection = make_selection(name, features=items.tensors[0])
    make_trainer(Path(), [selection], max_epochs=4).fit(Network(), make_loader(items))
    assert len(epoch_outlooks(selection)) == 4
    selection.plot_schedule()


@pytest.mark.parametrize("names", [None, NAMES])
def test_the_labels_that_were_drawn_are_told_against_a_plain_pass(names: Any) -> None:
    weights = 1 + 4 * data().tensors[1][:, 1]
    selection = BatchSelection(Weighted(weights), label_names=names, end_epoch=1.0)
    module, *_ = fit(selection, max_epochs=6)
    frame, labels = selection.to_frame("labels"), data().tensors[1]
    drawn = [i for batches in module.ids().values() for ids in batches for i in ids]
    assert list(frame.columns) == ["label", "samples", "times_drawn", "plain_times_drawn", "ratio"]
    assert frame["label"].tolist() == (names or [0, 1, 2])
    assert frame["samples"].tolist() == labels.sum(0).tolist()
    assert frame["times_drawn"].tolist() == labels[drawn].sum(0).tolist()
    assert frame["plain_times_drawn"].to_numpy() == pytest.approx(labels.sum(0).numpy() * len(drawn) / N)
    assert frame["ratio"].to_numpy() == pytest.approx((frame["times_drawn"] / frame["plain_times_drawn"]).to_numpy())
    assert frame["ratio"][1] > 1.2


def test_a_plain_training_draws_every_label_as_often_as_a_plain_pass() -> None:
    selection = BatchSelection(Random())
    fit(selection, max_epochs=3)
    assert selection.to_frame("labels")["ratio"].to_numpy() == pytest.approx(1)


def test_frames_of_something_else_are_refused() -> None:
    selection = BatchSelection(Random())
    with pytest.raises(SelectionError, match="has seen no training data yet"):
        selection.to_frame("labels")
    fit(selection, train=loader(TensorDataset(data().tensors[0])), module=Unlabeled(), max_epochs=1)
    with pytest.raises(SelectionError, match=r"labels=matrix"):
        selection.to_frame("labels")
    with pytest.raises(ValueError, match="rows='label' is unknown; did you mean 'labels'"):
        selection.to_frame("label")  # type: ignore[arg-type]


class Unlabeled(Tiny):
    """Needs no labels."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self(batch[0]).square().mean()


def test_the_scale_of_the_correlation_does_not_make_structure_of_noise() -> None:
    """Labels that have nothing in common stay in the dark half of the scale, and what is above chance sets its end."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.rand(N, 8, generator=generator)
    for u, noisy in ((noise, True), (noise[:, :1].repeat(1, 8), False)):
        selection = BatchSelection(UBS())
        fit(selection, max_epochs=2)
        found = uncertainty_correlation(u)
        selection.strategy.measured = replace(selection.strategy.measured, correlation=found)
        image = selection.plot_correlation().axes[0].images[0]
        shown = image.get_array().compressed() / image.get_clim()[1]
        assert (np.median(shown) < 0.4) == noisy
        assert (shown.max() == 1) == (not noisy)


def test_a_schedule_of_nonsense_is_refused() -> None:
    selection = BatchSelection(UBS())
    with pytest.raises(ValueError, match="max_epochs=0 is out of range"):
        selection.plot_schedule(0, 10)
    with pytest.raises(ValueError, match=r"pass 10 weights in \[0, 1\]"):
        selection.plot_schedule(5, 10, weights=torch.ones(3))

    class Own(Random):
        def probabilities(self, pressure: float) -> Any:
            return torch.ones(3)

    with pytest.raises(SelectionError, match=r"cannot be foreseen.*override with_weights"):
        BatchSelection(Own()).plot_schedule(5, 10)


def test_label_suspicion_is_the_mean_distance_of_the_window(trained: tuple[BatchSelection, Tiny, Watch]) -> None:
    selection, module, _ = trained
    frame = selection.suspicious_labels(top=N * Q)
    labels, histories = data().tensors[1], module.histories(6)
    means = np.array([np.mean(history[-3:], axis=0) for history in histories])
    assert list(frame.columns) == ["id", "label", "given", "mean_prediction", "score"]
    assert len(frame) == N * Q
    assert frame["score"].is_monotonic_decreasing
    for _, row in frame.iterrows():
        column = NAMES.index(row["label"])
        assert row["given"] == labels[row["id"], column]
        assert row["mean_prediction"] == pytest.approx(means[row["id"], column], abs=1e-6)
        assert row["score"] == pytest.approx(abs(row["given"] - row["mean_prediction"]), abs=1e-6)
    assert len(selection.suspicious_labels(top=0.1)) == round(0.1 * N * Q)
    pd.testing.assert_frame_equal(selection.suspicious_labels(top=5), frame.head(5))
    with pytest.raises(ValueError, match=r"top=2\.5 is out of range"):
        selection.suspicious_labels(2.5)


@pytest.mark.parametrize("strategy", [UBS(), ActiveBias()])
def test_flipped_labels_of_an_easy_problem_are_found(strategy: Any) -> None:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(300, 6, generator=generator)
    labels = (features[:, 1:4] > 0).float()
    flipped = torch.randperm(900, generator=generator)[:20]
    labels.view(-1)[flipped] = 1 - labels.view(-1)[flipped]
    torch.manual_seed(0)
    selection = BatchSelection(strategy, warmup_epochs=1)
    fit(selection, Tiny(lr=3.0), loader(TensorDataset(features, labels), batch_size=32), max_epochs=8)
    found = selection.suspicious_labels(top=20)
    assert len(set(found["id"] * 3 + found["label"]) & set(flipped.tolist())) >= 15


def test_samples_that_were_never_drawn_are_not_suspected() -> None:
    selection = BatchSelection(UBS(), warmup_epochs=1, epoch_size=10)
    fit(selection, max_epochs=1)
    frame = selection.to_frame()
    assert frame["last_epoch_drawn"].isna().sum() == frame["latest_loss"].isna().sum() == N - 10
    assert len(selection.suspicious_labels(top=N * Q)) == 10 * Q


def test_the_score_is_cleanlabs_self_confidence_of_the_mean_prediction(
    trained: tuple[BatchSelection, Tiny, Watch],
) -> None:
    from cleanlab.multilabel_classification.rank import get_label_quality_scores_per_class

    frame = trained[0].suspicious_labels(top=N * Q)
    place = frame["id"].to_numpy(), frame["label"].map(NAMES.index).to_numpy()
    means = np.zeros((N, Q))
    means[place] = frame["mean_prediction"]
    labels = [row.nonzero().flatten().tolist() for row in data().tensors[1]]
    assert 1 - get_label_quality_scores_per_class(labels, means)[place] == pytest.approx(frame["score"], abs=1e-6)


def test_the_page_about_looking_inside_runs_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[2] / "docs" / "looking_inside.md").read_text()
    monkeypatch.chdir(tmp_path)
    for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(block, {})
    made = {"schedule.png", "samples.csv", "data_map.png", "threes.png", "correlation.png", "last.ckpt", "results"}
    assert made <= {path.name for path in tmp_path.iterdir()}


def test_the_history_is_what_the_last_steps_predicted_oldest_first(trained: tuple[BatchSelection, Tiny, Watch]) -> None:
    selection, module, _ = trained
    values, counts = selection.history()
    assert (values.shape, values.dtype, counts.tolist()) == ((N, 3, Q), torch.float32, [3] * N)
    histories = module.histories(6)
    expected = np.array([histories[i][-3:] for i in range(N)])
    assert values.numpy() == pytest.approx(expected, abs=1e-6)


class AsksInEveryStep(Watch):
    def on_train_batch_end(self, trainer: Any, *args: Any) -> None:
        plan, k = self.selection.plan, trainer.fit_loop.batch_idx
        if trainer.current_epoch == 0:
            counts = self.selection.history()[1]
            assert counts.sum() == sum(len(plan[step]) for step in range(k + 1))


def test_the_history_includes_pending_steps() -> None:
    selection = BatchSelection(UBS(window=3), warmup_epochs=2)
    asks = AsksInEveryStep(selection)
    trainer(selection, asks, max_epochs=2).fit(Tiny(), loader())


@pytest.mark.parametrize("strategy", [Random(), ActiveBias()])
def test_a_history_that_is_not_kept_is_refused(strategy: Strategy) -> None:
    selection = BatchSelection(strategy, warmup_epochs=1)
    with pytest.raises(SelectionError, match="no training data yet"):
        selection.history()
    fit(selection, max_epochs=2)
    with pytest.raises(SelectionError, match="use UBS"):
        selection.history()
