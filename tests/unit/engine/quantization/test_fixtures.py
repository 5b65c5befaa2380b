"""Checkpoints that other packages wrote: each layer's weights are those that the package itself says."""

from __future__ import annotations

import hashlib
import json

import pytest
import torch

from baton_kernels.reference.quantized_product import dequantize
from tests.quantized_reference import CHECKPOINTS, FIXTURES, quantized_weights


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_dequantized_weights_are_the_packages_own(name: str) -> None:
    folder = FIXTURES / name
    expected = json.loads((folder / "expected.json").read_text())
    weights = quantized_weights(folder)
    assert expected["weights"]
    for layer, one in expected["weights"].items():
        assert weights.is_quantized(layer), layer
        *fused, out_features, in_features = one["shape"]
        values = dequantize(weights.load_quantized(layer, out_features, in_features, *fused))
        rounded = values.to(getattr(torch, expected["dtype"])).float() + 0.0
        samples = rounded.flatten()[[n * (rounded.numel() - 1) // 7 for n in range(8)]]
        assert samples.tolist() == one["samples"], layer
        assert hashlib.sha256(rounded.numpy().tobytes()).hexdigest() == one["sha256"], layer
