"""Paged decode attention with grouped queries, in Triton.

Each sequence's keys are cut into splits of fixed size, attended to in parallel and merged: a sequence's
arithmetic depends on its own length alone, never on what else is in the batch.
Imported only where Triton is wanted: `TRITON_INTERPRET` is read when a kernel is defined.
"""

# Triton's decorator and kernel arguments have no types; compile-time constants are upper case.
# mypy: disable-error-code="untyped-decorator, no-untyped-def"
# ruff: noqa: N803

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from baton_kernels.interface import AttentionBatch, AttentionKernels
from baton_kernels.kernel_variant import KernelVariant
from baton_kernels.torch_attention import TorchAttention

SPLIT: Final = 512
"""Keys per split: long enough that merging reads a small part of what the splits read."""
HEADS_PER_PROGRAM: Final = 16
"""Query heads that share one read of a tile: the least that a matrix product takes."""
NO_WINDOW: Final = 2**31 - 1
TRITON_TYPES: Final = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}


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
    PRECISION: tl.constexpr,
):
    """Up to `HEADS` query heads of one KV head of one sequence, over one split.

    Grid: (num_seqs, num_kv_heads * GROUP_TILES, num_splits). Writes the split's normalised output and the
    base-2 log of its sum of exponentials: `partial [num_seqs, num_q_heads, num_splits, HEAD_DIM] f32`,
    `lse [num_seqs, num_q_heads, num_splits] f32`. Sequences of several query tokens are left alone.
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
    # Every tile holds at least one visible key, so `highest` is finite after the first.
    start = tl.maximum(split_start, first_key // TILE * TILE)
    stop = tl.minimum(split_start + SPLIT, context_len)
    for tile in range(start, stop, TILE):
        keys = tile + tl.arange(0, TILE)
        is_key = (keys >= first_key) & (keys < context_len)
        blocks = tl.load(
            tables_ptr + seq.to(tl.int64) * stride_table + keys // BLOCK_SIZE, mask=is_key, other=0
        )
        slots = blocks.to(tl.int64) * stride_block + kv_head * stride_head + keys % BLOCK_SIZE * stride_slot
        rows = slots[:, None] + dims[None, :]
        is_row = is_key[:, None] & is_dim[None, :]
        k = tl.load(k_ptr + rows, mask=is_row, other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * (scale * 1.4426950408889634)
        scores = tl.where(is_key[None, :], scores, float("-inf"))
        new_highest = tl.maximum(highest, tl.max(scores, 1))
        weights = tl.exp2(scores - new_highest[:, None])
        shrink = tl.exp2(highest - new_highest)
        total = total * shrink + tl.sum(weights, 1)
        v = tl.load(v_ptr + rows, mask=is_row, other=0.0)
        acc = acc * shrink[:, None] + tl.dot(weights.to(v.dtype), v, input_precision=PRECISION)
        highest = new_highest

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

    Grid: (num_seqs, num_q_heads). Writes that head's row of `out [num_tokens, num_q_heads, HEAD_DIM]`.
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

    row = token.to(tl.int64) * tl.num_programs(1) + tl.program_id(1)
    tl.store(out_ptr + row * HEAD_DIM + dims, (acc / total).to(out_ptr.dtype.element_ty), mask=is_dim)


@cache
def split_variant(dtype: torch.dtype, head_dim: int, group: int, block_size: int) -> KernelVariant:
    """`attend_splits` for a pool of `dtype` and `group` query heads per KV head."""
    element = f"*{TRITON_TYPES[dtype]}"
    head_pad = max(16, triton.next_power_of_2(head_dim))
    row_bytes = head_pad * dtype.itemsize
    pointers = {"q_ptr": element, "k_ptr": element, "v_ptr": element}
    pointers |= {"tables_ptr": "*i32", "seq_lens_ptr": "*i32", "query_start_ptr": "*i32"}
    pointers |= {"partial_ptr": "*fp32", "lse_ptr": "*fp32"}
    strides = ("stride_q_token", "stride_q_head", "stride_block", "stride_head", "stride_slot")
    return KernelVariant(
        kernel=attend_splits,
        signature={
            **pointers,
            "scale": "fp32",
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
            # Three TF32 products keep a float32's accuracy; one would keep 10 bits of its mantissa, and
            # float32 proper has no matrix unit and spills.
            "PRECISION": "tf32x3",
        },
        aligned=frozenset((*pointers, *strides)),
        num_warps=4 if row_bytes <= 512 else 8,
        num_stages=3 if row_bytes <= 256 else 2,
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


def decode(
    out: Tensor,
    q: Tensor,
    kv_pool: Tensor,
    layer: int,
    batch: AttentionBatch,
    scale: float,
) -> None:
    """Attend with the one-token slices of `batch`. Mutates their rows of `out`, which is contiguous.

    The rows of all arguments are contiguous along `head_dim`.
    """
    _, _, _, num_kv_heads, block_size, head_dim = kv_pool.shape
    num_seqs, num_q_heads = len(batch.query_lens), q.shape[1]
    reach = NO_WINDOW if batch.window is None else batch.window
    longest = max(batch.context_lens)
    # A window that starts inside a split touches one split more than its length fills.
    num_splits = min(triton.cdiv(longest, SPLIT), triton.cdiv(reach, SPLIT) + 1)
    partial = q.new_empty((num_seqs, num_q_heads, num_splits, head_dim), dtype=torch.float32)
    lse = q.new_empty((num_seqs, num_q_heads, num_splits), dtype=torch.float32)
    k, v, tables = kv_pool[:, layer, 0], kv_pool[:, layer, 1], batch.block_tables
    strides = (*q.stride()[:2], *k.stride()[:3], tables.stride(0))
    splits = split_variant(kv_pool.dtype, head_dim, num_q_heads // num_kv_heads, block_size)
    _launch(
        splits,
        (num_seqs, num_kv_heads * splits.constexprs["GROUP_TILES"], num_splits),
        (
            q,
            k,
            v,
            tables,
            batch.seq_lens,
            batch.query_start,
            partial,
            lse,
            scale,
            reach,
            *strides,
            num_splits,
        ),
    )
    _launch(
        merge_variant(out.dtype, head_dim),
        (num_seqs, num_q_heads),
        (out, partial, lse, batch.seq_lens, batch.query_start, reach, num_splits),
    )


def _launch(variant: KernelVariant, grid: tuple[int, ...], arguments: tuple[Any, ...]) -> None:
    options = {"num_warps": variant.num_warps, "num_stages": variant.num_stages}
    variant.kernel[grid](*arguments, **variant.constexprs, **options)


class TritonAttention(AttentionKernels):
    """Triton for one-token slices, torch for everything else."""

    def __init__(self) -> None:
        self._torch = TorchAttention()

    def write(self, k: Tensor, v: Tensor, kv_pool: Tensor, layer: int, batch: AttentionBatch) -> None:
        self._torch.write(k, v, kv_pool, layer, batch)

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
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        self._torch.attend_chunks(out, q, k, v, kv_pool, layer, batch, scale, softcap)
        if 1 in batch.query_lens:
            decode(out, q, kv_pool, layer, batch, scale)
        return out

    def copy_blocks(self, kv_pool: Tensor, pairs: Sequence[tuple[int, int]]) -> None:
        self._torch.copy_blocks(kv_pool, pairs)
