"""Where the predictions of a step are found, what they are taken for, and what is refused."""

from __future__ import annotations

import gc
import logging
import os
import re
import subprocess
import sys
import weakref
from collections import OrderedDict
from typing import Any, NamedTuple

import numpy as np
import pytest
import reference
import torch
from observe_tools import Keeping, assert_true_head
from tiny_training import D, N, Q, Tiny, fit, loader, trainer
from torch import Tensor, nn
from torch.utils.data import TensorDataset

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


def test_logits_of_a_zero_initialized_head_all_lie_in_the_unit_interval_and_are_still_logits() -> None:
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


class ByHand(Tiny):
    """A loss that leaves nothing in its graph that tells its predictions, so that modules must tell."""

    def loss(self, logits: Tensor, y: Tensor) -> Tensor:
        return (torch.log1p(logits.exp()) - y * logits).mean()


class ByHandProbabilities(Tiny):
    """Forward gives probabilities that no known operation made."""

    def forward(self, x: Tensor) -> Any:
        return (1 + (-self.net(x[:, 1:])).exp()).reciprocal()

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        p = self(x)
        self.record(x, p.logit())
        return (p - y).square().mean()


class ByHandBesideForward(ByHand, ForwardGives):
    """What forward returns is no part of the loss."""

    def wrap(self, logits: Tensor, x: Tensor) -> Any:
        return logits.detach()


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (
            CallsForward,
            ("3 labels from what the loss was computed from (binary_cross_entropy_with_logits), as logits",),
        ),
        (ReturnsProbs, ("3 labels from training_step's 'probs', as probs",)),
        (ByHand, ("from the module's forward (its loss does not show them unchanged), as logits (not verified yet",)),
        (ByHandProbabilities, ("the module's forward", "as probs")),
    ],
)
def test_one_visible_line_tells_what_is_read(kind: Any, words: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="lightning.pytorch.utilities.rank_zero"):
        fit(BatchSelection(warmup_epochs=1), kind(), max_epochs=3)
    told = [record.getMessage() for record in caplog.records if "BatchSelection reads" in record.getMessage()]
    assert len(told) == 1
    assert all(word in told[0] for word in words)
    assert re.search(r"UBS keeps \d+(\.\d)? (B|kB) for 42 samples x 3 labels on cpu", told[0])
    assert re.search(r"each checkpoint grows by about \d+(\.\d)? (B|kB)\.", told[0])


def test_the_line_says_that_no_ids_were_verified(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="lightning.pytorch.utilities.rank_zero"):
        fit(BatchSelection(warmup_epochs=1, ids=False), CallsForward(), max_epochs=2)
    assert "not verified, with ids=False, is of which samples" in caplog.text


def test_the_line_is_seen_in_a_default_run() -> None:
    code = """
import lightning as L
from tiny_training import Tiny, loader
from lightning_ubs import BatchSelection
L.Trainer(accelerator="cpu", max_epochs=2, logger=False, enable_checkpointing=False, callbacks=[
    BatchSelection(warmup_epochs=1)]).fit(Tiny(), loader())
"""
    path = os.pathsep.join(sys.path)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | {"PYTHONPATH": path}
    )
    assert done.returncode == 0, done.stderr
    assert (done.stdout + done.stderr).count("BatchSelection reads predictions of 3 labels") == 1


def test_what_a_module_returns_beside_the_loss_is_not_taken_for_predictions() -> None:
    assert "no predictions were found" in raised(ByHandBesideForward())


def test_a_kind_decided_by_values_is_held_to() -> None:
    class Growing(Step):
        """Values that look like probabilities at first, and later cannot be."""

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            logits = self.true(batch)
            scores = (logits.detach() / 2).sigmoid() * (1 if self.current_epoch == 0 else 2)
            return {"loss": ByHand.loss(self, logits, batch[1]), "scores": scores}

    with pytest.raises(SelectionError, match=r"epoch 1, batch \d+, sample \d+ are not all in \[0, 1\]"):
        fit(BatchSelection(warmup_epochs=1, outputs="scores"), Growing(), max_epochs=3)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (lambda z: torch.zeros_like(z), "hold nothing but 0"),
        (lambda z: torch.full_like(z, 0.5), "hold nothing but 0.5"),
        (lambda z: z.detach().sigmoid().log(), "logits and log-probabilities"),
    ],
    ids=["zeros", "halves", "log-probabilities"],
)
def test_values_that_tell_nothing_ask_for_the_kind(value: Any, words: str) -> None:
    class Shown(Step):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            logits = self.true(batch)
            return {"loss": ByHand.loss(self, logits, batch[1]), "scores": value(logits)}

    message = raised(Shown(), outputs="scores")
    assert words in message
    assert "pass kind='logits', 'probs', 'softmax' or 'log_probs'" in message
    fit(BatchSelection(warmup_epochs=1, outputs="scores", kind="logits"), Shown(), max_epochs=2)


