"""Modules as people write them, trained unchanged: what is read is what the true head predicted, in every batch."""

from __future__ import annotations

import copy
import io
import os
from dataclasses import dataclass
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import DDPStrategy
from observe_tools import Keeping, Layout, assert_true_head, train
from tiny_training import D, N, Q, data, loader, trainer
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits as bce
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset, TensorDataset

from lightning_ubs import BatchSelection, SelectionError

X, Y = data().tensors

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*is an instance of `nn.Module` and is already saved.*"),
    pytest.mark.filterwarnings("ignore:.*exists and is not empty.*"),
]


class Embedding(Layout):
    """Forward gives a 16-wide embedding; the head is called in training_step."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(D - 1, 16)
        self.net = nn.Linear(16, Q)

    def forward(self, x: Tensor) -> Tensor:
        embedding: Tensor = self.encoder(x[:, 1:]).relu()
        return embedding

    def unpack(self, batch: Any) -> tuple[Tensor, Tensor]:
        return batch[0], batch[1]

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = self.unpack(batch)
        return bce(self.shown(x, self.net(self(x))), y)


def test_forward_gives_an_embedding_and_the_head_is_called_in_training_step() -> None:
    module = Embedding()
    assert_true_head(module, train(module))


class Rows(Dataset[Any]):
    """A dataset that shows nothing of what it holds."""

    def __init__(self, make: Any) -> None:
        self.__dict__["make"] = make

    def __len__(self) -> int:
        return N

    def __getitem__(self, i: int) -> Any:
        return self.make(i)


@pytest.mark.parametrize("key", ["label", "lab", "multi_hot", "y", "labels"])
@pytest.mark.parametrize("targets", [False, True], ids=["predictions", "and targets"])
def test_batches_are_dicts_with_any_key(key: str, targets: bool) -> None:
    class FromDict(Embedding):
        def unpack(self, batch: Any) -> tuple[Tensor, Tensor]:
            return batch["image"], batch[key]

    module = FromDict()
    strategy = train(module, loader(Rows(lambda i: {"image": X[i], key: Y[i]})), targets)
    assert_true_head(module, strategy)
    if targets:
        assert all(torch.equal(told, Y[ids]) for ids, _, told in strategy.told if told is not None)
        assert strategy.told[0][2] is not None


MASK = torch.ones(N, D, dtype=torch.int64)


@pytest.mark.parametrize(
    ("tensors", "places"),
    [
        ((X, MASK, Y), (0, 2)),
        ((torch.arange(N), X, Y), (1, 2)),
        ((torch.arange(N), X, Y, torch.rand(N)), (1, 2)),
        ((MASK, torch.arange(N), Y, X), (3, 2)),
    ],
    ids=["ids mask labels", "index x y", "index x y weight", "mask index y x"],
)
def test_batches_are_tuples_of_three_or_four(tensors: Any, places: tuple[int, int]) -> None:
    class FromTuple(Embedding):
        def unpack(self, batch: Any) -> tuple[Tensor, Tensor]:
            return batch[places[0]], batch[places[1]]

    module = FromTuple()
    strategy = train(module, loader(TensorDataset(*tensors)), targets=True)
    assert_true_head(module, strategy)
    assert all(torch.equal(told, Y[ids]) for ids, _, told in strategy.told if told is not None)


class Pair(NamedTuple):
    weight: Tensor
    inputs: Tensor
    truth: Tensor


@dataclass
class Bundle:
    inputs: Tensor
    truth: Tensor


def as_named_tuple(samples: list[Any]) -> Pair:
    x, y = (torch.stack(part) for part in zip(*samples, strict=True))
    return Pair(torch.ones(len(x), Q), x, y)


def as_dataclass(samples: list[Any]) -> Bundle:
    return Bundle(*(torch.stack(part) for part in zip(*samples, strict=True)))


def as_batch_encoding(samples: list[Any]) -> Any:
    transformers = pytest.importorskip("transformers")
    x, y = (torch.stack(part) for part in zip(*samples, strict=True))
    return transformers.BatchEncoding({"inputs": x, "truth": y})


@pytest.mark.parametrize("collate", [as_named_tuple, as_dataclass, as_batch_encoding])
def test_batches_are_objects(collate: Any) -> None:
    class FromObject(Embedding):
        def unpack(self, batch: Any) -> tuple[Tensor, Tensor]:
            return batch.inputs, batch.truth

    module = FromObject()
    assert_true_head(module, train(module, loader(collate_fn=collate), targets=True))


class Heads(Layout):
    def __init__(self, named: bool) -> None:
        super().__init__()
        parts = [nn.Linear(D - 1, 1) for _ in range(Q)]
        self.heads = (
            nn.ModuleDict({f"label {i}": part for i, part in enumerate(parts)}) if named else nn.ModuleList(parts)
        )

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        heads = self.heads.values() if isinstance(self.heads, nn.ModuleDict) else self.heads
        return bce(self.shown(x, torch.cat([head(x[:, 1:]) for head in heads], 1)), y)


@pytest.mark.parametrize("named", [False, True], ids=["ModuleList", "ModuleDict"])
def test_one_head_per_label_joined(named: bool) -> None:
    module = Heads(named)
    assert_true_head(module, train(module))


def test_forward_gives_logits_and_features() -> None:
    class Two(Layout):
        def forward(self, x: Tensor) -> Any:
            return self.net(x[:, 1:]), x[:, :Q]

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            logits, _ = self(batch[0])
            return bce(self.shown(batch[0], logits), batch[1])

    module = Two()
    assert_true_head(module, train(module))


def test_the_model_is_called_by_its_forward() -> None:
    class ByForward(Layout):
        def __init__(self) -> None:
            super().__init__()
            self.model = nn.Sequential(nn.Linear(D - 1, Q), nn.ReLU(), nn.Linear(Q, Q))

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return bce(self.shown(batch[0], self.model.forward(batch[0][:, 1:])), batch[1])

    module = ByForward()
    assert_true_head(module, train(module))


@pytest.mark.parametrize("hook", ["setup", "configure_model"])
@pytest.mark.parametrize("loss", ["bce", "by hand"])
def test_the_network_is_made_when_training_begins(hook: str, loss: str) -> None:
    class Late(Layout):
        def build(self, stage: str | None = None) -> None:
            self.model = nn.Linear(D - 1, Q)

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            logits = self.shown(batch[0], self.model(batch[0][:, 1:]))
            return bce(logits, batch[1]) if loss == "bce" else by_hand(logits, batch[1])

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.model.parameters(), lr=0.3)

    setattr(Late, hook, Late.build)
    module = Late()
    assert_true_head(module, train(module))


def by_hand(logits: Tensor, y: Tensor) -> Tensor:
    """A binary cross-entropy that leaves no such node in the graph."""
    p = logits.sigmoid().clamp(1e-6, 1 - 1e-6)
    return -(y * p.log() + (1 - y) * (1 - p).log()).mean()


class HoldsItsNetwork(Layout):
    """As in templates that are configured by Hydra: the network is a hyper-parameter."""

    def __init__(self, network: nn.Module, by_hand: bool = False) -> None:
        super().__init__()
        self.save_hyperparameters(logger=False)
        self.network = network
        self.by_hand = by_hand

    def forward(self, x: Tensor) -> Any:
        return self.network(x[:, 1:])

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        logits = self.shown(batch[0], self(batch[0]))
        return by_hand(logits, batch[1]) if self.by_hand else bce(logits, batch[1])


@pytest.mark.parametrize("custom", [False, True], ids=["bce", "by hand"])
def test_hyper_parameters_that_hold_the_network_are_saved_and_resumed(custom: bool, tmp_path: Any) -> None:
    def run(epochs: int, **options: Any) -> Any:
        torch.manual_seed(0)
        module = HoldsItsNetwork(nn.Linear(D - 1, Q), custom)
        save = ModelCheckpoint(tmp_path, filename=f"{epochs}")
        made = trainer(BatchSelection(warmup_epochs=1, end_epoch=3), save, enable_checkpointing=True, max_epochs=epochs)
        made.fit(module, loader(), **options)
        return module

    whole, _ = run(4), run(2)
    resumed = run(4, ckpt_path=tmp_path / "2.ckpt", weights_only=False)
    assert resumed.ids() == {epoch: ids for epoch, ids in whole.ids().items() if epoch >= 2}


@pytest.mark.parametrize("custom", [False, True], ids=["bce", "by hand"])
def test_copies_pickles_and_exports_during_training_work_and_carry_nothing_of_ours(custom: bool) -> None:
    class Copying(HoldsItsNetwork):
        copies = 0

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            for copied in (copy.deepcopy(self.network), self.saved()):
                assert torch.equal(copied(batch[0][:, 1:]), self.network.forward(batch[0][:, 1:]))
                self.copies += 1
            loss = super().training_step(batch, batch_idx)
            if batch_idx == 1:
                torch.export.export(self.network, (batch[0][:, 1:],))
            return loss

        def saved(self) -> nn.Module:
            file = io.BytesIO()
            torch.save(self.network, file)
            file.seek(0)
            network: nn.Module = torch.load(file, weights_only=False)
            return network

        def on_train_batch_end(self, *args: Any) -> None:
            assert not any(part._forward_hooks for part in self.modules())
            assert not any(part._forward_hooks for part in copy.deepcopy(self).modules())
            assert not torch.nn.modules.module._global_forward_hooks

    module = Copying(nn.Linear(D - 1, Q), custom)
    assert_true_head(module, train(module))
    assert module.copies == 24


@pytest.mark.parametrize("whole", [False, True], ids=["network", "module"])
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_networks_and_modules(whole: bool, backend: str) -> None:
    class Plain(Layout):
        def __init__(self) -> None:
            super().__init__()
            self.steps: list[Tensor] = []

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            logits = self.net(batch[0][:, 1:])
            return {"loss": bce(logits, batch[1]), "logits": logits} if whole else bce(logits, batch[1])

        def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
            with torch.no_grad():
                self.record(batch[0], self.head(batch[0]))

        def head(self, x: Tensor) -> Tensor:
            inner = getattr(self.net, "_orig_mod", self.net)
            logits: Tensor = nn.functional.linear(x[:, 1:], inner.weight, inner.bias)
            return logits

    module: Any = Plain()
    if not whole:
        module.net = torch.compile(module.net, backend=backend)
    made = torch.compile(module, backend=backend) if whole else module
    assert_true_head(module, train(made))


def focal(logits: Tensor, y: Tensor) -> Tensor:
    p = logits.sigmoid()
    right = torch.where(y > 0, p, 1 - p)
    return -((1 - right) ** 2 * right.clamp(min=1e-8).log()).mean()


def asymmetric(logits: Tensor, y: Tensor) -> Tensor:
    p = logits.sigmoid()
    negative = (1 - p + 0.05).clamp(max=1)
    loss = y * p.clamp(min=1e-8).log() + (1 - y) * negative.clamp(min=1e-8).log()
    with torch.no_grad():
        weight = (1 - p * y - negative * (1 - y)).pow(y + 4 * (1 - y))
    return -(loss * weight).sum() / len(y)


def focal_on_bce(logits: Tensor, y: Tensor) -> Tensor:
    loss = bce(logits, y, reduction="none")
    return (loss * (1 - (-loss).exp()) ** 2).mean()


@pytest.mark.parametrize("loss", [focal, asymmetric, focal_on_bce])
@pytest.mark.parametrize(
    "make", [Embedding, lambda: HoldsItsNetwork(nn.Sequential(nn.Linear(D - 1, Q), nn.Identity()))]
)
def test_focal_and_asymmetric_losses(loss: Any, make: Any) -> None:
    class Custom(type(make())):  # type: ignore[misc]
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            x, y = batch
            return loss(self.shown(x, self.net(self(x)) if isinstance(self, Embedding) else self(x)), y)

    module = Custom() if make is Embedding else Custom(nn.Sequential(nn.Linear(D - 1, Q), nn.Identity()))
    assert_true_head(module, train(module, targets=True))


def test_three_forward_passes_of_which_two_serve_consistency() -> None:
    class Consistent(Layout):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            x, y = batch
            first, second = (self(x + 0.1 * torch.randn_like(x)) for _ in range(2))
            logits = self.shown(x, self(x))
            target = logits.sigmoid().detach()
            return 0.5 * bce(first, target) + (second.sigmoid() - target).square().mean() + bce(logits, y)

    module = Consistent()
    assert_true_head(module, train(module))


@pytest.mark.parametrize("loss", [bce, by_hand])
@pytest.mark.parametrize("returns", [None, "logits", "scores"])
def test_training_step_that_is_called_through_forward(loss: Any, returns: str | None) -> None:
    """As the strategy for several processes does, here with one."""

    class Forward(Layout):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            logits = self.shown(batch[0], self(batch[0]))
            value = loss(logits, batch[1])
            return value if returns is None else {"loss": value, returns: logits}

    module = Forward()
    try:
        with patch.dict(os.environ):
            assert_true_head(module, train(module, strategy=DDPStrategy(process_group_backend="gloo")))
    finally:
        torch.distributed.destroy_process_group()


class Adversarial(Layout):
    """A discriminator is trained first in each step, then the classifier; both by binary cross-entropy."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.discriminator = nn.Linear(D - 1, 1)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        critic, main = self.optimizers()
        verdict = self.discriminator(x[:, 1:])
        critic.zero_grad()
        self.manual_backward(bce(verdict, torch.ones_like(verdict)))
        critic.step()
        logits = self.shown(x, self(x))
        main.zero_grad()
        self.manual_backward(bce(logits, y) + 0.1 * bce(self.discriminator(x[:, 1:]), torch.zeros_like(verdict)))
        main.step()

    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(part.parameters(), lr=0.1) for part in (self.discriminator, self.net)]


