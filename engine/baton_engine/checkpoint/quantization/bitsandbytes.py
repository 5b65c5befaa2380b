"""Checkpoints of `quant_method` "bitsandbytes": nf4 and fp4 with a scale for each block, and int8 by outputs.

Source: bitsandbytes 0.50, as Transformers saves its layers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from baton_core.errors import InvalidModelError
from baton_engine.checkpoint.config_fields import ConfigFields
from baton_engine.checkpoint.quantization.exclusions import contains, read_names
from baton_engine.checkpoint.quantization.layer_format import FLOATS, LayerFormat, StoredTensor
from baton_kernels.interface.quantized import TABLES, Element, QuantizedWeight

_NESTED_BLOCK: Final = 256
_NESTED: Final = ("weight.nested_absmax", "weight.nested_quant_map")
_INT8_MAX: Final = 127


@dataclass(frozen=True, slots=True, kw_only=True)
class FourBitLayer:
    """Codes in one column `[out_features * in_features / 2, 1]`, the first of two in the upper bits."""

    element: Element
    is_double: bool
    """Scales are themselves codes of 8 bits."""
    codes_name: str = "weight"

    @property
    def _state(self) -> str:
        return f"weight.quant_state.bitsandbytes__{self.element}"

    def sizes(self, codes_shape: tuple[int, ...]) -> None:
        """Return None: the shape of the codes does not tell that of the weight."""
        return

    def tensors(self, out_features: int, in_features: int) -> Mapping[str, StoredTensor]:
        stored = {
            "weight": StoredTensor(dtypes=("U8",), shape=(out_features * in_features // 2, 1)),
            "weight.absmax": StoredTensor(dtypes=("U8" if self.is_double else "F32",), shape=None),
            "weight.quant_map": StoredTensor(dtypes=("F32",), shape=(16,)),
            self._state: StoredTensor(dtypes=("U8",), shape=None),
        }
        if self.is_double:
            stored[_NESTED[0]] = StoredTensor(dtypes=("F32",), shape=None)
            stored[_NESTED[1]] = StoredTensor(dtypes=("F32",), shape=(256,))
        return stored

    def decode(self, tensors: Mapping[str, Tensor], out_features: int, in_features: int) -> QuantizedWeight:
        state = self._read_state(tensors[self._state])
        if state.get("shape") != [out_features, in_features]:
            raise self._refuse(state, f"shape {[out_features, in_features]}")
        block = state.get("blocksize")
        if not isinstance(block, int) or block < 1 or in_features % block:
            raise self._refuse(state, f"a blocksize that divides {in_features}, the inputs of a row")
        if tuple(tensors["weight.quant_map"].tolist()) != TABLES[self.element]:
            raise InvalidModelError(f"weight.quant_map is another table; allowed: that of {self.element}")
        packed = tensors["weight"].view(out_features, in_features // 2)
        scales = self._scales(tensors, state)
        num_blocks = out_features * in_features // block
        if scales.shape != (num_blocks,):
            allowed = f"{num_blocks}, for blocks of {block}"
            raise InvalidModelError(f"weight.absmax has {scales.numel()} numbers; allowed: {allowed}")
        return QuantizedWeight(
            element=self.element,
            codes=packed >> 4 | packed << 4,
            scales=scales.view(out_features, in_features // block),
            group_size=block,
        )

    def _scales(self, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> Tensor:
        absmax = tensors["weight.absmax"]
        if not self.is_double:
            return absmax
        offset = state.get("nested_offset")
        if not isinstance(offset, float) or state.get("nested_blocksize") != _NESTED_BLOCK:
            raise self._refuse(state, f"nested_offset and nested_blocksize {_NESTED_BLOCK}")
        factors = tensors[_NESTED[0]].repeat_interleave(_NESTED_BLOCK)[: len(absmax)]
        if len(factors) != len(absmax):
            text = f"{_NESTED[0]} has {len(tensors[_NESTED[0]])} numbers"
            raise InvalidModelError(f"{text}; allowed: one for {_NESTED_BLOCK} of weight.absmax")
        return tensors[_NESTED[1]][absmax.long()] * factors + offset

    def _read_state(self, stored: Tensor) -> dict[str, Any]:
        try:
            state = json.loads(bytes(stored.tolist()))
        except (ValueError, RecursionError):
            state = None
        if not isinstance(state, dict):
            text = f"{self._state} is no JSON object; allowed: what bitsandbytes writes"
            raise InvalidModelError(text)
        return state

    def _refuse(self, state: Mapping[str, Any], allowed: str) -> InvalidModelError:
        return InvalidModelError(f"{self._state} is {state!r:.200}; allowed: {allowed}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Int8Layer:
    """Codes of 8 bits with the largest magnitude of each output. Inputs stay as they are.

    bitsandbytes itself rounds inputs below a threshold, which depends on the other rows of a step.
    """

    codes_name: str = "weight"

    def sizes(self, codes_shape: tuple[int, ...]) -> tuple[int, int]:
        return codes_shape[0], codes_shape[1]

    def tensors(self, out_features: int, in_features: int) -> Mapping[str, StoredTensor]:
        return {
            "weight": StoredTensor(dtypes=("I8",), shape=(out_features, in_features)),
            "SCB": StoredTensor(dtypes=FLOATS, shape=(out_features,)),
            "weight_format": StoredTensor(dtypes=("U8",), shape=(), is_optional=True),
        }

    def decode(self, tensors: Mapping[str, Tensor], out_features: int, in_features: int) -> QuantizedWeight:
        if "weight_format" in tensors and int(tensors["weight_format"]) != 0:
            raise InvalidModelError(f"weight_format is {int(tensors['weight_format'])}; allowed: 0, by rows")
        return QuantizedWeight(
            element=Element.INT8,
            codes=tensors["weight"],
            scales=tensors["SCB"].float().view(-1, 1),
            group_size=in_features,
            output_scales=torch.full((out_features,), 1 / _INT8_MAX),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BitsandbytesQuantization:
    """The quantization of a whole checkpoint."""

    layer: LayerFormat
    ignored: tuple[str, ...]
    method: str = "bitsandbytes"

    def layer_format(self, name: str) -> LayerFormat | None:
        return None if name == "lm_head" or contains(name, self.ignored) else self.layer


def read_bitsandbytes(fields: ConfigFields) -> BitsandbytesQuantization:
    """Read the section of a config.json.

    Raises:
        InvalidModelError: a value is none that can be followed.
    """
    ignored = read_names(fields, "llm_int8_skip_modules")
    if fields.boolean("load_in_8bit", False):
        return BitsandbytesQuantization(layer=Int8Layer(), ignored=ignored)
    if not fields.boolean("load_in_4bit", False):
        raise fields.refuse("load_in_4bit", fields.raw("load_in_4bit"), "true, or load_in_8bit true")
    element = Element(fields.choice("bnb_4bit_quant_type", (Element.NF4, Element.FP4), Element.FP4))
    is_double = fields.boolean("bnb_4bit_use_double_quant", False)
    layer = FourBitLayer(element=element, is_double=is_double)
    return BitsandbytesQuantization(layer=layer, ignored=ignored)
