"""Sampling on the CPU, in torch: it decides from the values what to compute."""

from __future__ import annotations

from typing import Final

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from baton_kernels.interface.sampling import MASS_BITS, Refusal, SampleBatch, SamplingKernels
from baton_kernels.reference.gumbel_noise import LANES, MAX_NOISE, PIECE, gumbel_noise, noise_words, to_noise

_FEW_TOKENS: Final = 1 << 11
"""Candidates of a row up to which each is evaluated by itself, together with those of other rows."""
_MARGIN: Final = 1.0001
"""Covers the float32 rounding of the test by which a token is skipped."""


class TorchSampling(SamplingKernels):
    """`SamplingKernels` in torch."""

    def sample(self, logits: Tensor, batch: SampleBatch) -> Tensor:
        wide = logits.float()
        tokens = torch.from_numpy(wide.numpy().argmax(axis=-1))  # of NaN, if there is one
        top = wide.gather(1, tokens[:, None])[:, 0]
        is_finite = top.isfinite()
        rows = ((batch.temperature > 0) & is_finite).nonzero()[:, 0]
        if len(rows):
            tokens[rows] = _sample(wide[rows], batch.rows(rows), tokens[rows])
        return tokens if is_finite.all() else torch.where(is_finite, tokens, _refusals(top))


def _refusals(top: Tensor) -> Tensor:
    """Return the `Refusal` of rows `[num_rows]` by the highest logit of each, which is not finite."""
    refusals = torch.full(top.shape, int(Refusal.NOTHING_LEFT))
    return refusals.masked_fill_(top > 0, int(Refusal.INFINITE)).masked_fill_(
        top.isnan(), int(Refusal.NOT_A_NUMBER)
    )


def _sample(logits: Tensor, batch: SampleBatch, best: Tensor) -> Tensor:
    """Sample from rows whose temperature is above zero; `best` `[num_rows]` is each row's most likely token.

    Mutates `logits` `[num_rows, vocab_size] float32`.
    """
    # Relative to the best token, no division overflows and the bounds below are constants.
    scores = logits.sub_(logits.gather(1, best[:, None])).div_(batch.temperature.float()[:, None])
    drop_filtered(scores, batch)
    # The best token with its noise is the first record; who cannot beat it with any noise is out.
    records = _noisy(scores, batch, torch.arange(len(best)), best)
    can_win = scores >= (records - MAX_NOISE).float()[:, None] - 1e-3
    is_long = torch.from_numpy(np.count_nonzero(can_win.numpy(), axis=-1) > _FEW_TOKENS)
    sampled = best.clone()
    for row in is_long.nonzero()[:, 0].tolist():
        one = slice(row, row + 1)
        key = batch.seeds[one], batch.positions[one]
        sampled[row] = _sample_long_row(scores[row], *key, int(best[row]), float(records[row]))
    can_win[is_long] = False
    rows, tokens = can_win.nonzero(as_tuple=True)
    return _best_by_row(_noisy(scores, batch, rows, tokens), rows, tokens, sampled)


