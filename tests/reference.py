"""The paper's equations once more: NumPy and plain loops, slow and independent of the package under test."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

Window = Sequence[Sequence[float]]  # predictions of one sample, oldest first: (visits, q)


def entropy(p: float) -> float:
    """Eq. (1), in bits."""
    return -sum(x * math.log2(x) for x in (p, 1 - p) if x > 0)


def fluctuation(values: Sequence[float]) -> float:
    """Eq. (4) over the predictions at hand."""
    if len(values) < 2:
        return 0.0
    return sum(abs(b - a) for a, b in itertools.pairwise(values)) / (len(values) - 1)


def label_uncertainty(windows: Sequence[Window], num_labels: int, lambda1: float) -> np.ndarray:
    """Eq. (5) for every sample and label; a sample never seen counts as p = 1/2."""
    result = np.zeros((len(windows), num_labels))
    for i, window in enumerate(windows):
        for j in range(num_labels):
            values = [float(row[j]) for row in window]
            latest = values[-1] if values else 0.5
            result[i, j] = lambda1 * fluctuation(values) + (1 - lambda1) * entropy(latest)
    return result


def bin_of(value: float, bins: int) -> int:
    """Which of the equal bins on [0, 1] a value falls into; the last one is closed."""
    return min(int(value * bins), bins - 1)


def correlation(uncertainty: np.ndarray, bins: int = 5, base: float = math.e) -> np.ndarray:
    """Eq. (6): mutual information of the binned columns, with a unit diagonal."""
    n, q = uncertainty.shape
    binned = [[bin_of(float(uncertainty[i, j]), bins) for j in range(q)] for i in range(n)]
    result = np.eye(q)
    for a in range(q):
        for b in range(q):
            if a == b:
                continue
            total = 0.0
            for u in range(bins):
                for v in range(bins):
                    both = sum(row[a] == u and row[b] == v for row in binned) / n
                    if both > 0:
                        left = sum(row[a] == u for row in binned) / n
                        right = sum(row[b] == v for row in binned) / n
                        total += both * math.log(both / (left * right), base)
            result[a, b] = total
    return result


def raw_weights(uncertainty: np.ndarray, matrix: np.ndarray | None = None) -> np.ndarray:
    """Eqs. (7) and (8): the sum of U·C over labels."""
    n, q = uncertainty.shape
    matrix = np.eye(q) if matrix is None else matrix
    return np.array(
        [sum(uncertainty[i, k] * matrix[k, j] for k in range(q) for j in range(q)) for i in range(n)], dtype=float
    )


def scale(values: np.ndarray) -> np.ndarray:
    """To [0, 1]; equal values become zeros."""
    low, high = min(values), max(values)
    return np.array([0.0 if high == low else (value - low) / (high - low) for value in values])


def quantize(weight: float, n: int, quantizer: str = "floor") -> int:
    """Eq. (9) with Δ = 1/n; nine decimals keep (1 - 0.9)·10 what it should be."""
    steps = round((1 - weight) * n, 9)
    return math.floor(steps) if quantizer == "floor" else math.ceil(steps)


def probabilities(weights: Sequence[float], pressure: float, quantizer: str = "floor") -> np.ndarray:
    """Eq. (10)."""
    n = len(weights)
    shares = [1 / math.exp(math.log(pressure) / n) ** quantize(float(w), n, quantizer) for w in weights]
    return np.array(shares) / sum(shares)


def pressure(epoch: int, start: int, end: int, s0: float) -> float:
    """Eq. (11), s0 before ``start`` and 1 after ``end``."""
    now = min(max(epoch, start), end)
    if end == start:
        return s0 if epoch <= start else 1.0
    return s0 * math.exp(math.log(1 / s0) / (end - start)) ** (now - start)


def spread(values: Sequence[float], ddof: int = 1) -> float:
    """Eq. (2): Active Bias."""
    if len(values) < 2:
        return 0.0
    variance = float(np.var(np.asarray(values, dtype=float), ddof=ddof))
    return math.sqrt(variance + variance**2 / (len(values) - 1))


def proportional(values: Sequence[float], smoothing: float | None = None) -> np.ndarray:
    """Active Bias by sampling: P in proportion to the spread plus a constant."""
    constant = sum(values) / len(values) if smoothing is None else smoothing
    shifted = [value + constant for value in values]
    if sum(shifted) == 0:
        return np.full(len(values), 1 / len(values))
    return np.array([value / sum(shifted) for value in shifted])


def recency_entropy(values: Sequence[float]) -> float:
    """Eq. (3): Recency Bias."""
    return entropy(sum(value > 0.5 for value in values) / len(values)) if values else 0.0


def cross_entropy(probs: Sequence[float], targets: Sequence[float]) -> float:
    """Binary cross-entropy of one sample, mean over labels; a logarithm is cut at -100, as PyTorch does."""
    right = [p if y == 1 else 1 - p for p, y in zip(probs, targets, strict=True)]
    return -sum(max(math.log(p), -100) if p > 0 else -100 for p in right) / len(right)


def hardness_probabilities(hardness: Sequence[float], pressure: float) -> np.ndarray:
    """Hard-Imbalance: the harder, the higher the quantization index."""
    n, largest = len(hardness), max(hardness)
    index = [math.ceil(round(h * n / largest, 9)) if largest > 0 else 0 for h in hardness]
    shares = [pressure ** (q / n) for q in index]
    return np.array(shares) / sum(shares)


def imbalance_weights(labels: np.ndarray, features: np.ndarray, neighbours: int) -> np.ndarray:
    """Hard-Imbalance: 1 plus the normalized share of unlike neighbors over minority labels."""
    from sklearn.neighbors import NearestNeighbors

    n, q = labels.shape
    search = NearestNeighbors(n_neighbors=neighbours + 1).fit(features)
    nearest = [[k for k in row if k != i][:neighbours] for i, row in enumerate(search.kneighbors(features)[1])]
    positives = [labels[:, j].sum() for j in range(q)]
    ratio = [max(positives) / (p + 1e-6) for p in positives]
    weights = np.ones(n)
    for j in range(q):
        if ratio[j] <= sum(ratio) / q:
            continue
        share = np.zeros(n)
        for i in range(n):
            if labels[i, j] == 1:
                unlike = sum(labels[k, j] == 0 for k in nearest[i]) / neighbours
                share[i] = 0.0 if unlike == 1 else unlike
        if share.sum() > 0:
            weights += share / share.sum()
    return weights


def repeat_factors(labels: np.ndarray, threshold: float, by_instance: bool = False) -> np.ndarray:
    """LVIS: the largest repeat factor of a sample's labels."""
    n, q = labels.shape
    result = np.ones(n)
    total = labels.sum()
    for i in range(n):
        for j in range(q):
            if labels[i, j] > 0:
                share = sum(labels[k, j] > 0 for k in range(n)) / n
                if by_instance:
                    share = math.sqrt(share * labels[:, j].sum() / total)
                result[i] = max(result[i], math.sqrt(threshold / share))
    return result


