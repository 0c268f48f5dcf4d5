"""Every constructor takes its own parameters and refuses what cannot work."""

from __future__ import annotations

import inspect
import math
from typing import Any

import pytest
from all_strategies import KINDS

from lightning_ubs import (
    UBS,
    ActiveBias,
    Balance,
    BatchSelection,
    HardImbalance,
    InfoBatch,
    LossBias,
    Random,
    RecencyBias,
    Strategy,
    UncertaintyStrategy,
)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_strategies_are_made_by_keywords_that_they_keep_and_show(kind: type[Strategy]) -> None:
    parameters = inspect.signature(kind).parameters
    others = [name for name, one in parameters.items() if one.kind is not inspect.Parameter.KEYWORD_ONLY]
    assert others == (["threshold"] if kind.__name__ == "RepeatFactor" else [])
    made = kind()
    assert {name: getattr(made, name) for name in parameters} == {n: p.default for n, p in parameters.items()}
    assert eval(repr(made), {kind.__name__: kind}).__dict__.keys() == made.__dict__.keys()
    assert repr(made) == f"{kind.__name__}()"


def test_a_strategy_shows_what_differs_from_the_defaults_its_own_arguments_first() -> None:
    assert repr(UBS(s0=64, lambda1=0.6, window=5)) == "UBS(lambda1=0.6, s0=64.0)"
    assert repr(ActiveBias(mode="quantized", bins=9, smoothing=0.1)) == (
        "ActiveBias(mode='quantized', smoothing=0.1, bins=9)"
    )
    assert repr(UBS(correlation=None)) == "UBS(correlation=None)"
    assert repr(RecencyBias(correlation=None)) == "RecencyBias()"


def test_the_defaults_are_the_papers() -> None:
    ubs = UBS()
    assert (ubs.lambda1, ubs.window, ubs.s0, ubs.bins) == (0.5, 5, 100.0, 5)
    assert ubs.correlation == "mutual_information"
    assert ubs.log_base == math.e
    assert ubs.quantizer == "floor"
    assert RecencyBias().correlation is None
    assert ActiveBias().correlation is None
    assert HardImbalance().pressure == 8.0


