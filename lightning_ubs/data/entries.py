"""What ``catalog.toml`` says of each dataset: counts, origin, files, the paper's view of it, and its defects.

Each of them is a choice of Hydra's group ``data`` as well.
"""

from __future__ import annotations

import importlib.resources
import tomllib
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class SourceFile:
    """One file of a public repository, pinned by commit, size and SHA-256."""

    repository: str
    commit: str
    path: str
    bytes: int
    sha256: str

    @property
    def name(self) -> str:
        """The file's published name, without folders."""
        return self.path.rsplit("/", 1)[-1]


@dataclass(frozen=True)
class View:
    """The paper's selection: the most frequent features, and the labels with enough positives.

    Attributes:
        d: Number of features that remain.
        q: Number of labels that remain.
        feature_fraction: Share of the features that is kept, by the number of samples in which they are not zero.
        label_positives: Positives that a label must have to be kept.
    """

    d: int
    q: int
    feature_fraction: float = 1.0
    label_positives: int = 0


@dataclass(frozen=True)
class Entry:
    """One dataset of the catalog.

    Attributes:
        name: Its name; lower and upper case do not matter where it is looked up.
        n: Samples.
        d: Features as published.
        q: Labels as published.
        cardinality: Mean number of positive labels per sample, as published.
        domain: Where the data comes from.
        citation: Whom to cite.
        defects: What is wrong with the published data; empty if nothing is known.
        remark: In what it differs from the paper's description.
        files: The published files; empty where the data is made by this package.
        view: The paper's selection of features and labels; None where the paper takes all.
        family: The collection that it belongs to; empty where it stands alone.
        paper_name: What the paper calls it, in its tables; empty where the paper does not use it.
        aliases: Other names.
        repairs: The name of the defective dataset of which this is the repaired variant; empty where it is none.
        realigned: Columns by which the labels of the second half are moved back; 0 leaves them as published.
    """

    name: str
    n: int
    d: int
    q: int
    cardinality: float
    domain: str
    citation: str
    defects: str = ""
    remark: str = ""
    files: tuple[SourceFile, ...] = ()
    view: View | None = None
    family: str = ""
    paper_name: str = ""
    aliases: tuple[str, ...] = ()
    repairs: str = ""
    realigned: int = 0

    @property
    def embedded(self) -> bool:
        """Whether the package makes the data itself."""
        return not self.files

    @property
    def source(self) -> str:
        """The public repository of its files, or who makes it."""
        return self.files[0].repository if self.files else "made by this package"

    @property
    def folder(self) -> str:
        """The name of the folder of its files; a variant that is derived from the same files shares it."""
        return self.repairs if self.realigned else self.name


def _entry(row: dict[str, Any]) -> Entry:
    files = tuple(SourceFile(**file) for file in row.pop("files", ()))
    view = View(**row.pop("view")) if "view" in row else None
    return Entry(**row | {"aliases": tuple(row.get("aliases", ()))}, files=files, view=view)


def _read() -> tuple[Entry, ...]:
    text = importlib.resources.files("lightning_ubs.data").joinpath("catalog.toml").read_text(encoding="utf-8")
    return tuple(_entry(row) for row in tomllib.loads(text)["dataset"])


ENTRIES: tuple[Entry, ...] = _read()
"""All datasets of ``catalog.toml``, in its order."""


def register_datasets() -> None:
    """Register every dataset with Hydra, so that ``data=NAME`` chooses it.

    Its other keys are those of ``configs/data/default.yaml``.

    The commands of this package call it before they compose. ``lightning_ubs.configs`` calls it when it is imported,
    which Hydra does before it looks for a configuration there: so it holds for any application whose search path names
    ``pkg://lightning_ubs.configs``, too. A second call changes nothing.
    """
    from hydra.core.config_store import ConfigStore

    store = ConfigStore.instance()
    there = store.repo.get("data", {})
    for known in ENTRIES:
        if f"{known.name}.yaml" in there:
            continue  # Hydra 1.4 warns of a name that is registered twice
        node = {"defaults": ["default", "_self_"], "name": known.name}
        store.store(group="data", name=known.name, node=node, provider="lightning-ubs")
