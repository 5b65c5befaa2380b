"""Reading configurations, and refusing what the engine cannot run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from baton_core.errors import InvalidModelError
from baton_engine.models.decoder_config import DecoderConfig, LayerConfig
from baton_engine.models.registry import read_model_config
from baton_engine.models.rope_config import Llama3Scaling, RopeConfig
from tests.models import EOS_TOKEN_ID, VARIANTS

BASE: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "eos_token_id": 2,
}
EXPERTS = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def write_config(folder: Path, **changes: Any) -> Path:
    (folder / "config.json").write_text(json.dumps(BASE | changes))
    return folder


def read(folder: Path, **changes: Any) -> DecoderConfig:
    """Read a configuration that the native decoder runs."""
    config = read_model_config(write_config(folder, **changes))
    assert isinstance(config, DecoderConfig)
    return config


@pytest.mark.parametrize("variant", VARIANTS)
def test_what_transformers_writes_is_read(variant: str, model_folder: Callable[[str], Path]) -> None:
    config, spec = read_model_config(model_folder(variant)), VARIANTS[variant]
    kv_spec = config.kv_spec(16, "float32")
    assert sorted(layer for group in kv_spec.groups for layer in group.layers) == list(range(spec.num_layers))
    assert (kv_spec.num_kv_heads, kv_spec.head_dim) == (spec.num_kv_heads, spec.head_dim)
    longest = spec.max_position_embeddings * (4 if variant == "llama-linear-rope" else 1)
    assert (config.vocab_size, config.max_position_embeddings) == (spec.vocab_size, longest)
    assert config.eos_token_ids == (EOS_TOKEN_ID,)
    assert config.dtype == "float32"


def test_older_keys_mean_the_same_as_newer_ones(tmp_path: Path) -> None:
    older = read(tmp_path, rope_theta=5e5, rope_scaling=LLAMA3, torch_dtype="bfloat16")
    assert read(tmp_path, rope_parameters=LLAMA3 | {"rope_theta": 5e5}, dtype="bfloat16") == older
    assert older.dtype == "bfloat16"
    assert older.layers[0].rope == RopeConfig(
        rotary_dim=16,
        theta=5e5,
        scaling=Llama3Scaling(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_len=64),
    )


def test_absent_keys_have_the_defaults_of_the_family(tmp_path: Path) -> None:
    llama = read(tmp_path, num_key_value_heads=None, rope_scaling=None)
    assert (llama.attention.num_kv_heads, llama.attention.head_dim) == (4, 16)
    assert (llama.dtype, llama.norm.eps, llama.tie_word_embeddings) == ("float32", 1e-6, False)
    assert llama.layers == (LayerConfig(window=None, rope=RopeConfig(rotary_dim=16, theta=10_000.0)),) * 3
    qwen3 = read(tmp_path, architectures=["Qwen3ForCausalLM"]).attention
    assert (qwen3.head_dim, qwen3.has_qk_norm, qwen3.has_qkv_bias) == (128, True, False)
    gemma2 = read(tmp_path, architectures=["Gemma2ForCausalLM"])
    assert (gemma2.attention.head_dim, gemma2.attention.scale) == (256, 1 / 16)
    assert (gemma2.attention.softcap, gemma2.logit_softcap, gemma2.tie_word_embeddings) == (50.0, 30.0, True)
    uncapped = {"attn_logit_softcapping": None, "final_logit_softcapping": None}
    bare = read(tmp_path, architectures=["Gemma2ForCausalLM"], **uncapped)
    assert (bare.attention.softcap, bare.logit_softcap) == (None, None)


@pytest.mark.parametrize(
    ("changes", "windows"),
    [
        ({"architectures": ["MistralForCausalLM"], "sliding_window": None}, (None, None, None)),
        ({"architectures": ["MistralForCausalLM"], "max_position_embeddings": 9000}, (4096, 4096, 4096)),
        ({"architectures": ["MistralForCausalLM"], "sliding_window": 256}, (None, None, None)),
        ({"architectures": ["MistralForCausalLM"], "sliding_window": 9}, (9, 9, 9)),
        (
            {
                "architectures": ["MistralForCausalLM"],
                "sliding_window": 9,
                "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            },
            (9, None, 9),
        ),
        ({"architectures": ["LlamaForCausalLM"], "sliding_window": 9}, (None, None, None)),
        ({"architectures": ["Qwen2ForCausalLM"], "sliding_window": 9}, (None, None, None)),
        (
            {
                "architectures": ["Qwen2ForCausalLM"],
                "sliding_window": 9,
                "use_sliding_window": True,
                "max_window_layers": 1,
            },
            (None, 9, 9),
        ),
        (
            {
                "architectures": ["Qwen3ForCausalLM"],
                "sliding_window": 9,
                "use_sliding_window": True,
                "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            },
            (9, None, 9),
        ),
        (
            {
                "architectures": ["Qwen2MoeForCausalLM"],
                "sliding_window": 9,
                "use_sliding_window": True,
                "max_window_layers": 2,
                **EXPERTS,
            },
            (9, None, None),
        ),
        ({"architectures": ["Qwen2MoeForCausalLM"], "sliding_window": 0, **EXPERTS}, (None, None, None)),
        (
            {
                "architectures": ["Qwen3MoeForCausalLM"],
                "sliding_window": 9,
                "use_sliding_window": True,
                **EXPERTS,
            },
            (9, 9, 9),
        ),
        ({"architectures": ["Gemma2ForCausalLM"], "sliding_window": 9}, (9, None, 9)),
        (
            {"architectures": ["Gemma3ForCausalLM"], "sliding_window": 9, "sliding_window_pattern": 2},
            (9, None, 9),
        ),
        (
            {
                "architectures": ["Gemma3ForCausalLM"],
                "sliding_window": 9,
                "layer_types": ["full_attention", "sliding_attention", "full_attention"],
            },
            (None, 9, None),
        ),
        ({"architectures": ["Phi3ForCausalLM"], "sliding_window": 9}, (9, 9, 9)),
    ],
)
def test_windows_are_known_for_each_layer(
    changes: dict[str, Any], windows: tuple[int | None, ...], tmp_path: Path
) -> None:
    assert tuple(layer.window for layer in read(tmp_path, **changes).layers) == windows


def test_no_end_token_may_be_spelled_as_a_number(tmp_path: Path) -> None:
    assert read(tmp_path, eos_token_id=-1).eos_token_ids == ()


def test_end_tokens_of_both_files_count_once(tmp_path: Path) -> None:
    write_config(tmp_path, eos_token_id=[2, 7])
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 9]}))
    assert read_model_config(tmp_path).eos_token_ids == (2, 7, 9)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"architectures": ["DebertaV2ForMaskedLM"]}, "architectures is "),
    ({"architectures": None}, "architectures is None"),
    ({"num_attention_heads": 0}, "num_attention_heads is 0; allowed: an integer of 1 to 2147483647"),
    ({"num_attention_heads": "4"}, "num_attention_heads is '4'"),
    ({"num_hidden_layers": True}, "num_hidden_layers is True"),
    ({"vocab_size": None}, "vocab_size is None"),
    ({"hidden_size": 66}, "hidden_size is 66; allowed: a multiple of num_attention_heads (4)"),
    ({"hidden_size": 12}, "head_dim is 3; allowed: an even number"),
    ({"num_key_value_heads": 3}, "num_key_value_heads is 3; allowed: a divisor of num_attention_heads (4)"),
    ({"rms_norm_eps": -1.0}, "rms_norm_eps is -1.0; allowed: a number above 0 and at most 1e+12"),
    ({"rms_norm_eps": 1e300}, "rms_norm_eps is 1e+300; allowed: a number above 0"),
    ({"rope_theta": float("nan")}, "rope_theta is nan"),
    ({"rope_scaling": {"type": "ntk"}}, "type is 'ntk'; allowed: default, linear, dynamic, yarn, longrope"),
    ({"rope_scaling": {"type": "dynamic"}}, "rope_scaling: factor is None"),
    (
        {"rope_scaling": {"type": "yarn", "factor": 2.0, "beta_fast": 0.5}},
        "beta_fast is 0.5; allowed: at least beta_slow (1.0)",
    ),
    (
        {"rope_theta": 1.0, "rope_scaling": {"type": "yarn", "factor": 2.0}},
        "rope_theta is 1.0; allowed: a number above 1",
    ),
    (
        {"rope_scaling": {"type": "longrope", "short_factor": [1.0] * 8, "long_factor": [1.0] * 7}},
        "long_factor is [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]; allowed: a list of 8 numbers",
    ),
    (
        {
            "original_max_position_embeddings": 1,
            "rope_scaling": {"type": "su", "short_factor": [1.0] * 8, "long_factor": [1.0] * 8},
        },
        "original_max_position_embeddings is 1; allowed: at least 2 without attention_factor",
    ),
    ({"rope_scaling": [1]}, "rope_scaling is [1]; allowed: an object"),
    ({"rope_scaling": {"type": "linear"}}, "rope_scaling: factor is None"),
    (
        {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 5e5}}},
        "rope_parameters is {'full_attention': {'rope_type': 'default', 'rope_theta': 500000.0}}; allowed",
    ),
    (
        {"architectures": ["Phi3ForCausalLM"], "rope_scaling": {"type": "linear", "factor": 2.0}},
        "type is 'linear'; allowed: default, longrope, su, yarn",
    ),
    (
        {"rope_scaling": LLAMA3 | {"high_freq_factor": 1.0}},
        "high_freq_factor is 1.0; allowed: a number above",
    ),
    ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5; allowed: 1.0"),
    ({"tie_word_embeddings": 1}, "tie_word_embeddings is 1; allowed: true, false"),
    ({"hidden_act": "gelu"}, "hidden_act is 'gelu'; allowed: silu, swish, gelu_pytorch_tanh"),
    (
        {"architectures": ["MixtralForCausalLM"], "hidden_act": "gelu_pytorch_tanh", **EXPERTS},
        "hidden_act is 'gelu_pytorch_tanh'; allowed: silu",
    ),
    (
        {"architectures": ["Phi3ForCausalLM"], "partial_rotary_factor": 0.2},
        "partial_rotary_factor is 0.2; allowed: at most 1, and such that an even number of the 16 dimensions",
    ),
    (
        {"architectures": ["Gemma3ForCausalLM"], "attn_logit_softcapping": 50.0},
        "attn_logit_softcapping is 50.0; allowed: null",
    ),
    (
        {"architectures": ["Gemma2ForCausalLM"], "is_causal": False},
        "is_causal is False; allowed: true with soft caps or attention sinks",
    ),
    ({"dtype": "int8"}, "dtype is 'int8'; allowed: float32, bfloat16, float16"),
    ({"eos_token_id": [-1]}, "eos_token_id is [-1]"),
    (
        {
            "architectures": ["Qwen2ForCausalLM"],
            "use_sliding_window": True,
            "sliding_window": 4,
            "layer_types": ["chunked_attention"],
        },
        "layer_types is ['chunked_attention']; allowed: 3 names out of full_attention, sliding_attention",
    ),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED)
def test_what_cannot_run_is_refused_by_name(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidModelError) as raised:
        read_model_config(write_config(tmp_path, **changes))
    assert message in str(raised.value)
    assert str(tmp_path / "config.json") in str(raised.value)


@pytest.mark.parametrize(
    ("content", "message"), [(None, "is missing"), ("{", "is not JSON"), ("[]", "holds list")]
)
def test_a_broken_config_file_is_refused(content: str | None, message: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(InvalidModelError, match=message):
        read_model_config(tmp_path)
