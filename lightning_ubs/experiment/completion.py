"""Tab completion: Hydra's own, for a program whose first word is a command."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence

_GROUPS = ("data", "model", "selection", "trainer", "callbacks")


def complete(arguments: Sequence[str], commands: Sequence[str], ask: Callable[[str, Sequence[str]], None]) -> list[str]:
    """What to print for ``lightning-ubs -sc install=bash``, ``uninstall=bash`` or ``query=bash``.

    Args:
        arguments: what follows the flag.
        commands: the program's commands; all but ``data`` are Hydra applications.
        ask: lets Hydra answer for a command, which prints by itself.
    """
    action = arguments[0] if arguments else ""
    if not action.startswith("query="):
        ask("train", ["-sc", action])
        return []
    program, *words = os.environ.get("COMP_LINE", "").split(" ")
    if len(words) < 2:
        start = words[0] if words else ""
        return [" ".join(command for command in commands if command.startswith(start))]
    command, rest = words[0], words[1:]
    if command not in commands or command == "data":
        return []
    if command == "compare":
        # Groups are keys of `train`, which does not understand the lists that `compare` takes: only the last word goes.
        command, rest = "train" if rest[-1].startswith(_GROUPS) else command, rest[-1:]
    before, os.environ["COMP_LINE"] = os.environ["COMP_LINE"], " ".join([program or sys.argv[0], *rest])
    try:
        ask(command, ["-sc", action])
    finally:
        os.environ["COMP_LINE"] = before
    return []
