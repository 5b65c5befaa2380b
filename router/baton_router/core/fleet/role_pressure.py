"""The pressure on prefill and decode workers, measured from their loads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from baton_core.sessions.worker_info import Role, WorkerInfo, WorkerLoad

Worker: TypeAlias = tuple[WorkerInfo, WorkerLoad]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits above which a kind of work is short, on the average over its workers."""

    queue_s: float = 1.0
    """Time that a prefill worker needs for the prompts it has."""
    fullness: float = 0.85
    """Share of a decode worker's sequences, of its blocks, or of the time that a step may take."""
    step_s: float | None = None
    """Limit of the step time; None is no limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Requests at the router that have no worker yet."""

    num_requests: int = 0
    num_tokens: int = 0
    """Tokens of their prompts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pressure:
    """Pressure on one kind of work; a need of 1 or more is a shortage."""

    need: float
    """Load as a share of its limit."""
    use: float
    """Share of its workers' capacity that is used, 0 to 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetPressure:
    prefill: Pressure
    decode: Pressure


def role_of(worker: Worker) -> Role:
    """Return the role that a worker prefers now."""
    info, load = worker
    return load.role or info.role


def measure(workers: Sequence[Worker], waiting: Waiting, limits: Limits) -> FleetPressure:
    """Measure the pressures; requests that wait at the router add to the greater one."""
    prefillers = [worker for worker in workers if role_of(worker).can_prefill]
    decoders = [worker for worker in workers if role_of(worker).can_decode]
    rate = mean([load.rates.prefill_tokens_per_s for _, load in workers if load.rates.prefill_tokens_per_s])
    queue_s = mean([_queue_s(load, rate) for _, load in prefillers])
    used = mean([fullness(info, load, limits.step_s) for info, load in decoders])
    prefill, decode = queue_s / limits.queue_s, used / limits.fullness
    if decode >= prefill:
        max_num_seqs = sum(info.max_num_seqs for info, _ in decoders)
        decode += waiting.num_requests / max_num_seqs if max_num_seqs else 0.0
    elif rate:
        prefill += waiting.num_tokens / rate / len(prefillers) / limits.queue_s
    busy = mean([float(load.num_queued_tokens > 0) for _, load in prefillers])
    return FleetPressure(
        prefill=Pressure(need=prefill, use=busy), decode=Pressure(need=decode, use=min(1.0, used))
    )


def _queue_s(load: WorkerLoad, usual_rate: float) -> float:
    """Return the time in which a worker computes its prompts; 0 while no rate is known."""
    rate = load.rates.prefill_tokens_per_s or usual_rate
    return load.num_queued_tokens / rate if rate else 0.0


def fullness(info: WorkerInfo, load: WorkerLoad, step_s: float | None) -> float:
    """Return the used share of sequences, blocks or step time, whichever is the largest."""
    sequences = (load.num_running + load.num_waiting) / info.max_num_seqs
    blocks = 1.0 - load.num_available_blocks / info.num_blocks
    time = load.rates.decode_step_s / step_s if step_s and load.num_running else 0.0
    return max(sequences, blocks, time)


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
