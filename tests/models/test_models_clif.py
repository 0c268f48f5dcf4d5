"""CLIF against hand values and the naive form, and where its label graph comes from."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, leaky_relu
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

from lightning_ubs.models import CLIF
from lightning_ubs.models.clif import label_graph, link_loss

Y4 = torch.tensor([[1, 1, 0], [1, 0, 0], [1, 1, 1], [0, 0, 1]])


def data(n: int = 40, q: int = 3) -> tuple[Tensor, Tensor]:
    torch.manual_seed(3)
    return torch.rand(n, 4), (torch.rand(n, q) < 0.4).float()


def fit(model: CLIF, folder: Path, *args: Any, **kwargs: Any) -> CLIF:
    trainer = L.Trainer(
        accelerator="cpu", max_epochs=1, logger=False, enable_progress_bar=False, enable_model_summary=False,
        enable_checkpointing=False, default_root_dir=folder,
    )  # fmt: skip
    trainer.fit(model, *args, **kwargs)
    return model


def test_hand_values_of_the_graph_and_the_link_loss() -> None:
    adjacency = label_graph(Y4)
    assert torch.allclose(adjacency, torch.tensor([[0, 5 / 6, 5 / 12], [5 / 6, 0, 1 / 2], [5 / 12, 1 / 2, 0]]))
    assert float(link_loss(torch.eye(3), adjacency)) == pytest.approx(0.248457, abs=2e-6)


def test_a_label_that_never_occurs_has_no_neighbors() -> None:
    adjacency = label_graph(torch.tensor([[1, 0, 1], [1, 0, 0]]))
    assert adjacency.isfinite().all()
    assert (adjacency[1] == 0).all()
    assert (adjacency[:, 1] == 0).all()


def test_link_loss_is_zero_for_embeddings_that_match_the_graph() -> None:
    embeddings = torch.tensor([[1.0, 0.0], [3.0, 4.0]])
    adjacency = torch.tensor([[0.0, 0.6], [0.6, 0.0]])
    assert float(link_loss(embeddings, adjacency)) == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize(("q", "in_layers"), [(3, 1), (6, 2)])
def test_predictions_equal_the_naive_form(q: int, in_layers: int) -> None:
    x, y = data(q=q)
    model = CLIF(4, q, embedding_dim=6, hidden=10, in_layers=in_layers)
    model.set_label_graph(y)
    model.loss_and_probs(x, y)
    model.eval()
    nodes = model.node_features
    for layer in model.gin:
        mixed = torch.stack(
            [(1 + layer.epsilon) * nodes[i] + sum(model.adjacency[i, j] * nodes[j] for j in range(q)) for i in range(q)]
        )
        out = layer.mlp(mixed)
        nodes = out + nodes if out.shape == nodes.shape else out
    hidden = x
    for module in model.feature_layers:
        hidden = module(hidden)
    gates = torch.sigmoid(model.gate(nodes))
    expected = torch.empty(len(x), q)
    for i in range(len(x)):
        for j in range(q):
            feature = leaky_relu(model.label_features(hidden[i] * gates[j]), 0.1)
            expected[i, j] = feature @ model.heads.weight[j] + model.heads.bias[j]
    with torch.no_grad():
        assert torch.allclose(model(x), torch.sigmoid(expected), atol=1e-5)
        assert torch.allclose(model.label_embeddings(), nodes, atol=1e-5)


def test_loss_is_cross_entropy_plus_the_link_loss() -> None:
    x, y = data()
    model = CLIF(4, 3, embedding_dim=6, hidden=10, link_weight=0.3)
    model.set_label_graph(y)
    loss, probs = copy.deepcopy(model).loss_and_probs(x, y)
    expected = binary_cross_entropy_with_logits(probs.logit(), y)
    expected = expected + 0.3 * link_loss(model.label_embeddings(), model.adjacency)
    assert float(loss.detach()) == pytest.approx(float(expected.detach()), rel=1e-5)


def test_beta_shifts_the_predictions_and_one_half_does_not() -> None:
    x, y = data()
    outputs = {}
    for beta in (0.5, 0.2):
        torch.manual_seed(0)
        model = CLIF(4, 3, embedding_dim=6, beta=beta)
        model.set_label_graph(y)
        model.eval()
        with torch.no_grad():
            outputs[beta] = model(x).logit(), model.loss_and_probs(x, y)[1].logit()
    for plain, shifted in zip(outputs[0.5], outputs[0.2], strict=True):
        assert torch.allclose(shifted, plain + math.log(4), atol=1e-4)


def test_layers_and_initial_values_are_the_originals() -> None:
    torch.manual_seed(0)
    model = CLIF(50, 20, embedding_dim=65, in_layers=2)
    first, second = model.gin
    assert [tuple(m.weight.shape) for m in first.mlp if isinstance(m, nn.Linear)] == [(33, 20), (65, 33)]
    assert [tuple(m.weight.shape) for m in second.mlp if isinstance(m, nn.Linear)] == [(33, 65), (65, 33)]
    assert not first.residual
    assert second.residual
    assert CLIF(50, 20, embedding_dim=20).gin[0].residual
    assert float(first.epsilon) == 0
    leaky = [m for part in (first.mlp, second.mlp, model.feature_layers) for m in part if isinstance(m, nn.Linear)]
    assert len(leaky) == 6
    for layer in (*leaky, model.label_features):
        bound = math.sqrt(6 / (1.01 * layer.in_features))
        assert 0.9 * bound < layer.weight.abs().max() <= bound
        assert layer.bias.min() >= 0
        assert 0.08 < layer.bias.max() <= 0.1
    bound = math.sqrt(3 / 65)
    assert 0.9 * bound < model.gate.weight.abs().max() <= bound
    assert (model.gate.bias == 0).all()
    assert model.label_features.weight.shape == (512, 512)
    for parameter in (model.heads.weight, model.heads.bias):
        assert 0.7 / math.sqrt(512) < parameter.abs().max() <= 1 / math.sqrt(512)


def test_node_features_and_graph_are_saved_and_not_trained() -> None:
    model = CLIF(4, 3)
    trained = {key for key, _ in model.named_parameters()}
    assert {"node_features", "adjacency"} <= set(model.state_dict())
    assert not {"node_features", "adjacency"} & trained
    assert model.node_features.shape == (3, 3)


class WithLabels(Dataset[Any]):
    def __init__(self, x: Tensor, labels: Any) -> None:
        self.x, self.labels = x, labels

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> Any:
        return self.x[index], torch.as_tensor(self.labels[index]).float()


class Module(L.LightningDataModule):
    def __init__(self, dataset: Any, **attributes: Any) -> None:
        super().__init__()
        self.dataset = dataset
        for key, value in attributes.items():
            setattr(self, key, value)

    def train_dataloader(self) -> Any:
        return DataLoader(self.dataset, batch_size=8)


@pytest.mark.parametrize("source", ["tensors", "subset", "labels", "datamodule", "train_labels", "with_validation"])
def test_graph_is_read_from_the_training_set_when_fitting(source: str, tmp_path: Path) -> None:
    x, y = data()
    rows, model = TensorDataset(x, y), CLIF(4, 3, embedding_dim=6, hidden=8)
    if source == "tensors":
        fit(model, tmp_path, DataLoader(rows, batch_size=8))
    elif source == "subset":
        kept = Subset(Subset(rows, range(30)), range(5, 25))
        fit(model, tmp_path, DataLoader(kept, batch_size=8))
        y = y[5:25]
    elif source == "labels":
        fit(model, tmp_path, DataLoader(WithLabels(x, y.numpy().astype(np.uint8)), batch_size=8))
    elif source == "datamodule":
        fit(model, tmp_path, datamodule=Module(rows))
    elif source == "train_labels":
        fit(model, tmp_path, datamodule=Module(rows, train_labels=y[:10]))
        y = y[:10]
    else:
        fit(model, tmp_path, DataLoader(rows, batch_size=8), DataLoader(TensorDataset(x, 1 - y), batch_size=8))
    assert torch.equal(model.adjacency, label_graph(y))


def test_fitting_again_on_other_data_reads_its_graph_unless_one_was_given(tmp_path: Path) -> None:
    x, y = data()
    model = CLIF(4, 3, embedding_dim=6, hidden=8)
    fit(model, tmp_path, DataLoader(TensorDataset(x, y), batch_size=8))
    fit(model, tmp_path, DataLoader(TensorDataset(x[:20], y[:20]), batch_size=8))
    assert torch.equal(model.adjacency, label_graph(y[:20]))
    model.set_label_graph(y[20:])
    fit(model, tmp_path, DataLoader(TensorDataset(x, y), batch_size=8))
    assert torch.equal(model.adjacency, label_graph(y[20:]))


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(TensorDataset(*data()))


def test_a_training_set_without_visible_labels_is_refused_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="set_label_graph"):
        fit(CLIF(4, 3), tmp_path, DataLoader(Stream(), batch_size=8))
    model = CLIF(4, 3)
    model.set_label_graph(data()[1])
    fit(model, tmp_path, DataLoader(Stream(), batch_size=8))


def test_prediction_without_a_graph_is_refused() -> None:
    model = CLIF(4, 3)
    with pytest.raises(RuntimeError, match="no label graph"):
        model(torch.rand(2, 4))
    other = CLIF(4, 3)
    other.load_state_dict(model.state_dict())
    with pytest.raises(RuntimeError, match="no label graph"):
        other(torch.rand(2, 4))


def test_a_loaded_graph_counts_as_known() -> None:
    source, target = CLIF(4, 3), CLIF(4, 3)
    source.set_label_graph(Y4)
    target.load_state_dict(source.state_dict())
    assert torch.equal(target.eval()(torch.ones(2, 4)), source.eval()(torch.ones(2, 4)))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [({"beta": 1.0}, "beta.*1.0"), ({"in_layers": 0}, "in_layers.*0"), ({"num_labels": 1}, "num_labels.*1")],
)
def test_impossible_arguments_are_refused(overrides: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CLIF(**({"num_features": 4, "num_labels": 3} | overrides))


def test_labels_of_another_width_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\(n, 3\).*\(4, 2\)"):
        CLIF(4, 3).set_label_graph(torch.ones(4, 2))
