"""Checkpoints of `quant_method` "quark", as AMD Quark writes them; each layer may have a scheme of its own.

Source: amd-quark 0.13.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final

from baton_engine.checkpoint.config_fields import ConfigFields
from baton_engine.checkpoint.quantization.exclusions import read_names
from baton_engine.checkpoint.quantization.layer_format import LayerFormat
from baton_engine.checkpoint.quantization.layouts import (
    NVFP4,
    PER_CHANNEL,
    PER_TENSOR,
    Blocks,
    ByteCodes,
    MXFloats,
)
from baton_engine.checkpoint.quantization.quark_int4 import QuarkInt4
from baton_engine.checkpoint.quantization.stored_inputs import AS_THEY_ARE, StoredInputs
from baton_kernels.interface.quantized import Element, InputElement, InputRounding, ScaleKind

_MX: Final = {"fp4": InputElement.E2M1, "fp6_e2m3": InputElement.E2M3, "fp6_e3m2": InputElement.E3M2}
_DTYPES: Final = (*_MX, "fp8_e4m3", "int8", "int4", "uint4")
_SCHEMES: Final = ("per_tensor", "per_channel", "per_group", "per_block")
_LINEAR: Final = ("Linear", "nn.Linear", "torch.nn.Linear", "<class 'torch.nn.modules.linear.Linear'>")
_AXES: Final = {"per_channel": (0, 1), "per_group": (-1, 1)}
"""Axes along which scales may differ: of outputs, of the tokens of inputs, and of groups of inputs."""
_QUERIES: Final = "*q_proj"
_MX_GROUP: Final = 32
_NVFP4_GROUP: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarkQuantization:
    """The quantization of a whole checkpoint."""

    layers: tuple[tuple[str, LayerFormat | None], ...]
    """Ways of storing by patterns of names, which come before the one of all others."""
    default: LayerFormat | None
    excluded: tuple[str, ...]
    method: str = "quark"

    def layer_format(self, name: str) -> LayerFormat | None:
        if any(name == pattern or fnmatchcase(name, pattern) for pattern in self.excluded):
            return None
        return next((one for pattern, one in self.layers if fnmatchcase(name, pattern)), self.default)


def read_quark(fields: ConfigFields) -> QuarkQuantization:
    """Read the section of a config.json.

    Raises:
        InvalidModelError: a value is none that can be followed.
    """
    export = fields.section("export")
    if export is None:
        raise fields.refuse("export", fields.raw("export"), "how the weights are packed")
    export.choice("weight_format", ("real_quantized",), "real_quantized")
    cached = read_names(export, "kv_cache_group")
    reader = _Reader(
        is_reordered=export.choice("pack_method", ("reorder", "order"), "reorder") == "reorder",
        attention_patterns=(*cached, _QUERIES) if cached else (),
    )
    by_name = fields.section_or_empty("layer_quant_config")
    layers = tuple((pattern, reader.read(by_name, pattern)) for pattern in by_name.names())
    default = reader.read(fields, "global_quant_config")
    by_type = fields.section_or_empty("layer_type_quant_config")
    for name in by_type.names():
        if name in _LINEAR:
            default = reader.read(by_type, name)
    excluded = read_names(fields, "exclude")
    return QuarkQuantization(layers=layers, default=default, excluded=excluded)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Spec:
    """How the numbers of a tensor are quantized."""

    dtype: str
    scheme: str
    axis: Any
    group_size: int | None
    blocks: Blocks
    is_symmetric: bool
    is_dynamic: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reader:
    """Reads the schemes of layers."""

    is_reordered: bool
    attention_patterns: Sequence[str]
    """Layers whose outputs may be rounded: those of the KV cache and, where it is, those of queries."""

    def read(self, fields: ConfigFields, key: str) -> LayerFormat | None:
        """Return how the layers are stored that the section `key` describes; None leaves them as they are."""
        config = fields.section(key)
        if config is None:
            return None
        if config.raw("bias") is not None:
            raise config.refuse("bias", config.raw("bias"), "null")
        outputs = _read_specs(config, "output_tensors")
        is_attention = any(fnmatchcase(key, pattern) for pattern in self.attention_patterns)
        if outputs and not (is_attention and [spec.dtype for spec in outputs] == ["fp8_e4m3"]):
            allowed = "null, or fp8_e4m3 for the KV cache"
            raise config.refuse("output_tensors", config.raw("output_tensors"), allowed)
        weights, inputs = _read_specs(config, "weight"), _read_specs(config, "input_tensors")
        if not weights:
            if inputs:
                raise config.refuse("input_tensors", config.raw("input_tensors"), "null, where weight is")
            return None
        if len(weights) == 2:
            return self._read_two_levels(config, weights, inputs)
        (weight,) = weights
        if weight.scheme == "per_channel" and weight.axis not in (None, 0):
            raise config.refuse("weight", f"per_channel with ch_axis {weight.axis}", "ch_axis 0")
        if weight.dtype in _MX:
            self._require(config, weight, "per_group", _MX_GROUP)
            return MXFloats(
                element=_MX[weight.dtype], codes_name="weight", inputs=_read_inputs(config, inputs)
            )
        if weight.dtype == "fp8_e4m3":
            rounding = _read_inputs(config, inputs)
            return ByteCodes(element=Element.E4M3, blocks=weight.blocks, inputs=rounding)
        if weight.dtype == "int8":
            rounding = _read_inputs(config, inputs)
            zero_point = "weight_zero_point"
            return ByteCodes(
                element=Element.INT8, blocks=weight.blocks, zero_point=zero_point, inputs=rounding
            )
        if weight.scheme == "per_tensor" or weight.blocks.rows not in (1, None):
            raise config.refuse("weight", f"{weight.dtype} {weight.scheme}", "per_group, per_channel")
        return QuarkInt4(
            group_size=weight.group_size if weight.scheme == "per_group" else None,
            is_signed=weight.dtype == "int4",
            is_reordered=self.is_reordered,
            inputs=_read_inputs(config, inputs),
        )

    def _read_two_levels(
        self, config: ConfigFields, weights: Sequence[_Spec], inputs: Sequence[_Spec]
    ) -> LayerFormat:
        first, second = weights
        match first.dtype, second.dtype:
            case "fp4", "fp8_e4m3":
                self._require(config, first, "per_group", _NVFP4_GROUP)
                return NVFP4(
                    codes_name="weight",
                    global_scale="weight_scale_2",
                    is_divisor=False,
                    inputs=_read_inputs(config, inputs),
                )
            case "fp8_e4m3", "int4" if second.scheme == "per_channel":
                return QuarkInt4(
                    group_size=None,
                    is_signed=True,
                    is_reordered=self.is_reordered,
                    has_second_scale=True,
                    inputs=_read_inputs(config, inputs),
                )
        allowed = "fp4 in groups with fp8_e4m3 scales, fp8_e4m3 with int4 per channel"
        raise config.refuse("weight", [first.dtype, second.dtype], allowed)

    def _require(self, config: ConfigFields, spec: _Spec, scheme: str, group_size: int) -> None:
        if (spec.scheme, spec.group_size) != (scheme, group_size):
            what = f"{spec.dtype} {spec.scheme}, groups of {spec.group_size}"
            raise config.refuse("weight", what, f"{scheme}, groups of {group_size}")


def _read_specs(config: ConfigFields, key: str) -> list[_Spec]:
    """Return the one or two levels of a specification; none where it is null."""
    value: Any = config.raw(key)
    if value is None:
        return []
    values = value if isinstance(value, list) else [value]
    if len(values) not in (1, 2) or not all(isinstance(one, dict) for one in values):
        raise config.refuse(key, value, "null, a specification or two of them")
    return [_read_spec(config.nested(f"{key}[{number}]", one)) for number, one in enumerate(values)]


def _read_spec(fields: ConfigFields) -> _Spec:
    dtype, scheme = fields.choice("dtype", _DTYPES, ""), fields.choice("qscheme", _SCHEMES, "")
    if not dtype or not scheme:
        raise fields.refuse("dtype and qscheme", (dtype, scheme), ", ".join((*_DTYPES, *_SCHEMES)))
    axis = fields.raw("ch_axis")
    if axis not in (None, *_AXES.get(scheme, (axis,))):
        raise fields.refuse("ch_axis", axis, f"with {scheme}: {', '.join(map(str, _AXES[scheme]))}")
    is_dynamic, mode = fields.boolean("is_dynamic", False), fields.raw("scale_calculation_mode")
    if is_dynamic and mode not in (None, "even"):
        raise fields.refuse("scale_calculation_mode", mode, "even, where scales are not stored")
    group_size, blocks = None, PER_TENSOR
    if scheme == "per_group":
        group_size = fields.integer("group_size")
        blocks = Blocks(rows=1, columns=group_size)
    elif scheme == "per_channel":
        blocks = PER_CHANNEL
    elif scheme == "per_block":
        rows, columns = fields.integers("block_size", 2)
        blocks = Blocks(rows=rows, columns=columns)
    return _Spec(
        dtype=dtype,
        scheme=scheme,
        axis=axis,
        group_size=group_size,
        blocks=blocks,
        is_symmetric=fields.boolean("symmetric", True),
        is_dynamic=is_dynamic,
    )


def _read_inputs(config: ConfigFields, specs: Sequence[_Spec]) -> StoredInputs:
    """Return how inputs are rounded. Dynamic scales of all inputs at once are those of each token here."""
    if not specs:
        return AS_THEY_ARE
    if len(specs) == 2:
        if [spec.dtype for spec in specs] != ["fp4", "fp8_e4m3"] or specs[0].group_size != _NVFP4_GROUP:
            dtypes = [spec.dtype for spec in specs]
            raise config.refuse("input_tensors", dtypes, "fp4 in groups of 16 with scales of fp8_e4m3")
        rounding = InputRounding(
            element=InputElement.E2M1, group_size=_NVFP4_GROUP, scale_kind=ScaleKind.E4M3
        )
        return StoredInputs(rounding=rounding, global_scale="input_scale_2", is_reciprocal=True)
    (spec,) = specs
    if spec.dtype in _MX and (spec.scheme, spec.group_size, spec.is_dynamic) == (
        "per_group",
        _MX_GROUP,
        True,
    ):
        rounding = InputRounding(element=_MX[spec.dtype], group_size=_MX_GROUP, scale_kind=ScaleKind.E8M0)
        return StoredInputs(rounding=rounding)
    elements = {"fp8_e4m3": InputElement.E4M3, "int8": InputElement.INT8}
    if spec.dtype not in elements or (spec.scheme == "per_channel") > spec.is_dynamic:
        what = f"{spec.dtype} {spec.scheme}, {'dynamic' if spec.is_dynamic else 'static'}"
        allowed = "fp8_e4m3 or int8 per tensor, dynamic per channel; MX floats in groups of 32, dynamic"
        raise config.refuse("input_tensors", what, allowed)
    rounding = InputRounding(
        element=elements[spec.dtype],
        group_size=spec.group_size,
        is_symmetric=spec.is_symmetric or not spec.is_dynamic,
    )
    if spec.is_dynamic:
        return StoredInputs(rounding=rounding)
    zero_point = "input_zero_point" if spec.dtype == "int8" else ""
    return StoredInputs(rounding=rounding, scale="input_scale", zero_point=zero_point)
