"""Sampling in C++ draws the tokens that torch draws, each build that this CPU runs."""

from __future__ import annotations

import pytest
import torch

from baton_kernels.cpu.sampling import CpuSampling
from baton_kernels.cpu.variants import CpuVariant
from baton_kernels.interface.sampling import Refusal
from baton_kernels.reference.torch_sampling import TorchSampling
from tests.unit.kernels.cpu_builds import builds, load
from tests.unit.kernels.interpreted_sampling import CASES, make_batch, make_logits, rows


@builds
@pytest.mark.parametrize("name", CASES)
def test_both_samplers_draw_the_same_tokens(variant: CpuVariant, name: str) -> None:
    kernels = CpuSampling(load(variant))
    spread, dtype, specs = CASES[name]
    specs *= 4
    logits = make_logits(spread, dtype, len(specs))
    for seed in range(5):
        batch = make_batch(specs, seed)
        assert kernels.sample(logits, batch).tolist() == TorchSampling().sample(logits, batch).tolist()


@builds
def test_wide_rows_on_two_threads_are_drawn_from_like_one_by_one(variant: CpuVariant) -> None:
    kernels = CpuSampling(load(variant))
    logits = torch.randn(12, 30_001, generator=torch.Generator().manual_seed(0)) * 3
    batch = make_batch(rows({}, {"temperature": 0.0}, {"top_k": 20, "top_p": 0.8}) * 4, seed=0)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        together = kernels.sample(logits, batch)
    finally:
        torch.set_num_threads(before)
    assert together.tolist() == TorchSampling().sample(logits, batch).tolist()
    for row in range(len(logits)):
        alone = kernels.sample(logits[row : row + 1, :], batch.rows(torch.tensor([row])))
        assert alone.tolist() == together[row : row + 1].tolist()


@builds
def test_of_equal_logits_the_lowest_token_is_taken(variant: CpuVariant) -> None:
    logits = torch.tensor([[0.0, 2.0] * 40, [3.0] * 80, [-torch.inf] * 79 + [-5.0]])
    greedy = make_batch(rows(*[{"temperature": 0.0}] * 3), seed=0)
    assert CpuSampling(load(variant)).sample(logits, greedy).tolist() == [1, 0, 79]


@builds
def test_a_row_that_is_not_finite_is_refused_and_leaves_the_others_theirs(variant: CpuVariant) -> None:
    kernels = CpuSampling(load(variant))
    logits = make_logits(2.0, torch.float32, 5)
    logits[0], logits[0, 700] = -torch.inf, -3.0
    batch = make_batch(
        rows({"temperature": 5.0}, {"top_k": 5}, {"top_p": 0.9}, {}, {"temperature": 0.0}), seed=1
    )
    expected = TorchSampling().sample(logits, batch).tolist()
    assert expected[0] == 700
    for row in range(1, 5):
        for number in (0, 1, 500, logits.shape[1] - 1):
            for value, refusal in ((torch.nan, Refusal.NOT_A_NUMBER), (torch.inf, Refusal.INFINITE)):
                broken = logits.clone()
                broken[row, number] = value
                refused = [*expected[:row], int(refusal), *expected[row + 1 :]]
                assert kernels.sample(broken, batch).tolist() == refused
                assert TorchSampling().sample(broken, batch).tolist() == refused
        broken = logits.clone()
        broken[row] = -torch.inf
        refused = [*expected[:row], int(Refusal.NOTHING_LEFT), *expected[row + 1 :]]
        assert kernels.sample(broken, batch).tolist() == refused
        assert TorchSampling().sample(broken, batch).tolist() == refused


@builds
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_largest_finite_logits_are_drawn_from(variant: CpuVariant, dtype: torch.dtype) -> None:
    largest = torch.finfo(dtype).max
    logits = torch.tensor([[largest, -largest] * 400, [-largest] * 799 + [0.0]], dtype=dtype)
    logits[0, 1::4] = -torch.inf
    greedy = make_batch(rows({"temperature": 0.0}, {"temperature": 0.0}), seed=0)
    assert CpuSampling(load(variant)).sample(logits, greedy).tolist() == [0, 799]
