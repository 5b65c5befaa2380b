"""The reason for which a fleet is not ready."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from baton_core.sessions.worker_info import WorkerInfo, WorkerLoad
from baton_router.core.worker_processes import AbsentWorker

MAX_NAMED: Final = 8
"""Maximum number of workers in a reason."""


def why_not_ready(
    workers: Iterable[tuple[WorkerInfo, WorkerLoad]],
    absent: Sequence[AbsentWorker] = (),
    weights: str = "",
    *,
    is_pooling: bool = False,
) -> str:
    """Return the half of a request that no worker serves, with reasons; empty if both are served.

    `absent` are workers that have no session, but a process, or will have one again. Workers with other
    `weights` than these, if any are given, do not serve. Nothing is decoded where the model pools.
    """
    known = sorted(workers, key=lambda one: one[0].worker_id)
    prefillers = [one for one in known if (one[1].role or one[0].role).can_prefill]
    decoders = [one for one in known if (one[1].role or one[0].role).can_decode]
    absent_prefillers = [one for one in absent if one.role.can_prefill]
    absent_decoders = [one for one in absent if one.role.can_decode]
    parts = [("prefills", prefillers, absent_prefillers), ("decodes", decoders, absent_decoders)]
    for part, able, awaited in parts[:1] if is_pooling else parts:
        if not any(load.is_serving and _has_weights(info, weights) for info, load in able):
            why = [f"{info.worker_id} {_why_not_serving(info, load, weights)}" for info, load in able]
            why = [*why, *map(str, awaited)][:MAX_NAMED]
            return f"no worker {part}: {', '.join(why) or 'none is registered'}"
    return ""


def _has_weights(info: WorkerInfo, weights: str) -> bool:
    return weights in ("", info.identity.weights)


def _why_not_serving(info: WorkerInfo, load: WorkerLoad, weights: str) -> str:
    if load.fault:
        return f"is faulty ({load.fault})"
    if not _has_weights(info, weights):
        return f"has yet to load weights {weights}"
    return "sleeps" if load.is_asleep else "drains" if load.is_draining else "is paused"
