"""Sampling in Triton: one launch samples the tokens of all rows; each program reads its row a few times.

Filters need no sorted vocabulary. A score relative to the best is never positive, so the bits of its
magnitude, read as an integer, put the tokens in order. The boundary of top_k or top_p is found by bisecting
these integers, narrowed after each pass to values that occur, while counts and masses are exact integers.
Imported only where Triton is wanted: `TRITON_INTERPRET` is read when a kernel is defined.
"""

# Triton's decorator and kernel arguments have no types; compile-time constants are upper case.
# mypy: disable-error-code="untyped-decorator, no-untyped-def"
# ruff: noqa: N803

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.random import philox_impl as _philox

from baton_kernels.interface.sampling import MASS_BITS, Refusal, SampleBatch, SamplingKernels
from baton_kernels.reference.gumbel_noise import LANES
from baton_kernels.triton.kernel_variant import TRITON_TYPES, KernelVariant

NUM_LANES: Final = tl.constexpr(LANES)
MASS_UNITS: Final = tl.constexpr(2.0**MASS_BITS)
WORDS: Final = tl.constexpr(2.0**32)
MARGIN: Final = tl.constexpr(1.0001)
"""Covers the float32 rounding of the test by which a token is skipped."""
LAST_FINITE: Final = tl.constexpr(0x7F7FFFFF)
"""Greatest magnitude of a token that takes part: an infinite one cannot be sampled."""
NOT_A_NUMBER: Final = tl.constexpr(int(Refusal.NOT_A_NUMBER))
INFINITE: Final = tl.constexpr(int(Refusal.INFINITE))
NOTHING_LEFT: Final = tl.constexpr(int(Refusal.NOTHING_LEFT))
NO_ID: Final = tl.constexpr(0x7FFFFFFF)
TILE: Final = 2048
"""Tokens that a program looks at together."""


@triton.jit
def _scores_at(row_ptr, tokens, vocab_size, best, temperature):
    """Scores of `tokens`, relative to the best one's; -inf beyond the vocabulary."""
    logits = tl.load(row_ptr + tokens, mask=tokens < vocab_size, other=float("-inf")).to(tl.float32)
    return tl.div_rn(logits - best, temperature)


@triton.jit
def _magnitudes(scores):
    """Integers in the reverse order of `scores`, which are not positive; NaN is beyond all."""
    return scores.to(tl.int32, bitcast=True) & 0x7FFFFFFF


@triton.jit
def _mass_of(scores):
    """Probability mass relative to the best token's, in steps of 2**-MASS_BITS."""
    return (tl.exp(scores.to(tl.float64)) * MASS_UNITS + 0.5).to(tl.int64)


@triton.jit
def _best_logit(row_ptr, vocab_size, TILE: tl.constexpr):
    """The highest logit and the lowest id that has it, or a `Refusal`; NaN counts as infinite."""
    highest = tl.full([TILE], float("-inf"), tl.float32)
    ids = tl.zeros([TILE], tl.int32)
    nans = tl.zeros([TILE], tl.int32)
    for start in range(0, vocab_size, TILE):
        tokens = start + tl.arange(0, TILE)
        logits = tl.load(row_ptr + tokens, mask=tokens < vocab_size, other=float("-inf")).to(tl.float32)
        is_nan = logits != logits
        nans |= is_nan.to(tl.int32)
        logits = tl.where(is_nan, float("inf"), logits)
        # The first of equals stays, and a row of -inf alone gives its first token.
        ids = tl.where(logits > highest, tokens, tl.where(start == 0, tokens, ids))
        highest = tl.maximum(highest, logits)
    best = tl.max(highest, 0)
    best_id = tl.min(tl.where(highest == best, ids, NO_ID), 0)
    best_id = tl.where(best == float("inf"), INFINITE, tl.where(best == float("-inf"), NOTHING_LEFT, best_id))
    return best, tl.where(tl.max(nans, 0) > 0, NOT_A_NUMBER, best_id)


@triton.jit
def _amount(scores, is_counted, COUNTS: tl.constexpr):
    """Return the number of tokens, or their mass."""
    if COUNTS:
        amount = tl.sum(is_counted.to(tl.int64), 0)
    else:
        amount = tl.zeros([], tl.int64)
        # Exponentials in float64 are dear on many devices, and most tiles have nothing to count.
        if tl.max(is_counted.to(tl.int32), 0) > 0:
            amount = tl.sum(tl.where(is_counted, _mass_of(scores), 0), 0)
    return amount


