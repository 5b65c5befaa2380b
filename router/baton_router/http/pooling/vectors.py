"""Writes vectors: as numbers, as bytes of an element type, as text of such bytes, and as signs."""

from __future__ import annotations

import struct
import sys
from base64 import b64encode
from bisect import bisect_left
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from baton_core.worker.step_plan import PooledValues
from baton_router.http.json_pieces import as_list
from baton_router.requests.pooling import floats_of

Numbers = list[float | list[float]]
"""A vector, or a row for each token."""
_FP8: Final = {"fp8_e4m3": (4, 7, 0x7E), "fp8_e5m2": (5, 15, 0x7B)}
"""Bits of the exponent, its bias, and the code of the largest number."""


def numbers_of(pooled: PooledValues) -> Numbers:
    """Return a vector, or a row for each token."""
    values = floats_of(pooled)
    if len(pooled.shape) == 1:
        return list(values)
    num_rows, size = pooled.shape
    return as_list((list(values[row * size : (row + 1) * size]) for row in range(num_rows)), num_rows)


def bytes_of(pooled: PooledValues, dtype: str, endianness: str) -> bytes:
    """Return the elements as bytes, rounded to `dtype`, each in the order of `endianness`."""
    order = sys.byteorder if endianness == "native" else endianness
    if (dtype, order) == ("float32", "little"):
        return pooled.values
    mark = "<" if order == "little" else ">"
    values = floats_of(pooled)
    match dtype:
        case "float32":
            return struct.pack(f"{mark}{len(values)}f", *values)
        case "float16":
            return struct.pack(f"{mark}{len(values)}e", *(max(-65504.0, min(65504.0, v)) for v in values))
        case "bfloat16":
            return struct.pack(f"{mark}{len(values)}H", *map(_bfloat16, values))
        case _:
            return bytes(_fp8(value, dtype) for value in values)


def text_of(pooled: PooledValues, dtype: str, endianness: str) -> str:
    """Return the same as base64."""
    return b64encode(bytes_of(pooled, dtype, endianness)).decode()


def signs_of(pooled: PooledValues, *, is_signed: bool) -> list[int]:
    """Return a bit for each number, 1 if it is positive, eight in an integer, the first one the highest."""
    values = floats_of(pooled)
    packed = []
    for start in range(0, len(values), 8):
        bits = [value > 0 for value in values[start : start + 8]]
        code = sum(bit << (7 - place) for place, bit in enumerate(bits))
        packed.append(code - 128 if is_signed else code)
    return packed


def _bfloat16(value: float) -> int:
    (code,) = struct.unpack("<I", struct.pack("<f", value))
    return int((code + 0x7FFF + ((code >> 16) & 1)) >> 16)


@lru_cache(maxsize=2)
def _magnitudes(dtype: str) -> Sequence[float]:
    """Return the positive numbers of a type by their codes, ascending."""
    exponent_bits, bias, largest = _FP8[dtype]
    mantissa_bits = 7 - exponent_bits
    numbers = []
    for code in range(largest + 1):
        exponent, mantissa = code >> mantissa_bits, code & ((1 << mantissa_bits) - 1)
        scale = 2.0 ** (max(exponent, 1) - bias - mantissa_bits)
        numbers.append((mantissa + ((1 << mantissa_bits) if exponent else 0)) * scale)
    return numbers


def _fp8(value: float, dtype: str) -> int:
    """Round to the nearest number, of two equally near to the even code; beyond the largest to that."""
    numbers, size = _magnitudes(dtype), abs(value)
    above = bisect_left(numbers, size)
    if above == len(numbers):
        code = above - 1
    elif above and size != numbers[above]:
        below = size - numbers[above - 1]
        is_up = numbers[above] - size < below or (numbers[above] - size == below and above % 2 == 0)
        code = above if is_up else above - 1
    else:
        code = above
    return code | (0x80 if value < 0 else 0)
