"""Where published files are kept, and how they get there."""

from __future__ import annotations

import hashlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any

from lightning_ubs._utils.extras import optional_import
from lightning_ubs._utils.files import atomic_write, remember_sha256, sha256, user_cache, write_problem
from lightning_ubs.data.entries import SourceFile
from lightning_ubs.errors import DataError

log = logging.getLogger(__name__)

PUBLIC_SOURCE = "https://raw.githubusercontent.com/{repository}/{commit}/{path}"
"""Address of a published file; the environment variable LIGHTNING_UBS_MIRROR replaces it."""

PIECE = 16_384
"""Bytes that must arrive within ``PATIENCE`` seconds."""

PATIENCE = 30.0
"""Seconds that a server may take to answer, and for each piece."""

LEAST_PACE = 20_000
"""Bytes per second that the whole download must reach, after ``PATIENCE``."""


class _Slow(Exception):
    """The server sends too little in the given time."""


def data_folder(data_dir: str | Path | None = None) -> Path:
    """Return ``data_dir``, else LIGHTNING_UBS_DATA, else the user's cache folder."""
    chosen = data_dir or os.environ.get("LIGHTNING_UBS_DATA")
    return Path(chosen).expanduser() if chosen else user_cache()


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


def fetch_file(file: SourceFile, folder: Path, download: bool = True) -> Path:
    """Return the path of the file in ``folder``, downloaded if it is absent; its checksum is verified either way.

    Args:
        file: What to fetch.
        folder: Where it is or goes.
        download: False refuses to use the network.
    """
    target = folder / file.name
    if os.path.isfile(target):
        _verify(target, file)
        return target
    by_hand = f"put {file.name} ({file.bytes:,} bytes, SHA-256 {file.sha256}) into {folder} by hand"
    url = address(file)
    if not download:
        raise DataError(f"{target} is absent and downloading is switched off; {by_hand}, from {url}.")
    log.info("fetching %s (%s bytes)", url, f"{file.bytes:,}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _download(url, file, target)
    except Exception as error:
        log.debug("fetching %s failed", url, exc_info=True)
        if isinstance(error, ModuleNotFoundError):
            raise
        raise DataError(
            f"{url} could not be fetched ({_reason(error, folder)}); try again, or {by_hand}; "
            "`lightning-ubs data show NAME` lists all files of a dataset."
        ) from None
    return target


def _verify(path: Path, file: SourceFile) -> None:
    """Raise if the checksum of a file is not the published one."""
    found = sha256(path)
    if found != file.sha256:
        raise DataError(
            f"{path}: its SHA-256 is {found}, but {file.sha256} was published; remove it and fetch it again."
        )


def _download(url: str, file: SourceFile, target: Path) -> None:
    digest, size = hashlib.sha256(), 0
    with atomic_write(target) as stream:
        for piece in _pieces(url, PATIENCE + file.bytes / LEAST_PACE):
            size += len(piece)
            if size > file.bytes:
                raise ValueError(f"it is longer than the {file.bytes:,} bytes that were published")
            digest.update(piece)
            stream.write(piece)
        if digest.hexdigest() != file.sha256:
            raise ValueError("its SHA-256 is not the published one")
    remember_sha256(target, file.sha256)


def _pieces(url: str, seconds: float) -> Iterator[bytes]:
    """Return the content of a URL piece by piece, for as long as it comes fast enough."""
    requests = optional_import("requests")
    end = time.monotonic() + seconds

    def in_time(call: Callable[[], Any]) -> Any:
        return _result(call, max(0.0, min(PATIENCE, end - time.monotonic())))

    response = in_time(lambda: requests.get(url, stream=True, timeout=PATIENCE))
    try:
        response.raise_for_status()
        arriving = response.iter_content(PIECE)
        while piece := in_time(lambda: next(arriving, b"")):
            yield piece
    finally:
        # In a thread, too: closing waits for a read that is still under way.
        threading.Thread(target=response.close, daemon=True).start()


def _result(call: Callable[[], Any], seconds: float) -> Any:
    """What a call returns, if it does in time.

    A thread waits for the server, so that even one that drips its headers byte by byte is given up; not one of an
    executor, which Python would wait for when it ends.
    """
    future: Future[Any] = Future()

    def work() -> None:
        try:
            future.set_result(call())
        except Exception as error:
            future.set_exception(error)

    threading.Thread(target=work, daemon=True, name="lightning-ubs download").start()
    wait([future], seconds)
    if not future.done():
        raise _Slow
    return future.result()


def _reason(error: Exception, folder: Path) -> str:
    """Return in a few words what went wrong; libraries tell it in paragraphs."""
    if isinstance(error, _Slow):
        return f"the server is too slow: less than {PIECE:,} bytes in {PATIENCE:g} s, or {LEAST_PACE:,} bytes/s overall"
    words = {"ConnectionError": "no connection", "ConnectTimeout": "no answer", "ReadTimeout": "no answer"}
    if type(error).__name__ in words:
        return words[type(error).__name__]
    if type(error).__module__ == "builtins":
        problem = write_problem(error, folder) if isinstance(error, OSError) else str(error)
        return (problem or str(error)).partition(";")[0]
    return f"{type(error).__name__}: {error}".splitlines()[0][:120]
