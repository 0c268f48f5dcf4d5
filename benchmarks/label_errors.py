"""How well ``selection.suspicious_labels()`` finds labels that were flipped at random, beside cleanlab.

    python benchmarks/label_errors.py --data-dir DATA --datasets yeast enron --epochs 30 100

5 % of all (sample, label) pairs are flipped, an MLP is trained on the flipped labels, and every score ranks all pairs:

* UBS: the mean of the last five predictions that training passes remembered, as ``suspicious_labels`` has it;
* its latest prediction only;
* ActiveBias: the mean of all predictions since the first epoch, as ``suspicious_labels`` has it;
* cleanlab's per-class label quality (self-confidence, its default) on UBS's mean predictions, and the same with
  ``adjust_pred_probs`` and with confidence-weighted entropy;
* the same self-confidence on predictions of samples that were held out (five folds, plain training): what cleanlab
  recommends, at the price of five trainings.

Prints the precision among the top 5 % and the AUROC over all pairs, mean and standard deviation over the seeds. By
chance they are 0.05 and 0.5.
"""

from __future__ import annotations

import argparse
import logging
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch
from cleanlab.multilabel_classification.rank import get_label_quality_scores_per_class
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import KFold
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from lightning_ubs import UBS, ActiveBias, BatchSelection
from lightning_ubs.data import catalog
from lightning_ubs.models import MLP

SHARE = 0.05
FOLDS = 5


def trained(x: Tensor, y: Tensor, epochs: int, seed: int, *callbacks: L.Callback) -> MLP:
    """An MLP that was trained on all of ``x``."""
    L.seed_everything(seed, verbose=False)
    model = MLP(x.shape[1], y.shape[1])
    L.Trainer(
        accelerator="cpu",
        max_epochs=epochs,
        callbacks=list(callbacks),
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    ).fit(model, DataLoader(TensorDataset(x, y), batch_size=128, shuffle=True))
    return model


def held_out(x: Tensor, y: Tensor, epochs: int, seed: int) -> np.ndarray[Any, Any]:
    """Predictions of each sample by a model that has not seen it."""
    found = torch.zeros_like(y)
    for train, test in KFold(FOLDS, shuffle=True, random_state=seed).split(x):
        model = trained(x[train], y[train], epochs, seed).eval()
        found[test] = model.predict_probs(x[test]).detach()
    return found.numpy()


def quality(y: Tensor, predictions: np.ndarray[Any, Any], **options: Any) -> np.ndarray[Any, Any]:
    """How suspicious cleanlab finds each pair."""
    labels = [row.nonzero().flatten().tolist() for row in y]
    found: np.ndarray[Any, Any] = 1 - get_label_quality_scores_per_class(labels, predictions, **options)
    return found


def scores(x: Tensor, y: Tensor, epochs: int, seed: int) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    """Every way of ranking the (n, q) pairs, the most suspicious with the highest score."""
    own: Callable[[BatchSelection], np.ndarray[Any, Any]] = lambda one: _matrix(one, y.shape, "score")  # noqa: E731
    selection = BatchSelection(UBS(), warmup_epochs=5, seed=seed)
    trained(x, y, epochs, seed, selection)
    yield "UBS, mean of the last 5", own(selection)
    latest, _ = selection.strategy.memory.rows(0, len(y))  # type: ignore[attr-defined]
    yield "UBS, latest only", (latest[:, -1] - y).abs().numpy()
    active = BatchSelection(ActiveBias(), warmup_epochs=5, seed=seed)
    trained(x, y, epochs, seed, active)
    yield "ActiveBias, mean of all", own(active)
    mean = _matrix(selection, y.shape, "mean_prediction")
    yield "cleanlab, self-confidence, same predictions", quality(y, mean)
    yield "cleanlab, adjusted, same predictions", quality(y, mean, adjust_pred_probs=True)
    yield "cleanlab, weighted entropy, same predictions", quality(y, mean, method="confidence_weighted_entropy")
    yield "cleanlab, self-confidence, held-out predictions", quality(y, held_out(x, y, epochs, seed))


def _matrix(selection: BatchSelection, shape: torch.Size, column: str) -> np.ndarray[Any, Any]:
    frame = selection.suspicious_labels(top=shape.numel())
    found = np.full(shape, np.nan)
    found[frame["id"], frame["label"]] = frame[column]
    return found


def main() -> None:
    """Print one table per dataset and number of epochs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, default=None, help="where the datasets are or are downloaded to")
    parser.add_argument("--datasets", nargs="+", default=["yeast", "enron"])
    parser.add_argument("--epochs", nargs="+", type=int, default=[30])
    parser.add_argument("--seeds", type=int, default=3, help="of the flips, the initial weights and the draws")
    args = parser.parse_args()

    torch.set_num_threads(1)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")
    for dataset in args.datasets:
        data = catalog.load(dataset, args.data_dir, view="full")
        features = data.X.toarray() if hasattr(data.X, "toarray") else data.X
        x, clean = torch.as_tensor(np.asarray(features, dtype=np.float32)), torch.as_tensor(data.Y).float()
        for epochs in args.epochs:
            found: dict[str, list[tuple[float, float]]] = defaultdict(list)
            for seed in range(args.seeds):
                flipped = np.zeros(clean.numel(), dtype=bool)
                number = round(SHARE * len(flipped))
                flipped[np.random.default_rng(seed).choice(len(flipped), number, replace=False)] = True
                wrong = torch.as_tensor(flipped).view_as(clean)
                for name, ranked in scores(x, torch.where(wrong, 1 - clean, clean), epochs, seed):
                    top = np.argsort(-ranked.ravel(), kind="stable")[:number]
                    found[name].append((flipped[top].mean(), roc_auc_score(flipped, ranked.ravel())))
            print(f"\n{dataset}, {epochs} epochs, {args.seeds} seeds\n\n| score | precision in the top 5 % | AUROC |")
            print("|---|---|---|")
            for name, pairs in found.items():
                mean, spread = np.mean(pairs, axis=0), np.std(pairs, axis=0, ddof=1)
                cells = [f"{m:.3f} ± {s:.3f}" for m, s in zip(mean, spread, strict=True)]
                print(f"| {name} | {cells[0]} | {cells[1]} |", flush=True)


if __name__ == "__main__":
    main()
