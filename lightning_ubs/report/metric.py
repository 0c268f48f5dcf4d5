"""The metrics that a report shows, and which way is better: what the runs recorded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from lightning_ubs._utils.metric_names import REPORTED, TITLES
from lightning_ubs.errors import ReportError
from lightning_ubs.experiment.record import RunRecord


@dataclass(frozen=True)
class Metric:
    """A metric of the runs.

    Attributes:
        key: Its name in the results, without ``val_`` or ``test_``.
        title: Its name in print.
        higher_is_better: Which way is better; None if nobody said.
        stage: ``"test"``, or ``"val"`` where no run has a test value.
    """

    key: str
    title: str
    higher_is_better: bool | None
    stage: str = "test"

    @property
    def sign(self) -> int:
        """Either +1 or −1: times a difference, this is a gain."""
        return 1 if self.higher_is_better else -1

    @property
    def arrow(self) -> str:
        """The good direction as a sign; empty if unknown."""
        return {True: "↑", False: "↓", None: ""}[self.higher_is_better]


def recorded_metrics(
    records: Sequence[RunRecord], names: Sequence[str] | None = None, monitor: str | None = None
) -> list[Metric]:
    """The metrics to show, the monitored one first.

    Args:
        records: Finished runs.
        names: Which to show, by key; None: of the built-in models' metrics those in `REPORTED`, and all that are not
            theirs.
        monitor: The logged name that the verdict is about, such as ``val_auc``; None: the one that the runs monitored.

    Raises:
        ReportError: If a name was not recorded.
    """
    found: dict[str, Metric] = {}
    stages: dict[str, set[str]] = {}
    for record in records:
        for key, metric in record.metrics.items():
            stages.setdefault(key, set()).add(metric.stage)
            known = found.get(key)
            if known is None or known.higher_is_better is None:
                found[key] = Metric(key, TITLES.get(key, key), metric.higher_is_better)
    for key, mode in _modes(records).items():
        if key in found and found[key].higher_is_better is None:  # the mode chose the best epoch, so somebody said it
            found[key] = replace(found[key], higher_is_better=mode == "max")
    found = {
        key: Metric(key, one.title, one.higher_is_better, "test" if "test" in stages[key] else "val")
        for key, one in found.items()
    }
    wanted = [_key(name, found, "report.metrics") for name in names or ()]
    first = _key(monitor, found, "monitor") if monitor is not None else _monitored(records, found)
    chosen = wanted or [key for key in REPORTED if key in found] + sorted(set(found) - set(TITLES))
    if first is not None:
        chosen = [first, *chosen]
    return [found[key] for key in dict.fromkeys(chosen or found)]


def _monitored(records: Sequence[RunRecord], found: dict[str, Metric]) -> str | None:
    """The key of what most runs monitored, where it is also among the metrics."""
    monitors = [record.monitor for record in records]
    key = _plain(max(set(monitors), key=monitors.count, default=""))
    return key if key in found else None


def _modes(records: Sequence[RunRecord]) -> dict[str, str]:
    """Whether a metric that was monitored should be large or small, by key; none on which runs disagree."""
    modes: dict[str, set[str]] = {}
    for record in records:
        modes.setdefault(_plain(record.monitor), set()).add(record.mode)
    return {key: found.pop() for key, found in modes.items() if len(found) == 1}


def _key(name: str, found: dict[str, Metric], option: str) -> str:
    key = name if name in found else _plain(name)
    if key not in found:
        raise ReportError(
            f"{option}={name!r} is not a metric of these runs; they recorded {', '.join(sorted(found)) or 'none'}."
        )
    return key


def _plain(name: str) -> str:
    return name.removeprefix("val_").removeprefix("test_")
