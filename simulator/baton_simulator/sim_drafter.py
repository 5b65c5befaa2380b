"""Drafts of a simulated worker: an oracle's, some of whose tokens are wrong."""

from __future__ import annotations

from collections.abc import Sequence as Many
from random import Random
from typing import Final

from baton_core.worker.sequence import Sequence
from baton_core.worker.speculative_config import SpeculativeConfig, SpeculativeMethod
from baton_simulator.hash_engine import VOCAB_SIZE, Windows, expected_tokens
from baton_worker.core.speculation.speculation import Speculation
from baton_worker.core.worker_core import WorkerCore

SPECULATIVE: Final = SpeculativeConfig(method=SpeculativeMethod.NGRAM, num_speculative_tokens=4)
_RIGHT: Final = 0.8
"""Probability that a drafted token is the right one."""


def speculate(core: WorkerCore, windows: Windows, rng: Random) -> None:
    """Let a worker verify drafts from now on."""
    core.scheduler.speculation = Speculation(
        SPECULATIVE, core.config.max_model_len, lambda seq: SimDrafter(seq, windows, rng)
    )


class SimDrafter:
    """Knows what an undisturbed engine gives to one sequence."""

    def __init__(self, seq: Sequence, windows: Windows, rng: Random) -> None:
        prompt = tuple(seq.token_ids[: seq.num_prompt_tokens])
        count = seq.params.max_tokens or 0
        outputs = expected_tokens(prompt, seq.params, seq.seq_id.index, count, windows)
        self._tokens = [*prompt, *outputs]
        self._rng = rng

    def propose(self, token_ids: Many[int], num_tokens: int) -> tuple[int, ...]:
        """Return the next tokens, some of them wrong."""
        start = len(token_ids)
        return tuple(
            token_id if self._rng.random() < _RIGHT else (token_id + 1) % VOCAB_SIZE
            for token_id in self._tokens[start : start + num_tokens]
        )
