"""Checkpoints of `quant_method` "compressed-tensors", as llmcompressor writes them.

Source: compressed-tensors 0.19 and 0.20.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from baton_engine.checkpoint.config_fields import ConfigFields
from baton_engine.checkpoint.quantization.exclusions import NamePattern, compile_regex, read_names
from baton_engine.checkpoint.quantization.layer_format import LayerFormat
from baton_engine.checkpoint.quantization.layouts import (
    NVFP4,
    PER_CHANNEL,
    Blocks,
    ByteCodes,
    MXFloats,
)
from baton_engine.checkpoint.quantization.packed_integers import PackedIntegers
from baton_engine.checkpoint.quantization.stored_inputs import AS_THEY_ARE, StoredInputs
from baton_kernels.interface.quantized import Element, InputElement, InputRounding, ScaleKind

_REGEX: Final = "re:"
_CLASSES: Final = ("Linear",)
_PACKED: Final = "weight_packed"
_FORMATS: Final = (
    *("float-quantized", "int-quantized", "naive-quantized", "pack-quantized"),
    *("mxfp4-pack-quantized", "mxfp8-quantized", "nvfp4-pack-quantized"),
)
_GROUPS: Final = {"mxfp4-pack-quantized": 32, "mxfp8-quantized": 32, "nvfp4-pack-quantized": 16}
"""Inputs with one scale, where the format has no others."""
_ORDERS: Final = ("static", "weight", "dynamic", "group")
"""With the last two a tensor has the group of each input."""
_STRATEGIES: Final = ("tensor", "channel", "group", "block", "token", "tensor_group")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Layers that a group or the list of those to ignore names: a name, a regular expression or a class."""

    text: str
    expression: NamePattern | None = None

    def matches(self, layer: str) -> bool:
        if self.expression is not None:
            return self.expression.matches(layer)
        return layer == self.text or self.text in _CLASSES

    @property
    def order(self) -> tuple[bool, bool, str]:
        """Sort key of the targets of which the first that matches decides."""
        return self.text in _CLASSES, self.expression is not None, self.text


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressedTensors:
    """The quantization of a whole checkpoint: groups of layers, each stored in one way."""

    formats: Mapping[Target, LayerFormat]
    """By target, in the order in which the package tries them: names, expressions, classes."""
    ignored: tuple[Target, ...]
    method: str = "compressed-tensors"

    def layer_format(self, name: str) -> LayerFormat | None:
        if any(target.matches(name) for target in self.ignored):
            return None
        return next((stored for target, stored in self.formats.items() if target.matches(name)), None)


def read_compressed_tensors(fields: ConfigFields) -> CompressedTensors:
    """Read the section of a config.json.

    Raises:
        InvalidModelError: a value is none that can be followed.
    """
    status = fields.choice("quantization_status", ("compressed", "frozen"), "compressed")
    if status != "compressed":
        raise fields.refuse("quantization_status", status, "compressed")
    for key in ("transform_config", "sparsity_config"):
        if fields.raw(key):
            raise fields.refuse(key, fields.raw(key), "none: such weights cannot be read")
    cache = _read_arguments(fields, "kv_cache_scheme")
    if cache and (not cache.is_float or cache.num_bits != 8 or cache.strategy != "tensor"):
        raise fields.refuse("kv_cache_scheme", fields.raw("kv_cache_scheme"), "float of 8 bits per tensor")
    ignored = _read_targets(fields, "ignore")
    sections = fields.section("config_groups")
    if sections is None:
        raise fields.refuse("config_groups", fields.raw("config_groups"), "at least one group of layers")
    formats: dict[Target, LayerFormat] = {}
    for name in sections.names():
        group = sections.section(name)
        if group is None:
            raise sections.refuse(name, None, "a group of layers")
        default = fields.choice("format", (*_FORMATS, "mixed-precision"), "")
        stored = group.choice("format", _FORMATS, default)
        if stored not in _FORMATS:
            raise group.refuse("format", stored or None, ", ".join(_FORMATS))
        scheme = _read_scheme(group, stored)
        formats.update((target, scheme) for target in _read_targets(group, "targets"))
    ordered = sorted(formats.items(), key=lambda one: one[0].order)
    return CompressedTensors(formats=dict(ordered), ignored=ignored)


