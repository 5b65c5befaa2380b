"""The attention kernels against float64, in the interpreter, and what they refuse."""

from __future__ import annotations

import pytest
import torch

from baton_kernels.triton.attention import TritonAttention, require_readable
from tests.attention_reference import attention_reference
from tests.unit.kernels.interpreted_attention import CASES
from tests.unit.kernels.interpreter import run_interpreted
from tests.unit.kernels.paged_batches import LAYER, make_paged_batch

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def largest_errors() -> dict[str, float]:
    return run_interpreted("interpreted_attention")


@pytest.mark.parametrize("name", CASES)
def test_the_interpreted_kernels_equal_the_reference(name: str, largest_errors: dict[str, float]) -> None:
    assert largest_errors[name] <= CASES[name].tolerance


def test_a_captured_batch_gets_the_same_numbers_and_zeros_for_its_padding(
    largest_errors: dict[str, float],
) -> None:
    assert largest_errors["captured"] == 0


def test_a_prompt_gets_the_same_numbers_however_it_is_cut(largest_errors: dict[str, float]) -> None:
    assert largest_errors["cut"] == 0


def test_the_invariant_kernels_attend_with_single_tokens_as_with_chunks(
    largest_errors: dict[str, float],
) -> None:
    assert largest_errors["invariant, single"] == 0
    assert largest_errors["invariant, captured"] == 0


def test_a_cache_of_e4m3_is_refused_where_nothing_reads_it() -> None:
    for arch in (89, 90, 100):
        require_readable(torch.float8_e4m3fn, 256, arch)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        require_readable(dtype, 512, 80)
    with pytest.raises(
        ValueError, match=r"KV cache dtype is 'float8_e4m3fn' .* capability 8\.0; allowed below 8\.9"
    ):
        require_readable(torch.float8_e4m3fn, 128, 80)
    with pytest.raises(ValueError, match=r"head_dim is 320 .* 'float8_e4m3fn'; allowed: at most 256"):
        require_readable(torch.float8_e4m3fn, 320, 90)


def test_heads_wider_than_the_kernels_take_are_attended_to_by_torch() -> None:
    step = make_paged_batch([(1, 9), (3, 7)], head_dim=320)
    out = TritonAttention().attention(
        step.q, step.k, step.v, step.kv_pool, LAYER, step.batch, step.scale, 2.0
    )
    expected = attention_reference(step.q, step.kv_pool, LAYER, step.batch, step.scale, 2.0)
    torch.testing.assert_close(out.double(), expected, rtol=0, atol=1e-5)
