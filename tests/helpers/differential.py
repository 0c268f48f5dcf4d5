"""Random configurations, trained for real and compared with the slow reference in every epoch.

Run ``PYTHONPATH=tests python tests/helpers/differential.py 300`` for as many as you like.
"""

from __future__ import annotations

import random
import sys
import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import reference
import torch
from tiny_training import Q, Tiny, Watch, data, loader, trainer

from lightning_ubs import UBS, ActiveBias, Balance, BatchSelection, HardImbalance, Random, RecencyBias


@dataclass(frozen=True)
class Configuration:
    """One way to train."""

    number: int
    n: int
    epochs: int
    strategy: Any
    selection: dict[str, Any]
    loader: dict[str, Any]
    trainer: dict[str, Any] = field(default_factory=dict)


def configuration(number: int, workers: bool = True) -> Configuration:
    """Configuration ``number``; the same each time."""
    chance = random.Random(number)
    correlation = chance.choice([None, "mutual_information"])
    bins, s0, window = chance.choice([2, 5, 9]), chance.choice([1.0, 7.0, 100.0]), chance.choice([2, 3, 5])
    strategy = chance.choice(
        [
            UBS(lambda1=chance.choice([0.0, 0.3, 1.0]), window=window, s0=s0, bins=bins, correlation=correlation),
            UBS(
                lambda1=chance.choice([0.5, 0.8]),
                window=window,
                s0=s0,
                bins=bins,
                correlation=correlation,
                quantizer="ceil",
            ),
            RecencyBias(window=window, s0=s0, correlation=correlation, bins=bins),
            ActiveBias(correlation=correlation, bins=bins, smoothing=chance.choice([None, 0.1])),
            ActiveBias(mode="quantized", s0=s0, correlation=correlation, bins=bins, ddof=chance.choice([0, 1])),
            HardImbalance(pressure=chance.choice([1.0, 8.0]), neighbours=chance.choice([1, 3])),
            Balance(),
            Random(fill_last=chance.random() < 0.5),
        ]
    )
    n, epochs = chance.randint(9, 42), chance.randint(2, 5)
    replacement = chance.choice(["batch", "none", "full", "systematic"])
    selection = {
        "warmup_epochs": chance.randint(0, 3),
        "seed": chance.randint(0, 99),
        "replacement": replacement,
        "end_epoch": chance.choice([None, 3, 9]),
        "epoch_size": chance.choice([None, None, 0.5, 7]),
        "fill_last": replacement != "none" and chance.random() < 0.3,
    }
    limit = chance.choice([1.0, 1.0, 2])
    options = {
        "limit_train_batches": limit,
        "accumulate_grad_batches": chance.choice([1, 1, 3]),
        "reload_dataloaders_every_n_epochs": chance.choice([0, 0, 1]),
    }
    return Configuration(
        number,
        n,
        epochs,
        strategy,
        selection,
        {
            "batch_size": chance.choice([1, 3, 8, 50]),
            "drop_last": chance.random() < 0.3,
            "shuffle": chance.random() < 0.5,
            "num_workers": 2 if workers and chance.random() < 0.15 else 0,
        },
        options,
    )


def check(one: Configuration) -> int:
    """Train as ``one`` says and compare each epoch with the reference; returns the number of epochs compared."""
    dataset = data(one.n, seed=one.number)
    size = min(one.loader["batch_size"], one.n)
    if one.loader["drop_last"] and _epoch_samples(one) < one.loader["batch_size"]:
        return 0
    selection = BatchSelection(one.strategy, **one.selection)
    watch, module = Watch(selection), Tiny()
    made = trainer(selection, watch, max_epochs=one.epochs, **one.trainer)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            made.fit(module, loader(dataset, **one.loader))
        except Exception as error:
            raise AssertionError(f"configuration {one} failed: {error}") from error
    end = one.selection["end_epoch"]
    end = max(one.epochs - 1, one.selection["warmup_epochs"]) if end is None else end
    for epoch in range(len(watch.shown)):
        _compare(one, epoch, end, module, watch, dataset, size, one.n)
    return len(watch.shown)


def _epoch_samples(one: Configuration) -> int:
    share = one.selection["epoch_size"] or one.n
    return max(1, round(share * one.n)) if share < 1 else share


