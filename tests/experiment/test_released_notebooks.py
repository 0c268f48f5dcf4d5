"""The released notebooks' selection, as far as it can be told from what they hold."""

from __future__ import annotations

import lightning as L
import pytest
import torch
from tiny_training import trainer as quiet_trainer
from torch.utils.data import DataLoader, TensorDataset

from lightning_ubs import BatchSelection
from lightning_ubs.experiment.build import build_selection
from lightning_ubs.experiment.config import compose_train
from lightning_ubs.experiment.notebooks import NotebookRandom, NotebookUBS
from lightning_ubs.models import build_model
from lightning_ubs.selection.plan import EpochPlan


class Plans(L.Callback):
    def __init__(self, selection: BatchSelection) -> None:
        self.selection = selection
        self.found: list[EpochPlan] = []
        self.pressures: list[float] = []

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        assert self.selection.plan is not None
        self.found.append(self.selection.plan)
        self.pressures.append(self.selection.pressure)


def trained(selection: BatchSelection, epochs: int) -> Plans:
    generator = torch.Generator().manual_seed(0)
    data = TensorDataset(torch.rand(20, 4, generator=generator), torch.rand(20, 3, generator=generator).round())
    plans = Plans(selection)
    quiet_trainer(selection, plans, max_epochs=epochs).fit(build_model("mlp", 4, 3), DataLoader(data, 8, shuffle=True))
    return plans


def test_the_baseline_reads_every_epoch_in_the_order_of_the_file() -> None:
    plans = trained(BatchSelection(NotebookRandom()), 2)
    assert all(torch.equal(plan.ids, torch.arange(20)) for plan in plans.found)


def test_the_pressure_rises_and_only_selected_epochs_leave_the_order_of_the_file() -> None:
    selection = build_selection(compose_train(["selection=notebook_ubs", "selection.warmup_epochs=2"])["selection"], 0)
    plans = trained(selection, 5)
    assert plans.pressures == pytest.approx([1, 1, 1, 8**0.5, 8])
    assert [torch.equal(plan.ids[:20], torch.arange(20)) for plan in plans.found] == [True, True, False, False, False]
    assert len(plans.found[-1].ids) == 24, "full batches"
    strategy = selection.strategy
    assert isinstance(strategy, NotebookUBS)
    assert strategy.measured.correlation is None
    assert selection.uncertainty is not None
    assert set((selection.uncertainty * 10).round().int().unique().tolist()) <= {1, 3, 5, 7, 9}, "centers of five bins"


def test_the_configured_baseline_is_the_notebooks() -> None:
    found = build_selection(compose_train(["selection=notebook_random"])["selection"], 0)
    assert isinstance(found.strategy, NotebookRandom)
