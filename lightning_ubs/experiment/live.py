"""Live view: label correlation and data map as images in TensorBoard, while the model trains."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor
from typing_extensions import override

from lightning_ubs._extras import optional_import
from lightning_ubs.callback import BatchSelection

_MOST_NAMES = 24


class SelectionImages(Callback):
    """Adds the label correlation matrix and a map of the samples as images to a TensorBoard logger.

    With any other logger it does nothing. The map shows each training sample by how uncertain the model is about it and
    how likely it is drawn in this epoch.

    Args:
        selection: the callback to watch.
        every_n_epochs: epochs between two images.
        label_names: for the axes of the matrix.

    >>> SelectionImages(BatchSelection(), every_n_epochs=0)
    Traceback (most recent call last):
    ValueError: every_n_epochs=0 is out of range; it must be at least 1.
    """

    def __init__(
        self, selection: BatchSelection, every_n_epochs: int = 5, label_names: Sequence[str] | None = None
    ) -> None:
        if every_n_epochs < 1:
            raise ValueError(f"every_n_epochs={every_n_epochs!r} is out of range; it must be at least 1.")
        self.selection = selection
        self.every_n_epochs = every_n_epochs
        self.label_names = label_names

    @override
    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        last = trainer.max_epochs is not None and trainer.current_epoch == trainer.max_epochs - 1
        if trainer.current_epoch % self.every_n_epochs and not last:
            return
        writers = [getattr(logger, "experiment", None) for logger in trainer.loggers]
        boards: list[Any] = [writer for writer in writers if hasattr(writer, "add_figure")]
        if not boards or not trainer.is_global_zero:
            return
        figures = self._figures(trainer.current_epoch)
        for board in boards:
            for name, figure in figures.items():
                board.add_figure(f"selection/{name}", figure, global_step=trainer.current_epoch, close=False)

    def _figures(self, epoch: int) -> dict[str, Any]:
        selection, figures = self.selection, {}
        if selection.correlation is not None:
            figures["label_correlation"] = _matrix(selection.correlation, self.label_names, epoch)
        if selection.uncertainty is not None and selection.probabilities is not None:
            figures["data_map"] = _map(selection.uncertainty, selection.probabilities, epoch)
        return figures


def _matrix(correlation: Tensor, names: Sequence[str] | None, epoch: int) -> Any:
    """Heat map of C (q, q); its diagonal is 1 by definition and left out."""
    values = correlation.detach().float().cpu().clone().fill_diagonal_(torch.nan).numpy()
    figure, axes = _figure(f"Label correlation C, epoch {epoch}")
    image = axes.imshow(values, cmap="cividis", interpolation="nearest", vmin=0)
    if names is not None and len(names) <= _MOST_NAMES:
        axes.set_xticks(range(len(names)), names, rotation=90)
        axes.set_yticks(range(len(names)), names)
    figure.colorbar(image, ax=axes)
    return figure


def _map(uncertainty: Tensor, probabilities: Tensor, epoch: int) -> Any:
    """Samples by mean and spread of their labels' uncertainty, coloured by how likely they are drawn."""
    share = (probabilities.cpu() * len(probabilities)).numpy()
    mean = uncertainty.mean(1).cpu().numpy()
    spread = uncertainty.std(1, correction=0).cpu().numpy()
    figure, axes = _figure(f"Data map, epoch {epoch}")
    points = axes.scatter(spread, mean, c=share, cmap="cividis", s=6, linewidths=0)
    axes.set_xlabel("Spread of uncertainty over labels")
    axes.set_ylabel("Mean uncertainty")
    figure.colorbar(points, ax=axes, label="Probability, as a multiple of 1/n")
    return figure


def _figure(title: str) -> tuple[Any, Any]:
    figure = optional_import("matplotlib.figure").Figure(figsize=(5, 4), layout="constrained")
    optional_import("matplotlib.backends.backend_agg").FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.set_title(title)
    return figure, axes