@triton.jit
def _amount_within(
    row_ptr, vocab_size, best, temperature, last, last_id, COUNTS: tl.constexpr, TILE: tl.constexpr
):
    """Number or mass of the tokens up to the boundary: magnitude `last`, where tied up to id `last_id`."""
    amount = tl.zeros([], tl.int64)
    for start in range(0, vocab_size, TILE):
        tokens = start + tl.arange(0, TILE)
        scores = _scores_at(row_ptr, tokens, vocab_size, best, temperature)
        magnitudes = _magnitudes(scores)
        is_left = (magnitudes < last) | ((magnitudes == last) & (tokens <= last_id))
        amount += _amount(scores, is_left, COUNTS)
    return amount


@triton.jit
def _tighten(
    row_ptr, vocab_size, best, temperature, last, last_id, needed, COUNTS: tl.constexpr, TILE: tl.constexpr
):
    """The boundary of the fewest first tokens within (`last`, `last_id`) that amount to `needed`.

    All tokens within the boundary amount to at least that.
    """
    low = tl.zeros([], tl.int32)
    high = last
    below = tl.zeros([], tl.int64)  # the amount of all tokens before `low`
    while low < high:
        middle = low + (high - low) // 2
        amount = tl.zeros([], tl.int64)
        next_low = high
        next_high = low
        for start in range(0, vocab_size, TILE):
            tokens = start + tl.arange(0, TILE)
            scores = _scores_at(row_ptr, tokens, vocab_size, best, temperature)
            magnitudes = _magnitudes(scores)
            is_left = (magnitudes < last) | ((magnitudes == last) & (tokens <= last_id))
            is_first = is_left & (magnitudes >= low) & (magnitudes <= middle)
            is_second = is_left & (magnitudes > middle) & (magnitudes <= high)
            amount += _amount(scores, is_first, COUNTS)
            next_high = tl.maximum(next_high, tl.max(tl.where(is_first, magnitudes, 0), 0))
            next_low = tl.minimum(next_low, tl.min(tl.where(is_second, magnitudes, high), 0))
        if below + amount >= needed:
            high = next_high
        else:
            below += amount
            low = next_low
    level_score = -low.to(tl.float32, bitcast=True)
    unit = tl.full([], 1, tl.int64) if COUNTS else _mass_of(level_score)
    num_kept = (needed - below + unit - 1) // tl.maximum(unit, 1)
    seen = tl.zeros([], tl.int64)
    level_id = tl.zeros([], tl.int32)
    for start in range(0, vocab_size, TILE):
        tokens = start + tl.arange(0, TILE)
        magnitudes = _magnitudes(_scores_at(row_ptr, tokens, vocab_size, best, temperature))
        is_level = (magnitudes == low) & ((magnitudes < last) | (tokens <= last_id))
        place = seen + tl.cumsum(is_level.to(tl.int64), 0)
        is_kept = is_level & (place <= num_kept)
        level_id = tl.maximum(level_id, tl.max(tl.where(is_kept, tokens, 0), 0))
        seen += tl.sum(is_level.to(tl.int64), 0)
    return low, level_id


@triton.jit
def _noise_of(words):
    """Gumbel noise of random words, in float64."""
    uniform = (words.to(tl.float64) + 0.5) * (1.0 / WORDS)
    return -tl.log(-tl.log(uniform))


