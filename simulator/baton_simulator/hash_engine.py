"""An engine whose tokens are a hash of everything it reads: a wrong block, or history, is a wrong token.

A slot of a block holds a hash of what its token sees in its KV group. Hashes are Python's own, of integers
alone, which are the same in every process.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Final

from baton_core.kv_layout.paging import Paging
from baton_core.requests.logprobs import PositionLogprobs
from baton_core.requests.sampling_params import SamplingParams, sequence_seed
from baton_core.worker.step_plan import (
    SAMPLED,
    LogprobsSpec,
    SampleSpec,
    SequenceSlice,
    StepPlan,
    StepResult,
)
from baton_core.worker.worker_events import BlockPull

VOCAB_SIZE: Final = 50_000
_NUM_KEPT: Final = 8
"""Steps whose tokens are known: more than are in flight."""
Windows = tuple[int | None, ...]
ONE_KIND: Final[Windows] = (None,)


def first_seen(window: int | None, position: int) -> int:
    return 0 if window is None else max(0, position - window + 1)


def new_slot(slots: Sequence[int], first: int, group: int, token_id: int) -> int:
    """Return the slot of a token in a group: a hash of itself and of both ends of its context there.

    The context is `slots` from `first` on.
    """
    return hash((group, slots[first], slots[-1], token_id)) if first < len(slots) else hash((group, token_id))


def sample(seen: Sequence[Sequence[int]], seed: int, position: int) -> int:
    """The token that follows: it depends on all that the last one sees, in each group."""
    return hash((*map(tuple, seen), seed, position)) % VOCAB_SIZE


def apply_rules(token_id: int, prompt: tuple[int, ...], outputs: tuple[int, ...], index: int) -> int:
    """Return the token after sampling rules: it depends on the history and on its sequence."""
    return hash((token_id, prompt, outputs, index)) % VOCAB_SIZE


def position_logprobs(token_id: int, position: int, spec: LogprobsSpec) -> PositionLogprobs:
    """Made up: they name the token, its position and what was asked for."""
    token_ids = (token_id, *(spec.token_ids or range(spec.num_top)))
    logprobs = tuple(-float(position) for _ in token_ids)
    return PositionLogprobs(token_ids=token_ids, logprobs=logprobs, ranks=tuple(range(1, len(token_ids) + 1)))


def expected_tokens(
    prompt: tuple[int, ...], params: SamplingParams, index: int, count: int, windows: Windows = ONE_KIND
) -> list[int]:
    """Return the tokens of an undisturbed engine, `count` at most."""
    is_ruled = params.changes_logits
    assert params.seed is not None
    seed = sequence_seed(params.seed, index)
    slots: list[list[int]] = [[] for _ in windows]
    tokens = list(prompt)
    for position in range(len(prompt) + count):
        if position >= len(prompt):
            seen = [slots[group][first_seen(window, position - 1) :] for group, window in enumerate(windows)]
            token_id = sample(seen, seed, position)
            outputs = tuple(tokens[len(prompt) :])
            tokens.append(apply_rules(token_id, prompt, outputs, index) if is_ruled else token_id)
            if tokens[-1] in params.stop_token_ids:
                break
        for group, window in enumerate(windows):
            first = first_seen(window, position)
            slots[group].append(new_slot(slots[group], first, group, tokens[position]))
    return tokens[len(prompt) :]


class HashEngine:
    """One worker's KV pool and its steps.

    Args:
        garbled: probability that a block arrives wrong; only for transports that compare checksums.
    """

    num_ranks = 1
    """Ranks that have a part of each block."""

    def __init__(
        self, num_blocks: int, paging: Paging, *, garbled: float = 0.0, rng: Random | None = None
    ) -> None:
        self.paging = paging
        self.blocks = [[0] * paging.block_size for _ in range(num_blocks)]
        self.num_computed_tokens = 0
        self._garbled = garbled
        self._rng = rng or Random(0)
        self._sampled: dict[int, list[int]] = {}
        """Tokens of the last steps, by step."""

    def execute(self, plan: StepPlan) -> StepResult:
        copied = [list(self.blocks[source]) for source, _ in plan.block_copies]
        for (_, destination), content in zip(plan.block_copies, copied, strict=True):
            self.blocks[destination] = content
        for piece, token_ids in zip(plan.slices, self._token_ids(plan), strict=True):
            self.num_computed_tokens += piece.num_scheduled_tokens
            self._write(piece, token_ids)
        result = self._result(plan)
        self._sampled[plan.step_id] = [token_id for sampled in result.sampled for token_id in sampled]
        self._sampled.pop(plan.step_id - _NUM_KEPT, None)
        return result

    def _token_ids(self, plan: StepPlan) -> list[tuple[int, ...]]:
        """Return the tokens of each slice, including those sampled by the step that it follows."""
        if plan.follows is None:
            return [piece.token_ids for piece in plan.slices]
        assert plan.follows.step_id in self._sampled, "a step follows one that is not computed"
        assert all(piece.token_ids == (SAMPLED,) for piece in plan.slices)
        drawn = self._sampled[plan.follows.step_id]
        return [(drawn[row],) for row in plan.follows.rows]

    def _result(self, plan: StepPlan) -> StepResult:
        """Draw, and tell what is asked for, once all is written."""
        sampled = tuple(self._sampled_of(piece) for piece in plan.slices)
        return StepResult(
            step_id=plan.step_id,
            sampled=sampled,
            logprobs={
                number: tuple(
                    position_logprobs(token_id, spec.position, spec.logprobs)
                    for token_id, spec in zip(sampled[number], piece.samples, strict=False)
                    if spec.logprobs is not None
                )
                for number, piece in enumerate(plan.slices)
                if any(spec.logprobs for spec in piece.samples)
            },
            prompt_logprobs={
                number: tuple(
                    position_logprobs(token_id, position, piece.prompt_logprobs)
                    for position, token_id in enumerate(piece.prompt_targets, start=piece.start + 1)
                )
                for number, piece in enumerate(plan.slices)
                if piece.prompt_logprobs is not None
            },
        )

    def checksum(self, block_id: int) -> int:
        return hash(tuple(self.blocks[block_id]))

    def pull(self, blocks: tuple[BlockPull, ...], source: HashEngine) -> tuple[int, ...]:
        failed = []
        for block in blocks:
            content = list(source.blocks[block.remote_block_id])
            if self._is_garbled():
                content[0] ^= 1
            self.blocks[block.local_block_id] = content
            if block.checksum not in (None, self.checksum(block.local_block_id)):
                failed.append(block.local_block_id)
        return tuple(failed)

    def _is_garbled(self) -> bool:
        """True if the block that is copied now is to arrive wrong."""
        return bool(self._garbled) and self._rng.random() < self._garbled

    def _seen(self, piece: SequenceSlice, group: int, start: int, end: int) -> list[int]:
        """Slots of the positions from `start` to `end` of a group."""
        block_size, table = self.paging.block_size, piece.block_tables[group]
        first = start // block_size
        block_ids = table[first : -(-end // block_size)]
        assert min(block_ids, default=0) >= 0, (
            f"{piece.seq_id} reads positions {start} to {end} of group {group}, some given back"
        )
        slots = [slot for block_id in block_ids for slot in self.blocks[block_id]]
        return slots[start - first * block_size : end - first * block_size]

    def _write(self, piece: SequenceSlice, token_ids: tuple[int, ...]) -> None:
        block_size = self.paging.block_size
        for group, window in enumerate(self.paging.windows):
            table = piece.block_tables[group]
            first = first_seen(window, piece.start)
            slots = self._seen(piece, group, first, piece.start)
            for position, token_id in enumerate(token_ids, start=piece.start):
                slot = new_slot(slots, first_seen(window, position) - first, group, token_id)
                slots.append(slot)
                self.blocks[table[position // block_size]][position % block_size] = slot

    def _sampled_of(self, piece: SequenceSlice) -> tuple[int, ...]:
        """Return the tokens of a slice: of one with drafts as far as these are right."""
        end, is_draft = piece.start + piece.num_scheduled_tokens, piece.num_drafts > 0
        ends = [piece.start + place + 1 if is_draft else end for place in range(len(piece.samples))]
        drawn = [self._draw(piece, spec, at) for spec, at in zip(piece.samples, ends, strict=True)]
        return tuple(drawn[: piece.num_verified(drawn)])

    def _draw(self, piece: SequenceSlice, spec: SampleSpec, end: int) -> int:
        seen = [
            self._seen(piece, group, first_seen(window, end - 1), end)
            for group, window in enumerate(self.paging.windows)
        ]
        token_id = sample(seen, spec.seed, spec.position)
        history = spec.history
        if history is None:
            return token_id
        assert history.seq_id.request_id == piece.seq_id.request_id
        return apply_rules(token_id, history.prompt_token_ids, history.output_token_ids, history.seq_id.index)
