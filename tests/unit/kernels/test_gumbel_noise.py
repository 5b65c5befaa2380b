"""The noise generator against its authors' vectors and against itself in other batches."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from baton_kernels.reference.gumbel_noise import MAX_NOISE, MIN_NOISE, Words, gumbel_noise, philox4x32


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ],
)
def test_philox_gives_the_known_answers_of_random123(counter: str, key: str, expected: str) -> None:
    def words(text: str) -> list[Words]:
        return [np.array([int(word, 16)], dtype=np.uint64) for word in text.split()]

    assert philox4x32(tuple(words(counter)), tuple(words(key))) == tuple(words(expected))


def noise_of(seed: int, position: int, block: int) -> list[float]:
    return gumbel_noise(torch.tensor([seed]), torch.tensor([position]), torch.tensor([block]))[0].tolist()


def test_noise_depends_on_neither_batch_nor_order() -> None:
    blocks = torch.tensor([9, 0, 40_000, 3])
    seeds, positions = torch.tensor([-5, 7, 7, 7]), torch.tensor([2, 2, 2**33, 5])
    together = gumbel_noise(seeds, positions, blocks).tolist()
    alone = [noise_of(*key) for key in zip(seeds.tolist(), positions.tolist(), blocks.tolist(), strict=True)]
    assert together == alone


def test_one_key_for_all_blocks_equals_a_key_per_block() -> None:
    blocks = torch.arange(70_000)
    shared = gumbel_noise(torch.tensor([11]), torch.tensor([4]), blocks)
    assert torch.equal(shared, gumbel_noise(torch.full_like(blocks, 11), torch.full_like(blocks, 4), blocks))


def test_every_part_of_the_key_changes_the_noise() -> None:
    keys = [(0, 0, 0), (1, 0, 0), (2**32, 0, 0), (0, 1, 0), (0, 2**32, 0), (0, 0, 1)]
    assert len({tuple(noise_of(*key)) for key in keys}) == len(keys)


def test_noise_has_the_moments_of_a_standard_gumbel_and_keeps_its_bounds() -> None:
    noise = gumbel_noise(torch.tensor([3]), torch.tensor([0]), torch.arange(100_000))
    euler_gamma = 0.5772156649
    assert noise.mean().item() == pytest.approx(euler_gamma, abs=0.01)
    assert noise.var().item() == pytest.approx(math.pi**2 / 6, abs=0.02)
    assert MIN_NOISE <= noise.min().item() < -2.2
    assert 11 < noise.max().item() <= MAX_NOISE
