"""Streamed data by index: map-style datasets of the engines that store samples in chunks or shards."""

from __future__ import annotations

import copy
import os
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from torch.utils.data import Dataset

from lightning_ubs.errors import DataError

# Chunks that a process keeps open: two windows of the default order.
_OPEN = 32
# Chunks that a process fetches at a time, while a batch waits for them.
_FETCHES = 4
# Another process may take a chunk away between its being fetched and opened.
_ATTEMPTS = 20


def indexed(dataset: Any) -> IndexedDataset:
    """Read a streaming dataset by index, so that its samples can be selected.

    The engine's own order, shuffling, dropping of samples and division among processes play no part: every rank sees
    all samples, and chunks are fetched when a batch needs them, into the engine's own cache folder and within its
    limit. Use it with ``BatchSelection(order=Blocks())``, which takes the bounds of the chunks from the dataset.

    Args:
        dataset: A ``litdata.StreamingDataset`` or a ``streaming.StreamingDataset`` (of mosaicml-streaming).

    Raises:
        DataError: The dataset is of no such kind, or is set up in a way that reading by index cannot follow.
    """
    kinds = {f"{kind.__module__.partition('.')[0]}.{kind.__name__}" for kind in type(dataset).__mro__}
    if "litdata.StreamingDataset" in kinds:
        return LitDataIndexed(dataset)
    if "streaming.StreamingDataset" in kinds:
        return MosaicIndexed(dataset)
    if kinds & {"litdata.CombinedStreamingDataset", "litdata.ParallelStreamingDataset"}:
        raise DataError(
            f"a {type(dataset).__name__} mixes several datasets in an order of its own; pass each of them to indexed() "
            "and join them by torch.utils.data.ConcatDataset."
        )
    raise DataError(
        f"a {type(dataset).__name__} is no dataset of litdata or mosaicml-streaming; a dataset with __len__ and "
        "__getitem__ needs no indexed(), and samples that only come one after the other (WebDataset, Ray Data) must "
        "first be written as chunks that can be read by index, by litdata.optimize or streaming.MDSWriter."
    )