def test_a_module_with_a_discriminator() -> None:
    module = Adversarial()
    assert_true_head(module, train(module))


def test_the_second_pass_of_a_closure_does_not_count() -> None:
    class SharpnessAware(Layout):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            x, y = batch
            optimizer = self.optimizers()
            self.manual_backward(bce(self.shown(x, self(x)), y))
            with torch.no_grad():
                climbed = [0.1 * p.grad for p in self.parameters()]
                for p, step in zip(self.parameters(), climbed, strict=True):
                    p.add_(step)
            optimizer.zero_grad()
            self.manual_backward(bce(self(x), y))
            with torch.no_grad():
                for p, step in zip(self.parameters(), climbed, strict=True):
                    p.sub_(step)
            optimizer.step()

    module = SharpnessAware()
    assert_true_head(module, train(module))


WAYS: dict[str, dict[str, Any]] = {
    "accumulation": {"accumulate_grad_batches": 4},
    "bf16": {"precision": "bf16-mixed"},
    "clipping": {"gradient_clip_val": 0.1},
    "double": {"precision": "64-true"},
}


@pytest.mark.parametrize("way", WAYS)
def test_ways_to_train(way: str) -> None:
    module = Embedding()
    assert_true_head(module, train(module, **WAYS[way]))


@pytest.mark.filterwarnings("ignore:.*AMP with fp16 is not supported on CPU.*")
def test_a_scaled_loss() -> None:
    class Scaled(Embedding):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return super().training_step(batch, batch_idx) * torch.tensor(4.0)

    module = Scaled()
    assert_true_head(module, train(module, precision="16-mixed"))


