"""The tokens of one request as its client sees them: each once, in order, none after a sequence's end."""

from __future__ import annotations

from baton_core.requests.finish import FinishReason
from baton_core.sessions.router_messages import (
    FirstToken,
    OutputSoFar,
    Pooled,
    PromptLogprobs,
    RequestSpec,
    SequenceOutput,
)
from baton_core.worker.step_plan import PooledValues
from baton_router.core.router_events import EmitPromptLogprobs, EmitTokens, RouterEffect


class TokenStream:
    """Keeps the tokens emitted for the n sequences of a request, with their times."""

    def __init__(self, now: float, spec: RequestSpec) -> None:
        n = spec.params.n
        self.first_tokens: dict[int, int] = {}
        """First token since `begin_attempt` of each sequence that is not over."""
        self._first_outputs: tuple[SequenceOutput, ...] = ()
        """First outputs that have arrived: large ones come in several messages."""
        self._is_pooling = spec.pooling is not None
        self._pooled_parts: list[bytes] = []
        """Parts of what is pooled that have arrived."""
        self.num_wasted_tokens = 0
        """Tokens that arrived after a stop string had ended their sequence."""
        self._num_cached_tokens: int | None = None
        """Prompt tokens that were not computed for the first tokens."""
        self._request_id = spec.request_id
        self._weights = ""
        self._num_prompt_tokens = len(spec.prompt_token_ids)
        self._has_prompt_logprobs = spec.params.prompt_logprobs is not None
        self._max_tokens = spec.params.max_tokens
        self._num_emitted_prompt_tokens = 1
        """Prompt tokens whose log-probabilities were emitted; the first has none."""
        self._tokens: list[list[int]] = [[] for _ in range(n)]
        for one in spec.resumed:
            self._tokens[one.index] += one.token_ids
        self._num_given = [len(token_ids) for token_ids in self._tokens]
        """Tokens of each sequence that its client had before this call."""
        self._alive = {one.index for one in spec.resumed} or set(range(n))
        self._begun_s = now
        self._first_s: dict[int, float] = {}
        """Time of the first token of this call, by sequence."""
        self._last_s: dict[int, float] = {}

    @property
    def is_over(self) -> bool:
        return not self._alive

    @property
    def num_tokens(self) -> int:
        return sum(map(len, self._tokens))

    @property
    def has_emitted(self) -> bool:
        """True if the client has something that was computed with the weights of this request."""
        return self._num_emitted_prompt_tokens > 1 or self.num_tokens > 0

    @property
    def resumed(self) -> tuple[OutputSoFar, ...]:
        """The outputs that another worker resumes from; empty before the first tokens."""
        return tuple(
            OutputSoFar(index=index, token_ids=tuple(self._tokens[index]))
            for index in sorted(self._alive)
            if self._tokens[index]
        )

    @property
    def first_s(self) -> float:
        """Time of the first token of this call; that of its begin without one."""
        return min(self._first_s.values(), default=self._begun_s)

    @property
    def per_token_s(self) -> float:
        """Mean time between tokens of this call after its first, of the sequence with most of them."""
        counts = {index: len(self._tokens[index]) - self._num_given[index] for index in self._first_s}
        longest = max(counts, key=counts.__getitem__, default=0)
        num_gaps = counts.get(longest, 0) - 1
        return (self._last_s[longest] - self._first_s[longest]) / num_gaps if num_gaps > 0 else 0.0

    @property
    def lacks_prompt_logprobs(self) -> bool:
        """True while requested log-probabilities of the prompt are missing."""
        return self._has_prompt_logprobs and self._num_emitted_prompt_tokens < self._num_prompt_tokens

    def take_prompt(self, logprobs: PromptLogprobs) -> list[RouterEffect]:
        """Emit the log-probabilities of prompt tokens that were not emitted before.

        Raises:
            ValueError: those of earlier tokens are missing, or there are more than prompt tokens.
        """
        start, end = self._num_emitted_prompt_tokens, logprobs.start + len(logprobs.entries)
        if logprobs.start > start or end > self._num_prompt_tokens:
            raise ValueError(
                f"prompt log-probabilities of tokens {logprobs.start} to {end - 1}; "
                f"allowed: from {start} at most to {self._num_prompt_tokens - 1}"
            )
        if not self._has_prompt_logprobs or end <= start:
            return []
        self._num_emitted_prompt_tokens = end
        entries = logprobs.entries
        if start > logprobs.start:
            entries = entries[start - logprobs.start :]
        fresh = PromptLogprobs(request_id=self._request_id, start=start, entries=entries)
        return [EmitPromptLogprobs(prompt_logprobs=fresh)]

    def begin_attempt(self, weights: str) -> None:
        """Begin an attempt: the next tokens come from another placement, on these weights."""
        self._weights = weights
        self.first_tokens.clear()
        self._first_outputs = ()
        self._pooled_parts = []

    def collect_first(self, message: FirstToken) -> tuple[SequenceOutput, ...]:
        """Return the first outputs since `begin_attempt` once all open sequences have one; else none.

        Raises:
            ValueError: an output is of another sequence, or prompt log-probabilities are missing.
        """
        outputs = self._first_outputs + message.outputs
        indices = {output.index for output in outputs}
        if not message.outputs or len(indices) < len(outputs) or indices - self._alive:
            raise ValueError(f"first tokens of sequences {sorted(indices)}, not {sorted(self._alive)}")
        if indices == self._alive and self.lacks_prompt_logprobs:
            raise ValueError("a first token before all prompt log-probabilities")
        self._first_outputs = outputs
        if indices != self._alive:
            return ()
        if self._num_cached_tokens is None:
            self._num_cached_tokens = message.num_cached_tokens
        return outputs

    def take(self, now: float, output: SequenceOutput) -> list[RouterEffect]:
        """Emit new tokens, unless their sequence is over."""
        index = output.index
        if index not in self._alive:
            self.num_wasted_tokens += len(output.token_ids)
            return []
        num_cached_tokens = None
        if not self._tokens[index]:
            num_cached_tokens = self._num_cached_tokens
        self._first_s.setdefault(index, now)
        self.first_tokens.setdefault(index, output.token_ids[0])
        self._tokens[index] += output.token_ids
        self._last_s[index] = now
        if output.finish_reason is not None:
            self._end(index)
        return [
            EmitTokens(
                request_id=self._request_id,
                output=output,
                num_cached_tokens=num_cached_tokens,
                weights=self._weights,
            )
        ]

    def collect_pooled(self, now: float, message: Pooled) -> PooledValues | None:
        """Take a part of what is pooled since `begin_attempt`; returns the whole once its last part is here.

        Raises:
            ValueError: the request generates, or there is more than the whole has.
        """
        self._pooled_parts.append(message.values)
        num_missing = message.num_bytes - sum(map(len, self._pooled_parts))
        if not self._is_pooling or num_missing < 0:
            raise ValueError(f"{-num_missing} bytes more than {message.shape} has")
        if num_missing:
            return None
        self._first_s, self._last_s = {0: now}, {0: now}
        self._alive.clear()
        return PooledValues(shape=message.shape, values=b"".join(self._pooled_parts))

    def outgrows_worker(self, output: SequenceOutput) -> bool:
        """Return True if a sequence ends at its worker's limit before it has all its tokens."""
        is_over = output.finish_reason is not FinishReason.LENGTH or output.index not in self._alive
        if is_over or self._max_tokens is None:
            return False
        return len(self._tokens[output.index]) + len(output.token_ids) < self._max_tokens

    def stop(self, index: int) -> bool:
        """End a sequence whose text matched a stop string; False if it is over already."""
        if index not in self._alive:
            return False
        self._end(index)
        return True

    def _end(self, index: int) -> None:
        self._alive.discard(index)
        self.first_tokens.pop(index, None)
