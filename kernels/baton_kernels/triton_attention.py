"""Attention over the paged cache on CUDA devices: Triton's kernels behind the engine's interface.

Imported only where Triton is wanted: `TRITON_INTERPRET` is read when a kernel is defined.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from baton_kernels import triton_cache
from baton_kernels.interface import AttentionBatch, AttentionKernels
from baton_kernels.kernel_variant import FP8_ARCH, device_arch
from baton_kernels.torch_attention import TorchAttention
from baton_kernels.triton_decode import decode
from baton_kernels.triton_prefill import prefill

MAX_HEAD_DIM: Final = 256
"""A larger row of values does not fit a program's registers; torch attends with it."""


class TritonAttention(AttentionKernels):
    """Any mixture of one-token slices and chunks in at most three launches."""

    def __init__(self) -> None:
        self._torch = TorchAttention()

    def write(self, k: Tensor, v: Tensor, kv_pool: Tensor, layer: int, batch: AttentionBatch) -> None:
        triton_cache.write(k, v, kv_pool, layer, batch)

    def rotate_and_write(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cos: Tensor,
        sin: Tensor,
        kv_pool: Tensor,
        layer: int,
        batch: AttentionBatch,
    ) -> tuple[Tensor, Tensor]:
        return triton_cache.rotate_and_write(q, k, v, cos, sin, kv_pool, layer, batch)

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        kv_pool: Tensor,
        layer: int,
        batch: AttentionBatch,
        scale: float,
        softcap: float | None = None,
    ) -> Tensor:
        if q.shape[-1] > MAX_HEAD_DIM:
            return self._torch.attend(q, k, v, kv_pool, layer, batch, scale, softcap)
        if kv_pool.is_cuda:
            require_convertible(kv_pool.dtype, device_arch())
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        if max(batch.query_lens) > 1:
            prefill(out, q, kv_pool, layer, batch, scale, softcap)
        if min(batch.query_lens) == 1:
            decode(out, q, kv_pool, layer, batch, scale, softcap)
        return out

    def is_capturable(self, kv_pool: Tensor) -> bool:
        return kv_pool.is_cuda and kv_pool.shape[-1] <= MAX_HEAD_DIM

    def copy_blocks(self, kv_pool: Tensor, pairs: Sequence[tuple[int, int]]) -> None:
        self._torch.copy_blocks(kv_pool, pairs)


def require_convertible(cache_dtype: torch.dtype, arch: int) -> None:
    """Raises: ValueError when devices of this compute capability, times ten, cannot read such a cache."""
    if cache_dtype == torch.float8_e4m3fn and arch < FP8_ARCH:
        raise ValueError(
            f"KV cache dtype is {str(cache_dtype).removeprefix('torch.')!r} on a device of compute capability "
            f"{arch / 10}; allowed below {FP8_ARCH / 10}: 'float32', 'bfloat16', 'float16'"
        )
