"""``InfoBatch(original=True)`` against the authors' rule, on losses recorded in a training."""

from __future__ import annotations

from typing import Any

import lightning as L
import pytest
import reference
import torch
from lightning.pytorch.callbacks import ModelCheckpoint, TQDMProgressBar
from tiny_training import N, Tiny, fit, loader, trainer
from torch import Tensor, nn

from lightning_ubs import BatchSelection, InfoBatch


class Noted(Tiny):
    """Keeps ids and losses of every step, what each sample counts, and validates."""

    def __init__(self) -> None:
        super().__init__(lr=1.0)
        self.steps: list[tuple[int, list[int], list[float], list[float]]] = []
        self.validated: list[int] = []
        self.selection: BatchSelection | None = None

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        logits = self(x)
        self.record(x, logits)
        rows = nn.functional.binary_cross_entropy_with_logits(logits, y, reduction="none").mean(1)
        counts = [1.0] * len(x) if self.selection is None else self.selection.importance_weights.tolist()
        self.steps.append((self.current_epoch, x[:, 0].int().tolist(), rows.tolist(), counts))
        return self.loss(logits, y)

    def on_validation_epoch_end(self) -> None:
        if not self.trainer.sanity_checking:
            self.validated.append(self.current_epoch)


def train(epochs: int = 8, prune: float = 0.5, **options: Any) -> tuple[Noted, BatchSelection, L.Trainer]:
    torch.manual_seed(0)
    module = Noted()
    selection = module.selection = BatchSelection(InfoBatch(prune=prune, original=True), warmup_epochs=0, seed=1)
    _, _, made = fit(selection, module, val=loader(shuffle=False), max_epochs=epochs, **options)
    return module, selection, made


@pytest.mark.parametrize("prune", [0.3, 0.5])
@pytest.mark.parametrize("epochs", [8, 13])
def test_samples_lengths_and_weights_follow_the_authors_rule(epochs: int, prune: float) -> None:
    module, _, made = train(epochs, prune)
    authors = reference.AuthorsInfoBatch(N, prune, epochs)
    lengths = []
    for epoch in range(epochs):
        steps = [(ids, losses, counts) for of, ids, losses, counts in module.steps if of == epoch]
        seen = [i for ids, *_ in steps for i in ids]
        hard, easy, kept, weight = authors.epoch(epoch)
        assert len(set(seen)) == len(seen) == len(hard) + kept
        assert hard <= set(seen)
        assert set(seen) <= hard | easy
        for ids, losses, counts in steps:
            assert counts == pytest.approx([weight if i in easy else 1.0 for i in ids])
            authors.scores[ids] = losses
        lengths.append(len(steps))
        assert len(steps) == -(-len(seen) // 8)
    assert min(lengths) < max(lengths) == lengths[-1] == 6
    assert made.global_step == sum(lengths)


@pytest.mark.parametrize("options", [{}, {"limit_train_batches": 0.5}, {"accumulate_grad_batches": 3}])
def test_every_epoch_is_validated_and_the_progress_bar_knows_its_length(options: dict[str, Any]) -> None:
    totals: list[tuple[int, int]] = []

    class Bar(TQDMProgressBar):
        def on_train_epoch_end(self, trainer: L.Trainer, *arguments: Any) -> None:
            totals.append((self.train_progress_bar.total, self.train_progress_bar.n))
            super().on_train_epoch_end(trainer, *arguments)

    module, selection = Noted(), BatchSelection(InfoBatch(original=True), warmup_epochs=0)
    made = trainer(selection, Bar(), max_epochs=8, **options | {"enable_progress_bar": True})
    made.fit(module, loader(), loader(shuffle=False))
    assert module.validated == list(range(8))
    trained = [sum(of == epoch for of, *_ in module.steps) for epoch in range(8)]
    assert totals == [(count, count) for count in trained]
    assert len(set(trained)) > 1


@pytest.mark.parametrize(("every", "workers"), [(1, 0), (4, 0), (5, 2)])
def test_a_resume_continues_with_the_same_samples(tmp_path: Any, every: int, workers: int) -> None:
    def run(*callbacks: Any, ckpt: Any = None) -> Noted:
        torch.manual_seed(0)
        module, selection = Noted(), BatchSelection(InfoBatch(original=True), warmup_epochs=0, seed=1)
        made = trainer(selection, *callbacks, max_epochs=6, enable_checkpointing=bool(callbacks))
        made.fit(module, loader(num_workers=workers), loader(shuffle=False), ckpt_path=ckpt)
        return module

    whole = run(ModelCheckpoint(tmp_path, "{step}", save_top_k=-1, every_n_train_steps=every))
    starts = sorted(tmp_path.glob("*.ckpt"), key=lambda path: int(path.stem.split("=")[1]))
    lengths = {epoch: len(batches) for epoch, batches in whole.ids().items()}
    assert min(lengths.values()) < 6
    for path in starts[:: 4 if workers else 1]:
        done = int(path.stem.split("=")[1])
        resumed = run(ckpt=path)
        assert [ids for _, ids, *_ in resumed.steps] == [ids for _, ids, *_ in whole.steps[done:]], path.name


def test_a_size_of_ones_own_is_refused() -> None:
    with pytest.raises(ValueError, match="decides in each epoch how many samples are left; leave it out"):
        BatchSelection(InfoBatch(original=True), epoch_size=0.5)


def test_a_share_that_the_authors_package_does_not_leave_out_is_refused() -> None:
    with pytest.raises(ValueError, match=r"leaves out at most 0\.9; use less, or original=False"):
        InfoBatch(prune=0.95, original=True)
    InfoBatch(prune=0.95)
