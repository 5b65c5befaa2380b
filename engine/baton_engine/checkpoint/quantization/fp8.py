"""Checkpoints of `quant_method` "fp8": weights of 8-bit floats with one scale, or one for each block.

Source: the configurations that vLLM and Transformers read; `weight_scale_inv` multiplies, despite its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from baton_engine.checkpoint.config_fields import ConfigFields
from baton_engine.checkpoint.quantization.exclusions import is_within, read_names
from baton_engine.checkpoint.quantization.fp8_experts import separate_fp8_experts
from baton_engine.checkpoint.quantization.layer_format import FLOATS, LayerFormat, StoredTensor
from baton_engine.checkpoint.quantization.layouts import Blocks, ByteCodes
from baton_engine.checkpoint.quantization.stored_inputs import StoredInputs
from baton_engine.checkpoint.weight_files import TensorEntry
from baton_kernels.interface.quantized import Element, InputElement, InputRounding, QuantizedWeight

_SCHEMES: Final = ("dynamic", "static")
_TRANSFORMERS_NAMES: Final = {"weight_scale_inv": "weight_scale", "activation_scale": "input_scale"}
"""Names that Transformers has for the scales of one weight and of its inputs, each with the usual one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fp8Quantization:
    """The quantization of a whole checkpoint."""

    scheme: Fp8Tensor | ByteCodes
    ignored: tuple[str, ...]
    method: str = "fp8"

    def layer_format(self, name: str) -> LayerFormat | None:
        return None if is_within(name, self.ignored) or name == "lm_head" else self.scheme

    def arrange(self, entries: Mapping[str, TensorEntry]) -> dict[str, TensorEntry]:
        """Return tensors by the names of the scheme, also those that Transformers wrote, and experts apart.

        Raises:
            InvalidModelError: as `separate_fp8_experts`.
        """
        separate = separate_fp8_experts(entries)
        return {self._usual_name(name): entry for name, entry in separate.items()}

    def _usual_name(self, name: str) -> str:
        layer, _, part = name.rpartition(".")
        if isinstance(self.scheme, ByteCodes) or part not in _TRANSFORMERS_NAMES:
            return name
        return f"{layer}.{_TRANSFORMERS_NAMES[part]}"


def read_fp8(fields: ConfigFields) -> Fp8Quantization:
    """Read the section of a config.json.

    Raises:
        InvalidModelError: a value is none that can be followed.
    """
    ignored = read_names(fields, "ignored_layers", "modules_to_not_convert")
    inputs = fields.choice("activation_scheme", _SCHEMES, "dynamic")
    block = fields.raw("weight_block_size")
    if block is None:
        return Fp8Quantization(scheme=Fp8Tensor(has_input_scale=inputs == "static"), ignored=ignored)
    rows, columns = fields.integers("weight_block_size", 2)
    if inputs != "dynamic":
        raise fields.refuse("activation_scheme", inputs, "dynamic, with weight_block_size")
    return Fp8Quantization(scheme=fp8_blocks(rows, columns), ignored=ignored)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fp8Tensor:
    """A weight with one scale; inputs are rounded with a scale of the file, or one for each token."""

    has_input_scale: bool
    codes_name: str = "weight"

    def sizes(self, codes_shape: tuple[int, ...]) -> tuple[int, int]:
        return codes_shape[0], codes_shape[1]

    def tensors(self, out_features: int, in_features: int) -> Mapping[str, StoredTensor]:
        return {
            "weight": StoredTensor(dtypes=("F8_E4M3",), shape=(out_features, in_features)),
            "weight_scale": StoredTensor(dtypes=FLOATS, shape=()),
            **self._inputs.tensors(),
        }

    def decode(self, tensors: Mapping[str, Tensor], out_features: int, in_features: int) -> QuantizedWeight:
        return QuantizedWeight(
            element=Element.E4M3,
            codes=tensors["weight"].view(torch.uint8),
            scales=tensors["weight_scale"].float().expand(out_features, 1).contiguous(),
            group_size=in_features,
            input_rounding=self._inputs.read(tensors),
        )

    @property
    def _inputs(self) -> StoredInputs:
        rounding = InputRounding(element=InputElement.E4M3)
        return StoredInputs(rounding=rounding, scale="input_scale" if self.has_input_scale else "")


def fp8_blocks(rows: int, columns: int) -> ByteCodes:
    """Return a weight with a scale for each block; inputs are rounded in groups as wide as one."""
    return ByteCodes(
        element=Element.E4M3,
        blocks=Blocks(rows=rows, columns=columns),
        scale="weight_scale_inv",
        has_wide_scales=True,
        inputs=StoredInputs(rounding=InputRounding(element=InputElement.E4M3, group_size=columns)),
    )
