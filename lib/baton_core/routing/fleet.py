"""The workers a router knows: who they are, what they hold, what this router has given them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from baton_core.blocks.block_hash import block_hashes, root_hash
from baton_core.errors import IncompatibleWorkerError
from baton_core.routing.charge import Charge
from baton_core.routing.member import Member
from baton_core.routing.placement_snapshot import (
    EXPECTED_OUTPUT_TOKENS,
    PlacementRequest,
    WorkerView,
    speed_of,
    typical_rates,
)
from baton_core.routing.prefix_index import NUM_SHARDS, PrefixIndex
from baton_core.routing.rate_aging import Report, aged_rates
from baton_core.sessions.control_messages import ControlResult
from baton_core.sessions.router_messages import CacheDelta, KVSource, RequestSpec
from baton_core.sessions.worker_info import ModelIdentity, WorkerInfo, WorkerLoad, WorkerRates

SWEEP_ENTRIES: Final = 512
"""Of the index, between two events: well under a millisecond."""
AGE_EVERY_S: Final = 0.25
"""Rates are worked out anew at most so often, unless one has just become known: of a large fleet heartbeats
come all the time, and each would change what all are compared with."""


class Fleet:
    """Members of one model. The ledger counts what was given out and not yet taken back."""

    def __init__(self, index_shards: int = NUM_SHARDS) -> None:
        self._members: dict[str, Member] = {}
        self._index = PrefixIndex(index_shards)
        self._given_by_others: dict[str, dict[str, Charge]] = {}
        """By router, then by worker."""
        self._rates: Mapping[str, WorkerRates] | None = None
        """Aged, by worker; None where they have to be worked out anew."""
        self._aged_s = -math.inf
        self._has_new_rates = False
        """Reports since have changed the rates."""
        self._num_placed = 0

    @property
    def identity(self) -> ModelIdentity | None:
        """What every member shares; None while there is none."""
        first = next(iter(self._members.values()), None)
        return first.info.identity if first else None

    @property
    def is_ready(self) -> bool:
        """Whether some worker that takes requests decodes and some prefills."""
        roles = [member.role for member in self._members.values() if member.load.is_taking]
        return any(role.can_decode for role in roles) and any(role.can_prefill for role in roles)

    @property
    def max_model_len(self) -> int:
        """What every member can hold; 0 without members."""
        return min((member.info.max_model_len for member in self._members.values()), default=0)

    @property
    def is_ledger_empty(self) -> bool:
        members = self._members.values()
        return not any(m.num_given_tokens or m.num_given_sequences or m.num_given_blocks for m in members)

    def workers(self) -> list[tuple[WorkerInfo, WorkerLoad]]:
        return [(member.info, member.load) for member in self._members.values()]

    def crowded(self, sequences_per_seat: float) -> frozenset[str]:
        """Workers that were given so many sequences for each that they can run at once."""
        return frozenset(
            worker_id
            for worker_id, member in self._members.items()
            if member.num_sequences >= sequences_per_seat * member.info.max_num_seqs
        )

    def check(self, info: WorkerInfo) -> None:
        """Refuse a worker that cannot exchange blocks with the members.

        Raises:
            IncompatibleWorkerError: names the field, its value and what is allowed.
        """
        if info.worker_id in self._members:
            raise IncompatibleWorkerError(
                f"worker_id is {info.worker_id!r}; allowed: a name that no registered worker has"
            )
        for member in self._members.values():
            member.info.identity.require_compatible(info.identity)

    def join(self, info: WorkerInfo) -> None:
        self.check(info)
        load = WorkerLoad(num_available_blocks=info.num_blocks)
        self._members[info.worker_id] = Member(info=info, load=load)
        self._rates = None
        self._index.begin_epoch(info.worker_id, info.epoch)
        self._count_others(info.worker_id)

    def leave(self, worker_id: str) -> None:
        self._members.pop(worker_id, None)
        for name in self._members:
            self.note_pair(worker_id, name, is_broken=False)
        self._rates = None
        self._index.drop(worker_id)

    def note_others(self, router_id: str, charges: Sequence[Charge]) -> None:
        """Count what another router has given out; `charges` are all of that router's."""
        before = self._given_by_others.pop(router_id, {})
        if charges:
            self._given_by_others[router_id] = {charge.worker_id: charge for charge in charges}
        for worker_id in {**before, **self._given_by_others.get(router_id, {})}:
            self._count_others(worker_id)

    def report(self, now: float, worker_id: str, load: WorkerLoad) -> None:
        if (member := self._members.get(worker_id)) is not None:
            is_urgent = load.role != member.load.role or load.rates.known != member.load.rates.known
            self._has_new_rates = self._has_new_rates or load.rates != member.load.rates
            if is_urgent or (self._has_new_rates and now >= self._aged_s + AGE_EVERY_S):
                self._rates, self._aged_s, self._has_new_rates = None, now, False
            member.report(now, load)

    def rates(self) -> Mapping[str, WorkerRates]:
        """Rates assumed of each worker, by name: aged where others have newer ones."""
        if self._rates is None:
            members = self._members.items()
            self._rates = aged_rates(
                Report(name, member.role, member.load.rates, member.learned_at) for name, member in members
            )
            typical = typical_rates(self._rates.values())
            for name, member in members:
                member.note_speed(speed_of(self._rates[name], typical))
        return self._rates

    def note_pair(self, prefill: str, decode: str, *, is_broken: bool) -> None:
        """Know whether blocks of one worker arrive at another."""
        if (member := self._members.get(decode)) is not None:
            member.note_source(prefill, is_broken=is_broken)

    @property
    def num_broken_pairs(self) -> int:
        """Pairs of members of which one's blocks do not arrive at the other."""
        return sum(len(member.broken_sources) for member in self._members.values())

    def note_standing(self, worker_id: str, result: ControlResult) -> None:
        """Know how a worker stands before its next report tells."""
        if (member := self._members.get(worker_id)) is not None:
            load = replace(
                member.load,
                is_asleep=result.is_asleep,
                role=result.role or member.load.role,
                is_role_fixed=result.is_role_fixed,
                is_draining=result.is_draining,
            )
            member.note_standing(load)
            self._rates = None

    def apply_delta(self, worker_id: str, delta: CacheDelta, epoch: int | None = None) -> bool:
        """Take what a worker stored and removed; False when something before it was missed.

        Without an epoch it comes from a member's session; with one it may come before the worker has joined.
        """
        if epoch is None:
            member = self._members.get(worker_id)
            return member is None or self._index.apply(worker_id, delta, member.info.epoch)
        return self._index.apply(worker_id, delta, epoch)

    @property
    def needs_sweep(self) -> bool:
        """Whether the index still has entries of workers that are gone."""
        return self._index.needs_sweep

    def sweep(self) -> None:
        """Go on forgetting what workers held that are gone; a small part of it, called often."""
        self._index.sweep(SWEEP_ENTRIES)

    def give(self, charge: Charge, *, sign: int = 1) -> None:
        """Count what is given to a worker; `sign` -1 takes it back."""
        if (member := self._members.get(charge.worker_id)) is not None:
            member.give(charge, sign)

    def charges(self) -> tuple[Charge, ...]:
        """What this router has given out; workers without anything are left out."""
        given = (
            Charge(worker_id, member.num_given_tokens, member.num_given_sequences, member.num_given_blocks)
            for worker_id, member in self._members.items()
        )
        return tuple(charge for charge in given if any(charge[1:]))

    def source(self, worker_id: str) -> KVSource:
        """Where a decode worker pulls from."""
        info = self._members[worker_id].info
        return KVSource(
            worker_id=worker_id,
            epoch=info.epoch,
            peer_address=info.peer_address,
            kv_description=info.kv_description,
        )

    def num_blocks(self, num_prompt_tokens: int) -> int:
        """Blocks that a computed prompt takes."""
        assert self.identity is not None, "only workers have blocks"
        return self.identity.paging.num_blocks(num_prompt_tokens)

    def prompt_hashes(self, spec: RequestSpec) -> list[bytes]:
        """Content addresses of the full blocks of what it comes with, as the members compute them."""
        assert self.identity is not None, "hashes depend on the model"
        root = root_hash(self.identity, spec.cache_salt)
        return block_hashes(root, spec.given_token_ids, self.identity.block_size)

    def views(self, num_prompt_tokens: int, hashes: Sequence[bytes]) -> list[WorkerView]:
        """The snapshot that placement decides on, for a prompt whose blocks have these hashes."""
        if self.identity is None:
            return []
        self.rates()
        num_blocks = self.num_blocks(num_prompt_tokens)
        num_cached, block_size = self._index.num_cached_blocks(hashes), self.identity.block_size
        return [
            member.view(num_cached.get(worker_id, 0) * block_size, num_blocks)
            for worker_id, member in self._members.items()
        ]

    def request(
        self, now: float, spec: RequestSpec, session_id: str, hashes: Sequence[bytes]
    ) -> PlacementRequest:
        """What placement has to know of a request; `hashes` are those of its prompt."""
        num_tokens, params = len(spec.given_token_ids), spec.params
        info = next((member.info for member in self._members.values()), None)
        return PlacementRequest(
            request_id=spec.request_id,
            at_s=now,
            num_prompt_tokens=num_tokens,
            num_blocks=self.num_blocks(num_tokens) if info else 0,
            block_size=info.identity.block_size if info else 1,
            block_bytes=info.block_bytes if info else 1,
            num_sequences=spec.num_sequences,
            num_output_tokens=min(params.max_tokens or EXPECTED_OUTPUT_TOKENS, EXPECTED_OUTPUT_TOKENS),
            priority=spec.priority,
            session_id=session_id,
            prompt_key=hashes[0].hex() if hashes else "",
            turn=self._num_placed,
        )

    def note_placed(self) -> None:
        """Another request was placed: who takes turns gives one to the next worker."""
        self._num_placed += 1

    def _count_others(self, worker_id: str) -> None:
        if (member := self._members.get(worker_id)) is not None:
            ledgers = self._given_by_others.values()
            member.note_others([ledger[worker_id] for ledger in ledgers if worker_id in ledger])
