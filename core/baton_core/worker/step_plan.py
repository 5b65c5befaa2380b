"""The plan of one step, which the scheduler hands to the engine, and its result.

Plain values: the engine thread reads them while the loop thread goes on changing its own state.
A step knows no phases: a prompt chunk, one decoded token and a recompute after preemption are all a
`SequenceSlice` of a different length.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from baton_core.errors import ErrorCode
from baton_core.prompt_embeds import PromptEmbeds
from baton_core.requests.logprobs import PositionLogprobs
from baton_core.requests.pooling import PoolingSpec
from baton_core.requests.sampling_rules import SamplingRules

SAMPLED: Final = -1
"""In a slice's tokens: the one that the step before draws for this sequence."""


@dataclass(frozen=True, slots=True, order=True)
class SeqId:
    """One token stream: sequence `index` (0 to n - 1) of a request."""

    request_id: str
    index: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SamplingHistory:
    """The rules of one draw and the tokens that they look at."""

    seq_id: SeqId
    rules: SamplingRules
    prompt_token_ids: tuple[int, ...]
    output_token_ids: tuple[int, ...]
    num_drafts: int = 0
    """Tokens at the end of the output that are drafted: they may be taken back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogprobsSpec:
    """Whose log-probabilities to return beside that of the token itself."""

    num_top: int = 0
    """The most likely ones; -1 is all tokens."""
    token_ids: tuple[int, ...] = ()
    """These, in this order, instead."""


class SampleSpec(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Parameters for sampling one token from the logits of a slice's last position."""

    seed: int
    """64-bit key of this sequence's noise."""
    position: int
    """Position of the drawn token in its sequence (prompt included): the counter of the noise."""
    temperature: float
    """0 means greedy."""
    top_k: int
    """0 means all."""
    top_p: float
    min_p: float
    logprobs: LogprobsSpec | None = None
    history: SamplingHistory | None = None
    """None where the logits are drawn from as they are."""


class DraftOrder(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Tokens that a draft model is to draft behind those that the step samples for a slice."""

    num_tokens: int
    start: int
    """Tokens of the sequence that the draft model has computed, as far as the scheduler knows."""
    token_ids: tuple[int, ...] = ()
    """The sequence's tokens from `start` on; the sampled ones follow them."""


class SequenceSlice(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The tokens of one sequence that this step computes."""

    seq_id: SeqId
    token_ids: tuple[int, ...]
    start: int
    """Position of `token_ids[0]`; everything before it is already in the sequence's blocks."""
    block_tables: tuple[tuple[int, ...], ...]
    """For each KV group, the block table up to and including the block of the last token; `NO_BLOCK` where
    all tokens of a block lie before the group's window."""
    samples: tuple[SampleSpec, ...] = ()
    """Draws from the last position's logits: none inside a prompt, one per sequence at its end. With drafts
    one from the logits before each of them, and one from the last."""
    num_drafts: int = 0
    """Tokens at the end of `token_ids` that are drafted: right as far as they are what is drawn before them.
    Before them is one token."""
    prompt_targets: tuple[int, ...] = ()
    """Prompt tokens whose log-probabilities are wanted: `prompt_targets[i]` follows `token_ids[i]`."""
    prompt_logprobs: LogprobsSpec | None = None
    pooling: PoolingSpec | None = None
    """The task to pool for behind this slice, which ends a prompt; None in other slices."""
    embeds: tuple[PromptEmbeds, ...] = ()
    """Embeddings in the place of tokens; their positions count from `token_ids[0]`."""
    adapter: str = ""
    """Digest of the LoRA adapter of its tokens; empty is none."""
    order: DraftOrder | None = None
    """Tokens to draft for the steps behind this one; None: none are, or no model drafts."""

    @property
    def num_scheduled_tokens(self) -> int:
        return len(self.token_ids)

    def num_verified(self, sampled: Sequence[int], failed: Collection[int] = ()) -> int:
        """Return how many of the tokens sampled for a slice with drafts are its next ones, at least one.

        A token counts if all drafts before it are what was sampled in their places. One that could not be
        sampled, a negative one or one whose place is `failed`, ends them: it is sampled again at its turn.
        """
        draft = self.token_ids[-self.num_drafts :] if self.num_drafts else ()
        for place, drafted in enumerate(draft, start=1):
            if sampled[place - 1] != drafted or sampled[place] < 0 or place in failed:
                return place
        return len(sampled)


@dataclass(frozen=True, slots=True, kw_only=True)
class Followed:
    """The step behind which another one was planned, before its tokens were known."""

    step_id: int
    rows: tuple[int, ...]
    """For each slice of the plan, the number of the draw of that step whose token it computes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """One step. Copies happen before anything is written: all sources are read first, then all
    destinations are written."""

    step_id: int
    slices: tuple[SequenceSlice, ...]
    block_copies: tuple[tuple[int, int], ...] = ()
    """(source block, destination block) pairs of copy on write."""
    follows: Followed | None = None
    """None where all tokens are known; else each slice has one token, `SAMPLED`."""
    ended: tuple[SeqId, ...] = ()
    """Sequences that a draft model has drafted for and that are over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PooledValues:
    """The result of pooling one prompt."""

    shape: tuple[int, ...]
    values: bytes
    """Little-endian float32, row by row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """The tokens drawn in a step, in the order of the plan's slices and each slice's samples."""

    step_id: int
    sampled: tuple[tuple[int, ...], ...]
    """A slice with drafts has those that are right, and the token that is drawn behind them."""
    logprobs: Mapping[int, tuple[PositionLogprobs, ...]] = field(default_factory=dict)
    """By the number of a slice in the plan, for those that ask: one entry for each of its samples."""
    prompt_logprobs: Mapping[int, tuple[PositionLogprobs, ...]] = field(default_factory=dict)
    """By the number of a slice in the plan, for those that ask: one entry for each of its prompt targets."""
    pooled: Mapping[int, PooledValues] = field(default_factory=dict)
    """By the number of a slice in the plan, for those that pool."""
    failures: Mapping[int, str] = field(default_factory=dict)
    """By the number of a slice in the plan: the reason why it has no token. Nothing is sampled for it, and
    its request cannot go on; the other slices are as without it."""
    refused: frozenset[int] = frozenset()
    """The failed slices whose request can never be served: its fields contradict each other."""
    drafts: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    """By the number of a slice in the plan, for those with an order: the tokens that a model has drafted
    behind its sampled ones. Without an entry the model has lost what it had computed of that sequence."""
    drafting_s: float = 0.0
    """Seconds that the draft model has taken."""
    broken: frozenset[int] = frozenset()
    """The failed slices whose logits, as the model computed them, are not finite: what their blocks hold is
    not to be trusted."""

    def error_code(self, number: int) -> ErrorCode:
        """Return the code of the error with which a failed slice ends its request."""
        return ErrorCode.INVALID_REQUEST if number in self.refused else ErrorCode.INTERNAL