class Regression(Step):
    """Returns what it compares with the labels by squares, which is no probability."""

    key = "probs"

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        values = 3 * self.true(batch)
        return {"loss": nn.functional.mse_loss(values, batch[1].float()), self.key: values}


def test_what_is_returned_as_probabilities_and_is_none_is_refused() -> None:
    message = raised(Regression())
    assert "training_step's 'probs' holds values from -" in message
    assert "which are no probabilities" in message
    fit(BatchSelection(warmup_epochs=1, kind="logits"), Regression(), max_epochs=2)
    named = Regression()
    named.key = "logits"
    fit(BatchSelection(warmup_epochs=1), named, max_epochs=2)


@pytest.mark.parametrize(
    ("given", "inverse"),
    [
        ("logits", lambda p: p.logit()),
        ("probs", lambda p: p * (1 + 1e-7)),
        ("log_probs", lambda p: p.log()),
        ("softmax", lambda p: (p / p.sum(1, keepdim=True)).log() + 3),
        (None, lambda p: p * (1 + 1e-7)),
        (None, lambda p: p.logit()),
        (None, lambda p: p.clamp(0.5, 1) * (1 + 1e-7)),
    ],
)
def test_the_kind_is_what_the_user_says_or_what_values_tell_within_rounding(given: Any, inverse: Any) -> None:
    class Shown(Step):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            logits = self.true(batch)
            shown = inverse(logits.detach().sigmoid())
            return {"loss": ByHand.loss(self, logits, batch[1]), "scores": shown}

    strategy = Keeping()
    module, _, _ = fit(BatchSelection(strategy, warmup_epochs=1, outputs="scores", kind=given), Shown(), max_epochs=2)
    true = module.seen[0][0][1]
    if given == "softmax":
        true = true / true.sum(1, keepdim=True)
    shown = true.clamp(0.5, 1) if strategy.told[0][1].min() >= 0.5 else true
    torch.testing.assert_close(strategy.told[0][1], shown, atol=1e-5, rtol=0)


def test_an_unknown_kind_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match=r"kind='odds' is unknown; use one of 'logits', 'probs', 'softmax'"):
        BatchSelection(kind="odds")


@pytest.mark.parametrize("rerun", [lambda m, x: m(x), lambda m, x: nn.functional.linear(x[:, 1:], m.net.weight)])
@pytest.mark.parametrize("grad", [False, True])
def test_a_function_that_runs_the_model_again_after_the_step_is_refused(rerun: Any, grad: bool) -> None:
    def again(module: Any, outputs: Any, batch: Any) -> Tensor:
        with torch.set_grad_enabled(grad):
            result: Tensor = rerun(module, batch[0])
            return result

    message = raised(Tiny(), outputs=again)
    assert "which the optimizer has changed since" in message
    assert "{'loss': loss, 'logits': logits}" in message
    fit(BatchSelection(warmup_epochs=1), Tiny(), max_epochs=2)


def test_a_function_may_ask_the_module_for_anything_but_its_weights() -> None:
    def harmless(module: Any, outputs: Any, batch: Any) -> Tensor:
        device = next(module.parameters()).device
        result: Tensor = outputs["pair"][1].to(device)
        return result

    fit(BatchSelection(warmup_epochs=1, outputs=harmless), ReturnsAPair(), max_epochs=2)


def raised(module: Any, train: Any = None, **options: Any) -> str:
    with pytest.raises(SelectionError) as error:
        fit(BatchSelection(options.pop("strategy", UBS()), warmup_epochs=1, **options), module, train, max_epochs=2)
    return str(error.value)


