"""Where the predictions of a step are found, what they are taken for, and what is refused."""

from __future__ import annotations

import logging
import weakref
from collections import OrderedDict
from typing import Any, NamedTuple

import numpy as np
import pytest
import reference
import torch
from tiny_training import D, N, Q, Tiny, fit, loader
from torch import Tensor, nn

from lightning_ubs import UBS, BatchSelection, HardImbalance, SelectionError


class Step(Tiny):
    """A module whose training step is what a test says; ``true`` are the logits to be found."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(D - 1, Q)

    def forward(self, x: Tensor) -> Any:
        raise AssertionError("this test does not call forward")

    def true(self, batch: Any) -> Tensor:
        logits: Tensor = nn.functional.linear(batch[0][:, 1:], self.net.weight, self.net.bias)
        self.record(batch[0], logits)
        return logits


class NamedOutput(NamedTuple):
    logits: Tensor
    hidden: Tensor


class ModelOutput(OrderedDict[str, Any]):
    """Keys are attributes, as in the outputs of Hugging Face models."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


class ReturnsProbs(Step):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        logits = self.true(batch)
        return {"loss": self.loss(logits, batch[1]), "probs": logits.sigmoid(), "logits": logits * 100}


class ReturnsLogits(Step):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        logits = self.true(batch)
        return {"loss": self.loss(logits, batch[1]), "logits": logits}


class ReturnsUnderAKey(Step):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        logits = self.true(batch)
        return {"loss": self.loss(logits, batch[1]), "scores": logits.detach(), "logits": torch.zeros(1)}


class ReturnsOutputUnderAKey(Step):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        logits = self.true(batch)
        return {"loss": self.loss(logits, batch[1]), "out": NamedOutput(logits, batch[0])}


class CallsForward(Tiny):
    pass


class ForwardGives(Tiny):
    """Forward returns the logits inside something."""

    def wrap(self, logits: Tensor, x: Tensor) -> Any:
        raise AssertionError

    def forward(self, x: Tensor) -> Any:
        return self.wrap(self.net(x[:, 1:]), x)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        self(x)
        logits = nn.functional.linear(x[:, 1:], self.net.weight, self.net.bias)
        self.record(x, logits)
        return self.loss(logits, y)


class ForwardGivesDict(ForwardGives):
    def wrap(self, logits: Tensor, x: Tensor) -> Any:
        return {"hidden": x, "logits": logits}


class ForwardGivesProbsInADict(ForwardGives):
    def wrap(self, logits: Tensor, x: Tensor) -> Any:
        return {"probs": logits.sigmoid(), "logits": None}


class ForwardGivesNamedTuple(ForwardGives):
    def wrap(self, logits: Tensor, x: Tensor) -> Any:
        return NamedOutput(logits, x)


class ForwardGivesModelOutput(ForwardGives):
    def wrap(self, logits: Tensor, x: Tensor) -> Any:
        return ModelOutput(loss=logits.mean(), logits=logits)


class ForwardGivesProbabilities(ForwardGives):
    def wrap(self, logits: Tensor, x: Tensor) -> Any:
        return logits.sigmoid()


class ForwardGivesDetachedProbabilities(ForwardGives):
    def wrap(self, logits: Tensor, x: Tensor) -> Any:
        return logits.sigmoid().detach()


class CallsAChild(Step):
    """Many users call ``self.model(x)``; the loss is a child as well."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(D - 1, Q)
        self.criterion = nn.BCEWithLogitsLoss(reduction="none")
        self.unused = nn.Linear(1, Q)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        logits = self.net(x[:, 1:])
        self.record(x, logits)
        return self.criterion(logits, y).mean()


class CallsEncoderAndHead(Step):
    """Two children return matrices; only one has as many columns as there are labels."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(D - 1, 11)
        self.net = nn.Linear(11, Q)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        logits = self.net(self.encoder(x[:, 1:]).relu())
        self.record(x, logits)
        return self.loss(logits, y)


class Nested(Step):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(D - 1, Q)
        self.model = nn.Sequential(nn.Identity(), nn.ModuleDict({"head": nn.Linear(D - 1, Q)}))
        self.other = nn.Linear(D - 1, Q)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        logits = self.model[1]["head"](x[:, 1:])
        self.record(x, logits)
        return self.loss(logits + self.other(x[:, 1:]), y)


