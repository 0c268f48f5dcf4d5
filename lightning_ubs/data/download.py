"""Where published files are kept, and how they get there."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

from lightning_ubs._extras import optional_import
from lightning_ubs.data.readers.stream import sha256
from lightning_ubs.data.sources import SourceFile
from lightning_ubs.data.types import DataError

log = logging.getLogger(__name__)

PUBLIC_SOURCE = "https://raw.githubusercontent.com/{repository}/{commit}/{path}"
"""Address of a published file; the environment variable LIGHTNING_UBS_MIRROR replaces it."""


def data_folder(data_dir: str | Path | None = None) -> Path:
    """Return ``data_dir``, else LIGHTNING_UBS_DATA, else the user's cache folder."""
    chosen = data_dir or os.environ.get("LIGHTNING_UBS_DATA")
    if chosen:
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lightning-ubs"


def address(file: SourceFile) -> str:
    """Return the URL of a file, at the mirror if there is one.

    A mirror is a template with ``{repository}``, ``{commit}`` and ``{path}``, or a folder below which the files lie
    by these three.
    """
    template = os.environ.get("LIGHTNING_UBS_MIRROR") or PUBLIC_SOURCE
    if "{path}" not in template:
        template = template.rstrip("/") + "/{repository}/{commit}/{path}"
    for key in ("repository", "commit", "path"):
        template = template.replace("{" + key + "}", getattr(file, key))
    return template


def verify(path: Path, file: SourceFile) -> None:
    """Refuse a file whose checksum is not the published one."""
    found = sha256(path)
    if found != file.sha256:
        raise DataError(
            f"{path}: its SHA-256 is {found}, but {file.sha256} was published; remove it and fetch it again."
        )


def _reason(error: Exception) -> str:
    """Say in a few words what went wrong; libraries tell it in paragraphs."""
    if isinstance(error, ValueError) and "hash" in str(error):
        return "its SHA-256 is not the published one"
    if isinstance(error, PermissionError):
        return f"{error.filename} is not writable"
    words = {"ConnectionError": "no connection", "ConnectTimeout": "no answer", "ReadTimeout": "no answer"}
    return words.get(type(error).__name__, f"{type(error).__name__}: {error}".splitlines()[0][:120])


def fetch_file(file: SourceFile, folder: Path, download: bool = True) -> Path:
    """Return the file in ``folder``, downloaded if it is absent; its checksum is right, or it is not there.

    Args:
        file: What to fetch.
        folder: Where it is or goes.
        download: False refuses to use the network.
    """
    target = folder / file.name
    if target.is_file():
        verify(target, file)
        return target
    by_hand = f"put {file.name} ({file.bytes:,} bytes, SHA-256 {file.sha256}) into {folder} by hand"
    url = address(file)
    if not download:
        raise DataError(f"{target} is absent and downloading is switched off; {by_hand}, from {url}.")
    pooch = optional_import("pooch")
    try:
        pooch.retrieve(
            url,
            known_hash=f"sha256:{file.sha256}",
            fname=file.name,
            path=folder,
            downloader=pooch.HTTPDownloader(progressbar=sys.stderr.isatty(), timeout=30),
        )
    except Exception as error:
        log.debug("fetching %s failed", url, exc_info=True)
        raise DataError(
            f"{url} could not be fetched ({_reason(error)}); try again, or {by_hand}; "
            "`lightning-ubs data show NAME` lists all files of a dataset."
        ) from None
    return target
