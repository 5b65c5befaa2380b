"""Writing the paged cache in Triton: rotation and conversion on the way, one launch per layer.

A token whose slot is negative is padding: it is rotated but written nowhere.
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

from baton_kernels.interface.kernels import AttentionBatch
from baton_kernels.triton.kernel_variant import TRITON_TYPES, KernelVariant

TILE_ELEMENTS: Final = 2048
"""Elements of the rows that one program takes: several narrow heads, or one wide one."""
_POOL_STRIDES: Final = ("stride_block", "stride_pool_head", "stride_slot")


@triton.jit
def _to_e4m3(x):
    """The bits of float32 `x` as e4m3fn, rounded to nearest even; beyond 448 it is 448, NaN stays NaN.

    In integers, because only newer devices convert in hardware and the interpreter does not round.
    """
    bits = x.to(tl.int32, bitcast=True)
    magnitude = bits & 0x7FFFFFFF
    bounded = tl.minimum(magnitude, 0x43E00000)  # 448
    # A normal number loses 20 bits of its mantissa, and its exponent is counted from 7 instead of 127.
    normal = ((bounded + 0x7FFFF + ((bounded >> 20) & 1)) >> 20) - (120 << 3)
    # Next to 2**14 a float32 counts in steps of 2**-9, the subnormal step of e4m3.
    small = tl.minimum(bounded, 0x3C800000).to(tl.float32, bitcast=True) + 16384.0
    subnormal = small.to(tl.int32, bitcast=True) - 0x46800000
    code = tl.where(bounded < 0x3C800000, subnormal, normal)
    code = tl.where(magnitude > 0x7F800000, 0x7F, code)
    return (code | ((bits >> 24) & 0x80)).to(tl.uint8)


@triton.jit
def _store_rows(pool_ptr, offsets, rows, mask):
    """Store float32 `rows` in the pool's dtype; bytes stand for e4m3."""
    if pool_ptr.dtype.element_ty == tl.uint8:
        tl.store(pool_ptr + offsets, _to_e4m3(rows), mask=mask)
    else:
        if pool_ptr.dtype.element_ty == tl.float16:
            rows = tl.where(rows > 65504.0, 65504.0, tl.where(rows < -65504.0, -65504.0, rows))
        tl.store(pool_ptr + offsets, rows.to(pool_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _rotate_rows(x_ptr, offsets, dims, is_row, cos_ptr, sin_ptr, ROTARY_DIM: tl.constexpr):
    """Rows of heads `[HEADS, HEAD_PAD]` at `x_ptr + offsets`, in float32, rotated in the half-split form."""
    half: tl.constexpr = ROTARY_DIM // 2
    x = tl.load(x_ptr + offsets, mask=is_row, other=0.0).to(tl.float32)
    is_turned = dims < ROTARY_DIM
    to_partner = tl.where(dims < half, half, -half)
    partner_mask = is_row & is_turned[None, :]
    partner = tl.load(x_ptr + offsets + to_partner[None, :], mask=partner_mask, other=0.0).to(tl.float32)
    cos = tl.load(cos_ptr + dims, mask=is_turned, other=1.0).to(tl.float32)
    sin = tl.load(sin_ptr + dims, mask=is_turned, other=0.0).to(tl.float32)
    return x * cos[None, :] + tl.where(dims < half, -sin, sin)[None, :] * partner


@triton.jit
def rotate_and_write_rows(
    q_ptr,
    k_ptr,
    v_ptr,
    cos_ptr,
    sin_ptr,
    q_out_ptr,
    k_out_ptr,
    k_pool_ptr,
    v_pool_ptr,
    slots_ptr,
    stride_q_token,
    stride_q_head,
    stride_k_token,
    stride_k_head,
    stride_v_token,
    stride_v_head,
    stride_angle,
    stride_block,
    stride_pool_head,
    stride_slot,
    NUM_Q_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_PAD: tl.constexpr,
    ROTARY_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
):
    """Grid: (num_tokens, tiles of query heads, then tiles of KV heads), `HEADS` heads of one token each."""
    token = tl.program_id(0).to(tl.int64)
    q_tiles: tl.constexpr = (NUM_Q_HEADS + HEADS - 1) // HEADS
    dims = tl.arange(0, HEAD_PAD)
    cos_ptr += token * stride_angle
    sin_ptr += token * stride_angle
    if tl.program_id(1) < q_tiles:
        heads = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
        is_row = (heads < NUM_Q_HEADS)[:, None] & (dims < HEAD_DIM)[None, :]
        offsets = token * stride_q_token + heads[:, None] * stride_q_head + dims[None, :]
        turned = _rotate_rows(q_ptr, offsets, dims, is_row, cos_ptr, sin_ptr, ROTARY_DIM)
        out = (token * NUM_Q_HEADS + heads[:, None]) * HEAD_DIM + dims[None, :]
        tl.store(q_out_ptr + out, turned.to(q_out_ptr.dtype.element_ty), mask=is_row)
    else:
        heads = (tl.program_id(1) - q_tiles) * HEADS + tl.arange(0, HEADS)
        is_row = (heads < NUM_KV_HEADS)[:, None] & (dims < HEAD_DIM)[None, :]
        offsets = token * stride_k_token + heads[:, None] * stride_k_head + dims[None, :]
        turned = _rotate_rows(k_ptr, offsets, dims, is_row, cos_ptr, sin_ptr, ROTARY_DIM)
        out = (token * NUM_KV_HEADS + heads[:, None]) * HEAD_DIM + dims[None, :]
        tl.store(k_out_ptr + out, turned.to(k_out_ptr.dtype.element_ty), mask=is_row)
        slot = tl.load(slots_ptr + token)
        if slot >= 0:
            v_offsets = token * stride_v_token + heads[:, None] * stride_v_head + dims[None, :]
            v = tl.load(v_ptr + v_offsets, mask=is_row, other=0.0).to(tl.float32)
            place = slot // BLOCK_SIZE * stride_block + slot % BLOCK_SIZE * stride_slot
            places = place + heads[:, None] * stride_pool_head + dims[None, :]
            # What is cached is what attention gets: K after rounding to its own type.
            rounded = turned.to(k_out_ptr.dtype.element_ty).to(tl.float32)
            _store_rows(k_pool_ptr, places, rounded, is_row)
            _store_rows(v_pool_ptr, places, v, is_row)


@triton.jit
def write_rows(
    k_ptr,
    v_ptr,
    k_pool_ptr,
    v_pool_ptr,
    slots_ptr,
    stride_k_token,
    stride_k_head,
    stride_v_token,
    stride_v_head,
    stride_block,
    stride_pool_head,
    stride_slot,
    NUM_KV_HEADS: tl.constexpr,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_PAD: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
):
    """Grid: (num_tokens, tiles of KV heads)."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots_ptr + token)
    if slot < 0:
        return
    dims = tl.arange(0, HEAD_PAD)
    heads = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    is_row = (heads < NUM_KV_HEADS)[:, None] & (dims < HEAD_DIM)[None, :]
    k_offsets = token * stride_k_token + heads[:, None] * stride_k_head + dims[None, :]
    v_offsets = token * stride_v_token + heads[:, None] * stride_v_head + dims[None, :]
    k = tl.load(k_ptr + k_offsets, mask=is_row, other=0.0).to(tl.float32)
    v = tl.load(v_ptr + v_offsets, mask=is_row, other=0.0).to(tl.float32)
    place = slot // BLOCK_SIZE * stride_block + slot % BLOCK_SIZE * stride_slot
    places = place + heads[:, None] * stride_pool_head + dims[None, :]
    _store_rows(k_pool_ptr, places, k, is_row)
    _store_rows(v_pool_ptr, places, v, is_row)


def write(k: Tensor, v: Tensor, kv_pool: Tensor, layer: int, batch: AttentionBatch) -> None:
    """See `AttentionKernels.write`; a pool of another dtype gets converted, saturated values."""
    num_tokens, num_heads, head_dim = k.shape
    k_pool, v_pool = _sides(kv_pool, layer)
    variant = write_variant(k.dtype, kv_pool.dtype, num_heads, head_dim, kv_pool.shape[4])
    grid = (num_tokens, triton.cdiv(num_heads, variant.constexprs["HEADS"]))
    strides = (*k.stride()[:2], *v.stride()[:2], *k_pool.stride()[:3])
    variant.launch(grid, k, v, k_pool, v_pool, batch.slot_mapping, *strides)


def rotate_and_write(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos: Tensor,
    sin: Tensor,
    kv_pool: Tensor,
    layer: int,
    batch: AttentionBatch,
) -> tuple[Tensor, Tensor]:
    """See `AttentionKernels.rotate_and_write`; the rotation is in float32 and rounded once."""
    num_tokens, num_q_heads, head_dim = q.shape
    num_kv_heads = k.shape[1]
    q_out, k_out = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k))
    k_pool, v_pool = _sides(kv_pool, layer)
    heads = (num_q_heads, num_kv_heads)
    variant = rotate_variant(q.dtype, kv_pool.dtype, heads, head_dim, cos.shape[-1], kv_pool.shape[4])
    tile = variant.constexprs["HEADS"]
    grid = (num_tokens, triton.cdiv(num_q_heads, tile) + triton.cdiv(num_kv_heads, tile))
    tensors = (q, k, v, cos, sin, q_out, k_out, k_pool, v_pool, batch.slot_mapping)
    strides = (*q.stride()[:2], *k.stride()[:2], *v.stride()[:2], cos.stride(0), *k_pool.stride()[:3])
    variant.launch(grid, *tensors, *strides)
    return q_out, k_out


def _sides(kv_pool: Tensor, layer: int) -> tuple[Tensor, Tensor]:
    """K and V of one layer, `[num_blocks, num_kv_heads, block_size, head_dim]`; e4m3 as its bytes."""
    pool = kv_pool.view(torch.uint8) if kv_pool.dtype is torch.float8_e4m3fn else kv_pool
    return pool[:, layer, 0], pool[:, layer, 1]


@cache
def write_variant(
    dtype: torch.dtype, pool_dtype: torch.dtype, num_kv_heads: int, head_dim: int, block_size: int
) -> KernelVariant:
    """`write_rows` from `dtype` to a pool of `pool_dtype`."""
    head_pad = triton.next_power_of_2(head_dim)
    element, pool = f"*{TRITON_TYPES[dtype]}", _pool_type(pool_dtype)
    pointers = {"k_ptr": element, "v_ptr": element, "k_pool_ptr": pool, "v_pool_ptr": pool}
    pointers |= {"slots_ptr": "*i64"}
    strides = ("stride_k_token", "stride_k_head", "stride_v_token", "stride_v_head", *_POOL_STRIDES)
    return KernelVariant(
        kernel=write_rows,
        signature={**pointers, **dict.fromkeys(strides, "i32")},
        constexprs={
            "NUM_KV_HEADS": num_kv_heads,
            "HEADS": _heads_per_program(num_kv_heads, head_pad),
            "HEAD_DIM": head_dim,
            "HEAD_PAD": head_pad,
            "BLOCK_SIZE": block_size,
        },
        aligned=frozenset((*pointers, *strides)),
        num_warps=4,
        num_stages=1,
    )


@cache
def rotate_variant(
    dtype: torch.dtype,
    pool_dtype: torch.dtype,
    num_heads: tuple[int, int],
    head_dim: int,
    rotary_dim: int,
    block_size: int,
) -> KernelVariant:
    """`rotate_and_write_rows` for (query heads, KV heads) from `dtype` to a pool of `pool_dtype`."""
    num_q_heads, num_kv_heads = num_heads
    head_pad = triton.next_power_of_2(head_dim)
    element, pool = f"*{TRITON_TYPES[dtype]}", _pool_type(pool_dtype)
    names = ("q_ptr", "k_ptr", "v_ptr", "cos_ptr", "sin_ptr", "q_out_ptr", "k_out_ptr")
    pointers = {**dict.fromkeys(names, element), "k_pool_ptr": pool, "v_pool_ptr": pool, "slots_ptr": "*i64"}
    rows = [f"stride_{side}_{axis}" for side in "qkv" for axis in ("token", "head")]
    strides = (*rows, "stride_angle", *_POOL_STRIDES)
    return KernelVariant(
        kernel=rotate_and_write_rows,
        signature={**pointers, **dict.fromkeys(strides, "i32")},
        constexprs={
            "NUM_Q_HEADS": num_q_heads,
            "NUM_KV_HEADS": num_kv_heads,
            "HEADS": _heads_per_program(num_q_heads, head_pad),
            "HEAD_DIM": head_dim,
            "HEAD_PAD": head_pad,
            "ROTARY_DIM": rotary_dim,
            "BLOCK_SIZE": block_size,
        },
        aligned=frozenset((*pointers, *strides)),
        num_warps=4,
        num_stages=1,
    )


def _heads_per_program(num_heads: int, head_pad: int) -> int:
    return int(min(triton.next_power_of_2(num_heads), max(1, TILE_ELEMENTS // head_pad)))


def _pool_type(dtype: torch.dtype) -> str:
    return "*u8" if dtype is torch.float8_e4m3fn else f"*{TRITON_TYPES[dtype]}"


def aot_variants() -> Iterator[KernelVariant]:
    """The corners: padded and wide heads, partial rotation, every dtype of the pool."""
    yield rotate_variant(torch.float32, torch.float32, (32, 8), 256, 256, 32)
    yield rotate_variant(torch.bfloat16, torch.bfloat16, (28, 4), 128, 128, 32)
    yield rotate_variant(torch.float16, torch.float8_e4m3fn, (32, 32), 80, 32, 16)
    yield write_variant(torch.bfloat16, torch.float8_e4m3fn, 8, 64, 32)
    yield write_variant(torch.float32, torch.float16, 12, 96, 32)
