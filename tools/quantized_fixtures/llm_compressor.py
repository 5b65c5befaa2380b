"""Fixtures written by llmcompressor in the formats of compressed-tensors.

The reference is Transformers' import with `run_compressed=False`, whose weights compressed-tensors
dequantizes in the dtype of their scales; experts of mixtures, which it cannot import, are dequantized by
compressed-tensors in the model that was saved. It rounds no inputs, so greedy tokens are left out.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from compressed_tensors.compressors.base import decompress_module
from compressed_tensors.quantization.lifecycle.forward import forward_quantize
from datasets import Dataset
from llmcompressor import oneshot
from llmcompressor.modeling.moe.conversion_mappings import (
    get_linearize_load_mappings,
    patch_moe_mappings,
    set_save_conversion_mapping,
)
from llmcompressor.modeling.moe.linearize import get_linearized_moes, linearize_moe
from llmcompressor.modifiers.quantization import GPTQModifier, QuantizationModifier
from transformers import AutoModelForCausalLM, CompressedTensorsConfig, PreTrainedModel
from transformers.core_model_loading import WeightRenaming

from tools.quantized_fixtures.base_models import (
    SEED,
    calibration_ids,
    make_llama,
    make_mixtral,
    make_qwen3_moe,
    make_tokenizer,
)
from tools.quantized_fixtures.fixture import produce, write_expected

PACKAGE: Final = "llmcompressor"
make_ragged_llama: Final = partial(make_llama, 192)
MIXTRAL_NAMES: Final = {"mlp": "block_sparse_moe", "gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}
FUSED: Final = [".experts.gate_up_proj", ".experts.down_proj"]
MIXTRAL_MAPPINGS: Final = [
    WeightRenaming(rf"\.experts\.(\d+)\.{stored}\.", rf".experts.\1.{inner}.")
    for inner, stored in MIXTRAL_NAMES.items()
    if stored.startswith("w")
]
ROUNDED: Final = ("MXFP4", "MXFP8", "NVFP4")
"""Schemes whose inputs have scales of groups."""
KV_SCHEME: Final = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True}


def _calibration() -> dict[str, Any]:
    ids = calibration_ids(16, 64).tolist()
    rows = {"input_ids": ids, "attention_mask": [[1] * len(row) for row in ids]}
    return {
        "dataset": Dataset.from_dict(rows),
        "num_calibration_samples": len(ids),
        "max_seq_length": 64,
        "processor": make_tokenizer(),
    }


def _separate_experts(model: PreTrainedModel) -> PreTrainedModel:
    """Return a model with a linear layer for each matrix of its experts, stored under the published names."""
    separate = linearize_moe(model)
    if get_linearized_moes(separate):
        # llmcompressor has no names for Mixtral, but lets a user declare them.
        is_declared = model.config.model_type != "mixtral"
        with nullcontext() if is_declared else patch_moe_mappings("mixtral", MIXTRAL_MAPPINGS, FUSED):
            _, _, names = get_linearize_load_mappings(model.config.model_type)
        set_save_conversion_mapping(separate, names)
    return separate


def _quantized_weights(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    return {
        name: layer.weight
        for name, layer in model.named_modules()
        if isinstance(layer, torch.nn.Linear) and hasattr(layer, "quantization_scheme")
    }


def _stored_name(name: str, model: PreTrainedModel) -> str:
    """Return the name of a layer in a checkpoint."""
    if model.config.model_type == "mixtral":
        for inner, stored in MIXTRAL_NAMES.items():
            name = name.replace(inner, stored)
    return name


def _rounded_inputs(model: PreTrainedModel) -> dict[str, Any]:
    """Return inputs of a layer, with the rounding of compressed-tensors in float32.

    The largest of neighbouring 32, whose exponent becomes the scale of MX, has each mantissa of 4 bits once.
    """
    name = "model.layers.0.self_attn.q_proj"
    layer = model.get_submodule(name)
    values = torch.randn(4, 4, 32, generator=torch.Generator().manual_seed(SEED))
    largest = 1 + torch.arange(16).view(4, 4, 1) / 16
    values = (values / values.abs().amax(dim=-1, keepdim=True) * largest).flatten(1)
    rounded = forward_quantize(layer, values, "input", layer.quantization_scheme.input_activations)
    return {"layer": name, "values": values.tolist(), "rounded": rounded.tolist()}


def _make(
    folder: Path,
    scheme: str | None,
    base: Callable[[], PreTrainedModel] = make_llama,
    *,
    is_calibrated: bool = False,
    modifier: Any = QuantizationModifier,
    **settings: Any,
) -> None:
    settings = {"targets": "Linear", "scheme": scheme, "ignore": ["lm_head", "re:.*gate$"]} | settings
    settings = {name: value for name, value in settings.items() if value is not None}
    with tempfile.TemporaryDirectory() as unquantized:
        base().save_pretrained(unquantized)
        make_tokenizer().save_pretrained(unquantized)
        model = _separate_experts(AutoModelForCausalLM.from_pretrained(unquantized, dtype=torch.bfloat16))
        oneshot(model=model, recipe=modifier(**settings), **(_calibration() if is_calibrated else {}))
        model.save_pretrained(folder, save_compressed=True)
    config = CompressedTensorsConfig(run_compressed=False)
    reference = AutoModelForCausalLM.from_pretrained(folder, quantization_config=config)
    weights = _quantized_weights(reference)
    if get_linearized_moes(model):
        for layer in model.modules():
            decompress_module(layer)
        # The reference lacks the experts alone.
        weights = {
            _stored_name(name, model): weight for name, weight in _quantized_weights(model).items()
        } | weights
    inputs = _rounded_inputs(reference) if scheme in ROUNDED else None
    write_expected(folder, PACKAGE, scheme or "fp8 attention, int4 feed-forward", weights, inputs=inputs)


MIXED: Final = {
    "scheme": None,
    "targets": None,
    "config_groups": {
        "attention": {
            "targets": [r"re:.*self_attn\.(q|k|v|o)_proj$"],
            "weights": {
                "num_bits": 8,
                "type": "float",
                "strategy": "channel",
                "symmetric": True,
                "dynamic": False,
            },
            "input_activations": {
                "num_bits": 8,
                "type": "float",
                "strategy": "token",
                "symmetric": True,
                "dynamic": True,
            },
        },
        "feed_forward": {
            "targets": [r"re:.*mlp\.(gate|up|down)_proj$"],
            "weights": {
                "num_bits": 4,
                "type": "int",
                "strategy": "group",
                "group_size": 64,
                "symmetric": True,
            },
        },
    },
}
FIXTURES: Final[dict[str, Callable[[Path], None]]] = {
    "ct-fp8": partial(_make, scheme="FP8", is_calibrated=True),
    "ct-fp8-dynamic": partial(_make, scheme="FP8_DYNAMIC", base=make_ragged_llama),
    "ct-fp8-block": partial(_make, scheme="FP8_BLOCK"),
    "ct-w8a8": partial(_make, scheme="W8A8", base=make_ragged_llama),
    "ct-w4a16": partial(_make, scheme="W4A16"),
    "ct-w8a16": partial(_make, scheme="W8A16"),
    "ct-w4a16-asym": partial(_make, scheme="W4A16_ASYM"),
    "ct-w4a16-gptq": partial(_make, scheme="W4A16", is_calibrated=True, modifier=GPTQModifier),
    "ct-w4a8": partial(_make, scheme="W4A8"),
    "ct-w4afp8": partial(_make, scheme="W4AFP8"),
    "ct-mxfp4": partial(_make, scheme="MXFP4", base=make_ragged_llama),
    "ct-mxfp4a16": partial(_make, scheme="MXFP4A16"),
    "ct-mxfp8": partial(_make, scheme="MXFP8", base=make_ragged_llama),
    "ct-mxfp8a16": partial(_make, scheme="MXFP8A16"),
    "ct-nvfp4": partial(_make, scheme="NVFP4", is_calibrated=True),
    "ct-nvfp4a16": partial(_make, scheme="NVFP4A16", base=make_ragged_llama),
    "ct-mixed": partial(_make, **MIXED),
    "ct-fp8-kv": partial(_make, scheme="FP8", is_calibrated=True, kv_cache_scheme=KV_SCHEME),
    "ct-qwen3-moe-w4a16": partial(_make, scheme="W4A16", base=make_qwen3_moe),
    "ct-mixtral-fp8-dynamic": partial(_make, scheme="FP8_DYNAMIC", base=make_mixtral),
}

if __name__ == "__main__":
    produce(FIXTURES)
