"""Checkpoints of `quant_method` "awq": integers of 4 bits in groups of inputs, packed along the outputs.

Source: AutoAWQ 0.2.9, version "gemm".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from baton_engine.checkpoint.config_fields import ConfigFields
from baton_engine.checkpoint.quantization.exclusions import contains, read_names
from baton_engine.checkpoint.quantization.layer_format import FLOATS, LayerFormat, StoredTensor
from baton_engine.checkpoint.quantization.unpacking import pack_nibbles, require_divisible, unpack_awq
from baton_kernels.interface.quantized import Element, QuantizedWeight

_PER_WORD = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class AwqLayer:
    """Codes `[in_features, out_features / 8]`, zero points `[groups, out_features / 8]`, in AWQ's order."""

    group_size: int
    """-1 is all inputs."""
    codes_name: str = "qweight"

    def sizes(self, codes_shape: tuple[int, ...]) -> tuple[int, int]:
        return codes_shape[1] * _PER_WORD, codes_shape[0]

    def tensors(self, out_features: int, in_features: int) -> Mapping[str, StoredTensor]:
        group_size = in_features if self.group_size == -1 else self.group_size
        require_divisible("out_features", out_features, _PER_WORD)
        require_divisible("in_features", in_features, group_size)
        groups, words = in_features // group_size, out_features // _PER_WORD
        return {
            "qweight": StoredTensor(dtypes=("I32",), shape=(in_features, words)),
            "qzeros": StoredTensor(dtypes=("I32",), shape=(groups, words)),
            "scales": StoredTensor(dtypes=FLOATS, shape=(groups, out_features)),
        }

    def decode(self, tensors: Mapping[str, Tensor], out_features: int, in_features: int) -> QuantizedWeight:
        group_size = in_features if self.group_size == -1 else self.group_size
        groups = in_features // group_size
        codes = unpack_awq(tensors["qweight"]).T
        zeros = unpack_awq(tensors["qzeros"].view(groups, -1)).T
        return QuantizedWeight(
            element=Element.UINT4,
            codes=pack_nibbles(codes).contiguous(),
            scales=tensors["scales"].view(groups, -1).T.contiguous(),
            group_size=group_size,
            zeros=zeros.to(torch.int16).contiguous(),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AwqQuantization:
    """The quantization of a whole checkpoint."""

    layer: AwqLayer
    ignored: tuple[str, ...]
    """Parts of the names of layers that stay as they are."""
    has_quantized_head: bool
    method: str = "awq"

    def layer_format(self, name: str) -> LayerFormat | None:
        is_head = name == "lm_head"
        return None if contains(name, self.ignored) or is_head > self.has_quantized_head else self.layer


def read_awq(fields: ConfigFields) -> AwqQuantization:
    """Read the section of a config.json.

    Raises:
        InvalidModelError: a value is none that can be followed.
    """
    bits_key = "bits" if fields.raw("bits") is not None else "w_bit"
    bits = fields.integer(bits_key, 4)
    if bits != 4:
        raise fields.refuse(bits_key, bits, "4")
    version = str(fields.raw("version") or "gemm").lower()
    if version != "gemm":
        raise fields.refuse("version", fields.raw("version"), "gemm")
    group_key = "group_size" if fields.raw("group_size") is not None else "q_group_size"
    group_size = -1 if fields.raw(group_key) == -1 else fields.integer(group_key, 128)
    return AwqQuantization(
        layer=AwqLayer(group_size=group_size),
        ignored=read_names(fields, "modules_to_not_convert"),
        has_quantized_head=fields.boolean("lm_head", False),
    )
