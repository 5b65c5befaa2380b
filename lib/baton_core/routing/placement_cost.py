"""What placing a request somewhere is predicted to cost, in seconds. docs/placement.md explains the terms."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from msgspec.structs import replace

from baton_core.routing.placement_record import Candidate, Cost
from baton_core.routing.placement_snapshot import PlacementRequest, WorkerView
from baton_core.routing.rendezvous import preferences
from baton_core.sessions.worker_info import Role

CHUNK_TOKENS: Final = 2048
"""Prompt tokens of a step: the workers' default."""
HANDOVER_S: Final = 0.002
"""What a split costs besides its bytes: messages between three processes."""
COMPANY: Final = 0.1
"""Sequences that a worker which prefers to decode is taken to run besides those it has: more will come."""
AFFINITY: Final = 0.05
"""By how much more a candidate may cost, as a part of it, and still be taken because the request's key
prefers it. The key is its session, whose requests are to meet, or else its name: so requests spread over
workers that are about as good."""
_DECODE: Final = Role.DECODE
_new: Final = tuple.__new__
"""What making a named tuple comes to, without the call in Python around it."""
MAX_PRIORITY: Final = 4
"""Each step of priority halves or doubles what others' stall weighs, up to so many times."""


class Terms(NamedTuple):
    """Of one worker, for one request. A tuple, as `WorkerView` is."""

    view: WorkerView
    queue_s: float
    seat_s: float
    """Until sequences end, where as many run as can."""
    prefill_s: float
    last_chunk_bytes: int
    """Of the blocks that are ready only when all of the prompt is computed."""
    transfer_s: float
    """Of all blocks that it lacks."""
    prompt_stall_s: float
    """Of those that run there, while the prompt is computed, and while what was displaced is again."""
    decode_stall_s: float
    """Of those that run there, by one sequence more in each step, and by what was displaced."""
    stall_s: float
    """Of both, without counting twice what was displaced."""
    affinity: float
    """Factor of the score."""
    local_score_s: float
    """What a worker alone is compared by."""
    prefill_score_s: float
    """Cost by which prefill workers are compared."""
    beginning_s: float
    """From the end of a transfer to the second token."""
    decode_score_s: float
    """What it adds to the score of a pair as the one that decodes, besides the transfer."""
    pull_bytes_per_s: float


class CostModel:
    """Of one request."""

    def __init__(self, request: PlacementRequest, stall_weight: float) -> None:
        self._request = request
        self._key = request.session_id or request.request_id
        priority = max(-MAX_PRIORITY, min(MAX_PRIORITY, request.priority))
        self._weight = stall_weight * 2.0**priority
        self._num_output_tokens = request.num_sequences * request.num_output_tokens

    def terms(self, views: Iterable[WorkerView]) -> dict[str, Terms]:
        """What each worker would add to a cost, whichever part of the request it took; by its name.

        One loop with few calls, for a router comes by here for each worker and request.
        """
        request, weight, num_output_tokens = self._request, self._weight, self._num_output_tokens
        num_prompt_tokens, num_prompt_blocks = request.num_prompt_tokens, request.num_blocks
        block_size, block_bytes, num_new = request.block_size, request.block_bytes, request.num_sequences
        preferred = preferences(self._key) if self._key else None
        found = {}
        for view in views:
            name, role, num_cached_tokens, num_queued_tokens, num_running = view[:5]
            rate, prefill_step_s, step_s, pull_bytes_per_s = view.speed
            num_uncached = num_prompt_tokens - num_cached_tokens or 1
            compute_s = num_uncached / rate
            num_steps = -(-num_uncached // CHUNK_TOKENS)
            num_last = num_uncached - (num_steps - 1) * CHUNK_TOKENS
            num_lacking = num_prompt_blocks - num_cached_tokens // block_size
            num_displaced = num_lacking - view.num_free_blocks
            displaced_s = num_displaced * block_size / rate if num_displaced > 0 else 0.0
            num_waiting = num_running + COMPANY if role is _DECODE else num_running
            prompt_stall_s = num_waiting * compute_s + displaced_s
            decode_stall_s = num_running * num_output_tokens / rate + displaced_s
            stall_s = prompt_stall_s + decode_stall_s - displaced_s
            queue_s = num_queued_tokens / rate
            prefill_s = compute_s + num_steps * prefill_step_s
            num_over = num_running + num_new - view.max_num_seqs
            seat_s = self._seat_s(view, num_over) if num_over > 0 else 0.0
            affinity = 1.0 + AFFINITY * (1.0 - preferred(name)) if preferred else 1.0
            begin_s = HANDOVER_S + seat_s + step_s
            terms = (
                view,
                queue_s,
                seat_s,
                prefill_s,
                -(-num_last // block_size) * block_bytes,
                num_lacking * block_bytes / pull_bytes_per_s if num_lacking > 0 else 0.0,
                prompt_stall_s,
                decode_stall_s,
                stall_s,
                affinity,
                (queue_s + seat_s + prefill_s + step_s + weight * stall_s) * affinity,
                (queue_s + prefill_s + weight * prompt_stall_s) * affinity,
                begin_s,
                begin_s + weight * decode_stall_s,
                pull_bytes_per_s,
            )
            found[name] = _new(Terms, terms)
        return found

    def split_scores_s(self, prefill: Terms, decodes: Iterable[Terms]) -> list[float]:
        """What the pairs of one prefill worker are compared by."""
        base_s = prefill.prefill_score_s
        return [(base_s + _unhidden_s(prefill, one) + one.decode_score_s) * one.affinity for one in decodes]

    def local(self, one: Terms) -> Candidate:
        """The whole request at one worker."""
        cost = Cost(
            queue_s=one.queue_s + one.seat_s,
            prefill_s=one.prefill_s,
            gap_s=one.view.speed.decode_step_s,
            stall_s=one.stall_s,
            score_s=one.local_score_s,
        )
        return _candidate(one.view, one.view, cost)

    def split(self, prefill: Terms, decode: Terms) -> Candidate:
        """The prompt at one worker, the rest at another."""
        cost = Cost(
            queue_s=prefill.queue_s,
            prefill_s=prefill.prefill_s,
            gap_s=_unhidden_s(prefill, decode) + decode.beginning_s,
            stall_s=prefill.prompt_stall_s + decode.decode_stall_s,
            score_s=self.split_scores_s(prefill, [decode])[0],
        )
        return _candidate(prefill.view, decode.view, cost)

    def _seat_s(self, view: WorkerView, num_over: int) -> float:
        lifetime_s = self._request.num_output_tokens * view.speed.decode_step_s
        return lifetime_s * num_over / view.max_num_seqs


def _unhidden_s(prefill: Terms, decode: Terms) -> float:
    """What prefill does not hide of the transfer.

    Blocks travel chunk by chunk while the next chunk is computed, so a transfer is hidden as far as prefill
    takes as long; its last chunk never is.
    """
    transfer_s = decode.transfer_s
    last_s = prefill.last_chunk_bytes / decode.pull_bytes_per_s
    beyond_s = transfer_s - prefill.prefill_s
    return min(transfer_s, last_s if last_s > beyond_s else beyond_s)


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
