"""The device that a worker computes on, and its free memory."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import torch

from baton_core.errors import InvalidConfigError
from baton_kv.host_memory import available_bytes

_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
"""Settings of glibc's mallopt(3)."""
_RETURNED_BYTES: Final = 1 << 20
_LARGEST_THRESHOLD: Final = 32 << 20
"""Bytes from which an allocation has a mapping of its own; the allocator raises them itself to the latter."""
ALLOWED: Final = ("auto", "cpu", "cuda")


def resolve_device(requested: str) -> torch.device:
    """Return the device for `requested`, one of ALLOWED; "auto" is the GPU where torch sees one.

    Raises:
        InvalidConfigError: `requested` is none of ALLOWED, or a GPU that torch cannot use.
    """
    if requested not in ALLOWED:
        raise InvalidConfigError(f"device is {requested!r}; allowed: {', '.join(ALLOWED)}")
    if requested == "cuda" and not torch.cuda.is_available():
        why = "sees no GPU" if torch.version.cuda else "is built without CUDA"
        raise InvalidConfigError(f"device is 'cuda'; allowed: auto, cpu (torch {torch.__version__} {why})")
    if requested == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device())


def use_device(requested: str, index: int) -> torch.device:
    """Return the device for `requested`, a GPU being that with this index, and compute on it in this thread.

    Raises:
        InvalidConfigError: as `resolve_device`.
    """
    if resolve_device(requested).type == "cuda":
        torch.cuda.set_device(index)
    return resolve_device(requested)


def require_gpus(requested: str, number: int) -> None:
    """Refuse so many ranks on this machine if the device for `requested` is a GPU, and there are fewer.

    Raises:
        InvalidConfigError: names both numbers.
    """
    if resolve_device(requested).type == "cuda" and number > (has := torch.cuda.device_count()):
        text = f"device is {requested!r}, with {number} ranks of a model on this machine"
        raise InvalidConfigError(f"{text}; allowed: at most {has}, the number of its GPUs")


def free_device_bytes(device: torch.device) -> int:
    """Return what this process may still allocate on the device, in bytes."""
    if device.type == "cuda":
        free_bytes, _ = torch.cuda.mem_get_info(device)
        return free_bytes
    return available_bytes()


@contextmanager
def returning_freed_memory() -> Iterator[None]:
    """Have large allocations on the host returned to the system as soon as they are freed, meanwhile.

    Weights are read into memory that is freed once they are packed: in the heap, a small object that stays
    would keep all of it. Afterwards the library's allocator has the settings to which its own adaptation
    leads.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # of glibc
    if mallopt is None:
        yield
        return
    mallopt(_MMAP_THRESHOLD, _RETURNED_BYTES)
    try:
        yield
    finally:
        mallopt(_MMAP_THRESHOLD, _LARGEST_THRESHOLD)
        mallopt(_TRIM_THRESHOLD, 2 * _LARGEST_THRESHOLD)


def free_unused(device: torch.device) -> None:
    """Give memory that no object has back to the system."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc
    if trim is not None:
        trim(0)