@pytest.mark.parametrize(
    ("inside", "reentrant"),
    [(False, False), (False, True), (True, False)],
    ids=["network", "reentrant", "with the loss"],
)
def test_activation_checkpointing(inside: bool, reentrant: bool) -> None:
    class Recomputed(Layout):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            x, y = batch
            self.shown(x, self.head(x))
            inputs = x[:, 1:].requires_grad_()
            if inside:
                return checkpoint(lambda part: bce(self.net(part), y), inputs, use_reentrant=False)
            return bce(checkpoint(self.net, inputs, use_reentrant=reentrant), y)

    module = Recomputed()
    assert_true_head(module, train(module))


class Classes(Layout):
    """One of three exclusive classes."""

    def loss_of(self, logits: Tensor, y: Tensor) -> Any:
        return nn.functional.cross_entropy(logits, y)

    def record(self, x: Tensor, logits: Tensor) -> None:
        self.seen[self.current_epoch].append(([round(i) for i in x[:, 0].tolist()], logits.detach().softmax(1)))

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.loss_of(self.shown(batch[0], self.net(batch[0][:, 1:])), batch[1])


CLASSES = Y.argmax(1)
MULTI_CLASS: dict[str, Any] = {
    "cross-entropy": lambda z, y: nn.functional.cross_entropy(z, y),
    "smoothed": lambda z, y: nn.functional.cross_entropy(z, y, label_smoothing=0.1),
    "nll": lambda z, y: nn.functional.nll_loss(z.log_softmax(1), y),
    "probabilities": lambda z, y: nn.functional.cross_entropy(z, nn.functional.one_hot(y, Q).float()),
    "returned": lambda z, y: {"loss": nn.functional.cross_entropy(z, y), "logits": z},
}


