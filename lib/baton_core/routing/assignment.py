"""The workers that one request is given to, and what they are charged for it until it is taken back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from baton_core.routing.charge import Charge
from baton_core.routing.fleet import Fleet
from baton_core.routing.placement import (
    Placement,
    PlacementConfig,
    SplitMode,
    Unplaceable,
    place,
    place_decoder,
)
from baton_core.routing.placement_record import Decision
from baton_core.routing.placement_snapshot import PlacementRequest, WorkerView
from baton_core.sessions.router_messages import RequestSpec
from baton_core.sessions.worker_info import ModelIdentity

MAX_DECISIONS: Final = 32
"""That are remembered of a request; the oldest are forgotten first."""


class Assignment:
    """Of one request. Chooses on a snapshot of the fleet; workers that refused are passed over."""

    def __init__(
        self, spec: RequestSpec, config: PlacementConfig, fleet: Fleet, *, session_id: str = ""
    ) -> None:
        self.placement: Placement | None = None
        self._spec = spec
        self._config = _config_for(spec, config)
        self._fleet = fleet
        self._session_id = session_id
        self.avoided: Mapping[str, str] = {}
        """Workers that it is not to be placed at now, each with the reason."""
        self.decisions: list[Decision] = []
        """In order; of tries in a row that found no place, the last."""
        self._refused_by: frozenset[str] = frozenset()
        self._charges: list[Charge] = []
        self._hashed_for: ModelIdentity | None = None
        self._hashes: list[bytes] = []

    @property
    def current(self) -> Placement:
        """The placement that there must be."""
        assert self.placement is not None, "the request was placed"
        return self.placement

    def resume(self, spec: RequestSpec) -> None:
        """Place it from here on with what it has generated."""
        self._spec, self._hashed_for, self.avoided = spec, None, {}
        self._config = _config_for(spec, self._config)

    def choose(self, now: float) -> Placement | Unplaceable:
        """Place the request and charge its workers."""
        request, views = self._look(now)
        outcome, decision = place(request, views, self._config, self._excluded)
        self._remember(decision)
        if isinstance(outcome, Placement):
            self.placement = outcome
            self._fleet.note_placed()
            self._charge_prefiller(decision)
            self._charge_decoder(outcome)
        return outcome

    def withdraw(self, reason: str) -> None:
        """Take back a placement that no worker has heard of: it found no place after all."""
        self.leave()
        self._remember(replace(self.decisions.pop(), chosen=None, reason=reason))

    def move_decoder(self, now: float, *, is_computed: bool = False) -> bool:
        """Choose another decode worker for the same prefill worker, as `place_decoder`, if one is left."""
        request, views = self._look(now)
        prefill = self.current.prefill
        decoder, decision = place_decoder(
            request, views, prefill, self._config, self._excluded, is_computed=is_computed
        )
        self._remember(decision)
        if decoder is None:
            return False
        self.placement = replace(self.current, decode=decoder, reason=decision.reason)
        self._charge_decoder(self.placement)
        return True

    def refuse(self, worker_id: str) -> None:
        """Pass a worker over from here on; it keeps nothing of the request."""
        self._take_back(lambda charge: charge.worker_id == worker_id)
        self._refused_by |= {worker_id}

    def forget_refusals(self) -> None:
        """Those that refused may have room again."""
        self._refused_by = frozenset()

    def end_prefill(self) -> None:
        """The prompt is computed."""
        self._take_back(lambda charge: charge.num_tokens > 0)

    def end_transfer(self) -> None:
        """The prompt's blocks are where they are decoded."""
        self._take_back(lambda charge: charge.num_blocks > 0)

    def leave(self) -> tuple[str, ...]:
        """Take everything back; returns the workers that may have something of the request."""
        self._take_back(lambda charge: True)
        placement, self.placement = self.placement, None
        return tuple(dict.fromkeys((placement.decode, placement.prefill))) if placement else ()

    @property
    def _excluded(self) -> dict[str, str]:
        return {**self.avoided, **dict.fromkeys(self._refused_by, "has refused it")}

    def _look(self, now: float) -> tuple[PlacementRequest, list[WorkerView]]:
        """The snapshot to decide on. The prompt is hashed once for each identity of the fleet."""
        identity = self._fleet.identity
        reads_prefixes = self._spec.params.reads_prefix_cache
        if reads_prefixes and identity is not None and identity != self._hashed_for:
            self._hashed_for, self._hashes = identity, self._fleet.prompt_hashes(self._spec)
        views = self._fleet.views(len(self._spec.given_token_ids), self._hashes)
        return self._fleet.request(now, self._spec, self._session_id, self._hashes), views

    def _remember(self, decision: Decision) -> None:
        is_again = bool(self.decisions) and decision.chosen is None and self.decisions[-1].chosen is None
        if is_again or len(self.decisions) == MAX_DECISIONS:
            del self.decisions[-1 if is_again else 0]
        self.decisions.append(decision)

    def _charge_prefiller(self, decision: Decision) -> None:
        assert decision.chosen is not None, "it was placed"
        num_uncached = max(1, len(self._spec.given_token_ids) - decision.chosen.num_cached_tokens)
        self._charge(Charge(decision.chosen.prefill, num_tokens=num_uncached))

    def _charge_decoder(self, placement: Placement) -> None:
        self._charge(Charge(placement.decode, num_sequences=self._spec.num_sequences))
        if placement.is_split:
            num_blocks = self._fleet.num_blocks(len(self._spec.given_token_ids))
            self._charge(Charge(placement.decode, num_blocks=num_blocks))

    def _charge(self, charge: Charge) -> None:
        self._fleet.give(charge)
        self._charges.append(charge)

    def _take_back(self, is_over: Callable[[Charge], bool]) -> None:
        for charge in [charge for charge in self._charges if is_over(charge)]:
            self._charges.remove(charge)
            self._fleet.give(charge, sign=-1)


def _config_for(spec: RequestSpec, config: PlacementConfig) -> PlacementConfig:
    """Several sequences that were begun elsewhere go on at one worker."""
    return replace(config, split=SplitMode.NEVER) if len(spec.resumed) > 1 else config
