"""The config.json of public checkpoints: read whole, with what follows for layers, heads and cache."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, Final

import pytest

from baton_core.kv_layout.kv_spec import KVGroup
from baton_engine.models.decoder_config import DecoderConfig
from baton_engine.models.mixture_config import ClampedSwiGLU
from baton_engine.models.registry import read_model_config
from baton_engine.models.rope_config import LongRopeScaling

GEMMA2_2B: Final[dict[str, Any]] = {
    "architectures": ["Gemma2ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "attn_logit_softcapping": 50.0,
    "bos_token_id": 2,
    "cache_implementation": "hybrid",
    "eos_token_id": 1,
    "final_logit_softcapping": 30.0,
    "head_dim": 256,
    "hidden_act": "gelu_pytorch_tanh",
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 2304,
    "initializer_range": 0.02,
    "intermediate_size": 9216,
    "max_position_embeddings": 8192,
    "model_type": "gemma2",
    "num_attention_heads": 8,
    "num_hidden_layers": 26,
    "num_key_value_heads": 4,
    "pad_token_id": 0,
    "query_pre_attn_scalar": 256,
    "rms_norm_eps": 1e-06,
    "rope_theta": 10000.0,
    "sliding_window": 4096,
    "torch_dtype": "float32",
    "transformers_version": "4.42.4",
    "use_cache": True,
    "vocab_size": 256000,
}
GEMMA3_1B: Final[dict[str, Any]] = {
    "architectures": ["Gemma3ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "attn_logit_softcapping": None,
    "bos_token_id": 2,
    "cache_implementation": "hybrid",
    "eos_token_id": [1, 106],
    "final_logit_softcapping": None,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 1152,
    "initializer_range": 0.02,
    "intermediate_size": 6912,
    "max_position_embeddings": 32768,
    "model_type": "gemma3_text",
    "num_attention_heads": 4,
    "num_hidden_layers": 26,
    "num_key_value_heads": 1,
    "pad_token_id": 0,
    "query_pre_attn_scalar": 256,
    "rms_norm_eps": 1e-06,
    "rope_local_base_freq": 10000,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": 512,
    "sliding_window_pattern": 6,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.50.0.dev0",
    "use_cache": True,
    "vocab_size": 262144,
}
PHI3_MINI_4K: Final[dict[str, Any]] = {
    "architectures": ["Phi3ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "auto_map": {
        "AutoConfig": "configuration_phi3.Phi3Config",
        "AutoModelForCausalLM": "modeling_phi3.Phi3ForCausalLM",
    },
    "bos_token_id": 1,
    "embd_pdrop": 0.0,
    "eos_token_id": 32000,
    "hidden_act": "silu",
    "hidden_size": 3072,
    "initializer_range": 0.02,
    "intermediate_size": 8192,
    "max_position_embeddings": 4096,
    "model_type": "phi3",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 32,
    "original_max_position_embeddings": 4096,
    "pad_token_id": 32000,
    "resid_pdrop": 0.0,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 10000.0,
    "sliding_window": 2047,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "vocab_size": 32064,
}
SHORT_FACTORS, LONG_FACTORS = [1.0 + i / 48 for i in range(48)], [1.0 + i for i in range(48)]
PHI3_MINI_128K: Final[dict[str, Any]] = PHI3_MINI_4K | {
    "max_position_embeddings": 131072,
    "rope_scaling": {"type": "longrope", "short_factor": SHORT_FACTORS, "long_factor": LONG_FACTORS},
    "sliding_window": 262144,
}
PHI4_MINI: Final[dict[str, Any]] = PHI3_MINI_128K | {
    "eos_token_id": 199999,
    "full_attn_mod": 1,
    "interpolate_factor": 1,
    "lm_head_bias": False,
    "mlp_bias": False,
    "num_attention_heads": 24,
    "num_key_value_heads": 8,
    "partial_rotary_factor": 0.75,
    "tie_word_embeddings": True,
    "vocab_size": 200064,
}
MIXTRAL_8X7B: Final[dict[str, Any]] = {
    "architectures": ["MixtralForCausalLM"],
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 14336,
    "max_position_embeddings": 32768,
    "model_type": "mixtral",
    "num_attention_heads": 32,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "num_local_experts": 8,
    "output_router_logits": False,
    "rms_norm_eps": 1e-05,
    "rope_theta": 1000000.0,
    "router_aux_loss_coef": 0.02,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "vocab_size": 32000,
}
QWEN3_30B_A3B: Final[dict[str, Any]] = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 151643,
    "decoder_sparse_step": 1,
    "eos_token_id": 151645,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "initializer_range": 0.02,
    "intermediate_size": 6144,
    "max_position_embeddings": 40960,
    "max_window_layers": 48,
    "mlp_only_layers": [],
    "model_type": "qwen3_moe",
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
    "num_attention_heads": 32,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "output_router_logits": False,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000.0,
    "router_aux_loss_coef": 0.001,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
QWEN2_57B_A14B: Final[dict[str, Any]] = {
    "architectures": ["Qwen2MoeForCausalLM"],
    "attention_dropout": 0.0,
    "bos_token_id": 151643,
    "decoder_sparse_step": 1,
    "eos_token_id": 151643,
    "hidden_act": "silu",
    "hidden_size": 3584,
    "initializer_range": 0.02,
    "intermediate_size": 18944,
    "max_position_embeddings": 131072,
    "max_window_layers": 28,
    "model_type": "qwen2_moe",
    "moe_intermediate_size": 2560,
    "norm_topk_prob": False,
    "num_attention_heads": 28,
    "num_experts": 64,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 28,
    "num_key_value_heads": 4,
    "output_router_logits": False,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "router_aux_loss_coef": 0.001,
    "shared_expert_intermediate_size": 20480,
    "sliding_window": 65536,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
GPT_OSS_20B: Final[dict[str, Any]] = {
    "architectures": ["GptOssForCausalLM"],
    "attention_bias": True,
    "attention_dropout": 0.0,
    "eos_token_id": 200002,
    "experts_per_token": 4,
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 2880,
    "initial_context_length": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 2880,
    "layer_types": ["sliding_attention", "full_attention"] * 12,
    "max_position_embeddings": 131072,
    "model_type": "gpt_oss",
    "num_attention_heads": 64,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 24,
    "num_key_value_heads": 8,
    "num_local_experts": 32,
    "output_router_logits": False,
    "pad_token_id": 199999,
    "quantization_config": {
        "modules_to_not_convert": [
            "model.layers.*.self_attn",
            "model.layers.*.mlp.router",
            "model.embed_tokens",
            "lm_head",
        ],
        "quant_method": "mxfp4",
    },
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "factor": 32.0,
        "original_max_position_embeddings": 4096,
        "rope_type": "yarn",
        "truncate": False,
    },
    "rope_theta": 150000,
    "router_aux_loss_coef": 0.9,
    "sliding_window": 128,
    "swiglu_limit": 7.0,
    "tie_word_embeddings": False,
    "use_cache": True,
    "vocab_size": 201088,
}


def read(folder: Path, values: dict[str, Any], max_model_len: int | None = None) -> DecoderConfig:
    (folder / "config.json").write_text(json.dumps(values))
    config = read_model_config(folder, max_model_len)
    assert isinstance(config, DecoderConfig)
    return config


@pytest.mark.parametrize(
    ("values", "num_layers", "heads", "windows"),
    [
        (GEMMA2_2B, 26, (8, 4, 256), {4096: 13, None: 13}),
        (GEMMA3_1B, 26, (4, 1, 256), {512: 22, None: 4}),
        (PHI3_MINI_4K, 32, (32, 32, 96), {2047: 32}),
        (PHI3_MINI_128K, 32, (32, 32, 96), {None: 32}),
        (PHI4_MINI, 32, (24, 8, 128), {None: 32}),
        (MIXTRAL_8X7B, 32, (32, 8, 128), {None: 32}),
        (QWEN3_30B_A3B, 48, (32, 4, 128), {None: 48}),
        (QWEN2_57B_A14B, 28, (28, 4, 128), {None: 28}),
        (GPT_OSS_20B, 24, (64, 8, 64), {128: 12, None: 12}),
    ],
    ids=lambda value: (
        value["architectures"][0] if isinstance(value, dict) and "architectures" in value else ""
    ),
)
def test_a_public_config_gives_its_layers_and_heads(
    values: dict[str, Any],
    num_layers: int,
    heads: tuple[int, int, int],
    windows: dict[int | None, int],
    tmp_path: Path,
) -> None:
    config = read(tmp_path, values)
    attention = config.attention
    assert (attention.num_heads, attention.num_kv_heads, attention.head_dim) == heads
    found = [layer.window for layer in config.layers]
    assert len(found) == num_layers
    assert {window: found.count(window) for window in found} == windows
    assert config.max_position_embeddings == values["max_position_embeddings"]
    assert config.dtype == values.get("torch_dtype", "bfloat16")


def test_gemma2_alternates_windows_and_caps_scores_and_logits(tmp_path: Path) -> None:
    config = read(tmp_path, GEMMA2_2B)
    assert set(config.kv_spec(32, "bfloat16").groups) == {
        KVGroup(layers=tuple(range(0, 26, 2)), window=4096),
        KVGroup(layers=tuple(range(1, 26, 2)), window=None),
    }
    assert (config.attention.scale, config.attention.softcap, config.logit_softcap) == (1 / 16, 50.0, 30.0)
    assert (config.embedding_scale, config.feed_forward.activation) == (48.0, "gelu_pytorch_tanh")
    assert config.tie_word_embeddings


def test_gemma3_rotates_local_layers_by_a_base_of_their_own(tmp_path: Path) -> None:
    config = read(tmp_path, GEMMA3_1B)
    full = [number for number, layer in enumerate(config.layers) if layer.window is None]
    assert full == [5, 11, 17, 23]
    assert {layer.rope.theta for layer in config.layers if layer.window} == {1e4}
    assert {config.layers[number].rope.theta for number in full} == {1e6}
    assert config.attention.has_qk_norm
    assert config.eos_token_ids == (1, 106)


@pytest.mark.parametrize(
    ("max_model_len", "factors"), [(None, LONG_FACTORS), (4097, LONG_FACTORS), (4096, SHORT_FACTORS)]
)
def test_longrope_takes_the_factors_of_the_length_that_is_served(
    max_model_len: int | None, factors: list[float], tmp_path: Path
) -> None:
    rope = read(tmp_path, PHI4_MINI, max_model_len).layers[0].rope
    assert (rope.rotary_dim, rope.scaling) == (96, LongRopeScaling(factors=tuple(factors)))
    assert rope.magnitude == pytest.approx(math.sqrt(1 + math.log(32) / math.log(4096)))


def test_workers_with_different_factors_do_not_share_blocks(tmp_path: Path) -> None:
    long, short = read(tmp_path, PHI4_MINI), read(tmp_path, PHI4_MINI, 4096)
    assert long.kv_variant != short.kv_variant
    assert long.kv_variant == read(tmp_path, PHI4_MINI, 8192).kv_variant


def test_experts_are_known(tmp_path: Path) -> None:
    mixtral, qwen3, qwen2 = (
        read(tmp_path, values).mixture for values in (MIXTRAL_8X7B, QWEN3_30B_A3B, QWEN2_57B_A14B)
    )
    assert mixtral is not None
    assert (mixtral.num_experts, mixtral.num_experts_per_token, mixtral.intermediate_size) == (8, 2, 14336)
    assert qwen3 is not None
    assert (qwen3.num_experts, qwen3.num_experts_per_token, qwen3.intermediate_size) == (128, 8, 768)
    assert qwen3.layers == frozenset(range(48))
    assert qwen2 is not None
    assert (qwen2.is_normalized, qwen2.shared_intermediate_size) == (False, 20480)


def test_gpt_oss_has_sinks_biases_and_a_clamped_gate_in_every_layer(tmp_path: Path) -> None:
    config = read(tmp_path, GPT_OSS_20B)
    attention, mixture = config.attention, config.mixture
    assert (attention.has_sinks, attention.has_qkv_bias, attention.has_output_bias) == (True, True, True)
    assert mixture is not None
    assert (mixture.num_experts, mixture.num_experts_per_token, mixture.intermediate_size) == (32, 4, 2880)
    assert mixture.layers == frozenset(range(24))
    assert mixture.swiglu == ClampedSwiGLU(alpha=1.702, limit=7.0)
    rope = config.layers[0].rope
    assert (rope.theta, rope.magnitude) == (150_000, pytest.approx(0.1 * math.log(32) + 1))
    silent = {key: value for key, value in GPT_OSS_20B.items() if not key.startswith(("rope_", "sliding_"))}
    assert read(tmp_path, silent).layers == config.layers
