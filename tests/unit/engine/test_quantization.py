"""Models with int8 layers: close to the model as stored, the same bits in any company, refused by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from baton_core.errors import InvalidConfigError
from baton_engine.checkpoint.weights import WeightReader
from baton_engine.loading import EngineSettings, load_model
from baton_engine.models.registry import read_model_config
from baton_engine.quantization import Quantization, require_quantizable
from baton_kernels.selection import select_kernels
from tests.unit.engine.test_batch_invariance import PROMPT, Machine, mixed_steps

ModelFolder = Callable[[str], Path]


@pytest.mark.parametrize("variant", ["llama-biased", "qwen3", "gemma2", "gpt2", "opt"])
def test_logits_are_near_those_of_the_model_as_stored(variant: str, model_folder: ModelFolder) -> None:
    folder = model_folder(variant)
    kernels = select_kernels("cpu")
    plain, quantized = (
        Machine(folder, kernels=kernels, is_quantized=is_quantized).logits(PROMPT, len(PROMPT))
        for is_quantized in (False, True)
    )
    difference = (quantized - plain).norm() / plain.norm()
    assert 1e-4 < difference < 0.1


@pytest.mark.usefixtures("needs_build")
@pytest.mark.parametrize("variant", ["qwen2", "gpt2"])
def test_batch_invariant_logits_are_so_with_int8_layers_too(variant: str, model_folder: ModelFolder) -> None:
    machine = Machine(model_folder(variant), is_quantized=True)
    alone = machine.logits(PROMPT, len(PROMPT))
    assert torch.equal(machine.logits(PROMPT, 7), alone)
    assert torch.equal(mixed_steps(machine, 0), alone)


def test_layers_take_a_byte_for_each_weight_and_count_so(model_folder: ModelFolder) -> None:
    folder = model_folder("llama")
    plain, quantized = (
        Machine(folder, kernels=select_kernels("cpu"), is_quantized=is_quantized).weights.loaded_bytes
        for is_quantized in (False, True)
    )
    embedding = read_model_config(folder).vocab_size * 64 * 4
    assert (quantized - embedding) / (plain - embedding) == pytest.approx(0.27, abs=0.03)


def test_codes_come_from_the_values_of_the_file_whatever_the_element_type(model_folder: ModelFolder) -> None:
    name, shape = "model.layers.0.self_attn.q_proj.weight", (64, 64)
    reader = WeightReader(model_folder("llama"), torch.bfloat16, is_quantized=True)
    stored = WeightReader(model_folder("llama"), torch.float32).load(name, shape)
    assert torch.equal(reader.load(name, shape, reader.linear_dtype), stored)
    assert not torch.equal(reader.load(name, shape).float(), stored)


@pytest.mark.parametrize(
    ("variant", "where"),
    [
        ("qwen3-moe", "Qwen3MoeForCausalLM, a mixture of experts"),
        ("granite", "GraniteForCausalLM, which runs through Transformers"),
    ],
)
def test_models_without_such_layers_are_refused_by_name(
    variant: str, where: str, model_folder: ModelFolder
) -> None:
    with pytest.raises(InvalidConfigError, match=rf"^quantization is 'int8'; allowed with {where}: None$"):
        load_model(EngineSettings(model=str(model_folder(variant)), quantization=Quantization.INT8))


def test_a_gpu_is_refused_by_name(model_folder: ModelFolder) -> None:
    config = read_model_config(model_folder("llama"))
    with pytest.raises(InvalidConfigError, match=r"^quantization is 'int8'; allowed with a GPU: None$"):
        require_quantizable(Quantization.INT8, config, torch.device("cuda"))
    require_quantizable(None, config, torch.device("cuda"))
