"""Power cuts, signals, full disks and half-written files."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from resume_tools import Recorder, make_data, make_loader, make_selection, make_trainer, weights_of
from train_forever import EPOCHS

HELPERS = Path(__file__).parents[1] / "helpers"


def train(folder, ckpt=None, callbacks=(), **options):
    module = Recorder()
    trainer = make_trainer(folder, [make_selection(), *callbacks], **({"max_epochs": EPOCHS} | options))
    trainer.fit(module, make_loader(make_data()), ckpt_path=ckpt)
    return module


def run_until(folder: Path, step: int, sent: signal.Signals) -> int:
    """Start a training process, send it a signal after ``step`` steps, and give its exit code."""
    process = subprocess.Popen(
        [sys.executable, str(HELPERS / "train_forever.py"), str(folder)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    for line in process.stdout:
        if line.strip() == f"step {step}":
            process.send_signal(sent)
            break
    process.stdout.read()
    return process.wait(timeout=120)


def assert_equals_the_whole_run(resumed, whole):
    assert resumed.seen == {key: whole.seen[key] for key in resumed.seen}
    assert torch.equal(weights_of(resumed), weights_of(whole))


def test_a_run_killed_in_mid_epoch_goes_on_from_its_last_checkpoint_as_if_nothing_had_happened(tmp_path):
    # 7 batches an epoch: the checkpoint of step 30 is in the middle of epoch 4, the kill comes after it.
    assert run_until(tmp_path, 32, signal.SIGKILL) == -signal.SIGKILL
    assert torch.load(tmp_path / "last.ckpt", weights_only=True)["global_step"] == 30
    resumed = train(tmp_path, ckpt=tmp_path / "last.ckpt")
    assert min(resumed.seen) == (4, 2)
    assert_equals_the_whole_run(resumed, train(tmp_path))


def test_sigterm_ends_the_run_as_lightning_does_and_the_checkpoint_can_be_resumed(tmp_path):
    run_until(tmp_path, 22, signal.SIGTERM)
    # Lightning ends the run in the same epoch (which ends with step 28) rather than after all 56 steps.
    assert torch.load(tmp_path / "last.ckpt", weights_only=True)["global_step"] in (20, 25)
    resumed = train(tmp_path, ckpt=tmp_path / "last.ckpt")
    assert_equals_the_whole_run(resumed, train(tmp_path))


def test_a_disk_that_is_full_while_saving_leaves_the_checkpoint_before_it_whole(tmp_path, monkeypatch):
    """Lightning writes to a temporary file and renames it; a write that fails never touches the old one."""
    keep = ModelCheckpoint(tmp_path, filename="last", every_n_train_steps=5, enable_version_counter=False)
    real_save = torch.save

    def save(obj, target, *args, **kwargs):
        real_save(obj, target, *args, **kwargs)
        if isinstance(obj, dict) and obj.get("global_step") == 20:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", save)
    with pytest.raises(OSError, match="No space left"):
        train(tmp_path, callbacks=[keep])
    monkeypatch.undo()
    assert torch.load(tmp_path / "last.ckpt", weights_only=True)["global_step"] == 15
    resumed = train(tmp_path, ckpt=tmp_path / "last.ckpt")
    assert_equals_the_whole_run(resumed, train(tmp_path))


def test_a_half_written_checkpoint_is_refused_and_the_one_before_it_still_resumes(tmp_path):
    keep = ModelCheckpoint(tmp_path, filename="{step}", every_n_train_steps=10, save_top_k=-1)
    whole = train(tmp_path, callbacks=[keep])
    broken = tmp_path / "step=30.ckpt"
    broken.write_bytes(broken.read_bytes()[: broken.stat().st_size // 2])
    with pytest.raises(Exception, match=r".*"):
        train(tmp_path, ckpt=broken)
    assert_equals_the_whole_run(train(tmp_path, ckpt=tmp_path / "step=20.ckpt"), whole)
