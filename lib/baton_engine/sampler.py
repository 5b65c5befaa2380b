"""Draws tokens from logits: argmax over logit / temperature + Gumbel noise.

The noise depends on (seed, position, token id) alone, so a token depends on its own row and spec and on
neither batch nor machine. Filters follow vLLM's documented order: temperature, min_p, top_k, top_p, each
on what the one before left. Ties, also at the boundary of a filter, go to the lower token id.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from baton_core.step_plan import SampleSpec
from baton_engine.noise import LANES, MAX_NOISE, MIN_NOISE, gumbel_noise

_CANNOT_WIN: Final = MIN_NOISE - MAX_NOISE
"""A token this far below the best one loses whatever the noise."""
_LONG_ROW: Final = 1 << 12
"""Noise blocks in a row from which the generator runs on this row alone."""
_PREFIX: Final = 1024
"""Highest tokens among which top_p looks first: far cheaper to put in order than a vocabulary."""


def sample(logits: Tensor, specs: Sequence[SampleSpec]) -> Tensor:
    """Draw one token per row of `logits` `[num_rows, vocab_size]`; return `[num_rows] int64`."""
    tokens = logits.argmax(dim=-1)
    rows = [row for row, spec in enumerate(specs) if spec.temperature > 0]
    if rows:
        index = torch.tensor(rows, device=logits.device)
        tokens[index] = _draw(logits[index], [specs[row] for row in rows], tokens[index])
    return tokens


def _draw(logits: Tensor, specs: Sequence[SampleSpec], best: Tensor) -> Tensor:
    """Draw from rows whose temperature is above zero; `best` `[num_rows]` is each row's most likely token."""
    wide = logits.float()
    temperature = _column([spec.temperature for spec in specs], wide)
    # Relative to the best token, no division overflows and the bounds below are constants.
    scores = (wide - wide.gather(1, best[:, None])) / temperature
    candidates = (scores > _CANNOT_WIN) & surviving_filters(scores, specs)
    rows, noise_blocks = _to_blocks(candidates).any(dim=-1).nonzero(as_tuple=True)
    seeds, positions = (
        torch.tensor([_signed(value) for value in values], device=logits.device)
        for values in ([spec.seed for spec in specs], [spec.position for spec in specs])
    )
    noise = _noise_by_row(seeds, positions, rows, noise_blocks)
    noisy = _to_blocks(scores)[rows, noise_blocks] + noise
    noisy.masked_fill_(~_to_blocks(candidates)[rows, noise_blocks], -torch.inf)
    return _best_by_row(noisy, rows, noise_blocks, best)


def _noise_by_row(seeds: Tensor, positions: Tensor, rows: Tensor, noise_blocks: Tensor) -> Tensor:
    """Return the noise `[n, LANES]` of blocks `[n]`, sorted by row: long rows one by one, short ones at once.

    The values are the same; within a row the generator's key is one number instead of n.
    """
    if len(rows) < _LONG_ROW * len(seeds):
        return gumbel_noise(seeds[rows], positions[rows], noise_blocks)
    num_blocks = rows.bincount(minlength=len(seeds)).tolist()
    return torch.cat(
        [
            gumbel_noise(seed[None], position[None], blocks)
            for seed, position, blocks in zip(
                seeds, positions, torch.split(noise_blocks, num_blocks), strict=True
            )
            if len(blocks)
        ]
    )


def _best_by_row(noisy: Tensor, rows: Tensor, noise_blocks: Tensor, fallback: Tensor) -> Tensor:
    """Return each row's token of highest `noisy` `[n, LANES]`; the fallback where a row has none (NaN)."""
    block_best, lanes = noisy.max(dim=-1)
    best = torch.full(fallback.shape, -torch.inf, dtype=noisy.dtype, device=noisy.device)
    best.scatter_reduce_(0, rows, block_best, "amax")
    wins = block_best == best[rows]
    token_ids = noise_blocks * LANES + lanes
    return fallback.scatter_reduce(0, rows[wins], token_ids[wins], "amin", include_self=False)


