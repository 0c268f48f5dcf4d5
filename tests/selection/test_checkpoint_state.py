"""What a checkpoint holds, and what it refuses."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path

import lightning as L
import pytest
import torch
from resume_tools import STRATEGIES, PlanCheck, Recorder, make_data, make_loader, make_selection, make_trainer

from lightning_ubs import BatchSelection, RecencyBias, SelectionError


def train(folder, selection, ckpt=None, samples=52, module=None, **options):
    module = module or Recorder()
    trainer = make_trainer(folder, [selection, PlanCheck(selection)], **options)
    trainer.fit(module, make_loader(make_data(samples)), ckpt_path=ckpt)
    return trainer, module


def saved(folder, selection=None, **options):
    trainer, _ = train(folder, selection or make_selection(), max_epochs=4, **options)
    trainer.save_checkpoint(folder / "four.ckpt")
    return folder / "four.ckpt"


def plain(value) -> bool:
    if isinstance(value, dict):
        return all(isinstance(key, str) and plain(inner) for key, inner in value.items())
    return isinstance(value, torch.Tensor | int | float | str | bool)


@pytest.mark.parametrize("name", STRATEGIES)
def test_state_is_tensors_and_scalars_on_the_cpu_with_a_version(tmp_path, name):
    selection = make_selection(name)
    train(tmp_path, selection, max_epochs=3)
    state = selection.state_dict()
    assert plain(state)
    assert state["version"] == 1


def test_state_is_a_copy_that_training_does_not_change(tmp_path):
    selection = make_selection()
    train(tmp_path, selection, max_epochs=3)
    before = selection.state_dict()
    history = before["strategy_state"]["history"].clone()
    selection.strategy.update(torch.tensor([0]), torch.full((1, 4), 0.123))
    assert torch.equal(before["strategy_state"]["history"], history)


def test_another_number_of_samples_is_refused(tmp_path):
    with pytest.raises(SelectionError, match=r"written for 52 training samples, but this run has 40"):
        train(tmp_path, make_selection(), ckpt=saved(tmp_path), samples=40)


def test_another_strategy_is_refused(tmp_path):
    other = BatchSelection(RecencyBias(), warmup_epochs=2, seed=3)
    with pytest.raises(SelectionError, match=r"strategy UBS, but this run uses RecencyBias"):
        train(tmp_path, other, ckpt=saved(tmp_path))


def test_another_number_of_labels_is_refused(tmp_path):
    path = saved(tmp_path)
    checkpoint = torch.load(path, weights_only=True)
    state = checkpoint["callbacks"]["BatchSelection"]["strategy_state"]
    state["history"], state["num_labels"] = state["history"][..., :3].clone(), 3
    state["correlation"] = state["correlation"][:3, :3].clone()
    torch.save(checkpoint, path)
    with pytest.raises(SelectionError, match=r"4 labels, but 3 were remembered"):
        train(tmp_path, make_selection(), ckpt=path)


def test_a_state_of_another_version_is_refused(tmp_path):
    path = saved(tmp_path)
    checkpoint = torch.load(path, weights_only=True)
    checkpoint["callbacks"]["BatchSelection"]["version"] = 99
    torch.save(checkpoint, path)
    with pytest.raises(SelectionError, match="version 99"):
        train(tmp_path, make_selection(), ckpt=path)


def test_the_seed_of_the_checkpoint_is_kept_with_a_warning(tmp_path):
    _, whole = train(tmp_path, make_selection())
    with pytest.warns(UserWarning, match="written with seed=3"):
        _, resumed = train(tmp_path, make_selection(seed=4), ckpt=saved(tmp_path, make_selection(end_epoch=5)))
    assert resumed.seen == {key: whole.seen[key] for key in resumed.seen}


def test_another_way_of_drawing_than_that_of_the_checkpoint_is_told(tmp_path):
    path = saved(tmp_path, make_selection(end_epoch=5))
    with pytest.warns(UserWarning, match=r"end_epoch=4 \(checkpoint: 5\), replacement='batch' \(checkpoint: 'syst"):
        train(tmp_path, make_selection(end_epoch=4, replacement="batch"), ckpt=path)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*continues with the arguments")
        train(tmp_path, make_selection(end_epoch=5), ckpt=path)


def test_a_checkpoint_without_selection_can_be_continued_with_it(tmp_path):
    trainer = make_trainer(tmp_path, [], max_epochs=3)
    trainer.fit(Recorder(), make_loader(make_data()))
    trainer.save_checkpoint(tmp_path / "plain.ckpt")
    selection = make_selection()
    _, module = train(tmp_path, selection, ckpt=tmp_path / "plain.ckpt")
    assert min(module.seen) == (3, 0)
    assert max(module.seen) == (5, 6)


def test_what_another_training_taught_is_forgotten_when_a_checkpoint_without_selection_is_continued(tmp_path):
    trainer = make_trainer(tmp_path, [], max_epochs=3)
    trainer.fit(Recorder(), make_loader(make_data()))
    trainer.save_checkpoint(tmp_path / "plain.ckpt")
    used, fresh = make_selection(), make_selection()
    train(tmp_path, used, max_epochs=4)
    _, after_use = train(tmp_path, used, ckpt=tmp_path / "plain.ckpt")
    _, afresh = train(tmp_path, fresh, ckpt=tmp_path / "plain.ckpt")
    assert after_use.seen == afresh.seen


def test_a_checkpoint_written_by_the_first_release_is_continued(tmp_path):
    """It was taken after batch 2 of epoch 3; its draws differ since, its predictions and P are the same."""
    path = Path(__file__).parents[1] / "files" / "checkpoint_0_1_0.pt"
    old = torch.load(path, weights_only=True)["callbacks"]["BatchSelection"]
    selection = make_selection()
    shown = []

    class Shown(L.Callback):
        def on_train_start(self, trainer, pl_module):
            state = selection.state_dict()
            shown.append((state["probabilities"], state["strategy_state"]["history"], selection.pressure))

    module = Recorder()
    make_trainer(tmp_path, [selection, PlanCheck(selection), Shown()]).fit(
        module, make_loader(make_data()), ckpt_path=path
    )
    assert min(module.seen) == (3, 3)
    assert max(module.seen) == (5, 6)
    probabilities, history, pressure = shown[0]
    assert torch.equal(probabilities, old["probabilities"])
    assert torch.equal(history, old["strategy_state"]["history"])
    assert pressure == old["pressure"]


def test_compact_checkpoints_are_small_and_go_on_validly(tmp_path):
    full = saved(tmp_path).stat().st_size
    compact = make_selection(save_state="weights")
    path = saved(tmp_path, compact)
    state = torch.load(path, weights_only=True)["callbacks"]["BatchSelection"]["strategy_state"]
    assert path.stat().st_size < full
    assert "history" not in state
    resumed = make_selection(save_state="weights")
    train(tmp_path, resumed, ckpt=path)
    # Samples not drawn since the resume still weigh what they weighed, the others what they deserve now.
    unseen = resumed.strategy.memory.visits[:-1] == 0
    assert resumed.weights.std() > 0
    assert not unseen.all()
    assert resumed.probabilities.sum().item() == pytest.approx(1)
    assert resumed.probabilities.min() > 0


@pytest.mark.parametrize("dtype", ["float16", torch.bfloat16])
def test_half_precision_history_halves_the_state_and_resumes_exactly(tmp_path, dtype):
    _, whole = train(tmp_path, make_selection(history_dtype=dtype))
    path = saved(tmp_path, make_selection(history_dtype=dtype, end_epoch=5))
    history = torch.load(path, weights_only=True)["callbacks"]["BatchSelection"]["strategy_state"]["history"]
    assert history.element_size() == 2
    _, resumed = train(tmp_path, make_selection(history_dtype=dtype), ckpt=path)
    assert resumed.seen == {key: whole.seen[key] for key in resumed.seen}


def test_memory_and_checkpoint_size_are_logged_once(tmp_path, caplog):
    with caplog.at_level(logging.INFO, logger="lightning.pytorch"):
        train(tmp_path, make_selection(), max_epochs=3)
    messages = [record.getMessage() for record in caplog.records if "each checkpoint grows" in record.getMessage()]
    assert len(messages) == 1
    assert "52 samples x 4 labels" in messages[0]
