"""Who does a run: a lock per run that the operating system releases when its owner dies."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]
    import msvcrt


@dataclass
class Claim:
    """A run that this process owns.

    Attributes:
        key: of the run.
        folder: for its log and checkpoints; nobody else uses it while the claim is held.
        tries: how often this grid has begun the run, this time included.
    """

    key: str
    folder: Path
    tries: int


class Claims:
    """The runs of a results folder that are being done now, by this process or any other that uses the folder.

    ``claims/KEY`` is locked by the owner of the run KEY and holds how often which grid has begun it. The file of a run
    that came to an end is removed; one that nobody locks belongs to a run whose owner died.

    Args:
        results: the results folder.
        grid: name of the grid that counts its tries.
    """

    def __init__(self, results: Path, grid: str = "") -> None:
        self.results = results
        self.grid = grid

    @contextlib.contextmanager
    def take(self, key: str) -> Iterator[Claim | None]:
        """Own a run while the block lasts; None if another process owns it."""
        path = self._path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        file = _locked(path)
        if file is None:
            yield None
            return
        try:
            tries = self._tries(file) + 1
            file.seek(0)
            file.truncate()
            file.write(f"{self.grid} {tries}\n".encode())
            file.flush()
            yield Claim(key, self.results / "unfinished" / key, tries)
        finally:
            path.unlink(missing_ok=True)
            file.close()

    def is_free(self, key: str) -> bool:
        """Whether nobody does this run now."""
        if not self._path(key).exists():
            return True
        file = _locked(self._path(key))
        if file is None:
            return False
        file.close()
        return True

    def tries(self, key: str) -> int:
        """How often this grid has begun a run that did not come to an end."""
        try:
            with open(self._path(key), "rb") as file:
                return self._tries(file)
        except OSError:
            return 0

    def tidy(self) -> None:
        """Remove what dead owners left, and folders that are empty."""
        for path in (self.results / "claims").glob("*"):
            file = _locked(path)
            if file is not None:
                log = self.results / "logs" / f"{path.name}.log"
                if log.is_file() and not log.stat().st_size:
                    log.unlink()
                shutil.rmtree(self.results / "unfinished" / path.name, ignore_errors=True)
                path.unlink(missing_ok=True)
                file.close()
        # While anyone does a run, its claim keeps the first folder, and its owner may be about to use the others.
        with contextlib.suppress(OSError):
            (self.results / "claims").rmdir()
        if not (self.results / "claims").exists():
            for name in ("logs", "unfinished"):
                with contextlib.suppress(OSError):
                    (self.results / name).rmdir()

    def _path(self, key: str) -> Path:
        return self.results / "claims" / key

    def _tries(self, file: IO[bytes]) -> int:
        file.seek(0)
        grid, _, count = file.read().decode().strip().rpartition(" ")
        return int(count) if count.isdigit() and grid == self.grid else 0


def _locked(path: Path) -> IO[bytes] | None:
    """The file at ``path``, opened and locked; None if another process has locked it."""
    while True:
        try:
            file = open(path, "a+b", buffering=0)  # noqa: SIM115 - closing it gives the lock back
        except FileNotFoundError:  # another process has just tidied the folder away
            path.parent.mkdir(parents=True, exist_ok=True)
            continue
        try:
            _lock(file)
        except OSError:
            file.close()
            return None
        # The owner before us may have removed the file between our opening and our locking it.
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), os.stat(path)):
                return file
        file.close()


def _lock(file: IO[bytes]) -> None:
    if fcntl is not None:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    else:
        file.seek(1 << 20)  # past the content, which others may read
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
