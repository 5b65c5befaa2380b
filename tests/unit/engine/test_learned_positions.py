"""GPT-2 and OPT beyond the shapes that every family is compared in."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from baton_core.errors import InvalidModelError
from baton_engine.models.registry import read_model_config
from baton_engine.sizing import KVCacheSettings, MemoryState, plan_kv_cache
from tests.models import VARIANTS, change_config, make_model, make_prompt, reference_logits
from tests.unit.engine.test_forward import native_logits


@pytest.mark.parametrize(
    ("variant", "extra"),
    [
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True, "activation_function": "relu"}),
        ("gpt2", {"scale_attn_weights": False, "n_inner": None}),
        ("opt", {"enable_bias": False, "activation_function": "gelu"}),
        ("opt", {"layer_norm_elementwise_affine": False, "_remove_final_layer_norm": True}),
    ],
)
def test_the_options_of_a_family_mean_what_they_mean_to_transformers(
    variant: str, extra: dict[str, object], tmp_path: Path
) -> None:
    options = (*VARIANTS[variant].extra, *extra.items())
    folder, prompt = make_model(tmp_path / "model", variant, extra=options, is_tied=False), make_prompt(20)
    expected = reference_logits(folder, prompt)
    torch.testing.assert_close(native_logits(folder, prompt, 20), expected, atol=5e-5, rtol=0)
    torch.testing.assert_close(
        native_logits(folder, prompt, 20, rows=[6, 19]), expected[[6, 19]], atol=5e-5, rtol=0
    )


def test_names_without_prefix_are_read(tmp_path: Path, model_folder: Callable[[str], Path]) -> None:
    folder = Path(shutil.copytree(model_folder("gpt2"), tmp_path / "model"))
    tensors = load_file(folder / "model.safetensors")
    bare = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
    save_file(bare, folder / "model.safetensors")
    prompt = make_prompt(9)
    assert torch.equal(native_logits(folder, prompt, 9), native_logits(model_folder("gpt2"), prompt, 9))


def test_an_older_configuration_says_the_same(tmp_path: Path, model_folder: Callable[[str], Path]) -> None:
    folder = Path(shutil.copytree(model_folder("opt"), tmp_path / "model"))
    newer = read_model_config(folder)
    values = json.loads((folder / "config.json").read_text())
    for key in ("enable_bias", "layer_norm_elementwise_affine", "tie_word_embeddings", "dtype"):
        del values[key]
    (folder / "config.json").write_text(json.dumps(values | {"torch_dtype": "float32"}))
    assert read_model_config(folder) == newer


@pytest.mark.parametrize("variant", ["gpt2", "opt"])
def test_no_sequence_is_longer_than_the_table_of_positions(
    variant: str, model_folder: Callable[[str], Path]
) -> None:
    config = read_model_config(model_folder(variant))
    memory = MemoryState(device_type="cpu", free_bytes=1 << 30, weight_bytes=0)
    plan = plan_kv_cache(
        config.kv_spec(16, "float32"), config.max_position_embeddings, KVCacheSettings(), memory
    )
    assert plan.max_model_len == VARIANTS[variant].max_position_embeddings


@pytest.mark.parametrize(
    ("variant", "key", "value", "allowed"),
    [
        ("gpt2", "add_cross_attention", True, "false"),
        ("opt", "is_causal", False, "true"),
        ("gpt2", "activation_function", "tanh", "gelu, gelu_new, gelu_pytorch_tanh, relu"),
        ("gpt2", "n_head", 7, r"a divisor of n_embd \(64\)"),
        ("opt", "num_attention_heads", 7, r"a divisor of hidden_size \(64\)"),
        ("opt", "num_hidden_layers", 0, "an integer of 1 to"),
    ],
)
def test_what_a_family_does_not_have_is_refused(
    variant: str, key: str, value: object, allowed: str, tmp_path: Path, model_folder: Callable[[str], Path]
) -> None:
    folder = Path(shutil.copytree(model_folder(variant), tmp_path / "model"))
    change_config(folder, **{key: value})
    with pytest.raises(InvalidModelError, match=rf"{key} is {value!r}; allowed: {allowed}"):
        read_model_config(folder)


def test_a_table_of_another_length_is_refused(tmp_path: Path, model_folder: Callable[[str], Path]) -> None:
    folder = Path(shutil.copytree(model_folder("opt"), tmp_path / "model"))
    change_config(folder, max_position_embeddings=600)
    with pytest.raises(InvalidModelError, match=r"has shape \[514, 64\]; allowed: \[602, 64\]"):
        native_logits(folder, make_prompt(2), 2)