WAYS_OUT = ("'loss': loss, 'logits': logits", "outputs='KEY'", "outputs='module:NAME'", "outputs=function")


def test_nothing_found_lists_what_was_seen_and_the_ways_out() -> None:
    class Hidden(Step):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(D - 1, 16), nn.ReLU())

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.body(batch[0][:, 1:])
            return {"loss": ByHand.loss(self, self.true(batch), batch[1]), "extra": 1}

    message = raised(Hidden())
    assert "no predictions were found in this step of 8 samples" in message
    assert "extra" in message
    assert "body.0 [8, 16], body.1 [8, 16], body [8, 16]" in message
    assert "there are 3 labels" in message
    assert all(way in message for way in WAYS_OUT)


def test_module_outputs_are_never_taken_by_a_bare_width() -> None:
    class Embeds(ByHand):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Linear(D - 1, 16)

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            x, y = batch["x"], batch["truth"]
            self.body(x[:, 1:])
            return self.loss(nn.functional.linear(x[:, 1:], self.net.weight, self.net.bias), y)

    def named(samples: list[Any]) -> Any:
        numbers = torch.stack([i for (i,) in samples])
        return {"x": loader().dataset.tensors[0][numbers], "truth": loader().dataset.tensors[1][numbers]}

    message = raised(Embeds(), train=loader(TensorDataset(torch.arange(N)), collate_fn=named))
    assert "there are 3 labels" in message
    assert "body [8, 16]" in message


class TwoHeads(ByHand):
    def __init__(self, loss: str) -> None:
        super().__init__()
        self.first, self.second, self.way = nn.Linear(D - 1, Q), nn.Linear(D - 1, Q), loss

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        first, second = self.first(x[:, 1:]), self.second(x[:, 1:])
        self.record(x, second)
        if self.way == "by hand":
            return self.loss(first + second, y)
        bce = nn.functional.binary_cross_entropy_with_logits
        return 0.5 * bce(first, y) + 0.5 * bce(second, y)


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        ("by hand", ["several outputs of this step", "'first' [8, 3]", "'second' [8, 3]"]),
        ("bce", ["computed from several predictions", "binary_cross_entropy_with_logits of [8, 3], binary"]),
    ],
)
def test_several_candidates_are_listed_with_the_ways_out(loss: str, words: list[str]) -> None:
    message = raised(TwoHeads(loss))
    assert all(word in message for word in words)
    assert all(way in message for way in WAYS_OUT)
    strategy, module = Keeping(), TwoHeads(loss)
    fit(BatchSelection(strategy, warmup_epochs=1, outputs="module:second"), module, max_epochs=2)
    torch.testing.assert_close(strategy.told[-1][1], module.seen[1][-1][1])


def test_a_forward_called_twice_in_a_step_is_ambiguous() -> None:
    class Twice(ByHand):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            x, y = batch
            return self.loss(self(x), y) + self.loss(self(x + 1), y)

    message = raised(Twice())
    assert "several" in message
    assert "the module's forward [8, 3], the module's forward [8, 3]" in message


def test_predictions_of_other_widths_in_several_backward_passes_are_listed() -> None:
    class Passes(Tiny):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            x = loader().dataset.tensors[0][batch[0]]
            bce = nn.functional.binary_cross_entropy_with_logits
            for columns in (slice(0, 1), slice(0, 3)):
                logits = self(x)[:, columns]
                self.manual_backward(bce(logits, torch.ones_like(logits)))

    message = raised(Passes(), train=loader(TensorDataset(torch.arange(N))))
    assert "binary_cross_entropy_with_logits of [8, 1], binary_cross_entropy_with_logits of [8, 3]" in message


def test_a_loss_that_is_one_compiled_node_says_that_nothing_can_be_seen() -> None:
    class Plain(Tiny):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return self.loss(self.net(batch[0][:, 1:]), batch[1])

    message = raised(torch.compile(Plain(), backend="aot_eager"))
    assert "modules are compiled and cannot be watched" in message
    assert all(way in message for way in WAYS_OUT)


