"""Attention of prompt chunks over a paged prefix and themselves, in Triton.

One launch for all slices of several tokens. A program takes some tokens of one slice with the query heads of
one KV head, and walks over the keys that any of them sees; each row's arithmetic depends on its own position
alone, so a prompt gets the same numbers however it is cut into chunks.
Imported only where Triton is wanted: `TRITON_INTERPRET` is read when a kernel is defined.
"""

# Triton's decorator and kernel arguments have no types; compile-time constants are upper case.
# mypy: disable-error-code="untyped-decorator, no-untyped-def"
# ruff: noqa: N803

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from baton_kernels.interface.kernels import AttentionBatch
from baton_kernels.triton.kernel_configs import DEFAULT_ARCH, KernelConfig, kernel_config, tuned_archs
from baton_kernels.triton.kernel_variant import FP8_ARCH, TRITON_TYPES, KernelVariant, device_arch
from baton_kernels.triton.tiles import (
    NO_WINDOW,
    PRECISION,
    _fold_tile,
    _rows_of_keys,
    _score_keys,
    _start_with_sinks,
)


@triton.jit
def _slice_of_tile(query_start_ptr, num_seqs, tile, TOKENS: tl.constexpr):
    """The slice that a tile belongs to: the last whose first tile is not after it.

    Slice s gets the tiles from `query_start[s] // TOKENS + s` on: as many as it needs or one more.
    """
    low = 0
    high = num_seqs
    while high - low > 1:
        middle = (low + high) // 2
        if tl.load(query_start_ptr + middle) // TOKENS + middle <= tile:
            low = middle
        else:
            high = middle
    return low


