"""Anything that makes the host wait for the device raises, even though the tests run on a CPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_FORBIDDEN = {
    "_local_scalar_dense",
    "nonzero",
    "masked_select",
    "equal",
    "is_nonzero",
    "_unique2",
    "unique_dim",
    "unique_consecutive",
}
_READING_METHODS = ("item", "tolist", "numpy", "cpu", "__bool__", "__float__", "__int__", "__index__")


class HostWaitError(AssertionError):
    """The host would have waited for the device."""


class ForbidHostWait(TorchDispatchMode):
    """Refuses operators whose result the host must have before it can continue."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in _FORBIDDEN or (name.startswith("index") and _has_mask(args)):
            raise HostWaitError(f"{func} makes the host wait for the device.")
        return func(*args, **(kwargs or {}))


def _has_mask(args: Any) -> bool:
    """Whether an indexing operator is given a boolean mask, which hides a nonzero."""
    indices = args[1] if len(args) > 1 and isinstance(args[1], list | tuple) else []
    return any(isinstance(index, torch.Tensor) and index.dtype == torch.bool for index in indices)


@contextmanager
def forbid_host_wait() -> Iterator[None]:
    """Forbid the operators above, and the methods that would read a tensor without calling one."""

    def refuse(name: str) -> Any:
        def method(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            raise HostWaitError(f"Tensor.{name} makes the host wait for the device.")

        return method

    with ForbidHostWait():
        patches = [patch.object(torch.Tensor, name, refuse(name)) for name in _READING_METHODS]
        for one in patches:
            one.start()
        try:
            yield
        finally:
            for one in patches:
                one.stop()
