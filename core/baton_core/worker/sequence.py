"""One token stream on a worker, from its arrival to its end."""

from __future__ import annotations

import sys
from collections.abc import Callable
from enum import StrEnum
from functools import partial
from typing import Final

from baton_core.blocks.block_hash import extend_hashes, group_address
from baton_core.blocks.block_tables import BlockTables
from baton_core.kv_events.cache_events import BlockContent
from baton_core.kv_layout.paging import Paging
from baton_core.prompt_embeds import PromptEmbeds, between, digest_between, known_tokens
from baton_core.requests.adapter import Adapter
from baton_core.requests.logprobs import PositionLogprobs
from baton_core.requests.pooling import PoolingSpec
from baton_core.requests.repetition import RepetitionWatch
from baton_core.requests.sampling_params import SamplingParams, sequence_seed
from baton_core.requests.sampling_rules import SamplingRules
from baton_core.worker.step_plan import LogprobsSpec, SampleSpec, SamplingHistory, SeqId


class SequenceState(StrEnum):
    PULLING = "importing"
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
    (_S.PULLING, _I.START): _S.WAITING,
    (_S.PULLING, _I.END): _S.FINISHED,
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
        rules: SamplingRules | None = None,
        max_chunk_tokens: int = sys.maxsize,
        publishes_contents: bool = False,
        cache_salt: str = "",
        output_token_ids: tuple[int, ...] = (),
        pooling: PoolingSpec | None = None,
        is_whole: bool = False,
        prompt_embeds: tuple[PromptEmbeds, ...] = (),
        adapter: Adapter | None = None,
    ) -> None:
        assert params.seed is not None, "whoever accepts a request gives it a seed"
        self.seq_id, self.params, self.arrival_s, self.priority = seq_id, params, arrival_s, priority
        """Lower values are scheduled first."""
        self.adapter = adapter
        """The LoRA adapter that computes it; None is the model alone."""
        self.is_pinned = is_pinned
        """Never preempted: its blocks are offered to a consumer while it computes the rest."""
        self.num_prompt_tokens = len(prompt_token_ids)
        self.num_initial_tokens = len(prompt_token_ids) + len(output_token_ids)
        """Tokens that it came with: the prompt, and what it had generated elsewhere."""
        self.token_ids, self.tables = list(prompt_token_ids), BlockTables(paging)
        self.num_computed_tokens = 0
        self.num_cached_tokens: int | None = None
        """Prompt tokens that were not computed for it; None until it is first admitted."""
        self.num_samples = 1 if output_token_ids else params.n
        """Tokens drawn when it reaches its end: one per sequence at the end of a shared prompt."""
        self.pooling = pooling
        """The task to pool for when it reaches its end, in the place of draws."""
        self.is_whole = is_whole
        """Computed in one step, without anything from the prefix cache."""
        self.entered_s: dict[SequenceState, float] = {state: arrival_s}
        """The time when it first entered each state."""
        is_published = state is SequenceState.PULLING or bool(output_token_ids)
        self.prompt_logprobs = None if is_published else _prompt_logprobs_spec(params)
        """Log-probabilities to publish of each prompt token but the first, unless another worker does."""
        self._max_published_chunk = max_chunk_tokens
        self._num_published_tokens = 1
        """Prompt tokens up to which it was told."""
        self._state, self._paging, self._root = state, paging, root
        self._publishes_contents, self._cache_salt = publishes_contents, cache_salt
        self._hashes: list[list[bytes]] = [[] for _ in paging.windows]
        self._prompt_token_ids, self._prompt_embeds, self._rules = prompt_token_ids, prompt_embeds, rules
        self._seeds: dict[int, int] = {}
        """Seeds of the sequences sampled here, by index."""
        self._make_spec, self._watch = _spec_maker(params), _repetition_watch(params)
        for token_id in output_token_ids:
            self.append(token_id)

    @property
    def state(self) -> SequenceState:
        return self._state

    @property
    def adapter_digest(self) -> str:
        """The digest of its adapter; empty without one."""
        return "" if self.adapter is None else self.adapter.digest

    @property
    def root(self) -> bytes:
        """Root of its blocks' hashes: it covers the model and the tenant."""
        return self._root

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def num_uncomputed_tokens(self) -> int:
        return len(self.token_ids) - self.num_computed_tokens

    @property
    def max_chunk_tokens(self) -> int:
        """Tokens that one step may compute of it: fewer while there is something to tell of its prompt."""
        has_told = self.prompt_logprobs is None or self._num_published_tokens >= self.num_prompt_tokens
        return sys.maxsize if has_told else self._max_published_chunk

    @property
    def reads_prefix_cache(self) -> bool:
        """True if it may begin with blocks that others computed."""
        return self.params.reads_prefix_cache and not self.is_whole

    @property
    def is_repeating(self) -> bool:
        """True if its output has come to repeat itself, where that is looked for."""
        return self._watch is not None and self._watch.is_repeating

    def apply(self, now: float, what: SequenceInput) -> None:
        """Change state; a pair that the table lacks raises KeyError."""
        self._state = TRANSITIONS[self._state, what]
        self.entered_s.setdefault(self._state, now)

    def append(self, token_id: int) -> None:
        """Take the next token of its output."""
        self.token_ids.append(token_id)
        if self._watch is not None:
            self._watch.add(token_id)

    def hashes(self, group: int = 0) -> list[bytes]:
        """Addresses of a group's full blocks; the list is the sequence's own, grown on demand."""
        chain, hashes = self._hashes[0], self._hashes[group]
        extend_hashes(chain, self._root, self.token_ids, self._paging.block_size, self._prompt_embeds)
        if group:
            hashes.extend(group_address(block_hash, group) for block_hash in chain[len(hashes) :])
        return hashes

    def content(self, index: int, group: int = 0) -> BlockContent | None:
        """Content of a full block; None if it is not published, or not for this group."""
        if group or not self._publishes_contents:
            return None
        start, size = index * self._paging.block_size, self._paging.block_size
        return BlockContent(
            index=index,
            parent=self.hashes()[index - 1] if index else None,
            token_ids=tuple(self.token_ids[start : start + size]),
            cache_salt=self._cache_salt,
            embeds_digest=digest_between(self._prompt_embeds, start, start + size),
            adapter_digest=self.adapter_digest,
            adapter_name=None if self.adapter is None else self.adapter.name,
            adapter_number=None if self.adapter is None else self.adapter.number or None,
        )

    def embeds(self, start: int, end: int) -> tuple[PromptEmbeds, ...]:
        """Embeddings in the place of its tokens from `start` to `end`, counted from `start`."""
        return between(self._prompt_embeds, start, end)

    def prompt_blocks(self, *, is_complete: bool) -> dict[int, int]:
        """Blocks of the prompt that will not be written again, by the numbers of their places."""
        num_ready = self.num_computed_tokens // self._paging.block_size
        return {
            place.number: self.tables[place.group][place.index]
            for place in self._paging.prompt_places(self.num_initial_tokens)
            if is_complete or place.index < num_ready
        }

    def sample_specs(self, num_ahead: int = 0) -> tuple[SampleSpec, ...]:
        """Specs for sampling behind its last token, or `num_ahead` tokens later, if no rule looks at them."""
        if self.pooling is not None:
            return ()
        first, position = self.seq_id.index, len(self.token_ids) + num_ahead
        return tuple([self._sample_spec(index, position) for index in range(first, first + self.num_samples)])

    def verification_specs(self, draft: tuple[int, ...]) -> tuple[SampleSpec, ...]:
        """Specs for sampling behind its last token and behind each token of a draft."""
        index, position = self.seq_id.index, len(self.token_ids)
        places = range(len(draft) + 1)
        return tuple([self._sample_spec(index, position + place, draft[:place]) for place in places])

    def prompt_targets(self, start: int, end: int) -> tuple[int, ...]:
        """The prompt tokens that follow those from `start` to `end`, if some of them are still to be told."""
        end = min(end + 1, self.num_prompt_tokens)
        if self.prompt_logprobs is None or end <= self._num_published_tokens:
            return ()
        return self._prompt_token_ids[start + 1 : end]

    def take_prompt_logprobs(
        self, entries: tuple[PositionLogprobs, ...]
    ) -> tuple[int, tuple[PositionLogprobs, ...]]:
        """Take the entries that were not published yet, with the position of the first one."""
        start = self._num_published_tokens
        end = min(self.num_computed_tokens + 1, self.num_prompt_tokens)
        self._num_published_tokens = max(start, end)
        return start, entries[max(0, len(entries) - (end - start)) :] if end > start else ()

    def fork(self, index: int) -> Sequence:
        """A waiting sibling with the same tokens and block tables; the caller shares the blocks."""
        sibling = Sequence(
            SeqId(self.seq_id.request_id, index),
            self._prompt_token_ids,
            self.params,
            paging=self._paging,
            root=self._root,
            arrival_s=self.arrival_s,
            priority=self.priority,
            rules=self._rules,
            publishes_contents=self._publishes_contents,
            cache_salt=self._cache_salt,
            prompt_embeds=self._prompt_embeds,
            adapter=self.adapter,
        )
        for token_id in self.token_ids[self.num_prompt_tokens :]:
            sibling.append(token_id)
        sibling.num_initial_tokens = self.num_initial_tokens
        sibling.prompt_logprobs = None
        sibling.tables = self.tables.copy()
        sibling.num_computed_tokens = self.num_computed_tokens
        sibling.num_cached_tokens = self.num_cached_tokens
        sibling.num_samples = 1
        sibling._hashes = [list(hashes) for hashes in self._hashes]
        return sibling

    def _sample_spec(self, index: int, position: int, draft: tuple[int, ...] = ()) -> SampleSpec:
        return self._make_spec(
            seed=self._seed(index),
            position=position,
            history=None if self._rules is None else self._history(index, self._rules, draft),
        )

    def _seed(self, index: int) -> int:
        assert self.params.seed is not None
        if index not in self._seeds:
            self._seeds[index] = sequence_seed(self.params.seed, index)
        return self._seeds[index]

    def _history(self, index: int, rules: SamplingRules, draft: tuple[int, ...]) -> SamplingHistory:
        return SamplingHistory(
            seq_id=SeqId(self.seq_id.request_id, index),
            rules=rules,
            prompt_token_ids=known_tokens(self._prompt_token_ids, self._prompt_embeds),
            output_token_ids=(*self.token_ids[self.num_prompt_tokens :], *draft),
            num_drafts=len(draft),
        )


