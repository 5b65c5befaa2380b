"""One token stream on a worker, from its arrival to its end."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from baton_core.block_hash import extend_hashes, group_address
from baton_core.block_tables import BlockTables
from baton_core.paging import Paging
from baton_core.sampling_params import SamplingParams, sequence_seed
from baton_core.step_plan import SampleSpec, SeqId


class SequenceState(StrEnum):
    IMPORTING = "importing"
    """Its blocks are reserved; it waits for them, or for its first token."""
    WAITING = "waiting"
    """Ready to compute; it holds no blocks, or those that were imported for it."""
    RUNNING = "running"
    DRAINING = "draining"
    """Over, but a step in flight still writes its blocks."""
    FINISHED = "finished"


class SequenceInput(StrEnum):
    START = "start"
    ADMIT = "admit"
    PREEMPT = "preempt"
    END = "end"
    END_IN_FLIGHT = "end_in_flight"
    STEP_DONE = "step_done"


_S, _I = SequenceState, SequenceInput
TRANSITIONS: Final[dict[tuple[SequenceState, SequenceInput], SequenceState]] = {
    (_S.IMPORTING, _I.START): _S.WAITING,
    (_S.IMPORTING, _I.END): _S.FINISHED,
    (_S.WAITING, _I.ADMIT): _S.RUNNING,
    (_S.WAITING, _I.END): _S.FINISHED,
    (_S.RUNNING, _I.PREEMPT): _S.WAITING,
    (_S.RUNNING, _I.END): _S.FINISHED,
    (_S.RUNNING, _I.END_IN_FLIGHT): _S.DRAINING,
    (_S.DRAINING, _I.STEP_DONE): _S.FINISHED,
}
TERMINAL: Final = frozenset({SequenceState.FINISHED})


class Sequence:
    """Tokens, block tables and progress. The scheduler moves it; the block pool owns its blocks."""

    def __init__(
        self,
        seq_id: SeqId,
        prompt_token_ids: tuple[int, ...],
        params: SamplingParams,
        *,
        paging: Paging,
        root: bytes,
        arrival_s: float,
        state: SequenceState = SequenceState.WAITING,
        priority: int = 0,
        is_pinned: bool = False,
    ) -> None:
        assert params.seed is not None, "whoever accepts a request gives it a seed"
        self.seq_id = seq_id
        self.params = params
        self.arrival_s = arrival_s
        self.priority = priority
        """Lower values are scheduled first."""
        self.is_pinned = is_pinned
        """Never preempted: its blocks are offered to a puller while it computes the rest."""
        self.num_prompt_tokens = len(prompt_token_ids)
        self.token_ids = list(prompt_token_ids)
        self.tables = BlockTables(paging)
        self.num_computed_tokens = 0
        self.num_cached_tokens: int | None = None
        """Prompt tokens that were not computed for it; None until it is first admitted."""
        self.num_samples = params.n
        """Tokens drawn when it reaches its end: one per sequence at the end of a shared prompt."""
        self.entered_s: dict[SequenceState, float] = {state: arrival_s}
        """When it first entered each state."""
        self._state = state
        self._paging = paging
        self._root = root
        self._hashes: list[list[bytes]] = [[] for _ in paging.windows]

    @property
    def state(self) -> SequenceState:
        return self._state

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def num_uncomputed_tokens(self) -> int:
        return len(self.token_ids) - self.num_computed_tokens

    def apply(self, now: float, what: SequenceInput) -> None:
        """Change state; a pair that the table lacks raises KeyError."""
        self._state = TRANSITIONS[self._state, what]
        self.entered_s.setdefault(self._state, now)

    def hashes(self, group: int = 0) -> list[bytes]:
        """Addresses of a group's full blocks; the list is the sequence's own, grown on demand."""
        chain, hashes = self._hashes[0], self._hashes[group]
        extend_hashes(chain, self._root, self.token_ids, self._paging.block_size)
        if group:
            hashes.extend(group_address(block_hash, group) for block_hash in chain[len(hashes) :])
        return hashes

    def sample_specs(self) -> tuple[SampleSpec, ...]:
        """How to draw what follows its last token."""
        return tuple(self._sample_spec(self.seq_id.index + offset) for offset in range(self.num_samples))

    def fork(self, index: int) -> Sequence:
        """A waiting sibling with the same tokens and block tables; the caller shares the blocks."""
        sibling = Sequence(
            SeqId(self.seq_id.request_id, index),
            tuple(self.token_ids[: self.num_prompt_tokens]),
            self.params,
            paging=self._paging,
            root=self._root,
            arrival_s=self.arrival_s,
            priority=self.priority,
        )
        sibling.token_ids = list(self.token_ids)
        sibling.tables = self.tables.copy()
        sibling.num_computed_tokens = self.num_computed_tokens
        sibling.num_cached_tokens = self.num_cached_tokens
        sibling.num_samples = 1
        sibling._hashes = [list(hashes) for hashes in self._hashes]
        return sibling

    def _sample_spec(self, index: int) -> SampleSpec:
        params = self.params
        assert params.seed is not None
        return SampleSpec(
            seed=sequence_seed(params.seed, index),
            position=len(self.token_ids),
            temperature=0.0 if params.is_greedy else params.temperature,
            top_k=max(params.top_k, 0),
            top_p=params.top_p,
            min_p=params.min_p,
        )