def class_aware(labels: np.ndarray) -> np.ndarray:
    """Each label's weight shared by its samples; a sample without labels gets the mean of the others."""
    n, q = labels.shape
    given = [sum(1 / labels[:, j].sum() for j in range(q) if labels[i, j]) for i in range(n)]
    known = [weight for weight in given if weight > 0]
    return np.array([weight or sum(known) / len(known) for weight in given])


def d2ace(
    histories: Sequence[Window],
    labels: np.ndarray,
    features: np.ndarray | None,
    pressure: float,
    beta: float,
    *,
    window: int = 5,
    lambda1: float = 0.5,
    neighbors: int = 6,
    offset: float = 1.0,
) -> np.ndarray:
    """P of D2ACE from all predictions of each sample; ``offset`` is the 1 or 2 of its g."""
    n, q = labels.shape
    uncertain = label_uncertainty([rows[-window:] for rows in histories], q, lambda1)
    hard = np.zeros((n, q))
    for i in range(n):
        for j in range(q):
            values = [float(row[j]) for row in histories[i]]
            flip = 0.0
            for a, b in itertools.pairwise(values):
                flip = 0.7 * abs(b - a) + 0.3 * flip
            p = values[-1] if values else 0.5
            right = p if labels[i, j] else 1 - p
            loss = -math.log(right) if right > 0 else 100.0
            hard[i, j] = (offset - math.exp(-min(loss, 100.0))) * (1 - flip)
    around = labels.copy()
    if features is not None:
        for i in range(n):
            others = sorted((k for k in range(n) if k != i), key=lambda k: np.linalg.norm(features[i] - features[k]))
            for k in others[:neighbors]:
                around[i] = np.maximum(around[i], labels[k])
    parts = []
    for values in (uncertain, hard):
        v = [math.exp(0.5 * values[:, j].mean() + 0.5 * values[:, j].std()) for j in range(q)]
        positive = values * labels
        cosines = np.zeros((q, q))
        for a in range(q):
            for b in range(q):
                norms = np.linalg.norm(positive[:, a]) * np.linalg.norm(positive[:, b])
                cosines[a, b] = positive[:, a] @ positive[:, b] / norms if norms > 0 else 0.0
            if cosines[a].sum() > 0:
                cosines[a] /= cosines[a].sum()
        scores = np.zeros(n)
        for i in range(n):
            for j in range(q):
                support = sum(around[i, k] * cosines[j, k] for k in range(q))
                scores[i] += v[j] * values[i, j] * (1 + labels[i, j] * support)
        parts.append(probabilities(scale(scores), pressure, "ceil"))
    return beta * parts[0] + (1 - beta) * parts[1]


