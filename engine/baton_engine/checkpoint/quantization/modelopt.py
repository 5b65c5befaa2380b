"""Checkpoints of `quant_method` "modelopt", as NVIDIA's Model Optimizer writes them: fp8 and NVFP4.

Source: nvidia-modelopt 0.47.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from baton_engine.checkpoint.config_fields import ConfigFields
from baton_engine.checkpoint.quantization.exclusions import is_within, matches_glob, read_names
from baton_engine.checkpoint.quantization.layer_format import LayerFormat
from baton_engine.checkpoint.quantization.layouts import NVFP4, PER_CHANNEL, PER_TENSOR, ByteCodes, MXFloats
from baton_engine.checkpoint.quantization.stored_inputs import StoredInputs
from baton_kernels.interface.quantized import Element, InputElement, InputRounding, ScaleKind

_MX: Final = InputRounding(element=InputElement.E4M3, group_size=32, scale_kind=ScaleKind.E8M0)
_NVFP4: Final = InputRounding(element=InputElement.E2M1, group_size=16, scale_kind=ScaleKind.E4M3)
_FP8: Final = InputRounding(element=InputElement.E4M3)
_LAYERS: Final[dict[str, LayerFormat]] = {
    "FP8": ByteCodes(
        element=Element.E4M3,
        blocks=PER_TENSOR,
        inputs=StoredInputs(rounding=_FP8, scale="input_scale"),
    ),
    "FP8_PER_CHANNEL_PER_TOKEN": ByteCodes(
        element=Element.E4M3, blocks=PER_CHANNEL, inputs=StoredInputs(rounding=_FP8)
    ),
    "NVFP4": NVFP4(
        codes_name="weight",
        global_scale="weight_scale_2",
        is_divisor=False,
        inputs=StoredInputs(rounding=_NVFP4, global_scale="input_scale", is_reciprocal=True),
    ),
    "MXFP8": MXFloats(element=InputElement.E4M3, codes_name="weight", inputs=StoredInputs(rounding=_MX)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptQuantization:
    """The quantization of a whole checkpoint."""

    layer: LayerFormat
    ignored: tuple[str, ...]
    method: str = "modelopt"

    def layer_format(self, name: str) -> LayerFormat | None:
        is_ignored = is_within(name, self.ignored) or matches_glob(name, self.ignored)
        return None if is_ignored else self.layer


def read_modelopt(fields: ConfigFields) -> ModelOptQuantization:
    """Read the section of a config.json.

    Raises:
        InvalidModelError: a value is none that can be followed.
    """
    algorithm = fields.choice("quant_algo", tuple(_LAYERS))
    ignored = read_names(fields, "ignore", "exclude_modules")
    return ModelOptQuantization(layer=_LAYERS[algorithm], ignored=ignored)
