"""Kernels of the batch-invariant mode on CUDA devices: a token depends on nothing else in its step.

Every slice, of one token or of many, is attended to by the kernel for chunks: a row walks over its keys in
tiles of fixed size, in order. No kernel here adds atomically, splits its sums by the size of a batch, or
has tiles that were chosen by measuring.
Imported only where Triton is wanted: `TRITON_INTERPRET` is read when a kernel is defined.
"""

from __future__ import annotations

import torch
from torch import Tensor

from baton_kernels.interface.cache_dtype import UNSCALED, LayerKVScales
from baton_kernels.interface.kernels import AttentionBatch, Product, check_sinks
from baton_kernels.interface.quantized import QuantizedWeight
from baton_kernels.triton.attention import TritonAttention, require_readable
from baton_kernels.triton.kernel_configs import DEFAULT_ARCH, kernel_config
from baton_kernels.triton.kernel_variant import device_arch
from baton_kernels.triton.layers import TritonLayers
from baton_kernels.triton.prefill import prefill
from baton_kernels.triton.product import TritonProduct
from baton_kernels.triton.quantized_product import quantized_product


class InvariantTritonAttention(TritonAttention):
    """One way to attend for slices of any length, for heads of at most `MAX_HEAD_DIM`."""

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
        require_readable(kv_pool.dtype, q.shape[-1], device_arch())
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        config = kernel_config("attention_chunks", q.dtype, q.shape[-1], DEFAULT_ARCH)
        scale *= scales.k
        prefill(out, q, kv_pool, layer, batch, scale, softcap, sinks, min_queries=1, config=config)
        return out if scales.v == 1 else out.mul_(scales.v)


class InvariantTritonLayers(TritonLayers):
    """`TritonLayers`, whose rows are computed by themselves, with linear layers of one tile shape."""

    is_invariant = True

    def product(self, weight: Tensor, bias: Tensor | None) -> TritonProduct:
        return TritonProduct(weight, bias)

    def quantized_product(
        self, weight: QuantizedWeight, bias: Tensor | None, dtype: torch.dtype
    ) -> Product | None:
        return quantized_product(weight, bias, is_invariant=True)
