"""The datasets of the catalog as choices of Hydra's group ``data``."""

from __future__ import annotations

from lightning_ubs.data.entries import ENTRIES


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
