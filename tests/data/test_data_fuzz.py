from __future__ import annotations

import importlib.util
import itertools
import re
import sys
import time
from pathlib import Path

import pytest

from lightning_ubs.data import read_dataset

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "fuzz_readers.py"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("fuzz_readers", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["fuzz_readers"] = module
    spec.loader.exec_module(module)
    return module


def test_the_undamaged_inputs_are_read(script, tmp_path):
    (tmp_path / "input.xml").write_bytes(script.XML)
    contents = [script.DENSE, script.SPARSE, script.MEKA, script.mat_file(), script.rda_file()]
    for content in contents + [script.archive(members) for members in script.npz_members()[:2]]:
        (tmp_path / "input.dat").write_bytes(content)
        assert read_dataset(tmp_path / "input.dat", cache=False).X.shape[1] in (2, 3)
    for kind, labels in (("csv", "label"), ("parquet", "label"), ("svm", None)):
        (tmp_path / f"input.{kind}").write_bytes(script.PLAIN[kind]())
        assert len(read_dataset(tmp_path / f"input.{kind}", labels, cache=False).Y) == 3


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the limits need Linux")
def test_damaged_files_are_read_or_refused_by_one_sentence_and_nothing_is_executed(script):
    verdict = script.fuzz(inputs=400, seed=1)
    assert verdict.faults == []
    assert verdict.outcomes.total() == 400
    assert min(verdict.outcomes["read"], verdict.outcomes["refused"]) > 20, "damage must be neither total nor harmless"


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the limits need Linux")
@pytest.mark.parametrize(
    ("limit", "value", "read", "fault"),
    [
        ("SECONDS", 0.2, lambda path: sum(itertools.count()), r"longer than 0\.2 s"),
        ("IDLE", 0.5, lambda path: time.sleep(600), r"0\.5 s of waiting"),
    ],
)  # fmt: skip
def test_work_and_waiting_without_end_are_faults(script, monkeypatch, limit, value, read, fault):
    monkeypatch.setattr(script, limit, value)
    monkeypatch.setattr(script, "_outcome", read)
    verdict = script.fuzz(inputs=1)
    assert len(verdict.faults) == 1
    assert re.search(fault, verdict.faults[0])
