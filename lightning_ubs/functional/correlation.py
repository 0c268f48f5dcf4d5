"""Which labels are uncertain together: mutual information between columns of U (Eq. 6, Appendix A)."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

# A pass over all samples goes in blocks of about this many cells, which stay in a processor's cache, but of no fewer
# rows than a matrix product needs to be fast.
_BLOCK_CELLS, _BLOCK_ROWS = 2**18, 1024
# float32 counts are exact up to here; then they are carried over into float64.
_EXACT_COUNT = 2**24


def block_rows(cells_per_row: int) -> int:
    """Rows to handle at a time where each takes this many cells."""
    return max(_BLOCK_ROWS, _BLOCK_CELLS // max(1, cells_per_row))


def uncertainty_correlation(uncertainty: Tensor, bins: int = 5, log_base: float = math.e) -> Tensor:
    r"""Label correlation matrix C: mutual information of the binned columns of U, with a unit diagonal.

    :math:`C_{ab}=\sum_{u,v}p(u_a,v_b)\log\frac{p(u_a,v_b)}{p(u_a)p(v_b)}` with ``bins`` bins of equal width on
    [0, 1], the last one closed. C is symmetric and non-negative; it is not positive definite in general.

    Args:
        uncertainty: U, (n, q) in [0, 1].
        bins: number of bins (τ).
        log_base: base of the logarithm; the paper's plain "log" is read as natural.

    Returns:
        C, (q, q) float64.

    >>> u = torch.tensor([[0.05, 0.15], [0.55, 0.65], [0.45, 0.85], [0.95, 0.95]])
    >>> uncertainty_correlation(u)
    tensor([[1.0000, 0.6931],
            [0.6931, 1.0000]], dtype=torch.float64)
    """
    rows = block_rows(uncertainty.shape[1] * (bins - 1))
    return correlation_of_chunks(torch.split(uncertainty, rows), bins, log_base)


def correlation_of_chunks(chunks: Iterable[Tensor], bins: int = 5, log_base: float = math.e) -> Tensor:
    """:func:`uncertainty_correlation` of a U that comes in row chunks, each (rows, q)."""
    joint, margin, n = _joint_counts(chunks, bins)
    information = _mutual_information(joint, margin, n, bins) / math.log(log_base)
    return torch.where(torch.eye(len(information), dtype=torch.bool, device=joint.device), 1.0, information)


def _joint_counts(chunks: Iterable[Tensor], bins: int) -> tuple[Tensor, Tensor, int]:
    """How often each pair of upper bins, and each upper bin, occurs; float64, exact."""
    total: Tensor | None = None
    recent, since, n = torch.empty(0), 0, 0
    for chunk in chunks:
        hot = _one_hot_upper_bins(chunk, bins)
        if total is None:
            recent = hot.new_zeros(hot.shape[1], hot.shape[1])
            total = recent.double()
        elif since + len(chunk) > _EXACT_COUNT:
            total, recent, since = total + recent, torch.zeros_like(recent), 0
        recent.addmm_(hot.T, hot)
        since, n = since + len(chunk), n + len(chunk)
    if total is None or n == 0:
        raise ValueError("label correlation needs at least one sample, got an empty uncertainty matrix.")
    joint = total + recent
    # A bin always occurs together with itself, so the diagonal holds the margins.
    return joint, joint.diagonal(), n


def _one_hot_upper_bins(uncertainty: Tensor, bins: int) -> Tensor:
    """One-hot bins 1 .. bins-1 as (rows, (bins-1)·q) float32; bin 0 follows from the margins."""
    index = (uncertainty * bins).floor().clamp(0, bins - 1)
    upper = torch.arange(1, bins, device=index.device, dtype=index.dtype)
    return (index.unsqueeze(1) == upper.unsqueeze(1)).flatten(1).float()


def _mutual_information(joint: Tensor, margin: Tensor, n: int, bins: int) -> Tensor:
    """MI in nats from counts of the upper bins; ``joint`` is (k·q, k·q) and ``margin`` (k·q,), k = bins-1."""
    k = bins - 1
    q = margin.numel() // k
    inner = joint.reshape(k, q, k, q)
    upper = margin.reshape(k, q)
    lowest = n - upper.sum(0)
    left = upper.unsqueeze(0) - inner.sum(0)  # a in bin 0, b in bin j: (q, k, q)
    right = upper.unsqueeze(2) - inner.sum(2)  # a in bin i, b in bin 0: (k, q, q)
    corner = lowest.unsqueeze(0) - right.sum(0)  # both in bin 0: (q, q)
    joint_sum = _xlogx(inner).sum((0, 2)) + _xlogx(left).sum(1) + _xlogx(right).sum(0) + _xlogx(corner)
    margin_sum = _xlogx(upper).sum(0) + _xlogx(lowest)
    information = (joint_sum - margin_sum.unsqueeze(0) - margin_sum.unsqueeze(1)) / n + math.log(n)
    return ((information + information.T) / 2).clamp(min=0)


def _xlogx(counts: Tensor) -> Tensor:
    return torch.xlogy(counts, counts)
