"""Who does a run: a lock per run that the operating system releases when its owner dies."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lightning_ubs._utils.files import lock_file


@dataclass
class Claim:
    """A run that this process owns.

    Attributes:
        key: Key of the run.
        folder: For its log and checkpoints; nobody else uses it while the claim is held.
        tries: How often this grid has begun the run, this time included.
    """

    key: str
    folder: Path
    tries: int


class Claims:
    """The runs of a results folder that are being done now, by this process or any other that uses the folder.

    The owner of the run KEY holds the lock ``claims/KEY.lock``; ``claims/KEY`` tells how often which grid has begun it.
    Both are removed when the run comes to an end; a file whose lock nobody holds is left of an owner that died.

    Args:
        results: The results folder.
        grid: Name of the grid that counts its tries.
    """

    def __init__(self, results: Path, grid: str = "") -> None:
        self.results = results
        self.grid = grid

    @contextlib.contextmanager
    def take(self, key: str) -> Iterator[Claim | None]:
        """Own a run while the block lasts; None if another process owns it."""
        path = self._path(key)
        with lock_file(self._lock(key), wait=False) as held:
            if not held:
                yield None
                return
            try:
                tries = self.tries(key) + 1
                path.write_text(f"{self.grid} {tries}\n")
                yield Claim(key, self.results / "unfinished" / key, tries)
            finally:
                path.unlink(missing_ok=True)

    def is_free(self, key: str) -> bool:
        """Whether nobody does this run now."""
        if not self._lock(key).exists():
            return True
        with lock_file(self._lock(key), wait=False) as held:
            return held

    def tries(self, key: str) -> int:
        """How often this grid has begun a run that did not come to an end."""
        try:
            grid, _, count = self._path(key).read_text().strip().rpartition(" ")
        except OSError:
            return 0
        return int(count) if count.isdigit() and grid == self.grid else 0

    def tidy(self) -> None:
        """Remove what dead owners left, and folders that are empty."""
        for key in {path.name.removesuffix(".lock") for path in (self.results / "claims").glob("*")}:
            with lock_file(self._lock(key), wait=False) as held:
                if held:
                    log = self.results / "logs" / f"{key}.log"
                    if log.is_file() and not log.stat().st_size:
                        log.unlink()
                    shutil.rmtree(self.results / "unfinished" / key, ignore_errors=True)
                    self._path(key).unlink(missing_ok=True)
        # While anyone does a run, its claim keeps the first folder, and its owner may be about to use the others.
        with contextlib.suppress(OSError):
            (self.results / "claims").rmdir()
        if not (self.results / "claims").exists():
            for name in ("logs", "unfinished"):
                with contextlib.suppress(OSError):
                    (self.results / name).rmdir()

    def _path(self, key: str) -> Path:
        return self.results / "claims" / key

    def _lock(self, key: str) -> Path:
        return self.results / "claims" / f"{key}.lock"
