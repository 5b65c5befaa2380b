"""Checkpoints of `quant_method` "auto-round" or "intel/auto-round", in the layouts of other formats.

Source: auto-round 0.16: `packing_format` says which of the layouts; files without it have AutoGPTQ's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from baton_engine.checkpoint.config_fields import ConfigFields
from baton_engine.checkpoint.quantization.awq import AwqLayer
from baton_engine.checkpoint.quantization.exclusions import (
    NamePattern,
    compile_regex,
    is_within,
    read_names,
)
from baton_engine.checkpoint.quantization.fp8 import fp8_blocks
from baton_engine.checkpoint.quantization.gptq import GptqLayer
from baton_engine.checkpoint.quantization.layer_format import LayerFormat
from baton_engine.checkpoint.quantization.layouts import MXFloats
from baton_engine.checkpoint.quantization.stored_inputs import AS_THEY_ARE, StoredInputs
from baton_kernels.interface.quantized import InputElement, InputRounding, ScaleKind

_MX: Final = "auto_round:llm_compressor"
_FP8: Final = "auto_round:fp8"
_GPTQ: Final = "auto_round:auto_gptq"
_AWQ: Final = "auto_round:auto_awq"
_PACKINGS: Final = ("auto_round", _GPTQ, "auto_round:gptqmodel", _AWQ, _MX, _FP8)
_OTHER_NAMES: Final = {"auto": _GPTQ, "auto_round:gptq": _GPTQ, "auto_round:awq": _AWQ}
_SPECIAL: Final = frozenset("*+?^$()[]{}|\\")
"""Characters that make an expression of a name in `extra_config`."""
_UNQUANTIZED_BITS: Final = 16
_MX_LAYERS: Final = {4: (InputElement.E2M1, "weight_packed"), 8: (InputElement.E4M3, "weight")}
"""By the bits of weights: their element, and the name of the tensor of the codes."""
_MX_GROUP: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoRoundQuantization:
    """The quantization of a whole checkpoint."""

    layer: LayerFormat
    layers: Mapping[str, LayerFormat | None]
    """Ways of storing of single layers; None leaves one as it is."""
    patterns: tuple[tuple[NamePattern, LayerFormat | None], ...] = ()
    """Ways of storing of layers in whose names an expression occurs; the first one counts."""
    blocks: tuple[str, ...]
    """Modules whose layers are quantized; empty is all but the head."""
    method: str = "auto-round"

    def layer_format(self, name: str) -> LayerFormat | None:
        if name in self.layers:
            return self.layers[name]
        for pattern, stored in self.patterns:
            if pattern.occurs_in(name):
                return stored
        is_named = is_within(name, self.blocks) if self.blocks else name != "lm_head"
        return self.layer if is_named else None


def read_auto_round(fields: ConfigFields) -> AutoRoundQuantization:
    """Read the section of a config.json.

    Raises:
        InvalidModelError: a value is none that can be followed.
    """
    packing = fields.choice("packing_format", (*_PACKINGS, *_OTHER_NAMES), _GPTQ)
    packing = _OTHER_NAMES.get(packing, packing)
    blocks = fields.raw("block_name_to_quantize")
    if isinstance(blocks, str):
        fields = fields.updated({"block_name_to_quantize": [one.strip() for one in blocks.split(",")]})
    layers: dict[str, LayerFormat | None] = {}
    patterns = []
    own = fields.section_or_empty("extra_config")
    for name in own.names():
        settings = own.section(name)
        if settings is None:
            continue
        stored = _read_layer(settings, packing, fields)
        if _SPECIAL.isdisjoint(name):
            layers[name] = stored
        else:
            patterns.append((compile_regex(fields, "extra_config", name), stored))
    default = _read_layer(fields, packing, fields)
    if default is None:
        raise fields.refuse("bits", fields.raw("bits"), "2, 3, 4, 8")
    return AutoRoundQuantization(
        layer=default,
        layers=layers,
        patterns=tuple(patterns),
        blocks=read_names(fields, "block_name_to_quantize"),
    )


def _read_layer(fields: ConfigFields, packing: str, defaults: ConfigFields) -> LayerFormat | None:
    """Return how a layer is stored whose settings come before those of all; None leaves it as it is."""
    bits = fields.optional_integer("bits") or defaults.integer("bits", 4)
    if bits >= _UNQUANTIZED_BITS:
        return None
    if packing == _MX:
        return _read_mx(fields, defaults, bits)
    if packing == _FP8:
        return _read_fp8(fields, defaults)
    chosen = fields if fields.raw("group_size") is not None else defaults
    group_size = -1 if chosen.raw("group_size") == -1 else chosen.integer("group_size", 128)
    if packing == _AWQ:
        if bits != 4:
            raise fields.refuse("bits", bits, "4, packed as AWQ")
        return AwqLayer(group_size=group_size)
    if bits not in (2, 3, 4, 8):
        raise fields.refuse("bits", bits, "2, 3, 4, 8")
    return GptqLayer(bits=bits, group_size=group_size, is_v1=packing == _GPTQ)


def _read_mx(fields: ConfigFields, defaults: ConfigFields, bits: int) -> LayerFormat:
    """Return MXFP4 or MXFP8, whose inputs are rounded alike unless they are left as they are."""
    kind = _first(fields, defaults, "data_type")
    group_size = _first(fields, defaults, "group_size")
    if kind != "mx_fp" or group_size != _MX_GROUP or bits not in _MX_LAYERS:
        what = f"{kind} of {bits} bits in groups of {group_size}"
        raise fields.refuse("data_type", what, f"mx_fp of 4 or 8 bits in groups of {_MX_GROUP}, as {_MX}")
    element, codes_name = _MX_LAYERS[bits]
    input_bits = _first(fields, defaults, "act_bits")
    if input_bits in (None, _UNQUANTIZED_BITS):
        return MXFloats(element=element, codes_name=codes_name, inputs=AS_THEY_ARE)
    input_kind = _first(fields, defaults, "act_data_type")
    if input_bits not in _MX_LAYERS or input_kind != "mx_fp" or not _first(fields, defaults, "act_dynamic"):
        what = f"{input_bits}, of {input_kind}"
        raise fields.refuse("act_bits", what, "4 or 8, of mx_fp and act_dynamic, or 16")
    rounding = InputRounding(
        element=_MX_LAYERS[input_bits][0], group_size=_MX_GROUP, scale_kind=ScaleKind.E8M0
    )
    return MXFloats(element=element, codes_name=codes_name, inputs=StoredInputs(rounding=rounding))


def _read_fp8(fields: ConfigFields, defaults: ConfigFields) -> LayerFormat:
    """Return blocks of 8-bit floats, whose inputs are rounded in groups as wide."""
    chosen = fields if fields.raw("weight_block_size") is not None else defaults
    rows, columns = chosen.integers("weight_block_size", 2)
    if defaults.raw("activation_scheme") != "dynamic" or defaults.raw("fmt") != "e4m3":
        what = f"{defaults.raw('activation_scheme')}, fmt {defaults.raw('fmt')}"
        raise fields.refuse("activation_scheme", what, f"dynamic, fmt e4m3, as {_FP8}")
    return fp8_blocks(rows, columns)


def _first(fields: ConfigFields, defaults: ConfigFields, key: str) -> Any:
    """Return a layer's own setting, or else that of all."""
    own = fields.raw(key)
    return defaults.raw(key) if own is None else own
