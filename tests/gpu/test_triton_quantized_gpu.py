"""Quantized layers on a device, against float64 on the CPU."""

from __future__ import annotations

import pytest
import torch

from baton_kernels.selection import select_invariant_kernels, select_kernels
from baton_kernels.triton.kernel_variant import device_arch
from baton_kernels.triton.product_paths import ProductPath, QuantizedLayer, path_of
from tests.unit.kernels.quantized_weights import GPU_CASES, expected_product, make_weight

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

ROUNDING = {torch.float32: 0.0, torch.bfloat16: 2**-8, torch.float16: 2**-11}
SUMMING = {ProductPath.FP8: 2**-10}
"""Sums of products of e4m3 keep some 14 bits inside of Hopper's matrix units."""
NUM_ROWS = (1, 5, 17, 70)


@pytest.mark.parametrize("is_invariant", [False, True], ids=["plain", "invariant"])
@pytest.mark.parametrize("name", GPU_CASES)
def test_products_equal_the_reference(name: str, is_invariant: bool) -> None:
    case = GPU_CASES[name]
    generator = torch.Generator().manual_seed(0)
    weight, bias = make_weight(case, generator)
    x = torch.randn(max(NUM_ROWS), case.in_features, generator=generator).to(case.dtype)
    kernels = (
        select_invariant_kernels("cuda", case.dtype, 64)
        if is_invariant
        else select_kernels("cuda", case.dtype)
    )
    product = kernels.layers.quantized_product(
        weight.to(torch.device("cuda")), None if bias is None else bias.cuda(), case.dtype
    )
    assert product is not None
    expected, magnitude = expected_product(weight, bias, x)
    path = path_of(QuantizedLayer.of(weight, bias), device_arch())
    allowed = SUMMING.get(path, 4e-6) * magnitude + ROUNDING[case.dtype] * expected.abs()
    whole = product(x.cuda())
    for num_rows in NUM_ROWS:
        out = product(x[:num_rows].cuda())
        assert bool(((out.cpu().double() - expected[:num_rows]).abs() <= allowed[:num_rows]).all())
        assert not is_invariant or torch.equal(out, whole[:num_rows])
