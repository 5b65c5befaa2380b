"""Checkpoints of `quant_method` "auto-round" or "intel/auto-round", in the layouts of other formats.

Source: auto-round 0.16: `packing_format` says which of the layouts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from baton_engine.checkpoint.config_fields import ConfigFields
from baton_engine.checkpoint.quantization.awq import AwqLayer
from baton_engine.checkpoint.quantization.exclusions import is_within, read_names
from baton_engine.checkpoint.quantization.gptq import GptqLayer
from baton_engine.checkpoint.quantization.layer_format import LayerFormat

_PACKINGS: Final = ("auto_round", "auto_round:auto_gptq", "auto_round:gptqmodel", "auto_round:auto_awq")
_UNQUANTIZED_BITS: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoRoundQuantization:
    """The quantization of a whole checkpoint."""

    layer: LayerFormat
    layers: tuple[tuple[str, LayerFormat | None], ...]
    """Ways of storing of single layers; None leaves one as it is."""
    blocks: tuple[str, ...]
    """Modules whose layers are quantized; empty is all but the head."""
    method: str = "auto-round"

    def layer_format(self, name: str) -> LayerFormat | None:
        for layer, stored in self.layers:
            if name == layer:
                return stored
        is_named = is_within(name, self.blocks) if self.blocks else name != "lm_head"
        return self.layer if is_named else None


def read_auto_round(fields: ConfigFields) -> AutoRoundQuantization:
    """Read the section of a config.json.

    Raises:
        InvalidModelError: a value is none that can be followed.
    """
    packing = fields.choice("packing_format", _PACKINGS, "")
    if packing not in _PACKINGS:
        raise fields.refuse("packing_format", packing or None, ", ".join(_PACKINGS))
    blocks = fields.raw("block_name_to_quantize")
    if isinstance(blocks, str):
        fields = fields.updated({"block_name_to_quantize": [one.strip() for one in blocks.split(",")]})
    layers = []
    own = fields.section("extra_config")
    for name in own.names() if own else ():
        assert own is not None
        settings = own.section(name)
        if settings is not None:
            layers.append((name, _read_layer(settings, packing, fields)))
    default = _read_layer(fields, packing, fields)
    if default is None:
        raise fields.refuse("bits", fields.raw("bits"), "2, 3, 4, 8")
    return AutoRoundQuantization(
        layer=default, layers=tuple(layers), blocks=read_names(fields, "block_name_to_quantize")
    )


def _read_layer(fields: ConfigFields, packing: str, defaults: ConfigFields) -> LayerFormat | None:
    """Return how a layer is stored whose settings come before those of all; None leaves it as it is."""
    bits = fields.optional_integer("bits") or defaults.integer("bits", 4)
    if bits >= _UNQUANTIZED_BITS:
        return None
    chosen = fields if fields.raw("group_size") is not None else defaults
    group_size = -1 if chosen.raw("group_size") == -1 else chosen.integer("group_size", 128)
    if packing == "auto_round:auto_awq":
        if bits != 4:
            raise fields.refuse("bits", bits, "4, packed as AWQ")
        return AwqLayer(group_size=group_size)
    if bits not in (2, 3, 4, 8):
        raise fields.refuse("bits", bits, "2, 3, 4, 8")
    return GptqLayer(bits=bits, group_size=group_size, is_v1=packing == "auto_round:auto_gptq")
