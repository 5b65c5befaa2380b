"""Snapshots to place a request on. Workers are named by role: p, d, m; their rates are round numbers."""

from __future__ import annotations

from typing import Any

from baton_core.sessions.worker_info import Role
from baton_router.core.placement.eligibility import Unplaceable
from baton_router.core.placement.placement import Placement, place
from baton_router.core.placement.placement_config import PlacementConfig
from baton_router.core.placement.placement_record import Decision
from baton_router.core.placement.placement_snapshot import PlacementRequest, WorkerSpeed, WorkerView

SPEED = WorkerSpeed(prefill_tokens_per_s=1000.0, decode_step_s=0.01, pull_bytes_per_s=1e6)
BLOCK_SIZE = 10
BLOCK_BYTES = 1000


def view(worker_id: str, **changes: Any) -> WorkerView:
    """An idle worker; fields of its speed may be given, too."""
    role = {"p": Role.PREFILL, "d": Role.DECODE, "m": Role.MIXED}[worker_id[0]]
    names = ("prefill_tokens_per_s", "prefill_step_s", "decode_step_s", "pull_bytes_per_s")
    rates = {name: changes.pop(name) for name in names if name in changes}
    fields = {"num_cached_tokens": 0, "num_queued_tokens": 0, "num_sequences": 0, "can_reserve": True}
    fields |= {"speed": SPEED._replace(**rates)}
    return WorkerView(worker_id=worker_id, role=role, **{**fields, **changes})


def ask(prompt: int = 1000, **changes: Any) -> PlacementRequest:
    fields = {"num_blocks": -(-prompt // BLOCK_SIZE), "block_size": BLOCK_SIZE, "block_bytes": BLOCK_BYTES}
    return PlacementRequest(num_prompt_tokens=prompt, **{**fields, **changes})


def choose(
    *workers: WorkerView | str, excluded: tuple[str, ...] = (), **options: Any
) -> tuple[Placement | Unplaceable, Decision]:
    """Options are fields of `PlacementConfig`, and what `ask` takes."""
    views = [view(worker) if isinstance(worker, str) else worker for worker in workers]
    names = ("policy", "split", "min_split_tokens", "stall_weight")
    own = {name: options.pop(name) for name in names if name in options}
    config = PlacementConfig(**{"min_split_tokens": 256, **own})
    return place(ask(**options), views, config, dict.fromkeys(excluded, "has refused it"))


def pair(*workers: WorkerView | str, **options: Any) -> tuple[str, str]:
    """Names of the prefill and the decode worker that are chosen."""
    outcome, decision = choose(*workers, **options)
    assert isinstance(outcome, Placement), outcome
    assert decision.chosen is not None
    assert (decision.chosen.prefill, decision.chosen.decode) == (outcome.prefill, outcome.decode)
    assert outcome.reason == decision.reason
    return (outcome.prefill, outcome.decode)
