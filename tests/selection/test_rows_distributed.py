"""Rows are verified in every process, and what one of them refuses stops all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from gloo import launch, read


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: Any) -> Path:
    folder: Path = tmp_path_factory.mktemp("rows")
    small = {"batch_size": 13, "trainer": {"max_epochs": 4}}
    jobs = {
        "sorted on one": small | {"loader": "sorted_on_one", "without_check": True},
        "queue": small | {"loader": "queue", "without_check": True},
        "cut": small | {"loader": "hidden_rows", "save_epoch": 1, "trainer": {"max_epochs": 2}, "without_check": True},
    }
    again = {"resume": str(folder / "cut" / "end.ckpt"), "without_check": True}
    jobs |= {
        "same rows": small | again | {"loader": "hidden_rows"},
        "other rows": small | again | {"loader": "other_rows"},
    }
    return launch(folder, 2, jobs)


def test_a_refusal_of_one_process_stops_both(ranks: Path) -> None:
    first, second = read(ranks / "sorted on one")
    assert second["failed"].startswith("epoch 0, batch 0: the labels of the batch are not those of the items")
    assert first["failed"] == f"on process 1: {second['failed']}"
    assert len(first["seen"]) == 1


def test_samples_are_recognized_whichever_process_sees_them_next(ranks: Path) -> None:
    for rank in read(ranks / "queue"):
        assert "samples came with other labels than at their first visit" in rank["failed"]
        assert max(rank["seen"])[0] == 1


def test_both_processes_know_the_dataset_of_a_checkpoint(ranks: Path) -> None:
    assert [rank["failed"] for rank in read(ranks / "same rows")] == [None, None]
    for rank in read(ranks / "other rows"):
        assert "samples have other labels than in the run that is continued" in rank["failed"]
        assert not rank["seen"] or max(rank["seen"]) == (2, 0), "the first batch"