nan, inf = math.nan, math.inf
OUT_OF_RANGE: list[tuple[type[Any], str, Any, str]] = [
    (UBS, "lambda1", -0.1, r"in \[0, 1\]"),
    (UBS, "lambda1", 1.1, r"in \[0, 1\]"),
    (UBS, "lambda1", nan, r"in \[0, 1\]"),
    (UBS, "window", 1, "at least 2"),
    (UBS, "window", 0, "at least 2"),
    (UBS, "window", 2.5, ""),
    (UBS, "s0", 0.99, "at least 1"),
    (UBS, "s0", -1, "at least 1"),
    (UBS, "s0", nan, "at least 1"),
    (UBS, "s0", inf, ""),
    (UBS, "bins", 1, "at least 2"),
    (UBS, "bins", 2.7, ""),
    (UBS, "log_base", 1.0, "above 1"),
    (UBS, "log_base", 0.5, "above 1"),
    (UBS, "log_base", nan, "above 1"),
    (UBS, "log_base", inf, ""),
    (UBS, "correlation_every", 0, "at least 1"),
    (UBS, "correlation_every", 1.5, ""),
    (UBS, "temperature", 0, "above 0"),
    (UBS, "temperature", -1.0, "above 0"),
    (UBS, "temperature", nan, "above 0"),
    (UBS, "temperature", inf, "above 0"),
    (UBS, "correlation", "pearson", "'mutual_information' or None"),
    (UBS, "quantizer", "round", "'floor' or 'ceil'"),
    (RecencyBias, "window", 1, "at least 2"),
    (RecencyBias, "s0", 0, "at least 1"),
    (RecencyBias, "bins", 0, "at least 2"),
    (RecencyBias, "quantizer", "", "'floor' or 'ceil'"),
    (ActiveBias, "mode", "weighting", "'proportional' or 'quantized'"),
    (ActiveBias, "smoothing", -0.1, "at least 0"),
    (ActiveBias, "smoothing", nan, "at least 0"),
    (ActiveBias, "smoothing", inf, ""),
    (ActiveBias, "ddof", 2, r"in \[0, 1\]"),
    (ActiveBias, "ddof", -1, r"in \[0, 1\]"),
    (ActiveBias, "s0", 0.5, "at least 1"),
    (ActiveBias, "correlation", "yes", "'mutual_information' or None"),
    (HardImbalance, "pressure", 0.5, "at least 1"),
    (HardImbalance, "pressure", nan, "at least 1"),
    (HardImbalance, "pressure", inf, ""),
    (HardImbalance, "neighbours", 0, "at least 1"),
    (HardImbalance, "neighbours", 1.5, ""),
    (LossBias, "s0", 0.5, "at least 1"),
    (LossBias, "mode", "linear", "'quantized' or 'proportional'"),
    (LossBias, "floor", -0.1, "at least 0"),
    (LossBias, "floor", nan, "at least 0"),
    (InfoBatch, "prune", 0, "between 0 and 1"),
    (InfoBatch, "prune", 1, "between 0 and 1"),
    (InfoBatch, "prune", -0.5, "between 0 and 1"),
    (InfoBatch, "prune", 1.5, "between 0 and 1"),
    (InfoBatch, "prune", nan, "between 0 and 1"),
    (InfoBatch, "score", "margin", "'loss' or 'uncertainty'"),
    (BatchSelection, "unbiased", "yes", "True, False, 'annealed' or 'predictions'"),
    (BatchSelection, "warmup_epochs", -1, "at least 0"),
    (BatchSelection, "seed", -1, "at least 0"),
    (BatchSelection, "start_epoch", -2, "at least 0"),
    (BatchSelection, "end_epoch", 3, "at least 5"),
    (BatchSelection, "replacement", "some", "'batch'.*'none'.*'full'"),
    (BatchSelection, "history_dtype", "int8", "bfloat16.*float16.*float32"),
    (BatchSelection, "save_state", "nothing", "'full', 'selection' or 'weights'"),
    (BatchSelection, "strategy", "ubs", "such as UBS"),
]


@pytest.mark.parametrize(("kind", "name", "value", "allowed"), OUT_OF_RANGE)
def test_a_bad_value_is_refused_with_its_name_and_what_is_allowed(
    kind: type[Any], name: str, value: Any, allowed: str
) -> None:
    with pytest.raises(ValueError, match=rf"{name}={value!r} .*{allowed}"):
        kind(**{name: value})


@pytest.mark.parametrize(
    "good",
    [
        lambda: UBS(lambda1=0),
        lambda: UBS(lambda1=1, window=2, s0=1, bins=2),
        lambda: UBS(log_base=2, quantizer="ceil", correlation=None),
        lambda: ActiveBias(smoothing=0, ddof=0),
        lambda: HardImbalance(pressure=1, neighbours=1),
        lambda: BatchSelection(seed=0, start_epoch=0, end_epoch=0),
        lambda: BatchSelection(history_dtype="float16", replacement="none"),
    ],
)
def test_the_ends_of_the_ranges_are_allowed(good: Any) -> None:
    good()


def test_only_the_strategies_with_falling_pressure_need_a_last_epoch() -> None:
    assert UBS().decays
    assert RecencyBias().decays
    assert ActiveBias(mode="quantized").decays
    assert LossBias().decays
    assert InfoBatch().decays
    assert not LossBias(mode="proportional").decays
    assert not ActiveBias().decays
    assert not any(kind().decays for kind in (HardImbalance, Balance, Random))


def test_uncertainty_strategies_share_one_base() -> None:
    assert all(issubclass(kind, UncertaintyStrategy) for kind in (UBS, ActiveBias, RecencyBias))


def test_a_strategy_of_ones_own_starts_from_the_papers_values() -> None:
    """But for label correlation, which it must ask for."""
    defaults, ubs = (inspect.signature(kind).parameters for kind in (UncertaintyStrategy, UBS))
    assert {name: one.default for name, one in defaults.items()} == {name: ubs[name].default for name in defaults} | {
        "correlation": None
    }
