"""What is read of a step, step by step and without a trainer."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy, cross_entropy
from torch.nn.functional import binary_cross_entropy_with_logits as bce
from torch.nn.modules.module import _global_forward_hooks

from lightning_ubs import UBS, SelectionError
from lightning_ubs.reading.predictions import Kind, Observation, Reading, decode
from lightning_ubs.reading.reader import StepReader
from lightning_ubs.selection.plan import BatchLayout, EpochPlan

B, D, Q = 8, 5, 3
GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(B, D, generator=GENERATOR)
Y = (torch.rand(B, Q, generator=GENERATOR) > 0.5).float()
PLAN = EpochPlan(0, torch.arange(B), BatchLayout(B, B))

Loss = Callable[[Any], Tensor]


class Module(L.LightningModule):
    def __init__(self, wrap: Callable[[Tensor, Tensor], Any] = lambda x, z: z) -> None:
        super().__init__()
        self.net = nn.Linear(D, Q)
        self.wrap = wrap

    def forward(self, x: Tensor) -> Any:
        return self.wrap(x, self.net(x))

    def head(self, x: Tensor) -> Tensor:
        """The logits, by no module."""
        return nn.functional.linear(x, self.net.weight, self.net.bias)


def by_hand(logits: Tensor, y: Tensor = Y) -> Tensor:
    """A loss whose graph shows nothing that tells its predictions."""
    return (torch.log1p(logits.exp()) - y * logits).mean()


def step(reader: StepReader, module: Module, loss: Loss, outputs: Any = None, labels: Tensor | None = Y) -> Tensor:
    """One training step: forward, backward, and reading what it predicted."""
    reader.expect(
        lambda ids: None if labels is None else labels[ids], True, None if labels is None else labels.shape[1]
    )
    reader.start()
    value = loss(module)
    reader.see_loss(value, B, planned=torch.arange(B))
    value.backward()
    found = reader.read(PLAN, 0, module, outputs, None)
    assert found is not None
    return found.raw


def attached(module: Module, outputs: Any = None, **options: Any) -> StepReader:
    reader = StepReader(outputs, None, options.pop("kind", None), None, options.pop("needs_targets", False), **options)
    reader.attach(module)
    return reader


def refused(loss: Loss, outputs: Any = None, labels: Tensor | None = None, module: Module | None = None) -> str:
    module = module or Module()
    with pytest.raises(SelectionError) as error:
        step(attached(module, outputs), module, loss, labels=labels)
    return str(error.value)


def test_a_step_that_nobody_asked_for_is_not_taken_for_the_next_one() -> None:
    module = Module()
    source = attached(module)
    step(source, module, lambda m: bce(m(X), Y))
    source.start()
    source.see_loss(bce(module(2 * X), Y), B)
    assert torch.equal(step(source, module, lambda m: bce(m(3 * X), Y)), module(3 * X))


@pytest.mark.parametrize("loss", [bce, by_hand])
def test_modules_are_watched_up_to_the_backward_pass_of_the_first_step(loss: Any) -> None:
    module = Module()
    source = attached(module)
    source.expect(lambda ids: Y[ids], True, Q)
    for first in (True, False):
        source.start()
        assert bool(_global_forward_hooks) == first
        assert bool(module._forward_hooks) == (not first and loss is by_hand)
        value = loss(module(X), Y)
        source.see_loss(value, B, planned=torch.arange(B))
        value.backward()
        assert not _global_forward_hooks
        assert not module._forward_hooks
        module(-X)  # as activation checkpointing does
        found = source.read(PLAN, 0, module, None, None)
        assert found is not None
        assert torch.equal(found.raw, module.head(X))


def test_no_module_is_watched_where_the_place_is_given_or_a_part_is_compiled() -> None:
    module = Module()
    for outputs in ("logits", lambda *_: X):
        attached(module, outputs).start()
        assert not _global_forward_hooks
    module.net.compile(backend="eager")
    attached(module).start()
    assert not _global_forward_hooks


def test_predictions_for_another_number_of_labels_than_in_the_first_step_are_not_taken() -> None:
    module = Module()
    source = attached(module)
    step(source, module, lambda m: bce(m(X), Y))
    with pytest.raises(SelectionError, match="was not found in this step's loss"):
        step(source, module, lambda m: bce(m(X)[:, :2], Y[:, :2]))


@pytest.mark.parametrize(
    ("loss", "kind"),
    [
        (lambda m: bce(m(X), Y), Kind.LOGITS),
        (lambda m: binary_cross_entropy(m(X).sigmoid(), Y), Kind.PROBS),
        (lambda m: cross_entropy(m(X), Y.argmax(1)), Kind.SOFTMAX),
    ],
)
def test_the_first_step_tells_the_kind_and_a_new_fit_asks_again(loss: Loss, kind: Kind) -> None:
    module = Module()
    source = attached(module)
    step(source, module, loss)
    assert source.kind == str(kind)
    source.attach(module)
    assert source.kind == ""
    assert source.place is None


@pytest.mark.parametrize("wrong", [X.flatten(), X.long(), torch.zeros(B, Q, 2)])
def test_what_is_returned_in_another_shape_or_type_is_refused(wrong: Tensor) -> None:
    module = Module()
    with pytest.raises(SelectionError, match=r"must be floating-point \[batch, labels\], but training_step's 'logits'"):
        step(attached(module), module, lambda m: bce(m(X), Y), {"logits": wrong})


def test_a_submodule_that_is_called_twice_in_a_step_is_ambiguous() -> None:
    message = refused(lambda m: by_hand(m.net(X)) + by_hand(m.net(-X)), outputs="module:net")
    assert "the submodule 'net' gave predictions 2 times in this step, not once" in message


def called(module: Module, x: Tensor) -> Tensor:
    """A loss of one part of what the module returns."""
    output = module(x)
    return by_hand(output["scores"] if isinstance(output, dict) else output[1])


@pytest.mark.parametrize("wrap", [lambda x, z: {"hidden": x, "scores": z}, lambda x, z: (x, z)], ids=["dict", "tuple"])
def test_the_part_of_an_output_that_has_a_column_per_label_is_read_in_every_step(wrap: Any) -> None:
    module = Module(wrap)
    source = attached(module)
    for x in (X, 2 * X):
        loss = partial(called, x=x)
        assert torch.equal(step(source, module, loss), module.head(x))
    assert str(source.place) in (
        "the submodule 'net'",
        "the module's forward (part scores)",
        "the module's forward (part 1)",
    )


OTHER_ROWS = "gave predictions for {} samples, but the planned batch has 8"


def test_a_step_of_another_number_of_samples_is_told_from_one_without_predictions() -> None:
    assert OTHER_ROWS.format(7) in refused(lambda m: bce(m.head(X)[:7], Y[:7]))
    assert OTHER_ROWS.format(7) in refused(lambda m: bce(m.head(X)[:7], Y[:7]), labels=Y)
    assert OTHER_ROWS.format(16) in refused(lambda m: by_hand(m(X.repeat(2, 1)), Y.repeat(2, 1)), labels=Y)
    for message in (
        refused(lambda m: by_hand(m(X.repeat(2, 1)), Y.repeat(2, 1))),
        refused(lambda m: by_hand(m.head(X))),
        refused(lambda m: by_hand(m.head(X)), labels=Y),
    ):
        assert "no predictions were found in this step of 8 samples" in message
        assert "only of" not in message


@pytest.mark.parametrize("shape", [(5, 4), (4, Q, 2)])
def test_what_fits_neither_samples_nor_labels_is_listed(shape: tuple[int, ...]) -> None:
    size = torch.Size(shape).numel()
    message = refused(lambda m: bce(m.head(X).flatten()[:size].view(shape), torch.ones(shape)), labels=Y)
    assert "no predictions were found in this step of 8 samples" in message
    assert f"(only of {list(shape)})" in message
    assert "there are 3 labels" in message


def observer(targets: Any = None, kind: str | None = None, needs_targets: bool = False) -> StepReader:
    return StepReader(None, targets, kind, None, needs_targets)


def observed(reader: StepReader, module: Module, loss: Loss, outputs: Any = None, batch: Any = None) -> Observation:
    reader.start()
    value = loss(module)
    reader.see_loss(value, B, batch, torch.arange(B))
    value.backward()
    return decode([reading(reader, PLAN, module, outputs, batch)])


def reading(reader: StepReader, plan: EpochPlan, module: Module, outputs: Any, batch: Any) -> Reading:
    found = reader.read(plan, 0, module, outputs, batch)
    assert found is not None
    return found


def test_targets_are_read_from_the_loss_also_where_predictions_are_returned_and_only_if_wanted() -> None:
    for wanted in (True, False):
        module, watching = Module(), observer(needs_targets=wanted)
        watching.attach(module)
        for y in (Y, 1 - Y):
            logits = module(X)
            seen = observed(watching, module, lambda _, z=logits, y=y: bce(z, y), {"logits": logits}, {"truth": None})
            torch.testing.assert_close(seen.probs, logits.detach().sigmoid())
            assert (seen.targets is not None) == wanted
            assert seen.targets is None or torch.equal(seen.targets, y)
            assert watching.loss_targets == (), "nothing of the step is kept"


@pytest.mark.parametrize(
    ("targets", "batch"),
    [(None, {"x": X, "labels": Y}), (None, (X, Y)), ("truth", {"x": X, "truth": Y}), (lambda *_: Y, None)],
    ids=["a usual name", "a pair", "a key", "a function"],
)
def test_the_labels_of_the_batch_tell_how_many_columns_predictions_have(targets: Any, batch: Any) -> None:
    module, watching = Module(), observer(targets)
    watching.attach(module)
    seen = observed(watching, module, lambda m: by_hand(m(X)), batch=batch)
    torch.testing.assert_close(seen.probs, module(X).detach().sigmoid())


def test_labels_of_images_do_not_tell_how_many_columns_predictions_have() -> None:
    module, watching = Module(), observer()
    watching.attach(module)
    with pytest.raises(SelectionError, match="the number of labels is not known"):
        observed(watching, module, lambda m: by_hand(m(X)), batch=(X, torch.ones(B, Q, 2)))


@pytest.mark.parametrize(("wanted", "found_on"), [(None, "meta"), ("meta", "cpu")], ids=["kept", "moved"])
def test_predictions_and_targets_stay_where_they_are_or_go_where_they_are_wanted(wanted: Any, found_on: str) -> None:
    module, watching = Module(), StepReader("logits", None, "logits", wanted, needs_targets=True)
    watching.attach(module)
    batch = (X.to(found_on), Y.to(found_on))
    probs, usable, targets = decode([reading(watching, PLAN, module, {"logits": X[:, :Q].to(found_on)}, batch)])
    assert targets is not None
    assert {part.device.type for part in (probs, usable, targets)} == {"meta"}
    assert probs.shape == targets.shape == (B, Q)


def test_a_line_says_why_predictions_are_read_from_a_module() -> None:
    for loss, aside in ((by_hand, True), (bce, False)):
        module, watching, strategy = Module(), observer(), UBS()
        watching.attach(module)
        seen = observed(watching, module, lambda m, loss=loss: loss(m(X), Y), batch=(X, Y))
        strategy.num_samples = B
        line = watching.announcement(strategy, seen)
        assert ("(its loss does not show them unchanged)" in line) == aside
        assert "3 labels" in line


@pytest.mark.parametrize("samples", [1, 2])
@pytest.mark.parametrize(
    ("given", "learned", "shown", "expected"),
    [
        (None, "", lambda z: z, torch.sigmoid),
        (None, "probs", lambda z: z, torch.sigmoid),
        (None, "softmax", lambda z: z, lambda z: z.softmax(1)),
        (None, "", lambda z: {"probs": z.sigmoid().detach()}, torch.sigmoid),
        (None, "log_probs", lambda z: z.sigmoid().log().detach(), torch.sigmoid),
        ("log_probs", "", lambda z: z.sigmoid().log().detach(), torch.sigmoid),
        (None, "", lambda z: z.detach(), torch.sigmoid),
    ],
)
def test_an_evaluation_pass_gives_probabilities_of_what_it_returned(
    given: Any, learned: str, shown: Any, expected: Any, samples: int
) -> None:
    module, watching = Module(), observer(kind=given)
    watching.attach(module)
    watching.kind = learned
    logits = [module(X), module(2 * X)][:samples]
    probs, targets = watching.read_evaluation(PLAN, 0, module, [shown(z) for z in logits], (X, Y))
    torch.testing.assert_close(probs, torch.stack([expected(z.detach()) for z in logits]))
    assert targets is None
    assert watching.knows_evaluation


@pytest.mark.parametrize("batch", [(X, Y), (torch.arange(B), X, Y), {"x": X, "labels": Y}], ids=["2", "3", "dict"])
def test_an_evaluation_pass_gives_the_labels_of_its_batch_to_who_needs_them(batch: Any) -> None:
    module, watching = Module(), observer(needs_targets=True)
    watching.attach(module)
    _, targets = watching.read_evaluation(PLAN, 0, module, [module(X)], batch)
    assert targets is not None
    assert torch.equal(targets, Y)


@pytest.mark.parametrize("wrong", [None, X[:7], X.long(), "text"])
def test_an_evaluation_pass_without_a_row_per_sample_is_refused(wrong: Any) -> None:
    module, watching = Module(), observer()
    watching.attach(module)
    for predicted in ([wrong], [module(X), wrong]):
        with pytest.raises(SelectionError, match=r"no floating-point \[8, labels\].*EvaluationPass\(predict="):
            watching.read_evaluation(PLAN, 0, module, predicted, (X, Y))


def observe_half(rank: int, folder: Path, wanted: bool) -> Observation:
    """Of seven samples, four are in the first process and three in the second."""
    dist.init_process_group("gloo", init_method=f"file://{folder / 'meet'}", rank=rank, world_size=2)
    plan = EpochPlan(0, torch.arange(7), BatchLayout(7, 4, world_size=2, rank=rank))
    own = plan[0]
    module, watching = Module(), observer(needs_targets=wanted)
    watching.attach(module)
    seen = decode([reading(watching, plan, module, {"logits": X[own, :Q]}, (X[own], Y[own]))])
    dist.destroy_process_group()
    return seen


@pytest.mark.parametrize("wanted", [True, False])
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_predictions_and_targets_of_two_processes_are_joined_in_the_order_of_the_plan(
    wanted: bool, tmp_path: Path
) -> None:
    other = multiprocessing.get_context("fork").Process(target=observe_half, args=(1, tmp_path, wanted), daemon=True)
    other.start()
    probs, usable, targets = observe_half(0, tmp_path, wanted)
    other.join(60)
    assert other.exitcode == 0
    torch.testing.assert_close(probs, X[:7, :Q].sigmoid())
    assert usable.all()
    assert (targets is not None) == wanted
    assert targets is None or torch.equal(targets, Y[:7])
