"""Attention over the paged cache on CUDA devices: Triton's kernels behind the engine's interface.

Imported only where Triton is wanted: `TRITON_INTERPRET` is read when a kernel is defined.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from baton_kernels.interface.cache_dtype import UNSCALED, LayerKVScales
from baton_kernels.interface.kernels import AttentionBatch, AttentionKernels, check_sinks
from baton_kernels.reference.torch_attention import TorchAttention
from baton_kernels.triton import cache
from baton_kernels.triton.decode import decode
from baton_kernels.triton.kernel_variant import FP8_ARCH, device_arch
from baton_kernels.triton.prefill import prefill

MAX_HEAD_DIM: Final = 256
"""Wider heads do not fit a program's registers: torch attends with them."""


class TritonAttention(AttentionKernels):
    """Any mixture of one-token slices and chunks in at most three launches.

    A cache of e4m3 holds K and V divided by their scales; what exceeds 448 was cut when it was written.
    """

    def __init__(self) -> None:
        self._torch = TorchAttention()

    def write(
        self,
        k: Tensor,
        v: Tensor,
        kv_pool: Tensor,
        layer: int,
        batch: AttentionBatch,
        scales: LayerKVScales = UNSCALED,
    ) -> None:
        if scales != UNSCALED:
            k, v = k.float() / scales.k, v.float() / scales.v
        cache.write(k, v, kv_pool, layer, batch)

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
        scales: LayerKVScales = UNSCALED,
    ) -> tuple[Tensor, Tensor]:
        if scales != UNSCALED:
            return super().rotate_and_write(q, k, v, cos, sin, kv_pool, layer, batch, scales)
        return cache.rotate_and_write(q, k, v, cos, sin, kv_pool, layer, batch)

    def attention(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        kv_pool: Tensor,
        layer: int,
        batch: AttentionBatch,
        scale: float,
        softcap: float | None = None,
        scales: LayerKVScales = UNSCALED,
        sinks: Tensor | None = None,
    ) -> Tensor:
        check_sinks(sinks, q.shape[1])
        head_dim = q.shape[-1]
        require_readable(kv_pool.dtype, head_dim, device_arch())
        if head_dim > MAX_HEAD_DIM:
            return self._torch.attention(q, k, v, kv_pool, layer, batch, scale, softcap, scales, sinks)
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        if max(batch.query_lens) > 1:
            prefill(out, q, kv_pool, layer, batch, scale * scales.k, softcap, sinks)
        if min(batch.query_lens) == 1:
            decode(out, q, kv_pool, layer, batch, scale * scales.k, softcap, sinks)
        return out if scales.v == 1 else out.mul_(scales.v)

    def is_capturable(self, kv_pool: Tensor) -> bool:
        return kv_pool.is_cuda and kv_pool.shape[-1] <= MAX_HEAD_DIM

    def copy_blocks(self, kv_pool: Tensor, pairs: Sequence[tuple[int, int]]) -> None:
        self._torch.copy_blocks(kv_pool, pairs)


def require_readable(cache_dtype: torch.dtype, head_dim: int, arch: int) -> None:
    """Raises: ValueError when nothing here reads such a cache on devices of `arch`; see `device_arch`."""
    if cache_dtype != torch.float8_e4m3fn:
        return
    if 0 < arch < FP8_ARCH:
        raise ValueError(
            f"KV cache dtype is 'float8_e4m3fn' on a device of compute capability {arch / 10}; "
            f"allowed below {FP8_ARCH / 10}: 'float32', 'bfloat16', 'float16'"
        )
    if head_dim > MAX_HEAD_DIM:
        raise ValueError(
            f"head_dim is {head_dim} with a KV cache of 'float8_e4m3fn'; allowed: at most {MAX_HEAD_DIM}"
        )
