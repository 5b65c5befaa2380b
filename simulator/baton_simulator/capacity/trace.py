"""Requests of a trace, and how much of it, how small and how fast, is looked at."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path

from baton_core.errors import InvalidConfigError, require
from baton_simulator.capacity.trace_formats import ID_TOKENS, TraceRequest, read_requests


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """The part of a trace that is used, and how much smaller it is made.

    Raises:
        InvalidConfigError: a value is outside its range.
    """

    num_requests: int | None = None
    """The first ones; None is all."""
    every: int = 1
    """Only one of so many conversations, by the order in which they begin."""
    divisor: int = 1
    """Divisor of prompt lengths; an id stands for 512 / divisor tokens."""
    output_divisor: int = 1
    """Divisor of output lengths."""
    speedup: float = 1.0
    """Factor by which arrivals are faster."""
    has_sessions: bool = True
    """True if requests name their conversation."""

    def __post_init__(self) -> None:
        is_divisor = self.divisor >= 1 and ID_TOKENS % self.divisor == 0
        require("divisor", self.divisor, is_divisor, f"a divisor of {ID_TOKENS}")
        for name in ("every", "output_divisor", "speedup"):
            require(name, getattr(self, name), getattr(self, name) > 0, "over 0")

    @property
    def id_tokens(self) -> int:
        """Tokens that an id stands for here."""
        return ID_TOKENS // self.divisor

    def num_prompt_tokens(self, request: TraceRequest) -> int:
        """Return the tokens of all ids of a prompt; the last id may stand for fewer."""
        tail = request.input_length - ID_TOKENS * (len(request.hash_ids) - 1)
        return self.id_tokens * (len(request.hash_ids) - 1) + max(1, round(tail / self.divisor))

    def num_output_tokens(self, request: TraceRequest) -> int:
        return max(1, round(request.output_length / self.output_divisor))

    def session_id(self, request: TraceRequest) -> str:
        return f"conversation-{conversation(request)}" if self.has_sessions else ""

    def __str__(self) -> str:
        which = "all requests" if self.num_requests is None else f"the first {self.num_requests} requests"
        return (
            f"{which} of one in {self.every} conversations; prompts divided by {self.divisor} "
            f"({self.id_tokens} tokens for each hash id), answers by {self.output_divisor}; arrivals "
            f"{self.speedup:g} times as fast, those of one timestamp spread evenly until the next; "
            f"{'session ids are' if self.has_sessions else 'no session id is'} sent"
        )


def read_trace(path: Path, num_requests: int | None = None, every: int = 1) -> list[TraceRequest]:
    """Read the first requests of one in `every` conversations, all without a number.

    Raises:
        InvalidConfigError: there is no such file, or a line is no request of its format.
    """
    requests: list[TraceRequest] = []
    numbers: dict[int, int] = {}
    try:
        with path.open("rb") as lines:
            for request in read_requests(lines, str(path)):
                if len(requests) == num_requests:
                    break
                if numbers.setdefault(conversation(request), len(numbers)) % every == 0:
                    requests.append(request)
    except OSError as error:
        raise InvalidConfigError(f"trace is {str(path)!r}; allowed: a readable file ({error})") from None
    return requests


def conversation(request: TraceRequest) -> int:
    """Return the id that requests of one conversation share: the second, as the first is in all prompts."""
    return request.hash_ids[min(1, len(request.hash_ids) - 1)]


def arrival_times(requests: Sequence[TraceRequest], speedup: float) -> Iterator[float]:
    """When requests arrive, in seconds.

    A trace's clock may tick every few seconds: requests of one timestamp are spread evenly until the next.
    """
    first = requests[0].timestamp if requests else 0
    ticks = [(at - first, len(list(same))) for at, same in groupby(request.timestamp for request in requests)]
    lengths_ms = [after - before for (before, _), (after, _) in pairwise(ticks)]
    lengths_ms.append(lengths_ms[-1] if lengths_ms else 0)
    for (at_ms, count), length_ms in zip(ticks, lengths_ms, strict=True):
        for number in range(count):
            yield (at_ms + length_ms * number / count) / 1e3 / speedup
