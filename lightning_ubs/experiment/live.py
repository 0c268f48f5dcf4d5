"""Live view: label correlation and data map as images in TensorBoard, while the model trains."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from typing_extensions import override

from lightning_ubs.callback import BatchSelection
from lightning_ubs.plots import plot_correlation, plot_data_map


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
            title = f"Label correlation C, epoch {epoch}"
            figures["label_correlation"] = plot_correlation(selection.correlation, self.label_names, title=title)
        if selection.uncertainty is not None and selection.probabilities is not None:
            kept, n = selection.kept_ids, len(selection.probabilities)
            figures["data_map"] = plot_data_map(
                selection.uncertainty.mean(1),
                selection.uncertainty.std(1, correction=0),
                selection.probabilities[kept.start : kept.stop] * n,
                title=f"Data map, epoch {epoch}",
                fluctuation_label="Spread of uncertainty over labels",
                selected_label="Probability, as a multiple of 1/n",
            )
        return figures