def _spec_maker(params: SamplingParams) -> Callable[..., SampleSpec]:
    """Makes specs of what differs from draw to draw; the rest is looked up once."""
    return partial(
        SampleSpec,
        temperature=0.0 if params.is_greedy else params.temperature,
        top_k=max(params.top_k, 0),
        top_p=params.top_p,
        min_p=params.min_p,
        logprobs=_logprobs_spec(params),
    )


def _repetition_watch(params: SamplingParams) -> RepetitionWatch | None:
    detection = params.repetition_detection
    return None if detection is None else RepetitionWatch(detection)


def _logprobs_spec(params: SamplingParams) -> LogprobsSpec | None:
    if params.logprob_token_ids is not None:
        return LogprobsSpec(token_ids=params.logprob_token_ids)
    return None if params.logprobs is None else LogprobsSpec(num_top=params.logprobs)


def _prompt_logprobs_spec(params: SamplingParams) -> LogprobsSpec | None:
    return None if params.prompt_logprobs is None else LogprobsSpec(num_top=params.prompt_logprobs)


def order_of(seq: Sequence) -> tuple[int, float, str, int]:
    """Return the key by which sequences are served: by priority, then by arrival."""
    return (seq.priority, seq.arrival_s, seq.seq_id.request_id, seq.seq_id.index)
