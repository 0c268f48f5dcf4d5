"""What NumPy does on a CPU is what PyTorch does."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from chance import seeded
from hypothesis import given
from hypothesis import strategies as st

from lightning_ubs.functional import draw_epoch
from lightning_ubs.functional.batches import rows_with_repeats, search_ascending

ascending = st.lists(st.integers(0, 9), min_size=1, max_size=30).map(lambda found: torch.tensor(sorted(found)) / 4)


@pytest.fixture
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@given(ascending, ascending)
def test_a_number_is_found_behind_all_entries_that_are_not_above_it(table: torch.Tensor, numbers: torch.Tensor) -> None:
    expected = [sum(entry <= number for entry in table.tolist()) for number in numbers.tolist()]
    assert search_ascending(table, numbers).tolist() == expected


@given(st.integers(1, 6), st.integers(1, 5), st.integers(0, 999))
def test_rows_with_repeats_are_those_with_fewer_distinct_ids(rows: int, columns: int, seed: int) -> None:
    ids = torch.randint(0, 8, (rows, columns), generator=seeded(seed))
    expected = [row for row, found in enumerate(ids.tolist()) if len(set(found)) < columns]
    before = ids.clone()
    assert rows_with_repeats(ids).tolist() == expected
    assert torch.equal(ids, before)


@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize("replacement", ["batch", "full", "systematic"])
def test_the_number_of_threads_changes_no_draw(replacement: str) -> None:
    probs = torch.softmax(torch.rand(3000, generator=seeded(1), dtype=torch.float64) * 4.6, 0)
    drawn = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        drawn.append(draw_epoch(probs, 64, 3000, seeded(2), replacement))  # type: ignore[arg-type]
    assert torch.equal(*drawn)
