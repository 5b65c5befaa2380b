"""The tokens of one request as its client sees them: each once, in order, none after a sequence's end."""

from __future__ import annotations

from dataclasses import replace

from baton_core.router_events import EmitTokens, RouterEffect
from baton_core.router_messages import RequestSpec, SequenceOutput


class TokenStream:
    """Counts and times what is emitted for the n sequences of a request."""

    def __init__(self, now: float, spec: RequestSpec) -> None:
        n = spec.params.n
        self.first_tokens: dict[int, int] = {}
        """First token of each sequence that goes on."""
        self.num_wasted_tokens = 0
        """Tokens that arrived after a stop string had ended their sequence."""
        self._request_id = spec.request_id
        self._alive = set(range(n))
        self._counts = [0] * n
        self._first_s = [now] * n
        self._last_s = [now] * n

    @property
    def is_over(self) -> bool:
        return not self._alive

    @property
    def num_tokens(self) -> int:
        return sum(self._counts)

    @property
    def per_token_s(self) -> float:
        """Mean time between tokens after the first, of the longest sequence."""
        longest = max(range(len(self._counts)), key=lambda index: self._counts[index])
        num_gaps = self._counts[longest] - 1
        return (self._last_s[longest] - self._first_s[longest]) / num_gaps if num_gaps > 0 else 0.0

    def take(self, now: float, output: SequenceOutput) -> list[RouterEffect]:
        """Emit new tokens under the client's name of the request, unless their sequence is over."""
        index = output.index
        if index not in self._alive:
            self.num_wasted_tokens += len(output.token_ids)
            return []
        if not self._counts[index]:
            self._first_s[index] = now
            self.first_tokens[index] = output.token_ids[0]
        self._counts[index] += len(output.token_ids)
        self._last_s[index] = now
        if output.finish_reason is not None:
            self._end(index)
        return [EmitTokens(output=replace(output, request_id=self._request_id))]

    def stop(self, index: int) -> bool:
        """End a sequence whose text matched a stop string; False if it is over already."""
        if index not in self._alive:
            return False
        self._end(index)
        return True

    def _end(self, index: int) -> None:
        self._alive.discard(index)
        self.first_tokens.pop(index, None)
