"""Paged decode attention with grouped queries, in Triton, split over the keys to fill the device.

The keys of all sequences together are cut into about as many splits as the device has room for, each a whole
number of tiles; what the splits give is merged by the log of their sums. Which split of which sequence is a
program's own it finds out from the lengths on the device: a captured launch fits any lengths, and one long
context among short ones is spread over the device.
Imported only where Triton is wanted: `TRITON_INTERPRET` is read when a kernel is defined.
"""

# Triton's decorator and kernel arguments have no types; compile-time constants are upper case.
# mypy: disable-error-code="untyped-decorator, no-untyped-def"
# ruff: noqa: N803

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from baton_kernels.interface.kernels import AttentionBatch
from baton_kernels.triton.kernel_configs import DEFAULT_ARCH, KernelConfig, kernel_config, tuned_archs
from baton_kernels.triton.kernel_variant import (
    FP8_ARCH,
    TRITON_TYPES,
    KernelVariant,
    device_arch,
    num_multiprocessors,
)
from baton_kernels.triton.tiles import (
    NO_WINDOW,
    PRECISION,
    _fold_tile,
    _rows_of_keys,
    _score_keys,
    _start_with_sinks,
)

MIN_SPLIT: Final = 128
"""Keys of the shortest split: its partial result takes a small part of the bytes that it reads."""
MIN_SEQS: Final = 256
"""Sequences that every kernel has room for: as many as captured steps have, so that one serves them all."""
MERGED_SPLITS: Final = 16
"""Partial results that are merged together."""


