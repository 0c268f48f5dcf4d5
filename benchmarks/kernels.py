"""C, refresh, drawing and memory: what the equations and the state cost."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from sklearn.metrics import mutual_info_score
from torch import Tensor

from benchmarks.measure import Row, Work, exact, growth, peak_bytes, ratio
from lightning_ubs import UBS
from lightning_ubs.functional import draw_epoch, uncertainty_correlation
from lightning_ubs.functional.drawing import epoch_generator
from lightning_ubs.state import PredictionHistory
from lightning_ubs.strategies import TrainingSet

BATCH = 128


def correlation_rows(repeats: int, quick: bool) -> Iterator[Row]:
    """C against one matrix product of its one-hot operands, against scikit-learn, and its memory."""
    limit = "the product of the symmetric half"
    few = "counting bits of pairs of columns, in one thread"
    yield _against_product("C / product, 5,000 x 374, uniform bins", _uncertainty(5000, 374, 0.0), repeats, 0.8, limit)
    sparse = "adding one-hot rows, finding the values outside the most frequent bin"
    yield _against_product(
        "C / product, 5,000 x 374, 90 % in one bin", _uncertainty(5000, 374, 0.9), repeats, 0.25, sparse
    )
    # Processors differ in how many words they count at a time.
    narrow = _against_product("C / product, 28,596 x 22", _uncertainty(28_596, 22, 0.0), repeats, 1.0, few)
    yield replace(narrow, machines=0.25)
    some = _uncertainty(2000, 12, 0.0)
    yield ratio(
        "C / pairwise scikit-learn, 2,000 x 12", lambda: uncertainty_correlation(some), lambda: _pairwise(some), repeats
    )
    n, q = (500, 1000) if quick else (15_000, 4000)
    many = _uncertainty(n, q, 0.0)
    extra = peak_bytes(lambda: uncertainty_correlation(many)) - 8 * q * q
    yield exact(
        f"C, extra memory beside itself, {n:,} x {q:,}, MB", extra / 1e6, 500, "counts of as many labels as fit"
    )


def refresh_rows(repeats: int, quick: bool) -> Iterator[Row]:
    """U, C, w and P of all samples against one read of the state, and bytes of state and checkpoint."""
    n, q = (100_000 if quick else 1_000_000), 80
    for name, dtype, bound in (("float16", torch.float16, 4.0), ("uint8", torch.uint8, None)):
        strategy = _trained(n, q, dtype)
        values = strategy.memory.values  # type: ignore[union-attr]
        yield ratio(
            f"refresh / one read of the state, {n:,} x {q}, {name}",
            lambda strategy=strategy: strategy.measure(),  # type: ignore[misc]
            lambda values=values: values.sum(dtype=torch.float32),  # type: ignore[misc]
            repeats,
            bound,
            "U is computed twice (for C, for w) where it is not kept; logarithms; the product for C",
        )
        extra = peak_bytes(strategy.measure)
        yield exact(f"refresh, extra memory / state, {name}", extra / values.nbytes, 0.25, "blocks of rows; U if kept")
    for dtype in (torch.float32, torch.float16, torch.uint8):
        history = PredictionHistory(1000, q, 5, dtype)
        held = history.values.nbytes + history.visits.nbytes
        file = io.BytesIO()
        torch.save(history.state_dict(), file)
        name = str(dtype).removeprefix("torch.")
        bound = 5 * dtype.itemsize + 1
        yield exact(f"state, bytes per (sample, label), T = 5, {name}", held / (1000 * q), bound, "T predictions")
        yield exact(f"checkpoint, bytes per (sample, label), {name}", file.tell() / (1000 * q), None, "the state")


def drawing_rows(repeats: int, quick: bool) -> Iterator[Row]:
    """An epoch's draws against a random permutation."""
    n = 1_000_000 if quick else 10_000_000
    bound = None if quick else 5.0  # at 10^6 a permutation still fits into the cache
    skewed = _skewed(n)
    heavy = skewed.clone()
    heavy[7] = skewed.sum() / 9
    for name, probs, replacement, at_most in (
        ("batch", skewed, "batch", bound),
        ("batch, one sample with a tenth of P", heavy, "batch", None),
        ("systematic", skewed, "systematic", bound),
        ("full", skewed, "full", None),
        ("none", skewed, "none", None),
    ):
        yield ratio(
            f"drawing / randperm, n = {n:,}, {name}",
            _draw(probs, replacement),
            lambda: torch.randperm(n, generator=epoch_generator(0, 0)),
            repeats,
            at_most,
            "exponential gaps, one sweep through the cumulative sum, a shuffle, a sort of each batch",
        )


