"""How much of the package a training step and the start of an epoch pass through, once all is settled."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import lightning as L
import pytest
from reader import Data, Net
from tiny_training import trainer

import lightning_ubs
from lightning_ubs import UBS, BatchSelection

PACKAGE = str(Path(lightning_ubs.__file__).parent)
EPOCH, BATCH = 4, 1


class Walk:
    """The functions of the package that are called while it is watched."""

    def __init__(self) -> None:
        self.functions: set[tuple[str, str]] = set()

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PACKAGE):
            self.functions.add((code.co_filename, code.co_qualname))

    @property
    def files(self) -> set[str]:
        return {file for file, _ in self.functions}


class Before(L.Callback):
    """Stands before the selection: begins both walks, and ends that of a step where the next step begins."""

    def __init__(self, step: Walk, epoch: Walk) -> None:
        self.step, self.epoch = step, epoch

    def on_train_batch_start(self, trainer: L.Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if trainer.current_epoch == EPOCH and batch_idx in (BATCH, BATCH + 1):
            sys.setprofile(self.step if batch_idx == BATCH else None)

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.current_epoch == EPOCH:
            sys.setprofile(self.epoch)


class After(L.Callback):
    """Stands behind the selection, which has planned the epoch."""

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        sys.setprofile(None)


@pytest.fixture(scope="module")
def walks() -> tuple[Walk, Walk]:
    step, epoch = Walk(), Walk()
    selection = BatchSelection(UBS(), warmup_epochs=2, seed=0)
    trainer(Before(step, epoch), selection, After(), max_epochs=EPOCH + 1).fit(Net(), Data().train_dataloader())
    return step, epoch


def test_a_step_in_steady_state_passes_few_functions_in_few_files(walks: tuple[Walk, Walk]) -> None:
    step, _ = walks
    assert len(step.functions) <= 47, sorted(step.functions)
    assert len(step.files) <= 16, sorted(step.files)
    assert any(name == "StepReader.read" for _, name in step.functions), "it was traced"


def test_the_start_of_an_epoch_passes_few_functions_in_few_files(walks: tuple[Walk, Walk]) -> None:
    _, epoch = walks
    assert len(epoch.functions) <= 95, sorted(epoch.functions)
    assert len(epoch.files) <= 18, sorted(epoch.files)
    assert any(name == "draw_epoch" for _, name in epoch.functions), "it was traced"