@triton.jit(do_not_specialize=["window", "stride_table", "num_seqs"])
def attention_chunks(
    out_ptr,
    q_ptr,
    k_ptr,
    v_ptr,
    tables_ptr,
    seq_lens_ptr,
    query_start_ptr,
    sinks_ptr,
    scale,
    softcap,
    window,
    stride_q_token,
    stride_q_head,
    stride_block,
    stride_head,
    stride_slot,
    stride_table,
    num_seqs,
    GROUP: tl.constexpr,
    GROUP_TILES: tl.constexpr,
    HEADS: tl.constexpr,
    TOKENS: tl.constexpr,
    ROWS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_PAD: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr,
    CAPPED: tl.constexpr,
    SINKS: tl.constexpr,
    MIN_QUERIES: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """`TOKENS` query tokens of one slice with `HEADS` query heads of one KV head: a row for each pair.

    Grid: (num_tokens // TOKENS + num_seqs, num_kv_heads * GROUP_TILES). Writes those rows of
    `out [num_tokens, num_q_heads, HEAD_DIM]`: zeros for a sequence without context. Slices of fewer than
    `MIN_QUERIES` query tokens are left alone.
    """
    # The last tiles of a chunk see the most keys: they start first.
    tile = tl.num_programs(0) - 1 - tl.program_id(0)
    seq = _slice_of_tile(query_start_ptr, num_seqs, tile, TOKENS)
    slice_start = tl.load(query_start_ptr + seq)
    query_len = tl.load(query_start_ptr + seq + 1) - slice_start
    first_query = (tile - slice_start // TOKENS - seq) * TOKENS
    if (query_len < MIN_QUERIES) | (first_query >= query_len):
        return

    rows = tl.arange(0, ROWS)
    dims = tl.arange(0, HEAD_PAD)
    kv_head = tl.program_id(1) // GROUP_TILES
    first_head = tl.program_id(1) % GROUP_TILES * HEADS
    num_queries = tl.minimum(TOKENS, query_len - first_query)
    is_row = (rows < num_queries * HEADS) & (first_head + rows % HEADS < GROUP)
    is_dim = dims < HEAD_DIM
    is_query = is_row[:, None] & is_dim[None, :]
    # The first row's place needs 64 bits, the others' distances from it do not.
    first_token = (slice_start + first_query).to(tl.int64)
    first_q_head = kv_head * GROUP + first_head
    q_ptr += first_token * stride_q_token + first_q_head * stride_q_head
    q_rows = rows // HEADS * stride_q_token + rows % HEADS * stride_q_head
    q = tl.load(q_ptr + (q_rows[:, None] + dims[None, :]), mask=is_query, other=0.0)

    first_position = tl.load(seq_lens_ptr + seq) - query_len + first_query
    positions = first_position + rows // HEADS
    first_key = tl.maximum(first_position - window + 1, 0)
    stop = first_position + num_queries
    if SINKS:  # a first key without a value
        q_heads = kv_head * GROUP + tl.minimum(first_head + rows % HEADS, GROUP - 1)
        highest, total = _start_with_sinks(sinks_ptr + q_heads)
    else:
        highest = tl.full([ROWS], float("-inf"), tl.float32)
        total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, HEAD_PAD], tl.float32)
    table_ptr = tables_ptr + seq.to(tl.int64) * stride_table
    # One body for all tiles, masked or not: another one could round differently.
    for tile_start in range(first_key // TILE * TILE, stop, TILE):
        keys = tile_start + tl.arange(0, TILE)
        is_key = (keys >= first_key) & (keys < stop)
        key_rows = _rows_of_keys(
            table_ptr, keys, is_key, kv_head, stride_block, stride_head, stride_slot, BLOCK_SIZE
        )
        offsets = key_rows[:, None] + dims[None, :]
        is_loaded = is_key[:, None] & is_dim[None, :]
        k = tl.load(k_ptr + offsets, mask=is_loaded, other=0.0)
        ages = positions[:, None] - keys[None, :]
        scores = _score_keys(q, k, (ages >= 0) & (ages < window), scale, softcap, CAPPED, PRECISION)
        v = tl.load(v_ptr + offsets, mask=is_loaded, other=0.0)
        highest, total, acc = _fold_tile(highest, total, acc, scores, v, q.dtype, PRECISION)

    num_q_heads = tl.num_programs(1) // GROUP_TILES * GROUP
    out_ptr += (first_token * num_q_heads + first_q_head) * HEAD_DIM
    out_rows = (rows // HEADS * num_q_heads + rows % HEADS) * HEAD_DIM
    total = tl.where(total > 0, total, 1.0)
    attended = (acc / total[:, None]).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + (out_rows[:, None] + dims[None, :]), attended, mask=is_query)


@cache
def chunk_variant(
    dtype: torch.dtype,
    kv_dtype: torch.dtype,
    head_dim: int,
    group: int,
    block_size: int,
    is_capped: bool,
    config: KernelConfig,
    min_queries: int = 2,
    has_sinks: bool = False,
) -> KernelVariant:
    """`attention_chunks` for queries of `dtype`, a pool of `kv_dtype`, `group` query heads per KV head."""
    element, kv_element = f"*{TRITON_TYPES[dtype]}", f"*{TRITON_TYPES[kv_dtype]}"
    pointers = {"out_ptr": element, "q_ptr": element, "k_ptr": kv_element, "v_ptr": kv_element}
    pointers |= {
        "tables_ptr": "*i32",
        "seq_lens_ptr": "*i32",
        "query_start_ptr": "*i32",
        "sinks_ptr": "*fp32",
    }
    strides = ("stride_q_token", "stride_q_head", "stride_block", "stride_head", "stride_slot")
    head_pad = max(16, triton.next_power_of_2(head_dim))
    heads = min(group, config.rows)
    return KernelVariant(
        kernel=attention_chunks,
        signature={
            **pointers,
            "scale": "fp32",
            "softcap": "fp32",
            "window": "i32",
            **dict.fromkeys(strides, "i32"),
            "stride_table": "i32",
            "num_seqs": "i32",
        },
        constexprs={
            "GROUP": group,
            "GROUP_TILES": triton.cdiv(group, heads),
            "HEADS": heads,
            "TOKENS": config.rows // heads,
            "ROWS": config.rows,
            "HEAD_DIM": head_dim,
            "HEAD_PAD": head_pad,
            "BLOCK_SIZE": block_size,
            "TILE": config.tile,
            "CAPPED": is_capped,
            "SINKS": has_sinks,
            "MIN_QUERIES": min_queries,
            "PRECISION": PRECISION,
        },
        aligned=frozenset((*pointers, *strides)),
        num_warps=config.num_warps,
        num_stages=config.num_stages,
        blackwell_registers=255,
        min_arch=FP8_ARCH if kv_dtype == torch.float8_e4m3fn else 80,
    )


def aot_variants() -> Iterator[KernelVariant]:
    """Each power of two that a row is padded to, type, and cap once or more, groups of all kinds."""
    half, brain, single, e4m3 = torch.float16, torch.bfloat16, torch.float32, torch.float8_e4m3fn
    yield from _tuned(brain, brain, 64, group=7, block_size=32, is_capped=False)
    yield from _tuned(half, half, 80, group=1, block_size=16, is_capped=False)
    yield from _tuned(brain, brain, 128, group=7, block_size=32, is_capped=False)
    yield from _tuned(brain, brain, 256, group=2, block_size=32, is_capped=True)
    yield from _tuned(brain, e4m3, 128, group=7, block_size=32, is_capped=True)
    yield from _tuned(brain, e4m3, 256, group=16, block_size=32, is_capped=False)
    yield from _tuned(single, single, 256, group=4, block_size=32, is_capped=True)
    default = kernel_config("attention_chunks", brain, 128, DEFAULT_ARCH)
    yield chunk_variant(brain, brain, 128, 7, 32, is_capped=False, config=default, min_queries=1)
    default = kernel_config("attention_chunks", brain, 64, DEFAULT_ARCH)
    yield chunk_variant(brain, brain, 64, 8, 32, is_capped=False, config=default, has_sinks=True)


def _tuned(
    dtype: torch.dtype, kv_dtype: torch.dtype, head_dim: int, group: int, block_size: int, is_capped: bool
) -> Iterator[KernelVariant]:
    """One shape by the default and by what is measured for an architecture."""
    for arch in tuned_archs():
        config = kernel_config("attention_chunks", dtype, head_dim, arch)
        variant = chunk_variant(dtype, kv_dtype, head_dim, group, block_size, is_capped, config)
        yield replace(variant, only_arch=arch)


def prefill(
    out: Tensor,
    q: Tensor,
    kv_pool: Tensor,
    layer: int,
    batch: AttentionBatch,
    scale: float,
    softcap: float | None,
    sinks: Tensor | None = None,
    min_queries: int = 2,
    config: KernelConfig | None = None,
) -> None:
    """Attend with the slices of at least `min_queries` tokens. Mutates their rows of the contiguous `out`.

    The rows of all arguments are contiguous along `head_dim`. `config` is the device's unless it is given.
    """
    _, _, _, num_kv_heads, block_size, head_dim = kv_pool.shape
    k, v, tables = kv_pool[:, layer, 0], kv_pool[:, layer, 1], batch.block_tables
    num_seqs, group = len(batch.query_lens), q.shape[1] // num_kv_heads
    if config is None:
        config = kernel_config("attention_chunks", q.dtype, head_dim, device_arch())
    is_capped = softcap is not None
    variant = chunk_variant(
        q.dtype, kv_pool.dtype, head_dim, group, block_size, is_capped, config, min_queries, sinks is not None
    )
    constants = variant.constexprs
    variant.launch(
        (len(q) // constants["TOKENS"] + num_seqs, num_kv_heads * constants["GROUP_TILES"]),
        out,
        q,
        k,
        v,
        tables,
        batch.seq_lens,
        batch.query_start,
        sinks,
        scale,
        float(1.0 if softcap is None else softcap),
        NO_WINDOW if batch.window is None else batch.window,
        *q.stride()[:2],
        *k.stride()[:3],
        tables.stride(0),
        num_seqs,
    )