def growth_rows(repeats: int, quick: bool) -> Iterator[Row]:
    """How seconds grow with n, q, T and bins."""
    scale = 1 if quick else 4
    yield growth(
        "growth of drawing in n", lambda n: _draw(_skewed(n), "batch"), [50_000 * scale, 400_000 * scale], repeats, 1.25
    )

    def heavy(n: int) -> Work:
        probs = _skewed(n)
        probs[3] = probs.sum() / 9
        return _draw(probs, "batch")

    yield growth("growth of drawing in n, one heavy sample", heavy, [50_000 * scale, 400_000 * scale], repeats, 1.25)
    yield growth(
        "growth of a refresh in n", lambda n: _trained(n, 20).measure, [20_000 * scale, 80_000 * scale], repeats, 1.25
    )
    yield growth("growth of a refresh in T", lambda t: _trained(20_000, 20, window=t).measure, [4, 16], repeats, 1.25)
    yield growth("growth of C in q", lambda q: _correlate(4000, q, 5), [100, 400], repeats, 2.25)
    yield growth("growth of C in bins", lambda bins: _correlate(4000, 100, bins), [4, 16], repeats, 2.25)


def _against_product(name: str, uncertainty: Tensor, repeats: int, bound: float, limit: str) -> Row:
    binned = (uncertainty * 5).floor().clamp(0, 4)
    hot = (binned.unsqueeze(1) == torch.arange(1, 5).view(-1, 1)).flatten(1).float()
    return ratio(name, lambda: uncertainty_correlation(uncertainty), lambda: hot.T @ hot, repeats, bound, limit)


def _correlate(n: int, q: int, bins: int) -> Work:
    uncertainty = _uncertainty(n, q, 0.0)
    return lambda: uncertainty_correlation(uncertainty, bins)


def _pairwise(uncertainty: Tensor) -> np.ndarray:
    binned = (uncertainty * 5).long().clamp(max=4).numpy().T
    return np.array([[mutual_info_score(one, other) for one in binned] for other in binned])


def _uncertainty(n: int, q: int, share: float) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    values = torch.rand(n, q, generator=generator)
    # Outside the crowded bin (the third), values fall into the others.
    crowded = torch.rand(n, q, generator=generator) < share
    return torch.where(crowded, 0.5, values if share == 0 else (values * 0.8 + 0.6) % 1.0)


def _skewed(n: int) -> Tensor:
    return torch.softmax(torch.rand(n, generator=torch.Generator().manual_seed(0)).double() * 4.6, 0)


def _draw(probs: Tensor, replacement: str) -> Work:
    return lambda: draw_epoch(probs, BATCH, len(probs), epoch_generator(0, 0), replacement)  # type: ignore[arg-type]


def _trained(n: int, q: int, dtype: torch.dtype = torch.float32, window: int = 5) -> UBS:
    strategy = UBS(window=window)
    strategy.reset(TrainingSet(n, history_dtype=dtype))
    generator = torch.Generator().manual_seed(0)
    for _ in range(2):
        for ids in torch.split(torch.randperm(n, generator=generator), 100_000):
            strategy.update(ids, torch.rand(len(ids), q, generator=generator))
    return strategy
