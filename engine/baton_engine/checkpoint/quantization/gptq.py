"""Checkpoints of `quant_method` "gptq": integers of 2, 3, 4 and 8 bits in groups of inputs.

Source: GPTQModel 7.7, the layout of AutoGPTQ. Version 1 of the format stores zero points less 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
from torch import Tensor

from baton_core.errors import InvalidModelError
from baton_engine.checkpoint.config_fields import ConfigFields
from baton_engine.checkpoint.quantization.exclusions import NamePattern, compile_regex, contains, read_names
from baton_engine.checkpoint.quantization.layer_format import FLOATS, LayerFormat, StoredTensor
from baton_engine.checkpoint.quantization.unpacking import (
    WORD_BITS,
    order_of_groups,
    pack_nibbles,
    require_divisible,
    unpack_words,
)
from baton_kernels.interface.quantized import Element, QuantizedWeight

_BITS: Final = ("2", "3", "4", "8")
_VERSIONS: Final = ("gptq", "gptq_v2")
_MAX_OVERRIDES: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class GptqLayer:
    """Codes `[in_features * bits / 32, out_features]`, packed along the inputs, zeros along the outputs."""

    bits: int
    group_size: int
    """-1 is all inputs."""
    is_v1: bool
    codes_name: str = "qweight"

    def sizes(self, codes_shape: tuple[int, ...]) -> tuple[int, int]:
        return codes_shape[1], codes_shape[0] * WORD_BITS // self.bits

    def tensors(self, out_features: int, in_features: int) -> Mapping[str, StoredTensor]:
        group_size = in_features if self.group_size == -1 else self.group_size
        require_divisible("in_features", in_features, group_size)
        require_divisible("in_features", in_features, WORD_BITS)
        require_divisible("out_features", out_features, WORD_BITS)
        groups = in_features // group_size
        return {
            "qweight": StoredTensor(
                dtypes=("I32",), shape=(in_features * self.bits // WORD_BITS, out_features)
            ),
            "qzeros": StoredTensor(dtypes=("I32",), shape=(groups, out_features * self.bits // WORD_BITS)),
            "scales": StoredTensor(dtypes=FLOATS, shape=(groups, out_features)),
            "g_idx": StoredTensor(dtypes=("I32",), shape=(in_features,), is_optional=True),
        }

    def decode(self, tensors: Mapping[str, Tensor], out_features: int, in_features: int) -> QuantizedWeight:
        group_size = in_features if self.group_size == -1 else self.group_size
        groups = in_features // group_size
        codes = unpack_words(tensors["qweight"].T.contiguous(), self.bits)
        zeros = unpack_words(tensors["qzeros"].view(groups, -1), self.bits).T.to(torch.int16)
        if self.is_v1:
            if (zeros == (1 << self.bits) - 1).any():
                allowed = f"at most {(1 << self.bits) - 2}, since 1 is added to them"
                raise InvalidModelError(f"qzeros holds {(1 << self.bits) - 1}; allowed: {allowed}")
            zeros = zeros + 1
        order = order_of_groups("g_idx", tensors.get("g_idx"), in_features, group_size)
        if order is not None:
            codes = codes[:, order]
        if self.bits == 8:
            codes, zeros = codes ^ 128, zeros - 128
        return QuantizedWeight(
            element=Element.INT8 if self.bits == 8 else Element.UINT4,
            codes=codes.view(torch.int8).contiguous() if self.bits == 8 else pack_nibbles(codes),
            scales=tensors["scales"].view(groups, -1).T.contiguous(),
            group_size=group_size,
            zeros=zeros.contiguous(),
            input_order=order,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GptqQuantization:
    """The quantization of a whole checkpoint."""

    default: GptqLayer
    overrides: tuple[tuple[NamePattern, GptqLayer | None], ...]
    """Ways of storing by regular expressions of names; None leaves layers as they are."""
    modules: tuple[str, ...]
    """Parts of the names of layers that are quantized; empty is all."""
    ignored: tuple[str, ...]
    has_quantized_head: bool
    method: str = "gptq"

    def layer_format(self, name: str) -> LayerFormat | None:
        if name == "lm_head" and not self.has_quantized_head:
            return None
        if contains(name, self.ignored):
            return None
        for pattern, layer in self.overrides:
            if pattern.matches(name):
                return layer
        is_named = not self.modules or name == "lm_head" or contains(name, self.modules)
        return self.default if is_named else None


def read_gptq(fields: ConfigFields) -> GptqQuantization:
    """Read the section of a config.json.

    Raises:
        InvalidModelError: a value is none that can be followed.
    """
    version_key = "checkpoint_format" if fields.raw("checkpoint_format") is not None else "format"
    is_v1 = fields.choice(version_key, _VERSIONS, "gptq") == "gptq"
    default = GptqLayer(bits=_read_bits(fields), group_size=_read_group_size(fields), is_v1=is_v1)
    return GptqQuantization(
        default=default,
        overrides=tuple(_read_overrides(fields, default)),
        modules=_read_modules(fields),
        ignored=read_names(fields, "modules_to_not_convert"),
        has_quantized_head=fields.boolean("lm_head", False),
    )


def _read_bits(fields: ConfigFields) -> int:
    bits = fields.integer("bits")
    if str(bits) not in _BITS:
        raise fields.refuse("bits", bits, ", ".join(_BITS))
    return bits


def _read_group_size(fields: ConfigFields) -> int:
    return -1 if fields.raw("group_size") in (None, -1) else fields.integer("group_size")


def _read_modules(fields: ConfigFields) -> tuple[str, ...]:
    """Read the layers that are quantized: lists of names, one inside another."""
    value = fields.raw("modules_in_block_to_quantize")
    if value is None:
        return ()
    flat: list[Any] = []
    for one in value if isinstance(value, list) else [value]:
        flat += one if isinstance(one, list) else [one]
    if not all(isinstance(name, str) for name in flat):
        raise fields.refuse("modules_in_block_to_quantize", value, "lists of names of layers")
    return tuple(flat)


def _read_overrides(fields: ConfigFields, default: GptqLayer) -> list[tuple[NamePattern, GptqLayer | None]]:
    """Read `dynamic`: names after `-:` are not quantized, names after `+:` or nothing in another way."""
    section = fields.section_or_empty("dynamic")
    names = section.names()
    if len(names) > _MAX_OVERRIDES:
        raise fields.refuse("dynamic", f"{len(names)} names", f"at most {_MAX_OVERRIDES}")
    overrides: list[tuple[NamePattern, GptqLayer | None]] = []
    for name in names:
        pattern = compile_regex(section, "a name", name.removeprefix("+:").removeprefix("-:"))
        if name.startswith("-:"):
            overrides.append((pattern, None))
            continue
        own = section.section(name)
        if own is None:
            continue
        bits = default.bits if own.raw("bits") is None else _read_bits(own)
        group_size = default.group_size if own.raw("group_size") is None else _read_group_size(own)
        overrides.append((pattern, replace(default, bits=bits, group_size=group_size)))
    return overrides
