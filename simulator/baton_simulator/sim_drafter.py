"""Drafts of a simulated worker: an oracle's, some of whose tokens are wrong.

They are proposed to the scheduler, or made by a model that a step gives orders to.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import replace
from random import Random
from typing import Final

from baton_core.worker.sequence import Sequence
from baton_core.worker.speculative_config import SpeculativeConfig, SpeculativeMethod
from baton_core.worker.step_plan import SeqId, StepPlan, StepResult
from baton_simulator.hash_engine import VOCAB_SIZE, Windows, expected_tokens
from baton_worker.core.speculation.model_drafts import ModelDrafts
from baton_worker.core.speculation.speculation import Speculation
from baton_worker.core.worker_core import WorkerCore

SPECULATIVE: Final = SpeculativeConfig(method=SpeculativeMethod.NGRAM, num_speculative_tokens=4)
BY_MODEL: Final = SpeculativeConfig(
    method=SpeculativeMethod.DRAFT_MODEL, num_speculative_tokens=4, model="an oracle"
)
_RIGHT: Final = 0.8
"""Probability that a drafted token is the right one."""
_LOST: Final = 0.1
"""Probability that a model has no room for a sequence."""
_DRAFTING_S: Final = 1e-6


def speculate(core: WorkerCore, windows: Windows, rng: Random, *, by_model: bool) -> SimDraftModel | None:
    """Let a worker verify drafts from now on; returns the model that makes them, if one does."""
    model = SimDraftModel(rng)

    def make_drafter(seq: Sequence) -> SimDrafter | ModelDrafts:
        oracle = SimDrafter(seq, windows, rng)
        if not by_model:
            return oracle
        model.oracles[seq.seq_id] = oracle
        return ModelDrafts()

    config = BY_MODEL if by_model else SPECULATIVE
    core.scheduler.speculation = Speculation(config, core.config.max_model_len, make_drafter)
    return model if by_model else None


class SimDrafter:
    """Knows what an undisturbed engine gives to one sequence."""

    def __init__(self, seq: Sequence, windows: Windows, rng: Random) -> None:
        prompt = tuple(seq.token_ids[: seq.num_prompt_tokens])
        count = seq.params.max_tokens or 0
        outputs = expected_tokens(prompt, seq.params, seq.seq_id.index, count, windows)
        self.tokens = [*prompt, *outputs]
        self._rng = rng

    def propose(self, token_ids: Many[int], num_tokens: int) -> tuple[int, ...]:
        """Return the next tokens, some of them wrong."""
        start = len(token_ids)
        return tuple(
            token_id if self._rng.random() < _RIGHT else (token_id + 1) % VOCAB_SIZE
            for token_id in self.tokens[start : start + num_tokens]
        )


class SimDraftModel:
    """Knows of a sequence what its orders have said, each of which must go on where the last one ended."""

    def __init__(self, rng: Random) -> None:
        self.oracles: dict[SeqId, SimDrafter] = {}
        self._num_known: dict[SeqId, int] = {}
        self._rng = rng

    def draft(self, plan: StepPlan, result: StepResult) -> StepResult:
        """Return the result of a step with the drafts that its plan orders, as far as there is room."""
        for seq_id in plan.ended:
            self.oracles.pop(seq_id, None)
            self._num_known.pop(seq_id, None)
        drafts: dict[int, tuple[int, ...]] = {}
        for number, (piece, sampled) in enumerate(zip(plan.slices, result.sampled, strict=True)):
            if piece.order is None or not sampled:
                continue
            num_known, oracle = self._num_known.pop(piece.seq_id, 0), self.oracles[piece.seq_id]
            assert piece.order.start in (0, num_known), f"{piece.seq_id} goes on where no order ended"
            text = [*oracle.tokens[: piece.order.start], *piece.order.token_ids, *sampled]
            of_both = min(len(text), len(oracle.tokens))  # a step may sample more than ends a sequence
            assert text[:of_both] == oracle.tokens[:of_both], f"an order of {piece.seq_id} has another text"
            if self._rng.random() >= _LOST:
                self._num_known[piece.seq_id] = len(text)
                drafts[number] = oracle.propose(text, piece.order.num_tokens)
        return replace(result, drafts=drafts, drafting_s=_DRAFTING_S) if drafts else result
