"""The workers that a router knows: their status, their cached prefixes and the load reserved at them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from baton_core.errors import IncompatibleWorkerError
from baton_core.kv_events.cache_delta import CacheDelta
from baton_core.load_reservation import LoadReservation
from baton_core.model.model_identity import ModelIdentity, with_weights
from baton_core.requests.pooling import PoolingModel, decode_pooling_model
from baton_core.sessions.control_messages import ControlResult, EnginePart
from baton_core.sessions.router_messages import KVSource
from baton_core.sessions.served_model import ServedModel
from baton_core.sessions.worker_info import Role, WorkerInfo, WorkerLoad, WorkerRates
from baton_core.weight_update import WeightVersion
from baton_router.core.fleet.member import Member, ReservedLoad
from baton_router.core.fleet.prefix_index import NUM_SHARDS, PrefixIndex
from baton_router.core.placement.placement_snapshot import (
    WorkerView,
    speed_of,
    typical_rates,
)
from baton_router.core.placement.rate_aging import Report, aged_rates
from baton_router.core.worker_processes import AbsentWorker, WorkerProcesses

SWEEP_ENTRIES: Final = 512
"""Index entries swept between two events, in well under a millisecond."""
AGE_EVERY_S: Final = 0.25
"""Shortest time between two computations of the aged rates, unless a rate has just become known.

