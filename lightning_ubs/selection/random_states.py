"""The states of all random generators, so that a resumed run draws what the uninterrupted one would have drawn."""

from __future__ import annotations

import ctypes
import hashlib
import random
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from lightning.pytorch.trainer import Trainer
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor

from lightning_ubs._utils.distributed import broadcast_from_rank_zero
from lightning_ubs.selection._lightning import validation_is_due, validation_loaders

# The 624 words of NumPy's Mersenne Twister and its position in them.
_NUMPY_BYTES = 625 * 4


class RandomStates:
    """The generators' states of all ranks, kept for checkpoints and restored where training resumes.

    A checkpoint is written by rank 0 alone and at any time, so a rank's state must be on rank 0 before: each rank sends
    its own (10 kB) in :meth:`share` after a step or a validation, without waiting for the others.

    Worker processes are seeded anew for each batch from (:attr:`root`, epoch, batch, rank), so that a resume in
    mid-epoch needs nothing of them.

    Args:
        trainer: The trainer of this fit.
        enabled: Whether checkpoints hold states at all.
    """

    def __init__(self, trainer: Trainer, enabled: bool) -> None:
        self._trainer = trainer
        self._enabled = enabled
        self._loaded: dict[str, Any] | None = None
        self._pending = False
        self._before_fetch: tuple[Any, ...] | None = None
        self._after_step = False
        self._numpy: _NumpyState | None = None
        self._sent: tuple[list[Tensor], Any] | None = None
        self.root: int | None = None

    @property
    def resumes(self) -> bool:
        """Whether this fit resumes from a checkpoint that holds states."""
        return self._loaded is not None

    def load(self, state: dict[str, Any] | None) -> None:
        """Keep a checkpoint's states until training starts; later ones are a tuner's, whose steps are undone."""
        if self._enabled and self.root is None:
            self._loaded = state

    def begin(self, generator: torch.Generator | None) -> None:
        """Training starts: restore, or choose what workers' seeds follow from. Every rank calls this.

        Args:
            generator: Generator of the train loader; None where its workers follow the global one.
        """
        if not self._enabled:
            return
        if self._loaded is not None:
            self.root = int(self._loaded["root"])
            self._pending = True
            self._restore()
            return
        state = torch.get_rng_state() if generator is None else generator.get_state()
        digest = hashlib.sha256(state.numpy().tobytes()).digest()
        root = torch.tensor(int.from_bytes(digest[:8], "big") >> 1)
        if self._trainer.world_size > 1:
            root = broadcast_from_rank_zero(root, self._trainer.strategy.root_device)
        self.root = int(root)

    def validated(self) -> None:
        """Note a validation after a resume: what it draws is part of the run, unless it ran before the checkpoint."""
        if self._loaded is not None and not self._loaded["validating"]:
            self._pending = False

    def proceed(self) -> None:
        """Training continues, with its first epoch or batch after a resume: undo what hooks have drawn since."""
        if not self._pending or self._loaded is None:
            return
        self._pending = False
        self._restore()
        if self._loaded["validates_next"]:
            for loader in validation_loaders(self._trainer):
                # Lightning leaves out the validation that followed the checkpoint, and with it the seed of its workers.
                torch.empty((), dtype=torch.int64).random_(generator=loader.generator)

    def before_fetch(self) -> None:
        """Note that the training loop asks for a batch: a checkpoint of a failed step goes back to here."""
        if self._pending:
            self.proceed()
        self._after_step = False
        if self._enabled:
            self._numpy = _numpy_state(self._numpy)
            self._before_fetch = _snapshot(self._trainer.strategy.root_device, self._numpy.state)

    def share(self, after_step: bool = False) -> None:
        """Send this rank's states to the others after a step, a validation or an epoch, and wait for nobody."""
        if not self._enabled:
            return
        self._before_fetch = None
        self._after_step = after_step
        if self._trainer.world_size > 1:
            self._received()
            device = self._trainer.strategy.root_device
            own = capture(device).to(device, non_blocking=True)
            parts = [torch.empty_like(own) for _ in range(self._trainer.world_size)]
            self._sent = parts, dist.all_gather(parts, own, async_op=True)

    def state_dict(self) -> dict[str, Any] | None:
        """What :meth:`load` takes, with one row of bytes per rank; None before training starts."""
        if not self._enabled or self.root is None:
            return None
        own = _encoded(self._before_fetch or _snapshot(self._trainer.strategy.root_device))
        rows = [part.cpu() for part in self._received()] or [own] * self._trainer.world_size
        rows[self._trainer.global_rank] = own
        trainer = self._trainer
        return {
            "root": self.root,
            "validating": trainer.validating,
            "validates_next": self._after_step and not trainer.validating and validation_is_due(trainer),
            "states": torch.stack(rows),
        }

    def _received(self) -> list[Tensor]:
        """What all ranks sent last; it was sent by all of them, so it arrives."""
        if self._sent is None:
            return []
        parts, work = self._sent
        work.wait()
        return parts

    def _restore(self) -> None:
        assert self._loaded is not None
        states, trainer = self._loaded["states"], self._trainer
        if len(states) == trainer.world_size:
            restore(states[trainer.global_rank], trainer.strategy.root_device)
        else:
            rank_zero_warn(
                f"The checkpoint holds random states of {len(states)} ranks, now there are {trainer.world_size}: "
                "selection resumes exactly, but dropout and augmentation differ.",
                category=UserWarning,
            )


