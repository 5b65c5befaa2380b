"""LoRA adapters of the C++ kernels: float64's numbers, the same bits in any company, replays with others."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from baton_kernels.cpu.graph_replay import GraphReplay
from baton_kernels.cpu.layers import CpuLayers
from baton_kernels.cpu.variants import AVX2, CpuVariant
from baton_kernels.interface.lora import LoraLayer, LoraMatrices, LoraTable
from tests.unit.kernels.cpu_builds import builds, load
from tests.unit.kernels.lora_adapters import make_layer, make_parts, reference

pytestmark = pytest.mark.usefixtures("one_thread")

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2**-7}
NUM_SLOTS = 5


def make_case(
    variant: CpuVariant, layer: LoraLayer, num_rows: int
) -> tuple[LoraTable, list[list[LoraMatrices | None]], Tensor, Tensor, Tensor]:
    """Return a table with an adapter in all slots but the last, inputs, outputs, and slots of rows."""
    table, adapters = CpuLayers(load(variant)).lora_table(layer), []
    for slot, ranks in enumerate(((16, 3, 1), (0, 8, 2), (5, 0, 0), (0, 0, 0))):
        adapters.append(make_parts(layer, ranks, slot))
        table.set(slot, adapters[-1])
    generator = torch.Generator().manual_seed(num_rows)
    x = torch.randn(num_rows, layer.in_size, generator=generator).to(layer.dtype)
    if layer.is_embedding:
        x = torch.randint(layer.in_size, (num_rows,), generator=generator)
    y = torch.randn(num_rows, sum(layer.part_sizes), generator=generator).to(layer.dtype)
    row_slots = torch.randint(-1, NUM_SLOTS - 1, (num_rows,), generator=generator, dtype=torch.int32)
    return table, adapters, x, y, row_slots


@builds
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(
    ("in_size", "part_sizes", "is_embedding"),
    [(150, (45, 64, 3), False), (16, (40,), False), (50, (33,), True)],
)
def test_rows_get_the_deltas_of_their_own_adapters(
    variant: CpuVariant, dtype: torch.dtype, in_size: int, part_sizes: tuple[int, ...], is_embedding: bool
) -> None:
    layer = make_layer(in_size, part_sizes, NUM_SLOTS, dtype, is_embedding=is_embedding)
    table, adapters, x, y, row_slots = make_case(variant, layer, 75)
    whole = y.clone()
    table.add(x, whole, row_slots)
    expected = reference(layer, adapters, x, y, row_slots)
    torch.testing.assert_close(whole.double(), expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    assert torch.equal(whole[row_slots < 0], y[row_slots < 0])
    for rows in (slice(0, 1), slice(1, 8), slice(8, 75)):
        part = y[rows].clone()
        table.add(x[rows], part, row_slots[rows])
        assert torch.equal(part, whole[rows]), "a row depends on those beside it"


def test_a_recorded_step_is_replayed_with_other_adapters() -> None:
    layer = make_layer(64, (32,), NUM_SLOTS, torch.float32)
    table, adapters, x, y, row_slots = make_case(AVX2, layer, 6)
    before = y.clone()

    def forward() -> Tensor:
        table.add(x, y, row_slots)
        return y

    graph, _ = GraphReplay.record(forward)
    table.clear(0)
    table.set(0, make_parts(layer, (7,), seed=9))
    adapters[0] = make_parts(layer, (7,), seed=9)
    y.copy_(before)
    row_slots.copy_(torch.tensor([0, 0, 1, -1, 2, 0]))
    graph.replay()
    expected = reference(layer, adapters, x, before, row_slots)
    torch.testing.assert_close(y.double(), expected, rtol=1e-5, atol=1e-5)


def test_a_slot_that_there_is_not_is_refused() -> None:
    table, _, x, y, row_slots = make_case(AVX2, make_layer(64, (32,), NUM_SLOTS, torch.float32), 6)
    with pytest.raises(IndexError):
        table.add(x, y, torch.full_like(row_slots, NUM_SLOTS))