class AuthorsInfoBatch:
    """The rule of the authors' package, written down from what it does: easy samples are those below the mean score.

    Scores begin at 3. An epoch has all hard samples and int((1 - r)·easy) easy ones; those count 1/(1 - r). Their
    sampler counts how often it was reset, which it is when it is made and at the start of each epoch, and prunes until
    that count, which begins at 0, exceeds 0.875 of the epochs.
    """

    def __init__(self, num_samples: int, prune: float, num_epochs: int) -> None:
        self.scores = np.full(num_samples, 3.0)
        self.keep, self.stop = 1 - prune, 0.875 * num_epochs
        self.resets = 1

    def epoch(self, number: int) -> tuple[set[int], set[int], int, float]:
        """Hard samples, easy ones, how many of these come, and what each of them counts."""
        everyone = set(range(len(self.scores)))
        resets, self.resets = self.resets, self.resets + 1
        assert resets == number + 1
        if resets > self.stop:
            return everyone, set(), 0, 1.0
        easy = {i for i in everyone if self.scores[i] < self.scores.mean()}
        return everyone - easy, easy, int(self.keep * len(easy)), 1 / self.keep


def ordered_draws(probs: Sequence[float], size: int) -> dict[tuple[int, ...], float]:
    """Probability of every ordered sample of ``size`` ids, drawn one after the other without replacement."""
    result = {}
    for ids in itertools.permutations(range(len(probs)), size):
        left, chance = float(sum(probs)), 1.0
        for i in ids:
            chance *= probs[i] / left
            left -= probs[i]
        result[ids] = chance
    return result


def systematic_counts(probs: Sequence[float], draws: int) -> dict[tuple[int, ...], float]:
    """Chance of each vector of counts, from equally spaced points with a uniform start over every order of samples."""
    orders = list(itertools.permutations(range(len(probs))))
    result: dict[tuple[int, ...], float] = {}
    for order in orders:
        ends = list(itertools.accumulate(probs[i] * draws for i in order))
        # Counts change only where a point crosses an end: between these starts they are constant.
        cuts = sorted({0.0, 1.0, *(round(end % 1, 12) for end in ends)})
        for low, high in itertools.pairwise(cuts):
            counts = [0] * len(probs)
            for k in range(draws):
                point = (low + high) / 2 + k
                counts[order[next(j for j, end in enumerate(ends) if point < end)]] += 1
            key = tuple(counts)
            result[key] = result.get(key, 0.0) + (high - low) / len(orders)
    return result


def fewest_repeats(counts: Sequence[int], sizes: Sequence[int]) -> int:
    """Draws less the largest number of different (sample, batch) pairs that fit: a maximum flow."""
    import networkx

    graph = networkx.DiGraph()
    graph.add_nodes_from(["source", "sink"])
    for i, count in enumerate(counts):
        graph.add_edge("source", ("sample", i), capacity=int(count))
        for k in range(len(sizes)):
            graph.add_edge(("sample", i), ("batch", k), capacity=1)
    for k, size in enumerate(sizes):
        graph.add_edge(("batch", k), "sink", capacity=size)
    return int(sum(counts)) - int(networkx.maximum_flow_value(graph, "source", "sink"))
