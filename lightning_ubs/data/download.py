"""Where published files are kept, and how they get there."""

from __future__ import annotations

import hashlib
import logging
import os
import queue
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from lightning_ubs._utils.extras import optional_import
from lightning_ubs._utils.files import atomic_write, remember_sha256, sha256, user_cache, write_problem
from lightning_ubs.data.sources import SourceFile
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
    """Return the content of a URL piece by piece, for as long as it comes fast enough.

    A thread waits for the server, so that even one that drips its headers byte by byte is given up in time.
    """
    requests = optional_import("requests")
    arrived: queue.Queue[bytes | Exception] = queue.Queue(maxsize=64)
    stopped = threading.Event()

    def put(item: bytes | Exception) -> None:
        while not stopped.is_set():
            try:
                arrived.put(item, timeout=0.1)
            except queue.Full:
                continue
            return

    def receive() -> None:
        try:
            with requests.get(url, stream=True, timeout=PATIENCE) as response:
                response.raise_for_status()
                for piece in response.iter_content(PIECE):
                    put(piece)
                    if stopped.is_set():
                        return
            put(b"")
        except Exception as error:
            put(error)

    threading.Thread(target=receive, daemon=True, name="lightning-ubs download").start()
    end = time.monotonic() + seconds
    try:
        while True:
            left = end - time.monotonic()
            try:
                item = arrived.get(timeout=max(0.0, min(PATIENCE, left)))
            except queue.Empty:
                raise _Slow from None
            if isinstance(item, Exception):
                raise item
            if not item:
                return
            yield item
    finally:
        stopped.set()


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
