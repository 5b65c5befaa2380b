"""Quantized linear layers, for `bench.gpu`: each against its bytes and against the unquantized layer."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.nn import functional

from baton_kernels.interface.quantized import Element, InputElement, InputRounding, QuantizedWeight, ScaleKind
from baton_kernels.reference.quantized_product import TorchQuantizedProduct
from baton_kernels.selection import select_kernels
from bench.gpu.measures import (
    LLAMA3_8B,
    TINY,
    Cell,
    Clock,
    ModelShape,
    Setup,
    Table,
    attempt,
    measure_limits,
    percent,
)

_MXFP4 = InputRounding(element=InputElement.E2M1, group_size=32, scale_kind=ScaleKind.E8M0)
_MXFP8 = InputRounding(element=InputElement.E4M3, group_size=32, scale_kind=ScaleKind.E8M0)
_NVFP4 = InputRounding(element=InputElement.E2M1, group_size=16, scale_kind=ScaleKind.E4M3)


def quantized(setup: Setup) -> list[Table]:
    """The products of an MLP's first layer, from a decode of one sequence to a chunk of a prompt."""
    shape, sizes = (TINY, (3,)) if setup.is_quick else (LLAMA3_8B, (1, 8, 32, 512))
    clock = Clock(setup)
    limits = measure_limits(setup, clock)
    rows: list[tuple[Cell, ...]] = []
    plain = torch.randn(
        2 * shape.intermediate_size, shape.hidden_size, device=setup.device, dtype=setup.dtype
    )
    for num_rows in sizes:
        x = torch.randn(num_rows, shape.hidden_size, device=setup.device, dtype=setup.dtype)
        plain_us = attempt(lambda x=x: clock.seconds(lambda: functional.linear(x, plain)), 1e6)
        for name, weight in _weights(setup, shape):
            layers = select_kernels(setup.device, setup.dtype).layers
            product = layers.quantized_product(weight, None, torch.bfloat16) or TorchQuantizedProduct(
                weight, None
            )
            num_bytes = weight.num_bytes + x.nbytes + num_rows * len(plain) * x.itemsize
            floor_us = num_bytes / limits.copy_bytes_per_s * 1e6
            our_us = attempt(
                lambda product=product, x=x: clock.seconds(lambda: product(x)),
                1e6,
            )
            rows.append((name, num_rows, floor_us, our_us, percent(floor_us, our_us), plain_us))
    title = f"Quantized products, µs; copy bandwidth {limits.copy_bytes_per_s / 1e12:.2f} TB/s"
    columns = ("weight", "rows", "floor", "Baton", "of the floor", "unquantized")
    return [Table(title=title, columns=columns, rows=rows)]


def _weights(setup: Setup, shape: ModelShape) -> Iterator[tuple[str, QuantizedWeight]]:
    hidden, e8m0, e4m3 = shape.hidden_size, torch.float8_e8m0fnu, torch.float8_e4m3fn
    group = min(128, hidden)
    kinds = (
        ("int4, groups", Element.INT4, group, torch.bfloat16, None),
        ("e4m3, e4m3 inputs", Element.E4M3, hidden, torch.float32, InputRounding(element=InputElement.E4M3)),
        (
            "e4m3 blocks, e4m3 inputs",
            Element.E4M3,
            group,
            torch.float32,
            InputRounding(element=InputElement.E4M3, group_size=group),
        ),
        ("int8, int8 inputs", Element.INT8, hidden, torch.float32, InputRounding(element=InputElement.INT8)),
        ("mxfp4", Element.E2M1, 32, e8m0, None),
        ("mxfp4, mxfp4 inputs", Element.E2M1, 32, e8m0, _MXFP4),
        ("mxfp8, mxfp8 inputs", Element.E4M3, 32, e8m0, _MXFP8),
        ("nvfp4, nvfp4 inputs", Element.E2M1, 16, e4m3, _NVFP4),
        ("nf4", Element.NF4, min(64, hidden), torch.float32, None),
    )
    for name, element, group_size, scale_dtype, rounding in kinds:
        codes = torch.randint(
            0, 126, (2 * shape.intermediate_size, hidden * element.bits // 8), dtype=torch.uint8
        )
        scales = torch.full((len(codes), -(-hidden // group_size)), 2**-7).to(scale_dtype)
        weight = QuantizedWeight(
            element=element,
            codes=codes.view(torch.int8) if element == Element.INT8 else codes,
            scales=scales,
            group_size=group_size,
            input_rounding=rounding,
        )
        yield name, weight.to(setup.device)
