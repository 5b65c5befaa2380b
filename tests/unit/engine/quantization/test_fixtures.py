"""Checkpoints that other packages wrote: each layer's weights are those that the package itself says."""

from __future__ import annotations

import hashlib
import json

import pytest
import torch

from baton_kernels.reference.quantized_product import dequantize, round_inputs
from tests.quantized_reference import CHECKPOINTS, FIXTURES, quantized_weights

READ_AS_NUMBERS = ("gguf-f16", "gguf-q4-k-m", "gguf-q5-k-m")
"""Checkpoints with layers that codes cannot hold."""


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_dequantized_weights_are_the_packages_own(name: str) -> None:
    folder = FIXTURES / name
    expected = json.loads((folder / "expected.json").read_text())
    weights = quantized_weights(folder)
    assert expected["weights"]
    for layer, one in expected["weights"].items():
        *fused, out_features, in_features = one["shape"]
        if name in READ_AS_NUMBERS and not weights.is_quantized(layer):
            values = weights.load(f"{layer}.weight", one["shape"])
        else:
            values = dequantize(weights.load_quantized(layer, out_features, in_features, *fused))
        rounded = values.to(getattr(torch, expected["dtype"])).float() + 0.0
        samples = rounded.flatten()[[n * (rounded.numel() - 1) // 7 for n in range(8)]]
        assert samples.tolist() == one["samples"], layer
        assert hashlib.sha256(rounded.numpy().tobytes()).hexdigest() == one["sha256"], layer


@pytest.mark.parametrize("name", ["ct-mxfp4", "ct-mxfp8", "ct-nvfp4"])
def test_rounded_inputs_are_the_packages_own(name: str) -> None:
    folder = FIXTURES / name
    inputs = json.loads((folder / "expected.json").read_text())["inputs"]
    values = torch.tensor(inputs["values"])
    weight = quantized_weights(folder).load_quantized(inputs["layer"], 128, values.shape[1])
    assert weight.input_rounding is not None
    assert round_inputs(values, weight.input_rounding).tolist() == inputs["rounded"]
