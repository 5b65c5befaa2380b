"""Why a fleet serves no prompt now, for whoever asks a router how it is."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from baton_core.sessions.worker_info import WorkerInfo, WorkerLoad

MAX_NAMED: Final = 8
"""Workers that a reason names."""


def why_not_ready(workers: Iterable[tuple[WorkerInfo, WorkerLoad]]) -> str:
    """Return which half of a request nobody does, and why not those who would; empty if none is left out."""
    known = sorted(workers, key=lambda one: one[0].worker_id)
    prefillers = [one for one in known if (one[1].role or one[0].role).can_prefill]
    decoders = [one for one in known if (one[1].role or one[0].role).can_decode]
    for part, able in (("prefills", prefillers), ("decodes", decoders)):
        if not any(load.is_taking for _, load in able):
            why = [f"{info.worker_id} {_why_not_taking(load)}" for info, load in able[:MAX_NAMED]]
            return f"no worker {part}: {', '.join(why) or 'none is registered'}"
    return ""


def _why_not_taking(load: WorkerLoad) -> str:
    if load.fault:
        return f"is faulty ({load.fault})"
    return "sleeps" if load.is_asleep else "drains"
