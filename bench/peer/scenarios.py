"""The scenarios of the engines: prompts of random tokens, all at once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import Final

VOCAB_SIZE: Final = 32_000
NUM_SPECIAL_TOKENS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Requests that come together."""

    num_requests: int
    num_prompt_tokens: int
    num_output_tokens: int
    num_shared_tokens: int = 0
    """Tokens that the prompts share at their beginnings."""
    reads_cache: bool = True
    is_warm: bool = False
    """True if the shared beginning was computed before."""
    num_streams: int = 0
    """Requests of a server at a time; 0: all."""

    @property
    def num_computed_tokens(self) -> int:
        """Prompt tokens that an engine has to compute if its prefix cache is ideal."""
        own = self.num_prompt_tokens - self.num_shared_tokens
        if not self.reads_cache:
            return self.num_requests * self.num_prompt_tokens
        return self.num_requests * own + (0 if self.is_warm else self.num_shared_tokens)

    def prompts(self, seed: str, turn: int = 0) -> list[list[int]]:
        """Token ids of each prompt; turns have the shared beginning in common, seeds nothing."""
        own = self.num_prompt_tokens - self.num_shared_tokens
        shared, random = _draw(Random(seed), self.num_shared_tokens), Random(f"{seed}, turn {turn}")
        return [shared + _draw(random, own) for _ in range(self.num_requests)]


def _draw(random: Random, length: int) -> list[int]:
    return [random.randrange(NUM_SPECIAL_TOKENS, VOCAB_SIZE) for _ in range(length)]


SINGLE: Final = Scenario(num_requests=1, num_prompt_tokens=512, num_output_tokens=128)
BATCH: Final = Scenario(num_requests=32, num_prompt_tokens=256, num_output_tokens=64)
PREFILL: Final = Scenario(num_requests=16, num_prompt_tokens=1024, num_output_tokens=8)
PREFIX_COLD: Final = Scenario(
    num_requests=16, num_prompt_tokens=1088, num_output_tokens=16, num_shared_tokens=1024
)
OFFLINE: Final = {
    "single": SINGLE,
    "batch": BATCH,
    "prefill": PREFILL,
    "prefix-off": replace(PREFIX_COLD, reads_cache=False),
    "prefix-cold": PREFIX_COLD,
    "prefix-warm": replace(PREFIX_COLD, is_warm=True),
}
"""Scenarios of an engine without a server, by name."""
FIRST_TOKEN: Final = Scenario(num_requests=1, num_prompt_tokens=16, num_output_tokens=1)
FULL_STEP: Final = Scenario(num_requests=16, num_prompt_tokens=256, num_output_tokens=16)
"""Fills steps of prompts and of decodes, after which an engine has the memory that it needs."""
DISAGGREGATED: Final = {
    "pair-1": Scenario(num_requests=4, num_prompt_tokens=512, num_output_tokens=64, num_streams=1),
    "pair-4": Scenario(num_requests=12, num_prompt_tokens=512, num_output_tokens=64, num_streams=4),
}
"""Scenarios of one engine that computes prompts and one that decodes, by name."""