def _compare(one: Any, epoch: int, end: int, module: Any, watch: Any, dataset: Any, size: int, n: int) -> None:
    shown, strategy, start = watch.shown[epoch], one.strategy, one.selection["warmup_epochs"]
    trained, planned = module.ids()[epoch], watch.plans[epoch]
    assert trained == planned[: len(trained)], one
    stops = one.selection["end_epoch"] is not None and not strategy.decays
    selected = (epoch >= start or not strategy.warms_up) and not (stops and epoch >= end)
    known = _histories(module, epoch, n)
    seen = any(known)
    expected = np.full(n, 1 / n)
    if "predictions" in strategy.needs and seen:
        expected = _expected(one, epoch, end, known, shown, dataset, n, selected)
    np.testing.assert_allclose(shown["probabilities"].numpy(), expected, rtol=2e-4, err_msg=str(one))
    flat = [i for ids in planned for i in ids]
    m = (
        n
        if one.selection["epoch_size"] is None
        else round(one.selection["epoch_size"] * (n if one.selection["epoch_size"] < 1 else 1))
    )
    whole = (m // one.loader["batch_size"]) * one.loader["batch_size"] if one.loader["drop_last"] else m
    fill = one.selection["fill_last"] or getattr(strategy, "fill_last", False)
    fills = selected and fill and not isinstance(strategy, Balance)
    assert len(flat) == (len(planned) * size if fills else min(whole, len(planned) * size)), one
    if not selected and m == n:
        assert len(set(flat)) == len(flat), one
    if selected and one.selection["replacement"] == "none":
        assert len(set(flat)) == len(flat) or isinstance(strategy, Random), one
    if selected and one.selection["replacement"] == "batch" and not isinstance(strategy, Random):
        assert all(len(set(ids)) == len(ids) for ids in planned), one


def _histories(module: Any, epochs: int, n: int) -> list[list[list[float]]]:
    """All predictions of each sample before an epoch; twice in one batch is one visit."""
    known: list[list[list[float]]] = [[] for _ in range(n)]
    for epoch in range(epochs):
        for ids, probs in module.seen[epoch]:
            for i, row in dict(zip(ids, probs.tolist(), strict=True)).items():
                known[i].append(row)
    return known


def _expected(
    one: Any, epoch: int, end: int, known: Any, shown: Any, dataset: Any, n: int, selected: bool
) -> np.ndarray:
    """P by the reference, after U, C and w were compared with it."""
    strategy = one.strategy
    if isinstance(strategy, HardImbalance):
        labels, features = dataset.tensors[1].numpy(), dataset.tensors[0].numpy()
        losses = np.array(
            [reference.cross_entropy(r[-1], labels[i].tolist()) if r else 0.0 for i, r in enumerate(known)]
        )
        hardness = reference.imbalance_weights(labels, features, strategy.neighbours) * losses
        return reference.hardness_probabilities(hardness, strategy.pressure) if selected else np.full(n, 1 / n)
    uncertainty = _uncertainty(strategy, known)
    np.testing.assert_allclose(shown["uncertainty"].numpy(), uncertainty, atol=2e-6, err_msg=str(one))
    matrix = None
    if strategy.correlation is not None:
        # Bins are those of the float32 values that the strategy sees: a value on an edge may fall to either side.
        matrix = reference.correlation(shown["uncertainty"].double().numpy(), strategy.bins)
        np.testing.assert_allclose(shown["correlation"].numpy(), matrix, atol=1e-9, err_msg=str(one))
    raw = reference.raw_weights(uncertainty, matrix)
    np.testing.assert_allclose(shown["weights"].numpy(), reference.scale(raw), atol=2e-4, err_msg=str(one))
    if not selected:
        return np.full(n, 1 / n)
    if isinstance(strategy, ActiveBias) and strategy.mode == "proportional":
        return reference.proportional(list(raw), strategy.smoothing)
    pressure = reference.pressure(epoch, one.selection["warmup_epochs"], end, strategy.s0)
    assert abs(shown["pressure"] - pressure) < 1e-9 * pressure, one
    # The quantizer is compared on the weights themselves, whose last bits decide on an edge.
    return reference.probabilities(shown["weights"].tolist(), pressure, strategy.quantizer)


def _uncertainty(strategy: Any, known: Any) -> np.ndarray:
    if isinstance(strategy, UBS):
        return reference.label_uncertainty([rows[-strategy.window :] for rows in known], Q, strategy.lambda1)
    if isinstance(strategy, RecencyBias):
        windows = [rows[-strategy.window :] for rows in known]
        return np.array([[reference.recency_entropy([row[j] for row in rows]) for j in range(Q)] for rows in windows])
    return np.array([[reference.spread([row[j] for row in rows], strategy.ddof) for j in range(Q)] for rows in known])


if __name__ == "__main__":
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 300
    compared = 0
    for number in range(count):
        torch.manual_seed(number)
        compared += check(configuration(number))
        print(f"\r{number + 1} of {count} configurations, {compared} epochs equal", end="", flush=True)
    print()