@pytest.mark.parametrize("loss", MULTI_CLASS)
def test_multi_class_models(loss: str) -> None:
    class Module(Classes):
        def loss_of(self, logits: Tensor, y: Tensor) -> Any:
            return MULTI_CLASS[loss](logits, y)

    module = Module()
    strategy = train(module, loader(TensorDataset(X, CLASSES)), targets=True)
    assert_true_head(module, strategy)
    one_hot = nn.functional.one_hot(CLASSES, Q).float()
    assert all(torch.equal(told, one_hot[ids]) for ids, _, told in strategy.told if told is not None)


@pytest.mark.parametrize("shape", [(-1,), (-1, 1)], ids=["[b]", "[b, 1]"])
def test_a_single_logit_is_one_label(shape: tuple[int, ...]) -> None:
    class Single(Layout):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            x, y = batch
            logits = self.shown(x, self.net(x[:, 1:]))
            return bce(logits.reshape(shape), y.reshape(shape))

    module = Single(q=1)
    assert_true_head(module, train(module, loader(TensorDataset(X, Y[:, 0])), targets=True))


@pytest.mark.parametrize(
    "reshaped", [lambda t: t.unsqueeze(2), lambda t: t.flatten(), lambda t: t.unsqueeze(1)], ids=["bq1", "flat", "b1q"]
)
@pytest.mark.parametrize("batch_size", [8, 1])
def test_shapes_that_hold_a_row_per_sample_all_the_same(reshaped: Any, batch_size: int) -> None:
    class Reshaped(Layout):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            x, y = batch
            return bce(reshaped(self.shown(x, self.net(x[:, 1:]))), reshaped(y))

    module = Reshaped()
    assert_true_head(module, train(module, loader(batch_size=batch_size), targets=True))


