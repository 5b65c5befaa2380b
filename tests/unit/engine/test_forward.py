"""The native decoder against Transformers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from baton_engine.models.step_attention import StepAttention
from baton_kernels.interface.kernels import AttentionBatch
from baton_kernels.selection import select_kernels
from tests.models import (
    DYNAMIC_ROPE,
    LONGROPE,
    VARIANTS,
    YARN_ROPE,
    change_config,
    make_model,
    make_prompt,
    reference_logits,
)
from tests.unit.engine.steps import BLOCK_SIZE, group_tables, load_model

pytestmark = pytest.mark.slow

PROMPT_LEN = 45
GPT2_SIZES = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
}
BLOCK_IDS = [4, 1, 7, 0, 6, 2]


@torch.inference_mode()
def native_logits(
    folder: Path,
    token_ids: list[int],
    chunk_len: int,
    dtype: torch.dtype = torch.float32,
    max_model_len: int | None = None,
    rows: list[int] | None = None,
) -> Tensor:
    model, kv_spec = load_model(folder, dtype, max_model_len)
    num_groups = len(kv_spec.groups)
    kv_pool = torch.full((8 * num_groups, *kv_spec.block_shape), torch.nan, dtype=dtype)
    kernels = select_kernels("cpu")
    logits = []
    for start in range(0, len(token_ids), chunk_len):
        chunk = token_ids[start : start + chunk_len]
        batches = [
            AttentionBatch.build(
                query_lens=[len(chunk)],
                context_lens=[start + len(chunk)],
                block_tables=[table],
                block_size=BLOCK_SIZE,
                window=group.window,
            )
            for group, table in zip(kv_spec.groups, group_tables(BLOCK_IDS, num_groups), strict=True)
        ]
        attention = StepAttention(kernels.attention, kv_pool, kv_spec, batches)
        wanted = None if rows is None else torch.tensor(rows)
        logits.append(model.logits(model.forward(torch.tensor(chunk), attention, wanted)))
    return torch.cat(logits)


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_equal_those_of_transformers(variant: str, model_folder: Callable[[str], Path]) -> None:
    folder, prompt = model_folder(variant), make_prompt(PROMPT_LEN)
    expected = reference_logits(folder, prompt)
    torch.testing.assert_close(native_logits(folder, prompt, PROMPT_LEN), expected, atol=2e-5, rtol=0)


@pytest.mark.parametrize("variant", VARIANTS)
def test_wanted_rows_alone_have_the_logits_of_transformers(
    variant: str, model_folder: Callable[[str], Path]
) -> None:
    folder, prompt, rows = model_folder(variant), make_prompt(PROMPT_LEN), [3, PROMPT_LEN - 1]
    expected = reference_logits(folder, prompt)[rows]
    logits = native_logits(folder, prompt, PROMPT_LEN, rows=rows)
    torch.testing.assert_close(logits, expected, atol=2e-5, rtol=0)


@pytest.mark.parametrize("chunk_len", [1, 7, BLOCK_SIZE, 31])
@pytest.mark.parametrize("variant", ["llama", "qwen2-mixed-windows", "mistral-window", "gemma3", "gpt-oss"])
def test_a_prompt_in_chunks_gives_the_logits_of_the_whole(
    variant: str, chunk_len: int, model_folder: Callable[[str], Path]
) -> None:
    folder, prompt = model_folder(variant), make_prompt(PROMPT_LEN)
    expected = reference_logits(folder, prompt)
    torch.testing.assert_close(native_logits(folder, prompt, chunk_len), expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("variant", "rope", "trained_len", "max_model_len"),
    [
        ("phi3-longrope", {"original_max_position_embeddings": 64}, 512, 64),
        ("phi3-longrope", {"original_max_position_embeddings": 44}, 512, None),
        ("llama", {"rope_parameters": DYNAMIC_ROPE}, 20, PROMPT_LEN),
        ("llama", {"rope_parameters": DYNAMIC_ROPE}, 512, None),
        ("llama", {"rope_parameters": {**YARN_ROPE, "original_max_position_embeddings": 20}}, 20, PROMPT_LEN),
    ],
    ids=["short-factors", "long-factors", "stretched", "not-stretched", "yarn"],
)
def test_frequencies_of_the_served_length_are_those_of_transformers(
    variant: str, rope: dict[str, Any], trained_len: int, max_model_len: int | None, tmp_path: Path
) -> None:
    extra = tuple((dict(VARIANTS[variant].extra) | rope).items())
    folder = make_model(tmp_path / "model", variant, extra=extra, max_position_embeddings=trained_len)
    prompt = make_prompt(PROMPT_LEN)
    native = native_logits(folder, prompt, 7, max_model_len=max_model_len)
    torch.testing.assert_close(native, reference_logits(folder, prompt), atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("variant", "changes"),
    [
        ("gemma3", {"rope_scaling": {"rope_type": "linear", "factor": 3.0}}),
        ("phi3-longrope", {"rope_parameters": LONGROPE | {"rope_type": "yarn"}}),
        (
            "phi3-longrope",
            {
                "original_max_position_embeddings": None,
                "rope_parameters": LONGROPE | {"original_max_position_embeddings": 16},
            },
        ),
        ("mistral-window", {"layer_types": ["sliding_attention", "full_attention"]}),
        ("llama", {"hidden_act": "swish"}),
        ("gpt2", dict.fromkeys(("n_embd", "n_layer", "n_head", "n_positions")) | GPT2_SIZES),
    ],
    ids=[
        "scaling beside sections",
        "older name",
        "original length beside the section",
        "types of layers",
        "swish",
        "usual keys",
    ],
)
def test_keys_mean_what_they_mean_to_transformers(
    variant: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    folder, prompt = (
        change_config(make_model(tmp_path / "model", variant), **changes),
        make_prompt(PROMPT_LEN),
    )
    native = native_logits(folder, prompt, PROMPT_LEN)
    torch.testing.assert_close(native, reference_logits(folder, prompt), atol=1e-4, rtol=0)


def test_qwen3_with_experts_has_four_key_heads_where_it_says_nothing(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "model", "qwen3-moe", num_heads=8, num_kv_heads=4)
    change_config(folder, num_key_value_heads=None)
    prompt = make_prompt(9)
    expected = reference_logits(folder, prompt)
    torch.testing.assert_close(native_logits(folder, prompt, 9), expected, atol=1e-4, rtol=0)


def test_a_sharded_model_equals_the_single_file(tmp_path: Path, model_folder: Callable[[str], Path]) -> None:
    sharded = make_model(tmp_path / "sharded", is_sharded=True)
    assert len(list(sharded.glob("*.safetensors"))) > 1
    prompt = make_prompt(PROMPT_LEN)
    whole = native_logits(model_folder("llama"), prompt, PROMPT_LEN)
    assert torch.equal(native_logits(sharded, prompt, PROMPT_LEN), whole)


@pytest.mark.parametrize("variant", ["llama", "qwen3", "gemma2", "gemma3", "gpt-oss"])
def test_bfloat16_is_as_close_to_float32_as_that_of_transformers(variant: str, tmp_path: Path) -> None:
    folder, prompt = make_model(tmp_path / "model", variant, dtype=torch.bfloat16), make_prompt(PROMPT_LEN)
    exact = native_logits(folder, prompt, PROMPT_LEN)
    theirs = (reference_logits(folder, prompt).float() - exact).square().mean().sqrt()
    ours = (native_logits(folder, prompt, PROMPT_LEN, torch.bfloat16).float() - exact).square().mean().sqrt()
    assert 0 < ours < 1.2 * theirs
