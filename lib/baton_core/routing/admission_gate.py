"""What one request needs before workers are given it: a seat, and the speed that it asks for."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

from baton_core.requests.request_context import RequestContext
from baton_core.routing.admission_outcome import AdmissionOutcome, Refusal, retry_after
from baton_core.routing.assignment import Assignment
from baton_core.routing.fleet import Fleet
from baton_core.routing.placement import Placement, Unplaceable
from baton_core.routing.placement_record import Cost


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldBack:
    """How much workers are given at a time: what waits at the router is still shared fairly.

    Without limits, workers queue as much as they take themselves.
    """

    sequences_per_seat: float = math.inf
    """Sequences given to a worker, for each that it can run at once."""
    queue_s: float = math.inf
    """Predicted time until a worker begins a prompt."""


class AdmissionGate:
    """Of one request. Where workers' rates are not known, nothing is refused because of them.

    Args:
        arrived_s: from when its time to the first token counts.
        counts: gets one more of each refusal's outcome.
    """

    def __init__(
        self,
        context: RequestContext,
        arrived_s: float,
        *,
        hold_back: HoldBack,
        fleet: Fleet,
        counts: Counter[AdmissionOutcome],
    ) -> None:
        self._slo = context.slo
        self._arrived_s = arrived_s
        self._hold_back = hold_back
        self._fleet = fleet
        self._counts = counts
        self._prefill_s = 0.0
        """Of its prompt, where it would have been placed last."""

    @property
    def give_up_s(self) -> float:
        """When its first token can no longer come in time, if it still waits for a worker then."""
        if self._slo.ttft_s is None:
            return math.inf
        return self._arrived_s + max(0.0, self._slo.ttft_s - self._prefill_s)

    def choose(self, now: float, assignment: Assignment) -> Placement | Unplaceable | Refusal:
        """Place the request, if it may be placed now."""
        slow = self._slow_workers()
        if isinstance(slow, Refusal):
            return slow
        crowded = self._fleet.crowded(self._hold_back.sequences_per_seat)
        assignment.avoided = dict.fromkeys(crowded, "has all it can run, and some more") | slow
        outcome = assignment.choose(now)
        if not isinstance(outcome, Placement):
            return outcome
        cost = self._cost(assignment)
        self._prefill_s = cost.prefill_s
        if (refusal := self.foresee(now, cost.ttft_s)) is not None:
            assignment.withdraw(refusal.message)
            return refusal
        if cost.queue_s > self._hold_back.queue_s:
            reason = f"worker {outcome.prefill} has prompts for {cost.queue_s:.3g} s"
            assignment.withdraw(reason)
            return Unplaceable(reason=reason, is_permanent=False)
        return outcome

    def foresee(self, now: float, remaining_s: float) -> Refusal | None:
        """Refuse if the first token, in `remaining_s`, comes too late."""
        limit_s, ttft_s = self._slo.ttft_s, now - self._arrived_s + remaining_s
        if limit_s is None or ttft_s <= limit_s:
            return None
        text = f"slo_ttft_s is {limit_s:g}; the first token is predicted after {ttft_s:.3g} s"
        return self._refuse(AdmissionOutcome.SLO_TTFT, text, ttft_s - limit_s)

    def foresee_wait(self, now: float, wait_s: float) -> Refusal | None:
        """Refuse if a place, in `wait_s`, comes too late."""
        return self.foresee(now, wait_s + self._prefill_s)

    def time_out(self, now: float, why: str) -> Refusal:
        """It has waited as long as it may; `why` is what it waited for."""
        waited_s = now - self._arrived_s
        if now >= self.give_up_s:
            text = f"slo_ttft_s is {self._slo.ttft_s:g}; after {waited_s:.3g} s it waits for a worker: {why}"
            return self._refuse(AdmissionOutcome.SLO_TTFT, text)
        return self._refuse(
            AdmissionOutcome.QUEUE_TIMEOUT, f"waited {waited_s:.1f} s for a worker: {why}", None
        )

    def _cost(self, assignment: Assignment) -> Cost:
        """What the placement is predicted to cost; nothing where no worker has measured its speed."""
        chosen = assignment.decisions[-1].chosen
        assert chosen is not None, "the request was placed"
        is_measured = any(load.rates.prefill_tokens_per_s for _, load in self._fleet.workers())
        return chosen.cost if is_measured else Cost()

    def _slow_workers(self) -> dict[str, str] | Refusal:
        """Those whose steps take longer than the request allows, and why; a refusal if no others decode."""
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
        text = f"slo_tpot_s is {limit_s:g}; the fastest worker needs {min(steps.values()):.3g} s a token"
        return self._refuse(AdmissionOutcome.SLO_TPOT, text)

    def _refuse(self, outcome: AdmissionOutcome, message: str, wait_s: float | None = None) -> Refusal:
        self._counts[outcome] += 1
        return Refusal(outcome=outcome, message=message, retry_after_s=retry_after(wait_s))