def one_sided(logits: Tensor, y: Tensor) -> Tensor:
    """Asymmetric, with positives that count in full and a focus that gradients do not pass."""
    p = logits.sigmoid()
    negative = (1 - p + 0.05).clamp(max=1)
    loss = y * p.clamp(min=1e-8).log() + (1 - y) * negative.clamp(min=1e-8).log()
    with torch.no_grad():
        weight = (1 - p * y - negative * (1 - y)).pow(4 * (1 - y))
    return -(loss * weight).mean()


@pytest.mark.filterwarnings("error:in .* batches of this epoch:UserWarning")
def test_factors_that_look_like_labels_are_not_taken_for_the_targets() -> None:
    class OneSided(Layout):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return one_sided(self.shown(batch[0], self.net(batch[0][:, 1:])), batch[1])

    module = OneSided()
    assert_true_head(module, train(module, loader(batch_size=14)))


FORMS: dict[str, Any] = {
    "cross-entropy": bce,
    "squares": lambda z, y: nn.functional.mse_loss(z.sigmoid(), y),
    "asymmetric": asymmetric,
}


@pytest.mark.parametrize(("first", "second"), [(a, b) for a in FORMS for b in FORMS if a != b])
@pytest.mark.parametrize("by_epoch", [False, True], ids=["by step", "by epoch"])
def test_a_loss_that_shows_probabilities_in_one_step_and_logits_in_another_is_followed(
    first: str, second: str, by_epoch: bool
) -> None:
    class Alternating(Layout):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            x, y = batch
            turn = self.current_epoch if by_epoch else batch_idx
            return FORMS[second if turn % 2 else first](self.shown(x, self.net(x[:, 1:])), y)

    module = Alternating()
    assert_true_head(module, train(module, targets=True))


