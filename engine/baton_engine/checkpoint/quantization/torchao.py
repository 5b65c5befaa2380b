"""Checkpoints of `quant_method` "torchao", as Transformers saves them in safetensors files.

torchao keeps a weight in a class of its own. A file has the tensors of such a weight under names that begin
with `_weight_`, and its header describes the weight by the name `LAYER.weight`; config.json has the settings
with which it was made. Where torchao takes one scale of inputs for all tokens of a step, each token has its
own.

Source: torchao 0.18.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from baton_core.errors import InvalidModelError
from baton_engine.checkpoint.config_fields import ConfigFields
from baton_engine.checkpoint.quantization.layer_format import LayerFormat
from baton_engine.checkpoint.quantization.layouts import Blocks, ByteCodes
from baton_engine.checkpoint.quantization.stored_inputs import AS_THEY_ARE, StoredInputs
from baton_engine.checkpoint.weight_files import find_weight_files, is_safetensors, read_metadata
from baton_kernels.interface.quantized import Element, InputElement, InputRounding

_VERSION: Final = 2
_INT8, _FLOAT8, _INTX = "Int8Tensor", "Float8Tensor", "IntxUnpackedToInt8Tensor"
_CLASSES: Final = {
    "Int8WeightOnlyConfig": _INT8,
    "Int8DynamicActivationInt8WeightConfig": _INT8,
    "Float8WeightOnlyConfig": _FLOAT8,
    "Float8DynamicActivationFloat8WeightConfig": _FLOAT8,
    "IntxWeightOnlyConfig": _INTX,
    "Int8DynamicActivationIntxWeightConfig": _INTX,
}
"""The class of weights that each configuration makes."""
_SUFFIX: Final = ".weight"


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchAO:
    """The quantization of a whole checkpoint, each layer as the header of its file describes it."""

    layers: Mapping[str, LayerFormat]
    method: str = "torchao"

    def layer_format(self, name: str) -> LayerFormat | None:
        return self.layers.get(name)


def read_torchao(fields: ConfigFields, folder: Path) -> TorchAO:
    """Read the section of a config.json, and the headers of the folder's weight files.

    Raises:
        InvalidModelError: a value is none that can be followed.
    """
    if fields.boolean("include_input_output_embeddings", False):
        raise fields.refuse("include_input_output_embeddings", True, "false: embeddings as they are")
    expected = _read_class(fields)
    layers = {}
    for path in find_weight_files(folder):
        for name, described in _described_weights(path):
            layers[name] = _read_layer(described, expected)
    if not layers:
        raise InvalidModelError(
            f"{folder}: no header of its weights describes one of torchao; allowed: at least one {expected}"
        )
    return TorchAO(layers=layers)


def _read_class(fields: ConfigFields) -> str:
    """Return the class of weights that the configuration makes."""
    quant_type = fields.section("quant_type")
    config = None if quant_type is None else quant_type.section("default")
    if config is None:
        allowed = f"a configuration under the key default: {', '.join(_CLASSES)}"
        raise fields.refuse("quant_type", fields.raw("quant_type"), allowed)
    name = config.choice("_type", tuple(_CLASSES))
    config.integer("_version", minimum=_VERSION, maximum=_VERSION)
    return _CLASSES[name]


def _described_weights(path: Path) -> Iterator[tuple[str, ConfigFields]]:
    """Return the layers whose weights are of a class of torchao, with the description of each."""
    if not is_safetensors(path):
        raise InvalidModelError(f"{path} is pickled; allowed with torchao: safetensors files")
    for name, text in read_metadata(path).items():
        if "." not in name:  # such as `tensor_names` and `format`
            continue
        try:
            values = json.loads(text)
        except (ValueError, RecursionError):
            values = None
        if not isinstance(values, dict):
            raise InvalidModelError(f"{path}: metadata {name} is {text!r:.200}; allowed: one JSON object")
        described = ConfigFields(f"{path}: metadata {name}", values)
        if values.get("_type") == "Tensor":
            continue
        if not name.endswith(_SUFFIX):
            raise described.refuse("_type", values.get("_type"), "Tensor, for other tensors than weights")
        yield name.removesuffix(_SUFFIX), described


def _read_layer(described: ConfigFields, expected: str) -> ByteCodes:
    if described.raw("_type") != expected:
        raise described.refuse("_type", described.raw("_type"), f"{expected}, as quant_type says")
    weight = described.section_or_empty("_data")
    rows, columns = weight.integers("block_size", 2)
    if expected == _FLOAT8:
        element, inputs = Element.E4M3, _read_inputs(weight, "QuantizeTensorToFloat8Kwargs")
    elif expected == _INT8:
        element, inputs = Element.INT8, _read_inputs(weight, "QuantizeTensorToInt8Kwargs")
    else:
        element, inputs = Element.INT4, _read_intx_inputs(weight)
        _require(weight, "target_dtype", "int4")
    return ByteCodes(
        element=element,
        blocks=Blocks(rows=rows, columns=columns),
        codes_name="_weight_qdata",
        scale="_weight_scale",
        zero_point="" if expected == _FLOAT8 else "_weight_zero_point",
        inputs=inputs,
    )


def _read_inputs(weight: ConfigFields, expected: str) -> StoredInputs:
    """Return how inputs are rounded, by the arguments of the class to which torchao converts them."""
    described = weight.section("act_quant_kwargs")
    if described is None:
        return AS_THEY_ARE
    if described.raw("_type") != expected:
        raise described.refuse("_type", described.raw("_type"), expected)
    settings = described.section_or_empty("_data")
    _require(settings, "granularity", "PerRow", "PerTensor", key="_type")
    if expected == "QuantizeTensorToFloat8Kwargs":
        _require(settings, "float8_dtype", "float8_e4m3fn")
        for bound in ("hp_value_lb", "hp_value_ub"):
            if settings.raw(bound) is not None:
                raise settings.refuse(bound, settings.raw(bound), "null")
        return StoredInputs(rounding=InputRounding(element=InputElement.E4M3))
    settings.only("reduce_range", False)
    mapping = _require(settings, "mapping_type", "SYMMETRIC", "ASYMMETRIC")
    rounding = InputRounding(element=InputElement.INT8, is_symmetric=mapping == "SYMMETRIC")
    return StoredInputs(rounding=rounding)


def _read_intx_inputs(weight: ConfigFields) -> StoredInputs:
    if not weight.choice("activation_quantization", ("int8_asym_per_token",), ""):
        return AS_THEY_ARE
    return StoredInputs(rounding=InputRounding(element=InputElement.INT8, is_symmetric=False))


def _require(fields: ConfigFields, name: str, *allowed: str, key: str = "_data") -> str:
    """Return a value of Python that is stored as an object, by its `_data` or another of its keys."""
    return fields.section_or_empty(name).choice(key, allowed)
