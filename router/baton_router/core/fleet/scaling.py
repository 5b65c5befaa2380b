"""Recommends how many workers each role should have, from what they do and from the rates they have learned.

Part of a router's core. Prefill needs workers for the time that prompts keep them busy, and for a backlog:
it has to be gone within a share of the TTFT SLO. Decode needs them for sequences, KV blocks and the TPOT SLO.
Workers whose roles may change, as mixed ones, are needed for the sum of both.
More are recommended at once, fewer only when a whole `down_s` has needed no more, from the first sample on.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from baton_core.requests.request_context import Slo
from baton_core.sessions.worker_info import Role
from baton_router.core.fleet.role_pressure import Waiting, Worker, fullness, mean, role_of

ROLES: Final = (Role.PREFILL, Role.DECODE)
"""Kinds of work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingConfig:
    """Limits of a recommendation."""

    slo: Slo = field(default_factory=Slo)
    prefill_use: float = 0.7
    """Share of their time that prefill workers may compute prompts."""
    decode_use: float = 0.75
    """Share of a decode worker's sequences, blocks, or TPOT that may be used."""
    wait_share: float = 0.5
    """Share of the TTFT SLO that prompts may wait."""
    wait_s: float = 1.0
    """Time that prompts may wait where there is no SLO."""
    up_s: float = 30.0
    """Time over which needs are averaged."""
    down_s: float = 300.0
    """Time that must have needed no more workers before fewer are recommended."""
    tolerance: float = 0.1
    """Deviation from the present number that changes nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleScaling:
    """A recommendation: how many workers a role should have."""

    role: Role
    """Mixed: for all workers together, as if each could have any role."""
    num_workers: int
    """Workers that take requests and have the role, mixed ones included."""
    num_needed: float
    """Workers that it needs on average, not rounded."""
    num_desired: int
    """Workers that it should have."""
    reason: str

    @property
    def need(self) -> float:
        """Needed workers as a share of those that there are; above 1 the role is short."""
        return self.num_needed / max(1, self.num_workers)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sample:
    at_s: float
    busy: float
    """Prefill workers that have prompts."""
    backlog: float
    """Prefill workers that would be needed to compute all prompts within the time they may wait."""
    fullness: float
    """Sum of the decode workers' used shares."""
    waiting: float
    """Decode workers' worth of requests that wait at the router."""
    wait_s: float
    """Predicted wait of a new prompt."""
    step_s: float
    """Predicted TPOT; 0 while no decode worker has learned it."""

    def needed(self, config: ScalingConfig) -> dict[Role, float]:
        prefill = max(self.busy / config.prefill_use, self.backlog)
        decode = self.fullness / config.decode_use + self.waiting
        return {Role.PREFILL: prefill, Role.DECODE: decode, Role.MIXED: prefill + decode}


