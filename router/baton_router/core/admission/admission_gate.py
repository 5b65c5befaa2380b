"""The conditions under which a request is dispatched: dispatch limits, and its latency targets."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import Final

from baton_core.load_reservation import LoadReservation
from baton_core.requests.request_context import RequestContext
from baton_router.core.admission.admission_outcome import AdmissionOutcome, Refusal, retry_after
from baton_router.core.admission.assignment import Assignment
from baton_router.core.fleet.fleet import Fleet
from baton_router.core.fleet.member import Member
from baton_router.core.placement.eligibility import Unplaceable
from baton_router.core.placement.placement import Placement
from baton_router.core.placement.placement_record import Cost

STALE_S: Final = 5.0
"""An idle worker that has measured nothing for longer is given one request that its rates speak against."""
TRIAL_RATIO: Final = 10.0
"""An idle worker is given a prompt that would be late if it has had none of the kind for so many times
as long as the first token would take: such prompts take a tenth of its time at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchLimit:
    """Limits of the load at a worker: requests above them wait at the router, where the queue is fair.

    Without limits, workers queue as much as they accept.
    """

    sequences_per_seat: float = math.inf
    """Maximum sequences at a worker, for each that it can run at once."""
    queue_s: float = math.inf
    """Maximum predicted time of the prompts that a worker has to compute before another one."""


