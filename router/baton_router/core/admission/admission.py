"""Admission control: which requests a router accepts, queues or refuses.

Owned by the router's core. A request is examined on arrival, waits in the queue while no worker has room
for it, and is accounted for when it is over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from baton_core.fair_queue import FairQueue
from baton_core.requests.request_context import RequestContext, Slo
from baton_core.requests.spending import Spending
from baton_core.sessions.router_messages import RequestSpec
from baton_router.core.admission.admission_gate import AdmissionGate, DispatchLimit
from baton_router.core.admission.admission_outcome import AdmissionOutcome, Refusal, retry_after
from baton_router.core.admission.broken_calls import BrokenCalls, Spent
from baton_router.core.admission.drain_rate import DrainRate
from baton_router.core.admission.output_forecast import OutputForecast
from baton_router.core.admission.rate_limits import Rate, RateLimit, RateLimits
from baton_router.core.fleet.fleet import Fleet

_RATES = {Rate.REQUESTS: AdmissionOutcome.REQUEST_RATE, Rate.TOKENS: AdmissionOutcome.TOKEN_RATE}


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionConfig:
    slo: Slo = field(default_factory=Slo)
    """Targets of requests without their own."""
    rate_limit: RateLimit = field(default_factory=RateLimit)
    max_queued_requests: int = 1024
    """Maximum number of requests that wait for a worker."""
    aging_s: float = 10.0
    """Wait that counts as one step of priority."""
    dispatch_limit: DispatchLimit = field(default_factory=DispatchLimit)


@dataclass(slots=True, kw_only=True)
class _Request:
    """A request that was accepted and is not over."""

    spec: RequestSpec
    context: RequestContext
    accepted_s: float
    gate: AdmissionGate
    num_tokens: int
    """Prompt and expected output."""
    call: str
    """As in `Submit`."""
    spent_before: Spent
    """The spending of the call that it resumes."""
    was_placed: bool = False


class Admission:
    """Knows requests by the client's name."""

    def __init__(self, config: AdmissionConfig, fleet: Fleet) -> None:
        self.queue = FairQueue(config.aging_s)
        self.num_by_outcome: Counter[AdmissionOutcome] = Counter()
        """Number of requests by outcome."""
        self._config = config
        self._fleet = fleet
        self._limits = RateLimits(config.rate_limit)
        self._broken_calls = BrokenCalls()
        self._forecast = OutputForecast()
        self._drain = DrainRate()
        self._requests: dict[str, _Request] = {}

    @property
    def num_waiting(self) -> int:
        """Requests that wait for a worker."""
        return len(self.queue)

    def examine(
        self, now: float, specs: Sequence[RequestSpec], tenant: str, call: str = ""
    ) -> Refusal | None:
        """Refuse requests that exceed the tenant's rate limits together; None if they are accepted.

        `call` is as in `Submit`; a call that is resumed is examined for what it has not spent yet.
        """
        before = self._broken_calls.spent(tenant, call)
        num_requests = len(specs) - before.num_requests
        num_tokens = sum(self._num_tokens(tenant, spec) for spec in specs) - before.num_tokens
        shortage = self._limits.shortage(now, tenant, num_tokens, num_requests) if specs else None
        if shortage is None:
            return None
        name = f"{shortage.rate} per minute of this key"
        text = f"{name} are at their limit of {shortage.limit:g}; there is room in {shortage.wait_s:.3g} s"
        return self._refuse(_RATES[shortage.rate], text, shortage.wait_s)

    def examine_wait(self, now: float, specs: Sequence[RequestSpec], tenant: str) -> Refusal | None:
        """Refuse a call of several requests that wait if some would have to leave the full queue again."""
        if len(specs) < 2:
            return None
        queue, limit = self.queue, self._config.max_queued_requests
        if queue.length_with(tenant, len(specs), priority=specs[0].priority, since_s=now) <= limit:
            return None
        text = f"{len(queue)} requests wait for a worker; {_with_call(len(specs), limit)}, the maximum"
        return self._refuse(AdmissionOutcome.QUEUE_FULL, text, self._drain.wait_s(queue.num_tokens))

    def refuse_full(self, num_open: int, num_requests: int, limit: int) -> Refusal:
        """Refuse the requests of a call because the router has no room for all of them."""
        text = f"the router has {num_open} requests, its maximum"
        if num_open < limit:
            text = f"the router has {num_open} requests; {_with_call(num_requests, limit)}, its maximum"
        return self._refuse(AdmissionOutcome.ROUTER_FULL, text, None)

    def take(self, now: float, spec: RequestSpec, context: RequestContext, call: str = "") -> AdmissionGate:
        """Account for a request from here on; returns its admission gate. `call` is as in `Submit`."""
        gate, tenant = self.gate(now, context), context.tenant
        before = self._broken_calls.resume(tenant, call)
        num_tokens = max(before.num_tokens, self._num_tokens(tenant, spec))
        num_requests = 1 - before.num_requests
        self._limits.spend(now, tenant, num_requests=num_requests, num_tokens=num_tokens - before.num_tokens)
        self._requests[spec.request_id] = _Request(
            spec=spec,
            context=context,
            accepted_s=now,
            gate=gate,
            num_tokens=num_tokens,
            call=call,
            spent_before=before,
        )
        return gate

    def spend_elsewhere(self, now: float, spending: Sequence[Spending]) -> None:
        """Note what tenants have spent of the same rate limits at other processes of this router."""
        for spent in spending:
            self._limits.spend_elsewhere(now, spent)

    def take_unshared(self) -> tuple[Spending, ...]:
        """Return what tenants have spent here since the last call."""
        return self._limits.take_unshared()

    def gate(self, now: float, context: RequestContext) -> AdmissionGate:
        """Return the conditions under which a request is dispatched."""
        own, default = context.slo, self._config.slo
        slo = Slo(
            ttft_s=default.ttft_s if own.ttft_s is None else own.ttft_s,
            tpot_s=default.tpot_s if own.tpot_s is None else own.tpot_s,
        )
        return AdmissionGate(
            replace(context, slo=slo),
            now if context.arrived_s is None else context.arrived_s,
            dispatch_limit=self._config.dispatch_limit,
            fleet=self._fleet,
            counts=self.num_by_outcome,
        )

    def wait(self, now: float, request_id: str) -> None:
        """Queue a request without workers, unless it waits already."""
        if request_id in self.queue:
            return
        request = self._requests[request_id]
        self.queue.join(
            request_id,
            tenant=request.context.tenant,
            num_tokens=0 if request.was_placed else request.num_tokens,
            priority=request.spec.priority,
            since_s=request.accepted_s,
        )
        self._drain.note(now, is_busy=True)

    def place(self, now: float, request_id: str) -> None:
        """Take a placed request out of the queue."""
        request = self._requests[request_id]
        if request_id in self.queue:
            self._drain.note(now, self.queue.take(request_id), is_busy=bool(self.queue))
        if not request.was_placed:
            request.was_placed = True
            self.num_by_outcome[AdmissionOutcome.ADMITTED] += 1

    def end(self, now: float, request_id: str, num_output_tokens: int, *, is_finished: bool) -> None:
        """End a request: correct its rate limits and its forecast by the actual number of tokens."""
        request = self._requests.pop(request_id)
        if request_id in self.queue:
            self.queue.drop(request_id)
            self._drain.note(now, is_busy=bool(self.queue))
        tenant, spec = request.context.tenant, request.spec
        num_prompt_tokens = len(spec.prompt_token_ids) if request.was_placed else 0
        before = request.spent_before
        num_tokens = max(before.num_tokens, num_prompt_tokens + num_output_tokens)
        self._limits.spend(now, tenant, num_tokens=num_tokens - request.num_tokens)
        if not is_finished:
            self._broken_calls.add(tenant, request.call, before, num_tokens)
        else:
            self._forecast.learn(tenant, num_output_tokens / spec.params.n)

    def refuse_waiting(self, num_waiting: int) -> Refusal | None:
        """Refuse one more request that would wait, where so many wait already; None while there is room."""
        if num_waiting < self._config.max_queued_requests:
            return None
        text = f"{num_waiting} requests wait for a worker, the maximum"
        return self._refuse(AdmissionOutcome.QUEUE_FULL, text, self._drain.wait_s(self.queue.num_tokens))

    def check_wait(self, now: float, request_id: str) -> Refusal | None:
        """Refuse a waiting request that will probably be dispatched too late."""
        wait_s = self._drain.wait_s(self.queue.num_tokens_ahead(request_id))
        return self._requests[request_id].gate.check_wait(now, wait_s or 0.0)

    def overflow(self) -> tuple[str, Refusal] | None:
        """Return a request that must leave a full queue, and its refusal; None while there is room."""
        if len(self.queue) <= self._config.max_queued_requests:
            return None
        request_id = self.queue.last_of_longest()
        assert request_id is not None, "the queue is not empty"
        text = f"{len(self.queue) - 1} requests wait for a worker, the maximum"
        wait_s = self._drain.wait_s(self.queue.num_tokens)
        return request_id, self._refuse(AdmissionOutcome.QUEUE_FULL, text, wait_s)

    def check_invariants(self, waiting: set[str]) -> None:
        """Raise AssertionError unless the queue has exactly the waiting requests, in order."""
        self.queue.check_invariants()
        assert {request_id for request_id in self._requests if request_id in self.queue} == waiting
        assert len(self.queue) == len(waiting) <= self._config.max_queued_requests

    def _num_tokens(self, tenant: str, spec: RequestSpec) -> int:
        """Return prompt tokens and expected output tokens of all sequences."""
        expected = self._forecast.num_tokens(tenant)
        limit = expected if spec.params.max_tokens is None else spec.params.max_tokens
        return len(spec.prompt_token_ids) + spec.params.n * min(expected, limit)

    def _refuse(self, outcome: AdmissionOutcome, message: str, wait_s: float | None) -> Refusal:
        self.num_by_outcome[outcome] += 1
        return Refusal(outcome=outcome, message=message, retry_after_s=retry_after(wait_s))


def _with_call(num_requests: int, limit: int) -> str:
    return f"with the {num_requests} of this call: over {limit}"
