"""Sampling in C++ draws the tokens that torch draws, each build that this CPU runs."""

from __future__ import annotations

import pytest
import torch

from baton_kernels.cpu_sampling import CpuSampling
from baton_kernels.cpu_variants import AMX, AVX2, AVX512, PLAIN, CpuVariant
from baton_kernels.torch_sampling import TorchSampling
from tests.unit.kernels.cpu_builds import load
from tests.unit.kernels.interpreted_sampling import CASES, make_batch, make_logits, rows

builds = pytest.mark.parametrize("variant", [AMX, AVX512, AVX2, PLAIN], ids=lambda variant: variant.name)


@builds
@pytest.mark.parametrize("name", CASES)
def test_both_samplers_draw_the_same_tokens(variant: CpuVariant, name: str) -> None:
    kernels = CpuSampling(load(variant))
    spread, dtype, specs = CASES[name]
    specs *= 4
    logits = make_logits(spread, dtype, len(specs))
    for seed in range(5):
        batch = make_batch(specs, seed)
        assert kernels.draw(logits, batch).tolist() == TorchSampling().draw(logits, batch).tolist()


@builds
def test_wide_rows_on_two_threads_are_drawn_from_like_one_by_one(variant: CpuVariant) -> None:
    kernels = CpuSampling(load(variant))
    logits = torch.randn(12, 30_001, generator=torch.Generator().manual_seed(0)) * 3
    batch = make_batch(rows({}, {"temperature": 0.0}, {"top_k": 20, "top_p": 0.8}) * 4, seed=0)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        together = kernels.draw(logits, batch)
    finally:
        torch.set_num_threads(before)
    assert together.tolist() == TorchSampling().draw(logits, batch).tolist()
    for row in range(len(logits)):
        alone = kernels.draw(logits[row : row + 1, :], batch.rows(torch.tensor([row])))
        assert alone.tolist() == together[row : row + 1].tolist()


@builds
def test_of_equal_logits_the_lowest_token_is_taken(variant: CpuVariant) -> None:
    logits = torch.tensor([[0.0, 2.0] * 40, [3.0] * 80, [-torch.inf] * 79 + [-5.0]])
    greedy = make_batch(rows(*[{"temperature": 0.0}] * 3), seed=0)
    assert CpuSampling(load(variant)).draw(logits, greedy).tolist() == [1, 0, 79]


@builds
def test_a_broken_row_gives_a_token_and_leaves_the_others_theirs(variant: CpuVariant) -> None:
    logits = make_logits(2.0, torch.float32, 4)
    logits[0], logits[0, 700] = -torch.inf, -3.0
    logits[1], logits[2, 9] = torch.nan, torch.inf
    batch = make_batch(rows({"temperature": 5.0}, {"top_k": 5}, {"top_p": 0.9}, {}), seed=1)
    drawn = CpuSampling(load(variant)).draw(logits, batch).tolist()
    assert all(0 <= token < logits.shape[1] for token in drawn)
    assert (drawn[0], drawn[3]) == (700, TorchSampling().draw(logits, batch).tolist()[3])
