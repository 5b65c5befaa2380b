"""Predicted cost of a placement, in seconds. docs/placement.md explains the terms."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from msgspec.structs import replace

from baton_core.sessions.worker_info import Role
from baton_router.core.placement.placement_record import Candidate, Cost
from baton_router.core.placement.placement_snapshot import PlacementRequest, WorkerView
from baton_router.core.placement.rendezvous import preferences

CHUNK_TOKENS: Final = 2048
"""Prompt tokens of a step: the workers' default."""
HANDOVER_S: Final = 0.002
"""Cost of a split besides its bytes: messages between three processes."""
EXPECTED_BATCH_GROWTH: Final = 0.1
"""Additional sequences assumed at a worker that prefers to decode: more will come."""
AFFINITY: Final = 0.05
"""Relative extra cost at which a candidate is still taken because the request's `session_key` prefers it."""
_DECODE: Final = Role.DECODE
_new: Final = tuple.__new__
"""Constructor of a named tuple without the call in Python around it."""
MAX_PRIORITY: Final = 4
"""Each step of priority halves or doubles what others' stall weighs, up to so many times."""


class CostTerms(NamedTuple):
    """Cost terms of one worker for one request. A tuple, as `WorkerView` is."""

    view: WorkerView
    queue_s: float
    seat_s: float
    """Until sequences end, where as many run as can."""
    prefill_s: float
    last_chunk_bytes: int
    """Bytes of the blocks that are ready only at the end of the prompt."""
    transfer_s: float
    """Transfer time of all missing blocks; an adapter is loaded meanwhile, and may take longer."""
    prompt_stall_s: float
    """Stall of running sequences while the prompt and displaced tokens are computed."""
    decode_stall_s: float
    """Stall of running sequences by longer steps and by displaced tokens."""
    stall_s: float
    """Sum of both stalls, with displaced tokens counted once."""
    affinity: float
    """Factor of the score."""
    local_score_s: float
    """Score of the whole request at this worker."""
    prefill_score_s: float
    """Cost by which prefill workers are compared."""
    beginning_s: float
    """Time from the end of a transfer to the second token."""
    decode_score_s: float
    """Part of a pair's score as its decode worker, besides the transfer."""
    pull_bytes_per_s: float