def _read_targets(fields: ConfigFields, key: str) -> tuple[Target, ...]:
    return tuple(
        Target(text=name, expression=compile_regex(fields, key, name.removeprefix(_REGEX)))
        if name.startswith(_REGEX)
        else Target(text=name)
        for name in read_names(fields, key)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """How the numbers of a weight, or of inputs, are quantized."""

    num_bits: int
    is_float: bool
    strategy: str
    blocks: Blocks
    is_symmetric: bool
    is_dynamic: bool


def _read_arguments(group: ConfigFields, key: str) -> Arguments | None:
    fields = group.section(key)
    if fields is None:
        return None
    strategy = fields.choice("strategy", _STRATEGIES, "group" if fields.raw("group_size") else "tensor")
    block = Blocks()
    if strategy == "block":
        rows, columns = fields.integers("block_structure", 2)
        block = Blocks(rows=rows, columns=columns)
    elif strategy in ("group", "tensor_group"):
        block = Blocks(rows=1, columns=fields.integer("group_size"))
    elif strategy in ("channel", "token"):
        block = PER_CHANNEL
    if fields.raw("actorder") not in (None, False, *_ORDERS):
        raise fields.refuse("actorder", fields.raw("actorder"), f"null, {', '.join(_ORDERS)}")
    dynamic = fields.raw("dynamic")
    if dynamic not in (None, True, False, "local"):
        raise fields.refuse("dynamic", dynamic, "true, false, local")
    return Arguments(
        num_bits=fields.integer("num_bits", 8),
        is_float=fields.choice("type", ("int", "float"), "int") == "float",
        strategy=strategy,
        blocks=block,
        is_symmetric=fields.boolean("symmetric", True),
        is_dynamic=bool(dynamic),
    )


def _read_scheme(group: ConfigFields, stored: str) -> LayerFormat:
    weights, inputs = _read_arguments(group, "weights"), _read_arguments(group, "input_activations")
    if weights is None:
        raise group.refuse("weights", None, "how the weights of the group are quantized")
    if group.section("output_activations") is not None:
        raise group.refuse("output_activations", group.raw("output_activations"), "null")
    needed = _GROUPS.get(stored, weights.blocks.columns)
    if weights.blocks.columns != needed:
        what = f"groups of {weights.blocks.columns} in {stored}"
        raise group.refuse("weights", what, f"groups of {needed}")
    match stored, weights.is_float, weights.num_bits:
        case "mxfp4-pack-quantized", True, 4:
            rounding = _read_inputs(group, inputs, is_mx=True)
            return MXFloats(element=InputElement.E2M1, codes_name=_PACKED, inputs=rounding)
        case "mxfp8-quantized", True, 8:
            rounding = _read_inputs(group, inputs, is_mx=True)
            return MXFloats(element=InputElement.E4M3, codes_name="weight", inputs=rounding)
        case "nvfp4-pack-quantized", True, 4:
            return NVFP4(
                codes_name=_PACKED,
                global_scale="weight_global_scale",
                is_divisor=True,
                inputs=_read_inputs(group, inputs),
            )
        case "pack-quantized", False, 4 | 8:
            return PackedIntegers(
                bits=weights.num_bits,
                blocks=weights.blocks,
                is_symmetric=weights.is_symmetric,
                inputs=_read_inputs(group, inputs),
            )
        case "float-quantized" | "naive-quantized", True, 8:
            return ByteCodes(element=Element.E4M3, blocks=weights.blocks, inputs=_read_inputs(group, inputs))
        case "int-quantized" | "naive-quantized", False, 4 | 8:
            return ByteCodes(
                element=Element.INT8 if weights.num_bits == 8 else Element.INT4,
                blocks=weights.blocks,
                zero_point="" if weights.is_symmetric else "weight_zero_point",
                inputs=_read_inputs(group, inputs),
            )
    what = f"{'float' if weights.is_float else 'int'} of {weights.num_bits} bits in {stored}"
    allowed = "int of 4 or 8 bits, float of 8 bits, MXFP4, MXFP8, NVFP4, each in its format"
    raise group.refuse("weights", what, allowed)


def _read_inputs(group: ConfigFields, inputs: Arguments | None, *, is_mx: bool = False) -> StoredInputs:
    """Return how inputs of a group are rounded."""
    if inputs is None:
        return AS_THEY_ARE
    if not inputs.is_float:
        return _read_int8_inputs(group, inputs)
    group_size = inputs.blocks.columns
    needed = 32 if is_mx else 16 if inputs.num_bits == 4 else group_size
    if group_size != needed or (not inputs.is_dynamic and inputs.strategy not in ("tensor", "tensor_group")):
        what = f"float of {inputs.num_bits} bits per {inputs.strategy}, groups of {group_size}"
        raise group.refuse("input_activations", what, f"groups of {needed}, or one scale where it is stored")
    if inputs.num_bits == 4 and is_mx:
        rounding = InputRounding(element=InputElement.E2M1, group_size=32, scale_kind=ScaleKind.E8M0)
        return StoredInputs(rounding=rounding)
    if inputs.num_bits == 4:
        rounding = InputRounding(element=InputElement.E2M1, group_size=16, scale_kind=ScaleKind.E4M3)
        return StoredInputs(rounding=rounding, global_scale="input_global_scale")
    if inputs.num_bits != 8:
        raise group.refuse("input_activations", f"float of {inputs.num_bits} bits", "4 or 8 bits")
    if is_mx:
        # The package rounds the largest of a group as for MXFP4.
        rounding = InputRounding(
            element=InputElement.E4M3, group_size=32, scale_kind=ScaleKind.E8M0, scale_mantissa_bits=1
        )
        return StoredInputs(rounding=rounding)
    rounding = InputRounding(element=InputElement.E4M3, group_size=group_size)
    return StoredInputs(rounding=rounding, scale="" if inputs.is_dynamic else "input_scale")


def _read_int8_inputs(group: ConfigFields, inputs: Arguments) -> StoredInputs:
    if inputs.num_bits != 8 or inputs.strategy not in ("tensor", "token"):
        what = f"int of {inputs.num_bits} bits per {inputs.strategy}"
        raise group.refuse("input_activations", what, "int of 8 bits per tensor or token")
    if inputs.is_dynamic:
        rounding = InputRounding(element=InputElement.INT8, is_symmetric=inputs.is_symmetric)
        return StoredInputs(rounding=rounding)
    zero_point = "" if inputs.is_symmetric else "input_zero_point"
    rounding = InputRounding(element=InputElement.INT8)
    return StoredInputs(rounding=rounding, scale="input_scale", zero_point=zero_point)
