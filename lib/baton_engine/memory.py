"""How much memory of a device this process may still use."""

from __future__ import annotations

import torch

from baton_kv.host_memory import available_bytes


def free_device_bytes(device: torch.device) -> int:
    """Return what this process may still allocate on the device, in bytes."""
    if device.type == "cuda":
        free_bytes, _ = torch.cuda.mem_get_info(device)
        return free_bytes
    return available_bytes()
