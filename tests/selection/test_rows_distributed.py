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
        "moves": small | {"batch_size": 4, "module": "moves", "without_check": True},
        "flips": small | {"samples": 416, "batch_size": 32, "loader": "flips", "without_check": True},
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


def test_rows_that_one_process_moves_inside_its_steps_stop_both_at_the_end_of_the_epoch(ranks: Path) -> None:
    for rank in read(ranks / "moves"):
        assert "rows of the loss stood in another order than in the batch" in rank["failed"]
        assert max(rank["seen"])[0] == 1


def test_labels_that_change_at_each_visit_are_known_to_both_processes(ranks: Path) -> None:
    first, second = read(ranks / "flips")
    assert [first["failed"], second["failed"]] == [None, None]
    assert max(first["seen"])[0] == 3
    told = [[one for one in rank["warnings"] if "changes at each visit" in one] for rank in (first, second)]
    assert [len(one) for one in told] == [1, 0]
