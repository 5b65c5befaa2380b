"""The outcome of a request, as its client saw it."""

from __future__ import annotations

from dataclasses import dataclass, field

from baton_core.requests.finish import FinishReason
from baton_core.requests.logprobs import PositionLogprobs
from baton_core.sessions.router_messages import PromptLogprobs, RequestSpec
from baton_router.core.router_events import EmitTokens, FailRequest, FinishRequest


@dataclass(slots=True)
class Outcome:
    """Grows as the router emits; what could not be is refused by an assertion."""

    spec: RequestSpec
    router: str = ""
    submitted_s: float = 0.0
    """True time, as all here."""
    timeout_s: float = 0.0
    tokens: dict[int, list[int]] = field(default_factory=dict)
    finish_reasons: dict[int, FinishReason] = field(default_factory=dict)
    logprobs: dict[int, list[PositionLogprobs]] = field(default_factory=dict)
    prompt_logprobs: list[PositionLogprobs] = field(default_factory=list)
    """Log-probabilities of the prompt, from its second token on."""
    expected: dict[int, list[int]] | None = None
    """Tokens of the undisturbed run; None compares nothing while the request runs."""
    first_token_s: float | None = None
    """Time of its first token by its router's clock."""
    ended_s: float | None = None
    ends: list[FinishRequest | FailRequest] = field(default_factory=list)
    is_router_lost: bool = False
    """True if its router was gone before it ended."""

    @property
    def is_over(self) -> bool:
        return bool(self.ends) or self.is_router_lost

    def take_tokens(self, now: float, effect: EmitTokens) -> None:
        output = effect.output
        assert not self.ends, f"{self.spec.request_id}: a token after the end"
        assert output.index not in self.finish_reasons, f"{self.spec.request_id}: a token after a finish"
        tokens = self.tokens.setdefault(output.index, [])
        start = len(tokens)
        tokens.extend(output.token_ids)
        if self.expected is not None:
            due = self.expected[output.index][start : len(tokens)]
            assert due == tokens[start:], (
                f"{self.spec.request_id}[{output.index}]: tokens {tokens[start:]} from place {start}, "
                f"{due} in the undisturbed run"
            )
        self.logprobs.setdefault(output.index, []).extend(output.logprobs)
        if self.first_token_s is None:
            self.first_token_s = now
        if output.finish_reason is not None:
            self.finish_reasons[output.index] = output.finish_reason

    def take_prompt_logprobs(self, told: PromptLogprobs) -> None:
        assert not self.tokens, "the prompt's log-probabilities after a token"
        assert told.start == 1 + len(self.prompt_logprobs), "a gap, or a position twice"
        self.prompt_logprobs += told.entries

    def take_end(self, now: float, end: FinishRequest | FailRequest) -> None:
        assert not self.ends, f"{self.spec.request_id} ended twice"
        self.ends.append(end)
        self.ended_s = now
        if isinstance(end, FinishRequest) and self.expected is not None:
            assert self.tokens == self.expected, f"{self.spec.request_id} finished before its last token"
