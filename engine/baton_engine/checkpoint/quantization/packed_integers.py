"""Integers of 4 and 8 bits that compressed-tensors packs into words, with scales for groups of inputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from baton_core.errors import InvalidModelError
from baton_engine.checkpoint.quantization.layer_format import FLOATS, StoredTensor
from baton_engine.checkpoint.quantization.layouts import Blocks
from baton_engine.checkpoint.quantization.stored_inputs import AS_THEY_ARE, StoredInputs
from baton_engine.checkpoint.quantization.unpacking import (
    WORD_BITS,
    order_of_groups,
    pack_nibbles,
    require_divisible,
    unpack_words,
)
from baton_kernels.interface.quantized import Element, QuantizedWeight

_CODES: Final = "weight_packed"
_ZEROS: Final = "weight_zero_point"
_GROUPS: Final = "weight_g_idx"


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedIntegers:
    """Codes in words along the inputs, zero points in words along the outputs."""

    bits: int
    blocks: Blocks
    is_symmetric: bool
    inputs: StoredInputs = AS_THEY_ARE
    codes_name: str = _CODES

    def sizes(self, codes_shape: tuple[int, ...]) -> tuple[int, int]:
        return codes_shape[0], codes_shape[1] * WORD_BITS // self.bits

    def tensors(self, out_features: int, in_features: int) -> Mapping[str, StoredTensor]:
        per_word = WORD_BITS // self.bits
        require_divisible("in_features", in_features, per_word)
        scales = self.blocks.shape(out_features, in_features)
        require_divisible("in_features", in_features, self.blocks.group_size(in_features))
        stored = {
            _CODES: StoredTensor(dtypes=("I32",), shape=(out_features, in_features // per_word)),
            "weight_scale": StoredTensor(dtypes=FLOATS, shape=scales),
            "weight_shape": StoredTensor(dtypes=("I64", "I32"), shape=(2,), is_optional=True),
            _GROUPS: StoredTensor(dtypes=("I32",), shape=(in_features,), is_optional=True),
            **self.inputs.tensors(),
        }
        if not self.is_symmetric:
            require_divisible("out_features", scales[0], per_word)
            zeros = (scales[0] // per_word, scales[1])
            stored[_ZEROS] = StoredTensor(dtypes=("I32",), shape=zeros)
        return stored

    def decode(self, tensors: Mapping[str, Tensor], out_features: int, in_features: int) -> QuantizedWeight:
        codes = unpack_words(tensors[_CODES], self.bits)
        shape = tensors.get("weight_shape")
        if shape is not None and shape.tolist() != [out_features, in_features]:
            raise InvalidModelError(
                f"weight_shape is {shape.tolist()}; allowed: {[out_features, in_features]}"
            )
        groups, group_size = tensors.get(_GROUPS), self.blocks.group_size(in_features)
        if groups is not None and (groups == -1).all():
            groups = None
        order = order_of_groups(_GROUPS, groups, in_features, group_size)
        if order is not None:
            codes = codes[:, order]
        zeros = self._zeros(tensors, out_features, in_features)
        element = Element.INT4 if zeros is None else Element.UINT4
        return QuantizedWeight(
            element=element if self.bits == 4 else Element.INT8,
            codes=pack_nibbles(codes) if self.bits == 4 else (codes ^ 128).view(torch.int8),
            scales=self.blocks.per_output(tensors["weight_scale"], out_features, in_features),
            group_size=group_size,
            zeros=zeros,
            input_order=order,
            input_rounding=self.inputs.read(tensors),
        )

    def _zeros(self, tensors: Mapping[str, Tensor], out_features: int, in_features: int) -> Tensor | None:
        """Return zero points in units of the codes as they are kept: those of 8 bits are less 128."""
        if self.is_symmetric:
            return None
        rows, columns = self.blocks.shape(out_features, in_features)
        words = tensors[_ZEROS].view(-1, columns)
        zeros = unpack_words(words.T.contiguous(), self.bits).T[:rows].to(torch.int16)
        if self.bits == 8:
            zeros = zeros - 128
        return self.blocks.per_output(zeros, out_features, in_features)
