"""How short a fleet is of prefill and of decode at one moment, as its workers' loads tell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from baton_core.sessions.worker_info import Role, WorkerInfo, WorkerLoad

Worker: TypeAlias = tuple[WorkerInfo, WorkerLoad]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """From where on a kind of work is short, on the average over its workers."""

    queue_s: float = 1.0
    """Time that a prefill worker needs for the prompts it has."""
    fullness: float = 0.85
    """Share of a decode worker's sequences, of its blocks, or of the time that a step may take."""
    step_s: float | None = None
    """That time; None is any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Requests at the router that have no worker yet."""

    num_requests: int = 0
    num_tokens: int = 0
    """Of their prompts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pressure:
    """Of one kind of work; 1 and more is too much of it."""

    need: float
    """How far it is on the way to being short."""
    use: float
    """Share of its workers' capacity that is taken, 0 to 1: what is given away has to fit into the rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetPressure:
    prefill: Pressure
    decode: Pressure


def role_of(worker: Worker) -> Role:
    """What a worker prefers to do now."""
    info, load = worker
    return load.role or info.role


def measure(workers: Sequence[Worker], waiting: Waiting, limits: Limits) -> FleetPressure:
    """Take the pressures on workers that take requests; what waits at the router adds to the greater one."""
    prefillers = [worker for worker in workers if role_of(worker).can_prefill]
    decoders = [worker for worker in workers if role_of(worker).can_decode]
    rate = _mean([load.rates.prefill_tokens_per_s for _, load in workers if load.rates.prefill_tokens_per_s])
    queue_s = _mean([_queue_s(load, rate) for _, load in prefillers])
    fullness = _mean([_fullness(info, load, limits.step_s) for info, load in decoders])
    prefill, decode = queue_s / limits.queue_s, fullness / limits.fullness
    if decode >= prefill:
        max_num_seqs = sum(info.max_num_seqs for info, _ in decoders)
        decode += waiting.num_requests / max_num_seqs if max_num_seqs else 0.0
    elif rate:
        prefill += waiting.num_tokens / rate / len(prefillers) / limits.queue_s
    busy = _mean([float(load.num_queued_tokens > 0) for _, load in prefillers])
    return FleetPressure(
        prefill=Pressure(need=prefill, use=busy), decode=Pressure(need=decode, use=min(1.0, fullness))
    )


def _queue_s(load: WorkerLoad, usual_rate: float) -> float:
    """How long it takes a worker to compute the prompts it has; 0 while nobody knows how fast that is."""
    rate = load.rates.prefill_tokens_per_s or usual_rate
    return load.num_queued_tokens / rate if rate else 0.0


def _fullness(info: WorkerInfo, load: WorkerLoad, step_s: float | None) -> float:
    """By sequences, blocks or time, whichever runs out first."""
    sequences = (load.num_running + load.num_waiting) / info.max_num_seqs
    blocks = 1.0 - load.num_available_blocks / info.num_blocks
    time = load.rates.decode_step_s / step_s if step_s and load.num_running else 0.0
    return max(sequences, blocks, time)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
