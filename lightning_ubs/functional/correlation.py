"""Which labels are uncertain together: mutual information between columns of U (Eq. 6, Appendix A)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lightning_ubs.functional.pair_counts import Chunks, PairCounts, Total, as_they_are, count_pairs

# A pass over all samples goes in blocks of about this many cells, which stay in a processor's cache, but of no fewer
# rows than a matrix product needs to be fast.
_BLOCK_CELLS, _BLOCK_ROWS = 2**18, 1024
# Bytes that C may take beside itself and U.
MEMORY = 2**28
# Up to this many samples, c·log c is looked up.
_TABLE = 2**20


def block_rows(cells_per_row: int) -> int:
    """Rows to handle at a time where each takes this many cells."""
    return max(_BLOCK_ROWS, _BLOCK_CELLS // max(1, cells_per_row))


def uncertainty_correlation(uncertainty: Tensor, bins: int = 5, log_base: float = math.e) -> Tensor:
    r"""Label correlation matrix C: mutual information of the binned columns of U, with a unit diagonal.

    :math:`C_{ab}=\sum_{u,v}p(u_a,v_b)\log\frac{p(u_a,v_b)}{p(u_a)p(v_b)}` with ``bins`` bins of equal width on
    [0, 1], the last one closed. C is symmetric and non-negative; it is not positive definite in general.

    Args:
        uncertainty: U, (n, q) in [0, 1].
        bins: Number of bins (τ).
        log_base: Base of the logarithm; the paper's plain "log" is read as natural.

    Returns:
        C, (q, q) float64.

    >>> u = torch.tensor([[0.05, 0.15], [0.55, 0.65], [0.45, 0.85], [0.95, 0.95]])
    >>> uncertainty_correlation(u)
    tensor([[1.0000, 0.6931],
            [0.6931, 1.0000]], dtype=torch.float64)
    """
    n, q = uncertainty.shape
    rows = block_rows(q)
    return correlation_of_chunks(lambda: torch.split(uncertainty, rows), n, q, bins, log_base)


def correlation_of_chunks(
    chunks: Chunks,
    num_samples: int,
    num_labels: int,
    bins: int = 5,
    log_base: float = math.e,
    memory: int = MEMORY,
    total: Total = as_they_are,
) -> Tensor:
    """:func:`uncertainty_correlation` of a U that comes in chunks of rows.

    Blocks of labels are counted against all later ones, as many at a time as fit into ``memory``. On a CPU, where most
    values lie in one bin of their label, that bin is left out and the rest is counted sparsely. Counts are exact either
    way.

    Args:
        chunks: Gives the chunks of U, each (rows, q); called once per pass over the samples.
        num_samples: Number of samples n.
        num_labels: Number of labels q.
        bins: Number of bins (τ).
        log_base: Base of the logarithm.
        memory: Bytes to use beside C and the chunks.
        total: Adds the counts of all ranks where each has chunks of its own; C is then that of all chunks.

    Returns:
        C, (q, q) float64.
    """
    if num_samples < 1:
        raise ValueError("label correlation needs at least one sample, got an empty uncertainty matrix; train first.")
    logarithm = _XLogX(num_samples)
    result: Tensor | None = None
    for pair in count_pairs(chunks, num_samples, num_labels, bins, memory, total):
        if result is None:
            result = torch.empty(num_labels, num_labels, dtype=torch.float64, device=pair.joint.device)
        information = _mutual_information(pair, num_samples, logarithm) / math.log(log_base)
        if pair.rows == pair.columns:
            information = (information + information.T) / 2
        result[pair.rows, pair.columns] = information
        result[pair.columns, pair.rows] = information.T
    assert result is not None
    return result.fill_diagonal_(1.0)


def _mutual_information(pair: PairCounts, n: int, xlogx: _XLogX) -> Tensor:
    """MI in nats of each label of one block with each of another, (rows, columns) float64."""
    joint, up, down = pair.joint, pair.row_margin, pair.column_margin
    up_rest, down_rest = n - up.sum(0), n - down.sum(0)
    left = down.unsqueeze(1) - joint.sum(0)  # the left-out bin of the row's label: (k, rows, columns)
    right = up.unsqueeze(2) - joint.sum(1)  # that of the column's label: (k, rows, columns)
    corner = down_rest.unsqueeze(0) - right.sum(0)  # both: (rows, columns)
    joint, left, right, corner, up, up_rest, down, down_rest = xlogx(
        joint.flatten(0, 1), left, right, corner, up, up_rest, down, down_rest
    )
    together = joint.sum(0) + left.sum(0) + right.sum(0) + corner
    alone_up, alone_down = up.sum(0) + up_rest, down.sum(0) + down_rest
    information = (together - alone_up.unsqueeze(1) - alone_down.unsqueeze(0)) / n + math.log(n)
    return information.clamp(min=0)


class _XLogX:
    """Values c·log c of counts; looked up where there are more counts than possible values."""

    def __init__(self, n: int) -> None:
        self._n = n
        self._table: Tensor | None = None

    def __call__(self, *tables: Tensor) -> list[Tensor]:
        """Of each table, in as few kernels as of one."""
        counts = torch.cat([table.flatten() for table in tables])
        if self._n >= min(_TABLE, 4 * counts.numel()):
            counts = counts.double()
            values = torch.xlogy(counts, counts)
        else:
            if self._table is None:
                every = torch.arange(self._n + 1, dtype=torch.float64, device=counts.device)
                self._table = torch.xlogy(every, every)
            values = self._table.index_select(0, counts.int())
        parts = torch.split(values, [table.numel() for table in tables])
        return [part.view(table.shape) for part, table in zip(parts, tables, strict=True)]
