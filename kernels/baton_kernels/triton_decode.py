"""Paged decode attention with grouped queries, in Triton.

Each sequence's keys are cut into splits of fixed size, attended to in parallel and merged: a sequence's
arithmetic depends on its own length alone, never on what else is in the batch.
Imported only where Triton is wanted: `TRITON_INTERPRET` is read when a kernel is defined.
"""

# Triton's decorator and kernel arguments have no types; compile-time constants are upper case.
# mypy: disable-error-code="untyped-decorator, no-untyped-def"
# ruff: noqa: N803

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from baton_kernels.interface import AttentionBatch
from baton_kernels.kernel_variant import FP8_ARCH, TRITON_TYPES, KernelVariant
from baton_kernels.triton_tiles import NO_WINDOW, PRECISION, _fold_tile, _rows_of_keys, _score_keys

SPLIT: Final = 512
"""Keys per split: long enough that merging reads a small part of what the splits read."""
HEADS_PER_PROGRAM: Final = 16
"""Query heads that share one read of a tile: the least that a matrix product takes."""


@triton.jit(do_not_specialize=["window", "stride_table", "num_splits"])
def attend_splits(
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
    num_splits,
    GROUP: tl.constexpr,
    GROUP_TILES: tl.constexpr,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_PAD: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr,
    SPLIT: tl.constexpr,
    CAPPED: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Up to `HEADS` query heads of one KV head of one sequence, over one split.

    Grid: (num_seqs, num_kv_heads * GROUP_TILES, num_splits). Writes the split's normalised output and the
    base-2 log of its sum of exponentials: `partial [num_seqs, num_q_heads, num_splits, HEAD_DIM] f32`,
    `lse [num_seqs, num_q_heads, num_splits] f32`. Slices of several query tokens, and splits past a context,
    are left alone.
    """
    seq = tl.program_id(0)
    kv_head = tl.program_id(1) // GROUP_TILES
    token = tl.load(query_start_ptr + seq)
    if tl.load(query_start_ptr + seq + 1) - token != 1:
        return
    context_len = tl.load(seq_lens_ptr + seq)
    first_key = tl.maximum(context_len - window, 0)
    split_start = (first_key // SPLIT + tl.program_id(2)) * SPLIT
    if split_start >= context_len:
        return

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
    start = tl.maximum(split_start, first_key // TILE * TILE)
    stop = tl.minimum(split_start + SPLIT, context_len)
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
    places = (seq.to(tl.int64) * num_q_heads + q_heads) * num_splits + tl.program_id(2)
    tl.store(lse_ptr + places, highest + tl.log2(total), mask=heads < GROUP)
    tl.store(partial_ptr + places[:, None] * HEAD_DIM + dims[None, :], acc / total[:, None], mask=is_query)


@triton.jit(do_not_specialize=["window", "num_splits"])
def merge_splits(
    out_ptr,
    partial_ptr,
    lse_ptr,
    seq_lens_ptr,
    query_start_ptr,
    window,
    num_splits,
    HEAD_DIM: tl.constexpr,
    HEAD_PAD: tl.constexpr,
    SPLIT: tl.constexpr,
):
    """Weigh the splits of one query head of one sequence by their share of the sum of exponentials.

    Grid: (num_seqs, num_q_heads). Writes that head's row of `out [num_tokens, num_q_heads, HEAD_DIM]`: zeros
    for a sequence without context.
    """
    seq = tl.program_id(0)
    token = tl.load(query_start_ptr + seq)
    if tl.load(query_start_ptr + seq + 1) - token != 1:
        return
    context_len = tl.load(seq_lens_ptr + seq)
    first_split = tl.maximum(context_len - window, 0) // SPLIT
    dims = tl.arange(0, HEAD_PAD)
    is_dim = dims < HEAD_DIM
    place = (seq.to(tl.int64) * tl.num_programs(1) + tl.program_id(1)) * num_splits

    highest = float("-inf")
    total = 0.0
    acc = tl.zeros([HEAD_PAD], tl.float32)
    for split in range(tl.cdiv(context_len, SPLIT) - first_split):
        lse = tl.load(lse_ptr + place + split)
        partial = tl.load(partial_ptr + (place + split) * HEAD_DIM + dims, mask=is_dim, other=0.0)
        new_highest = tl.maximum(highest, lse)
        shrink = tl.exp2(highest - new_highest)
        weight = tl.exp2(lse - new_highest)
        total = total * shrink + weight
        acc = acc * shrink + partial * weight
        highest = new_highest

    total = tl.where(context_len > 0, total, 1.0)
    row = token.to(tl.int64) * tl.num_programs(1) + tl.program_id(1)
    tl.store(out_ptr + row * HEAD_DIM + dims, (acc / total).to(out_ptr.dtype.element_ty), mask=is_dim)


@cache
def split_variant(
    dtype: torch.dtype, kv_dtype: torch.dtype, head_dim: int, group: int, block_size: int, is_capped: bool
) -> KernelVariant:
    """`attend_splits` for queries of `dtype`, a pool of `kv_dtype`, `group` query heads per KV head."""
    element, kv_element = f"*{TRITON_TYPES[dtype]}", f"*{TRITON_TYPES[kv_dtype]}"
    head_pad = max(16, triton.next_power_of_2(head_dim))
    row_bytes = head_pad * dtype.itemsize
    pointers = {"q_ptr": element, "k_ptr": kv_element, "v_ptr": kv_element}
    pointers |= {"tables_ptr": "*i32", "seq_lens_ptr": "*i32", "query_start_ptr": "*i32"}
    pointers |= {"partial_ptr": "*fp32", "lse_ptr": "*fp32"}
    strides = ("stride_q_token", "stride_q_head", "stride_block", "stride_head", "stride_slot")
    return KernelVariant(
        kernel=attend_splits,
        signature={
            **pointers,
            "scale": "fp32",
            "softcap": "fp32",
            "window": "i32",
            **dict.fromkeys(strides, "i32"),
            "stride_table": "i32",
            "num_splits": "i32",
        },
        constexprs={
            "GROUP": group,
            "GROUP_TILES": triton.cdiv(group, HEADS_PER_PROGRAM),
            "HEADS": HEADS_PER_PROGRAM,
            "HEAD_DIM": head_dim,
            "HEAD_PAD": head_pad,
            "BLOCK_SIZE": block_size,
            "TILE": min(64, 16_384 // row_bytes),
            "SPLIT": SPLIT,
            "CAPPED": is_capped,
            "PRECISION": PRECISION,
        },
        aligned=frozenset((*pointers, *strides)),
        num_warps=4 if row_bytes <= 512 else 8,
        num_stages=3 if row_bytes <= 256 else 2,
        min_arch=FP8_ARCH if kv_dtype == torch.float8_e4m3fn else 80,
    )


@cache
def merge_variant(dtype: torch.dtype, head_dim: int) -> KernelVariant:
    """`merge_splits` for an output of `dtype`."""
    pointers = {"out_ptr": f"*{TRITON_TYPES[dtype]}", "partial_ptr": "*fp32", "lse_ptr": "*fp32"}
    pointers |= {"seq_lens_ptr": "*i32", "query_start_ptr": "*i32"}
    return KernelVariant(
        kernel=merge_splits,
        signature={**pointers, "window": "i32", "num_splits": "i32"},
        constexprs={"HEAD_DIM": head_dim, "HEAD_PAD": triton.next_power_of_2(head_dim), "SPLIT": SPLIT},
        aligned=frozenset(pointers),
        num_warps=1,
        num_stages=1,
    )


def aot_variants() -> Iterator[KernelVariant]:
    """Each power of two that a row is padded to, type, and cap once or more, groups of all kinds."""
    half, brain, single, e4m3 = torch.float16, torch.bfloat16, torch.float32, torch.float8_e4m3fn
    yield split_variant(brain, brain, 64, group=7, block_size=32, is_capped=False)
    yield split_variant(half, half, 80, group=1, block_size=16, is_capped=False)
    yield split_variant(brain, brain, 128, group=32, block_size=32, is_capped=False)
    yield split_variant(brain, brain, 256, group=2, block_size=32, is_capped=True)
    yield split_variant(brain, e4m3, 128, group=7, block_size=32, is_capped=True)
    yield split_variant(brain, e4m3, 256, group=16, block_size=32, is_capped=False)
    yield split_variant(single, single, 256, group=4, block_size=32, is_capped=True)
    yield merge_variant(half, 80)
    yield merge_variant(brain, 256)


def decode(
    out: Tensor,
    q: Tensor,
    kv_pool: Tensor,
    layer: int,
    batch: AttentionBatch,
    scale: float,
    softcap: float | None,
) -> None:
    """Attend with the one-token slices of `batch`. Mutates their rows of `out`, which is contiguous.

    The rows of all arguments are contiguous along `head_dim`. Of the lengths on the host only the longest
    matters, as the most that the grid and the memory for partial results are made for.
    """
    _, _, _, num_kv_heads, block_size, head_dim = kv_pool.shape
    num_seqs, num_q_heads = len(batch.query_lens), q.shape[1]
    window = NO_WINDOW if batch.window is None else batch.window
    # A window that starts inside a split touches one split more than its length fills.
    num_splits = min(triton.cdiv(max(batch.context_lens), SPLIT), triton.cdiv(window, SPLIT) + 1)
    partial = q.new_empty((num_seqs, num_q_heads, num_splits, head_dim), dtype=torch.float32)
    lse = q.new_empty((num_seqs, num_q_heads, num_splits), dtype=torch.float32)
    k, v, tables = kv_pool[:, layer, 0], kv_pool[:, layer, 1], batch.block_tables
    group = num_q_heads // num_kv_heads
    splits = split_variant(q.dtype, kv_pool.dtype, head_dim, group, block_size, softcap is not None)
    splits.launch(
        (num_seqs, num_kv_heads * splits.constexprs["GROUP_TILES"], num_splits),
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
        num_splits,
    )
    merge_variant(out.dtype, head_dim).launch(
        (num_seqs, num_q_heads), out, partial, lse, batch.seq_lens, batch.query_start, window, num_splits
    )
