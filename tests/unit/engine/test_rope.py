"""Rotary frequencies against those of Transformers."""

from __future__ import annotations

from typing import Any, Final

import pytest
import torch
from transformers import LlamaConfig, Phi3Config, PreTrainedConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from baton_core.errors import InvalidModelError
from baton_engine.checkpoint.config_fields import ConfigFields
from baton_engine.models.rope import RotaryEmbedding, inverse_frequencies
from baton_engine.models.rope_config import RopeConfig, RopeReader
from baton_kernels.interface.kernels import LayerKernels

HEAD_DIM: Final = 32
MAX_LEN: Final = 512
FACTORS: Final = {
    "short_factor": [1 + i / 16 for i in range(16)],
    "long_factor": [1.5 + i for i in range(16)],
    "original_max_position_embeddings": 128,
}
SCALINGS: Final[list[dict[str, Any]]] = [
    {"rope_type": "linear", "factor": 1.0, "rope_theta": 4.6e10},
    {
        "rope_type": "yarn",
        "factor": 40.0,
        "mscale": 0.707,
        "mscale_all_dim": 0,
        "beta_slow": 0,
        "beta_fast": 0,
    },
    {"rope_type": "linear", "factor": 4.0},
    {"rope_type": "dynamic", "factor": 4.0},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128, "truncate": False},
    {"rope_type": "yarn", "factor": 40.0, "mscale": 0.707, "mscale_all_dim": 1.0},
    {"rope_type": "yarn", "factor": 8.0, "beta_fast": 16.0, "beta_slow": 2.0, "attention_factor": 0.9},
    {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 2},
    {"rope_type": "longrope", **FACTORS},
    {"rope_type": "longrope", **FACTORS, "factor": 2.0},
    {"rope_type": "longrope", **FACTORS, "attention_factor": 1.3},
]


def values_of(scaling: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {
        "hidden_size": 4 * HEAD_DIM,
        "num_attention_heads": 4,
        "max_position_embeddings": MAX_LEN,
        "rope_parameters": {"rope_theta": 10_000.0, **scaling},
        **changes,
    }


def assert_equals_transformers(
    values: dict[str, Any],
    config_class: type[PreTrainedConfig],
    *,
    max_model_len: int | None = None,
    seq_len: int = MAX_LEN,
) -> None:
    """Compare with what Transformers uses for a sequence of `seq_len` tokens."""
    reader = RopeReader(
        fields=ConfigFields("config", values),
        head_dim=HEAD_DIM,
        max_model_len=max_model_len,
        is_partial_allowed=True,
    )
    rope = reader.read()
    config = config_class(**values)
    expected, magnitude = ROPE_INIT_FUNCTIONS[values["rope_parameters"]["rope_type"]](config, seq_len=seq_len)
    torch.testing.assert_close(inverse_frequencies(rope), expected, rtol=1e-6, atol=0)
    assert rope.magnitude == pytest.approx(magnitude, rel=1e-9)


def test_frequencies_of_fixed_ntk() -> None:
    def read(**scaling: Any) -> RopeConfig:
        values = values_of({"type": "ntk", **scaling})
        return RopeReader(fields=ConfigFields("config", values), head_dim=HEAD_DIM, is_gte=True).read()

    expected = [20_000.0 ** -(i / 16) * 2.0 ** -(1 / 16) for i in range(16)]
    found = inverse_frequencies(read(factor=2.0))
    torch.testing.assert_close(found, torch.tensor(expected), rtol=1e-6, atol=0)
    with pytest.raises(InvalidModelError, match=r"mixed_b is 0\.5; allowed: null"):
        read(factor=2.0, mixed_b=0.5)


@pytest.mark.parametrize("scaling", SCALINGS)
def test_frequencies_are_those_of_transformers(scaling: dict[str, Any]) -> None:
    assert_equals_transformers(values_of(scaling), LlamaConfig)


@pytest.mark.parametrize("max_model_len", [128, 129])
def test_longrope_follows_the_length_that_is_served(max_model_len: int) -> None:
    values = values_of({"rope_type": "longrope", **FACTORS})
    assert_equals_transformers(values, LlamaConfig, max_model_len=max_model_len, seq_len=max_model_len)


@pytest.mark.parametrize(("max_model_len", "served"), [(100, 100), (1000, 1000), (5000, 2048)])
def test_dynamic_stretches_up_to_its_factor(max_model_len: int, served: int) -> None:
    values = values_of({"rope_type": "dynamic", "factor": 4.0})
    assert_equals_transformers(values, LlamaConfig, max_model_len=max_model_len, seq_len=served)


@pytest.mark.parametrize(
    ("scaling", "longest"),
    [
        ({"rope_type": "default"}, 512),
        ({"rope_type": "linear", "factor": 2.5}, 1280),
        ({"rope_type": "yarn", "factor": 4.0}, 2048),
        ({"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 128}, 1024),
        ({"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 128}, 512),
        ({"rope_type": "yarn", "original_max_position_embeddings": 128}, 512),
        ({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}, 512),
        ({"rope_type": "longrope", **FACTORS, "factor": 8.0}, 512),
        ({"rope_type": "dynamic", "factor": 4.0}, 512),
    ],
)
def test_linear_and_yarn_make_a_model_longer(scaling: dict[str, Any], longest: int) -> None:
    fields = ConfigFields("config", values_of(scaling))
    assert RopeReader(fields=fields, head_dim=HEAD_DIM).longest_len == longest


def test_a_part_of_each_head_is_rotated() -> None:
    factors = {name: values[:12] for name, values in FACTORS.items() if isinstance(values, list)}
    values = values_of(
        {"rope_type": "longrope", "partial_rotary_factor": 0.75, **factors},
        original_max_position_embeddings=128,
    )
    assert_equals_transformers(values, Phi3Config)


def test_cosine_and_sine_have_the_magnitude() -> None:
    rope = RopeReader(
        fields=ConfigFields(
            "config", values_of({"rope_type": "yarn", "factor": 4.0, "attention_factor": 0.5})
        ),
        head_dim=HEAD_DIM,
    ).read()
    rotary = RotaryEmbedding(rope, torch.device("cpu"), LayerKernels())
    cos, sin = rotary.cos_sin(torch.arange(5), torch.float32)
    assert cos.shape == sin.shape == (5, 1, HEAD_DIM)
    torch.testing.assert_close(cos.square() + sin.square(), torch.full_like(cos, 0.25))