class AdmissionGate:
    """Checks one request. Unknown rates of workers are no reason for a refusal.

    Args:
        arrived_s: start of its time to the first token.
        counts: counts the outcome of each refusal.
    """

    def __init__(
        self,
        context: RequestContext,
        arrived_s: float,
        *,
        dispatch_limit: DispatchLimit,
        fleet: Fleet,
        counts: Counter[AdmissionOutcome],
    ) -> None:
        self._slo = context.slo
        self._arrived_s = arrived_s
        self._dispatch_limit = dispatch_limit
        self._fleet = fleet
        self._counts = counts
        self._prefill_s = 0.0
        """Predicted prefill time at its last possible placement."""

    @property
    def give_up_s(self) -> float:
        """Latest dispatch time for a first token in time."""
        if self._slo.ttft_s is None:
            return math.inf
        return self._arrived_s + max(0.0, self._slo.ttft_s - self._prefill_s)

    def choose(self, now: float, assignment: Assignment) -> Placement | Unplaceable | Refusal:
        """Place the request, if it may be placed now."""
        slow = self._slow_workers(now)
        if isinstance(slow, Refusal):
            return slow
        assignment.too_slow, assignment.full = slow, self._full_workers()
        outcome = assignment.choose(now, self._max_ttft_s(now))
        if not isinstance(outcome, Placement):
            return outcome
        cost = self._cost(assignment)
        self._prefill_s = cost.prefill_s
        member, own = self._fleet.members[outcome.prefill], assignment.reserved_at(outcome.prefill)
        refusal = None if self._may_try(now, member, own, cost) else self.check_ttft(now, cost.ttft_s)
        if refusal is not None:
            assignment.withdraw(refusal.message)
            return refusal
        queue_s = member.queue_s(own) if self._is_measured else 0.0
        if queue_s > self._dispatch_limit.queue_s:
            reason = f"worker {outcome.prefill} has prompts for {queue_s:.3g} s"
            assignment.withdraw(reason)
            return Unplaceable(reason=reason, is_permanent=False, may_pass=True)
        member.give_prompt(now, own.num_tokens)
        return outcome

    def check_ttft(self, now: float, remaining_s: float) -> Refusal | None:
        """Refuse if the first token, in `remaining_s`, comes too late."""
        limit_s, ttft_s = self._slo.ttft_s, now - self._arrived_s + remaining_s
        if limit_s is None or ttft_s <= limit_s:
            return None
        text = f"slo_ttft_s is {limit_s:g}; the first token is predicted after {ttft_s:.3g} s"
        return self._refuse(AdmissionOutcome.SLO_TTFT, text, ttft_s - limit_s)

    def check_wait(self, now: float, wait_s: float) -> Refusal | None:
        """Refuse if a dispatch after `wait_s` comes too late."""
        return self.check_ttft(now, wait_s + self._prefill_s)

    def time_out(self, now: float, why: str) -> Refusal:
        """Refuse after the longest wait; `why` is the reason for the wait."""
        waited_s = now - self._arrived_s
        if now >= self.give_up_s:
            text = f"slo_ttft_s is {self._slo.ttft_s:g}; after {waited_s:.3g} s it waits for a worker: {why}"
            return self._refuse(AdmissionOutcome.SLO_TTFT, text)
        return self._refuse(
            AdmissionOutcome.QUEUE_TIMEOUT, f"waited {waited_s:.1f} s for a worker: {why}", None
        )

    @property
    def _is_measured(self) -> bool:
        """True if a worker has measured how fast it computes prompts."""
        return any(member.load.rates.prefill_tokens_per_s for member in self._fleet.members.values())

    def _max_ttft_s(self, now: float) -> float:
        """Return the time that is left until the first token; unlimited where no worker can predict it."""
        limit_s = self._slo.ttft_s
        if limit_s is None or not self._is_measured:
            return math.inf
        return self._arrived_s + limit_s - now

    def _cost(self, assignment: Assignment) -> Cost:
        """Return the predicted cost of the placement; zero where no worker has measured its speed."""
        chosen = assignment.decisions[-1].chosen
        assert chosen is not None, "the request was placed"
        return chosen.cost if self._is_measured else Cost()

    def _may_try(self, now: float, member: Member, own: LoadReservation, cost: Cost) -> bool:
        """Return True if a worker without other load is given a prompt that would be late, to measure it."""
        if not 0 < self._max_ttft_s(now) < cost.ttft_s or not member.is_idle(own):
            return False
        untried_s = now - member.last_given_s(own.num_tokens)
        return untried_s > max(STALE_S, TRIAL_RATIO * cost.ttft_s)

    def _full_workers(self) -> dict[str, str]:
        """Return workers that have reached the limit of sequences, with reasons."""
        per_seat = self._dispatch_limit.sequences_per_seat
        if per_seat == math.inf:
            return {}
        members = self._fleet.members.items()
        full = [name for name, one in members if one.num_sequences >= per_seat * one.info.max_num_seqs]
        return dict.fromkeys(full, "has all it can run, and some more")

    def _slow_workers(self, now: float) -> dict[str, str] | Refusal:
        """Return workers with steps too slow for the request, with reasons; a refusal if no others decode.

        Where all are too slow, idle ones that have measured no step lately are tried.
        """
        limit_s = self._slo.tpot_s
        if limit_s is None:
            return {}
        rates = self._fleet.rates()
        steps = {
            info.worker_id: rates[info.worker_id].decode_step_s
            for info, load in self._fleet.workers()
            if load.is_taking and (load.role or info.role).can_decode
        }
        slow = {
            worker_id: f"needs {step_s:.3g} s a token; slo_tpot_s is {limit_s:g}"
            for worker_id, step_s in steps.items()
            if step_s > limit_s
        }
        if not steps or len(slow) < len(steps):
            return slow
        members = ((name, self._fleet.members[name]) for name in slow)
        tried = {name for name, one in members if one.is_idle() and now - one.learned_at.decode_s > STALE_S}
        if tried:
            return {name: why for name, why in slow.items() if name not in tried}
        text = f"slo_tpot_s is {limit_s:g}; the fastest worker needs {min(steps.values()):.3g} s a token"
        return self._refuse(AdmissionOutcome.SLO_TPOT, text)

    def _refuse(self, outcome: AdmissionOutcome, message: str, wait_s: float | None = None) -> Refusal:
        self._counts[outcome] += 1
        return Refusal(outcome=outcome, message=message, retry_after_s=retry_after(wait_s))