def from_function(module: Any, outputs: Any, batch: Any) -> Tensor:
    assert set(outputs) == {"loss", "pair"}
    assert len(batch) == 2
    result: Tensor = outputs["pair"][1]
    return result


class ReturnsAPair(Step):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        logits = self.true(batch)
        return {"loss": self.loss(logits, batch[1]), "pair": (batch[0], logits)}


PLACES: dict[str, tuple[type[Tiny], Any]] = {
    "returned probs": (ReturnsProbs, None),
    "returned logits": (ReturnsLogits, None),
    "a key": (ReturnsUnderAKey, "scores"),
    "an output under a key": (ReturnsOutputUnderAKey, "out"),
    "forward": (CallsForward, None),
    "a dict from forward": (ForwardGivesDict, None),
    "probs in a dict from forward": (ForwardGivesProbsInADict, None),
    "a named tuple from forward": (ForwardGivesNamedTuple, None),
    "a model output from forward": (ForwardGivesModelOutput, None),
    "probabilities from forward": (ForwardGivesProbabilities, None),
    "detached probabilities from forward": (ForwardGivesDetachedProbabilities, None),
    "a child beside a loss": (CallsAChild, None),
    "the child with as many columns as labels": (CallsEncoderAndHead, None),
    "a child by name": (CallsEncoderAndHead, "module:net"),
    "a nested child by name": (Nested, "module:model.1.head"),
    "a function": (ReturnsAPair, from_function),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_predictions_are_found_and_become_the_right_probabilities(place: str, precision: Any) -> None:
    torch.manual_seed(0)
    kind, outputs = PLACES[place]
    selection = BatchSelection(UBS(window=4), warmup_epochs=1, outputs=outputs)
    module, watch, _ = fit(selection, kind(), max_epochs=3, precision=precision)
    windows = [rows[-4:] for rows in module.histories(2)]
    # Where half precision rounds probabilities rather than logits, it does so before they are handed over.
    tolerance = 1e-6 if precision == "32-true" else 2e-2
    shown = watch.shown[2]["uncertainty"].numpy()
    np.testing.assert_allclose(shown, reference.label_uncertainty(windows, Q, 0.5), atol=tolerance)


def test_logits_of_a_zero_initialised_head_all_lie_in_the_unit_interval_and_are_still_logits() -> None:
    class ZeroHead(Tiny):
        def __init__(self) -> None:
            super().__init__(lr=0.0)
            nn.init.zeros_(self.net.weight)
            nn.init.constant_(self.net.bias, 0.25)

    selection = BatchSelection(UBS(lambda1=0.0), warmup_epochs=1)
    fit(selection, ZeroHead(), max_epochs=2)
    expected = reference.entropy(1 / (1 + np.exp(-0.25)))
    assert selection.uncertainty is not None
    assert selection.uncertainty.flatten().tolist() == pytest.approx([expected] * (N * Q), abs=1e-6)


class ForwardGivesDetachedLogits(ForwardGives):
    def wrap(self, logits: Tensor, x: Tensor) -> Any:
        return logits.detach()


@pytest.mark.parametrize(
    ("kind", "word"),
    [
        (CallsForward, "logits"),
        (ForwardGivesProbabilities, "probs"),
        (ForwardGivesDetachedLogits, "logits"),
        (ForwardGivesDetachedProbabilities, "probs"),
    ],
)
def test_what_they_were_taken_for_is_logged_once(kind: Any, word: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="lightning_ubs.predictions"):
        fit(BatchSelection(warmup_epochs=1), kind(), max_epochs=3)
    told = [record.getMessage() for record in caplog.records if record.name == "lightning_ubs.predictions"]
    assert len(told) == 1
    assert word in told[0]
    assert "forward" in told[0]


def test_a_kind_decided_by_values_is_held_to() -> None:
    class Growing(ForwardGives):
        """Values that look like probabilities at first, and later cannot be."""

        def wrap(self, logits: Tensor, x: Tensor) -> Any:
            return logits.detach().sigmoid() * (1 if self.current_epoch == 0 else 2)

    with pytest.raises(SelectionError, match=r"epoch 1, batch \d+, sample \d+ are not all in \[0, 1\]"):
        fit(BatchSelection(warmup_epochs=1), Growing(), max_epochs=3)


def raised(module: Tiny, **options: Any) -> str:
    with pytest.raises(SelectionError) as error:
        fit(BatchSelection(options.pop("strategy", UBS()), warmup_epochs=1, **options), module, max_epochs=2)
    return str(error.value)


WAYS_OUT = ("'loss': loss, 'logits': logits", "outputs='KEY'", "outputs='module:NAME'", "outputs=function")


def test_nothing_found_lists_what_was_seen_and_the_ways_out() -> None:
    class Hidden(Step):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return {"loss": self.loss(self.true(batch), batch[1]), "extra": 1}

    message = raised(Hidden())
    assert "no predictions of shape [8, labels]" in message
    assert "extra" in message
    assert all(way in message for way in WAYS_OUT)


def test_several_candidates_are_listed_with_the_ways_out() -> None:
    class Two(Step):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(D - 1, Q), nn.Linear(D - 1, Q)

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            x, y = batch
            return self.loss(self.first(x[:, 1:]) + self.second(x[:, 1:]), y)

    message = raised(Two())
    assert "several" in message
    assert "'first'" in message
    assert "'second'" in message
    assert all(way in message for way in WAYS_OUT)


def test_a_forward_called_twice_in_a_step_is_ambiguous() -> None:
    class Twice(Tiny):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            x, y = batch
            return self.loss(self(x), y) + self.loss(self(x + 1), y)

    message = raised(Twice())
    assert "several" in message
    assert "2×" in message


def test_a_place_that_gives_nothing_in_a_later_step_is_an_error() -> None:
    class Sometimes(Tiny):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            x, y = batch
            logits = self(x) if batch_idx < 2 else self.net(x[:, 1:])
            return self.loss(logits, y)

    message = raised(Sometimes())
    assert "first found in the module's forward" in message
    assert "0 in this step" in message


class Gives(Step):
    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        logits = self.true(batch)
        return {"loss": self.loss(logits, batch[1]), "logits": self.value(logits)}


@pytest.mark.parametrize(
    ("value", "shape"),
    [
        (lambda logits: logits[:, 0], r"\[8\]"),
        (lambda logits: logits.unsqueeze(2), r"\[8, 3, 1\]"),
        (lambda logits: logits.mean(), r"\[\]"),
        (lambda logits: (logits > 0).int(), "int32"),
        (lambda logits: logits > 0, "bool"),
    ],
)
def test_predictions_of_a_wrong_shape_or_type_are_refused(value: Any, shape: str) -> None:
    with pytest.raises(SelectionError, match=rf"floating-point \[batch, labels\].*'logits' gave .*{shape}"):
        fit(BatchSelection(warmup_epochs=1), Gives(value), max_epochs=2)


def test_a_key_that_is_not_there_names_those_that_are() -> None:
    message = raised(ReturnsLogits(), outputs="probabilities")
    assert "'probabilities'" in message
    assert "['logits', 'loss']" in message


def test_a_submodule_that_does_not_exist_names_those_that_do() -> None:
    message = raised(CallsEncoderAndHead(), outputs="module:decoder")
    assert "decoder" in message
    assert "'encoder'" in message


def test_a_submodule_that_is_not_called_says_so() -> None:
    assert "was not called" in raised(CallsAChild(), outputs="module:unused")


def test_a_function_that_returns_no_tensor_says_so() -> None:
    assert "returned no tensor" in raised(ReturnsLogits(), outputs=lambda module, outputs, batch: None)


def dropping(samples: list[Any]) -> Any:
    kept = samples[1:] if len(samples) > 2 else samples
    return torch.stack([x for x, _ in kept]), torch.stack([y for _, y in kept])


@pytest.mark.parametrize("kind", [ReturnsLogits, CallsForward, CallsAChild])
def test_a_collate_function_that_drops_samples_is_noticed_at_the_first_batch(kind: Any) -> None:
    with pytest.raises(SelectionError, match=r"for 7 samples, but the planned batch has 8.*collate"):
        fit(BatchSelection(warmup_epochs=1), kind(), train=loader(collate_fn=dropping), max_epochs=2)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("strategy", [UBS, HardImbalance])
def test_predictions_that_are_no_numbers_stop_the_epoch_and_harm_nothing(bad: float, strategy: Any) -> None:
    class Diverging(Step):
        before: dict[str, Tensor] | None = None

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            logits = self.true(batch)
            shown = logits.detach().clone()
            if (self.current_epoch, batch_idx) == (2, 3):
                type(self).before = selection.strategy.state_dict()
                shown[[2, 5], 1] = bad
            return {"loss": self.loss(logits, batch[1]), "logits": shown}

    selection = BatchSelection(strategy(), warmup_epochs=1)
    module = Diverging()
    with pytest.raises(SelectionError) as error:
        fit(selection, module, max_epochs=4)
    ids = module.ids()[2][3]
    assert f"epoch 2, batch 3, sample {ids[2]} are not all finite" in str(error.value)
    assert "learning rate" in str(error.value)
    state, before = selection.strategy.state_dict(), Diverging.before
    assert before is not None
    later = {i for batch in module.ids()[2][4:] for i in batch}
    spoiled = [i for i in (ids[2], ids[5]) if i not in later]
    others = [i for i in ids if i not in later and i not in spoiled]
    assert spoiled
    assert others
    for name, rows in state.items():
        if isinstance(rows, Tensor) and len(rows) == N:
            assert torch.isfinite(rows.float()).all()
            assert torch.equal(rows[spoiled], before[name][spoiled])
    changed = "visits" if strategy is UBS else "loss"
    assert not torch.equal(state[changed][others], before[changed][others])


@pytest.mark.parametrize("bad", [1.5, -0.5, float("nan")])
def test_probabilities_outside_the_unit_interval_name_epoch_batch_and_sample(bad: float) -> None:
    class Wrong(Step):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            logits = self.true(batch)
            probs = logits.sigmoid().detach().clone()
            if batch_idx == 1:
                probs[4, 0] = bad
            return {"loss": self.loss(logits, batch[1]), "probs": probs}

    module = Wrong()
    with pytest.raises(SelectionError) as error:
        fit(BatchSelection(warmup_epochs=1), module, max_epochs=2)
    assert f"epoch 0, batch 1, sample {module.ids()[0][1][4]} are not all in [0, 1]" in str(error.value)


def test_probabilities_a_rounding_error_outside_are_fine_and_stay_in_the_unit_interval() -> None:
    class Rounded(Step):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            logits = self.true(batch)
            return {"loss": self.loss(logits, batch[1]), "probs": (logits > 0) * (1 + 2e-5) - 1e-5}

    selection = BatchSelection(UBS(), warmup_epochs=1)
    fit(selection, Rounded(), max_epochs=3)
    assert selection.uncertainty is not None
    assert torch.isfinite(selection.uncertainty).all()
    assert selection.strategy.memory.values.min() >= 0
    assert selection.strategy.memory.values.max() <= 1


def test_predictions_and_graph_of_a_step_do_not_outlive_it() -> None:
    class Forgetting(Tiny):
        last: Any = None
        checked = 0

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            if self.last is not None:
                assert self.last() is None
                self.checked += 1
            logits = self(batch[0])
            self.last = weakref.ref(logits)
            return self.loss(logits, batch[1])

    selection = BatchSelection(warmup_epochs=1)
    module, _, _ = fit(selection, Forgetting(), max_epochs=2)
    assert module.checked == 11
    assert not selection.strategy.memory.values.requires_grad


def test_no_hook_is_left_on_the_module() -> None:
    module = CallsEncoderAndHead()
    fit(BatchSelection(warmup_epochs=1), module, max_epochs=2)
    assert all(not part._forward_hooks for part in module.modules())


def test_validation_forwards_are_not_taken_for_predictions() -> None:
    selection = BatchSelection(warmup_epochs=1)
    module, _, _ = fit(selection, val=loader(shuffle=False), max_epochs=3, val_check_interval=2)
    visits = torch.bincount(torch.tensor([i for e in module.ids().values() for ids in e for i in ids]), minlength=N)
    assert torch.equal(selection.strategy.memory.visits[:N], visits)


def test_a_step_that_is_skipped_after_its_forward_still_counts() -> None:
    class Skipping(Tiny):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = super().training_step(batch, batch_idx)
            return None if batch_idx == 1 else loss

    selection = BatchSelection(warmup_epochs=1)
    module, watch, _ = fit(selection, Skipping(), max_epochs=3)
    assert module.ids() == watch.plans
