"""Zero points of auto-round's packings: two store them as they are, that of AutoGPTQ less 1."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from baton_engine.checkpoint.config_fields import ConfigFields
from baton_engine.checkpoint.quantization.auto_round import read_auto_round


@pytest.mark.parametrize(
    ("packing", "zero"), [("auto_round", 7), ("auto_round:gptqmodel", 7), ("auto_round:auto_gptq", 8)]
)
def test_zero_points_are_those_of_the_packing(packing: str, zero: int) -> None:
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
