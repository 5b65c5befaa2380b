"""The layers of auto-round's checkpoints: their zero points, and settings of their own."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from baton_core.errors import InvalidModelError
from baton_engine.checkpoint.config_fields import ConfigFields
from baton_engine.checkpoint.quantization.auto_round import read_auto_round


@pytest.mark.parametrize(
    ("packing", "zero"),
    [
        ("auto_round", 7),
        ("auto_round:gptqmodel", 7),
        ("auto_round:auto_gptq", 8),
        ("auto_round:gptq", 8),
        (None, 8),
    ],
)
def test_zero_points_are_those_of_the_packing(packing: str | None, zero: int) -> None:
    """Two packings store them as they are, that of AutoGPTQ less 1."""
    fields = ConfigFields("config.json", {"bits": 4, "group_size": 32, "packing_format": packing})
    layer = read_auto_round(fields).layer_format("model.layers.0.self_attn.q_proj")
    assert layer is not None
    tensors: dict[str, Tensor] = {
        "qweight": torch.zeros(32 // 8, 32, dtype=torch.int32),
        "qzeros": torch.full((1, 32 // 8), 0x77777777, dtype=torch.int32),
        "scales": torch.ones(1, 32, dtype=torch.float16),
    }
    weight = layer.decode(tensors, 32, 32)
    assert weight.zeros is not None
    assert weight.zeros.unique().tolist() == [zero]


@pytest.mark.parametrize(
    ("layer", "bits"),
    [
        ("model.layers.0.mlp.up_proj", 4),
        ("model.layers.0.mlp.down_proj", 8),
        ("model.layers.1.mlp.down_proj", 2),
        ("model.layers.1.mlp.gate", None),
        ("lm_head", None),
    ],
)
def test_names_come_before_the_first_expression_that_occurs_in_one(layer: str, bits: int | None) -> None:
    own = {
        r".*mlp\.gate$": {"bits": 16},
        r"down_\w+$": {"bits": 8},
        "model.layers.1.mlp.down_proj": {"bits": 2},
        r".*down_proj.*": {"bits": 3},
    }
    values = {"bits": 4, "group_size": 32, "packing_format": "auto_round:auto_gptq", "extra_config": own}
    stored = read_auto_round(ConfigFields("config.json", values)).layer_format(layer)
    assert (None if stored is None else stored.bits) == bits  # type: ignore[attr-defined]


def test_an_expression_that_is_none_is_refused() -> None:
    values = {"packing_format": "auto_round", "extra_config": {"*.down_proj": {"bits": 8}}}
    message = r"extra_config is '\*\.down_proj'; allowed: a regular expression"
    with pytest.raises(InvalidModelError, match=message):
        read_auto_round(ConfigFields("config.json", values))
