"""Blocks of GGUF files: layers of them as codes where these fit exactly, and their values as float32.

Q4_0, Q5_0, Q8_0 and Q6_K are codes times a scale. Q4_K and Q5_K subtract a minimum that is no multiple of the
scale, so their layers are of numbers. Source: the dequantization of ggml (`ggml-quants.c`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from baton_core.errors import InvalidModelError
from baton_engine.checkpoint.config_fields import ConfigFields
from baton_engine.checkpoint.gguf_files import check_gguf_config, read_gguf_entries
from baton_engine.checkpoint.gguf_header import TYPES
from baton_engine.checkpoint.quantization.layer_format import StoredTensor
from baton_engine.checkpoint.quantization.methods import GGUF
from baton_engine.checkpoint.weight_files import TensorEntry
from baton_kernels.interface.quantized import Element, QuantizedWeight
from baton_kernels.reference.quantized_product import dequantize

logger = logging.getLogger(__name__)

_BLOCKS: Final = {one.name: one for one in TYPES.values() if one.num_values > 1}
BLOCK_TYPES: Final = tuple(_BLOCKS)
"""Types whose numbers lie in blocks, by their names."""
_GROUP: Final = 32
_GROUPS: Final = 8
"""Groups of a block of Q4_K and Q5_K."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockLayer:
    """A linear layer whose rows are blocks with codes."""

    type: str
    codes_name: str = "weight"

    def sizes(self, codes_shape: tuple[int, ...]) -> tuple[int, int]:
        return codes_shape[0], codes_shape[1]

    def tensors(self, out_features: int, in_features: int) -> Mapping[str, StoredTensor]:
        return {"weight": StoredTensor(dtypes=(self.type,), shape=(out_features, in_features))}

    def decode(self, tensors: Mapping[str, Tensor], out_features: int, in_features: int) -> QuantizedWeight:
        return decode_codes(tensors["weight"], self.type)


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufQuantization:
    """The layers of one file, each with the type of its blocks where that can be codes."""

    types: Mapping[str, str]
    method: str = GGUF

    def layer_format(self, name: str) -> BlockLayer | None:
        return BlockLayer(type=self.types[name]) if name in self.types else None


def read_gguf_quantization(path: Path, fields: ConfigFields) -> GgufQuantization:
    """Return the quantization of a file beside the config.json of `fields`.

    Raises:
        InvalidModelError: the file is damaged, or config.json describes another model or is quantized itself.
    """
    if fields.raw("quantization_config") is not None:
        raise fields.refuse("quantization_config", fields.raw("quantization_config"), f"none, beside {path}")
    check_gguf_config(path, fields)
    entries = read_gguf_entries(path)
    types = {
        name.removesuffix(".weight"): entry.dtype
        for name, entry in entries.items()
        if entry.dtype in BLOCK_TYPES and name != "model.embed_tokens.weight"
    }
    layers = {name: kind for name, kind in types.items() if kind in _CODES}
    if decoded := sorted({kind for kind in types.values() if kind not in _CODES}):
        num_decoded = len(types) - len(layers)
        text = "%d of %d layers are read as numbers: %s have minima that codes cannot hold exactly"
        logger.info(text, num_decoded, len(types), ", ".join(decoded))
    return GgufQuantization(types=layers)


def decode_codes(rows: Tensor, kind: str) -> QuantizedWeight:
    """Return the weight of rows of blocks, `[out_features, row bytes] uint8`, with exactly their values.

    Raises:
        InvalidModelError: a scale is not finite.
    """
    weight = _CODES[kind](_split(rows, kind))
    if not weight.scales.isfinite().all():
        raise InvalidModelError("weight holds a scale that is NaN or infinite; allowed: finite numbers")
    return weight


def decode_values(rows: Tensor, kind: str) -> Tensor:
    """Return the numbers `[num_rows, num_columns] float32` of rows of blocks `[num_rows, row bytes] uint8`.

    Raises:
        InvalidModelError: a scale is not finite.
    """
    if kind in _CODES:
        return dequantize(decode_codes(rows, kind))
    values = _minimum_values(_split(rows, kind), has_fifth_bit=kind == "Q5_K")
    if not values.isfinite().all():
        raise InvalidModelError("weight holds a scale that is NaN or infinite; allowed: finite numbers")
    return values.flatten(1)


