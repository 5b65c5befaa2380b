"""The config.json of public encoders, in the spellings of their time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest
from transformers import AutoConfig

from baton_core.errors import InvalidConfigError, InvalidModelError
from baton_core.ranks.rank_layout import ParallelSizes
from baton_engine.models.divisible import require_divisible
from baton_engine.models.encoder_config import EncoderConfig
from baton_engine.models.registry import read_model_config
from baton_engine.models.rope_config import LinearScaling

XLM_R_BASE: Final[dict[str, Any]] = {
    "architectures": ["XLMRobertaForSequenceClassification"],
    "hidden_act": "gelu",
    "hidden_size": 768,
    "id2label": {"0": "LABEL_0"},
    "intermediate_size": 3072,
    "layer_norm_eps": 1e-05,
    "max_position_embeddings": 514,
    "model_type": "xlm-roberta",
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "output_past": True,
    "pad_token_id": 1,
    "position_embedding_type": "absolute",
    "torch_dtype": "float32",
    "type_vocab_size": 1,
    "vocab_size": 250002,
}
MODERNBERT_BASE: Final[dict[str, Any]] = {
    "architectures": ["ModernBertModel"],
    "attention_bias": False,
    "classifier_pooling": "mean",
    "global_attn_every_n_layers": 3,
    "global_rope_theta": 160000.0,
    "hidden_activation": "gelu",
    "hidden_size": 768,
    "intermediate_size": 1152,
    "local_attention": 128,
    "local_rope_theta": 10000.0,
    "max_position_embeddings": 8192,
    "mlp_bias": False,
    "model_type": "modernbert",
    "norm_bias": False,
    "norm_eps": 1e-05,
    "num_attention_heads": 12,
    "num_hidden_layers": 22,
    "position_embedding_type": "absolute",
    "torch_dtype": "float16",
    "vocab_size": 50368,
}
NOMIC_BASE: Final[dict[str, Any]] = {
    "activation_function": "swiglu",
    "architectures": ["NomicBertModel"],
    "causal": False,
    "layer_norm_epsilon": 1e-12,
    "max_trained_positions": 2048,
    "mlp_fc1_bias": False,
    "mlp_fc2_bias": False,
    "model_type": "nomic_bert",
    "n_embd": 768,
    "n_head": 12,
    "n_inner": 3072,
    "n_layer": 12,
    "n_positions": 8192,
    "prenorm": False,
    "qkv_proj_bias": False,
    "rotary_emb_base": 1000,
    "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False,
    "rotary_scaling_factor": None,
    "torch_dtype": "float32",
    "type_vocab_size": 2,
    "vocab_size": 30528,
}


def read(folder: Path, values: dict[str, Any]) -> EncoderConfig:
    (folder / "config.json").write_text(json.dumps(values))
    config = read_model_config(folder)
    assert isinstance(config, EncoderConfig)
    return config


def test_positions_of_roberta_begin_behind_its_padding(tmp_path: Path) -> None:
    config = read(tmp_path, XLM_R_BASE)
    assert (config.num_positions, config.position_offset, config.max_position_embeddings) == (514, 2, 512)
    assert (config.family, config.names.prefix, config.num_token_types) == ("XLMRoberta", "roberta.", 1)


def test_modernbert_alternates_windows_and_bases(tmp_path: Path) -> None:
    config = read(tmp_path, MODERNBERT_BASE)
    full = [number for number, layer in enumerate(config.layers) if layer.window is None]
    assert full == [0, 3, 6, 9, 12, 15, 18, 21]
    found = {(layer.window, layer.rope.theta) for layer in config.layers if layer.rope}
    assert found == {(None, 160_000.0), (64, 10_000.0)}
    assert config.dtype == "float16"


def test_a_scaling_beside_sections_of_modernbert_is_as_in_transformers(tmp_path: Path) -> None:
    sections = {name: {"rope_type": "default"} for name in ("full_attention", "sliding_attention")}
    scaling = {"rope_type": "linear", "factor": 3.0}
    config = read(tmp_path, MODERNBERT_BASE | {"rope_parameters": sections, "rope_scaling": scaling})
    theirs = AutoConfig.from_pretrained(tmp_path).rope_parameters
    for layer in config.layers:
        rope = theirs["full_attention" if layer.window is None else "sliding_attention"]
        assert layer.rope is not None
        assert layer.rope.scaling == LinearScaling(factor=rope["factor"])
        assert layer.rope.theta == rope["rope_theta"]


def test_nomic_bert_has_names_of_its_own(tmp_path: Path) -> None:
    config = read(tmp_path, NOMIC_BASE)
    sizes = config.hidden_size, config.intermediate_size, config.num_heads, len(config.layers)
    assert sizes == (768, 3072, 12, 12)
    assert config.max_position_embeddings == 2048
    assert config.layers[0].rope is not None
    assert (config.layers[0].rope.theta, config.layers[0].rope.rotary_dim) == (1000.0, 64)


@pytest.mark.parametrize(("name", "meant"), [("gelu_python", "gelu"), ("swish", "silu")])
def test_activations_have_further_names(name: str, meant: str, tmp_path: Path) -> None:
    assert read(tmp_path, XLM_R_BASE | {"hidden_act": name}).activation == meant
    assert read(tmp_path, MODERNBERT_BASE | {"hidden_activation": name}).activation == meant


@pytest.mark.parametrize(
    ("values", "changes"),
    [
        (XLM_R_BASE, {"position_embedding_type": "relative_key"}),
        (XLM_R_BASE, {"max_position_embeddings": 2}),
        (MODERNBERT_BASE, {"layer_types": ["full_attention"]}),
        (MODERNBERT_BASE, {"hidden_activation": "relu"}),
        (NOMIC_BASE, {"qkv_proj_bias": True}),
        (NOMIC_BASE, {"rotary_emb_fraction": 0.5}),
        (NOMIC_BASE, {"n_head": 7}),
    ],
)
def test_what_an_encoder_cannot_have_is_refused_by_name(
    values: dict[str, Any], changes: dict[str, Any], tmp_path: Path
) -> None:
    name = {"n_head": "num_attention_heads"}.get(*(2 * list(changes)))
    with pytest.raises(InvalidModelError, match=rf"{name} is .*; allowed: "):
        read(tmp_path, values | changes)


def test_an_encoder_is_not_divided(tmp_path: Path) -> None:
    with pytest.raises(
        InvalidConfigError, match=r"tensor_parallel_size is 2; allowed with .*: 1 \(an encoder"
    ):
        require_divisible(read(tmp_path, XLM_R_BASE), ParallelSizes(tensor=2))
