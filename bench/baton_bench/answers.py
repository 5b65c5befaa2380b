"""Requests of a benchmark and their answers, as the client saw them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise


@dataclass(slots=True, kw_only=True)
class Answer:
    """Grows until the request has ended; times are seconds of one clock."""

    request: BenchRequest
    due_s: float
    """The time at which the schedule sends the request."""
    allowed_s: float
    """The time at which it may be sent: later if `--max-concurrency` delays it."""
    sent_s: float
    times_s: list[float] = field(default_factory=list)
    """The times of the pieces of the answer that brought tokens."""
    ended_s: float = 0.0
    texts: list[str] = field(default_factory=list)
    reported_prompt_tokens: int | None = None
    reported_tokens: int | None = None
    """Tokens by the server's usage; None if it reports none."""
    error: str = ""
    """Why it has no whole answer."""

    @property
    def num_prompt_tokens(self) -> int:
        reported = self.reported_prompt_tokens
        return self.request.num_prompt_tokens if reported is None else reported

    @property
    def num_tokens(self) -> int:
        """The server's count; without one each piece is taken for a token."""
        return len(self.times_s) if self.reported_tokens is None else self.reported_tokens

    @property
    def ttft_s(self) -> float:
        """Seconds from sending to the first token, or to the end of an answer without text."""
        return (self.times_s[0] if self.times_s else self.ended_s) - self.sent_s

    @property
    def e2el_s(self) -> float:
        """Seconds from sending to the last token."""
        return (self.times_s[-1] if self.times_s else self.ended_s) - self.sent_s

    @property
    def tpot_s(self) -> float | None:
        """Mean time of a token after the first; None where there is only that one."""
        return (self.e2el_s - self.ttft_s) / (self.num_tokens - 1) if self.num_tokens > 1 else None

    @property
    def itls_s(self) -> list[float]:
        """Between pieces; several tokens may come in one."""
        return [after - before for before, after in pairwise(self.times_s)]

    @property
    def lag_s(self) -> float:
        """Seconds by which it was sent later than allowed."""
        return self.sent_s - self.allowed_s

    @property
    def slot_wait_s(self) -> float:
        """Seconds by which the limit of requests at a time delayed it."""
        return self.allowed_s - self.due_s


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRun:
    """The result of a load."""

    answers: Sequence[Answer]
    """The answers, in the order of the requests."""
    start_s: float
    """The time at which the first request was due."""
    duration_s: float
    """Seconds from then to the end of the last answer."""
    cpu_share: float
    """The share of a core that the load generator took meanwhile."""
    is_whole: bool = True
    """False if it was cut off: only the answers that had ended are there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRequest:
    """A request of a benchmark."""

    prompt: str | tuple[int, ...]
    """Text or token ids."""
    num_prompt_tokens: int
    """Prompt tokens by the tokenizer at hand; 0 if there is none for this text."""
    num_tokens: int
    """Most to generate."""
    session_id: str = ""
    """The conversation that it belongs to, where the server is to know."""
