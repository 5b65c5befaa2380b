"""Rounding of the inputs of quantized linear layers in Triton: their codes, and the scales of groups.

Rounds as `round_inputs` of the reference does. Where an input is not finite, its group's scale is NaN; a
fixed scale saturates what is infinite.
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

from baton_kernels.interface.quantized import InputElement, InputRounding, ScaleKind
from baton_kernels.reference.quantized_product import MINI_FLOATS
from baton_kernels.triton.kernel_variant import FP8_ARCH, TRITON_TYPES, KernelVariant
from baton_kernels.triton.mini_floats import _encode_mini_float, _nearest_integer, _round_mini_float

TILE_ELEMENTS: Final = 2048
"""Inputs that one program takes where groups are shorter."""
_CODE_TYPES: Final = {torch.int8: "i8", torch.uint8: "u8"}
_KINDS: Final = {ScaleKind.FLOAT32: "float32", ScaleKind.E8M0: "e8m0", ScaleKind.E4M3: "e4m3"}


@triton.jit
def _power_of_two_scales(largest, MANTISSA_BITS: tl.constexpr, MAX_EXPONENT: tl.constexpr):
    """Powers of two as `power_of_two_scales` of the reference has them."""
    bits = largest.to(tl.int32, bitcast=True) + (1 << (22 - MANTISSA_BITS))
    exponents = tl.minimum(tl.maximum((bits >> 23) - 127 - MAX_EXPONENT, -127), 127)
    powers = tl.where(exponents == -127, 1 << 22, (exponents + 127) << 23)
    return powers.to(tl.float32, bitcast=True)


@triton.jit
def _asymmetric(x, mask):
    """Codes of 8-bit integers less their zero point, and scales, of groups `x [groups, inputs]`."""
    low = tl.minimum(tl.min(tl.where(mask, x, 0.0), 1), 0.0)
    scales = tl.div_rn(tl.maximum(tl.max(tl.where(mask, x, 0.0), 1), 0.0) - low, 255.0)
    divisors = tl.where(scales == 0, 1.0, scales)
    zeros = tl.where(scales == 0, 0.0, _nearest_integer(-128.0 - tl.div_rn(low, divisors)))[:, None]
    codes = _nearest_integer(tl.div_rn(x, divisors[:, None])) + zeros
    return tl.minimum(tl.maximum(codes, -128.0), 127.0) - zeros, scales


@triton.jit
def _symmetric_scales(
    x,
    global_scale,
    KIND: tl.constexpr,
    SCALE_BITS: tl.constexpr,
    MAX_EXPONENT: tl.constexpr,
    LARGEST: tl.constexpr,
):
    """Scales of groups `x [groups, inputs]` by their largest magnitude."""
    largest = tl.max(tl.abs(x), 1)
    if KIND == "e8m0":
        scales = _power_of_two_scales(largest, SCALE_BITS, MAX_EXPONENT)
    elif KIND == "e4m3":
        rounded = _round_mini_float(tl.div_rn(largest, LARGEST) * global_scale, 3, -6, 448.0)
        scales = tl.div_rn(rounded, global_scale)
    else:
        scales = tl.div_rn(largest, LARGEST)
    return scales


@triton.jit
def _pack_e2m1(values):
    """Bytes `[groups, inputs / 2]` of numbers `[groups, inputs]`, the even input in the lower bits."""
    codes = _encode_mini_float(values, 1, 0) | tl.where(values < 0, 8, 0)
    groups: tl.constexpr = values.shape[0]
    even, odd = tl.split(tl.reshape(codes, [groups, values.shape[1] // 2, 2]))
    return (even | odd << 4).to(tl.uint8)


@triton.jit
def _encode_scales(scales, global_scale, KIND: tl.constexpr):
    """Codes of scales, which are powers of two or e4m3 over `global_scale`."""
    if KIND == "e8m0":
        codes = (scales.to(tl.int32, bitcast=True) >> 23) & 0xFF
    else:
        codes = _encode_mini_float(_round_mini_float(scales * global_scale, 3, -6, 448.0), 3, -6)
        codes = tl.where(scales != scales, 0x7F, codes)
    return codes.to(tl.uint8)


@triton.jit(do_not_specialize=["num_groups"])
def round_groups(
    x_ptr,
    codes_ptr,
    scales_ptr,
    fixed_scale,
    global_scale,
    num_groups,
    stride_row,
    IN_SIZE: tl.constexpr,
    GROUP: tl.constexpr,
    GROUP_PAD: tl.constexpr,
    GROUPS: tl.constexpr,
    IS_FIXED: tl.constexpr,
    IS_INT8: tl.constexpr,
    IS_SYMMETRIC: tl.constexpr,
    ZERO_POINT: tl.constexpr,
    KIND: tl.constexpr,
    SCALE_BITS: tl.constexpr,
    MANTISSA_BITS: tl.constexpr,
    MIN_EXPONENT: tl.constexpr,
    MAX_EXPONENT: tl.constexpr,
    LARGEST: tl.constexpr,
    IS_PACKED: tl.constexpr,
    ENCODES_SCALES: tl.constexpr,
):
    """Write the codes of `GROUPS` groups of `x [num_rows, IN_SIZE]` and their scales.

    Grid: (tiles of num_groups), `num_groups` being the number of all rows' groups.
    """
    groups = tl.program_id(0).to(tl.int64) * GROUPS + tl.arange(0, GROUPS)
    row_groups: tl.constexpr = (IN_SIZE + GROUP - 1) // GROUP
    rows, is_group = groups // row_groups, groups < num_groups
    dims = tl.arange(0, GROUP_PAD)
    inner = (groups % row_groups * GROUP)[:, None] + dims[None, :]
    mask = is_group[:, None] & (dims < GROUP)[None, :] & (inner < IN_SIZE)
    x = tl.load(x_ptr + rows[:, None] * stride_row + inner, mask=mask, other=0.0).to(tl.float32)
    is_nan = x != x
    is_lost = is_nan if IS_FIXED else is_nan | (tl.abs(x) == float("inf"))
    num_lost = tl.sum(is_lost.to(tl.int32), 1)
    x = tl.where(is_lost, 0.0, x)
    if IS_INT8 and not IS_SYMMETRIC and not IS_FIXED:
        codes, scales = _asymmetric(x, mask)
    else:
        if IS_FIXED:
            scales = tl.zeros([GROUPS], tl.float32) + fixed_scale
        else:
            scales = _symmetric_scales(x, global_scale, KIND, SCALE_BITS, MAX_EXPONENT, LARGEST)
        codes = tl.div_rn(x, tl.where(scales == 0, 1.0, scales)[:, None])
        codes = tl.where(scales[:, None] == 0, 0.0, codes)
        if IS_INT8:
            codes = tl.minimum(tl.maximum(codes, -1024.0), 1024.0)
            codes = _nearest_integer(codes) + ZERO_POINT
            codes = tl.minimum(tl.maximum(codes, -128.0), 127.0) - ZERO_POINT
        else:
            codes = _round_mini_float(codes, MANTISSA_BITS, MIN_EXPONENT, LARGEST)
    scales = tl.where(num_lost > 0, float("nan"), scales)
    if IS_PACKED:
        dims = tl.arange(0, GROUP_PAD // 2)
        pairs = (groups % row_groups * (GROUP // 2))[:, None] + dims[None, :]
        mask = is_group[:, None] & (dims < GROUP // 2)[None, :] & (pairs < IN_SIZE // 2)
        tl.store(codes_ptr + rows[:, None] * (IN_SIZE // 2) + pairs, _pack_e2m1(codes), mask=mask)
    else:
        tl.store(codes_ptr + rows[:, None] * IN_SIZE + inner, codes.to(codes_ptr.dtype.element_ty), mask=mask)
    if ENCODES_SCALES:
        scales = _encode_scales(scales, global_scale, KIND)
    tl.store(scales_ptr + groups, scales, mask=is_group)


def round_rows(
    x: Tensor, rounding: InputRounding, code_dtype: torch.dtype, *, encodes_scales: bool = False
) -> tuple[Tensor, Tensor]:
    """Return the codes of `x` `[num_rows, in_features]` and the scales `[num_rows, num_groups]`.

    Codes are numbers in `code_dtype`, less their zero point, that groups' scales multiply; as uint8 they are
    those of e2m1, `[num_rows, in_features / 2]` with the even input in the lower bits. Scales are float32, or
    codes of their kind: e8m0 as uint8, or e4m3, which are still to be divided by `global_scale`.
    """
    num_rows, in_size = x.shape
    variant = rounding_variant(x.dtype, code_dtype, in_size, rounding, encodes_scales=encodes_scales)
    constants = variant.constexprs
    num_groups = triton.cdiv(in_size, constants["GROUP"])
    width = in_size // 2 if constants["IS_PACKED"] else in_size
    codes = torch.empty((num_rows, width), dtype=code_dtype, device=x.device)
    scale_dtype = torch.uint8 if encodes_scales else torch.float32
    scales = torch.empty((num_rows, num_groups), dtype=scale_dtype, device=x.device)
    grid = (triton.cdiv(scales.numel(), constants["GROUPS"]),)
    fixed_scale = 1.0 if rounding.scale is None else rounding.scale
    variant.launch(grid, x, codes, scales, fixed_scale, rounding.global_scale, scales.numel(), x.stride(0))
    is_e4m3 = encodes_scales and rounding.scale_kind == ScaleKind.E4M3
    return codes, scales.view(torch.float8_e4m3fn) if is_e4m3 else scales


@cache
def rounding_variant(
    dtype: torch.dtype,
    code_dtype: torch.dtype,
    in_size: int,
    rounding: InputRounding,
    *,
    encodes_scales: bool = False,
) -> KernelVariant:
    """`round_groups` for inputs of `dtype`, `in_size` to a row."""
    group = min(rounding.group_size or in_size, in_size)
    group_pad = triton.next_power_of_2(group)
    is_int8 = rounding.element == InputElement.INT8
    mini_float = MINI_FLOATS[InputElement.E4M3 if is_int8 else rounding.element]
    is_packed = code_dtype == torch.uint8
    pointers = {
        "x_ptr": f"*{TRITON_TYPES[dtype]}",
        "codes_ptr": f"*{_CODE_TYPES.get(code_dtype) or TRITON_TYPES[code_dtype]}",
        "scales_ptr": "*u8" if encodes_scales else "*fp32",
    }
    numbers = {"fixed_scale": "fp32", "global_scale": "fp32", "num_groups": "i32", "stride_row": "i32"}
    return KernelVariant(
        kernel=round_groups,
        signature={**pointers, **numbers},
        constexprs={
            "IN_SIZE": in_size,
            "GROUP": group,
            "GROUP_PAD": group_pad,
            "GROUPS": max(1, TILE_ELEMENTS // group_pad),
            "IS_FIXED": rounding.scale is not None,
            "IS_INT8": is_int8,
            "IS_SYMMETRIC": rounding.is_symmetric,
            "ZERO_POINT": rounding.zero_point,
            "KIND": _KINDS[rounding.scale_kind],
            "SCALE_BITS": rounding.scale_mantissa_bits or mini_float.mantissa_bits,
            "MANTISSA_BITS": mini_float.mantissa_bits,
            "MIN_EXPONENT": mini_float.min_exponent,
            "MAX_EXPONENT": mini_float.max_exponent,
            "LARGEST": 127.0 if is_int8 else mini_float.largest,
            "IS_PACKED": is_packed,
            "ENCODES_SCALES": encodes_scales,
        },
        aligned=frozenset((*pointers, "stride_row")),
        num_warps=min(32, max(4, group_pad // 512)),
        num_stages=1,
        min_arch=FP8_ARCH if code_dtype == torch.float8_e4m3fn else 80,
    )


def aot_variants() -> Iterator[KernelVariant]:
    """A row's scale, a group's of each kind, and a fixed one; codes as numbers and as codes."""
    brain, e4m3 = torch.bfloat16, torch.float8_e4m3fn
    token = InputRounding(element=InputElement.E4M3)
    yield rounding_variant(brain, brain, 14336, token)
    yield rounding_variant(brain, e4m3, 14336, token)
    uneven = InputRounding(element=InputElement.INT8, is_symmetric=False)
    yield rounding_variant(brain, brain, 14336, uneven)
    yield rounding_variant(brain, torch.int8, 4096, InputRounding(element=InputElement.INT8))
    for kind, group_size in ((ScaleKind.E8M0, 32), (ScaleKind.E4M3, 16)):
        rounding = InputRounding(element=InputElement.E2M1, group_size=group_size, scale_kind=kind)
        yield rounding_variant(brain, brain, 4096, rounding)
        yield rounding_variant(brain, torch.uint8, 4096, rounding, encodes_scales=True)
    yield rounding_variant(
        torch.float32, torch.float32, 4096, InputRounding(element=InputElement.E4M3, scale=0.5)
    )
