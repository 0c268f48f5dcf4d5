"""The command ``lightning-ubs``: train, compare, report, data."""

from __future__ import annotations

import functools
import io
import logging
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from lightning_ubs._utils.checks import did_you_mean
from lightning_ubs.errors import UsageError

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from lightning_ubs.experiment.record import RunRecord

HELP = """\
lightning-ubs: batch selection for multi-label training, guided by uncertainty.

  lightning-ubs compare                 a first look: two losses, with UBS and without, in two minutes
  lightning-ubs train [KEY=VALUE ...]   one run, for example data=yeast model=clif selection.lambda1=0.6
  lightning-ubs compare [KEY=VALUE ...] a grid of data, models, selections, folds and seeds, and its report
  lightning-ubs report FOLDER           the report of a results folder
  lightning-ubs data list               all datasets
  lightning-ubs data show NAME          details of one dataset
  lightning-ubs data get NAME           download and check it
  lightning-ubs data convert FILE [OUT] write any multi-label file as NPZ; --help lists the formats

  lightning-ubs COMMAND --help          the keys of a command
  lightning-ubs --version               the version
  eval "$(lightning-ubs -sc install=bash)"  tab completion, for bash, zsh or fish
"""
COMMANDS = ("train", "compare", "report", "data")
_TYPED: ContextVar[str] = ContextVar("typed", default="")  # the whole command, for the report


class Stopped(BaseException):
    """Carrier of an error past Hydra, which would announce it in its own words."""

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code: 0, 1 for what went wrong, 2 for what was not understood."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    command, rest = (given[0], given[1:]) if given else ("--help", [])
    _TYPED.set(shlex.join(["lightning-ubs", *given]))
    if command in ("--help", "-h", "help"):
        _say(HELP.rstrip())
        return 0
    if command in ("--version", "version"):
        from lightning_ubs import __version__

        _say(f"lightning-ubs {__version__}")
        return 0
    if command in ("-sc", "--shell-completion", "--shell_completion"):
        return _complete(rest)
    if command not in COMMANDS:
        hint = did_you_mean(command, COMMANDS, f"commands are {', '.join(COMMANDS)}.")
        return _complain(f"there is no command {command!r}; {hint}", 2)
    try:
        return _data(rest) if command == "data" else _hydra(command, rest)
    except UsageError as error:
        return _complain(str(error), 2)
    except KeyboardInterrupt:
        return _complain("stopped; finished runs are kept, and the same command continues from there.", 130)


def _hydra(command: str, arguments: Sequence[str]) -> int:
    """Run a Hydra application; errors that a user can put right become one sentence."""
    from lightning_ubs.experiment import overrides
    from lightning_ubs.experiment.messages import explain

    wants_trace = os.environ.get("HYDRA_FULL_ERROR", "0") not in ("", "0")
    ready: Sequence[str] = arguments
    before = os.environ.get("HYDRA_FULL_ERROR"), sys.argv
    try:
        if command == "compare" and {"-m", "--multirun"} & set(arguments):
            raise UsageError("compare runs every combination by itself; leave the flag -m out.")
        ready = getattr(overrides, f"{command}_overrides")(arguments)
        if command == "report" and not any(one.startswith(("results=", "-")) for one in ready):
            raise UsageError("report needs a results folder: lightning-ubs report FOLDER.")
        os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then hands its errors to us
        sys.argv = [f"lightning-ubs {command}", *ready]
        with _usable_choices() if {"--help", "-h"} & set(ready) else nullcontext():
            _application(command)
    except (SystemExit, KeyboardInterrupt, UsageError):
        raise
    except (Exception, Stopped) as caught:
        error = caught.error if isinstance(caught, Stopped) else caught
        sentence = None if wants_trace else explain(error, command, ready)
        if sentence is None:
            raise error from None
        return _complain(sentence, 1)
    finally:
        _restore("HYDRA_FULL_ERROR", before[0])
        sys.argv = before[1]
    return 0


def _application(command: str) -> None:
    """Let Hydra compose the configuration from ``sys.argv`` and call the command's task."""
    import hydra

    from lightning_ubs.experiment.config import HYDRA_VERSION

    task = {"train": train_task, "compare": compare_task, "report": report_task}[command]
    hydra.main(config_path="pkg://lightning_ubs.configs", config_name=command, version_base=HYDRA_VERSION)(task)()


@contextmanager
def _usable_choices() -> Iterator[None]:
    """Leave out of Hydra's help what the choices of a group share and what is itself none."""
    text = io.StringIO()
    try:
        with redirect_stdout(text):
            yield
    finally:
        _say(re.sub(r"^(data|selection): (.*?)default, ", r"\1: \2", text.getvalue().rstrip(), flags=re.MULTILINE))


