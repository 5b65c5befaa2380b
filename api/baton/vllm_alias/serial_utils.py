"""Functions of vLLM by which clients read and write tensors as bytes: element types, orders and base64."""

from __future__ import annotations

import io
import sys
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor


@dataclass(frozen=True)
class DTypeInfo:
    """An element type."""

    torch_dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        return self.torch_dtype.itemsize


EMBED_DTYPES: Final = {
    "float32": DTypeInfo(torch.float32),
    "float16": DTypeInfo(torch.float16),
    "bfloat16": DTypeInfo(torch.bfloat16),
    "fp8_e4m3": DTypeInfo(torch.float8_e4m3fn),
    "fp8_e5m2": DTypeInfo(torch.float8_e5m2),
}
"""Values of `embed_dtype`."""
ENDIANNESS: Final = ("native", "big", "little")
"""Values of `endianness`."""


def tensor2base64(x: Tensor) -> str:
    """Return a tensor as `torch.save` writes it, in base64: `prompt_embeds` of a request."""
    file = io.BytesIO()
    torch.save(x, file)
    return b64encode(file.getbuffer()).decode()


def tensor2binary(tensor: Tensor, embed_dtype: str, endianness: str) -> bytes:
    """Return the elements in their order, rounded to `embed_dtype`.

    Raises:
        ValueError: `embed_dtype` or `endianness` is none of those that there are.
    """
    info = _info(embed_dtype, endianness)
    codes = tensor.detach().cpu().to(info.torch_dtype).contiguous().flatten().view(torch.uint8)
    return bytes(_in_order(codes, info, endianness).numpy())


def binary2tensor(binary: bytes, shape: Sequence[int], embed_dtype: str, endianness: str) -> Tensor:
    """Return the tensor `shape` of elements in their order.

    Raises:
        ValueError: `embed_dtype` or `endianness` is none of those that there are, or there are no bytes.
        RuntimeError: the bytes are not of this shape.
    """
    info = _info(embed_dtype, endianness)
    codes = torch.frombuffer(bytearray(binary), dtype=torch.uint8)
    return _in_order(codes, info, endianness).view(info.torch_dtype).reshape(tuple(shape))


def _info(embed_dtype: str, endianness: str) -> DTypeInfo:
    for name, value, allowed in (
        ("embed_dtype", embed_dtype, tuple(EMBED_DTYPES)),
        ("endianness", endianness, ENDIANNESS),
    ):
        if value not in allowed:
            raise ValueError(f"{name} is {value!r}; allowed: {', '.join(allowed)}")
    return EMBED_DTYPES[embed_dtype]


def _in_order(codes: Tensor, info: DTypeInfo, endianness: str) -> Tensor:
    """Return bytes `[num_elements * nbytes]`, those of each element reversed where this machine's order is
    another than `endianness`."""
    if endianness in ("native", sys.byteorder):
        return codes
    return codes.view(-1, info.nbytes).flip(1).flatten()