def surviving_filters(scores: Tensor, specs: Sequence[SampleSpec]) -> Tensor:
    """Return a mask of the tokens that min_p, top_k and top_p leave, each row by its spec.

    `scores` `[num_rows, vocab_size] float32` are logits over temperature, relative to the row's best.
    """
    mask = torch.ones_like(scores, dtype=torch.bool)
    if any(spec.min_p > 0 for spec in specs):
        mask = scores >= _column([spec.min_p for spec in specs], scores).log()
    vocab_size = scores.shape[1]
    rows = [row for row, spec in enumerate(specs) if 0 < spec.top_k < vocab_size or spec.top_p < 1]
    if rows:
        index = torch.tensor(rows, device=scores.device)
        left = scores[index].masked_fill_(~mask[index], -torch.inf)
        mask[index] = _first_in_order(left, *_find_boundary(left, [specs[row] for row in rows], _PREFIX))
    return mask


def _find_boundary(scores: Tensor, specs: Sequence[SampleSpec], prefix: int) -> tuple[Tensor, Tensor]:
    """Return how many tokens of each row top_k and top_p keep, and the lowest score kept: `[num_rows]` each.

    Only the highest `prefix` tokens, and those within top_k, are put in order; a row where top_p reaches
    further is done again in full.
    """
    vocab_size = scores.shape[1]
    top_k = [spec.top_k if 0 < spec.top_k < vocab_size else vocab_size for spec in specs]
    width = min(vocab_size, max(prefix if k == vocab_size else k for k in top_k))
    highest = scores.topk(width, dim=-1).values
    rank = torch.arange(width, device=scores.device)
    weights = highest.double().exp_().masked_fill_(rank >= _column(top_k, rank), 0.0)
    mass = weights.cumsum(dim=-1)
    is_cut = _column(top_k, rank) < vocab_size
    total = mass[:, -1:] if is_cut.all() else torch.where(is_cut, mass[:, -1:], _total_mass(scores))
    # The smallest prefix that reaches top_p: a token stays while those before it do not reach it.
    is_kept = (mass - weights < total * _column([spec.top_p for spec in specs], mass)) & (weights > 0)
    count = is_kept.sum(dim=-1).clamp_(min=1)
    boundary = highest.gather(1, count[:, None] - 1)[:, 0]
    if width < vocab_size and (redo := ((count == width) & ~is_cut[:, 0]).nonzero()[:, 0]).numel():
        rest = [specs[row] for row in redo.tolist()]
        count[redo], boundary[redo] = _find_boundary(scores[redo], rest, vocab_size)
    return count, boundary


def _total_mass(scores: Tensor) -> Tensor:
    return scores.double().exp_().sum(dim=-1, keepdim=True)


def _first_in_order(scores: Tensor, count: Tensor, boundary: Tensor) -> Tensor:
    """Mask the first `count` `[num_rows]` tokens by (score descending, token id ascending).

    `boundary` `[num_rows]` is the score of the last of them.
    """
    mask = scores > boundary[:, None]
    rows, token_ids = (scores == boundary[:, None]).nonzero(as_tuple=True)
    num_level = rows.bincount(minlength=len(count))
    place = torch.arange(len(rows), device=rows.device) - (num_level.cumsum(0) - num_level)[rows]
    is_kept = place < (count - mask.sum(dim=-1))[rows]
    mask[rows[is_kept], token_ids[is_kept]] = True
    return mask


def _to_blocks(per_token: Tensor) -> Tensor:
    """Reshape `[num_rows, vocab_size]` to `[num_rows, num_noise_blocks, LANES]`, padded with False or 0."""
    num_rows, vocab_size = per_token.shape
    return functional.pad(per_token, (0, -vocab_size % LANES)).view(num_rows, -1, LANES)


def _column(values: Sequence[float], like: Tensor) -> Tensor:
    return torch.tensor(values, dtype=like.dtype, device=like.device)[:, None]


def _signed(value: int) -> int:
    """Read an unsigned 64-bit pattern as the int64 that torch stores."""
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value
