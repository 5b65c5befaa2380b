"""Moves a loaded model between devices, in place: whoever refers to one of its tensors goes on doing so."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor


def move_tensors(root: object, device: torch.device | str) -> int:
    """Move every tensor that is reachable from `root` to `device`; returns their size in bytes.

    A tensor that several parts share stays shared. Not for tensors that are captured in a CUDA graph.
    """
    num_bytes = 0
    for tensor in find_tensors(root):
        tensor.data = tensor.data.to(device)
        num_bytes += tensor.nbytes
    return num_bytes


def find_tensors(root: object) -> Iterator[Tensor]:
    """Yield each tensor in the attributes and the containers of `root`, and in those of their parts, once."""
    seen: set[int] = set()
    waiting: list[Any] = [root]
    while waiting:
        part = waiting.pop()
        if id(part) in seen or isinstance(
            part, type | str | bytes | int | float | torch.dtype | torch.device
        ):
            continue
        seen.add(id(part))
        if isinstance(part, Tensor):
            yield part
        else:
            waiting += _parts(part)


def _parts(part: Any) -> list[Any]:
    if isinstance(part, Mapping):
        return list(part.values())
    if isinstance(part, list | tuple | set | frozenset):
        return list(part)
    if isinstance(part, partial):
        return [part.func, *part.args, *part.keywords.values()]
    bound = getattr(part, "__self__", None)
    attributes = list(vars(part).values()) if hasattr(part, "__dict__") else []
    slots = [name for kind in type(part).__mro__ for name in _slots_of(kind)]
    return [bound, *attributes, *(getattr(part, name, None) for name in slots)]


def _slots_of(kind: type) -> tuple[str, ...]:
    slots = kind.__dict__.get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)
