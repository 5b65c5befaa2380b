"""Gumbel noise as a pure function of (seed, position, token id): the same on every machine, in every batch.

A counter-based generator needs no state: the noise of one token is computed without that of any other.
Tensors are on the CPU; NumPy multiplies 64-bit integers in half the time that torch takes.
Source: Philox4x32-10 of Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC11).
"""

from __future__ import annotations

import math
from typing import Final, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

LANES: Final = 4
"""Tokens that share one evaluation of the generator: a noise block."""
PIECE: Final = 1 << 14
"""Noise blocks computed at a time: their intermediate values stay in a CPU core's cache."""
MAX_NOISE: Final = -math.log(-math.log1p(-(2.0**-33)))
MIN_NOISE: Final = -math.log(33 * math.log(2.0))

Words: TypeAlias = NDArray[np.uint64]
"""Unsigned 32-bit values; a 32 by 32 bit product fits."""
_MASK: Final = np.uint64(0xFFFFFFFF)
_HALF: Final = np.uint64(32)
_MULTIPLIERS: Final = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_KEY_STEPS: Final = (np.uint64(0x9E3779B9), np.uint64(0xBB67AE85))
_NUM_ROUNDS: Final = 10


def gumbel_noise(seeds: Tensor, positions: Tensor, noise_blocks: Tensor) -> Tensor:
    """Return the noise of tokens `4 * block` to `4 * block + 3`, `[n, 4] float64`, MIN_NOISE to MAX_NOISE.

    `noise_blocks` is `[n] int64`; seeds (64-bit patterns) and positions are `[n]` or `[1] int64`.
    """
    pieces = []
    for start in range(0, len(noise_blocks), PIECE):
        part = slice(start, start + PIECE)
        seed, position = (x if len(x) == 1 else x[part] for x in (seeds, positions))
        pieces.append(to_noise(noise_words(seed, position, noise_blocks[part])))
    return torch.cat(pieces) if pieces else torch.empty((0, LANES), dtype=torch.float64)


def noise_words(seeds: Tensor, positions: Tensor, noise_blocks: Tensor) -> NDArray[np.uint32]:
    """Return the random words of the tokens of noise blocks `[n]`, `[n, 4]`; arguments as `gumbel_noise`."""
    seed, position, block = (x.numpy().view(np.uint64) for x in (seeds, positions, noise_blocks))
    counter = (block, np.zeros_like(position), position & _MASK, position >> _HALF)
    words = np.empty((len(block), LANES), dtype=np.uint32)
    for lane, word in enumerate(philox4x32(counter, (seed & _MASK, seed >> _HALF))):
        words[:, lane] = word
    return words


def to_noise(words: NDArray[np.uint32]) -> Tensor:
    """Map random words to Gumbel noise, -log(-log((word + 1/2) / 2**32)), `float64` of the same shape."""
    uniform = torch.from_numpy(words.astype(np.float64)).add_(0.5).mul_(2.0**-32)
    return uniform.log_().neg_().log_().neg_()


def philox4x32(
    counter: tuple[Words, Words, Words, Words], key: tuple[Words, Words]
) -> tuple[Words, Words, Words, Words]:
    """Return four random words per counter.

    The first word of the counter is of full shape, the others and the key may broadcast to it.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_NUM_ROUNDS):
        product0, product1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        # Low words keep their upper halves until the next mask: only multiplication needs clean words.
        c0, c2 = (product1 >> _HALF) ^ c1, (product0 >> _HALF) ^ c3
        c0 = _keyed(c0, k0)
        c2 = _keyed(c2, k1)
        c1, c3 = product1, product0
        k0, k1 = (k0 + _KEY_STEPS[0]) & _MASK, (k1 + _KEY_STEPS[1]) & _MASK
    return c0, c1 & _MASK, c2, c3 & _MASK


def _keyed(word: Words, key: Words) -> Words:
    """The low half of `word ^ key`; in place where the shapes allow it."""
    keyed = np.bitwise_xor(word, key, out=word if word.shape == np.broadcast(word, key).shape else None)
    return np.bitwise_and(keyed, _MASK, out=keyed)
