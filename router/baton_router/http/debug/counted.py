"""The counts of a router since its start: of one process, and of all of them together."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import msgspec

from baton_core.sessions.worker_info import Role
from baton_router.metrics.router_metrics import RouterMetrics
from baton_router.process.generation_service import GenerationService


class Totals(msgspec.Struct, kw_only=True):
    """Totals since the router's start."""

    num_finished: int
    """Sequences that ended by themselves."""
    num_failed: int
    """Requests that were refused or failed; those whose client left are no failures."""
    num_prompt_tokens: int
    num_cached_tokens: int
    """Prompt tokens found in the prefix cache where the prompt was computed."""
    num_generated_tokens: int
    num_computed: int
    """Prompt tokens by source, of all workers: of a split request both count theirs."""
    num_local_cache: int
    num_remote: int
    num_recomputed: int
    num_transfers: int
    transfer_bytes: int
    transfer_s: float


class Placements(msgspec.Struct, kw_only=True):
    """Decisions of one policy with one outcome."""

    policy: str
    kind: str
    """`split`, `local` or `refused`."""
    count: int


class Admissions(msgspec.Struct, kw_only=True):
    """Requests with one outcome of admission."""

    outcome: str
    count: int


class Shift(msgspec.Struct, kw_only=True):
    """A change of role that the router requested."""

    worker_id: str
    before: Role
    after: Role
    reason: str
    age_s: float


class Counted(msgspec.Struct, kw_only=True):
    """The open and the past work."""

    num_open_calls: int
    num_open_requests: int
    num_waiting: int
    """Requests that wait at the router for a worker."""
    totals: Totals
    placements: list[Placements]
    admissions: list[Admissions]
    shifts: list[Shift]
    """The latest ones, the last one first."""


def count(service: GenerationService, metrics: RouterMetrics) -> Counted:
    """Return the counts of this process."""
    core, requests, now = service.router.core, metrics.requests, asyncio.get_running_loop().time()
    return Counted(
        num_open_calls=service.num_calls,
        num_open_requests=core.num_requests,
        num_waiting=core.admission.num_waiting,
        totals=Totals(**asdict(requests.ended()), **vars(requests.work)),
        placements=_placements(requests.placements.counts),
        admissions=_admissions(core.admission.num_by_outcome),
        shifts=[
            Shift(
                worker_id=shift.worker_id,
                before=shift.before,
                after=shift.after,
                reason=shift.reason,
                age_s=now - shift.at_s,
            )
            for shift in reversed(core.roles.shifts)
        ],
    )


def add_counts(parts: Sequence[Counted]) -> Counted:
    """Return the counts of all processes together."""
    placements: Counter[tuple[str, str]] = Counter()
    admissions: Counter[str] = Counter()
    for part in parts:
        placements.update({(one.policy, one.kind): one.count for one in part.placements})
        admissions.update({one.outcome: one.count for one in part.admissions})
    names = Totals.__struct_fields__
    return Counted(
        num_open_calls=sum(part.num_open_calls for part in parts),
        num_open_requests=sum(part.num_open_requests for part in parts),
        num_waiting=sum(part.num_waiting for part in parts),
        totals=Totals(**{name: sum(getattr(part.totals, name) for part in parts) for name in names}),
        placements=_placements(placements),
        admissions=_admissions(admissions),
        shifts=sorted((shift for part in parts for shift in part.shifts), key=lambda shift: shift.age_s),
    )


def _placements(counts: Mapping[tuple[str, str], int]) -> list[Placements]:
    return [
        Placements(policy=policy, kind=kind, count=number)
        for (policy, kind), number in sorted(counts.items())
    ]


def _admissions(counts: Mapping[Any, int]) -> list[Admissions]:
    return [Admissions(outcome=outcome, count=number) for outcome, number in sorted(counts.items())]
