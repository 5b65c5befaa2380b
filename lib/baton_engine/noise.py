"""Gumbel noise as a pure function of (seed, position, token id): the same on every machine, in every batch.

A counter-based generator needs no state: the noise of one token is computed without that of any other.
Source: Philox4x32-10 of Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC11).
"""

from __future__ import annotations

import math
from typing import Final

import torch
from torch import Tensor

LANES: Final = 4
"""Tokens that share one evaluation of the generator: a noise block."""
_MASK: Final = 0xFFFFFFFF
_MULTIPLIERS: Final = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS: Final = (0x9E3779B9, 0xBB67AE85)
_NUM_ROUNDS: Final = 10
_PIECE: Final = 1 << 15
"""Noise blocks computed at a time: their intermediate values stay in a CPU core's cache."""

MAX_NOISE: Final = -math.log(-math.log1p(-(2.0**-33)))
MIN_NOISE: Final = -math.log(33 * math.log(2.0))


def gumbel_noise(seeds: Tensor, positions: Tensor, noise_blocks: Tensor) -> Tensor:
    """Return the noise of tokens `4 * block` to `4 * block + 3`, `[n, 4] float64`, MIN_NOISE to MAX_NOISE.

    `noise_blocks` is `[n] int64`; seeds (64-bit patterns) and positions are `[n]` or `[1] int64`.
    """
    pieces = []
    for start in range(0, len(noise_blocks), _PIECE):
        part = slice(start, start + _PIECE)
        seed, position = (x if len(x) == 1 else x[part] for x in (seeds, positions))
        pieces.append(_piece_noise(seed, position, noise_blocks[part]))
    return torch.cat(pieces)


def _piece_noise(seeds: Tensor, positions: Tensor, noise_blocks: Tensor) -> Tensor:
    counter = (noise_blocks, torch.zeros_like(positions), positions & _MASK, positions >> 32)
    words = philox4x32(counter, (seeds & _MASK, (seeds >> 32) & _MASK))
    uniform = torch.stack(words, dim=-1).double().add_(0.5).mul_(2.0**-32)
    return uniform.log_().neg_().log_().neg_()


def philox4x32(
    counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return four random 32-bit words per counter; all tensors are int64 holding unsigned 32-bit values.

    The first word of the counter is of full shape, the others may broadcast to it. A 32 by 32 bit product
    may wrap in int64; its 64 bits are right all the same, and a mask undoes the sign.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_NUM_ROUNDS):
        product0, product1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        # Low words keep their upper halves until the next mask: only multiplication needs clean words.
        c0 = ((product1 >> 32) ^ c1).bitwise_xor_(k0).bitwise_and_(_MASK)
        c2 = ((product0 >> 32) ^ c3).bitwise_xor_(k1).bitwise_and_(_MASK)
        c1, c3 = product1, product0
        k0, k1 = (k0 + _KEY_STEPS[0]) & _MASK, (k1 + _KEY_STEPS[1]) & _MASK
    return c0, c1 & _MASK, c2, c3 & _MASK
