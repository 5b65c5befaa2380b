"""Limits that the operator sets for clients' requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from baton_core.errors import require
from baton_core.requests.sampling_params import MAX_N
from baton_core.requests.structured_backends import AUTO, check_backend

DEFAULT_MAX_LOGPROBS: Final = 20
"""vLLM's."""
DEFAULT_MAX_N_SEQUENCES: Final = 64
"""Each sequence has a copy of its prompt's token ids at its worker."""
DEFAULT_MAX_ANSWER_BYTES: Final = 256 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningMarkers:
    """The texts between which the model thinks."""

    start: str
    end: str
    is_implied: bool = False
    """True if output begins with reasoning although nothing marks its start."""
    may_end: bool = False
    """True if outputs may end before the reasoning does, as with a call in a message of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLimits:
    """Settings of one router.

    Raises:
        InvalidConfigError: a value is out of range; the message names flag, value and what is allowed.
    """

    max_logprobs: int = DEFAULT_MAX_LOGPROBS
    """Highest `logprobs` and `prompt_logprobs`; -1 is as many as the vocabulary has."""
    max_n_sequences: int = DEFAULT_MAX_N_SEQUENCES
    """Highest `n`."""
    stream_interval: int = 1
    """Least `stream_interval`."""
    logits_processors: tuple[str, ...] = ()
    """Logits processors that requests may name, as `package.module:function`."""
    reasoning: ReasoningMarkers | None = None
    """None where no reasoning parser knows them."""
    trust_request_chat_template: bool = False
    """Lets a request bring its own chat template."""
    max_answer_bytes: int = DEFAULT_MAX_ANSWER_BYTES
    """Memory that the log-probabilities of one reply may take."""
    structured_outputs_backend: str = AUTO
    """Library that compiles grammars."""
    enable_prompt_embeds: bool = False
    """Lets requests bring embeddings in the place of tokens."""
    is_in_process: bool = False
    """True if the workers run in the caller's process, so that any logits processor can be called."""

    def __post_init__(self) -> None:
        check_backend(self.structured_outputs_backend)
        is_integer = isinstance(self.max_logprobs, int) and not isinstance(self.max_logprobs, bool)
        is_bound = is_integer and self.max_logprobs >= -1
        require("--max-logprobs", self.max_logprobs, is_bound, "an integer from -1")
        is_count = 1 <= self.max_n_sequences <= MAX_N
        require("--max-n-sequences", self.max_n_sequences, is_count, f"an integer from 1 to {MAX_N}")
        require("--max-answer-bytes", self.max_answer_bytes, self.max_answer_bytes >= 1, "1 or more")
        require("--stream-interval", self.stream_interval, self.stream_interval >= 1, "1 or more")

    def most_logprobs(self, vocab_size: int) -> int:
        """Highest number of log-probabilities a request may have for each token."""
        return vocab_size if self.max_logprobs == -1 else min(self.max_logprobs, vocab_size)


DEFAULT_LIMITS: Final = RequestLimits()
