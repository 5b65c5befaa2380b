"""Integers of 4 bits as Quark packs them: eight in a word, along the outputs or along the inputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from baton_core.errors import InvalidModelError
from baton_engine.checkpoint.quantization.layer_format import FLOATS, StoredTensor
from baton_engine.checkpoint.quantization.stored_inputs import AS_THEY_ARE, StoredInputs
from baton_engine.checkpoint.quantization.unpacking import (
    pack_nibbles,
    require_divisible,
    unpack_awq,
    unpack_words,
)
from baton_kernels.interface.quantized import Element, QuantizedWeight

_PER_WORD: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarkInt4:
    """Codes of 4 bits: packed along the outputs where inputs have groups, else along the inputs."""

    group_size: int | None
    """Inputs with one scale; None is all of an output."""
    is_signed: bool
    is_reordered: bool
    """Words hold their codes in AWQ's order."""
    has_second_scale: bool = False
    """Scales of outputs are beside a scale of the whole: of fp8, in which the weight was first."""
    inputs: StoredInputs = AS_THEY_ARE
    codes_name: str = "weight"

    def sizes(self, codes_shape: tuple[int, ...]) -> tuple[int, int]:
        if self.group_size is None:
            return codes_shape[0], codes_shape[1] * _PER_WORD
        return codes_shape[1] * _PER_WORD, codes_shape[0]

    def tensors(self, out_features: int, in_features: int) -> Mapping[str, StoredTensor]:
        require_divisible("out_features", out_features, _PER_WORD)
        words = out_features // _PER_WORD
        codes: tuple[int, ...]
        scales: tuple[int, ...]
        zeros: tuple[int, ...]
        if self.group_size is None:
            require_divisible("in_features", in_features, _PER_WORD)
            codes, scales, zeros = (out_features, in_features // _PER_WORD), (out_features,), (words,)
        else:
            require_divisible("in_features", in_features, self.group_size)
            groups = in_features // self.group_size
            codes, scales, zeros = (in_features, words), (groups, out_features), (groups, words)
        suffix = "_2" if self.has_second_scale else ""
        stored = {
            "weight": StoredTensor(dtypes=("I32",), shape=codes),
            f"weight_scale{suffix}": StoredTensor(dtypes=FLOATS, shape=scales),
            f"weight_zero_point{suffix}": StoredTensor(dtypes=("I32",), shape=zeros, is_optional=True),
            **self.inputs.tensors(),
        }
        if self.has_second_scale:
            stored["weight_scale"] = StoredTensor(dtypes=FLOATS, shape=())
        return stored

    def decode(self, tensors: Mapping[str, Tensor], out_features: int, in_features: int) -> QuantizedWeight:
        suffix = "_2" if self.has_second_scale else ""
        codes, scales = self._unpack(tensors["weight"]), tensors[f"weight_scale{suffix}"].float()
        zeros = tensors.get(f"weight_zero_point{suffix}")
        if self.group_size is None:
            scales = scales.view(-1, 1)
            zeros = None if zeros is None else self._unpack(zeros.view(1, -1)).view(-1, 1)
        else:
            codes, scales = codes.T, scales.view(-1, out_features).T
            zeros = None if zeros is None else self._unpack(zeros.view(len(scales.T), -1)).T
        if self.is_signed:
            if zeros is not None and zeros.any():
                raise InvalidModelError(f"weight_zero_point{suffix} is not 0; allowed: 0, with int4")
            codes, zeros = codes ^ 8, None
        return QuantizedWeight(
            element=Element.INT4 if self.is_signed else Element.UINT4,
            codes=pack_nibbles(codes.contiguous()),
            scales=scales.contiguous(),
            group_size=self.group_size or in_features,
            zeros=None if zeros is None else zeros.to(torch.int16).contiguous(),
            output_scales=self._output_scales(tensors, out_features),
            input_rounding=self.inputs.read(tensors),
        )

    def _unpack(self, words: Tensor) -> Tensor:
        return unpack_awq(words) if self.is_reordered else unpack_words(words, 4)

    def _output_scales(self, tensors: Mapping[str, Tensor], out_features: int) -> Tensor | None:
        if not self.has_second_scale:
            return None
        return tensors["weight_scale"].float().view(1).repeat(out_features)
