"""What became of requests, as their client saw it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from baton_bench.bench_request import BenchRequest


@dataclass(slots=True, kw_only=True)
class Answer:
    """Grows until the request has ended; times are seconds of one clock."""

    request: BenchRequest
    due_s: float
    """When the schedule wanted it sent."""
    allowed_s: float
    """When it could be: later where `--max-concurrency` held it."""
    sent_s: float
    times_s: list[float] = field(default_factory=list)
    """Of each piece of the answer that brought tokens."""
    ended_s: float = 0.0
    texts: list[str] = field(default_factory=list)
    reported_prompt_tokens: int | None = None
    reported_tokens: int | None = None
    """What the server's usage says; None where it says nothing."""
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
        """From sending to the first token; to the end of an answer without text."""
        return (self.times_s[0] if self.times_s else self.ended_s) - self.sent_s

    @property
    def e2el_s(self) -> float:
        """From sending to the last token."""
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
        """How much later than it could it was sent."""
        return self.sent_s - self.allowed_s

    @property
    def slot_wait_s(self) -> float:
        """How long the limit of requests at a time held it."""
        return self.allowed_s - self.due_s


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRun:
    """What came of a load."""

    answers: Sequence[Answer]
    """In the order of the requests."""
    start_s: float
    """When the first one was due."""
    duration_s: float
    """From then to the end of the last one."""
    cpu_share: float
    """Of a core, that the load generator took meanwhile."""
