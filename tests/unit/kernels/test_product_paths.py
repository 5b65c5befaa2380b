"""The table of ways to multiply quantized layers: which layer gets which, by compute capability."""

from __future__ import annotations

import pytest
import torch

from baton_kernels.interface.quantized import Element
from baton_kernels.triton.product_paths import PATHS, ProductPath, QuantizedLayer, path_of
from tests.unit.kernels.quantized_weights import E8M0, GPU_CASES, ROUNDINGS, WeightCase, make_weight

DECODED, INT8, FP8, SCALED = ProductPath
ARCHS = (0, 80, 86, 89, 90, 100, 103, 120)
ON_OLD = (DECODED,) * 3
PATHS_OF = {
    **dict.fromkeys(("int4", "uint4", "uint4_row", "nf4", "fp4", "int8_alone"), (DECODED,) * 8),
    **dict.fromkeys(("int8_asymmetric", "int8_static"), (DECODED,) * 8),
    **dict.fromkeys(("int8", "int8_groups", "uint4_int8", "int4_int8"), (INT8,) * 8),
    **dict.fromkeys(("e4m3", "e4m3_blocks"), (*ON_OLD, *(FP8,) * 5)),
    "mxfp8": (*ON_OLD, FP8, FP8, *(SCALED,) * 3),
    **dict.fromkeys(("mxfp4", "nvfp4"), (*(DECODED,) * 5, *(SCALED,) * 3)),
    "mxfp4_mxfp8": (*(DECODED,) * 5, SCALED, SCALED, DECODED),
}


def layer_of(case: WeightCase) -> QuantizedLayer:
    return QuantizedLayer.of(*make_weight(case, torch.Generator().manual_seed(0)))


@pytest.mark.parametrize("name", GPU_CASES)
def test_a_layer_gets_what_the_device_multiplies(name: str) -> None:
    assert tuple(path_of(layer_of(GPU_CASES[name]), arch) for arch in ARCHS) == PATHS_OF[name]


@pytest.mark.parametrize("rounding", ["mx_e2m1", "mx_e2m3", "mx_e3m2", "mx_e4m3_one_bit"])
def test_floats_of_few_bits_are_multiplied_as_e4m3_beside_e4m3(rounding: str) -> None:
    case = WeightCase(element=Element.E4M3, scale_dtype=E8M0, group_size=32, rounding=ROUNDINGS[rounding])
    layer = layer_of(case)
    assert layer.input_format == "e4m3"
    assert [path_of(layer, arch) for arch in (80, 90, 100)] == [DECODED, FP8, SCALED]


def test_groups_that_are_shorter_than_a_product_of_bytes_are_decoded() -> None:
    case = WeightCase(element=Element.E4M3, group_size=16, rounding=ROUNDINGS["e4m3_token"])
    assert path_of(layer_of(case), 90) == DECODED


def test_every_way_has_devices_and_a_reason() -> None:
    assert {row.path for row in PATHS} == set(ProductPath)
    assert all(row.reason and len(row.archs) > 1 for row in PATHS)