class Scaling:
    """The recommendations of one router. Feed it samples of its workers, each a few seconds apart."""

    def __init__(self, config: ScalingConfig | None = None) -> None:
        self._config = config or ScalingConfig()
        self._samples: deque[_Sample] = deque()
        self._desired: deque[tuple[float, dict[Role, int]]] = deque()
        self._since_s = math.inf
        self._watched_s = 0.0
        self.roles: tuple[RoleScaling, ...] = ()
        """The recommendations of the last sample."""

    @property
    def is_settled(self) -> bool:
        """True once needs are averages over `up_s`, in which workers find a new router."""
        return self._watched_s >= self._config.up_s

    @property
    def predicted_ttft_s(self) -> float:
        """Mean time that a prompt waits at a prefill worker now."""
        return self._samples[-1].wait_s if self._samples else 0.0

    @property
    def predicted_tpot_s(self) -> float:
        """Mean learned decode step, of the workers that decode now if any do; 0 while none is known."""
        return self._samples[-1].step_s if self._samples else 0.0

    def sample(self, now: float, workers: Sequence[Worker], waiting: Waiting) -> tuple[RoleScaling, ...]:
        """Take a sample of all workers, and return the recommendations for each role."""
        config = self._config
        self._since_s = min(self._since_s, now)
        self._watched_s = now - self._since_s
        taking = [worker for worker in workers if worker[1].is_taking]
        self._samples.append(self._measure(now, taking, waiting))
        while self._samples[0].at_s < now - config.up_s:
            self._samples.popleft()
        needs = [sample.needed(config) for sample in self._samples]
        needed = {role: mean([one[role] for one in needs]) for role in Role}
        counts = {role: sum(_has(worker, role) for worker in taking) for role in Role}
        least = dict.fromkeys(ROLES, 1) | {Role.MIXED: _fewest(taking)}
        desired = {role: max(least[role], self._desire(needed[role], counts[role])) for role in Role}
        self._desired.append((now, desired))
        while self._desired[0][0] < now - config.down_s:
            self._desired.popleft()
        self.roles = tuple(self._recommend(role, counts[role], needed) for role in (*ROLES, Role.MIXED))
        return self.roles

    def _measure(self, now: float, workers: Sequence[Worker], waiting: Waiting) -> _Sample:
        config, slo = self._config, self._config.slo
        prefillers = [worker for worker in workers if _has(worker, Role.PREFILL)]
        decoders = [worker for worker in workers if _has(worker, Role.DECODE)]
        loads = [load for _, load in workers]
        rate = mean([load.rates.prefill_tokens_per_s for load in loads if load.rates.prefill_tokens_per_s])
        num_tokens = sum(load.num_queued_tokens for _, load in prefillers) + waiting.num_tokens
        all_wait_s = num_tokens / rate if rate else 0.0
        allowed_s = config.wait_share * slo.ttft_s if slo.ttft_s is not None else config.wait_s
        max_num_seqs = mean([info.max_num_seqs for info, _ in decoders])
        learned = [load for _, load in decoders if load.rates.decode_step_s]
        stepping = [load for load in learned if load.num_running] or learned
        return _Sample(
            at_s=now,
            busy=float(sum(load.num_queued_tokens > 0 for _, load in prefillers)),
            backlog=all_wait_s / allowed_s,
            fullness=sum(fullness(info, load, slo.tpot_s) for info, load in decoders),
            waiting=waiting.num_requests / max_num_seqs if max_num_seqs else 0.0,
            wait_s=all_wait_s / max(1, len(prefillers)),
            step_s=mean([load.rates.decode_step_s for load in stepping]),
        )

    def _desire(self, needed: float, count: int) -> int:
        """Return the number of workers for the need of the moment."""
        if count and abs(needed / count - 1.0) <= self._config.tolerance:
            return count
        return math.ceil(needed)

    def _recommend(self, role: Role, count: int, needed: Mapping[Role, float]) -> RoleScaling:
        now, latest = self._desired[-1]
        at_s, desired = max(((at, one[role]) for at, one in self._desired), key=lambda one: (one[1], one[0]))
        reason = self._reason(role)
        if role is Role.MIXED:
            reason = " and ".join(f"{one} needs {needed[one]:.1f}" for one in ROLES)
        if desired > latest[role]:
            reason += f"; {latest[role]} would do now, but {now - at_s:.0f} s ago {desired} were needed"
        if desired < count and self._watched_s < self._config.down_s:
            reason += f"; {desired} would do, but the workers were watched for {self._watched_s:.0f} s only"
            desired = count
        return RoleScaling(
            role=role, num_workers=count, num_needed=needed[role], num_desired=desired, reason=reason
        )

    def _reason(self, role: Role) -> str:
        config, slo, samples = self._config, self._config.slo, self._samples
        over = f"over {samples[-1].at_s - samples[0].at_s:.0f} s"
        if role is Role.PREFILL:
            busy, backlog = mean([one.busy for one in samples]), mean([one.backlog for one in samples])
            limit = f" (TTFT SLO {slo.ttft_s:g} s)" if slo.ttft_s is not None else ""
            if backlog > busy / config.prefill_use:
                return f"prompts wait {self.predicted_ttft_s:.2f} s{limit}; {backlog:.1f} workers {over}"
            return f"{busy:.1f} are busy {over}, of {config.prefill_use:.0%} that may be{limit}"
        used = mean([one.fullness for one in samples])
        limit = f" (TPOT SLO {slo.tpot_s:g} s)" if slo.tpot_s is not None else ""
        step_s = self.predicted_tpot_s
        step = f", a step takes {1e3 * step_s:.0f} ms{limit}" if step_s else limit
        return f"{used:.1f} are full {over}, of {config.decode_use:.0%} that may be{step}"


def _has(worker: Worker, role: Role) -> bool:
    return role is Role.MIXED or role_of(worker) in (role, Role.MIXED)


def _fewest(workers: Sequence[Worker]) -> int:
    """Return the fewest workers that a fleet of this kind needs; without workers its kind is not known."""
    is_of_one_role_each = all(role_of(worker) is not Role.MIXED for worker in workers)
    return len(ROLES) if workers and is_of_one_role_each else 1
