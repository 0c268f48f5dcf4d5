"""Whatever a Trainer is told to do, the samples of batch k are those of plan[k]."""

from __future__ import annotations

from typing import Any

import lightning as L
import pytest
import torch
from tiny_training import N, Q, Tiny, Watch, data, fit, loader, trainer

from lightning_ubs import (
    UBS,
    ActiveBias,
    Balance,
    BatchSelection,
    HardImbalance,
    InfoBatch,
    LossBias,
    Random,
    RecencyBias,
    SelectionSampler,
)

BATCHES = 6  # of 8 samples, the last of 2


def selection(**options: Any) -> BatchSelection:
    return BatchSelection(UBS(), **{"warmup_epochs": 2, "seed": 7} | options)


def assert_ids_are_planned(module: Tiny, watch: Watch, epochs: int = 4, batches: int = BATCHES) -> None:
    assert sorted(watch.plans) == list(range(epochs))
    for epoch, ids in module.ids().items():
        assert len(ids) == batches
        assert ids == watch.plans[epoch][:batches]


WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "accumulation": {"accumulate_grad_batches": 4},
    "gradient clipping": {"gradient_clip_val": 0.1},
    "validation in mid-epoch": {"val_check_interval": 2},
    "validation at a share": {"val_check_interval": 0.5},
    "validation across epochs": {"val_check_interval": 4, "check_val_every_n_epoch": None},
    "no sanity check": {"num_sanity_val_steps": 0},
    "16-mixed": {"precision": "16-mixed"},
    "bf16-mixed": {"precision": "bf16-mixed"},
    "bf16-true": {"precision": "bf16-true"},
    "64-true": {"precision": "64-true"},
    "loaders made anew": {"reload_dataloaders_every_n_epochs": 1},
}


@pytest.mark.filterwarnings("ignore:.*AMP with fp16 is not supported on CPU.*")
@pytest.mark.parametrize("way", WAYS)
def test_ids_are_those_of_the_plan(way: str) -> None:
    module, watch, _ = fit(selection(), val=loader(shuffle=False), **WAYS[way])
    assert_ids_are_planned(module, watch)


@pytest.mark.parametrize(
    "workers",
    [
        {"num_workers": 2},
        {"num_workers": 2, "persistent_workers": True},
        {"num_workers": 2, "persistent_workers": True, "prefetch_factor": 4},
    ],
    ids=["two", "persistent", "eager"],
)
@pytest.mark.parametrize("options", [{}, {"limit_train_batches": 4}], ids=["whole", "limited"])
def test_ids_are_those_of_the_plan_with_workers(workers: dict[str, Any], options: dict[str, Any]) -> None:
    module, watch, _ = fit(selection(), train=loader(**workers), **options)
    assert_ids_are_planned(module, watch, batches=options.get("limit_train_batches", BATCHES))


@pytest.mark.parametrize(("limit", "batches"), [(1, 1), (4, 4), (0.5, 3), (1.0, 6), (99, 6)])
def test_ids_are_those_of_the_plan_where_epochs_are_limited(limit: float, batches: int) -> None:
    module, watch, _ = fit(selection(), limit_train_batches=limit)
    assert_ids_are_planned(module, watch, batches=batches)


@pytest.mark.parametrize("workers", [0, 2])
def test_dropping_the_last_batch_leaves_whole_ones(workers: int) -> None:
    module, watch, _ = fit(selection(), train=loader(drop_last=True, num_workers=workers))
    assert_ids_are_planned(module, watch, batches=5)
    assert {len(ids) for epoch in module.ids().values() for ids in epoch} == {8}


