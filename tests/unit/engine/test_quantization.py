"""Models with int8 layers: close to the model as stored, the same bits in any company, refused by name."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from baton_core.errors import InvalidConfigError, InvalidModelError
from baton_engine.checkpoint.quantization.methods import OnlineQuantization
from baton_engine.checkpoint.quantization.online import quantize
from baton_engine.checkpoint.quantization.online_plan import OnlinePlan
from baton_engine.checkpoint.weights import WeightReader
from baton_engine.engine_settings import EngineSettings
from baton_engine.loading import load_model
from baton_engine.models.registry import read_model_config
from baton_kernels.reference.quantized_product import dequantize
from baton_kernels.selection import select_kernels
from tests.models import change_config
from tests.unit.engine.test_batch_invariance import PROMPT, Machine, mixed_steps

ModelFolder = Callable[[str], Path]


@pytest.mark.parametrize(
    ("variant", "kind", "most"),
    [
        *(
            (variant, OnlineQuantization.INT8, 0.1)
            for variant in ("llama-biased", "qwen3", "gemma2", "gpt2", "opt", "mixtral", "qwen2-moe")
        ),
        *(("llama", kind, 0.6) for kind in OnlineQuantization),
    ],
)
def test_logits_are_near_those_of_the_model_as_stored(
    variant: str, kind: OnlineQuantization, most: float, model_folder: ModelFolder
) -> None:
    folder = model_folder(variant)
    kernels = select_kernels("cpu")
    plain, quantized = (
        Machine(folder, kernels=kernels, online=online).logits(PROMPT, len(PROMPT)) for online in (None, kind)
    )
    assert 1e-4 < (quantized - plain).norm() / plain.norm() < most


@pytest.mark.usefixtures("needs_build")
@pytest.mark.parametrize("variant", ["qwen2", "gpt2"])
def test_batch_invariant_logits_are_so_with_int8_layers_too(variant: str, model_folder: ModelFolder) -> None:
    machine = Machine(model_folder(variant), online=OnlineQuantization.INT8)
    alone = machine.logits(PROMPT, len(PROMPT))
    assert torch.equal(machine.logits(PROMPT, 7), alone)
    assert torch.equal(mixed_steps(machine, 0), alone)


def test_layers_take_a_byte_for_each_weight_and_count_so(model_folder: ModelFolder) -> None:
    folder = model_folder("llama")
    plain, quantized = (
        Machine(folder, kernels=select_kernels("cpu"), online=online).weights.loaded_bytes
        for online in (None, OnlineQuantization.INT8)
    )
    embedding = read_model_config(folder).vocab_size * 64 * 4
    assert (quantized - embedding) / (plain - embedding) == pytest.approx(0.27, abs=0.03)


def test_codes_come_from_the_values_of_the_file_whatever_the_element_type(model_folder: ModelFolder) -> None:
    name, shape = "model.layers.0.self_attn.q_proj.weight", (64, 64)
    reader = WeightReader(
        model_folder("llama"), torch.bfloat16, online=OnlinePlan.of(OnlineQuantization.INT8)
    )
    stored = WeightReader(model_folder("llama"), torch.float32).load(name, shape)
    assert torch.equal(reader.load(name, shape, reader.linear_dtype), stored)
    assert not torch.equal(reader.load(name, shape).float(), stored)


def test_models_without_such_layers_are_refused_by_name(model_folder: ModelFolder) -> None:
    where = "GraniteForCausalLM, which runs through Transformers"
    with pytest.raises(
        InvalidConfigError, match=rf"^quantization 'int8' is not there for {where}; allowed: "
    ):
        load_model(EngineSettings(model=str(model_folder("granite")), quantization="int8"))


@pytest.mark.parametrize(
    ("kind", "largest"),
    [
        (OnlineQuantization.INT8, 0.01),
        (OnlineQuantization.INT8_WEIGHT_ONLY, 0.01),
        (OnlineQuantization.FP8_PER_TENSOR, 0.03),
        (OnlineQuantization.FP8_PER_CHANNEL, 0.03),
        (OnlineQuantization.FP8_PER_BLOCK, 0.03),
        (OnlineQuantization.MXFP8, 0.04),
        (OnlineQuantization.MXFP4, 0.13),
        (OnlineQuantization.INT4_WEIGHT_ONLY, 0.11),
    ],
)
def test_weights_are_rounded_by_as_much_as_their_codes_ask_for(
    kind: OnlineQuantization, largest: float
) -> None:
    weight = torch.randn(131, 256, generator=torch.Generator().manual_seed(0))
    weight[3] = 0.0
    values = dequantize(quantize(weight, kind))
    assert 0.3 * largest < (values - weight).norm() / weight.norm() < largest
    assert not values[3].any()


@pytest.mark.parametrize("block", [None, 32])
def test_a_checkpoint_of_fp8_computes_what_its_codes_stand_for(
    block: int | None, model_folder: ModelFolder, tmp_path: Path
) -> None:
    folder = fp8_checkpoint(model_folder("llama"), tmp_path / "fp8", block)
    load_model(EngineSettings(model=str(folder)))
    codes = Machine(folder, kernels=select_kernels("cpu")).logits(PROMPT, len(PROMPT))
    plain = Machine(model_folder("llama"), kernels=select_kernels("cpu")).logits(PROMPT, len(PROMPT))
    assert 1e-4 < (codes - plain).norm() / plain.norm() < 0.4


@pytest.mark.parametrize("scheme", ["dynamic", "static"])
def test_names_that_transformers_has_for_scales_of_whole_weights_mean_the_same(
    scheme: str, model_folder: ModelFolder, tmp_path: Path
) -> None:
    usual = fp8_checkpoint(model_folder("llama"), tmp_path / "usual", None)
    config = json.loads((usual / "config.json").read_text())["quantization_config"]
    tensors = load_file(usual / "model.safetensors")
    if scheme == "static":
        scales = [name for name in tensors if name.endswith("weight_scale")]
        tensors |= {name.replace("weight_scale", "input_scale"): torch.tensor(0.02) for name in scales}
    renamed = {
        name.replace("weight_scale", "weight_scale_inv").replace("input_scale", "activation_scale"): tensor
        for name, tensor in tensors.items()
    }
    other = Path(shutil.copytree(usual, tmp_path / "other"))
    for folder, stored in ((usual, tensors), (other, renamed)):
        change_config(folder, quantization_config={**config, "activation_scheme": scheme})
        save_file(stored, folder / "model.safetensors")
    found, expected = (
        Machine(folder, kernels=select_kernels("cpu")).logits(PROMPT, len(PROMPT))
        for folder in (other, usual)
    )
    assert torch.equal(found, expected)


@pytest.mark.parametrize("variant", ["llama", "opt"])
def test_query_key_and_value_need_not_be_stored_alike(
    variant: str, model_folder: ModelFolder, tmp_path: Path
) -> None:
    """Queries have 8-bit floats, keys integers and values neither."""
    plain, codes = (Path(shutil.copytree(model_folder(variant), tmp_path / name)) for name in "pc")
    values = load_file(plain / "model.safetensors")
    stored = dict(values)
    for name, tensor in values.items():
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            dtype, largest = (torch.float8_e4m3fn, 448) if "q_proj" in name else (torch.int8, 127)
            scale = tensor.abs().max() / largest
            stored[name], stored[f"{name}_scale"] = (tensor / scale).to(dtype), scale
            values[name] = stored[name].float() * scale
    save_file(values, plain / "model.safetensors")
    save_file(stored, codes / "model.safetensors")
    groups = {
        "0": {"targets": ["re:.*q_proj"], "weights": {"type": "float"}},
        "1": {"targets": ["re:.*k_proj"], "weights": {"type": "int"}},
    }
    method = {"quant_method": "compressed-tensors", "format": "naive-quantized"}
    change_config(codes, quantization_config={**method, "config_groups": groups})
    found, expected = (
        Machine(folder, kernels=select_kernels("cpu")).logits(PROMPT, len(PROMPT))
        for folder in (codes, plain)
    )
    torch.testing.assert_close(found, expected, atol=5e-5, rtol=0)


@pytest.mark.parametrize("variant", ["llama", "opt"])
def test_each_of_query_key_and_value_may_be_ignored(variant: str, model_folder: ModelFolder) -> None:
    settings = EngineSettings(model=str(model_folder(variant)), quantization="fp8_per_tensor")
    num_bytes = [
        load_model(replace(settings, quantization_config={"ignore": ignore})).weight_bytes
        for ignore in ([], ["*.q_proj"], ["*.q_proj", "*.v_proj"])
    ]
    assert num_bytes == sorted(set(num_bytes))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"quant_method": "unheard"}, "quant_method is 'unheard'; allowed: "),
        ({"activation_scheme": "sometimes"}, "activation_scheme is 'sometimes'; allowed: dynamic, static"),
        ({"ignored_layers": "lm_head"}, "ignored_layers is 'lm_head'; allowed: a list"),
        ({"weight_block_size": [0.5, 128]}, "weight_block_size is [0.5, 128]; allowed: a list of 2 integers"),
        ({"weight_block_size": [128]}, "weight_block_size is [128]; allowed: a list of 2 integers"),
    ],
)
def test_what_a_checkpoint_says_wrongly_is_refused_by_name(
    change: dict[str, object], message: str, model_folder: ModelFolder, tmp_path: Path
) -> None:
    folder = fp8_checkpoint(model_folder("llama"), tmp_path / "fp8", None)
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] |= change
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(InvalidModelError, match=re.escape(message)):
        load_model(EngineSettings(model=str(folder)))


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        ("q_proj.weight_scale", None, "q_proj.weight_scale is missing"),
        ("q_proj.weight_scale", torch.tensor(torch.nan), "q_proj.weight_scale holds NaN or an infinity"),
        ("q_proj.weight_scale", torch.tensor(0.0), "q_proj: all scales are 0"),
        ("q_proj.weight_scale", torch.ones(3), "q_proj.weight_scale has shape [3]; allowed: []"),
        ("q_proj.weight_scale", torch.tensor(1), "q_proj.weight_scale has dtype I64; allowed: F32"),
        ("q_proj.zeros", torch.ones(3), "q_proj.zeros is unknown beside quantized weights; allowed: weight"),
    ],
)
def test_tensors_that_do_not_fit_are_refused_by_name(
    name: str, tensor: Tensor | None, message: str, model_folder: ModelFolder, tmp_path: Path
) -> None:
    folder = fp8_checkpoint(model_folder("llama"), tmp_path / "fp8", None)
    tensors = load_file(folder / "model.safetensors")
    full_name = f"model.layers.1.self_attn.{name}"
    tensors.pop(full_name, None)
    if tensor is not None:
        tensors[full_name] = tensor
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(InvalidModelError, match=re.escape(message)):
        load_model(EngineSettings(model=str(folder)))


@pytest.mark.parametrize("asked", ["int8", "gptq"])
def test_another_method_than_the_checkpoints_is_refused(
    asked: str, model_folder: ModelFolder, tmp_path: Path
) -> None:
    folder = fp8_checkpoint(model_folder("llama"), tmp_path / "fp8", None)
    with pytest.raises(
        InvalidConfigError, match=f"quantization is '{asked}'; allowed .*: fp8, as its files say"
    ):
        load_model(EngineSettings(model=str(folder), quantization=asked))
    assert load_model(EngineSettings(model=str(folder), quantization="fp8")).quantization.checkpoint


def test_a_method_of_checkpoints_is_refused_for_one_that_is_not_quantized(model_folder: ModelFolder) -> None:
    with pytest.raises(InvalidConfigError, match="quantization is 'fp8'; allowed with this checkpoint: None"):
        load_model(EngineSettings(model=str(model_folder("llama")), quantization="fp8"))


def fp8_checkpoint(source: Path, folder: Path, block: int | None) -> Path:
    """Write a model with 8-bit floats in its linear layers, with one scale each or one for each block."""
    folder.mkdir()
    section: dict[str, object] = {"quant_method": "fp8", "activation_scheme": "dynamic"}
    tensors = {}
    for name, tensor in load_file(source / "model.safetensors").items():
        tensors[name] = tensor
        if "_proj.weight" not in name:
            continue
        if block is None:
            scale = tensor.abs().max() / 448
            tensors[f"{name}_scale"] = scale
        else:
            grouped = tensor.view(len(tensor) // block, block, -1, block)
            scales = grouped.abs().amax(dim=(1, 3)) / 448
            tensors[f"{name}_scale_inv"] = scales
            scale = scales.repeat_interleave(block, 0).repeat_interleave(block, 1)
        tensors[name] = (tensor / scale).to(torch.float8_e4m3fn)
    save_file(tensors, folder / "model.safetensors")
    config = json.loads((source / "config.json").read_text())
    if block is not None:
        section["weight_block_size"] = [block, block]
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": section}))
    return folder
