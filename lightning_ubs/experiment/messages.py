"""From an exception to the one sentence that a user needs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from lightning_ubs._utils.checks import did_you_mean
from lightning_ubs.errors import DataError, LightningUBSError, ReportError
from lightning_ubs.experiment.config import GROUPS, file_as_data, is_file_name, unknown_key
from lightning_ubs.experiment.overrides import quoted

_EXPERIMENT = "experiment=NAME belongs to `lightning-ubs compare`, which runs several selections; train does one run."


def explain(error: BaseException, root: str, arguments: Sequence[str]) -> str | None:
    """One sentence for what a user can put right; None for anything else, which deserves its trace.

    Args:
        error: What was raised.
        root: Name of the configuration that was composed, such as ``"train"``.
        arguments: What Hydra was given.
    """
    from hydra.errors import HydraException, MissingConfigException, OverrideParseException
    from lightning.fabric.utilities.exceptions import MisconfigurationException
    from omegaconf.errors import OmegaConfBaseException

    if isinstance(error, MissingConfigException):
        return _missing_choice(error, arguments)
    if isinstance(error, OverrideParseException):
        return _unreadable(error)
    if isinstance(error, HydraException | OmegaConfBaseException):
        return _composition(error, root, arguments)
    if isinstance(error, ValueError) and str(error).startswith("Config group override must be"):
        return _number_as_choice(arguments)
    if isinstance(error, OSError) and error.filename is not None:
        return (
            f"cannot use {str(error.filename)!r} ({error.strerror}); choose another folder, for example with "
            "hydra.run.dir=FOLDER or results=FOLDER."
        )
    if isinstance(error, ModuleNotFoundError) and "pip install" in str(error):
        return str(error)
    if isinstance(error, LightningUBSError | MisconfigurationException):
        text = " ".join(str(error).split())
        if isinstance(error, ReportError):
            return _with_group("report", ("formats", "margin"), text)
        is_of_data = isinstance(error, DataError) and root in ("train", "compare")
        return (
            _with_group("data", ("labels", "max_bytes", "data_dir", "view", "folds", "fold"), text)
            if is_of_data
            else text
        )
    return None


def _with_group(group: str, names: Sequence[str], text: str) -> str:
    """What is said of arguments, said of the keys that they are on the command line.

    >>> _with_group("data", ["labels"], "x.csv: its labels are not known; say which with labels=PREFIX.")
    'x.csv: its labels are not known; say which with data.labels=PREFIX.'
    """
    return re.sub(rf"(?<![\w.])({'|'.join(names)})=", rf"{group}.\1=", text)


def _missing_choice(error: Any, arguments: Sequence[str]) -> str:
    path = str(error.missing_cfg_file or "").removesuffix(".yaml")
    given = next((one.partition("=")[2] for one in arguments if one.startswith("data=")), "")
    if path.startswith("data/") and is_file_name(given):
        return file_as_data(given)
    group, _, choice = path.rpartition("/")
    known = [option for option in error.options or () if option != "default"]
    if group and not known:
        return _no_choice(group, choice)
    hint = did_you_mean(choice, known, f"choose from {', '.join(known)}.")
    if not group:
        return f"there is no configuration {choice!r}; {hint}"
    more = {
        "data": " `lightning-ubs data list` describes them.",
        "callbacks": " +callbacks.NAME._target_=CLASS adds one of your own.",
    }.get(group, "")
    return f"{group}={choice}: there is no such {group}; {hint}{more}"


def _number_as_choice(arguments: Sequence[str]) -> str:
    """The sentence for a group of which a number was chosen, such as ``trainer=5``."""
    known = (*GROUPS, "experiment", "scale", "hydra")
    keys = [one.partition("=") for one in arguments if one.partition("=")[0] in known]
    numbers = [(key, value) for key, _, value in keys if re.fullmatch(r"[-+\d.eE_]+|true|false", value)]
    key, value = numbers[0] if numbers else ("GROUP", "VALUE")
    return _no_choice(key, value)


def _no_choice(group: str, choice: str) -> str:
    such = ", such as trainer.accelerator=gpu" if group == "trainer" else ""
    return (
        f"{group}={choice}: {group} is a group of keys, and {choice} is none of its choices; set a key: "
        f"{group}.KEY=VALUE{such}."
    )


def _unreadable(error: Any) -> str:
    override = str(error.override)
    if "=" not in override:
        return f"cannot read the argument {override!r}; arguments have the form KEY=VALUE, see --help."
    key, _, value = override.partition("=")
    return f'cannot read {override!r}; put the value in quotes, such as {key}="{quoted(value)}", or see --help.'


def _composition(error: BaseException, root: str, arguments: Sequence[str]) -> str:
    text = " ".join(str(error).split())
    key = _key_of(error, text)
    given = {one.lstrip("+~").partition("=")[0]: one.partition("=")[2] for one in arguments if "=" in one}
    if key == "experiment" and root == "train":
        return _EXPERIMENT
    if key is not None and key in given and "ambiguous" not in text.lower():
        known = _keys(root, arguments)
        if known is not None:
            run = _keys("train", []) if root == "compare" else None
            return str(unknown_key(key.removeprefix("sweep."), given[key], known, run))
    if "Ambiguous value" in text and key is not None:
        return f"{key}={given.get(key)}: several values need the flag -m, which runs each of them; one value does not."
    if "Missing mandatory value" in text and key is not None:
        return f"{key} has no value; give one: {key}=VALUE."
    return text


def _key_of(error: BaseException, text: str) -> str | None:
    full = getattr(error, "full_key", None) or getattr(error.__cause__, "full_key", None)
    found = re.search(r"(?:override|override for|value|key) '([^']+)'", text) or re.search(r"argument '([^'=]+)=", text)
    quoted = found[1].lstrip("+~").partition("=")[0] if found else None
    return quoted or (str(full) if full else None)


def _keys(root: str, arguments: Sequence[str]) -> dict[str, Any] | None:
    """The keys that the configuration has with the user's groups, but without the values that were given."""
    from hydra import compose, initialize_config_module
    from hydra.core.global_hydra import GlobalHydra
    from hydra.errors import HydraException
    from omegaconf import OmegaConf

    from lightning_ubs.experiment.config import CONFIG_MODULE, GROUPS, HYDRA_VERSION

    chosen = [one for one in arguments if one.partition("=")[0] in (*GROUPS, "experiment", "scale") and "," not in one]
    GlobalHydra.instance().clear()
    with initialize_config_module(CONFIG_MODULE, version_base=HYDRA_VERSION):
        for overrides in (chosen, []):
            try:
                found: Any = OmegaConf.to_container(compose(root, overrides), resolve=False)
                # Keys of a grid are written without "grid." on the command line.
                return {**found.pop("grid", {}), **found}
            except HydraException:
                continue
    return None