def _noisy(scores: Tensor, batch: SampleBatch, rows: Tensor, tokens: Tensor) -> Tensor:
    """Return score plus noise of (row, token) pairs, `[n] float64`."""
    noise = gumbel_noise(batch.seeds[rows], batch.positions[rows], tokens // LANES)
    return scores[rows, tokens] + noise.gather(1, tokens[:, None] % LANES)[:, 0]


def _best_by_row(noisy: Tensor, rows: Tensor, tokens: Tensor, fallback: Tensor) -> Tensor:
    """Return each row's token of highest `noisy` `[n]`; the fallback for a row that has none."""
    best = torch.full(fallback.shape, -torch.inf, dtype=noisy.dtype, device=noisy.device)
    best.scatter_reduce_(0, rows, noisy, "amax")
    wins = noisy == best[rows]
    return fallback.scatter_reduce(0, rows[wins], tokens[wins], "amin", include_self=False)


def _sample_long_row(scores: Tensor, seed: Tensor, position: Tensor, token: int, record: float) -> int:
    """Sample from one row `[vocab_size]`, evaluating only tokens that may beat the record of those before.

    `record` is the score plus noise of `token` at first. With u the uniform number of a token, its noise is
    -log(-log(u)), and -log(u) >= 1 - u. So it reaches a record only if 1 - u <= exp(score - record): that
    compares the generator's word without its logarithm.
    """
    by_block = functional.pad(scores, (0, -len(scores) % LANES), value=-torch.inf).view(-1, LANES)
    for start in range(0, len(by_block), PIECE):
        piece = by_block[start : start + PIECE]
        blocks = torch.arange(start, start + len(piece), device=scores.device)
        words = noise_words(seed, position, blocks)
        shares = torch.from_numpy(np.invert(words).astype(np.float32))
        bound = (piece - record).exp_().mul_(_MARGIN * 2.0**32)
        places = (shares <= bound).view(-1).nonzero()[:, 0]
        if len(places):
            noisy = piece.reshape(-1)[places] + to_noise(words.reshape(-1)[places.numpy()])
            highest = float(noisy.max())
            lowest_id = start * LANES + int(places[noisy == highest][0])
            if (highest, -lowest_id) > (record, -token):
                record, token = highest, lowest_id
    return token


def drop_filtered(scores: Tensor, batch: SampleBatch) -> None:
    """Set to -inf what min_p, top_k and top_p do not leave, each row by its own.

    Mutates `scores` `[num_rows, vocab_size] float32`: logits over temperature, relative to the row's best.
    """
    if bool((batch.min_score > -torch.inf).any()):
        scores.masked_fill_(scores < batch.min_score.float()[:, None], -torch.inf)
    has_top_k = (batch.top_k > 0) & (batch.top_k < scores.shape[1])
    rows = (has_top_k | (batch.top_p < 1)).nonzero()[:, 0]
    if len(rows):
        left = scores[rows]
        kept = _first_in_order(left, *_find_boundary(left, batch.rows(rows)))
        scores[rows] = left.masked_fill_(~kept, -torch.inf)


def _find_boundary(scores: Tensor, batch: SampleBatch) -> tuple[Tensor, Tensor]:
    """Return how many tokens top_k and top_p keep and the lowest score kept, `[num_rows]` each."""
    vocab_size = scores.shape[1]
    is_cut = (batch.top_k > 0) & (batch.top_k < vocab_size)
    top_k = batch.top_k.where(is_cut, vocab_size)
    # NumPy sorts float32 with vector instructions, twenty times as fast as torch.
    highest = torch.from_numpy(np.sort(-scores.numpy())[:, : int(top_k.max())]).neg_()
    is_kept = torch.arange(highest.shape[1]) < top_k[:, None]
    if bool((batch.top_p < 1).any()):
        weights = _weights(highest).masked_fill_(~is_kept, 0)
        mass = weights.cumsum(dim=-1)
        # The smallest prefix that reaches top_p: a token stays while those before it do not reach it.
        is_kept &= mass - weights < _needed_mass(mass[:, -1:], batch.top_p[:, None])
    count = is_kept.sum(dim=-1).clamp_(min=1)
    return count, highest.gather(1, count[:, None] - 1)[:, 0]


def _weights(scores: Tensor) -> Tensor:
    """Probability mass relative to the best token's, in steps of 2**-MASS_BITS, `int64`."""
    return scores.double().exp_().mul_(2.0**MASS_BITS).add_(0.5).long()


def _needed_mass(total: Tensor, top_p: Tensor) -> Tensor:
    """Return the mass that the tokens before one must not have reached for it to stay: `top_p` of `total`."""
    share = (total.double() * top_p).ceil_().long()
    return share.minimum(total).where(top_p < 1, torch.iinfo(torch.int64).max)


def _first_in_order(scores: Tensor, count: Tensor, boundary: Tensor) -> Tensor:
    """Mask the first `count` `[num_rows]` tokens by (score descending, token id ascending).

    `boundary` `[num_rows]` is the score of the last of them.
    """
    mask = scores >= boundary[:, None]
    surplus = np.count_nonzero(mask.numpy(), axis=-1) - count.numpy()
    for row in np.flatnonzero(surplus > 0).tolist():
        level = (scores[row] == boundary[row]).nonzero()[:, 0]
        mask[row, level[-surplus[row] :]] = False
    return mask