Heartbeats of a large fleet come all the time, and each would change the rates of all workers."""


class Fleet:
    """The workers of one model, and the load that routers have reserved at them."""

    def __init__(self, index_shards: int = NUM_SHARDS) -> None:
        self._members: dict[str, Member] = {}
        self._index = PrefixIndex(index_shards)
        self._peer_loads: dict[str, dict[str, LoadReservation]] = {}
        """The load that other routers have reserved, by router and worker."""
        self._rates: Mapping[str, WorkerRates] | None = None
        """Aged rates by worker; None where they have to be computed again."""
        self._aged_s = -math.inf
        self._has_new_rates = False
        """True if reports have changed the rates since then."""
        self._num_placed = self._num_split = 0
        self._model: ServedModel | None = None
        self._weights = ""
        """Hash of the weights that new requests begin on."""
        self._version: WeightVersion | None = None
        """The version that an operator has brought to the workers; None while these have their own."""
        self.away: frozenset[EnginePart] = frozenset()
        """Parts that an operator's sleep has taken from all workers."""
        self.processes = WorkerProcesses()
        """The workers' processes, where a launcher reports them."""
        self.data_parallel_size = 1
        """Data-parallel ranks that there are, or have been."""

    def __contains__(self, worker_id: object) -> bool:
        return worker_id in self._members

    @property
    def identity(self) -> ModelIdentity | None:
        """The model identity of the members, with the weights served; None while there is no member."""
        first = next(iter(self._members.values()), None)
        return with_weights(first.info.identity, self._weights) if first else None

    @property
    def pooling(self) -> PoolingModel | None:
        """Description of what the members pool; None where they generate, or there is none."""
        identity = self.identity
        return decode_pooling_model(identity.pooling) if identity else None

    def _computes(self, role: Role) -> bool:
        """True if workers of this role compute the last token of a request."""
        return role.can_decode if self.pooling is None else role.can_prefill

    @property
    def weights(self) -> str:
        """Hash of the weights that are served: members with others take no new request."""
        return self._weights

    @property
    def version(self) -> WeightVersion | None:
        """The version that workers with other weights are brought to; None if there was no update."""
        return self._version

    def set_version(self, version: WeightVersion) -> None:
        """Serve this version alone from now on, and let workers join that have yet to load it."""
        self._version, self._weights = version, version.weights

    def has_served_weights(self, worker_id: str) -> bool:
        """True if a member has the weights that are served."""
        member = self._members.get(worker_id)
        return member is not None and member.info.identity.weights == self._weights

    def set_away(self, parts: frozenset[EnginePart]) -> None:
        """Have workers that join give up these parts; those that joined before have to at most these."""
        self.away = parts
        for member in self._members.values():
            member.to_give_up &= parts

    def has_to_sleep(self, worker_id: str) -> bool:
        """True if a member has yet to give up what the others did."""
        return worker_id in self._members and bool(self._members[worker_id].to_give_up)

    @property
    def is_ready(self) -> bool:
        """True if a serving worker can decode and a serving worker can prefill."""
        roles = [
            member.role
            for member in self._members.values()
            if member.load.is_serving and member.info.identity.weights == self._weights
        ]
        can_decode = self.pooling is not None or any(role.can_decode for role in roles)
        return can_decode and any(role.can_prefill for role in roles)

    @property
    def num_prefilling_workers(self) -> int:
        """Serving workers that compute prompts."""
        return sum(member.load.is_serving and member.role.can_prefill for member in self._members.values())

    @property
    def max_model_len(self) -> int:
        """Longest sequence of any member, in tokens, of those that decode, or pool, if any; 0 without one."""
        members = self._members.values()
        decoders = [member for member in members if self._computes(member.role)]
        return max((member.max_model_len for member in decoders or members), default=0)

    @property
    def has_no_reservations(self) -> bool:
        return not self.reservations()

    @property
    def members(self) -> Mapping[str, Member]:
        """The workers by name."""
        return self._members

    def workers(self) -> list[tuple[WorkerInfo, WorkerLoad]]:
        return [(member.info, member.load) for member in self._members.values()]

    def absent(self, now: float) -> list[AbsentWorker]:
        """Return the workers that are loading or wait for a restart."""
        return self.processes.absent(now, self._members.keys())

    def why_absent(self, now: float) -> str:
        """Return how many workers are registered and what the others do; empty where none is absent."""
        return self.processes.explain(now, self._members.keys())

    def serve(self, model: ServedModel) -> None:
        """Accept only workers of this model from now on."""
        self._model = model

    def check(self, info: WorkerInfo) -> None:
        """Refuse a worker of another model, or one that cannot exchange blocks with the members.

        A member of the same name is not compared: it may be the same worker before a restart. Other weights
        are taken where the worker can be brought to those served.

        Raises:
            IncompatibleWorkerError: names the field, its value and what is allowed.
        """
        if self._model is not None:
            self._model.require_same(info)
        weights = self._weights if self._version is None else info.identity.weights
        for worker_id, member in self._members.items():
            if worker_id != info.worker_id:
                with_weights(member.info.identity, weights).require_compatible(info.identity)

    def join(self, info: WorkerInfo) -> None:
        """Add a worker.

        Raises:
            IncompatibleWorkerError: as `check`, or a member has its name.
        """
        self.check(info)
        if info.worker_id in self._members:
            raise IncompatibleWorkerError(
                f"worker_id is {info.worker_id!r}; allowed: a name that no registered worker has"
            )
        if self._version is None and not self._members:
            self._weights = info.identity.weights
        load = WorkerLoad(num_available_blocks=info.num_blocks)
        self.data_parallel_size = max(self.data_parallel_size, info.data_parallel_rank + 1)
        self._members[info.worker_id] = Member(info=info, load=load, to_give_up=self.away)
        self._rates = None
        self._index.begin_epoch(info.worker_id, info.epoch)
        self._update_peer_load(info.worker_id)

    def leave(self, worker_id: str) -> frozenset[str]:
        """Forget a worker; returns the requests that it had not begun with when it last reported."""
        self.processes.leave(worker_id)
        member = self._members.pop(worker_id, None)
        if self._version is None and not any(map(self.has_served_weights, self._members)):
            first = next(iter(self._members.values()), None)
            self._weights = first.info.identity.weights if first else ""
        for name in self._members:
            self.mark_pair(worker_id, name, is_broken=False)
        self._rates = None
        self._index.drop(worker_id)
        return frozenset(member.load.waiting_request_ids if member else ())

    def set_peer_load(self, router_id: str, reservations: Sequence[LoadReservation]) -> None:
        """Replace the load that another router has reserved."""
        before = self._peer_loads.pop(router_id, {})
        if reservations:
            self._peer_loads[router_id] = {reservation.worker_id: reservation for reservation in reservations}
        for worker_id in {**before, **self._peer_loads.get(router_id, {})}:
            self._update_peer_load(worker_id)

    def report(self, now: float, worker_id: str, load: WorkerLoad) -> None:
        if (member := self._members.get(worker_id)) is not None:
            is_urgent = load.role != member.load.role or load.rates.known != member.load.rates.known
            self._has_new_rates = self._has_new_rates or load.rates != member.load.rates
            if is_urgent or (self._has_new_rates and now >= self._aged_s + AGE_EVERY_S):
                self._rates, self._aged_s, self._has_new_rates = None, now, False
            member.report(now, load)
            self._note_weights(member, load.weights)

    def rates(self) -> Mapping[str, WorkerRates]:
        """Return the rates assumed of each worker, aged where others have newer ones."""
        if self._rates is None:
            members = self._members.items()
            self._rates = aged_rates(
                Report(name, member.role, member.load.rates, member.learned_at) for name, member in members
            )
            typical = typical_rates(self._rates.values())
            for name, member in members:
                member.set_speed(speed_of(self._rates[name], typical))
        return self._rates

    def mark_pair(self, prefill: str, decode: str, *, is_broken: bool) -> None:
        """Record whether blocks of one worker arrive at another."""
        if (member := self._members.get(decode)) is not None:
            member.mark_source(prefill, is_broken=is_broken)

    @property
    def num_broken_pairs(self) -> int:
        """Number of pairs of members between which transfers fail."""
        return sum(len(member.broken_sources) for member in self._members.values())

    def update_status(self, worker_id: str, result: ControlResult) -> None:
        """Apply the status from a control result, before the worker's next report."""
        if (member := self._members.get(worker_id)) is not None:
            load = replace(
                member.load,
                is_asleep=result.is_asleep,
                is_paused=result.is_paused,
                role=result.role or member.load.role,
                is_role_fixed=result.is_role_fixed,
                is_draining=result.is_draining,
            )
            member.set_load(load)
            self._note_weights(member, result.weights)
            self._rates = None

    def _note_weights(self, member: Member, weights: str) -> None:
        """Note the weights that a member has; those that one has changed to last are served."""
        if weights in ("", member.info.identity.weights):
            return
        member.set_weights(weights)
        self._weights = weights
        if self._version is not None and self._version.weights != weights:
            self._version = None  # another router has brought the workers to a later one

    def apply_delta(self, worker_id: str, delta: CacheDelta, epoch: int | None = None) -> bool:
        """Apply a worker's cache update; False when an earlier update was missed.

        Without an epoch it comes from a member's session; with one it may come before the worker has joined.
        """
        if epoch is None:
            member = self._members.get(worker_id)
            return member is None or self._index.apply(worker_id, delta, member.info.epoch)
        return self._index.apply(worker_id, delta, epoch)

    @property
    def needs_sweep(self) -> bool:
        """True while the index has entries of workers that are gone."""
        return self._index.needs_sweep

    def sweep(self) -> None:
        """Remove some entries of workers that are gone; called often, each time for a small part."""
        self._index.sweep(SWEEP_ENTRIES)

    def reserve(self, reservation: LoadReservation) -> ReservedLoad:
        """Count load that this router places at a member, until it is released."""
        member = self._members[reservation.worker_id]
        member.add_load(reservation, 1)
        return ReservedLoad(member, reservation)

    def reservations(self) -> tuple[LoadReservation, ...]:
        """Return the load that this router has reserved, by worker; workers without any are left out."""
        reserved = (
            LoadReservation(
                worker_id,
                member.num_reserved_tokens,
                member.num_reserved_sequences,
                member.num_reserved_blocks,
            )
            for worker_id, member in self._members.items()
        )
        return tuple(reservation for reservation in reserved if any(reservation[1:]))

    def source(self, worker_id: str) -> KVSource:
        """Return the KV source for a decode worker that pulls from this worker."""
        info = self._members[worker_id].info
        return KVSource(
            worker_id=worker_id,
            epoch=info.epoch,
            peer_address=info.peer_address,
            kv_description=info.kv_description,
        )

    @property
    def block_bytes(self) -> int:
        """Bytes of a block at a worker; 1 while there is none."""
        return next((member.info.block_bytes for member in self._members.values()), 1)

    def num_blocks(self, num_prompt_tokens: int) -> int:
        """Return the number of blocks that a computed prompt takes."""
        assert self.identity is not None, "only workers have blocks"
        return self.identity.paging.num_blocks(num_prompt_tokens)

    def views(self, num_prompt_tokens: int, hashes: Sequence[bytes], adapter: str = "") -> list[WorkerView]:
        """Return each worker as placement sees it, for these hashes of a prompt and the adapter's digest."""
        if self.identity is None:
            return []
        self.rates()
        num_blocks = self.num_blocks(num_prompt_tokens)
        num_cached, block_size = self._index.num_cached_blocks(hashes), self.identity.block_size
        return [
            member.view(num_cached.get(worker_id, 0) * block_size, num_blocks, adapter)
            for worker_id, member in self._members.items()
        ]

    @property
    def turns(self) -> tuple[int, int]:
        """Placed requests, and those of them that were split: numbers of the next ones for round-robin."""
        return self._num_placed, self._num_split

    def count_placement(self, *, is_split: bool) -> None:
        """Count a placed request; round-robin continues with the next worker of each half that it took."""
        self._num_placed += 1
        self._num_split += is_split

    def _update_peer_load(self, worker_id: str) -> None:
        if (member := self._members.get(worker_id)) is not None:
            loads = self._peer_loads.values()
            member.set_peer_load([load[worker_id] for load in loads if worker_id in load])
