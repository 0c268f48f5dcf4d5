"""Exact counts of pairs of bins, in bounded memory."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor

from lightning_ubs.functional import pair_counts
from lightning_ubs.functional.pair_counts import count_pairs


class Passes:
    """U in chunks of rows, and how often it was asked for."""

    def __init__(self, uncertainty: Tensor, rows: int) -> None:
        self.uncertainty, self.rows, self.count = uncertainty, rows, 0

    def __call__(self) -> Iterator[Tensor]:
        self.count += 1
        return iter(torch.split(self.uncertainty, self.rows))


def counted(passes: Passes, bins: int, memory: int) -> np.ndarray:
    """Joint counts of all bins but the one left out, (k, k, q, q), put together from their blocks."""
    n, q = passes.uncertainty.shape
    joint = np.full((bins - 1, bins - 1, q, q), -1.0)
    for pair in count_pairs(passes, n, q, bins, memory):
        joint[:, :, pair.rows, pair.columns] = pair.joint.numpy()
        joint[:, :, pair.columns, pair.rows] = pair.joint.permute(1, 0, 3, 2).numpy()
        np.testing.assert_array_equal(pair.row_margin.numpy(), margin(passes, bins)[:, pair.rows])
        np.testing.assert_array_equal(pair.column_margin.numpy(), margin(passes, bins)[:, pair.columns])
    return joint


def one_hot(passes: Passes, bins: int) -> np.ndarray:
    binned = np.minimum((passes.uncertainty.numpy() * bins).astype(int), bins - 1)
    return (binned[None] == np.arange(1, bins)[:, None, None]).astype(float)


def margin(passes: Passes, bins: int) -> np.ndarray:
    return one_hot(passes, bins).sum(1)


def slow_counts(passes: Passes, bins: int) -> np.ndarray:
    hot = one_hot(passes, bins)
    return np.einsum("ina,jnb->ijab", hot, hot)


def uniform(n: int, q: int) -> Tensor:
    return torch.rand(n, q, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("labels", [1, 2, 3])
def test_passes_over_several_blocks_each_count_every_pair(labels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = 48_000
    monkeypatch.setattr(pair_counts, "_BLOCK_LABELS", labels)
    passes = Passes(uniform(50, 16), 20)
    blocks, panels = pair_counts._panels(16, 4, memory // 8)
    assert len(panels) > 1
    assert all(len(panel) > 1 for panel in panels)
    assert [block for panel in panels for block in panel] == list(range(len(blocks)))
    np.testing.assert_array_equal(counted(passes, 5, memory), slow_counts(passes, 5))


@pytest.mark.parametrize("memory", [16_000, 40_000, 2**20])
def test_the_counts_of_a_pass_fit_into_the_memory(memory: int) -> None:
    labels, k = 40, 4
    blocks, panels = pair_counts._panels(labels, k, memory)
    cells = [k * k * (block.stop - block.start) * (labels - block.start) for block in blocks]
    for panel in panels:
        assert 4 * sum(cells[block] for block in panel) <= memory or len(panel) == 1
    # No pass could have taken the first block of the next one as well.
    for panel, following in itertools.pairwise(panels):
        assert 4 * sum(cells[block] for block in [*panel, following[0]]) > memory


@pytest.mark.parametrize(("bins", "memory", "n"), [(5, 9_600, 300), (256, 400, 100)])
def test_bins_are_kept_for_further_passes_exactly_if_they_fit(bins: int, memory: int, n: int) -> None:
    q = memory // 2 // n
    fitting, larger = Passes(uniform(n, q), 64), Passes(uniform(n + 1, q), 64)
    panels = pair_counts._panels(q, bins - 1, memory // 8)[1]
    assert len(panels) > 1
    np.testing.assert_array_equal(counted(fitting, bins, memory), slow_counts(fitting, bins))
    assert fitting.count == 1
    np.testing.assert_array_equal(counted(larger, bins, memory), slow_counts(larger, bins))
    assert larger.count == len(panels) + 1


@pytest.mark.parametrize("bins", [257, 300])
def test_more_bins_than_a_byte_can_number_are_kept_as_well(bins: int) -> None:
    passes = Passes(torch.linspace(0, 1, 120).view(-1, 2), 64)
    np.testing.assert_array_equal(counted(passes, bins, 1_000), slow_counts(passes, bins))
    assert passes.count == 1


@pytest.mark.parametrize("columns", [0, 512])
def test_more_samples_than_single_precision_can_count(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """2^24 + 1 is no float32; one sample after so many would be lost."""
    rows = 2**20
    chunk = torch.full((rows, 1), 0.9)
    monkeypatch.setattr(pair_counts, "_WORTH_MEASURING", 2**62)  # sparse counting would leave this one bin out
    monkeypatch.setattr(pair_counts, "_BIT_COLUMNS", columns)  # by product, and by bits
    number = 2**24 + 1
    (pair,) = count_pairs(lambda: [*[chunk] * 16, chunk[:1]], number, 1, 2, 2**28)
    assert int(pair.joint) == int(pair.row_margin) == number


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="threads are counted in /proc")
@pytest.mark.skipif(not hasattr(np, "bitwise_count"), reason="NumPy counts bits from 2.0 on")
@pytest.mark.parametrize("shape", [(28_596, 22), (1_500, 14)])
def test_counting_few_labels_starts_no_threads(shape: tuple[int, int]) -> None:
    """Steps this short take many times as long where threads of a busy processor wait for each other."""
    code = f"""
import os
import numpy as np, torch
from lightning_ubs.functional import uncertainty_correlation
torch.set_num_threads(2)
uncertainty = torch.from_numpy(np.random.default_rng(0).random({shape}, dtype=np.float32))
before = len(os.listdir("/proc/self/task"))
uncertainty_correlation(uncertainty)
assert len(os.listdir("/proc/self/task")) == before
torch.rand(400, 400) @ torch.rand(400, 400)
assert len(os.listdir("/proc/self/task")) > before  # which shows that threads would have been seen
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, env=os.environ | {"OMP_NUM_THREADS": "2"})
