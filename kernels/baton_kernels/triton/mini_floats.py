"""Conversions in Triton between floats of few bits, as codes or as numbers, and float32.

Device functions only, without arithmetic on subnormal numbers, which a device may flush to zero.
Imported only where Triton is wanted: `TRITON_INTERPRET` is read when a function is defined.
"""

# Triton's decorator and kernel arguments have no types; compile-time constants are upper case.
# mypy: disable-error-code="untyped-decorator, no-untyped-def"
# ruff: noqa: N803

from __future__ import annotations

import triton
import triton.language as tl

_ROUNDER: tl.constexpr = tl.constexpr(12582912.0)
"""1.5 * 2**23: the sum with a smaller number has no bits for a fraction."""


@triton.jit
def _decode_e4m3(codes):
    """Value of each code of 8 bits."""
    wide = codes.to(tl.int32)
    magnitude = wide & 0x7F
    normal = ((magnitude << 20) + (120 << 23)).to(tl.float32, bitcast=True)
    value = tl.where(magnitude < 8, magnitude.to(tl.float32) * 0.001953125, normal)
    value = tl.where(magnitude == 0x7F, float("nan"), value)
    return tl.where(wide >= 128, -value, value)


@triton.jit
def _decode_e2m1(codes):
    """Value of each code of 4 bits: half of 0, 1, 2, 3, 4, 6, 8 or 12."""
    wide = codes.to(tl.int32)
    magnitude = wide & 7
    normal = ((magnitude << 22) + (126 << 23)).to(tl.float32, bitcast=True)
    value = tl.where(magnitude < 2, magnitude.to(tl.float32) * 0.5, normal)
    return tl.where(wide >= 8, -value, value)


@triton.jit
def _decode_e8m0(codes):
    """Power of two of each code of 8 bits; 255 is NaN."""
    wide = codes.to(tl.int32)
    bits = tl.where(wide == 0, 1 << 22, tl.where(wide == 255, 0x7FC00000, wide << 23))
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def _nearest_integer(x):
    """Round numbers below 2**22, half to even."""
    return (x + _ROUNDER) - _ROUNDER


@triton.jit
def _round_mini_float(x, MANTISSA_BITS: tl.constexpr, MIN_EXPONENT: tl.constexpr, LARGEST: tl.constexpr):
    """Nearest number of a float of few bits, half to even, saturating."""
    x = tl.minimum(tl.maximum(x, -LARGEST), LARGEST)
    exponents = ((x.to(tl.int32, bitcast=True) >> 23) & 0xFF) - 127
    exponents = tl.maximum(exponents, MIN_EXPONENT) - MANTISSA_BITS
    step = ((exponents + 127) << 23).to(tl.float32, bitcast=True)
    steps_in_one = ((127 - exponents) << 23).to(tl.float32, bitcast=True)
    return tl.minimum(tl.maximum(_nearest_integer(x * steps_in_one) * step, -LARGEST), LARGEST)


@triton.jit
def _encode_mini_float(values, MANTISSA_BITS: tl.constexpr, MIN_EXPONENT: tl.constexpr):
    """Codes, without their sign, of numbers of a float of few bits."""
    magnitude = tl.abs(values)
    normal = magnitude.to(tl.int32, bitcast=True) >> (23 - MANTISSA_BITS)
    normal -= (126 + MIN_EXPONENT) << MANTISSA_BITS
    subnormal = magnitude * (1 << (MANTISSA_BITS - MIN_EXPONENT))
    return tl.where(magnitude * (1 << -MIN_EXPONENT) < 1, subnormal.to(tl.int32), normal)