def _complete(arguments: Sequence[str]) -> int:
    """Tab completion: Hydra's own, for a program whose first word is a command.

    ``install=bash`` and ``uninstall=bash`` are Hydra's; ``query=bash`` completes the words of the variable COMP_LINE.
    """
    action = arguments[0] if arguments else ""
    if not action.startswith("query="):
        _ask_hydra("train", action)
        return 0
    from lightning_ubs.experiment.completion import complete

    def ask(command: str, line: str) -> None:
        before = os.environ.get("COMP_LINE")
        os.environ["COMP_LINE"] = line
        try:
            _ask_hydra(command, action)
        finally:
            _restore("COMP_LINE", before)

    _say(" ".join(complete(os.environ.get("COMP_LINE", ""), COMMANDS, ask)))
    return 0


def _ask_hydra(command: str, action: str) -> None:
    """Let Hydra complete for a command; it prints by itself."""
    before, sys.argv = sys.argv, ["lightning-ubs", "-sc", action]
    try:
        _application(command)
    finally:
        sys.argv = before


def _guarded(task: Callable[[DictConfig], Any]) -> Callable[[DictConfig], Any]:
    """Keep Hydra from announcing the error of a single run; in a sweep it says which run it was."""

    @functools.wraps(task)
    def run(config: DictConfig) -> Any:
        from hydra.core.hydra_config import HydraConfig
        from hydra.types import RunMode

        try:
            return task(config)
        except Exception as error:
            if HydraConfig.get().mode == RunMode.MULTIRUN:
                raise
            raise Stopped(error) from None

    return run


@_guarded
def train_task(config: DictConfig) -> float:
    """One run; returns the best validation Macro-AUC, so that sweepers can maximize it."""
    from lightning_ubs.experiment.commands import train_command

    return train_command(config, logging.getLogger("lightning_ubs").info)  # to the terminal and into train.log


@_guarded
def compare_task(config: DictConfig) -> None:
    """A grid, then its verdict and its report."""
    from omegaconf import OmegaConf

    from lightning_ubs.experiment.commands import compare_command

    plain: Any = OmegaConf.to_container(config, resolve=True)
    if plain["report"] is not False:
        _check_report(plain["report"])
    compare_command(plain, _say, lambda records: _report(plain["results"], plain["report"], records))


@_guarded
def report_task(config: DictConfig) -> None:
    """The report of a results folder."""
    from omegaconf import OmegaConf

    plain: Any = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    _check_report(plain["report"])
    _report(plain["results"], plain["report"])


def _check_report(options: Any) -> None:
    """Refuse what no report can be made with, before anything is run for it."""
    from lightning_ubs.errors import ConfigError
    from lightning_ubs.report.report import checked_formats
    from lightning_ubs.report.verdict import checked_margin

    if not isinstance(options, dict):
        raise ConfigError(
            f"report={options!r} is a section and takes no value of its own; set its keys, such as "
            "report.formats=[html]; compare makes none with report=false."
        )
    checked_formats(options["formats"])
    checked_margin(options["margin"])


def _report(results: str, options: dict[str, Any] | Literal[False], records: Sequence[RunRecord] = ()) -> None:
    """Say the verdict on these runs, if any, and write the report of the folder."""
    from lightning_ubs.report import Report

    if options is False:
        if records:
            _say(Report.of(records).summary)
        return
    options = dict(options)
    output, formats = options.pop("output") or Path(results) / "report", options.pop("formats")
    command = _TYPED.get() if records else ""  # what made the runs, not what made the page of them
    report = Report.of_folder(results, paper=_paper(options.pop("paper")), command=command, **options)
    if records:
        _say(report.about(records).summary)
    _say(f"report: {report.write(output, formats)}")


def _paper(value: Any) -> Path | None:
    """The CSV of the paper's tables: a path, or true for the one in the package."""
    if value is None or value is False:
        return None
    if value is not True:
        return Path(str(value))
    from lightning_ubs.report import PAPER_TABLES

    return PAPER_TABLES


def _data(arguments: Sequence[str]) -> int:
    """``lightning-ubs data list | show NAME | get NAME | convert FILE [OUT]``."""
    from lightning_ubs.data import commands
    from lightning_ubs.experiment.messages import explain

    try:
        _say(commands.run(arguments))
    except UsageError:
        raise
    except Exception as error:
        sentence = None if os.environ.get("HYDRA_FULL_ERROR") else explain(error, "data", [])
        if sentence is None:
            raise
        return _complain(sentence, 1)
    return 0


def _restore(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _complain(sentence: str, code: int) -> int:
    sys.stdout.flush()
    sys.stderr.write(f"lightning-ubs: {sentence}\n")
    return code


if __name__ == "__main__":
    # Worker processes and launchers find the functions of this file by its name in the package.
    from lightning_ubs import cli

    sys.exit(cli.main())