def test_watching_the_first_step_does_not_disturb_compiled_networks() -> None:
    compiled = []

    def backend(graph: Any, inputs: Any) -> Any:
        compiled.append(graph)
        return graph.forward

    class Plain(Tiny):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return self.loss(self.net(batch[0][:, 1:]), batch[1])

    counts = []
    for callbacks in ([], [BatchSelection(warmup_epochs=0)]):
        torch._dynamo.reset()
        compiled.clear()
        module = Plain()
        module.net = torch.compile(module.net, backend=backend, fullgraph=True, dynamic=False)
        trainer(*callbacks, max_epochs=1).fit(module, loader(drop_last=True))
        counts.append(len(compiled))
    assert counts[0] == counts[1]


def test_a_place_that_gives_nothing_in_a_later_step_is_an_error() -> None:
    class Sometimes(ByHand):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            x, y = batch
            logits = self(x) if batch_idx < 2 else self.net(x[:, 1:])
            return self.loss(logits, y)

    message = raised(Sometimes())
    assert "the module's forward was not called in training_step" in message


def test_a_loss_that_changes_its_form_is_followed() -> None:
    class Changing(Tiny):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = super().training_step(batch, batch_idx)
            return loss if batch_idx % 2 else 2 * loss + 0.1 * self.net.weight.square().sum()

    strategy, module = Keeping(), Changing()
    fit(BatchSelection(strategy, warmup_epochs=1), module, max_epochs=2)
    assert_true_head(module, strategy)


def test_a_loss_without_its_predictions_in_a_later_step_says_so() -> None:
    class Leaving(Tiny):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            logits = self(batch[0])
            return self.loss(logits, batch[1]) if batch_idx < 2 else logits.square().mean()

    message = raised(Leaving())
    assert "was not found in this step's loss" in message
    assert all(way in message for way in WAYS_OUT)


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
        (lambda logits: logits.flatten(), r"\[24\]"),
        (lambda logits: torch.stack([logits, logits], 2), r"\[8, 3, 2\]"),
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
                selection.settle()
                type(self).before = selection.strategy.state_dict()
                shown[[2, 5], 1] = bad
            return {"loss": self.loss(logits, batch[1]), "logits": shown}

    torch.manual_seed(1)
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


@pytest.mark.parametrize(("kind", "strategy"), [(Tiny, HardImbalance), (ByHand, UBS)])
def test_predictions_and_graph_of_a_step_do_not_outlive_it(kind: Any, strategy: Any) -> None:
    class Forgetting(kind):  # type: ignore[misc]
        last: Any = None
        checked = 0

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            if self.last is not None:
                assert self.last() is None
                self.checked += 1
            logits = self(batch[0])
            self.last = weakref.ref(logits)
            return self.loss(logits, batch[1])

        def on_train_batch_end(self, *args: Any) -> None:
            if self.current_epoch == 1 and args[-1] in (1, 4):
                gc.collect()
                self.nodes.append(sum(type(thing).__name__.endswith("Backward0") for thing in gc.get_objects()))

    module = Forgetting()
    module.nodes = []
    selection = BatchSelection(strategy(), warmup_epochs=1)
    fit(selection, module, max_epochs=2)
    assert module.checked == 11
    assert len(module.nodes) == 2
    assert module.nodes[0] == module.nodes[1]
    assert all(not value.requires_grad for value in selection.strategy.state_dict().values() if torch.is_tensor(value))


def test_no_hook_is_left_on_the_module() -> None:
    for module, outputs in ((CallsEncoderAndHead(), None), (CallsEncoderAndHead(), "module:net"), (ByHand(), None)):
        fit(BatchSelection(warmup_epochs=1, outputs=outputs), module, max_epochs=2)
        assert all(not part._forward_hooks for part in module.modules())
        assert not torch.nn.modules.module._global_forward_hooks


def test_no_hook_is_left_after_an_exception() -> None:
    class Failing(ByHand):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self(batch[0])
            raise ZeroDivisionError

    module = Failing()
    with pytest.raises(ZeroDivisionError):
        fit(BatchSelection(warmup_epochs=1), module)
    assert not torch.nn.modules.module._global_forward_hooks


def test_validation_forwards_are_not_taken_for_predictions() -> None:
    selection = BatchSelection(warmup_epochs=1)
    module, _, _ = fit(selection, val=loader(shuffle=False), max_epochs=3, val_check_interval=2)
    visits = torch.bincount(torch.tensor([i for e in module.ids().values() for ids in e for i in ids]), minlength=N)
    assert torch.equal(selection.strategy.memory.visits[:N], visits)
