"""Predictions of all samples from a pass of their own."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
import reference
import torch
from tiny_training import D, N, Q, Tiny, data, fit, loader, trainer
from torch import Tensor, nn

from lightning_ubs import UBS, BatchSelection, EvaluationPass, LossBias, Random, SelectionError


class Dropping(Tiny):
    """Keeps its weights at each epoch's start, and draws random numbers of its own."""

    def __init__(self, p: float = 0.4) -> None:
        torch.manual_seed(4)
        super().__init__()
        self.net = nn.Sequential(nn.Linear(D - 1, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(p), nn.Linear(16, Q))
        self.starts: dict[int, Tensor] = {}
        self.modes: list[list[bool]] = []

    def on_train_epoch_start(self) -> None:
        """Runs after the callbacks' hook; the weights are still those of the pass."""
        modes = [part.training for part in self.modules()]
        self.modes.append(modes)
        self.eval()
        with torch.no_grad():
            self.starts[self.current_epoch] = self(data().tensors[0]).sigmoid()
        self.train()


def history(module: Dropping, epoch: int) -> list[list[list[float]]]:
    """Predictions of each sample at the start of the epochs 1 .. ``epoch``."""
    known = [module.starts[e].tolist() for e in range(1, epoch + 1)]
    return [[rows[i] for rows in known] for i in range(N)]


def test_uncertainty_comes_from_the_model_at_the_epochs_start_and_from_nothing_else() -> None:
    selection = BatchSelection(UBS(window=3), warmup_epochs=2, refresh=EvaluationPass())
    module, watch, _ = fit(selection, Dropping(), max_epochs=6)
    assert watch.shown[0]["uncertainty"] is None
    for epoch in range(1, 6):
        windows = [rows[-3:] for rows in history(module, epoch)]
        expected = reference.label_uncertainty(windows, Q, 0.5)
        np.testing.assert_allclose(watch.shown[epoch]["uncertainty"].numpy(), expected, atol=1e-5)
    assert module.ids() == watch.plans


def test_losses_come_from_the_pass_too() -> None:
    selection = BatchSelection(LossBias(), warmup_epochs=1, epoch_size=0.3, refresh=EvaluationPass())
    module, watch, _ = fit(selection, Dropping(), max_epochs=4)
    labels = data().tensors[1].tolist()
    for epoch in (1, 2, 3):
        rows = module.starts[epoch].tolist()
        losses = np.array([reference.cross_entropy(row, y) for row, y in zip(rows, labels, strict=True)])
        np.testing.assert_allclose(watch.shown[epoch]["weights"].numpy(), reference.scale(losses), atol=1e-4)


def test_training_goes_on_as_if_there_had_been_no_pass() -> None:
    """Modes, running statistics and random numbers are what they were; uniform P needs no predictions."""
    drawn, states = [], []
    for refresh in (None, EvaluationPass(), EvaluationPass(mc_samples=3)):
        L.seed_everything(5, verbose=False)
        module, *_ = fit(BatchSelection(UBS(s0=1.0), warmup_epochs=1, refresh=refresh), Dropping())
        assert all(all(modes) for modes in module.modes)
        drawn.append(module.ids())
        states.append(torch.cat([value.flatten().double() for value in module.state_dict().values()]))
    assert all(ids == drawn[0] for ids in drawn[1:])
    assert all(torch.equal(state, states[0]) for state in states[1:])


def test_monte_carlo_dropout_takes_the_entropy_of_the_mean_and_the_change_between_the_predictions() -> None:
    seen: dict[int, list[Tensor]] = {}

    def predict(module: Any, batch: Any) -> Tensor:
        logits: Tensor = module(batch[0])
        seen.setdefault(module.current_epoch, []).append(logits.detach().sigmoid())
        return logits

    selection = BatchSelection(UBS(lambda1=0.3), warmup_epochs=1, refresh=EvaluationPass(4, predict))
    _, watch, _ = fit(selection, Dropping(), max_epochs=3)
    for epoch in (1, 2):
        parts = [torch.stack(seen[epoch][k : k + 4]) for k in range(0, len(seen[epoch]), 4)]
        samples = torch.cat(parts, 1).double()
        assert samples.shape == (4, N, Q)
        assert samples.std(0).min() > 0
        change = (samples[1:] - samples[:-1]).abs().mean(0).numpy()
        entropy = np.vectorize(reference.entropy)(samples.mean(0).numpy())
        got = watch.shown[epoch]["uncertainty"].numpy()
        np.testing.assert_allclose(got, 0.3 * change + 0.7 * entropy, atol=1e-5)


@pytest.mark.parametrize("mc_samples", [1, 3])
def test_a_resumed_run_is_the_uninterrupted_one(tmp_path: Path, mc_samples: int) -> None:
    """With several predictions up to the end of the epoch: what a model with dropout draws is in no checkpoint."""

    class Save(L.Callback):
        def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
            if trainer.current_epoch == 2 and trainer.fit_loop.epoch_loop.batch_idx == 2:
                trainer.save_checkpoint(tmp_path / "mid.ckpt")

        def on_train_epoch_end(self, trainer: L.Trainer, *_: Any) -> None:
            if trainer.current_epoch == 2:
                trainer.save_checkpoint(tmp_path / "end.ckpt")

    def run(ckpt: Path | None) -> tuple[dict[int, Any], Tensor]:
        selection = BatchSelection(UBS(), warmup_epochs=1, refresh=EvaluationPass(mc_samples))
        module = Dropping(p=0.0 if mc_samples == 1 else 0.3)
        torch.manual_seed(0)
        made = trainer(selection, Save() if ckpt is None else L.Callback(), max_epochs=5)
        made.fit(module, loader(), ckpt_path=ckpt)
        assert selection.probabilities is not None
        return module.ids(), selection.probabilities

    whole, probabilities = run(None)
    (mid, after_mid), (end, after_end) = (run(tmp_path / f"{name}.ckpt") for name in ("mid", "end"))
    assert mid[2] == whole[2][3:]
    assert end[3] == whole[3]
    if mc_samples == 1:
        assert mid == {2: whole[2][3:], 3: whole[3], 4: whole[4]}
        assert end == {3: whole[3], 4: whole[4]}
        assert torch.equal(after_mid, probabilities)
        assert torch.equal(after_end, probabilities)


def test_a_model_without_dropout_is_refused_before_it_trains() -> None:
    module = Tiny()
    with pytest.raises(SelectionError, match=r"mc_samples=2\) needs dropout.*use mc_samples=1"):
        fit(BatchSelection(refresh=EvaluationPass(mc_samples=2)), module)
    assert not module.seen


def test_a_batch_without_a_first_element_needs_a_function() -> None:
    class Mapped(Tiny):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return super().training_step((batch["x"], batch["y"]), batch_idx)

    items = [{"x": x, "y": y} for x, y in zip(*data().tensors, strict=True)]
    with pytest.raises(SelectionError, match=r"batch that is a dict; pass EvaluationPass\(predict="):
        fit(BatchSelection(refresh=EvaluationPass()), Mapped(), loader(items))
    predict = EvaluationPass(predict=lambda module, batch: module(batch["x"]))
    _, watch, _ = fit(BatchSelection(refresh=predict), Mapped(), loader(items), max_epochs=2)
    assert watch.shown[1]["uncertainty"].shape == (N, Q)


def test_predictions_of_another_shape_and_diverged_ones_are_refused() -> None:
    for predict, match in (
        (lambda module, batch: module(batch[0])[:-1], r"no floating-point \[8, labels\] predictions"),
        (lambda module, batch: module(batch[0]) * torch.nan, "not a probability for sample 0;"),
    ):
        with pytest.raises(SelectionError, match=match):
            fit(BatchSelection(refresh=EvaluationPass(predict=predict)))


@pytest.mark.parametrize("value", [0, -1, 2.5, float("nan")])
def test_an_impossible_number_of_predictions_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match=r"mc_samples=.*at least 1"):
        EvaluationPass(mc_samples=value)


def test_what_is_no_pass_and_a_pass_that_nobody_reads_are_refused() -> None:
    with pytest.raises(ValueError, match=r"refresh='yes'.*refresh=EvaluationPass\(\)"):
        BatchSelection(refresh="yes")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"no use to Random.*leave it out"):
        BatchSelection(Random(), refresh=EvaluationPass())
    with pytest.raises(ValueError, match="predict=3 is not a function"):
        EvaluationPass(predict=3)  # type: ignore[arg-type]


def test_the_seconds_of_the_pass_are_logged() -> None:
    def slow(module: Any, batch: Any) -> Tensor:
        time.sleep(0.02)
        logits: Tensor = module(batch[0])
        return logits

    logged = {}
    for name, refresh in (("without", None), ("with", EvaluationPass(predict=slow))):
        _, _, made = fit(BatchSelection(warmup_epochs=1, refresh=refresh), max_epochs=3)
        logged[name] = made.callback_metrics["selection/seconds"].item()
    assert logged["with"] > 0.02 * 6 > logged["without"]
