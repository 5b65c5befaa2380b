"""GPT-OSS's own format: the experts of a layer as MXFP4 in one tensor for each projection."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, Mxfp4Config
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from baton_core.errors import InvalidModelError
from baton_engine.checkpoint.config_fields import ConfigFields
from baton_engine.checkpoint.quantization.checkpoint_quantization import read_quantization
from baton_engine.models.registry import read_model_config
from baton_engine.quantization_choice import choose_quantization
from baton_kernels.reference.quantized_product import dequantize
from tests.quantized_reference import FIXTURES, dequantized_model, quantized_weights

EXPERTS = "model.layers.0.mlp.experts"
GATE_UP, DOWN = f"{EXPERTS}.gate_up_proj", f"{EXPERTS}.down_proj"
NUM_EXPERTS, HIDDEN, INNER = 4, 64, 96
Damage = Callable[[dict[str, Tensor]], None]
OWN_NAMES = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]


def damaged(folder: Path, damage: Damage) -> Path:
    """Copy the checkpoint with some tensors changed."""
    shutil.copytree(FIXTURES / "gpt-oss-mxfp4", folder)
    tensors = load_file(folder / "model.safetensors")
    damage(tensors)
    save_file(tensors, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize(("name", "rows", "columns"), [(GATE_UP, 2 * INNER, HIDDEN), (DOWN, HIDDEN, INNER)])
def test_all_codes_and_exponents_have_the_values_of_transformers(
    name: str, rows: int, columns: int, tmp_path: Path
) -> None:
    generator = torch.Generator().manual_seed(0)

    def randomise(tensors: dict[str, Tensor]) -> None:
        for part, largest in (("blocks", 256), ("scales", 250)):
            tensor = tensors[f"{name}_{part}"]
            random = torch.randint(5, largest, tensor.shape, generator=generator)
            tensors[f"{name}_{part}"] = random.to(torch.uint8)

    folder = damaged(tmp_path / "model", randomise)
    tensors = load_file(folder / "model.safetensors")
    blocks, scales = tensors[f"{name}_blocks"], tensors[f"{name}_scales"]
    expected = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32).transpose(1, 2)
    weight = quantized_weights(folder).load_quantized(name, rows, columns, NUM_EXPERTS)
    assert torch.equal(dequantize(weight).view(NUM_EXPERTS, rows, columns), expected)


@pytest.mark.parametrize(
    ("names", "is_quantized"),
    [
        (OWN_NAMES, True),
        (None, True),
        (["model.layers.0"], False),
        (["model.layers.1", "model.layers.0.mlp.router"], True),
        (["model.layers.*.mlp"], False),
        (["mlp.experts"], False),
        (["model.layers.0.mlp.exp"], True),
    ],
)
def test_experts_stay_as_they_are_where_their_module_is_named(
    names: list[str] | None, is_quantized: bool
) -> None:
    section = {"quant_method": "mxfp4", "modules_to_not_convert": names}
    quantization = read_quantization(
        ConfigFields("config.json", {"quantization_config": section}), FIXTURES / "gpt-oss-mxfp4"
    )
    assert quantization is not None
    for name in (GATE_UP, DOWN):
        assert (quantization.layer_format(name) is not None) == is_quantized
    for name in ("model.layers.0.self_attn.q_proj", "model.layers.0.mlp.router", "lm_head"):
        assert quantization.layer_format(name) is None


def drop(name: str) -> Damage:
    def damage(tensors: dict[str, Tensor]) -> None:
        del tensors[name]

    return damage


def change(name: str, to: Callable[[Tensor], Tensor]) -> Damage:
    def damage(tensors: dict[str, Tensor]) -> None:
        tensors[name] = to(tensors[name]).contiguous()

    return damage


def add(name: str) -> Damage:
    def damage(tensors: dict[str, Tensor]) -> None:
        tensors[name] = torch.zeros(4)

    return damage


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (drop(f"{GATE_UP}_blocks"), f"tensor {GATE_UP}_blocks is missing; allowed: weights that hold it"),
        (drop(f"{GATE_UP}_scales"), f"tensor {GATE_UP}_scales is missing"),
        (
            change(f"{GATE_UP}_blocks", lambda tensor: tensor[:, :-1]),
            rf"tensor {GATE_UP}_scales has shape \[4, 192, 2\]; allowed: \[4, 191, 2\]",
        ),
        (
            change(f"{GATE_UP}_blocks", lambda tensor: tensor.flatten(2)),
            rf"tensor {GATE_UP}_blocks has shape \[4, 192, 32\]; allowed: \[4, 192, 2, 16\]",
        ),
        (
            change(f"{GATE_UP}_blocks", lambda tensor: tensor.flatten()),
            rf"tensor {GATE_UP}_blocks has shape \[24576\]; allowed: two axes",
        ),
        (
            change(f"{GATE_UP}_blocks", lambda tensor: tensor.to(torch.int32)),
            rf"tensor {GATE_UP}_blocks has dtype I32; allowed: U8",
        ),
        (
            change(f"{GATE_UP}_scales", lambda tensor: torch.full_like(tensor, 255)),
            f"layer {GATE_UP}: _scales holds the exponent 255; allowed: 0 to 254",
        ),
        (
            add(f"{GATE_UP}_zeros"),
            f"tensor {GATE_UP}_zeros is unknown beside quantized weights; allowed: _blocks, _scales",
        ),
    ],
)
def test_damaged_tensors_are_refused_by_name(damage: Damage, message: str, tmp_path: Path) -> None:
    folder = damaged(tmp_path / "model", damage)
    with pytest.raises(InvalidModelError, match=message):
        quantized_weights(folder).load_quantized(GATE_UP, 2 * INNER, HIDDEN, NUM_EXPERTS)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((2 * INNER, HIDDEN, 5), r"has shape \[4, 192, 2, 16\]; allowed: \[5, 192, 2, 16\]"),
        ((2 * INNER, 32, 4), r"has shape \[4, 192, 2, 16\]; allowed: \[4, 192, 1, 16\]"),
        ((2 * INNER, 40, 4), "in_features is 40; allowed: a multiple of 32"),
    ],
)
def test_experts_of_another_size_are_refused(sizes: tuple[int, int, int], message: str) -> None:
    with pytest.raises(InvalidModelError, match=message):
        quantized_weights(FIXTURES / "gpt-oss-mxfp4").load_quantized(GATE_UP, *sizes)


def test_names_that_are_no_list_are_refused() -> None:
    config = json.loads((FIXTURES / "gpt-oss-mxfp4" / "config.json").read_text())
    config["quantization_config"]["modules_to_not_convert"] = "lm_head"
    with pytest.raises(InvalidModelError, match="modules_to_not_convert is 'lm_head'; allowed: a list"):
        read_quantization(ConfigFields("config.json", config), FIXTURES / "gpt-oss-mxfp4")


@torch.inference_mode()
def test_the_model_is_that_which_transformers_dequantizes() -> None:
    folder, prompt = FIXTURES / "gpt-oss-mxfp4", torch.randint(3, 128, (1, 40))
    theirs = AutoModelForCausalLM.from_pretrained(
        folder, quantization_config=Mxfp4Config(dequantize=True), dtype=torch.float32
    )
    assert torch.equal(dequantized_model(folder)(prompt).logits, theirs(prompt).logits)


@pytest.mark.parametrize("asked", [None, "mxfp4", "gpt_oss_mxfp4"])
def test_the_method_may_be_named_as_vllm_does(asked: str | None) -> None:
    folder = FIXTURES / "gpt-oss-mxfp4"
    fields = ConfigFields.from_file(folder / "config.json")
    chosen = choose_quantization(asked, None, fields, folder, read_model_config(folder))
    assert chosen.checkpoint is not None
    assert chosen.checkpoint.method == "mxfp4"
