"""The result of one request, as its client saw it."""

from __future__ import annotations

from dataclasses import dataclass

from baton_core.requests.request_context import Slo
from baton_simulator.capacity.workload import Ask


@dataclass(slots=True, kw_only=True)
class RequestResult:
    """Grows until the request has ended; times are the client's."""

    ask: Ask
    first_token_s: float | None = None
    ended_s: float | None = None
    """None while it runs."""
    idle_s: float = 0.0
    """Seconds by which its newest token was there before the simulated step around it ended."""
    num_cached_tokens: int = 0
    """Cached tokens of the prompt at its prefill worker."""
    is_split: bool = False
    error: str = ""
    """Why it has no whole answer."""

    @property
    def is_whole(self) -> bool:
        return self.ended_s is not None and not self.error

    @property
    def ttft_s(self) -> float:
        """Time to the first token of a whole answer."""
        assert self.first_token_s is not None, "it has no token"
        return self.first_token_s - self.ask.at_s

    @property
    def e2e_s(self) -> float:
        assert self.ended_s is not None, "it has not ended"
        return self.ended_s - self.ask.at_s

    @property
    def tpot_s(self) -> float | None:
        """Mean time of a token after the first; None where there is only that one."""
        num_tokens = self.ask.num_tokens
        return (self.e2e_s - self.ttft_s) / (num_tokens - 1) if num_tokens > 1 else None

    def meets(self, slo: Slo) -> bool:
        """Return True for a whole answer within the targets."""
        if not self.is_whole:
            return False
        is_prompt = slo.ttft_s is None or self.ttft_s <= slo.ttft_s
        return is_prompt and (slo.tpot_s is None or (self.tpot_s or 0.0) <= slo.tpot_s)
