"""Attention on the CPU in C++; with AMX, caches of bfloat16 have V transposed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from baton_kernels.cpu.c_struct import address_of
from baton_kernels.cpu.library import CpuLibrary
from baton_kernels.cpu.memory import RESULTS
from baton_kernels.cpu.structs import (
    BidirectionalAttentionArgs,
    DecodeAttentionArgs,
    KvLayer,
    KvWriteArgs,
    RotateArgs,
    VarlenAttentionArgs,
)
from baton_kernels.interface.cache_dtype import CACHE_DTYPES, FLOAT8, UNSCALED, LayerKVScales
from baton_kernels.interface.kernels import AttentionBatch, AttentionKernels, check_sinks

DTYPES: Final = (torch.float32, torch.bfloat16)
"""Dtypes of queries, and of new K and V."""
_LEAST_LANES: Final = 8
"""Numbers in a vector of the builds that attend to whole prompts of bfloat16 faster than torch."""


@dataclass(frozen=True, slots=True, eq=False)
class _Decodes:
    """The one-token slices of a batch."""

    tokens: Tensor
    """`[num_decodes] int32`, rows of the batch."""
    seqs: Tensor
    """`[num_decodes] int32`, their sequences."""

    @classmethod
    def of(cls, batch: AttentionBatch) -> _Decodes:
        seqs = np.flatnonzero(np.array(batch.query_lens) == 1).astype(np.int32)
        return cls(torch.from_numpy(batch.query_start.numpy()[seqs]), torch.from_numpy(seqs))


class CpuAttention(AttentionKernels):
    """Keeps which slices of a batch have one token as long as the batch lives: its layers share it.

    With `is_v_transposed`, V lies as `[head_dim, block_size]` inside a block, and queries are bfloat16.
    """

    def __init__(self, library: CpuLibrary, *, is_v_transposed: bool = False) -> None:
        self._library = library
        self._is_v_transposed = is_v_transposed
        self.v_axes = "HDT" if is_v_transposed else "HTD"
        self._decodes: WeakKeyDictionary[AttentionBatch, _Decodes] = WeakKeyDictionary()

    def write(
        self,
        k: Tensor,
        v: Tensor,
        kv_pool: Tensor,
        layer: int,
        batch: AttentionBatch,
        scales: LayerKVScales = UNSCALED,
    ) -> None:
        dtype = kv_pool.dtype
        if dtype in FLOAT8:
            dtype = k.dtype if k.dtype == v.dtype and k.dtype in DTYPES else torch.float32
        k, v = (dense_rows(side.to(dtype)) for side in (k, v))
        self._library.run(self._write_args(k, v, kv_pool, layer, batch, scales))

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
        is_taken = q.dtype in DTYPES if kv_pool.dtype in FLOAT8 else q.dtype == kv_pool.dtype
        if not (is_taken and q.dtype == k.dtype == v.dtype == cos.dtype == sin.dtype):
            return super().rotate_and_write(q, k, v, cos, sin, kv_pool, layer, batch, scales)
        q, k, v = (dense_rows(side) for side in (q, k, v))
        cos, sin = cos.contiguous(), sin.contiguous()
        q_out, k_out = (RESULTS.empty(side.shape, side.dtype) for side in (q, k))
        args = RotateArgs(
            write=self._write_args(k_out, v, kv_pool, layer, batch, scales),
            q=q.data_ptr(),
            k=k.data_ptr(),
            cos=cos.data_ptr(),
            sin=sin.data_ptr(),
            q_out=q_out.data_ptr(),
            k_out=k_out.data_ptr(),
            q_stride=q.stride(0),
            k_stride=k.stride(0),
            angle_stride=cos.stride(0),
            num_q_heads=q.shape[1],
            rotary_dim=cos.shape[-1],
        )
        self._library.run(args)
        return q_out, k_out

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
        q = dense_rows(q)
        out = RESULTS.empty(q.shape, q.dtype)
        shared = {
            "layer": self._layer(kv_pool, layer, scales),
            "q": q.data_ptr(),
            "out": out.data_ptr(),
            "tables": batch.block_tables.data_ptr(),
            "lengths": batch.seq_lens.data_ptr(),
            "q_stride": q.stride(0),
            "table_stride": batch.block_tables.stride(0),
            "group_size": q.shape[1] // kv_pool.shape[3],
            "window": batch.window or 0,
            "num_threads": torch.get_num_threads(),
            "is_q_bfloat16": q.dtype == torch.bfloat16,
            "scale": scale,
            "soft_cap": softcap or 0.0,
            "sinks": address_of(sinks),
        }
        self._attend(batch, shared)
        return out

    def _attend(self, batch: AttentionBatch, shared: dict[str, Any]) -> None:
        """Run the kernels for all slices of a batch; `shared` are the arguments that each of them takes."""
        self._attend_decodes(batch, shared)
        if max(batch.query_lens, default=0) > 1:
            self._attend_slices(batch, shared, least_tokens=2)

    def _attend_slices(self, batch: AttentionBatch, shared: dict[str, Any], *, least_tokens: int) -> None:
        """Mutates the rows of the result that belong to slices of `least_tokens` or more."""
        args = VarlenAttentionArgs(
            query_start=batch.query_start.data_ptr(),
            num_seqs=len(batch.query_lens),
            after=0,
            least_tokens=least_tokens,
            **shared,
        )
        self._library.run(args)

    def bidirectional(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        seq_lens: Sequence[int],
        scale: float,
        window: int | None = None,
    ) -> Tensor:
        if not (self._takes_prompts(q.dtype) and q.dtype == k.dtype == v.dtype):
            return super().bidirectional(q, k, v, seq_lens, scale, window)
        q, k, v = (dense_rows(side) for side in (q, k, v))
        out = RESULTS.empty(q.shape, q.dtype)
        query_start = np.cumsum((0, *seq_lens), dtype=np.int32)
        if not (self._library.variant.has_tiles and q.dtype == torch.bfloat16):
            self._attend_prompts(q, k, v, out, query_start, scale, window)
            return out
        args = BidirectionalAttentionArgs(
            q=q.data_ptr(),
            k=k.data_ptr(),
            v=v.data_ptr(),
            out=out.data_ptr(),
            query_start=query_start.ctypes.data,
            q_stride=q.stride(0),
            k_stride=k.stride(0),
            v_stride=v.stride(0),
            num_seqs=len(seq_lens),
            num_kv_heads=k.shape[1],
            group_size=q.shape[1] // k.shape[1],
            head_dim=q.shape[2],
            window=-1 if window is None else window,
            num_threads=torch.get_num_threads(),
            scale=scale,
        )
        self._library.run(args)
        return out

    def _takes_prompts(self, dtype: torch.dtype) -> bool:
        """Say whether whole prompts of that dtype are attended to here, not in torch: where it is faster."""
        return dtype == torch.bfloat16 and self._library.variant.num_lanes >= _LEAST_LANES

    def _attend_prompts(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        query_start: np.ndarray,
        scale: float,
        window: int | None,
    ) -> None:
        """Fill `out` with `bidirectional`: rows of keys and values are blocks of one token."""
        if k.stride(0) != v.stride(0):
            k, v = k.contiguous(), v.contiguous()
        lengths = np.diff(query_start)
        tables = query_start[:-1, None] + np.arange(lengths.max(initial=0), dtype=np.int32)
        layer = KvLayer(
            k=k.data_ptr(),
            v=v.data_ptr(),
            block_stride=k.stride(0),
            num_kv_heads=k.shape[1],
            head_dim=q.shape[2],
            block_size=1,
            dtype=CACHE_DTYPES[k.dtype],
            is_v_transposed=False,
            k_scale=UNSCALED.k,
            v_scale=UNSCALED.v,
        )
        args = VarlenAttentionArgs(
            layer=layer,
            q=q.data_ptr(),
            out=out.data_ptr(),
            tables=tables.ctypes.data,
            lengths=lengths.ctypes.data,
            query_start=query_start.ctypes.data,
            q_stride=q.stride(0),
            num_seqs=len(lengths),
            table_stride=tables.shape[1],
            group_size=q.shape[1] // k.shape[1],
            window=0 if window is None else window + 1,
            after=len(q) if window is None else window,
            least_tokens=1,
            num_threads=torch.get_num_threads(),
            is_q_bfloat16=q.dtype == torch.bfloat16,
            scale=scale,
            soft_cap=0.0,
            sinks=None,
        )
        self._library.run(args)

    def is_capturable(self, kv_pool: Tensor) -> bool:
        return True

    def _attend_decodes(self, batch: AttentionBatch, shared: dict[str, Any]) -> None:
        """Mutates the rows of the result that belong to one-token slices."""
        decodes = self._decodes.get(batch)
        if decodes is None:
            decodes = self._decodes[batch] = _Decodes.of(batch)
        if not len(decodes.seqs):
            return
        args = DecodeAttentionArgs(
            tokens=decodes.tokens.data_ptr(),
            seqs=decodes.seqs.data_ptr(),
            num_decodes=len(decodes.seqs),
            **shared,
        )
        self._library.run(args)

    def _write_args(
        self,
        k: Tensor,
        v: Tensor,
        kv_pool: Tensor,
        layer: int,
        batch: AttentionBatch,
        scales: LayerKVScales,
    ) -> KvWriteArgs:
        """Return the write of `k` and `v`, dense rows in the dtype of the pool or to a pool of codes."""
        return KvWriteArgs(
            layer=self._layer(kv_pool, layer, scales),
            k=k.data_ptr(),
            v=v.data_ptr(),
            slots=batch.slot_mapping.data_ptr(),
            k_stride=k.stride(0),
            v_stride=v.stride(0),
            num_tokens=len(k),
            num_threads=torch.get_num_threads(),
            is_bfloat16=k.dtype == torch.bfloat16,
        )

    def _layer(self, kv_pool: Tensor, layer: int, scales: LayerKVScales = UNSCALED) -> KvLayer:
        if kv_pool.dtype not in CACHE_DTYPES:
            allowed = ", ".join(str(dtype).removeprefix("torch.") for dtype in CACHE_DTYPES)
            raise ValueError(f"dtype of the KV pool is {kv_pool.dtype}; allowed: {allowed}")
        _, _, _, num_kv_heads, block_size, head_dim = kv_pool.shape
        k_offset = layer * kv_pool.stride(1) * kv_pool.element_size()
        k = kv_pool.data_ptr() + k_offset
        return KvLayer(
            k=k,
            v=k + kv_pool.stride(2) * kv_pool.element_size(),
            block_stride=kv_pool.stride(0),
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            block_size=block_size,
            dtype=CACHE_DTYPES[kv_pool.dtype],
            is_v_transposed=self._is_v_transposed,
            k_scale=scales.k,
            v_scale=scales.v,
        )


def dense_rows(x: Tensor) -> Tensor:
    """`x` `[num_tokens, num_heads, head_dim]` with each token's numbers back to back; copied if need be."""
    return x if x.stride(2) == 1 and x.stride(1) == x.shape[2] else x.contiguous()
