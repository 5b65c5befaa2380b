"""Tokens from a device without waiting for them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def begin_download(tokens: Tensor) -> Callable[[], list[int]]:
    """Begin to copy `tokens` `[n] int64` to the host, in stream order; the callable waits for them.

    It may be called on another thread. On the CPU they are there.
    """
    if tokens.device.type == "cpu":
        return tokens.tolist
    host = torch.empty(tokens.shape, dtype=tokens.dtype, pin_memory=True)
    host.copy_(tokens, non_blocking=True)
    is_copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
    is_copied.record()

    def wait() -> list[int]:
        is_copied.synchronize()
        return host.tolist()

    return wait