@triton.jit
def _sample_within(
    row_ptr, vocab_size, best, best_id, temperature, last, last_id, seed, position, TILE: tl.constexpr
):
    """The token within the boundary that has the highest score plus noise.

    With u the uniform number of a token, its noise is -log(-log(u)), and -log(u) >= 1 - u. So it reaches a
    record only if 1 - u <= exp(score - record): only tiles with such a token compute noise.
    """
    key_low = seed.to(tl.uint32)
    key_high = (seed >> 32).to(tl.uint32)
    record = tl.full([], float("-inf"), tl.float64)
    sampled = best_id
    # Starting with the tile of the best token: a high record early leaves less to compute.
    num_tiles = tl.cdiv(vocab_size, TILE)
    for step in range(num_tiles):
        start = (best_id // TILE + step) % num_tiles * TILE
        blocks = start // NUM_LANES + tl.arange(0, TILE // NUM_LANES)
        zeros = tl.zeros([TILE // NUM_LANES], tl.uint32)
        words = _philox(
            blocks.to(tl.uint32),
            zeros,
            zeros + position.to(tl.uint32),
            zeros + (position >> 32).to(tl.uint32),
            key_low,
            key_high,
        )
        for lane in tl.static_range(NUM_LANES):
            tokens = blocks * NUM_LANES + lane
            scores = _scores_at(row_ptr, tokens, vocab_size, best, temperature)
            magnitudes = _magnitudes(scores)
            is_left = (magnitudes < last) | ((magnitudes == last) & (tokens <= last_id))
            share = (words[lane] ^ 0xFFFFFFFF).to(tl.float32)
            bound = tl.exp(scores - record.to(tl.float32)) * (MARGIN * WORDS)
            may_win = is_left & (share <= bound)
            if tl.max(may_win.to(tl.int32), 0) > 0:
                noisy = tl.where(may_win, scores.to(tl.float64) + _noise_of(words[lane]), float("-inf"))
                highest = tl.max(noisy, 0)
                lowest_id = tl.min(tl.where(noisy == highest, tokens, NO_ID), 0)
                if (highest > record) | ((highest == record) & (lowest_id < sampled)):
                    record = highest
                    sampled = lowest_id
    return sampled


@triton.jit
def sample_rows(
    logits_ptr,
    seeds_ptr,
    positions_ptr,
    top_k_ptr,
    temperature_ptr,
    top_p_ptr,
    min_score_ptr,
    sampled_ptr,
    stride_row,
    vocab_size,
    TILE: tl.constexpr,
):
    """Sample one token for each row of `logits`, as `SamplingKernels.sample` says. Grid: (num_rows,)."""
    row = tl.program_id(0)
    row_ptr = logits_ptr + row.to(tl.int64) * stride_row
    temperature = tl.load(temperature_ptr + row).to(tl.float32)
    best, sampled = _best_logit(row_ptr, vocab_size, TILE)
    if (temperature > 0) & (sampled >= 0):
        # The least score that min_p leaves; without min_p all that is finite.
        min_score = tl.load(min_score_ptr + row).to(tl.float32)
        last = tl.minimum(_magnitudes(min_score), LAST_FINITE)
        last_id = tl.full([], NO_ID, tl.int32)
        top_k = tl.load(top_k_ptr + row)
        if (top_k > 0) & (top_k < vocab_size):
            left = _amount_within(row_ptr, vocab_size, best, temperature, last, last_id, True, TILE)
            if left > top_k:
                last, last_id = _tighten(
                    row_ptr, vocab_size, best, temperature, last, last_id, top_k, True, TILE
                )
        top_p = tl.load(top_p_ptr + row)
        if top_p < 1:
            total = _amount_within(row_ptr, vocab_size, best, temperature, last, last_id, False, TILE)
            needed = tl.minimum(tl.ceil(total.to(tl.float64) * top_p).to(tl.int64), total)
            if needed > 0:
                last, last_id = _tighten(
                    row_ptr, vocab_size, best, temperature, last, last_id, needed, False, TILE
                )
        seed, position = tl.load(seeds_ptr + row), tl.load(positions_ptr + row)
        sampled = _sample_within(
            row_ptr, vocab_size, best, sampled, temperature, last, last_id, seed, position, TILE
        )
    tl.store(sampled_ptr + row, sampled.to(tl.int64))


class TritonSampling(SamplingKernels):
    """One program per row, which looks at `tile` tokens together."""

    def __init__(self, tile: int = TILE) -> None:
        self._tile = tile

    def sample(self, logits: Tensor, batch: SampleBatch) -> Tensor:
        num_rows, vocab_size = logits.shape
        sampled = torch.empty(num_rows, dtype=torch.int64, device=logits.device)
        variant = sample_variant(logits.dtype, self._tile)
        variant.launch((num_rows,), logits, *batch.columns, sampled, logits.stride(0), vocab_size)
        return sampled


@cache
def sample_variant(dtype: torch.dtype, tile: int = TILE) -> KernelVariant:
    """`sample_rows` for logits of `dtype`."""
    pointers = {"logits_ptr": f"*{TRITON_TYPES[dtype]}", "seeds_ptr": "*i64", "positions_ptr": "*i64"}
    pointers |= {"top_k_ptr": "*i64", "temperature_ptr": "*fp64", "top_p_ptr": "*fp64"}
    pointers |= {"min_score_ptr": "*fp64", "sampled_ptr": "*i64"}
    return KernelVariant(
        kernel=sample_rows,
        signature={**pointers, **dict.fromkeys(("stride_row", "vocab_size"), "i32")},
        constexprs={"TILE": tile},
        aligned=frozenset((*pointers, "stride_row", "vocab_size")),
        num_warps=16,
        num_stages=2,
    )


def aot_variants() -> Iterator[KernelVariant]:
    """One: it takes seconds to compile, and the logits' type decides little of it."""
    yield sample_variant(torch.bfloat16)
