"""Parts of quantized weights have the values of the whole."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from baton_kernels.interface.quantized import Element, InputElement, InputRounding, QuantizedWeight
from baton_kernels.interface.quantized_parts import take_inputs, take_outputs, with_extremes
from baton_kernels.reference.quantized_product import dequantize, round_inputs
from tests.unit.engine.rank_threads import ThreadCollectives, thread_group
from tests.unit.kernels.quantized_weights import WeightCase, make_weight

KINDS = ((Element.UINT4, 32), (Element.INT4, 64), (Element.INT8, 128), (Element.E4M3, 32), (Element.E2M1, 32))


def make_quantized(element: Element, out_features: int, in_features: int, group_size: int) -> QuantizedWeight:
    case = WeightCase(
        element=element, out_features=out_features, in_features=in_features, group_size=group_size
    )
    return make_weight(case, torch.Generator().manual_seed(0))[0]


@pytest.mark.parametrize(("element", "group_size"), KINDS)
def test_parts_have_the_values_of_the_whole(element: Element, group_size: int) -> None:
    weight = make_quantized(element, 48, 128, group_size)
    values = dequantize(weight)
    assert torch.equal(dequantize(take_outputs(weight, range(8, 24))), values[8:24])
    for start, stop in pairwise((0, 64, 128)) if group_size <= 64 else [(0, 128)]:
        assert torch.equal(dequantize(take_inputs(weight, range(start, stop))), values[:, start:stop])


def test_one_scale_for_all_inputs_serves_every_part() -> None:
    weight = make_quantized(Element.INT8, 16, 96, 96)
    assert torch.equal(dequantize(take_inputs(weight, range(32, 96))), dequantize(weight)[:, 32:])


@pytest.mark.parametrize(
    "rounding",
    [
        InputRounding(element=InputElement.INT8),
        InputRounding(element=InputElement.INT8, is_symmetric=False),
        InputRounding(element=InputElement.E4M3),
    ],
    ids=["int8", "int8 with zero points", "e4m3"],
)
@pytest.mark.parametrize(("element", "group_size"), [*KINDS, (Element.INT8, 192), (Element.NF4, 64)])
def test_parts_round_rows_as_the_whole_does(
    element: Element, group_size: int, rounding: InputRounding
) -> None:
    weight = replace(make_quantized(element, 48, 192, group_size), input_rounding=rounding)
    x = torch.randn(5, 192, generator=torch.Generator().manual_seed(1)) * torch.arange(5)[:, None]
    expected, values = round_inputs(x, rounding), dequantize(weight)

    def check(ranks: ThreadCollectives) -> None:
        part = (range(128), range(128, 192))[ranks.rank]
        own, size = slice(part.start, part.stop), len(part)
        taken = take_inputs(weight, part)
        rounded = round_inputs(with_extremes(x[:, own], taken.in_features, ranks), rounding)
        assert torch.equal(rounded[:, :size], expected[:, own])
        assert torch.equal(dequantize(taken)[:, :size], values[:, own])
        assert not dequantize(taken)[:, size:].any()

    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(check, thread_group(2))) == [None, None]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "inputs 16 to 64 cut a group; allowed: multiples of 32"),
        ({"input_order": torch.arange(128)}, "in an order of their own"),
        (
            {"input_rounding": InputRounding(element=InputElement.INT8, group_size=64)},
            "cut a group; allowed: multiples of ",
        ),
    ],
)
def test_a_part_that_cuts_what_belongs_together_is_refused(changes: dict[str, object], said: str) -> None:
    weight: QuantizedWeight = replace(make_quantized(Element.INT4, 16, 128, 32), **changes)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=said):
        take_inputs(weight, range(16, 64))
