"""CUDA tensors without values, on a machine without CUDA: mixing devices raises, and so does waiting for one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

MODE = FakeTensorMode(allow_non_fake_inputs=True)
aten = torch.ops.aten


class DeviceWaitError(AssertionError):
    """The host would have waited for the device."""


class ForbidCopiesToHost(TorchDispatchMode):
    """Refuses what moves values from a device to the host; what reads them, a fake tensor refuses itself."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        read = any(one.device.type == "cuda" for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor))
        if read and any(one.device.type == "cpu" for one in tree_leaves(result) if isinstance(one, Tensor)):
            raise DeviceWaitError(f"{func} copies from the device to the host.")
        return result


class WithoutCuda(TorchFunctionMode):
    """Says in other words what would ask for a CUDA that is not built in, such as ``tensor[...]`` and ``copy_``."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        said = _OTHERWISE.get(func) if args and isinstance(args[0], FakeTensor) else None
        return (said or func)(*args, **(kwargs or {}))


def _read(tensor: Tensor, key: Any) -> Tensor:
    view, indices = _basic(tensor, key)
    return view if indices is None else aten.index.Tensor(view, indices)


def _write(tensor: Tensor, key: Any, value: Any) -> None:
    (view, indices), value = _basic(tensor, key), torch.as_tensor(value)
    if indices is None:
        _copied(view, value)
    else:
        aten.index_put_.default(view, indices, value)


def _copied(target: Tensor, value: Tensor) -> Tensor:
    """A fake tensor has no values to change, but where they would come from and their shape must fit."""
    value.to(target.device).expand(target.shape)
    return target


def _basic(tensor: Tensor, key: Any) -> tuple[Tensor, list[Tensor | None] | None]:
    """``tensor`` after slices, numbers and None in ``key``, and the tensors in it, each at its dimension."""
    indices: list[Tensor | None] = []
    for part in key if isinstance(key, tuple) else (key,):
        if isinstance(part, Tensor):
            if part.dtype == torch.bool:
                raise DeviceWaitError("a mask as an index makes the host wait for the device.")
            indices.append(part)
            continue
        at = len(indices)
        if part is Ellipsis:
            raise NotImplementedError("an ellipsis is not used by what is tested")
        if part is None:
            tensor = tensor.unsqueeze(at)
        elif isinstance(part, slice):
            tensor = aten.slice.Tensor(tensor, at, *part.indices(tensor.shape[at]))
        else:
            tensor = tensor.select(at, part)
            continue
        indices.append(None)
    return tensor, indices if any(index is not None for index in indices) else None


def _nonzero(tensor: Tensor, **options: Any) -> Tensor:
    raise DeviceWaitError("nonzero makes the host wait for the device.")


_OTHERWISE: dict[Any, Callable[..., Any]] = {
    Tensor.__getitem__: _read,
    Tensor.__setitem__: _write,
    Tensor.__invert__: torch.bitwise_not,
    Tensor.contiguous: partial(torch.clone, memory_format=torch.contiguous_format),
    Tensor.copy_: _copied,
    Tensor.nonzero: _nonzero,
}


@contextmanager
def fake_cuda() -> Iterator[None]:
    """Tensors made here have no values; those that are there already may be used."""
    with MODE, ForbidCopiesToHost(), WithoutCuda():
        yield


def inside(work: Callable[..., Any]) -> Callable[..., Any]:
    """``work``, done where tensors are fake."""

    def wrapped(*args: Any, **options: Any) -> Any:
        with fake_cuda():
            return work(*args, **options)

    return wrapped
