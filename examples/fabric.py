"""A training loop of your own in Lightning Fabric: a strategy without the callback, from the parts of this package.

What the callback would do besides (verify ids, resume exactly, several processes) is yours to do here.
Run it with ``python examples/fabric.py [--fast]``; it needs ``pip install -e ".[experiments]"``.
"""

from __future__ import annotations

import sys

import torch
from lightning.fabric import Fabric
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.utils.data import DataLoader, TensorDataset

from lightning_ubs import UBS, TrainingSet
from lightning_ubs.data import make_digits
from lightning_ubs.functional import draw_epoch

EPOCHS, WARMUP, BATCH = (3, 1, 32) if "--fast" in sys.argv else (20, 3, 32)

if __name__ == "__main__":
    fabric = Fabric(accelerator="cpu")
    fabric.seed_everything(0)
    digits = make_digits(300 if "--fast" in sys.argv else 2000)
    data = TensorDataset(torch.from_numpy(digits.X), torch.from_numpy(digits.Y).float())
    net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    net, optimizer = fabric.setup(net, torch.optim.Adam(net.parameters(), lr=1e-3))

    strategy = UBS()
    strategy.reset(TrainingSet(num_samples=len(data)))
    for epoch in range(EPOCHS):
        strategy.measure()  # U, C and w, from the predictions of the epochs before
        pressure = strategy.pressure_at(epoch, start=WARMUP, end=EPOCHS - 1) if epoch >= WARMUP else 1.0
        chances = strategy.probabilities(pressure) if epoch >= WARMUP else strategy.uniform()
        # "batch" repeats no sample within a batch: a strategy takes distinct ids in each update.
        order = draw_epoch(chances, BATCH, len(data), torch.Generator().manual_seed(epoch), "batch").split(BATCH)
        loader = fabric.setup_dataloaders(DataLoader(data, batch_sampler=[ids.tolist() for ids in order]))
        total = 0.0
        for ids, (x, y) in zip(order, loader, strict=True):
            logits = net(x)
            loss = binary_cross_entropy_with_logits(logits, y)
            fabric.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            strategy.update(ids, logits.detach().sigmoid())
            total += loss.item() * len(ids)
        print(f"epoch {epoch:2d}: pressure {pressure:5.1f}, loss on what was drawn {total / len(data):.3f}")