def stored_shape(entry: TensorEntry) -> tuple[int, ...]:
    """Return the shape `[..., row bytes]` of a tensor's bytes."""
    block = _BLOCKS[entry.dtype]
    return (*entry.shape[:-1], entry.shape[-1] // block.num_values * block.num_bytes)


def unpaired(rows: Tensor, num_heads: int) -> Tensor:
    """Return rows `[num_heads * head_dim, ...]` whose pairs that rotate together lie half a head apart.

    In the file the two of a pair are neighbours.
    """
    pairs = rows.view(num_heads, len(rows) // num_heads // 2, 2, *rows.shape[1:])
    return pairs.transpose(1, 2).reshape(rows.shape)


def _split(rows: Tensor, kind: str) -> Tensor:
    return rows.view(len(rows), -1, _BLOCKS[kind].num_bytes)


def _halves(blocks: Tensor) -> Tensor:
    """Return the float16 numbers `[..., n]` of bytes `[..., 2 n]`."""
    return blocks.contiguous().view(torch.float16)


def _nibbles(packed: Tensor) -> Tensor:
    """Return lower bits, then upper bits, of each of the last axis: `[..., n]` to `[..., 2 n]`."""
    return torch.cat([packed & 15, packed >> 4], dim=-1)


def _bits(packed: Tensor) -> Tensor:
    """Return the bits of bytes `[..., n]` as `[..., 8 n]`, the lowest first."""
    shifts = torch.arange(8, dtype=torch.uint8)
    return (packed.unsqueeze(-1) >> shifts & 1).flatten(-2)


def _signed(codes: Tensor, scales: Tensor, group_size: int) -> QuantizedWeight:
    return QuantizedWeight(
        element=Element.INT8, codes=codes.flatten(1), scales=scales.flatten(1), group_size=group_size
    )


def _q4_0(blocks: Tensor) -> QuantizedWeight:
    codes = _nibbles(blocks[..., 2:]).flatten(1)
    packed = codes[:, ::2] | codes[:, 1::2] << 4
    scales = _halves(blocks[..., :2]).flatten(1)
    return QuantizedWeight(element=Element.INT4, codes=packed, scales=scales, group_size=_GROUP)


def _q5_0(blocks: Tensor) -> QuantizedWeight:
    codes = _nibbles(blocks[..., 6:]) | _bits(blocks[..., 2:6]) << 4
    return _signed(codes.to(torch.int8) - 16, _halves(blocks[..., :2]), _GROUP)


def _q8_0(blocks: Tensor) -> QuantizedWeight:
    codes = blocks[..., 2:].contiguous().view(torch.int8)
    return _signed(codes, _halves(blocks[..., :2]), _GROUP)


def _q6_k(blocks: Tensor) -> QuantizedWeight:
    """Each half of a block is 64 bytes of lower bits and 32 of upper ones; 16 codes share a scale."""
    lower = _nibbles(blocks[..., :128].reshape(*blocks.shape[:2], 2, 64))
    packed = blocks[..., 128:192].reshape(*blocks.shape[:2], 2, 1, 32)
    shifts = torch.tensor([0, 2, 4, 6], dtype=torch.uint8).view(4, 1)
    upper = (packed >> shifts & 3).flatten(-2)
    codes = (lower | upper << 4).to(torch.int8) - 32
    scales = blocks[..., 192:208].contiguous().view(torch.int8) * _halves(blocks[..., 208:]).float()
    return _signed(codes.flatten(2), scales, 16)


_CODES: Final[dict[str, Callable[[Tensor], QuantizedWeight]]] = {
    "Q4_0": _q4_0,
    "Q5_0": _q5_0,
    "Q8_0": _q8_0,
    "Q6_K": _q6_k,
}


def _minimum_values(blocks: Tensor, *, has_fifth_bit: bool) -> Tensor:
    """Return numbers `[num_rows, num_blocks, 256]`: codes times scales, less minima, of groups of 32."""
    factors = _halves(blocks[..., :4]).float()
    packed = blocks[..., 4:16]
    first, second, rest = packed[..., :4], packed[..., 4:8], packed[..., 8:]
    scales = torch.cat([first & 63, rest & 15 | first >> 6 << 4], dim=-1)
    minima = torch.cat([second & 63, rest >> 4 | second >> 6 << 4], dim=-1)
    codes = _nibbles(blocks[..., -128:].reshape(*blocks.shape[:2], 4, _GROUP))
    codes = codes.reshape(*blocks.shape[:2], _GROUPS, _GROUP)
    if has_fifth_bit:
        shifts = torch.arange(_GROUPS, dtype=torch.uint8).view(_GROUPS, 1)
        codes = codes | (blocks[..., 16:48].unsqueeze(-2) >> shifts & 1) << 4
    values: Tensor = codes * (factors[..., :1] * scales).unsqueeze(-1)
    values = values - (factors[..., 1:] * minima).unsqueeze(-1)
    return values.flatten(-2)