@pytest.mark.parametrize("batch_size", [1, N, 2 * N])
def test_batches_of_one_and_batches_larger_than_the_set(batch_size: int) -> None:
    module, watch, _ = fit(selection(), train=loader(batch_size=batch_size), max_epochs=3)
    assert_ids_are_planned(module, watch, 3, -(-N // batch_size))


def test_ids_are_those_of_the_plan_with_manual_optimization() -> None:
    class Manual(Tiny):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False

        def training_step(self, batch: Any, batch_idx: int) -> None:
            loss = super().training_step(batch, batch_idx)
            optimizer = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()

    chosen = selection()
    module, watch, _ = fit(chosen, Manual())
    assert_ids_are_planned(module, watch)
    assert (chosen.strategy.memory.visits[:N] > 0).any()


def test_ids_are_those_of_the_plan_when_the_optimizer_asks_for_the_loss_again() -> None:
    class Repeated(Tiny):
        def configure_optimizers(self) -> Any:
            return torch.optim.LBFGS(self.parameters(), lr=0.01, max_iter=3)

        def record(self, x: torch.Tensor, logits: torch.Tensor) -> None:
            ids = [round(i) for i in x[:, 0].tolist()]
            if not (self.seen[self.current_epoch] and self.seen[self.current_epoch][-1][0] == ids):
                super().record(x, logits)

    chosen = selection()
    module, watch, _ = fit(chosen, Repeated(), max_epochs=3)
    assert_ids_are_planned(module, watch, 3)
    # A sample that comes twice in a batch is predicted once.
    visits = torch.bincount(
        torch.tensor([i for e in module.ids().values() for ids in e for i in set(ids)]), minlength=N
    )
    assert torch.equal(chosen.strategy.memory.visits[:N], visits)


def test_ids_are_those_of_the_plan_when_a_scheduler_asks_for_the_number_of_steps() -> None:
    class Scheduled(Tiny):
        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
            steps = int(self.trainer.estimated_stepping_batches)
            assert steps == 4 * BATCHES
            return [optimizer], [torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=steps)]

    for workers in (0, 2):
        module, watch, _ = fit(selection(), Scheduled(), train=loader(num_workers=workers))
        assert_ids_are_planned(module, watch)


def test_ids_are_those_of_the_plan_when_training_stops_within_an_epoch() -> None:
    module, watch, _ = fit(selection(end_epoch=10), max_epochs=-1, max_steps=BATCHES * 2 + 3)
    assert module.ids()[2] == watch.plans[2][:3]


@pytest.mark.parametrize("replacement", ["batch", "none", "full"])
def test_ids_are_those_of_the_plan_for_every_replacement(replacement: str) -> None:
    chosen = selection(replacement=replacement, warmup_epochs=1)
    module, watch, _ = fit(chosen, max_epochs=5)
    assert_ids_are_planned(module, watch, 5)
    for epoch in range(1, 5):
        batches = module.ids()[epoch]
        flat = [i for ids in batches for i in ids]
        if replacement == "batch":
            assert all(len(set(ids)) == len(ids) for ids in batches)
        if replacement == "none":
            assert sorted(flat) == list(range(N))
    if replacement == "full":
        repeated = [ids for batches in module.ids().values() for ids in batches if len(set(ids)) < len(ids)]
        assert repeated, "some batch holds a sample twice"
        visits = torch.zeros(N, dtype=torch.int64)
        for batches in module.ids().values():
            for ids in batches:
                visits[list(set(ids))] += 1
        assert torch.equal(chosen.strategy.memory.visits[:N], visits)


STRATEGIES = [UBS, ActiveBias, RecencyBias, HardImbalance, Balance, Random, LossBias, InfoBatch]


@pytest.mark.parametrize("kind", STRATEGIES, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("workers", [0, 2])
def test_every_strategy_trains_and_keeps_its_ids(kind: Any, workers: int) -> None:
    chosen = BatchSelection(kind(), warmup_epochs=2, seed=1, epoch_size=1)
    module, watch, _ = fit(chosen, train=loader(num_workers=workers))
    assert_ids_are_planned(module, watch)
    assert chosen.probabilities is not None
    assert chosen.probabilities.dtype == torch.float64
    assert chosen.probabilities.sum().item() == pytest.approx(1)


def test_warm_up_epochs_are_the_same_shuffled_passes_for_every_strategy() -> None:
    warm_ups = []
    for kind in STRATEGIES:
        module, _, _ = fit(BatchSelection(kind(), warmup_epochs=2, seed=11, epoch_size=1), max_epochs=3)
        orders = [[i for ids in module.ids()[epoch] for i in ids] for epoch in (0, 1)]
        assert all(sorted(order) == list(range(N)) != order for order in orders)
        assert orders[0] != orders[1]
        warm_ups.append(orders)
    assert all(orders == warm_ups[0] for orders in warm_ups[:4] + warm_ups[5:])


def test_another_seed_gives_another_order_and_the_same_one_the_same() -> None:
    first, again, other = (fit(selection(seed=seed), seeded_module()).module.ids() for seed in (1, 1, 2))
    assert first == again
    assert all(first[epoch] != other[epoch] for epoch in range(4))


def seeded_module() -> Tiny:
    L.seed_everything(0, verbose=False)
    return Tiny()


def test_selection_never_touches_the_global_generators() -> None:
    class Guarded(BatchSelection):
        checks = 0

        def guard(self, hook: Any, *arguments: Any) -> None:
            before = torch.get_rng_state()
            hook(*arguments)
            assert torch.equal(torch.get_rng_state(), before)
            type(self).checks += 1

        def on_train_start(self, *arguments: Any) -> None:
            self.guard(super().on_train_start, *arguments)

        def on_train_epoch_start(self, *arguments: Any) -> None:
            self.guard(super().on_train_epoch_start, *arguments)

    for kind in STRATEGIES:
        fit(Guarded(kind(), warmup_epochs=1), max_epochs=3)
    assert Guarded.checks == 4 * len(STRATEGIES)


def test_training_with_random_selection_leaves_the_model_random_numbers_as_they_were() -> None:
    """Two strategies differ in their ids alone: what the model draws at random is the same."""

    class Noisy(Tiny):
        def __init__(self) -> None:
            super().__init__()
            self.noise: list[float] = []

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.noise.append(torch.rand(()).item())
            return super().training_step(batch, batch_idx)

    drawn = []
    for kind in (Random, UBS):
        torch.manual_seed(0)
        drawn.append(fit(BatchSelection(kind(), warmup_epochs=1), Noisy()).module.noise)
    assert drawn[0] == drawn[1]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_sampler_that_the_user_built_is_found_and_followed(workers: int) -> None:
    dataset = data()
    train = loader(dataset, shuffle=False, sampler=SelectionSampler(dataset), num_workers=workers)
    module, watch, made = fit(selection(), train=train)
    assert_ids_are_planned(module, watch)
    assert made.train_dataloader is train
    assert not train.sampler.is_bound


def test_a_second_fit_begins_anew() -> None:
    chosen = selection()
    first, watch, _ = fit(chosen, seeded_module())
    second, again, _ = fit(chosen, seeded_module())
    assert first.ids() == second.ids()
    assert watch.plans == again.plans


def test_fitting_on_goes_on_with_what_was_learned() -> None:
    whole, _, _ = fit(selection(end_epoch=5), seeded_module(), max_epochs=6)
    chosen, module = selection(end_epoch=5), seeded_module()
    _, _, made = fit(chosen, module, max_epochs=3)
    made.fit_loop.max_epochs = 6
    made.fit(module, loader())
    assert module.ids() == whole.ids()


class DictBatches(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    def __init__(self) -> None:
        self.x, self.labels = data().tensors

    def __len__(self) -> int:
        return N

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        return {"x": self.x[i], "labels": self.labels[i]}


def test_batches_may_be_dicts() -> None:
    class FromDict(Tiny):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return super().training_step((batch["x"], batch["labels"]), batch_idx)

    for kind in (UBS, HardImbalance, Balance):
        module, watch, _ = fit(BatchSelection(kind(), warmup_epochs=2), FromDict(), train=loader(DictBatches()))
        assert_ids_are_planned(module, watch)


def test_a_subset_is_counted_by_its_own_positions() -> None:
    part = torch.utils.data.Subset(data(), list(range(1, N, 2)))
    for kind in (UBS, HardImbalance, Balance):
        module, watch, _ = fit(BatchSelection(kind(), warmup_epochs=1), train=loader(part))
        positions = {e: [[(i - 1) // 2 for i in ids] for ids in batches] for e, batches in module.ids().items()}
        assert positions == watch.plans


def test_a_data_module_works_as_well() -> None:
    class Module(L.LightningDataModule):
        def train_dataloader(self) -> Any:
            return loader()

        def val_dataloader(self) -> Any:
            return loader(shuffle=False)

    chosen, module = selection(), Tiny()
    watch = Watch(chosen)
    trainer(chosen, watch).fit(module, datamodule=Module())
    assert_ids_are_planned(module, watch)
    assert chosen.uncertainty is not None
    assert chosen.uncertainty.shape == (N, Q)
