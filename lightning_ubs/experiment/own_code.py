"""The user's own functions and classes: found by their dotted path, and known by what they do, not by their layout."""

from __future__ import annotations

import hashlib
import inspect
import logging
import os
import sys
import types
from collections.abc import Iterator
from typing import Any

import numpy as np

from lightning_ubs.errors import ConfigError

# Libraries, whose versions a run records; their code is not read.
_LIBRARIES = (
    "torch",
    "lightning",
    "pytorch_lightning",
    "torchmetrics",
    "torchvision",
    "numpy",
    "lightning_ubs",
    "builtins",
)
# What tensors, sparse matrices, data frames and arrays bring, and nothing else.
_CONTENT = ("detach", "toarray", "to_numpy", "__array_interface__")
_PLAIN = (int, float, complex, str, bytes, bool, type(None))


def locate(target: str) -> Any:
    """The class or function of a dotted path; the folder in which the program was started is searched as well."""
    import hydra.utils

    if os.getcwd() not in sys.path:  # a console script does not search it, `python -m` does
        sys.path.append(os.getcwd())
    log = logging.getLogger("hydra.utils")  # prints what it also raises
    silent, log.disabled = log.disabled, True
    try:
        return hydra.utils.get_object(target)
    except Exception as error:
        cause = str(error.__cause__ or error).splitlines()[0]
        raise ConfigError(
            f"_target_={target!r} cannot be imported ({cause}); give the dotted path of a class or function, and start "
            "in the folder that holds its file."
        ) from error
    finally:
        log.disabled = silent


def fingerprint(thing: Any) -> str:
    """16 hexadecimal digits for the code of a function or class, what it refers to in its own module, and constants.

    Comments, docstrings and line numbers do not matter. Of an object, its class and plain attributes count, of a
    tensor, an array or a data frame what it holds. What is imported from a library is known by its name.
    """
    text = "\n".join(_parts(thing, {}))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _parts(thing: Any, seen: dict[int, Any]) -> Iterator[str]:
    if isinstance(thing, _PLAIN):
        yield repr(thing)
        return
    if id(thing) in seen:
        return
    seen[id(thing)] = thing  # kept, so that nothing that is made on the way gets the number of what is gone
    if isinstance(thing, list | tuple | set | frozenset):
        items = sorted(thing, key=repr) if isinstance(thing, set | frozenset) else thing
        yield type(thing).__name__
        for item in items:
            yield from _parts(item, seen)
    elif isinstance(thing, dict):
        for name, item in thing.items():
            yield from _parts(name, seen)
            yield from _parts(item, seen)
    elif not isinstance(thing, type) and any(hasattr(thing, name) for name in _CONTENT):
        yield from _content(thing, seen)
    elif _is_library(thing):
        yield f"{thing.__module__}.{thing.__qualname__}"
    elif isinstance(thing, type):
        yield from _class(thing, seen)
    elif isinstance(thing, types.FunctionType):
        yield from _function(thing, seen)
    elif isinstance(thing, types.MethodType | classmethod | staticmethod):
        yield from _parts(thing.__func__, seen)
    elif isinstance(thing, property):
        yield from _parts([thing.fget, thing.fset], seen)
    elif hasattr(thing, "func") and hasattr(thing, "keywords"):  # functools.partial
        yield from _parts([thing.func, thing.args, thing.keywords], seen)
    else:
        yield from _parts(type(thing), seen)
        plain = {name: value for name, value in getattr(thing, "__dict__", {}).items() if isinstance(value, _PLAIN)}
        yield from _parts(plain, seen)
        if not hasattr(thing, "__dict__") and " at 0x" not in repr(thing):  # a path, a range, a type of torch
            yield repr(thing)


def _content(values: Any, seen: dict[int, Any]) -> Iterator[str]:
    """What a tensor, a sparse matrix, a data frame or an array holds."""
    if hasattr(values, "detach"):
        import torch

        yield str(values.dtype)
        dense = values.detach().cpu() if values.layout == torch.strided else values.detach().cpu().to_dense()
        values = (dense.float() if dense.dtype == torch.bfloat16 else dense).numpy()  # NumPy lacks that type
    elif hasattr(values, "toarray"):
        values = values.toarray()
    elif hasattr(values, "to_numpy"):
        yield from _parts(list(getattr(values, "columns", ())), seen)
        values = values.to_numpy()
    values = np.asarray(values)
    held = repr(values.tolist()).encode() if values.dtype.hasobject else values.tobytes()
    yield f"{values.dtype} {values.shape} {hashlib.sha256(held).hexdigest()}"


def _class(kind: type, seen: dict[int, Any]) -> Iterator[str]:
    yield kind.__qualname__
    for base in kind.__bases__:
        yield from _parts(base, seen)
    for name, value in vars(kind).items():
        is_code = isinstance(value, types.FunctionType | classmethod | staticmethod | property)
        if is_code or (isinstance(value, _PLAIN) and not name.startswith("__")):
            yield name
            yield from _parts(value, seen)


def _function(function: types.FunctionType, seen: dict[int, Any]) -> Iterator[str]:
    yield from _code(function.__code__)
    yield from _parts([function.__defaults__, function.__kwdefaults__], seen)
    closed = inspect.getclosurevars(function)
    for values in (closed.nonlocals, closed.globals):
        for name, value in sorted(values.items()):
            if not isinstance(value, types.ModuleType):
                yield name
                yield from _parts(value, seen)


def _code(code: types.CodeType) -> Iterator[str]:
    yield code.co_code.hex()
    yield repr(code.co_names)
    for constant in code.co_consts[1 if _is_documented(code) else 0 :]:
        if isinstance(constant, types.CodeType):
            yield from _code(constant)
        else:
            yield repr(constant)


def _is_documented(code: types.CodeType) -> bool:
    """Whether the first constant is a docstring. Python 3.13 tells; before, a def that has none begins with None."""
    flag = getattr(inspect, "CO_HAS_DOCSTRING", None)
    if flag is not None:
        return bool(code.co_flags & flag)
    return not code.co_name.startswith("<") and isinstance(code.co_consts[0] if code.co_consts else None, str)


def _is_library(thing: Any) -> bool:
    module = getattr(thing, "__module__", None) or ""
    return hasattr(thing, "__qualname__") and module.split(".")[0] in _LIBRARIES
