"""Quantized checkpoints from anywhere: each layer is read, or refused by an error that names it."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor

from baton_core.errors import InvalidModelError
from baton_engine.checkpoint.config_fields import ConfigFields
from baton_engine.checkpoint.quantization.checkpoint_quantization import read_quantization
from baton_engine.checkpoint.weight_files import read_metadata
from baton_engine.checkpoint.weights import WeightReader
from baton_kernels.reference.quantized_product import dequantize
from tests.quantized_reference import CHECKPOINTS, FIXTURES

HEADER: Final = "header"
"""Key of a configuration under which the header of its weights is kept, where that describes them."""
SECTIONS: Final = ("quantization_config", "compression_config", HEADER)
HOSTILE: Final = st.sampled_from(
    [
        *(None, -1, 0, 1, 3, 5, 2**31, 2**63, 10**30, 0.5, 1e308, True, "", "re:(", "*", "x" * 5_000),
        *([], [1] * 9, ["re:("], {}, {"a": {}}, {"weight": None}, [[[[[[1]]]]]]),
    ]
)


@cache
def checkpoint(name: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    config = json.loads((FIXTURES / name / "config.json").read_text())
    path = FIXTURES / name / "model.safetensors"
    if config.get("quantization_config", {}).get("quant_method") == "torchao":
        metadata = read_metadata(path)
        config[HEADER] = {layer: json.loads(text) for layer, text in metadata.items() if "." in layer}
    return config, load_file(path)


def small_checkpoints() -> list[str]:
    """Return those that are stored in safetensors and described in their config.json."""
    return [
        name
        for name in CHECKPOINTS
        if (FIXTURES / name / "model.safetensors").exists()
        and any(section in checkpoint(name)[0] for section in SECTIONS)
    ]


def check(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Read the quantized layers of a checkpoint, or see it refused."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        described = config.get(HEADER, {})
        header = {name: json.dumps(value) for name, value in described.items()}
        save_file(tensors, folder / "model.safetensors", metadata=header)
        (folder / "config.json").write_text(json.dumps(config))
        try:
            read_layers(folder, config)
        except InvalidModelError as error:
            refusal = str(error)
        else:
            return
    assert "; allowed: " in refusal
    assert len(refusal) < 2_000, "an error repeats a hostile value at full length"


def read_layers(folder: Path, config: dict[str, Any]) -> None:
    quantization = read_quantization(ConfigFields.from_file(folder / "config.json"), folder)
    weights = WeightReader(folder, torch.float32, quantization=quantization)
    for layer, (out_features, in_features) in sizes(config).items():
        if weights.is_quantized(layer):
            values = dequantize(weights.load_quantized(layer, out_features, in_features))
            assert values.shape == (out_features, in_features)
    for layer, (out_features, in_features, num_experts) in fused_sizes(config).items():
        if weights.is_quantized(layer):
            values = dequantize(weights.load_quantized(layer, out_features, in_features, num_experts))
            assert values.shape == (num_experts * out_features, in_features)


def fused_sizes(config: dict[str, Any]) -> dict[str, tuple[int, int, int]]:
    """Return the sizes of one expert's projections and the number of experts, where these are fused."""
    if config["model_type"] != "gpt_oss":
        return {}
    hidden, inner, num_experts = (
        config[key] for key in ("hidden_size", "intermediate_size", "num_local_experts")
    )
    return {
        "model.layers.0.mlp.experts.gate_up_proj": (2 * inner, hidden, num_experts),
        "model.layers.0.mlp.experts.down_proj": (hidden, inner, num_experts),
    }


def sizes(config: dict[str, Any]) -> dict[str, tuple[int, int]]:
    """Return the sizes of the projections of the first layer of a model of this configuration."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or hidden // heads
    q_size, kv_size = heads * head_dim, config["num_key_value_heads"] * head_dim
    attention = {"q_proj": (q_size, hidden), "k_proj": (kv_size, hidden), "o_proj": (hidden, q_size)}
    feed_forward = {"gate_proj": (inner, hidden), "down_proj": (hidden, inner)}
    return {f"model.layers.0.self_attn.{name}": size for name, size in attention.items()} | {
        f"model.layers.0.mlp.{name}": size for name, size in feed_forward.items()
    }


@st.composite
def lying_configurations(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """A checkpoint in whose description some value, somewhere, is another."""
    config, tensors = checkpoint(draw(st.sampled_from(small_checkpoints())))
    config = json.loads(json.dumps(config))
    place: Any = config[draw(st.sampled_from([section for section in SECTIONS if section in config]))]
    while True:
        keys = sorted(place) if isinstance(place, dict) else list(range(len(place)))
        key = draw(st.sampled_from(keys))
        inner = place[key]
        if not isinstance(inner, dict | list) or not inner or draw(st.integers(0, 3)) == 0:
            place[key] = draw(HOSTILE)
            return config, tensors
        place = inner


@st.composite
def damaged_tensors(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """A checkpoint of which a tensor is missing, unknown, cut, of another type or of wild numbers."""
    config, tensors = checkpoint(draw(st.sampled_from(small_checkpoints())))
    tensors = dict(tensors)
    names = [name for name in sorted(tensors) if name.startswith("model.layers.0.") and "_proj" in name]
    name = draw(st.sampled_from(names))
    tensor = tensors[name]
    match draw(st.sampled_from(["missing", "unknown", "cut", "longer", "type", "filled", "noise", "state"])):
        case "missing":
            del tensors[name]
        case "unknown":
            separator = "." if "_proj." in name else "_"
            tensors[f"{name.rpartition(separator)[0]}{separator}other"] = tensor.clone()
        case "cut":
            tensors[name] = tensor.flatten()[:-1].clone()
        case "longer":
            tensors[name] = torch.cat((tensor.flatten(), tensor.flatten()))
        case "type":
            tensors[name] = tensor.to(draw(st.sampled_from([torch.float32, torch.int64, torch.uint8])))
        case "filled":
            tensors[name] = _filled(tensor, draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFF])))
        case "state":
            value = draw(st.sampled_from([5, None, [], "x", {}]))
            name = "model.layers.0.self_attn.q_proj.weight.quant_state.bitsandbytes__nf4"
            config, tensors = checkpoint("bnb-nf4-double")
            state = json.loads(bytes(tensors[name].tolist()))
            state[draw(st.sampled_from(sorted(state)))] = value
            lying = torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8)
            tensors = {**tensors, name: lying}
        case "noise":
            generator = torch.Generator().manual_seed(draw(st.integers(0, 2**16)))
            noise = torch.randint(0, 256, (tensor.nbytes,), dtype=torch.uint8, generator=generator)
            tensors[name] = noise.view(tensor.dtype).view(tensor.shape)
    return config, tensors


def _filled(tensor: Tensor, byte: int) -> Tensor:
    filled = torch.full((tensor.nbytes,), byte, dtype=torch.uint8)
    return filled.view(tensor.dtype).view(tensor.shape)


@given(case=lying_configurations())
def test_a_description_that_lies(case: tuple[dict[str, Any], dict[str, Tensor]]) -> None:
    check(*case)


@given(case=damaged_tensors())
def test_a_tensor_that_is_damaged(case: tuple[dict[str, Any], dict[str, Tensor]]) -> None:
    check(*case)
