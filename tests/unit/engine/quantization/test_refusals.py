"""Descriptions of quantization that cannot be followed: refused by the key, its value and what is allowed."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from baton_core.errors import InvalidModelError
from baton_engine.checkpoint.config_fields import ConfigFields
from baton_engine.checkpoint.quantization.checkpoint_quantization import read_quantization
from tests.quantized_reference import FIXTURES

WEIGHT, INPUTS = "global_quant_config.weight", "global_quant_config.input_tensors"
OUTPUTS = "global_quant_config.output_tensors"
GROUP = "config_groups.group_0"
INT8_SPEC = {"dtype": "int8", "qscheme": "per_tensor"}


@pytest.mark.parametrize(
    ("name", "place", "value", "message"),
    [
        ("quark-ptpc-fp8", f"{WEIGHT}.ch_axis", 1, "per_channel with ch_axis 1"),
        (
            "quark-ptpc-fp8",
            f"{WEIGHT}.ch_axis",
            7,
            "ch_axis is 7; allowed: with per_channel",
        ),
        ("quark-mxfp4", f"{INPUTS}.scale_calculation_mode", "floor", "allowed: even"),
        (
            "quark-mxfp4",
            f"{WEIGHT}.group_size",
            64,
            "groups of 64'; allowed: per_group, groups",
        ),
        (
            "quark-mxfp4",
            OUTPUTS,
            {"dtype": "int8", "qscheme": "per_tensor"},
            "null",
        ),
        ("quark-mxfp4", f"{WEIGHT}.dtype", "fp3", "dtype is 'fp3'; allowed: fp4"),
        ("quark-mxfp4", "export", None, "export is None; allowed: how the weights are packed"),
        ("ct-mxfp4", f"{GROUP}.weights.group_size", 16, "groups of 16 in mxfp4-pack-quantized"),
        (
            "ct-nvfp4",
            f"{GROUP}.input_activations.group_size",
            32,
            "input_activations is 'float of 4",
        ),
        ("ct-w4a16", f"{GROUP}.weights.actorder", "random", "actorder is 'random'; allowed: null"),
        (
            "ct-w4a16",
            f"{GROUP}.weights.num_bits",
            3,
            "weights is 'int of 3 bits in pack-quantized'",
        ),
        ("ct-w4a16", "transform_config", {"a": 1}, "transform_config is {'a': 1}; allowed: none"),
        ("ct-w4a16", "kv_cache_scheme", {"num_bits": 8, "type": "int"}, "float of 8 bits per tensor"),
        ("gptq-v1", "bits", 5, "bits is 5; allowed: 2, 3, 4, 8"),
        ("gptq-v1", "checkpoint_format", "marlin", "checkpoint_format is 'marlin'; allowed: gptq, gptq_v2"),
        ("autoawq", "version", "gemv", "version is 'gemv'; allowed: gemm"),
        ("bnb-nf4", "bnb_4bit_quant_type", "int4", "bnb_4bit_quant_type is 'int4'; allowed: nf4, fp4"),
        ("modelopt-fp8", "quant_algo", "W4A8_AWQ", "quant_algo is 'W4A8_AWQ'; allowed: FP8"),
        ("modelopt-fp8", "quant_method", "fbgemm_fp8", "quant_method is 'fbgemm_fp8'; allowed: compressed"),
        ("torchao-fp8", "quant_type", "float8_weight_only", "quant_type is 'float8_weight_only'; allowed: "),
        ("torchao-int4", "quant_type.default._type", "Int4WeightOnlyConfig", "allowed: Int8WeightOnlyConfig"),
        ("torchao-int4", "quant_type.default._version", 1, "_version is 1; allowed: an integer of 2 to 2"),
        (
            "torchao-int8",
            "quant_type.default._type",
            "Float8WeightOnlyConfig",
            "'Int8Tensor'; allowed: Fl",
        ),
        ("torchao-int8", "include_input_output_embeddings", True, "is True; allowed: false"),
    ],
)
def test_a_value_is_refused_by_its_key(name: str, place: str, value: Any, message: str) -> None:
    config = json.loads((FIXTURES / name / "config.json").read_text())
    keys = place.split(".")
    section = config["quantization_config"]
    for key in keys[:-1]:
        section = section[key]
    section[keys[-1]] = value
    with pytest.raises(InvalidModelError, match=re.escape(message)) as raised:
        read_quantization(ConfigFields("config.json", config), FIXTURES / name)
    assert "; allowed: " in str(raised.value)
