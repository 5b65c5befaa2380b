"""Weights in panels, as every build of the C++ kernels packs them."""

from __future__ import annotations

import pytest
import torch

from baton_kernels.cpu.packed import pack
from baton_kernels.cpu.variants import PLAIN
from tests.unit.kernels.cpu_builds import load


@pytest.mark.parametrize(
    ("dtype", "depth"),
    [(torch.float32, 1), (torch.bfloat16, 1), (torch.bfloat16, 2), (torch.int8, 1), (torch.int8, 4)],
)
@pytest.mark.parametrize("num_panels", [1, 5])
@pytest.mark.parametrize("num_columns", [1, 31, 100])
def test_what_belongs_to_one_column_lies_side_by_side(
    dtype: torch.dtype, depth: int, num_panels: int, num_columns: int
) -> None:
    width = 16
    generator = torch.Generator().manual_seed(num_columns)
    shape = (num_panels * width, num_columns * depth)
    weight = torch.randint(-100, 100, shape, generator=generator).to(dtype)
    panels = weight.view(num_panels, width, num_columns, depth).transpose(1, 2).contiguous()
    packed = pack(load(PLAIN), weight, width, depth)
    assert packed.shape == (num_panels, num_columns, width)
    assert torch.equal(packed.view(dtype).view(panels.shape), panels)
    assert torch.equal(pack(load(PLAIN), weight.t().contiguous().t(), width, depth), packed)
