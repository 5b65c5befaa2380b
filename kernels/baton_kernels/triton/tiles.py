"""Parts of the attention kernels in Triton: a tile of keys, scored, and folded into a running softmax.

Device functions only; decode and prefill compute a tile in the same way.
Imported only where Triton is wanted: `TRITON_INTERPRET` is read when a function is defined.
"""

# Triton's decorator and kernel arguments have no types; compile-time constants are upper case.
# mypy: disable-error-code="untyped-decorator, no-untyped-def"
# ruff: noqa: N803

from __future__ import annotations

from typing import Final

import triton
import triton.language as tl

NO_WINDOW: Final = 2**31 - 1
PRECISION: Final = "tf32x3"
"""Precision of float32 products: three TF32 products keep its accuracy. One would keep 10 bits of its
mantissa; float32 proper has no matrix unit and spills."""
LOG2_E: Final = tl.constexpr(1.4426950408889634)


@triton.jit
def _rows_of_keys(
    table_ptr, keys, is_key, kv_head, stride_block, stride_head, stride_slot, BLOCK_SIZE: tl.constexpr
):
    """Return the offsets of the rows of `keys` in K or V of one layer, through one sequence's block table."""
    blocks = tl.load(table_ptr + keys // BLOCK_SIZE, mask=is_key, other=0)
    return blocks.to(tl.int64) * stride_block + kv_head * stride_head + keys % BLOCK_SIZE * stride_slot


@triton.jit
def _score_keys(q, k, is_visible, scale, softcap, CAPPED: tl.constexpr, PRECISION: tl.constexpr):
    """Logits of `q [m, d]` on `k [n, d]` times log2(e), for `exp2` to undo; -inf where not visible."""
    scores = tl.dot(q, tl.trans(k.to(q.dtype)), input_precision=PRECISION)
    if CAPPED:
        # tanh(x) = 1 - 2 / (1 + exp(2x)), also where the exponential is 0 or infinite.
        grown = tl.exp2(scores * (scale / softcap * 2 * LOG2_E))
        scores = softcap * LOG2_E * (1 - 2 / (1 + grown))
    else:
        scores = scores * (scale * LOG2_E)
    return tl.where(is_visible, scores, float("-inf"))


@triton.jit
def _start_with_sinks(sinks_ptr):
    """Return each row's maximum and sum before its first key: its sink, and 1 if that is finite."""
    highest = tl.load(sinks_ptr) * LOG2_E
    return highest, tl.where(highest == float("-inf"), 0.0, 1.0)


@triton.jit
def _fold_tile(highest, total, acc, scores, v, DTYPE: tl.constexpr, PRECISION: tl.constexpr):
    """Fold a tile's scores `[m, n]` and values `[n, d]` into each row's maximum, sum and weighted values.

    A row that sees none of the keys keeps its three to the bit.
    Source: Dao, FlashAttention-2, arXiv:2307.08691, algorithm 1.
    """
    new_highest = tl.maximum(highest, tl.max(scores, 1))
    reference = tl.where(new_highest == float("-inf"), 0.0, new_highest)
    weights = tl.exp2(scores - reference[:, None])
    shrink = tl.exp2(highest - reference)
    total = total * shrink + tl.sum(weights, 1)
    acc = acc * shrink[:, None] + tl.dot(weights.to(DTYPE), v.to(DTYPE), input_precision=PRECISION)
    return new_highest, total, acc
