"""Multi-label text classification with a Hugging Face transformer; the batches are dicts, the model returns an object.

The transformer is small and has random weights, and the texts are made up, so that nothing is downloaded. With
``from_pretrained`` and your own texts the rest stays as it is. Run it with ``python examples/huggingface_text.py
[--fast]``; it needs ``pip install -e . transformers``.
"""

from __future__ import annotations

import random
import sys

import lightning as L
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from transformers import BertConfig, BertForSequenceClassification

from lightning_ubs import UBS, BatchSelection

TOPICS = {"sport": "goal team match win", "money": "bank price market share", "weather": "rain wind sun cloud"}
FILLERS = ["the", "a", "today", "some", "new", "more", "last", "people", "said", "again"]
WORDS = ["[PAD]", *FILLERS, *" ".join(TOPICS.values()).split()]


class Texts(Dataset):
    """Sentences about one or more topics; ``labels`` is what batch selection verifies its ids by."""

    def __init__(self, count: int, seed: int = 0) -> None:
        chance = random.Random(seed)
        self.labels = torch.tensor([[float(chance.random() < 0.4) for _ in TOPICS] for _ in range(count)])
        self.texts = [self.text(chance, row) for row in self.labels.tolist()]

    def text(self, chance: random.Random, row: list[float]) -> str:
        """A sentence with words of its topics among fillers."""
        topics = [words.split() for words, on in zip(TOPICS.values(), row, strict=True) if on]
        return " ".join([*(chance.choice(words) for words in topics), *chance.choices(FILLERS, k=8)])

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        tokens = [WORDS.index(word) for word in self.texts[index].split()]
        ids = torch.tensor(tokens + [0] * (12 - len(tokens)))
        return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": self.labels[index]}


class Classifier(L.LightningModule):
    """As people write it: the transformer computes its own loss, and the step returns nothing else."""

    def __init__(self) -> None:
        super().__init__()
        sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
        config = BertConfig(vocab_size=len(WORDS), num_labels=3, problem_type="multi_label_classification", **sizes)
        self.transformer = BertForSequenceClassification(config)

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        return self.transformer(**batch).loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


if __name__ == "__main__":
    fast = "--fast" in sys.argv
    L.seed_everything(0, verbose=False)
    selection = BatchSelection(UBS(), warmup_epochs=1)
    loader = DataLoader(Texts(64 if fast else 1000), batch_size=16, shuffle=True)
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    L.Trainer(max_epochs=3 if fast else 8, callbacks=[selection], accelerator="cpu", **quiet).fit(Classifier(), loader)
    for index in selection.weights.argsort(descending=True)[:3].tolist():
        print(f"w = {selection.weights[index]:.2f}: {loader.dataset.texts[index]}")