def capture(device: torch.device) -> Tensor:
    """The states of the generators of Python, NumPy and torch, as bytes; of devices that of ``device`` alone."""
    return _encoded(_snapshot(device))


class _NumpyState(NamedTuple):
    """What NumPy's global generator says of its state, and the words in memory that it said this of."""

    state: Any
    words: bytes | None


def _numpy_state(last: _NumpyState | None) -> _NumpyState:
    """The state of NumPy's global generator: the ``last`` one as long as nothing was drawn.

    Asking NumPy takes longer than all else that is done before a batch. To compare the words in memory takes a
    hundredth of that, and only a cached normal number, which ``state[3]`` tells of, can be drawn without changing them.
    """
    generator = np.random.get_bit_generator()  # type: ignore[attr-defined]
    if not isinstance(generator, np.random.MT19937):
        return _NumpyState(np.random.get_state(), None)
    words = ctypes.string_at(generator.ctypes.state_address, _NUMPY_BYTES)
    if last is not None and last.words == words and not last.state[3]:
        return last
    return _NumpyState(np.random.get_state(), words)


def _snapshot(device: torch.device, numpy_state: Any = None) -> tuple[Any, ...]:
    """The same as the generators give it, which takes little time: it is made at every step."""
    of_device = torch.empty(0, dtype=torch.uint8)
    if device.type == "cuda":
        of_device = torch.cuda.get_rng_state(device)
    elif device.type == "mps":
        of_device = torch.mps.get_rng_state()
    numpy_state = np.random.get_state() if numpy_state is None else numpy_state
    return random.getstate(), numpy_state, torch.get_rng_state(), of_device


def _encoded(snapshot: tuple[Any, ...]) -> Tensor:
    (_, words, gauss), (_, keys, *rest), *of_torch = snapshot
    own = np.array([*words, gauss is not None], np.uint32).tobytes() + np.float64(gauss or 0).tobytes()
    numpy = np.asarray(keys, np.uint32).tobytes() + np.array(rest, np.float64).tobytes()
    return torch.cat([torch.frombuffer(bytearray(own + numpy), dtype=torch.uint8), *of_torch])


def restore(state: Tensor, device: torch.device) -> None:
    """Set the generators to what :func:`capture` gave; a device that it did not have keeps its own."""
    raw = state.cpu().numpy().tobytes()
    words = np.frombuffer(raw, np.uint32, 626)
    gauss = float(np.frombuffer(raw, np.float64, 1, 2504)[0]) if words[-1] else None
    random.setstate((3, tuple(words[:-1].tolist()), gauss))
    keys, (position, has_gauss, cached) = (
        np.frombuffer(raw, np.uint32, 624, 2512),
        np.frombuffer(raw, np.float64, 3, 5008),
    )
    np.random.set_state(("MT19937", keys, int(position), int(has_gauss), float(cached)))
    size = len(torch.get_rng_state())
    torch.set_rng_state(state[5032 : 5032 + size].cpu().clone())
    of_device = state[5032 + size :].cpu().clone()
    if device.type == "cuda" and len(of_device):
        torch.cuda.set_rng_state(of_device, device)
    elif device.type == "mps" and len(of_device):
        torch.mps.set_rng_state(of_device)
