"""Datasets that are sampled: random prompts, and prompts that share prefixes."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from baton_bench.answers import BenchRequest
from baton_bench.token_source import TokenSource
from baton_core.errors import InvalidConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomPrompts:
    """Prompts without meaning, all behind one prefix if there is one."""

    input_len: int = 1024
    """Tokens of a prompt behind the prefix."""
    output_len: int = 128
    range_ratio: float = 0.0
    """Lengths are sampled evenly from this share below to this share above."""
    prefix_len: int = 0

    def sample(self, count: int, rng: random.Random, source: TokenSource) -> list[BenchRequest]:
        prefix = source.sample(rng, self.prefix_len)
        return [
            source.request(
                rng,
                (*prefix, *source.sample(rng, self._length(rng, self.input_len))),
                self._length(rng, self.output_len),
            )
            for _ in range(count)
        ]

    def _length(self, rng: random.Random, mean: int) -> int:
        low = max(1, math.floor(mean * (1 - self.range_ratio)))
        return rng.randint(low, max(low, math.ceil(mean * (1 + self.range_ratio))))


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixRepetition:
    """Prompts in random order, as many behind each of a few prefixes."""

    prefix_len: int = 256
    suffix_len: int = 256
    num_prefixes: int = 10
    output_len: int = 128

    def sample(self, count: int, rng: random.Random, source: TokenSource) -> list[BenchRequest]:
        """`count` requests.

        Raises:
            InvalidConfigError: there are more prefixes than requests.
        """
        if self.num_prefixes > count:
            raise InvalidConfigError(
                f"--prefix-repetition-num-prefixes is {self.num_prefixes}; allowed: up to the {count} of "
                "--num-prompts"
            )
        prefixes = [source.sample(rng, self.prefix_len) for _ in range(self.num_prefixes)]
        requests = [
            source.request(
                rng,
                (*prefixes[number % self.num_prefixes], *source.sample(rng, self.suffix_len)),
                self.output_len,
            )
            for number in range(count)
        ]
        rng.shuffle(requests)
        return requests