def test_another_head_in_steps_with_another_form_of_the_loss_is_not_taken_for_the_first() -> None:
    class TwoHeads(Layout):
        def __init__(self) -> None:
            super().__init__()
            self.other = nn.Linear(D - 1, Q)

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            x, y = batch
            logits = self.shown(x, self.net(x[:, 1:]))
            loss = FORMS["squares"](self.other(x[:, 1:]), y) if batch_idx % 2 else bce(logits, y)
            return {"loss": loss, "probs": logits.sigmoid()} if self.returns else loss

    module: Any = TwoHeads()
    module.returns = False
    with pytest.raises(SelectionError, match=r"was not found in this step's loss.*return"):
        train(module)
    module = TwoHeads()
    module.returns = True
    assert_true_head(module, train(module))


@pytest.mark.parametrize("form", ["cross-entropy", "squares"])
def test_a_head_that_is_trained_on_the_labels_in_an_earlier_backward_pass_is_ambiguous(form: str) -> None:
    class Probed(Layout):
        def __init__(self, returns: bool) -> None:
            super().__init__()
            self.automatic_optimization, self.returns = False, returns
            self.probe = nn.Linear(D - 1, Q)

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            x, y = batch
            optimizer: Any = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(FORMS[form](self.probe(x[:, 1:]), y))
            logits = self.shown(x, self.net(x[:, 1:]))
            self.manual_backward(bce(logits, y))
            optimizer.step()
            return {"probs": logits.sigmoid()} if self.returns else None

    with pytest.raises(SelectionError, match=r"which of them are the main ones is ambiguous; return"):
        train(Probed(returns=False))
    module = Probed(returns=True)
    assert_true_head(module, train(module))


def test_what_is_returned_as_probs_is_believed_to_be_probabilities_whatever_made_them() -> None:
    class OfPairs(Layout):
        """Marginals of a field over all sets of labels: a product, as logits are."""

        def __init__(self) -> None:
            super().__init__()
            self.pairs = nn.Parameter(0.3 * torch.randn(Q, Q))
            sets = [[(number >> label) & 1 for label in range(Q)] for number in range(2**Q)]
            self.register_buffer("sets", torch.tensor(sets, dtype=torch.float32))

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            x, y = batch
            logits = self.net(x[:, 1:])
            scores = logits @ self.sets.T + ((self.sets @ self.pairs) * self.sets).sum(1)
            own = (logits * y).sum(1) + ((y @ self.pairs) * y).sum(1)
            logs = scores.log_softmax(1)
            probs = logs.exp() @ self.sets
            self.record(x, probs.detach().logit())
            return {"loss": (scores.logsumexp(1) - own).mean(), "probs": probs}

    module = OfPairs()
    assert_true_head(module, train(module), tolerance=1e-5)


