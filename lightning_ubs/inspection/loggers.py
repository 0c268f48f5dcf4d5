"""Data map and label correlation as images in the Trainer's loggers, while the model trains."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from lightning.pytorch import Callback, LightningModule, Trainer
from typing_extensions import override

from lightning_ubs._utils.checks import check_range
from lightning_ubs.errors import SelectionError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Pictured(Protocol):
    """What has pictures: a :class:`BatchSelection`."""

    def plot_data_map(self) -> Figure:
        """A scatter plot of the samples."""

    def plot_correlation(self) -> Figure:
        """A heat map of the label correlation."""


class SelectionImages(Callback):
    """Images of a selection's data map and label correlation, for the loggers that can show them.

    These are TensorBoard, Weights & Biases and MLflow, by Lightning's own loggers. Any other logger, such as CSV, is
    left alone without a word, as are pictures that the strategy does not have. Numbers are logged by
    :class:`BatchSelection` itself. Needs matplotlib, which comes with the extra ``experiments``.

    Args:
        selection: The callback to watch; it may stand before or after this one in the list.
        every_n_epochs: Epochs between two images; the last epoch has them besides.

    >>> from lightning_ubs import BatchSelection
    >>> SelectionImages(BatchSelection(), every_n_epochs=0)
    Traceback (most recent call last):
    ValueError: every_n_epochs=0 is out of range; it must be a whole number of at least 1.
    """

    def __init__(self, selection: Pictured, every_n_epochs: int = 5) -> None:
        check_range("every_n_epochs", every_n_epochs, 1, whole=True)
        self.selection = selection
        self.every_n_epochs = int(every_n_epochs)

    @override
    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        epoch = trainer.current_epoch
        last = trainer.max_epochs is not None and epoch == trainer.max_epochs - 1
        if not trainer.is_global_zero or (epoch % self.every_n_epochs and not last):
            return
        shown = [logger for logger in trainer.loggers if _shows_images(logger)]
        for name, figure in self._figures() if shown else ():
            figure.axes[0].set_title(f"{figure.axes[0].get_title(loc='left')}, epoch {epoch}", loc="left")
            for logger in shown:
                _add_image(logger, name, figure, epoch, trainer.global_step)

    def _figures(self) -> Iterator[tuple[str, Figure]]:
        pictures = {"label_correlation": self.selection.plot_correlation, "data_map": self.selection.plot_data_map}
        for name, picture in pictures.items():
            try:
                figure = picture()
            except SelectionError:  # too early, or not with this strategy
                continue
            yield name, figure


def _shows_images(logger: Any) -> bool:
    return _is_wandb(logger) or _is_tensorboard(logger) or _is_mlflow(logger)


# By what they can do rather than by class: a Trainer of pytorch_lightning has loggers of its own.
def _is_wandb(logger: Any) -> bool:
    return hasattr(logger, "log_image")


def _is_tensorboard(logger: Any) -> bool:
    return hasattr(logger.experiment, "add_figure")


def _is_mlflow(logger: Any) -> bool:
    return hasattr(logger, "run_id") and hasattr(logger.experiment, "log_figure")


def _add_image(logger: Any, name: str, figure: Figure, epoch: int, step: int) -> None:
    canvas: Any = figure.canvas
    if _is_wandb(logger):
        canvas.draw()
        logger.log_image(f"selection/{name}", [np.asarray(canvas.buffer_rgba())], step=step)
    elif _is_tensorboard(logger):
        logger.experiment.add_figure(f"selection/{name}", figure, global_step=epoch, close=False)
    else:
        logger.experiment.log_figure(logger.run_id, figure, f"selection/{name}/epoch_{epoch:04d}.png")
