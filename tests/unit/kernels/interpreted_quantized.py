"""Run Triton's kernels of quantized layers on the CPU, in its interpreter, and print each case's errors.

`TRITON_INTERPRET=1 python -m tests.unit.kernels.interpreted_quantized`: a process of its own, because kernels
read the variable when they are defined. Errors are in units of the tolerance.
"""

from __future__ import annotations

import json
import sys
from typing import Final
from unittest.mock import patch

import torch
from torch import Tensor

from baton_kernels.interface.quantized import Element, InputElement, InputRounding, ScaleKind
from baton_kernels.reference.quantized_product import element_values, round_inputs
from baton_kernels.triton.product_paths import QuantizedLayer, path_of
from tests.unit.kernels.interpreted_products import mend_products
from tests.unit.kernels.quantized_weights import (
    GPU_CASES,
    ROUNDINGS,
    WeightCase,
    expected_product,
    make_weight,
)

# The interpreter cuts off what a store to bfloat16 would round.
ROUNDING: Final = {torch.float32: 0.0, torch.bfloat16: 2**-7, torch.float16: 2**-10}
SUMMING: Final = 2e-6
MOST_ROWS: Final = 70
NUM_ROWS: Final = {False: (5, 17), True: (1, 17, MOST_ROWS)}
"""By whether layers are invariant: the others have two tiles, for at most 16 rows and for more.

They multiply a single row, too: that which is lost."""
ARCHS: Final = (80, 90, 100)
_generator = torch.Generator().manual_seed(0)


def product_errors(case: WeightCase) -> dict[str, float]:
    """Error of both layers, in each way that a device multiplies them, for each number of rows.

    `alone` says whether invariant rows alone differ from a batch's, `lost` whether a number is left in a row
    with an input that is none.
    """
    from baton_kernels.triton import quantized_product  # reads TRITON_INTERPRET
    from baton_kernels.triton.invariant import InvariantTritonLayers
    from baton_kernels.triton.layers import TritonLayers

    weight, bias = make_weight(case, _generator)
    x = torch.randn(MOST_ROWS, case.in_features, generator=_generator).to(case.dtype)
    expected, magnitude = expected_product(weight, bias, x)
    allowed = SUMMING * magnitude + ROUNDING[case.dtype] * expected.abs() + 1e-12
    lost_row = x[:1].clone()
    lost_row[0, 3] = torch.nan
    errors: dict[str, float] = {"alone": 0, "lost": 0}
    layer = QuantizedLayer.of(weight, bias)
    for path, arch in {path_of(layer, arch): arch for arch in ARCHS}.items():
        for layers in (TritonLayers(), InvariantTritonLayers()):
            with patch.object(quantized_product, "device_arch", return_value=arch):
                product = layers.quantized_product(weight, bias, case.dtype)
            assert product is not None
            outs = {num_rows: product(x[:num_rows]) for num_rows in NUM_ROWS[layers.is_invariant]}
            for num_rows, out in outs.items():
                assert out.dtype == case.dtype
                name = f"{path} {type(layers).__name__} {num_rows}"
                errors[name] = worst(out.double() - expected[:num_rows], allowed[:num_rows])
                if layers.is_invariant and not torch.equal(outs[MOST_ROWS][:num_rows], out):
                    errors["alone"] += 1
        errors["lost"] += int((~product(lost_row).isnan()).sum())
    return errors


def worst(error: Tensor, allowed: Tensor) -> float:
    """The largest error in units of what is allowed; infinite where one is not a number."""
    return float((error.abs() / allowed).nan_to_num(nan=torch.inf).max())


def rounding_differences(rounding: InputRounding) -> int:
    """In how many numbers inputs differ from the reference: large, small, zero, ties and not finite.

    A group with a number that is not finite has to be lost as a whole; a fixed scale saturates infinities.
    Floats of few bits are to be the same numbers as codes, and so are their scales.
    """
    from baton_kernels.triton.input_rounding import round_rows  # reads TRITON_INTERPRET

    x = torch.randn(12, 160, generator=_generator)
    x[1] *= 1e20
    x[2] *= 1e-20
    x[3] = 0
    x[4] = (x[4] * 8).round() / 8
    x[5, :64] = 0
    x[6, 70], x[7, 70], x[8, 100] = torch.nan, torch.inf, -torch.inf
    x[9] = x[9].abs()
    codes, scales = round_rows(x, rounding, torch.float32)
    num_wrong = (
        0 if rounding.element == InputElement.INT8 else encoding_differences(x, rounding, codes, scales)
    )
    size = rounding.group_size or x.shape[1]
    actual = codes * scales.repeat_interleave(size, 1)[:, : x.shape[1]]
    is_lost = x.isnan() if rounding.scale is not None else ~x.isfinite()
    lost_groups = torch.stack([part.any(1) for part in is_lost.split(size, 1)], 1)
    is_lost = lost_groups.repeat_interleave(size, 1)[:, : x.shape[1]]
    is_right = torch.where(is_lost, actual.isnan(), actual == round_inputs(x, rounding))
    return num_wrong + int((~is_right).sum())


def encoding_differences(x: Tensor, rounding: InputRounding, numbers: Tensor, scales: Tensor) -> int:
    """In how many values the codes of inputs and of scales differ from the numbers that they stand for."""
    from baton_kernels.triton.input_rounding import round_rows  # reads TRITON_INTERPRET

    is_e2m1, kind = rounding.element == InputElement.E2M1, rounding.scale_kind
    code_dtype = torch.uint8 if is_e2m1 else torch.float8_e4m3fn
    has_codes = kind != ScaleKind.FLOAT32
    codes, factors = round_rows(x, rounding, code_dtype, encodes_scales=has_codes)
    values = element_values(Element.E2M1 if is_e2m1 else Element.E4M3, codes.view(torch.uint8))
    factors = factors.view(torch.float8_e8m0fnu) if kind == ScaleKind.E8M0 else factors
    decoded = factors.float() / rounding.global_scale
    is_right = torch.isclose(decoded, scales, rtol=0, atol=0, equal_nan=True)
    return int((values != numbers).sum()) + int((~is_right).sum())


if __name__ == "__main__":
    torch.set_num_threads(1)
    mend_products()
    report: dict[str, dict[str, float]] = {name: product_errors(case) for name, case in GPU_CASES.items()}
    report["roundings"] = {name: rounding_differences(one) for name, one in ROUNDINGS.items()}
    json.dump(report, sys.stdout)
