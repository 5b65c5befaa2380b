"""The workers of one request, and the load reserved at them for it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from baton_core.blocks.block_hash import block_hashes, root_hash
from baton_core.load_reservation import LoadReservation, total
from baton_core.model.model_identity import ModelIdentity, with_weights
from baton_core.requests.request_context import NO_CONTEXT, RequestContext
from baton_core.sessions.router_messages import RequestSpec
from baton_router.core.fleet.fleet import Fleet
from baton_router.core.fleet.member import ReservedLoad
from baton_router.core.placement.eligibility import Unplaceable, absence
from baton_router.core.placement.filters import available
from baton_router.core.placement.placement import Placement, place, place_decoder
from baton_router.core.placement.placement_config import PlacementConfig, SplitMode
from baton_router.core.placement.placement_record import Decision
from baton_router.core.placement.placement_snapshot import (
    EXPECTED_OUTPUT_TOKENS,
    PlacementRequest,
    WorkerView,
)

MAX_DECISIONS: Final = 32
"""Decisions remembered of a request; the oldest are forgotten first."""


class Assignment:
    """Places one request on a snapshot of the fleet, and reserves load; workers that refused are left out."""

    def __init__(
        self,
        spec: RequestSpec,
        config: PlacementConfig,
        fleet: Fleet,
        context: RequestContext = NO_CONTEXT,
    ) -> None:
        self.placement: Placement | None = None
        self.weights = spec.weights
        """Hash of the weights that the request is placed for; empty before it was placed."""
        self._needs_weights = bool(spec.weights)
        """True if the client has tokens of these weights from an earlier call."""
        self._spec = spec
        self._config = _config_for(spec, config)
        self._fleet = fleet
        self._context = context
        self.too_slow: Mapping[str, str] = {}
        """Workers whose steps are too slow for the request, each with the reason."""
        self.full: Mapping[str, str] = {}
        """Workers that must get no request now, each with the reason."""
        self.kept: Mapping[str, str] = {}
        """Workers whose room is for requests that wait longer, each with the reason."""
        self.decisions: list[Decision] = []
        """Decisions in order; of several in a row that found no place, only the last."""
        self._refused_by: frozenset[str] = frozenset()
        self._reservations: list[ReservedLoad] = []
        self._hashed_for: ModelIdentity | None = None
        self._hashes: list[bytes] = []

    @property
    def current(self) -> Placement:
        """The placement; the request must have one."""
        assert self.placement is not None, "the request was placed"
        return self.placement

    def reserved_at(self, worker_id: str) -> LoadReservation:
        """Return the load that is reserved for it at a worker."""
        reservations = (one.reservation for one in self._reservations)
        return total(worker_id, [one for one in reservations if one.worker_id == worker_id])

    def resume(self, spec: RequestSpec) -> None:
        """Place the request from here on with the tokens that it has generated."""
        self._spec, self._hashed_for = replace(spec, weights=self.weights), None
        self.too_slow = self.full = self.kept = {}
        self._config = _config_for(spec, self._config)

    def choose_weights(self, *, is_bound: bool) -> None:
        """Place the request for the weights that are served now, unless it has begun on others.

        Args:
            is_bound: True if the client has something that was computed with the weights chosen before.
        """
        weights = self._fleet.weights
        if weights == self.weights or (self.weights and (is_bound or self._needs_weights)):
            return
        self.weights, self._hashed_for = weights, None
        self._spec = replace(self._spec, weights=weights)

    def choose(self, now: float, max_ttft_s: float = math.inf) -> Placement | Unplaceable:
        """Place the request and reserve load at its workers.

        Args:
            max_ttft_s: time that is left until the first token. Where no worker is so fast the best is taken.
        """
        request, views = self._snapshot(now)
        request = replace(request, max_ttft_s=max_ttft_s)
        outcome, decision = place(request, views, self._config, self._excluded)
        self._remember(decision)
        if isinstance(outcome, Unplaceable) and outcome.is_permanent:
            outcome = replace(outcome, reason=self._explain(now, outcome))
        if isinstance(outcome, Placement):
            self.placement = outcome
            self._fleet.count_placement(is_split=outcome.is_split)
            self._reserve_prefill(decision)
            self._reserve_decode(outcome)
        return outcome

    def fitting_workers(self, now: float) -> list[str]:
        """Return the workers that could take the request, or a part of it, if they had room."""
        request, views = self._snapshot(now)
        return [one.worker_id for one in available(request, views, self.too_slow)]

    def why_hopeless(self, now: float) -> str:
        """Return the reason why no worker could take the request even with room; empty where one could."""
        views = self._fleet.views(len(self._spec.given_token_ids), ())
        outcome = absence(self._request(now), views, self._config)
        return self._explain(now, outcome) if outcome is not None and outcome.is_permanent else ""

    def withdraw(self, reason: str) -> None:
        """Take back a placement before any worker knows of it."""
        self.release()
        self._remember(replace(self.decisions.pop(), chosen=None, reason=reason))

    def reassign_decoder(self, now: float, *, is_computed: bool = False) -> bool:
        """Choose another decode worker for the same prefill worker, as `place_decoder`, if one is left."""
        request, views = self._snapshot(now)
        prefill = self.current.prefill
        decoder, decision = place_decoder(
            request, views, prefill, self._config, self._excluded, is_computed=is_computed
        )
        self._remember(decision)
        if decoder is None:
            return False
        self.placement = replace(self.current, decode=decoder, reason=decision.reason)
        self._reserve_decode(self.placement)
        return True

    def refuse(self, worker_id: str) -> None:
        """Leave a worker out from here on; it keeps nothing of the request."""
        self._release(lambda reservation: reservation.worker_id == worker_id)
        self._refused_by |= {worker_id}

    def forget_refusals(self) -> None:
        """Consider workers again that refused the request."""
        self._refused_by = frozenset()

    def end_prefill(self) -> None:
        """Release the prompt's tokens: the prompt is computed."""
        self._release(lambda reservation: reservation.num_tokens > 0)

    def end_transfer(self) -> None:
        """Release the prompt's blocks: they have arrived at the decode worker."""
        self._release(lambda reservation: reservation.num_blocks > 0)

    def release(self) -> tuple[str, ...]:
        """Release all load; returns the workers that may have something of the request."""
        self._release(lambda reservation: True)
        placement, self.placement = self.placement, None
        return tuple(dict.fromkeys((placement.decode, placement.prefill))) if placement else ()

    @property
    def _excluded(self) -> dict[str, str]:
        return {
            **self.kept,
            **self.full,
            **self.too_slow,
            **dict.fromkeys(self._refused_by, "has refused it"),
        }

    def _snapshot(self, now: float) -> tuple[PlacementRequest, list[WorkerView]]:
        """Return the request and the workers; the prompt is hashed once for each identity of the fleet."""
        identity = self._fleet.identity
        reads_prefixes = self._spec.params.reads_prefix_cache
        if reads_prefixes and identity is not None and identity != self._hashed_for:
            self._hashed_for, self._hashes = identity, prompt_hashes(self._spec, identity)
        views = self._fleet.views(len(self._spec.given_token_ids), self._hashes, self._spec.adapter_digest)
        return self._request(now, self._hashes), views

    def _request(self, now: float, hashes: Sequence[bytes] = ()) -> PlacementRequest:
        """Return the request as placement sees it; `hashes` are those of its prompt.

        A worker must hold the known tokens and the headroom, or all possible output if that is less.
        """
        spec, context, fleet = self._spec, self._context, self._fleet
        num_tokens, identity = len(spec.given_token_ids), fleet.identity
        turn, split_turn = fleet.turns
        return PlacementRequest(
            request_id=spec.request_id,
            at_s=now,
            num_prompt_tokens=num_tokens,
            num_blocks=fleet.num_blocks(num_tokens) if identity else 0,
            block_size=identity.block_size if identity else 1,
            block_bytes=fleet.block_bytes,
            num_sequences=spec.num_sequences,
            num_output_tokens=min(spec.params.max_tokens or EXPECTED_OUTPUT_TOKENS, EXPECTED_OUTPUT_TOKENS),
            num_needed_tokens=spec.num_needed_tokens(self._config.headroom_tokens),
            weights=spec.weights or fleet.weights,
            priority=spec.priority,
            data_parallel_rank=context.data_parallel_rank,
            named=context.named,
            is_pooling=spec.pooling is not None,
            session_id=context.session_id,
            prompt_key=hashes[0].hex() if hashes else "",
            turn=turn,
            split_turn=split_turn,
        )

    def _explain(self, now: float, outcome: Unplaceable) -> str:
        """Return why it has no worker, and what the absent ones do."""
        return "; ".join(filter(None, (outcome.reason, self._fleet.why_absent(now))))

    def _remember(self, decision: Decision) -> None:
        is_again = bool(self.decisions) and decision.chosen is None and self.decisions[-1].chosen is None
        if is_again or len(self.decisions) == MAX_DECISIONS:
            del self.decisions[-1 if is_again else 0]
        self.decisions.append(decision)

    def _reserve_prefill(self, decision: Decision) -> None:
        assert decision.chosen is not None, "it was placed"
        num_uncached = max(1, len(self._spec.given_token_ids) - decision.chosen.num_cached_tokens)
        self._reserve(LoadReservation(decision.chosen.prefill, num_tokens=num_uncached))

    def _reserve_decode(self, placement: Placement) -> None:
        self._reserve(LoadReservation(placement.decode, num_sequences=self._spec.num_sequences))
        if placement.is_split:
            num_blocks = self._fleet.num_blocks(len(self._spec.given_token_ids))
            self._reserve(LoadReservation(placement.decode, num_blocks=num_blocks))

    def _reserve(self, reservation: LoadReservation) -> None:
        self._reservations.append(self._fleet.reserve(reservation))

    def _release(self, is_over: Callable[[LoadReservation], bool]) -> None:
        for reserved in [one for one in self._reservations if is_over(one.reservation)]:
            self._reservations.remove(reserved)
            reserved.release()


def prompt_hashes(spec: RequestSpec, identity: ModelIdentity) -> list[bytes]:
    """Return the hashes of the full blocks of a request's known tokens, as a model's workers compute them."""
    identity = with_weights(identity, spec.weights or identity.weights)
    root = root_hash(identity, spec.cache_salt, spec.adapter_digest)
    return block_hashes(root, spec.given_token_ids, identity.block_size, spec.prompt_embeds)


def _config_for(spec: RequestSpec, config: PlacementConfig) -> PlacementConfig:
    """Return the placement settings: several resumed sequences must stay at one worker, as what pools."""
    is_whole = len(spec.resumed) > 1 or spec.pooling is not None
    return replace(config, split=SplitMode.NEVER) if is_whole else config