class CostModel:
    """The cost model of one request."""

    def __init__(self, request: PlacementRequest, stall_weight: float) -> None:
        self._request = request
        priority = max(-MAX_PRIORITY, min(MAX_PRIORITY, request.priority))
        self._weight = stall_weight * 2.0**priority
        self._num_decoded_tokens = (
            request.num_sequences * request.num_output_tokens if request.is_decoded else 0
        )

    def terms(self, views: Iterable[WorkerView]) -> dict[str, CostTerms]:
        """Return the cost terms of each worker, by name, for any part of the request.

        One loop with few calls, for a router comes by here for each worker and request.
        """
        request, weight, num_decoded_tokens = self._request, self._weight, self._num_decoded_tokens
        num_prompt_tokens, num_prompt_blocks = request.num_prompt_tokens, request.num_blocks
        block_size, block_bytes, num_new = request.block_size, request.block_bytes, request.num_sequences
        key = request.session_key
        preferred = preferences(key) if key else None
        found = {}
        for view in views:
            name, role, num_cached_tokens, num_queued_tokens, num_running = view[:5]
            rate, prefill_step_s, step_s, pull_bytes_per_s = view.speed
            num_uncached = num_prompt_tokens - num_cached_tokens or 1
            compute_s = num_uncached / rate
            num_steps = -(-num_uncached // CHUNK_TOKENS)
            num_last = num_uncached - (num_steps - 1) * CHUNK_TOKENS
            num_missing = num_prompt_blocks - num_cached_tokens // block_size
            num_displaced = num_missing - view.num_free_blocks
            displaced_s = num_displaced * block_size / rate if num_displaced > 0 else 0.0
            num_waiting = num_running + EXPECTED_BATCH_GROWTH if role is _DECODE else num_running
            prompt_stall_s = num_waiting * compute_s + displaced_s
            decode_stall_s = num_running * num_decoded_tokens / rate + displaced_s
            stall_s = prompt_stall_s + decode_stall_s - displaced_s
            queue_s = num_queued_tokens / rate
            if view.adapter_s > queue_s:  # it is loaded beside what is queued
                queue_s = view.adapter_s
            prefill_s = compute_s + num_steps * prefill_step_s
            num_seats = view.max_num_seqs
            num_over = num_running + (num_new if num_new < num_seats else num_seats) - num_seats
            seat_s = self._seat_s(view, num_over) if num_over > 0 else 0.0
            affinity = 1.0 + AFFINITY * (1.0 - preferred(name)) if preferred else 1.0
            gap_s = step_s if num_decoded_tokens else 0.0
            begin_s = HANDOVER_S + seat_s + gap_s
            terms = (
                view,
                queue_s,
                seat_s,
                prefill_s,
                -(-num_last // block_size) * block_bytes,
                max(num_missing * block_bytes / pull_bytes_per_s if num_missing > 0 else 0.0, view.adapter_s),
                prompt_stall_s,
                decode_stall_s,
                stall_s,
                affinity,
                (queue_s + seat_s + prefill_s + gap_s + weight * stall_s) * affinity,
                (queue_s + prefill_s + weight * prompt_stall_s) * affinity,
                begin_s,
                begin_s + weight * decode_stall_s,
                pull_bytes_per_s,
            )
            found[name] = _new(CostTerms, terms)
        return found

    def split_scores_s(self, prefill: CostTerms, decodes: Iterable[CostTerms]) -> list[float]:
        """Return the scores of the pairs of one prefill worker."""
        base_s = prefill.prefill_score_s
        return [(base_s + _unhidden_s(prefill, one) + one.decode_score_s) * one.affinity for one in decodes]

    def local(self, one: CostTerms) -> Candidate:
        """The whole request at one worker."""
        cost = _cost(
            queue_s=one.queue_s + one.seat_s,
            prefill_s=one.prefill_s,
            gap_s=one.view.speed.decode_step_s if self._num_decoded_tokens else 0.0,
            stall_s=self._weight * one.stall_s,
            score_s=one.local_score_s,
        )
        return _candidate(one.view, one.view, cost)

    def split(self, prefill: CostTerms, decode: CostTerms) -> Candidate:
        """The prompt at one worker, the rest at another."""
        cost = _cost(
            queue_s=prefill.queue_s,
            prefill_s=prefill.prefill_s,
            gap_s=_unhidden_s(prefill, decode) + decode.beginning_s,
            stall_s=self._weight * (prefill.prompt_stall_s + decode.decode_stall_s),
            score_s=self.split_scores_s(prefill, [decode])[0],
        )
        return _candidate(prefill.view, decode.view, cost)

    def _seat_s(self, view: WorkerView, num_over: int) -> float:
        lifetime_s = self._request.num_output_tokens * view.speed.decode_step_s
        return lifetime_s * num_over / view.max_num_seqs


def _unhidden_s(prefill: CostTerms, decode: CostTerms) -> float:
    """Return the part of the transfer that prefill does not hide.

    Blocks travel chunk by chunk while the next chunk is computed, so a transfer is hidden as far as prefill
    takes as long; its last chunk never is.
    """
    transfer_s = decode.transfer_s
    last_s = prefill.last_chunk_bytes / decode.pull_bytes_per_s
    beyond_s = transfer_s - prefill.prefill_s
    return min(transfer_s, last_s if last_s > beyond_s else beyond_s)


def _cost(*, queue_s: float, prefill_s: float, gap_s: float, stall_s: float, score_s: float) -> Cost:
    """The cost with what affinity adds, which is the rest of the score."""
    affinity_s = max(0.0, score_s - (queue_s + prefill_s + gap_s + stall_s))
    return Cost(
        queue_s=queue_s,
        prefill_s=prefill_s,
        gap_s=gap_s,
        stall_s=stall_s,
        affinity_s=affinity_s,
        score_s=score_s,
    )


def _candidate(prefill: WorkerView, decode: WorkerView, cost: Cost) -> Candidate:
    return Candidate(
        prefill=prefill.worker_id,
        decode=decode.worker_id,
        cost=cost,
        num_cached_tokens=prefill.num_cached_tokens,
        num_local_tokens=decode.num_cached_tokens,
    )


def ranked(candidate: Candidate, rank: int) -> Candidate:
    """The candidate of a policy that compares by its own order instead of by seconds."""
    return replace(candidate, cost=replace(candidate.cost, score_s=float(rank)))
