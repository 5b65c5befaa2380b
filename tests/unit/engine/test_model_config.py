"""Reading configurations, and refusing what the engine cannot run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from baton_core.errors import InvalidModelError
from baton_engine.model_config import RopeParameters, read_model_config
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


@pytest.mark.parametrize("variant", VARIANTS)
def test_what_transformers_writes_is_read(variant: str, model_folder: Callable[[str], Path]) -> None:
    config, spec = read_model_config(model_folder(variant)), VARIANTS[variant]
    assert (config.num_layers, config.num_heads, config.num_kv_heads, config.head_dim) == (
        spec.num_layers,
        spec.num_heads,
        spec.num_kv_heads,
        spec.head_dim,
    )
    assert config.tie_word_embeddings == spec.is_tied
    assert config.eos_token_ids == (EOS_TOKEN_ID,)
    assert config.dtype == "float32"


def test_older_keys_mean_the_same_as_newer_ones(tmp_path: Path) -> None:
    write_config(tmp_path, rope_theta=5e5, rope_scaling=LLAMA3, torch_dtype="bfloat16")
    older = read_model_config(tmp_path)
    write_config(tmp_path, rope_parameters=LLAMA3 | {"rope_theta": 5e5}, dtype="bfloat16")
    assert read_model_config(tmp_path) == older
    assert older.dtype == "bfloat16"
    assert older.rope == RopeParameters(
        rope_type="llama3",
        theta=5e5,
        factor=8.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_position_embeddings=64,
    )


def test_absent_keys_have_the_defaults_of_the_family(tmp_path: Path) -> None:
    config = read_model_config(write_config(tmp_path, num_key_value_heads=None, rope_scaling=None))
    assert (config.num_kv_heads, config.head_dim, config.rope.theta) == (4, 16, 10_000.0)
    assert (config.dtype, config.rms_norm_eps, config.tie_word_embeddings) == ("float32", 1e-6, False)
    assert config.layer_windows == (None, None, None)
    qwen3 = read_model_config(write_config(tmp_path, architectures=["Qwen3ForCausalLM"]))
    assert (qwen3.head_dim, qwen3.has_qk_norm, qwen3.has_qkv_bias) == (128, True, False)


@pytest.mark.parametrize(
    ("changes", "windows"),
    [
        ({"architectures": ["MistralForCausalLM"]}, (None, None, None)),
        ({"architectures": ["MistralForCausalLM"], "sliding_window": 9}, (9, 9, 9)),
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
    ],
)
def test_windows_are_known_for_each_layer(
    changes: dict[str, Any], windows: tuple[int | None, ...], tmp_path: Path
) -> None:
    assert read_model_config(write_config(tmp_path, **changes)).layer_windows == windows


def test_end_tokens_of_both_files_count_once(tmp_path: Path) -> None:
    write_config(tmp_path, eos_token_id=[2, 7])
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 9]}))
    assert read_model_config(tmp_path).eos_token_ids == (2, 7, 9)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"architectures": ["GPT2LMHeadModel"]}, "architectures is ['GPT2LMHeadModel']; allowed: one of Llama"),
    ({"architectures": None}, "architectures is None"),
    ({"num_attention_heads": 0}, "num_attention_heads is 0; allowed: an integer of at least 1"),
    ({"num_attention_heads": "4"}, "num_attention_heads is '4'"),
    ({"num_hidden_layers": True}, "num_hidden_layers is True"),
    ({"vocab_size": None}, "vocab_size is None"),
    ({"hidden_size": 66}, "hidden_size is 66; allowed: a multiple of num_attention_heads (4)"),
    ({"hidden_size": 12}, "head_dim is 3; allowed: an even number"),
    ({"num_key_value_heads": 3}, "num_key_value_heads is 3; allowed: a divisor of num_attention_heads (4)"),
    ({"rms_norm_eps": -1.0}, "rms_norm_eps is -1.0; allowed: a finite number above 0"),
    ({"rope_theta": float("nan")}, "rope_theta is nan"),
    ({"rope_scaling": {"type": "yarn", "factor": 2.0}}, "type is 'yarn'; allowed: default, linear, llama3"),
    ({"rope_scaling": [1]}, "rope_scaling is [1]; allowed: an object"),
    ({"rope_scaling": {"type": "linear"}}, "rope_scaling: factor is None"),
    (
        {"rope_scaling": LLAMA3 | {"high_freq_factor": 1.0}},
        "high_freq_factor is 1.0; allowed: a number above",
    ),
    ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5; allowed: 1.0"),
    ({"tie_word_embeddings": 1}, "tie_word_embeddings is 1; allowed: true, false"),
    ({"hidden_act": "gelu"}, "hidden_act is 'gelu'; allowed: silu"),
    ({"dtype": "int8"}, "dtype is 'int8'; allowed: float32, bfloat16, float16"),
    ({"eos_token_id": [-1]}, "eos_token_id is [-1]"),
    (
        {"quantization_config": {"bits": 4}},
        "quantization_config is {'bits': 4}; allowed: unquantized weights",
    ),
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
