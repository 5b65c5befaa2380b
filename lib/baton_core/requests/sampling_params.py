"""How a request's tokens are chosen and when it ends.

Names, defaults and meanings are those of vLLM's documented `SamplingParams`. Values are checked when
the object is made, so an invalid one exists nowhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from hashlib import blake2b
from typing import Any, Final

from baton_core.requests.repetition import RepetitionDetectionParams
from baton_core.requests.sampling_checks import check_params
from baton_core.requests.structured_outputs import StructuredOutputsParams

GREEDY_BELOW: Final = 1e-5
"""A temperature below this means greedy, as it does in vLLM."""


class RequestOutputKind(IntEnum):
    """What an iterator of outputs shows each time; names and numbers are vLLM's."""

    CUMULATIVE = 0
    """Everything so far."""
    DELTA = 1
    """What is new."""
    FINAL_ONLY = 2
    """Everything, once, at the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Parameters of one request.

    Raises:
        InvalidRequestError: a value is out of range; the message names field, value and what is allowed.
    """

    n: int = 1
    presence_penalty: float = 0.0
    """-2 to 2; taken from the logit of each token that the output has."""
    frequency_penalty: float = 0.0
    """-2 to 2; taken from it for every time the output has it."""
    repetition_penalty: float = 1.0
    """Over 0, to 2; divides the positive logits of tokens of prompt and output, multiplies the negative."""
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """0 or -1 means all tokens."""
    min_p: float = 0.0
    seed: int | None = None
    """None, or -1, which becomes None, lets whoever accepts the request choose one."""
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    max_tokens: int | None = 16
    """None means as many as the model's context holds."""
    min_tokens: int = 0
    """Before so many tokens, neither end tokens are drawn nor stop strings looked for."""
    logprobs: int | None = None
    """Most likely tokens whose log-probabilities are returned for each output token; -1 is all tokens, 0 the
    drawn token alone, None nothing."""
    prompt_logprobs: int | None = None
    """The same for each prompt token but the first."""
    logprob_token_ids: tuple[int, ...] | None = None
    """These tokens' log-probabilities instead of the most likely ones'."""
    flat_logprobs: bool = False
    """Return log-probabilities as one `FlatLogprobs` instead of a list of dictionaries."""
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    logit_bias: Mapping[int, float] | None = None
    """Added to the logits of these tokens; each -100 to 100."""
    allowed_token_ids: tuple[int, ...] | None = None
    """Only these are drawn."""
    bad_words: tuple[str, ...] = ()
    """Words whose last token is not drawn where the output ends with those before it."""
    structured_outputs: StructuredOutputsParams | None = None
    repetition_detection: RepetitionDetectionParams | None = None
    thinking_token_budget: int | None = None
    """Tokens of thought after which the model is made to end its thinking."""
    logits_processors: tuple[str | Callable[..., Any], ...] = ()
    """Functions that change logits, as dotted names (`package.module:function`) that the operator allows;
    callables where everything runs in the caller's process."""
    extra_args: Mapping[str, Any] | None = None
    """For logits processors; what JSON can hold."""
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    skip_reading_prefix_cache: bool | None = None
    """Compute the whole prompt; None does so where `prompt_logprobs` needs it."""

    def __post_init__(self) -> None:
        check_params(self)

    @property
    def is_greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW

    @property
    def has_penalties(self) -> bool:
        return bool(self.presence_penalty or self.frequency_penalty or self.repetition_penalty != 1.0)

    @property
    def reads_prefix_cache(self) -> bool:
        """Whether cached blocks of the prompt may be used instead of computing them."""
        if self.skip_reading_prefix_cache is None:
            return self.prompt_logprobs is None
        return not self.skip_reading_prefix_cache


def derived_seed(seed: int, index: int) -> int:
    """Seed with which a request for one sequence gets the tokens of sequence `index` of one for several.

    Index 0 has `seed` itself; the others 0 to 2**63 - 1.
    """
    return _digest(seed, index) >> 1 if index else seed


def sequence_seed(seed: int, index: int) -> int:
    """Key of the noise of sequence `index` of a request: unsigned, 64 bits."""
    return _digest(derived_seed(seed, index), 0)


def _digest(seed: int, index: int) -> int:
    key = seed.to_bytes(8, "little", signed=True) + index.to_bytes(4, "little")
    return int.from_bytes(blake2b(key, digest_size=8).digest(), "little")