VARIANTS: dict[str, Any] = {
    "weight": lambda z, y: bce(z, y, weight=torch.rand(Q)),
    "pos_weight": lambda z, y: bce(z, y, pos_weight=torch.rand(Q)),
    "sum": lambda z, y: bce(z, y, reduction="sum") / len(z),
    "none": lambda z, y: (bce(z, y, reduction="none") * torch.rand(len(z), 1)).sum(1).mean(),
    "probabilities": lambda z, y: nn.functional.binary_cross_entropy(z.sigmoid().clamp(1e-7, 1 - 1e-7), y),
    "soft margin": lambda z, y: nn.functional.multilabel_soft_margin_loss(z, y),
    "smoothed": lambda z, y: bce(z, y * 0.9 + 0.05),
    "two losses of one head": lambda z, y: bce(z, y) + nn.functional.binary_cross_entropy(z.sigmoid(), y),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_variants_of_the_loss(variant: str) -> None:
    class Variant(Layout):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            x, y = batch
            return VARIANTS[variant](self.shown(x, self.net(x[:, 1:])), y)

    module = Variant()
    assert_true_head(module, train(module, targets=True))


class Auxiliary(Layout):
    """Two heads that the loss pulls to the same labels."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.other, self.way = nn.Linear(D - 1, Q), way

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        logits = self.shown(x, self.net(x[:, 1:]))
        main, other = bce(logits, y), 0.4 * bce(self.other(x[:, 1:]), y)
        loss = other + main if self.way == "other first" else main + other
        return {"loss": loss, "logits": logits} if self.way == "returned" else loss


@pytest.mark.parametrize("way", ["main first", "other first"])
def test_of_two_heads_for_the_same_labels_none_is_taken_for_the_main_one(way: str) -> None:
    with pytest.raises(SelectionError, match=r"several predictions .*which of them are the main ones is ambiguous"):
        train(Auxiliary(way))


def test_of_two_heads_for_the_same_labels_the_returned_one_is_read() -> None:
    module = Auxiliary("returned")
    assert_true_head(module, train(module))


def test_a_pytorch_lightning_module() -> None:
    pl = pytest.importorskip("pytorch_lightning")
    if tuple(map(int, pl.__version__.split(".")[:2])) < (2, 6):
        pytest.skip("pytorch_lightning before 2.6 refuses every callback of the lightning package")

    class Old(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.lr, self.seen = nn.Linear(D - 1, Q), 0.3, Layout().seen

        training_step, forward = Layout.training_step, Layout.forward
        record, loss, configure_optimizers = Layout.record, Layout.loss, Layout.configure_optimizers

    module = Old()
    strategy = Keeping()
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    made = pl.Trainer(accelerator="cpu", max_epochs=2, callbacks=[BatchSelection(strategy, warmup_epochs=1)], **quiet)
    made.fit(module, loader())
    assert_true_head(module, strategy)


def test_a_hugging_face_classifier_over_a_hugging_face_dataset() -> None:
    transformers = pytest.importorskip("transformers")
    datasets = pytest.importorskip("datasets")
    config = transformers.BertConfig(
        vocab_size=N + 2,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        num_labels=Q,
        problem_type="multi_label_classification",
    )

    class Classifier(Layout):
        def __init__(self) -> None:
            super().__init__()
            self.model = transformers.AutoModelForSequenceClassification.from_config(config)

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            output = self.model(**batch)
            self.record(batch["input_ids"][:, :1].float(), output.logits)
            return output.loss

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters(), lr=0.01)

    table = datasets.Dataset.from_dict(
        {
            "input_ids": [[i, N, N + 1, N] for i in range(N)],
            "attention_mask": [[1, 1, 1, 1]] * N,
            "labels": Y.tolist(),
        }
    ).with_format("torch")
    module = Classifier()
    strategy = train(module, DataLoader(table, batch_size=8, shuffle=True), targets=True)
    assert_true_head(module, strategy)
    assert all(torch.equal(told, Y[ids]) for ids, _, told in strategy.told if told is not None)
