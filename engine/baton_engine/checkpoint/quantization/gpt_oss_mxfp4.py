"""Checkpoints of `quant_method` "mxfp4", as GPT-OSS is published: experts of 4-bit floats in groups of 32.

A projection of all experts is one layer, the outputs of its experts side by side. Everything else stays as it
is, whatever `modules_to_not_convert` says.

Source: `integrations/mxfp4.py` of Transformers 5.23.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from torch import Tensor

from baton_engine.checkpoint.config_fields import ConfigFields
from baton_engine.checkpoint.quantization.exclusions import matches_glob, read_names
from baton_engine.checkpoint.quantization.layer_format import FUSED_CODES, LayerFormat, StoredTensor
from baton_engine.checkpoint.quantization.layouts import exponents
from baton_engine.checkpoint.quantization.unpacking import require_divisible
from baton_kernels.interface.quantized import Element, QuantizedWeight

_GROUP: Final = 32
_PROJECTIONS: Final = (".experts.gate_up_proj", ".experts.down_proj")


@dataclass(frozen=True, slots=True, kw_only=True)
class MXFP4Experts:
    """Codes `[out_features, groups, 16]` of each expert, the even input in the lower bits, and exponents."""

    codes_name: str = FUSED_CODES

    def sizes(self, codes_shape: tuple[int, ...]) -> tuple[int, int]:
        return codes_shape[0], codes_shape[1] * 2

    def tensors(self, out_features: int, in_features: int) -> Mapping[str, StoredTensor]:
        require_divisible("in_features", in_features, _GROUP)
        groups = in_features // _GROUP
        return {
            FUSED_CODES: StoredTensor(dtypes=("U8",), shape=(out_features, groups, _GROUP // 2)),
            "_scales": StoredTensor(dtypes=("U8", "F8_E8M0"), shape=(out_features, groups)),
        }

    def decode(self, tensors: Mapping[str, Tensor], out_features: int, in_features: int) -> QuantizedWeight:
        return QuantizedWeight(
            element=Element.E2M1,
            codes=tensors[FUSED_CODES],
            scales=exponents("_scales", tensors["_scales"]),
            group_size=_GROUP,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GptOssQuantization:
    """The quantization of a whole checkpoint."""

    ignored: tuple[str, ...]
    """Modules that stay as they are: names, ends of names, or patterns where `*` is any text."""
    method: str = "mxfp4"

    def layer_format(self, name: str) -> LayerFormat | None:
        if not name.endswith(_PROJECTIONS):
            return None
        module = name.rpartition(".")[0]
        inside = [*self.ignored, *(f"{pattern}.*" for pattern in self.ignored)]
        is_ignored = matches_glob(module, inside) or module.endswith(self.ignored)
        return None if is_ignored else MXFP4Experts()


def read_gpt_oss_mxfp4(fields: ConfigFields) -> GptOssQuantization:
    """Read the section of a config.json.

    Raises:
        InvalidModelError: a value is none that can be followed.
    """
    return GptOssQuantization(ignored=read_names(fields, "modules_to_not_convert"))