@triton.jit
def _cut(
    seq_lens_ptr,
    query_start_ptr,
    window,
    num_seqs,
    num_wanted,
    TILE: tl.constexpr,
    MIN_TILES: tl.constexpr,
    SEQS: tl.constexpr,
):
    """Return the number of splits of each sequence `[SEQS]`, and the number of tiles of each split.

    About `num_wanted` splits in all, and fewer than `num_wanted + num_seqs`. None for slices of several query
    tokens and for padding. A sequence is cut from the tile of the first key that it sees.
    """
    seqs = tl.arange(0, SEQS)
    is_seq = seqs < num_seqs
    context_lens = tl.load(seq_lens_ptr + seqs, mask=is_seq, other=0)
    query_starts = tl.load(query_start_ptr + seqs, mask=is_seq, other=0)
    query_ends = tl.load(query_start_ptr + seqs + 1, mask=is_seq, other=0)
    first_tiles = tl.maximum(context_lens - window, 0) // TILE
    num_tiles = (context_lens + TILE - 1) // TILE - first_tiles
    num_tiles = tl.where(query_ends - query_starts == 1, num_tiles, 0)
    split_tiles = tl.maximum((tl.sum(num_tiles, 0) + num_wanted - 1) // num_wanted, MIN_TILES)
    return (num_tiles + split_tiles - 1) // split_tiles, split_tiles


@triton.jit(do_not_specialize=["window", "stride_table", "num_seqs", "num_wanted"])
def attention_splits(
    q_ptr,
    k_ptr,
    v_ptr,
    tables_ptr,
    seq_lens_ptr,
    query_start_ptr,
    partial_ptr,
    lse_ptr,
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
    num_wanted,
    GROUP: tl.constexpr,
    GROUP_TILES: tl.constexpr,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_PAD: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr,
    MIN_TILES: tl.constexpr,
    SEQS: tl.constexpr,
    CAPPED: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Up to `HEADS` query heads of one KV head of one sequence, over one split.

    Grid: (num_splits, num_kv_heads * GROUP_TILES). Writes the split's normalised output and the base-2 log of
    its sum of exponentials: `partial [num_splits, num_q_heads, HEAD_DIM] f32`, `lse [num_splits, num_q_heads]
    f32`, sequence by sequence. Programs past the last split do nothing.
    """
    num_splits, split_tiles = _cut(
        seq_lens_ptr, query_start_ptr, window, num_seqs, num_wanted, TILE, MIN_TILES, SEQS
    )
    place = tl.program_id(0)
    seq = tl.sum((tl.cumsum(num_splits, 0) <= place).to(tl.int32), 0)
    if seq >= num_seqs:
        return
    split = place - tl.sum(tl.where(tl.arange(0, SEQS) < seq, num_splits, 0), 0)
    token = tl.load(query_start_ptr + seq)
    context_len = tl.load(seq_lens_ptr + seq)
    first_key = tl.maximum(context_len - window, 0)
    start = (first_key // TILE + split * split_tiles) * TILE
    stop = tl.minimum(start + split_tiles * TILE, context_len)

    kv_head = tl.program_id(1) // GROUP_TILES
    heads = tl.program_id(1) % GROUP_TILES * HEADS + tl.arange(0, HEADS)
    dims = tl.arange(0, HEAD_PAD)
    is_dim = dims < HEAD_DIM
    is_query = (heads < GROUP)[:, None] & is_dim[None, :]
    q_heads = kv_head * GROUP + heads
    q_offsets = token.to(tl.int64) * stride_q_token + q_heads[:, None] * stride_q_head + dims[None, :]
    q = tl.load(q_ptr + q_offsets, mask=is_query, other=0.0)

    highest = tl.full([HEADS], float("-inf"), tl.float32)
    total = tl.zeros([HEADS], tl.float32)
    acc = tl.zeros([HEADS, HEAD_PAD], tl.float32)
    table_ptr = tables_ptr + seq.to(tl.int64) * stride_table
    for tile in range(start, stop, TILE):
        keys = tile + tl.arange(0, TILE)
        is_key = (keys >= first_key) & (keys < context_len)
        key_rows = _rows_of_keys(
            table_ptr, keys, is_key, kv_head, stride_block, stride_head, stride_slot, BLOCK_SIZE
        )
        offsets = key_rows[:, None] + dims[None, :]
        is_loaded = is_key[:, None] & is_dim[None, :]
        k = tl.load(k_ptr + offsets, mask=is_loaded, other=0.0)
        scores = _score_keys(q, k, is_key[None, :], scale, softcap, CAPPED, PRECISION)
        v = tl.load(v_ptr + offsets, mask=is_loaded, other=0.0)
        highest, total, acc = _fold_tile(highest, total, acc, scores, v, q.dtype, PRECISION)

    num_q_heads = tl.num_programs(1) // GROUP_TILES * GROUP
    places = place.to(tl.int64) * num_q_heads + q_heads
    tl.store(lse_ptr + places, highest + tl.log2(total), mask=heads < GROUP)
    tl.store(partial_ptr + places[:, None] * HEAD_DIM + dims[None, :], acc / total[:, None], mask=is_query)


@triton.jit(do_not_specialize=["window", "num_seqs", "num_wanted"])
def merge_splits(
    out_ptr,
    partial_ptr,
    lse_ptr,
    seq_lens_ptr,
    query_start_ptr,
    sinks_ptr,
    window,
    num_seqs,
    num_wanted,
    HEAD_DIM: tl.constexpr,
    HEAD_PAD: tl.constexpr,
    TILE: tl.constexpr,
    MIN_TILES: tl.constexpr,
    SEQS: tl.constexpr,
    MERGED: tl.constexpr,
    SINKS: tl.constexpr,
):
    """Weigh the splits of one query head of one sequence by their share of the sum of exponentials.

    Grid: (num_seqs, num_q_heads). Writes that head's row of `out [num_tokens, num_q_heads, HEAD_DIM]`: zeros
    for a sequence without context. Slices of several query tokens are left alone.
    """
    seq = tl.program_id(0)
    token = tl.load(query_start_ptr + seq)
    if tl.load(query_start_ptr + seq + 1) - token != 1:
        return
    num_splits, _ = _cut(seq_lens_ptr, query_start_ptr, window, num_seqs, num_wanted, TILE, MIN_TILES, SEQS)
    seqs = tl.arange(0, SEQS)
    first = tl.sum(tl.where(seqs < seq, num_splits, 0), 0)
    num_own = tl.sum(tl.where(seqs == seq, num_splits, 0), 0)
    dims = tl.arange(0, HEAD_PAD)
    is_dim = dims < HEAD_DIM

    if SINKS:  # a first split without values
        highest, total = _start_with_sinks(sinks_ptr + tl.program_id(1))
    else:
        highest = tl.full([], float("-inf"), tl.float32)
        total = tl.zeros([], tl.float32)
    acc = tl.zeros([HEAD_PAD], tl.float32)
    for start in range(0, num_own, MERGED):
        splits = start + tl.arange(0, MERGED)
        is_split = splits < num_own
        places = (first + splits).to(tl.int64) * tl.num_programs(1) + tl.program_id(1)
        lse = tl.load(lse_ptr + places, mask=is_split, other=float("-inf"))
        is_loaded = is_split[:, None] & is_dim[None, :]
        partial = tl.load(partial_ptr + places[:, None] * HEAD_DIM + dims[None, :], mask=is_loaded, other=0.0)
        new_highest = tl.maximum(highest, tl.max(lse, 0))
        shrink = tl.exp2(highest - new_highest)
        weights = tl.exp2(lse - new_highest)
        total = total * shrink + tl.sum(weights, 0)
        acc = acc * shrink + tl.sum(partial * weights[:, None], 0)
        highest = new_highest

    total = tl.where(num_own > 0, total, 1.0)
    row = token.to(tl.int64) * tl.num_programs(1) + tl.program_id(1)
    tl.store(out_ptr + row * HEAD_DIM + dims, (acc / total).to(out_ptr.dtype.element_ty), mask=is_dim)


@cache
def split_variant(
    dtype: torch.dtype,
    kv_dtype: torch.dtype,
    head_dim: int,
    group: int,
    block_size: int,
    is_capped: bool,
    num_seqs: int,
    config: KernelConfig,
) -> KernelVariant:
    """`attention_splits` for queries of `dtype`, a pool of `kv_dtype`, `group` query heads per KV head."""
    element, kv_element = f"*{TRITON_TYPES[dtype]}", f"*{TRITON_TYPES[kv_dtype]}"
    head_pad = max(16, triton.next_power_of_2(head_dim))
    pointers = {"q_ptr": element, "k_ptr": kv_element, "v_ptr": kv_element}
    pointers |= {"tables_ptr": "*i32", "seq_lens_ptr": "*i32", "query_start_ptr": "*i32"}
    pointers |= {"partial_ptr": "*fp32", "lse_ptr": "*fp32"}
    strides = ("stride_q_token", "stride_q_head", "stride_block", "stride_head", "stride_slot")
    return KernelVariant(
        kernel=attention_splits,
        signature={
            **pointers,
            "scale": "fp32",
            "softcap": "fp32",
            "window": "i32",
            **dict.fromkeys(strides, "i32"),
            **dict.fromkeys(("stride_table", "num_seqs", "num_wanted"), "i32"),
        },
        constexprs={
            "GROUP": group,
            "GROUP_TILES": triton.cdiv(group, config.rows),
            "HEADS": config.rows,
            "HEAD_DIM": head_dim,
            "HEAD_PAD": head_pad,
            "BLOCK_SIZE": block_size,
            **_cut_constants(num_seqs, config),
            "CAPPED": is_capped,
            "PRECISION": PRECISION,
        },
        aligned=frozenset((*pointers, *strides)),
        num_warps=config.num_warps,
        num_stages=config.num_stages,
        min_arch=FP8_ARCH if kv_dtype == torch.float8_e4m3fn else 80,
    )


@cache
def merge_variant(
    dtype: torch.dtype, head_dim: int, num_seqs: int, config: KernelConfig, *, has_sinks: bool = False
) -> KernelVariant:
    """`merge_splits` for an output of `dtype`, beside an `attention_splits` of `config`."""
    pointers = {"out_ptr": f"*{TRITON_TYPES[dtype]}", "partial_ptr": "*fp32", "lse_ptr": "*fp32"}
    pointers |= {"seq_lens_ptr": "*i32", "query_start_ptr": "*i32", "sinks_ptr": "*fp32"}
    return KernelVariant(
        kernel=merge_splits,
        signature={**pointers, **dict.fromkeys(("window", "num_seqs", "num_wanted"), "i32")},
        constexprs={
            "HEAD_DIM": head_dim,
            "HEAD_PAD": triton.next_power_of_2(head_dim),
            **_cut_constants(num_seqs, config),
            "MERGED": MERGED_SPLITS,
            "SINKS": has_sinks,
        },
        aligned=frozenset(pointers),
        num_warps=2,
        num_stages=1,
    )


def _cut_constants(num_seqs: int, config: KernelConfig) -> dict[str, int]:
    return {
        "TILE": config.tile,
        "MIN_TILES": triton.cdiv(MIN_SPLIT, config.tile),
        "SEQS": max(MIN_SEQS, triton.next_power_of_2(num_seqs)),
    }


def aot_variants() -> Iterator[KernelVariant]:
    """Each power of two that a row is padded to, type, cap, kinds of groups and of batches."""
    half, brain, single, e4m3 = torch.float16, torch.bfloat16, torch.float32, torch.float8_e4m3fn
    yield from _tuned(brain, brain, 64, group=7, block_size=32, is_capped=False, num_seqs=32)
    yield from _tuned(half, half, 80, group=1, block_size=16, is_capped=False, num_seqs=1)
    yield from _tuned(brain, brain, 128, group=32, block_size=32, is_capped=False, num_seqs=2048)
    yield from _tuned(brain, brain, 256, group=2, block_size=32, is_capped=True, num_seqs=1)
    yield from _tuned(brain, e4m3, 128, group=7, block_size=32, is_capped=True, num_seqs=32)
    yield from _tuned(brain, e4m3, 256, group=16, block_size=32, is_capped=False, num_seqs=1024)
    yield from _tuned(single, single, 256, group=4, block_size=32, is_capped=True, num_seqs=32)
    yield merge_variant(half, 80, 1, kernel_config("attention_splits", half, 80, DEFAULT_ARCH))
    yield merge_variant(brain, 256, 1024, kernel_config("attention_splits", brain, 256, DEFAULT_ARCH))
    config = kernel_config("attention_splits", brain, 64, DEFAULT_ARCH)
    yield merge_variant(brain, 64, 32, config, has_sinks=True)


def _tuned(
    dtype: torch.dtype,
    kv_dtype: torch.dtype,
    head_dim: int,
    group: int,
    block_size: int,
    is_capped: bool,
    num_seqs: int,
) -> Iterator[KernelVariant]:
    """One shape by the default and by what is measured for an architecture."""
    for arch in tuned_archs():
        config = kernel_config("attention_splits", dtype, head_dim, arch)
        variant = split_variant(dtype, kv_dtype, head_dim, group, block_size, is_capped, num_seqs, config)
        yield replace(variant, only_arch=arch)


def decode(
    out: Tensor,
    q: Tensor,
    kv_pool: Tensor,
    layer: int,
    batch: AttentionBatch,
    scale: float,
    softcap: float | None,
    sinks: Tensor | None = None,
    config: KernelConfig | None = None,
) -> None:
    """Attend with the one-token slices of `batch`. Mutates their rows of `out`, which is contiguous.

    The rows of all arguments are contiguous along `head_dim`. Of the lengths on the host only the longest
    matters, as a bound for the grid and the memory for partial results. `config` is the device's unless it is
    given.
    """
    _, _, _, num_kv_heads, block_size, head_dim = kv_pool.shape
    num_seqs, num_q_heads = len(batch.query_lens), q.shape[1]
    group = num_q_heads // num_kv_heads
    if config is None:
        config = kernel_config("attention_splits", q.dtype, head_dim, device_arch())
    splits = split_variant(
        q.dtype, kv_pool.dtype, head_dim, group, block_size, softcap is not None, num_seqs, config
    )
    num_programs = num_kv_heads * splits.constexprs["GROUP_TILES"]
    num_wanted = max(1, num_multiprocessors() * config.programs_per_sm // num_programs)
    longest = triton.cdiv(max(batch.context_lens), config.tile * splits.constexprs["MIN_TILES"])
    num_splits = min(num_wanted + num_seqs, num_seqs * longest)
    partial = q.new_empty((num_splits, num_q_heads, head_dim), dtype=torch.float32)
    lse = q.new_empty((num_splits, num_q_heads), dtype=torch.float32)
    k, v, tables = kv_pool[:, layer, 0], kv_pool[:, layer, 1], batch.block_tables
    window = NO_WINDOW if batch.window is None else batch.window
    splits.launch(
        (num_splits, num_programs),
        q,
        k,
        v,
        tables,
        batch.seq_lens,
        batch.query_start,
        partial,
        lse,
        scale,
        float(1.0 if softcap is None else softcap),
        window,
        *q.stride()[:2],
        *k.stride()[:3],
        tables.stride(0),
        num_seqs,
        num_wanted,
    )
    merge = merge_variant(out.dtype, head_dim, num_seqs, config, has_sinks=sinks is not None)
    lengths = (batch.seq_lens, batch.query_start)
    merge.launch((num_seqs, num_q_heads), out, partial, lse, *lengths, sinks, window, num_seqs, num_wanted)
