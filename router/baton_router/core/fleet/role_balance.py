"""Changes a worker's role when prefill or decode has been short for a while and the other has not.

Part of a router's core. It is short by the pressure on its workers, or because it should have more workers as
`Scaling` recommends, and the other fewer. Against oscillation, pressure must hold on the average of a window,
the other kind of work must have spare capacity even with a worker less, and a dwell time follows each shift.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from baton_core.sessions.worker_info import Role
from baton_router.core.fleet.role_pressure import (
    FleetPressure,
    Limits,
    Pressure,
    Waiting,
    Worker,
    mean,
    measure,
    role_of,
)
from baton_router.core.fleet.scaling import RoleScaling
from baton_router.core.router_events import SetRole

MAX_SHIFTS: Final = 64
"""Maximum number of shifts in the history."""
_OTHER: Final = {Role.PREFILL: Role.DECODE, Role.DECODE: Role.PREFILL}


@dataclass(frozen=True, slots=True, kw_only=True)
class BalanceConfig:
    limits: Limits = field(default_factory=Limits)
    interval_s: float = 1.0
    """Time between two samples of the workers' load."""
    window: int = 10
    """Number of samples for a decision, from 2."""
    spare: float = 0.8
    """Maximum use of the remaining workers after one has changed its role."""
    dwell_s: float = 30.0
    """Shortest time between two shifts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleShift:
    at_s: float
    worker_id: str
    before: Role
    after: Role
    reason: str


class RoleBalance:
    """The role balance of one router; it does nothing without a configuration."""

    def __init__(self, config: BalanceConfig | None = None) -> None:
        self.is_balancer = True
        """True if this router may shift: of several that share workers, one may."""
        self.shifts: deque[RoleShift] = deque(maxlen=MAX_SHIFTS)
        """The last shifts, the oldest first."""
        self.num_shifts: Counter[tuple[Role, Role]] = Counter()
        """Number of all shifts by the roles before and after."""
        self._config = config
        self._due_s = 0.0
        self._rests_until_s = 0.0
        self._samples: deque[FleetPressure] = deque(maxlen=config.window if config else 1)

    def next_deadline(self) -> float | None:
        """Time at which `evaluate` is due."""
        return self._due_s if self._config is not None else None

    def is_due(self, now: float) -> bool:
        """Return True if `evaluate` is due."""
        return self._config is not None and now >= self._due_s

    def evaluate(
        self,
        now: float,
        workers: Sequence[Worker],
        waiting: Waiting,
        recommended: Sequence[RoleScaling] = (),
    ) -> list[SetRole]:
        """Sample the pressures; returns at most one change of a role."""
        config = self._config
        assert config is not None, "it was due"
        self._due_s = now + config.interval_s
        taking = [worker for worker in workers if worker[1].is_taking]
        self._samples.append(measure(taking, waiting, config.limits))
        if not self.is_balancer or len(self._samples) < config.window or now < self._rests_until_s:
            return []
        prefill = _Trend.of([sample.prefill for sample in self._samples])
        decode = _Trend.of([sample.decode for sample in self._samples])
        shift = None
        if prefill.is_short and decode.need < 1.0:
            shift = _shift(taking, Role.PREFILL, decode.use, config.spare)
        elif decode.is_short and prefill.need < 1.0:
            shift = _shift(taking, Role.DECODE, prefill.use, config.spare)
        reason = f"prefill at {prefill.need:.0%} of its limit, decode at {decode.need:.0%}"
        if shift is None and (short := _recommended_short(recommended)) is not None:
            use = decode.use if short.role is Role.PREFILL else prefill.use
            shift = _shift(taking, short.role, use, config.spare)
            reason = f"{short.role} should have {short.num_desired} workers: {short.reason}"
        if shift is None:
            return []
        worker, role = shift
        return [self._record(now, worker, role, reason)]

    def _record(self, now: float, worker: Worker, role: Role, reason: str) -> SetRole:
        """Record a shift and clear the samples, which do not apply to the next one."""
        assert self._config is not None, "it has decided by its configuration"
        worker_id, before = worker[0].worker_id, role_of(worker)
        self._samples.clear()
        self._rests_until_s = now + self._config.dwell_s
        self.shifts.append(RoleShift(at_s=now, worker_id=worker_id, before=before, after=role, reason=reason))
        self.num_shifts[before, role] += 1
        return SetRole(worker_id=worker_id, role=role, reason=reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trend:
    """Averages of one kind of work over the window."""

    need: float
    use: float
    is_short: bool
    """True if there is too much of it and it does not fall: a queue that shrinks needs no help."""

    @staticmethod
    def of(pressures: Sequence[Pressure]) -> _Trend:
        needs = [pressure.need for pressure in pressures]
        middle = len(needs) // 2
        is_falling = mean(needs[-middle:]) < mean(needs[:middle])
        need = mean(needs)
        use = mean([pressure.use for pressure in pressures])
        return _Trend(need=need, use=use, is_short=need >= 1.0 and not is_falling)


def _recommended_short(recommended: Sequence[RoleScaling]) -> RoleScaling | None:
    """Return the role that should have more workers, where the other should have fewer."""
    lacking = {one.role: one.num_desired - one.num_workers for one in recommended}
    for one in recommended:
        if one.role in _OTHER and lacking[one.role] > 0 > lacking[_OTHER[one.role]]:
            return one
    return None


def _shift(workers: Sequence[Worker], short: Role, use: float, spare: float) -> tuple[Worker, Role] | None:
    """Choose a worker for the short kind of work, and its new role; `use` is that of the other kind.

    The role is mixed where the other workers could not do the other work alone, as for the last one.
    """
    num_givers = sum(_does(worker, _OTHER[short]) for worker in workers)
    use_without_one = use * num_givers / (num_givers - 1) if num_givers > 1 else math.inf
    can_part = use_without_one <= spare
    roles = (_OTHER[short], Role.MIXED) if can_part else (_OTHER[short],)
    candidates = [worker for worker in workers if role_of(worker) in roles and not worker[1].is_role_fixed]
    if not candidates or use > spare:
        return None
    return min(candidates, key=_order), short if can_part else Role.MIXED


def _does(worker: Worker, work: Role) -> bool:
    return role_of(worker) in (work, Role.MIXED)


def _order(worker: Worker) -> tuple[bool, int, int, str]:
    """Sort key: first the workers of the other role alone, then those with the least load."""
    info, load = worker
    num_sequences = load.num_running + load.num_waiting
    return (role_of(worker) is Role.MIXED, load.num_queued_tokens, num_sequences, info.worker_id)
