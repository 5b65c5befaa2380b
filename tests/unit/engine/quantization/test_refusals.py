"""Descriptions of quantization that cannot be followed: refused by the key, its value and what is allowed."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from baton_core.errors import InvalidModelError
from baton_engine.checkpoint.config_fields import ConfigFields
from baton_engine.checkpoint.quantization.checkpoint_quantization import read_quantization
from baton_engine.checkpoint.quantization.fp8 import Fp8Tensor
from baton_engine.checkpoint.quantization.layouts import PER_TENSOR, ByteCodes
from baton_engine.checkpoint.quantization.stored_inputs import AS_THEY_ARE, StoredInputs
from baton_kernels.interface.quantized import Element, InputElement, InputRounding
from tests.models import change_config
from tests.quantized_reference import FIXTURES, quantized_weights

WEIGHT, INPUTS = "global_quant_config.weight", "global_quant_config.input_tensors"
OUTPUTS = "global_quant_config.output_tensors"
GROUP = "config_groups.group_0"


@pytest.mark.parametrize(
    ("name", "place", "value", "message"),
    [
        ("quark-ptpc-fp8", f"{WEIGHT}.ch_axis", 1, "per_channel with ch_axis 1"),
        ("quark-ptpc-fp8", f"{WEIGHT}.ch_axis", 7, "ch_axis is 7; allowed: with per_channel"),
        ("quark-mxfp4", f"{INPUTS}.scale_calculation_mode", "floor", "allowed: even"),
        ("quark-mxfp4", f"{WEIGHT}.group_size", 64, "groups of 64'; allowed: per_group, groups"),
        ("quark-mxfp4", OUTPUTS, {"dtype": "int8", "qscheme": "per_tensor"}, "null"),
        ("quark-mxfp4", f"{WEIGHT}.dtype", "fp3", "dtype is 'fp3'; allowed: fp4"),
        ("quark-mxfp4", "export", None, "export is None; allowed: how the weights are packed"),
        ("ct-mxfp4", f"{GROUP}.weights.group_size", 16, "groups of 16 in mxfp4-pack-quantized"),
        ("ct-nvfp4", f"{GROUP}.input_activations.group_size", 32, "input_activations is 'float of 4"),
        ("ct-w4a16", f"{GROUP}.weights.actorder", "random", "actorder is 'random'; allowed: null"),
        ("ct-w4a16", f"{GROUP}.weights.num_bits", 3, "weights is 'int of 3 bits in pack-quantized'"),
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
        ("torchao-int8", "quant_type.default._type", "Float8WeightOnlyConfig", "'Int8Tensor'; allowed: Fl"),
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


@pytest.mark.parametrize("name", ["gptq-v1", "autoawq"])
def test_a_size_that_a_format_does_not_have_is_refused_by_layer_and_file(name: str, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(FIXTURES / name, tmp_path / "model"))
    section = json.loads((folder / "config.json").read_text())["quantization_config"]
    change_config(folder, quantization_config={**section, "group_size": 512})
    where = rf"{folder}/model\.safetensors: layer model\.layers\.0\.\S+"
    with pytest.raises(
        InvalidModelError, match=rf"^{where}: in_features is \d+; allowed: a multiple of 512$"
    ):
        quantized_weights(folder)


def test_an_expression_that_backtracks_for_ever_is_refused_by_name() -> None:
    config = json.loads((FIXTURES / "ct-w4a16" / "config.json").read_text())
    config["quantization_config"]["ignore"] = ["re:(?:[a-z_.0-9]|[a-z_.0-9])*[A-Z]$"]
    quantization = read_quantization(ConfigFields("config.json", config), FIXTURES / "ct-w4a16")
    assert quantization is not None
    with pytest.raises(
        InvalidModelError, match=r"ignore holds .*, which takes over 1 s for model\.layers\.0"
    ):
        quantization.layer_format("model.layers.0.self_attn.q_proj.and_a_long_name_of_a_layer")


@pytest.mark.parametrize(
    ("tensor", "value"),
    [
        ("input_zero_point", torch.tensor(300)),
        ("weight_zero_point", torch.full((1,), 70_000)),
        ("weight_zero_point", torch.full((1,), 0.5)),
    ],
)
def test_zero_points_that_are_no_codes_are_refused(tensor: str, value: torch.Tensor) -> None:
    inputs = StoredInputs(
        rounding=InputRounding(element=InputElement.INT8), scale="input_scale", zero_point="input_zero_point"
    )
    stored = ByteCodes(element=Element.INT8, blocks=PER_TENSOR, zero_point="weight_zero_point", inputs=inputs)
    tensors = {
        "weight": torch.zeros(2, 4, dtype=torch.int8),
        "weight_scale": torch.ones(1),
        "input_scale": torch.ones(()),
        tensor: value,
    }
    with pytest.raises(InvalidModelError, match=f"{tensor} .*; allowed: integers from -128 to 255"):
        stored.decode(tensors, 2, 4)


@pytest.mark.parametrize("value", [0.0, -1.0])
def test_a_scale_of_inputs_that_is_not_above_zero_is_refused(value: float) -> None:
    tensors = {
        "weight": torch.zeros(2, 4, dtype=torch.float8_e4m3fn),
        "weight_scale": torch.ones(()),
        "input_scale": torch.tensor(value),
    }
    with pytest.raises(InvalidModelError, match=f"input_scale is {value}; allowed: a number above 0"):
        Fp8Tensor(has_input_scale=True).decode(tensors, 2, 4)


@pytest.mark.parametrize(
    ("weights_only", "rounded"),
    [
        (r"model.layers.0.mlp.down_proj", r"re:.*proj"),
        (r"re:.*down_proj", r"re:.*mlp.*"),
        (r"re:.*mlp.*", "Linear"),
    ],
)
@pytest.mark.parametrize("is_first", [True, False])
def test_of_two_groups_that_name_a_layer_the_package_takes_the_more_exact_target(
    weights_only: str, rounded: str, is_first: bool
) -> None:
    """Names come before expressions, these in the order of their texts, and classes last."""
    config = json.loads((FIXTURES / "ct-fp8-dynamic" / "config.json").read_text())
    group = config["quantization_config"]["config_groups"]["group_0"]
    one = {**group, "targets": [rounded]}
    two = {**group, "targets": [weights_only], "input_activations": None}
    groups = [two, one] if is_first else [one, two]
    config["quantization_config"]["config_groups"] = {str(n): each for n, each in enumerate(groups)}
    quantization = read_quantization(ConfigFields("config.json", config), FIXTURES / "ct-fp8-dynamic")
    assert quantization is not None
    found = quantization.layer_format("model.layers.0.mlp.down_proj")
    assert isinstance(found, ByteCodes)
    assert found.inputs == AS_THEY_ARE
