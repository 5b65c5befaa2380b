"""The memory of a device that this process may still use, or does not use any more."""

from __future__ import annotations

import ctypes
import gc

import torch

from baton_kv.host_memory import available_bytes


def free_device_bytes(device: torch.device) -> int:
    """Return what this process may still allocate on the device, in bytes."""
    if device.type == "cuda":
        free_bytes, _ = torch.cuda.mem_get_info(device)
        return free_bytes
    return available_bytes()


def free_unused(device: torch.device) -> None:
    """Give memory that no object has back to the system."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc
    if trim is not None:
        trim(0)