class IndexedDataset(Dataset[Any]):
    """Samples by index, where they lie in blocks that are fetched as a whole.

    Attributes:
        block_bounds: (blocks + 1,) where the blocks begin, and n; :class:`~lightning_ubs.Blocks` reads them.
        fetches: Blocks that this process has fetched so far, because they were not in the cache.
        opens: Blocks that this process has opened so far.
    """

    block_bounds: npt.NDArray[np.int64]

    def __init__(self, sizes: Sequence[int]) -> None:
        self.block_bounds = np.append(0, np.cumsum(np.asarray(sizes, dtype=np.int64)))
        self.fetches = self.opens = 0

    def __len__(self) -> int:
        return int(self.block_bounds[-1])

    def __getitem__(self, index: int) -> Any:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Samples in the order of ``indices``, read block by block; a DataLoader asks for a batch at a time."""
        wanted = np.asarray(indices, dtype=np.int64)
        n = len(self)
        if len(wanted) and not (-n <= wanted.min() and wanted.max() < n):
            raise IndexError(f"index {wanted.max()} or {wanted.min()} is not in a dataset of {n} samples.")
        wanted = np.where(wanted < 0, wanted + n, wanted)
        blocks = np.searchsorted(self.block_bounds, wanted, side="right") - 1
        order = blocks.argsort(kind="stable")
        needed, firsts = np.unique(blocks[order], return_index=True)
        missing = [block for block in needed.tolist() if not self._is_there(block)]
        if len(missing) > 1:
            with ThreadPoolExecutor(min(_FETCHES, len(missing))) as pool:
                # Added up here: threads that add to one number may lose what another one added.
                self.fetches += sum(pool.map(self._fetch, missing))
        samples: list[Any] = [None] * len(wanted)
        for block, places in zip(needed.tolist(), np.split(order, firsts[1:]), strict=True):
            read = self._read(block, wanted[places].tolist())
            for place, sample in zip(places.tolist(), read, strict=True):
                samples[place] = sample
        return samples

    @abstractmethod
    def _is_there(self, block: int) -> bool:
        """Whether a block can be read without fetching it."""

    @abstractmethod
    def _fetch(self, block: int) -> bool:
        """Bring a block into the cache; whether it was not there."""

    @abstractmethod
    def _read(self, block: int, indices: list[int]) -> list[Any]:
        """The samples ``indices``, which lie in ``block``."""


class LitDataIndexed(IndexedDataset):
    """A ``litdata.StreamingDataset`` by index.

    litdata reads a chunk to its end before the next, and deletes what it has left behind. Here several chunks are open
    at a time, so the cache is looked after otherwise: a chunk is fetched once for all processes of a machine, and where
    the cache is over its limit, the chunks that were opened longest ago are deleted. What a process has open it can
    read to the end, deleted or not.
    """

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        self._process: tuple[int, _LitDataChunks] | None = None
        if getattr(dataset, "window_direct_io", False):
            raise DataError("window_direct_io=True allows no reading by index; leave it out.")
        super().__init__([end - begin for _, begin, end, _ in self._chunks.config.intervals])
        self._chunks.check()

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_process": None}

    @property
    def _chunks(self) -> _LitDataChunks:
        """Of this process: open files and connections are not shared with a worker."""
        if self._process is None or self._process[0] != os.getpid():
            self._process = os.getpid(), _LitDataChunks(self.dataset)
        return self._process[1]

    def _is_there(self, block: int) -> bool:
        return block in self._chunks.opened or os.path.exists(self._chunks.path(block))

    def _fetch(self, block: int) -> bool:
        return self._chunks.fetch(block)

    def _read(self, block: int, indices: list[int]) -> list[Any]:
        chunks = self._chunks
        if block not in chunks.opened:
            self.fetches += chunks.open(block)
            self.opens += 1
        # Counted as litdata does, where a part of a chunk may belong to the dataset.
        shift = int(chunks.config.intervals[block][1]) - int(self.block_bounds[block])
        samples = chunks.read(block, [index + shift for index in indices])
        for transform in getattr(self.dataset, "transform", ()):
            samples = [transform(sample) for sample in samples]
        return samples


class _LitDataChunks:
    """The chunks of a litdata dataset, as one process has them open."""

    def __init__(self, dataset: Any) -> None:
        from litdata.utilities.env import _WorkerEnv

        # A cache of its own: the dataset's may have been used in the process that this one was forked from.
        reader = copy.copy(dataset)._create_cache(worker_env=_WorkerEnv.detect())._reader
        self.config = reader.config
        self.opened: OrderedDict[int, Any] = OrderedDict()
        self._limit = reader._max_cache_size
        self._encryption = reader._encryption
        self._serializers = reader._serializers
        self._reader = reader
        self._is_cached = bool(self.config._remote_dir or self.config._compressor)
        self._folder = Path(self.config._cache_dir)

    def check(self) -> None:
        """Refuse what cannot be read by index in any order."""
        loader = type(self.config._item_loader).__name__
        if loader not in ("PyTreeLoader", "TokensLoader"):
            raise DataError(
                f"chunks of litdata's {loader} cannot be read by index in any order; write the data by "
                "litdata.optimize with its default item loader, or read Parquet files by datasets.load_dataset."
            )
        largest = max(chunk["chunk_bytes"] for chunk in self.config._chunks)
        if self._is_cached and self._limit and self._limit < 2 * largest:
            raise DataError(
                f"max_cache_size={self._limit} bytes has no room for two chunks of {largest} bytes, so chunks would be "
                "fetched for every batch; allow at least two windows of chunks."
            )

    def path(self, block: int) -> str:
        """Where a chunk lies when it is there."""
        from litdata.streaming.sampler import ChunkedIndex

        return str(self.config[ChunkedIndex(index=-1, chunk_index=block)][0])

    def fetch(self, block: int) -> bool:
        """Bring a chunk into the cache; whether it was not there."""
        path = self.path(block)
        if os.path.exists(path) or not self._is_cached:
            return False
        with _locked(f"{path}.fetch"):
            if os.path.exists(path):
                return False
            self._make_room(block)
            self.config.download_chunk_from_index(block, skip_lock=True)
        return True

    def open(self, block: int) -> bool:
        """Open a chunk; whether it had to be fetched."""
        fetched = False
        for _ in range(_ATTEMPTS):
            fetched |= self.fetch(block)
            # The file's time says when it was opened last, which is what the cache goes by.
            with suppress(FileNotFoundError):
                if self._is_cached:
                    os.utime(self.path(block))
                self.opened[block] = self._loader(block)
                break
        else:
            raise DataError(
                f"chunk {self.path(block)} is deleted again and again before it can be read; raise max_cache_size, or "
                "use a smaller window= of Blocks."
            )
        while len(self.opened) > _OPEN:
            self._close(*self.opened.popitem(last=False))
        return fetched

    def read(self, block: int, items: list[int]) -> list[Any]:
        """Samples of an open chunk, counted as litdata does."""
        from litdata.streaming.sampler import ChunkedIndex

        self.opened.move_to_end(block)
        chunk = block, *self.config[ChunkedIndex(index=-1, chunk_index=block)]
        given = (*chunk, self._encryption) if self._has_tree else chunk
        load = self.opened[block].load_item_from_chunk
        return [load(item, *given) for item in items]

    @property
    def _has_tree(self) -> bool:
        return type(self.config._item_loader).__name__ == "PyTreeLoader"

    def _loader(self, block: int) -> Any:
        """What reads a chunk; the file is open when this returns, so that it may be deleted."""
        shared = self.config._item_loader
        if not self._has_tree:
            shared.load_item_from_chunk(self._first(block), block, *self._place(block))
            return shared
        # litdata's loader has one open chunk, and decodes the neighbors of a sample, which a shuffled order wastes.
        loader = type(shared)(batch_decode=0)
        loader.setup(self.config._config, self.config._chunks, self._serializers, shared.region_of_interest)
        loader.set_mmap_allowed_chunks({block})
        place = self._place(block)
        loader.load_item_from_chunk(self._first(block), block, *place, self._encryption)
        self._look_once(loader, block, place[0])
        return loader

    @staticmethod
    def _look_once(reads: Any, block: int, path: str) -> None:
        """A chunk without tables or compressed frames has none for any sample; litdata looks again at each of them."""
        from litdata.streaming import item_loader

        # Without these names, litdata reads samples in another way than the one that is shortened here.
        skip = getattr(item_loader, "_BATCH_SKIP", None)
        batched = getattr(reads, "_load_batched_item", None)
        mapped = getattr(reads, "_mmap", None) is not None
        if skip is not None and batched is not None and mapped and batched(block, path, 0) is skip:
            reads._load_batched_item = lambda *_: skip

    def _first(self, block: int) -> int:
        return int(self.config.intervals[block][0])

    def _place(self, block: int) -> tuple[str, int, int]:
        from litdata.streaming.sampler import ChunkedIndex

        path, begin, size = self.config[ChunkedIndex(index=-1, chunk_index=block)]
        if not os.path.exists(path):
            raise FileNotFoundError(path)
        return path, begin, size

    def _close(self, block: int, items: Any) -> None:
        items.close(block)
        if self._has_tree:
            items._close_open_chunk()

    def _make_room(self, block: int) -> None:
        """Delete the chunks that were opened longest ago, where the cache would pass its limit."""
        if not self._limit:
            return
        sizes = self.config.filename_to_size_map
        room = self._limit - self.config._chunks[block]["chunk_bytes"]
        with _locked(str(self._folder / "room")):
            held = []
            for entry in os.scandir(self._folder):
                if entry.name in sizes:
                    with suppress(FileNotFoundError):
                        state = entry.stat()
                        held.append((state.st_mtime_ns, state.st_size, entry.path))
            used = sum(size for _, size, _ in held)
            for _, size, path in sorted(held):
                if used <= room:
                    break
                with suppress(FileNotFoundError, PermissionError):  # on Windows, a file that is open stays
                    os.remove(path)
                    used -= size


class MosaicIndexed(IndexedDataset):
    """A ``streaming.StreamingDataset`` of mosaicml-streaming by index.

    Its shards, cache limit and eviction are used as they are: a shard that was evicted is fetched again.
    """

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        if dataset.epoch_size != dataset.num_samples:
            raise DataError(
                f"epoch_size or the weights of streams make {dataset.epoch_size} samples of {dataset.num_samples}, "
                "which plays no part where samples are read by index; leave them out, and use "
                "BatchSelection(epoch_size=...)."
            )
        super().__init__(dataset.samples_per_shard.tolist())

    def __getstate__(self) -> dict[str, Any]:
        # The lock of a process cannot be pickled for a worker; the dataset makes a new one where it has none.
        vars(self.dataset).pop("_cache_filelock", None)
        return vars(self)

    def _is_there(self, block: int) -> bool:
        from streaming.base.dataset import _ShardState

        return bool(self.dataset._shard_states[block] == _ShardState.LOCAL)

    def _fetch(self, block: int) -> bool:
        self.dataset.prepare_shard(block)
        return True

    def _read(self, block: int, indices: list[int]) -> list[Any]:
        if not self._is_there(block):
            self.fetches += self._fetch(block)
        return [self.dataset.get_item(index) for index in indices]


@contextmanager
def _locked(path: str) -> Iterator[None]:
    """Hold a lock of all processes of this machine."""
    from filelock import FileLock

    with FileLock(f"{path}.lock"):
        yield
