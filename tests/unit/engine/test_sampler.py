"""Exact filters, the drawn distribution, and independence of the batch."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from baton_core.worker.step_plan import SampleSpec
from baton_engine.sampling.sampler import sample, sample_batch
from baton_kernels.interface.sampling import Refusal
from baton_kernels.reference import torch_sampling
from baton_kernels.reference.gumbel_noise import gumbel_noise
from baton_kernels.reference.torch_sampling import drop_filtered
from tests.unit.engine.steps import make_spec


def logits_of(probabilities: list[float]) -> Tensor:
    return torch.tensor([probabilities]).log()


def survivors(scores: Tensor, **spec: Any) -> list[int]:
    return surviving(scores, [make_spec(temperature=1.0, **spec)])[0].nonzero()[:, 0].tolist()


def surviving(scores: Tensor, specs: list[SampleSpec]) -> Tensor:
    """Mask the tokens that the filters leave."""
    left = scores - scores.max(dim=-1, keepdim=True).values
    drop_filtered(left, sample_batch(specs))
    return left.isfinite()


def draw_many(logits: Tensor, count: int, *, temperature: float = 1.0, top_k: int = 0) -> Tensor:
    """Draw one token at each of `count` positions from the same logits."""
    specs = [make_spec(position, temperature=temperature, top_k=top_k) for position in range(count)]
    return sample(logits.expand(count, -1), specs)


def test_greedy_takes_the_highest_and_of_ties_the_lowest_id() -> None:
    logits = torch.tensor([[0.0, 2.0, 2.0, 1.0], [3.0, 3.0, 3.0, 3.0]])
    assert sample(logits, [make_spec(), make_spec()]).tolist() == [1, 0]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_draws_follow_the_softmax_distribution(temperature: float) -> None:
    logits = logits_of([0.4, 0.3, 0.2, 0.05, 0.03, 0.02])
    count = 20_000
    observed = draw_many(logits, count, temperature=temperature).bincount(minlength=6).double()
    expected = (logits[0].double() / temperature).softmax(dim=-1) * count
    chi_squared = ((observed - expected) ** 2 / expected).sum().item()
    assert chi_squared < 20.5  # 99.9 % of the distribution with 5 degrees of freedom


def test_draws_within_filters_follow_the_renormalised_distribution() -> None:
    logits = logits_of([0.05, 0.4, 0.15, 0.3, 0.1])
    observed = draw_many(logits, 20_000, top_k=3).bincount(minlength=5)
    assert observed[[0, 4]].tolist() == [0, 0]
    expected = torch.tensor([0.4, 0.15, 0.3]) / 0.85 * 20_000
    assert ((observed[[1, 2, 3]] - expected) ** 2 / expected).sum().item() < 13.8  # 99.9 %, 2 degrees


def test_top_k_keeps_exactly_k_and_of_ties_the_lower_ids() -> None:
    scores = torch.tensor([[1.0, 3.0, 1.0, 2.0, 1.0, 1.0]])
    assert survivors(scores, top_k=1) == [1]
    assert survivors(scores, top_k=4) == [0, 1, 2, 3]
    assert survivors(scores, top_k=6) == survivors(scores, top_k=99) == survivors(scores) == [*range(6)]


def test_top_p_keeps_the_smallest_prefix_that_reaches_it() -> None:
    scores = logits_of([0.125, 0.5, 0.125, 0.25])
    assert survivors(scores, top_p=0.5) == [1]
    assert survivors(scores, top_p=0.51) == [1, 3]
    assert survivors(scores, top_p=0.8) == [0, 1, 3]
    assert survivors(scores, top_p=0.9) == [0, 1, 2, 3]
    assert survivors(scores, top_p=1e-9) == [1]


def test_min_p_is_relative_to_the_best_token() -> None:
    scores = logits_of([0.1, 0.5, 0.15, 0.25])
    assert survivors(scores, min_p=0.45) == [1, 3]
    assert survivors(scores, min_p=0.29) == [1, 2, 3]
    assert survivors(scores, min_p=1.0) == [1]


def test_filters_apply_in_vllms_order_each_on_what_is_left() -> None:
    scores = logits_of([0.4, 0.3, 0.2, 0.1])
    # Of the two that top_k leaves, the first has 4/7: top_p 0.5 is reached without the second.
    assert survivors(scores, top_p=0.5) == [0, 1]
    assert survivors(scores, top_p=0.5, top_k=2) == [0]
    # min_p leaves three with 4/9, 3/9, 2/9.
    assert survivors(scores, top_p=0.75, min_p=0.3) == [0, 1]
    assert survivors(scores, top_p=0.78, min_p=0.3) == [0, 1, 2]


def test_filters_equal_an_ordering_in_full_among_many_ties() -> None:
    scores = torch.randn(5, 300, generator=torch.Generator().manual_seed(0)).round(decimals=1)
    specs = [make_spec(temperature=1.0, top_p=top_p) for top_p in (0.1, 0.5, 0.9, 0.99)] + [
        make_spec(temperature=1.0, top_k=60)
    ]
    kept = surviving(scores, specs)
    assert kept.sum(dim=-1).tolist()[-1] == 60
    for row in range(4):
        relative = (scores[row] - scores[row].max()).tolist()
        assert kept[row].nonzero()[:, 0].tolist() == reference_nucleus(relative, specs[row].top_p)


def reference_nucleus(scores: list[float], top_p: float) -> list[int]:
    order = sorted(range(len(scores)), key=lambda token: (-scores[token], token))
    total = math.fsum(math.exp(score) for score in scores)
    mass, kept = 0.0, []
    for token in order:
        if mass >= top_p * total:
            break
        kept.append(token)
        mass += math.exp(scores[token])
    return sorted(kept)


MIXED_SPECS = [
    make_spec(3, seed=1, temperature=1.0),
    make_spec(3, seed=1),
    make_spec(9, seed=2**64 - 1, temperature=0.7, top_k=5),
    make_spec(9, seed=2**63, temperature=1.3, top_p=0.8),
    make_spec(1, seed=5, temperature=2.0, min_p=0.1, top_k=50, top_p=0.95),
    make_spec(2**40, seed=7, temperature=1e-4),
]


def mixed_logits() -> Tensor:
    return torch.randn(len(MIXED_SPECS), 1001, generator=torch.Generator().manual_seed(1)) * 2


@pytest.mark.parametrize("few_tokens", [0, 1 << 11])
def test_a_row_draws_the_same_token_alone_and_in_any_batch(
    few_tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    logits = mixed_logits()
    together = sample(logits, MIXED_SPECS)
    monkeypatch.setattr(torch_sampling, "_FEW_TOKENS", few_tokens)
    monkeypatch.setattr(torch_sampling, "PIECE", 64)
    alone = [sample(logits[row : row + 1], [spec]).item() for row, spec in enumerate(MIXED_SPECS)]
    assert together.tolist() == alone
    assert sample(logits.flip(0), MIXED_SPECS[::-1]).flip(0).tolist() == alone


@pytest.mark.parametrize("few_tokens", [0, 1 << 11])
@pytest.mark.parametrize("spread", [0.0, 2.0, 16.0])
def test_skipping_tokens_that_cannot_win_changes_nothing(
    few_tokens: int, spread: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_sampling, "_FEW_TOKENS", few_tokens)
    monkeypatch.setattr(torch_sampling, "PIECE", 64)
    logits = mixed_logits() * spread
    for row in range(len(logits)):
        for seed in range(8):
            spec = make_spec(row, seed=seed, temperature=1.0)
            assert sample(logits[row : row + 1], [spec]).item() == brute_force(logits[row], spec)


def brute_force(logits: Tensor, spec: SampleSpec) -> int:
    blocks = torch.arange(-(-len(logits) // 4))
    noise = gumbel_noise(torch.tensor([spec.seed]), torch.tensor([spec.position]), blocks).flatten()
    return int((logits.double() / spec.temperature + noise[: len(logits)]).argmax())


def test_a_small_change_of_the_logits_leaves_the_token() -> None:
    logits = mixed_logits()
    specs = [make_spec(row, seed=row, temperature=1.0) for row in range(len(logits))]
    assert torch.equal(sample(logits + 1e-6, specs), sample(logits, specs))
    assert torch.equal(sample(logits + 10.0, specs), sample(logits, specs))


def test_masked_tokens_are_never_drawn() -> None:
    logits = torch.full((1, 9), -torch.inf)
    logits[0, 7] = -3.0
    assert draw_many(logits, 50, temperature=5.0).unique().tolist() == [7]


def test_bfloat16_logits_are_drawn_from_as_their_float32_values() -> None:
    logits = mixed_logits().bfloat16()
    assert torch.equal(sample(logits, MIXED_SPECS), sample(logits.float(), MIXED_SPECS))


def test_a_row_of_nan_is_refused_and_leaves_the_others_theirs() -> None:
    logits = mixed_logits()
    logits[1], logits[3, 5] = torch.nan, torch.nan
    drawn, expected = sample(logits, MIXED_SPECS), sample(mixed_logits(), MIXED_SPECS)
    assert drawn[[1, 3]].tolist() == [Refusal.NOT_A_NUMBER] * 2
    assert drawn[[0, 2, 4, 5]].tolist() == expected[[0, 2, 4, 5]].tolist()
