"""Which requests a router takes, which of them wait, and which are told to come again.

Owned by the router's core. A request is examined when it comes, waits in the line while no worker has room
for it, and is accounted for when it is over.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from baton_core.requests.request_context import RequestContext, Slo
from baton_core.routing.admission_gate import AdmissionGate, HoldBack
from baton_core.routing.admission_outcome import AdmissionOutcome, Refusal, retry_after
from baton_core.routing.drain_rate import DrainRate
from baton_core.routing.fleet import Fleet
from baton_core.routing.output_forecast import OutputForecast
from baton_core.routing.rate_limits import Rate, RateLimit, RateLimits
from baton_core.routing.waiting_line import WaitingLine
from baton_core.sessions.router_messages import RequestSpec

_RATES = {Rate.REQUESTS: AdmissionOutcome.REQUEST_RATE, Rate.TOKENS: AdmissionOutcome.TOKEN_RATE}


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionConfig:
    slo: Slo = field(default_factory=Slo)
    """Of requests that do not say themselves."""
    rate_limit: RateLimit = field(default_factory=RateLimit)
    max_queued_requests: int = 1024
    """Requests that wait for a worker."""
    aging_s: float = 10.0
    """Waiting so long counts as one step of priority."""
    hold_back: HoldBack = field(default_factory=HoldBack)


@dataclass(slots=True, kw_only=True)
class _Request:
    """One that was taken and is not over."""

    spec: RequestSpec
    context: RequestContext
    accepted_s: float
    gate: AdmissionGate
    num_tokens: int
    """Prompt and expected output."""
    was_placed: bool = False


class Admission:
    """Knows requests by the client's name."""

    def __init__(self, config: AdmissionConfig, fleet: Fleet) -> None:
        self.line = WaitingLine(config.aging_s)
        self.num_by_outcome: Counter[AdmissionOutcome] = Counter()
        """Requests, by what was said of them."""
        self._config = config
        self._fleet = fleet
        self._limits = RateLimits(config.rate_limit)
        self._forecast = OutputForecast()
        self._drain = DrainRate()
        self._requests: dict[str, _Request] = {}

    @property
    def num_waiting(self) -> int:
        """Requests that wait for a worker."""
        return len(self.line)

    def examine(self, now: float, spec: RequestSpec, tenant: str) -> Refusal | None:
        """Whether a tenant may ask for one more request now."""
        shortage = self._limits.shortage(now, tenant, self._forecast.num_tokens(tenant, spec))
        if shortage is None:
            return None
        name = f"{shortage.rate} per minute of this key"
        text = f"{name} are at their limit of {shortage.limit:g}; there is room in {shortage.wait_s:.3g} s"
        return self._refuse(_RATES[shortage.rate], text, shortage.wait_s)

    def refuse_full(self, num_requests: int) -> Refusal:
        """The router has as many requests as it takes."""
        text = f"the router has {num_requests} requests, its maximum"
        return self._refuse(AdmissionOutcome.ROUTER_FULL, text, None)

    def take(self, now: float, spec: RequestSpec, context: RequestContext) -> AdmissionGate:
        """Account for a request from here on; returns what it has to pass to get workers."""
        own, default = context.slo, self._config.slo
        slo = Slo(
            ttft_s=default.ttft_s if own.ttft_s is None else own.ttft_s,
            tpot_s=default.tpot_s if own.tpot_s is None else own.tpot_s,
        )
        gate = AdmissionGate(
            replace(context, slo=slo),
            now if context.arrived_s is None else context.arrived_s,
            hold_back=self._config.hold_back,
            fleet=self._fleet,
            counts=self.num_by_outcome,
        )
        num_tokens = self._forecast.num_tokens(context.tenant, spec)
        self._limits.charge(now, context.tenant, num_requests=1, num_tokens=num_tokens)
        self._requests[spec.request_id] = _Request(
            spec=spec, context=context, accepted_s=now, gate=gate, num_tokens=num_tokens
        )
        return gate

    def wait(self, now: float, request_id: str) -> None:
        """It has no workers: it waits from here on, or goes on waiting."""
        if request_id in self.line:
            return
        request = self._requests[request_id]
        self.line.join(
            request_id,
            tenant=request.context.tenant,
            num_tokens=0 if request.was_placed else request.num_tokens,
            priority=request.spec.priority,
            since_s=request.accepted_s,
        )
        self._drain.note(now, is_busy=True)

    def place(self, now: float, request_id: str) -> None:
        """Workers were given it, now or before."""
        request = self._requests[request_id]
        if request_id in self.line:
            self._drain.note(now, self.line.take(request_id), is_busy=bool(self.line))
        if not request.was_placed:
            request.was_placed = True
            self.num_by_outcome[AdmissionOutcome.ADMITTED] += 1

    def end(self, now: float, request_id: str, num_output_tokens: int, *, is_finished: bool) -> None:
        """It is over, after so many tokens: what was charged too much or too little is put right."""
        request = self._requests.pop(request_id)
        if request_id in self.line:
            self.line.drop(request_id)
            self._drain.note(now, is_busy=bool(self.line))
        tenant, spec = request.context.tenant, request.spec
        num_prompt_tokens = len(spec.prompt_token_ids) if request.was_placed else 0
        self._limits.charge(
            now, tenant, num_tokens=num_prompt_tokens + num_output_tokens - request.num_tokens
        )
        if is_finished:
            self._forecast.learn(tenant, spec, num_output_tokens)

    def foresee_wait(self, now: float, request_id: str) -> Refusal | None:
        """Refuse one that waits if its turn will probably come too late."""
        wait_s = self._drain.wait_s(self.line.num_tokens_ahead(request_id))
        return self._requests[request_id].gate.foresee_wait(now, wait_s or 0.0)

    def overflow(self) -> tuple[str, Refusal] | None:
        """Who has to leave the line because too many wait, and why; None while there are not."""
        if len(self.line) <= self._config.max_queued_requests:
            return None
        request_id = self.line.last_of_longest()
        assert request_id is not None, "somebody waits"
        text = f"{len(self.line) - 1} requests wait for a worker, the maximum"
        wait_s = self._drain.wait_s(self.line.num_tokens)
        return request_id, self._refuse(AdmissionOutcome.QUEUE_FULL, text, wait_s)

    def check_invariants(self, waiting: set[str]) -> None:
        """Raise AssertionError unless those that wait, and only they, are in the line, which is in order."""
        self.line.check_invariants()
        assert {request_id for request_id in self._requests if request_id in self.line} == waiting
        assert len(self.line) == len(waiting) <= self._config.max_queued_requests

    def _refuse(self, outcome: AdmissionOutcome, message: str, wait_s: float | None) -> Refusal:
        self.num_by_outcome[outcome] += 1
        return Refusal(outcome=outcome, message=message, retry_after_s=retry_after(wait_s))
