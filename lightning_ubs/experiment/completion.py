"""Tab completion: Hydra's own, for a program whose first word is a command; nothing is offered that fails."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import redirect_stdout

from lightning_ubs.experiment.config import GROUPS, trainer_arguments

# What a command does not take, by the first word of the key.
_FOREIGN = {
    "train": ("experiment", "scale"),
    "compare": ("grid", "train", "sweep", "sweeps", "by_data", "logger"),
    "report": (*GROUPS, "experiment", "scale"),
}
# Choices that others share and that are none themselves, and names that say what a group is.
_NO_CHOICE = re.compile(
    r"(data|selection)=default$|\w+\._target_=|(data|model|selection|logger)\.name=|selection\.(strategy|seed)="
)
# Arguments of a Trainer that are groups of their own, or at whose only other value a run keeps no result.
_ELSEWHERE = ("callbacks", "logger", "enable_checkpointing", "barebones", "fast_dev_run")
_RUN_GROUPS = ("data", "model", "selection", "trainer")
_GRID = ("data=", "model=", "selection=", "fold=", "seed=", *(f"{group}." for group in _RUN_GROUPS))
Ask = Callable[[str, str], None]


def complete(line: str, commands: Sequence[str], ask: Ask) -> list[str]:
    """Whatever may stand where the line ends.

    Args:
        line: What has been typed, the program's name first.
        commands: Commands of the program.
        ask: Lets Hydra print what it offers for a command and a line.
    """
    _, *words = line.split(" ")
    if len(words) < 2:
        return _beginning(words[0] if words else "", commands)
    command, *rest = words
    if command == "data":
        return _data(rest)
    return _hydra(command, rest, ask) if command in commands else []


def _beginning(start: str, known: Iterable[str]) -> list[str]:
    return [word for word in known if word.startswith(start)]


def _data(words: Sequence[str]) -> list[str]:
    """``data COMMAND``, then the name of a dataset or of a file, and the command's keys."""
    from lightning_ubs.data.commands import KEYS
    from lightning_ubs.data.entries import ENTRIES

    command, *rest = words
    if not rest:
        return _beginning(command, KEYS)
    given = {word.partition("=")[0] for word in rest[:-1]}
    keys = [f"{key}=" for key in KEYS.get(command, ()) if key not in given]
    names = [one.name for one in ENTRIES] if command in ("show", "get") and len(rest) == 1 else []
    # Names of files are completed by the shell where nothing else is offered.
    files = command == "convert" and not rest[-1]
    return [] if files else _beginning(rest[-1], [*names, *keys])


def _hydra(command: str, words: Sequence[str], ask: Ask) -> list[str]:
    """What Hydra offers for a command without its name, less what fails, and what Hydra does not know of."""
    last = words[-1]
    if last.startswith("-"):
        return _beginning(last, ["--help", "--cfg", *{"train": ["-m"], "compare": ["--dry-run"]}.get(command, [])])
    if command == "report" and not any(words):
        return []  # the shell completes the folder
    # Groups are keys of `train`. It does not understand the lists that `compare` takes, nor the folder of `report`.
    asked = "train" if command == "compare" and last.startswith((*_RUN_GROUPS, "callbacks")) else command
    given = words if command == "train" else [last]
    text = io.StringIO()
    with redirect_stdout(text):
        ask(asked, " ".join(["lightning-ubs", *given]))
    found = {word for word in text.getvalue().split() if _works(command, word)}
    if command != "report" and last.startswith("trainer."):
        found |= {f"trainer.{name}=" for name in trainer_arguments() if name not in _ELSEWHERE}
    if command == "compare":
        found |= set(_GRID)
    return sorted(word for word in found if word.startswith(last) and word != last)


def _works(command: str, word: str) -> bool:
    bare = word.lstrip("+")
    group = re.split(r"[.=]", bare)[0]
    if command == "compare" and group in ("data", "model", "selection", "trainer"):
        return not _NO_CHOICE.match(bare) and bare != "trainer=" and not bare.startswith("trainer=")
    return group not in _FOREIGN[command] and not _NO_CHOICE.match(bare) and word not in ("hydra", "+hydra", "hydra=")
