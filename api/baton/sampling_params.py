"""Parameters of generation as callers write them: names, order and defaults are those of vLLM's classes.

Their objects can be changed. A request works on a frozen value that is made of them, and checked, when the
request is: what a caller changes later changes nothing.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import fields
from enum import IntEnum
from typing import Any, Final, Self

import msgspec

from baton.output_constraints import RepetitionDetectionParams, StructuredOutputsParams
from baton.plain_numbers import plain_numbers
from baton.pydantic_fields import PydanticField
from baton_core.errors import InvalidRequestError
from baton_core.requests import sampling_params
from baton_core.requests.sampling_params import RequestOutputKind, check_vocabulary
from baton_core.requests.vocabulary import check_token_ids, encode_bad_words

__all__ = [
    "BeamSearchParams",
    "RepetitionDetectionParams",
    "RequestOutputKind",
    "SamplingParams",
    "SamplingType",
    "StructuredOutputsParams",
]

_FROZEN_FIELDS: Final = tuple(one.name for one in fields(sampling_params.SamplingParams))
_NUM_POSITIONAL: Final = 11
_AS_GIVEN: Final = frozenset({"structured_outputs", "repetition_detection", "logit_bias", "extra_args"})
"""Fields that keep the caller's object; the others read as they are understood."""
_UNSUPPORTED: Final[Mapping[str, tuple[tuple[object, ...], str]]] = {
    "routed_experts_prompt_start": ((0,), "0: routed experts are not returned"),
    "trace_decode_token_ids": ((None,), "None: tokens are sampled, not replayed"),
    "prompt_logprob_token_ids": ((None,), "None: prompt_logprobs gives the most likely tokens"),
    "prompt_logprob_start": ((None, 0), "None: prompt_logprobs begin with the prompt"),
    "watermarking": ((None, False), "None: outputs have no watermark"),
    "best_of": ((None, 1), "None: all n sequences are returned"),
}
"""Fields of vLLM's without a meaning here: the values that ask for nothing, and what is allowed."""
_BEAM_UNSUPPORTED: Final[Mapping[str, tuple[tuple[object, ...], str]]] = {
    "structured_outputs": ((None,), "None: beams follow no grammar; LLM.generate does"),
    "watermarking": _UNSUPPORTED["watermarking"],
}


class SamplingType(IntEnum):
    """How tokens are chosen; names and numbers are vLLM's."""

    GREEDY = 0
    RANDOM = 1
    RANDOM_SEED = 2


class SamplingParams(PydanticField, msgspec.Struct, dict=True):
    """Parameters of requests: how tokens are chosen, when a sequence ends, and what is returned.

    Raises:
        InvalidRequestError: a value is out of range; the message names field, value and what is allowed. A
            changed object is checked again by the request that is made of it.
    """

    n: int = 1
    """Sequences to generate for each prompt."""
    presence_penalty: float = 0.0
    """-2 to 2; taken from the logit of each token that the output has."""
    frequency_penalty: float = 0.0
    """-2 to 2; taken from it for every time the output has it."""
    repetition_penalty: float = 1.0
    """Over 0; divides the positive logits of tokens of prompt and output, multiplies the negative."""
    temperature: float = 1.0
    """0 takes the most likely token."""
    top_p: float = 1.0
    top_k: int = 0
    """0 or -1 means all tokens."""
    min_p: float = 0.0
    seed: int | None = None
    """None, or -1, which becomes None, lets the engine choose one."""
    stop: str | Sequence[str] | None = None
    """Texts that end a sequence; they read as a list."""
    stop_token_ids: Sequence[int] | None = None
    """Tokens that end a sequence; they read as a list."""
    ignore_eos: bool = False
    max_tokens: int | None = 16
    """None means as many as the model's context holds."""
    min_tokens: int = 0
    """Before so many tokens, neither end tokens are sampled nor stop strings looked for."""
    logprobs: int | None = None
    """Most likely tokens whose log-probabilities are returned for each output token; -1 is all tokens, 0 the
    sampled token alone, None returns nothing."""
    prompt_logprobs: int | None = None
    """The same for each prompt token but the first."""
    logprob_token_ids: Sequence[int] | None = None
    """These tokens' log-probabilities instead of the most likely ones'."""
    flat_logprobs: bool = False
    """Return log-probabilities as one `FlatLogprobs` instead of a list of dictionaries."""
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    skip_clone: bool = False
    """`clone` makes a shallow copy."""
    output_text_buffer_length: int = 0
    """Set here: characters held back while a stop string may still come."""
    structured_outputs: StructuredOutputsParams | None = None
    logit_bias: dict[int, float] | None = None
    """Added to the logits of these tokens."""
    allowed_token_ids: Sequence[int] | None = None
    """The only tokens that may be sampled."""
    extra_args: dict[str, Any] | None = None
    """For logits processors; what JSON can hold."""
    bad_words: Sequence[str] | None = None
    """Words whose last token is not sampled where the output ends with those before it."""
    skip_reading_prefix_cache: bool | None = None
    """Compute the whole prompt; None does so where `prompt_logprobs` needs it."""
    thinking_token_budget: int | None = None
    """Tokens of thought after which the model has to end its thinking; -1, which becomes None: no limit."""
    repetition_detection: RepetitionDetectionParams | None = None
    routed_experts_prompt_start: int = 0
    trace_decode_token_ids: None = None
    stream_interval: int | None = None
    """Tokens of a sequence that make an output of a stream, but for its first and its last; at least the
    engine's."""
    prompt_logprob_token_ids: None = None
    prompt_logprob_start: int | None = None
    watermarking: None = None
    best_of: int | None = None
    """A field that vLLM has given up, and that clients still name."""
    logits_processors: Sequence[Any] | None = None
    """Functions that change logits, as dotted names (`package.module:function`) that the operator allows;
    callables where everything runs in the caller's process."""
    _end_token_ids: set[int] = msgspec.field(default_factory=set)
    _eos_token_id: int | None = None
    _bad_words_token_ids: list[list[int]] | None = None

    def __repr__(self) -> str:
        named = (name for name in self.__struct_fields__ if not name.startswith("_"))
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in named)})"

    def __post_init__(self) -> None:
        checked = self.frozen()
        for name in _FROZEN_FIELDS:
            value = getattr(checked, name)
            if name not in _AS_GIVEN:
                setattr(self, name, list(value) if isinstance(value, tuple) else value)
        if checked.stop and not self.include_stop_str_in_output:
            self.output_text_buffer_length = max(map(len, checked.stop)) - 1

    def frozen(self) -> sampling_params.SamplingParams:
        """Return the value that a request works on; the object may have changed since it was made.

        Raises:
            InvalidRequestError: a value is out of range.
        """
        _check_unsupported(self, _UNSUPPORTED)
        given = {name: plain_numbers(getattr(self, name)) for name in _FROZEN_FIELDS}
        for name in ("structured_outputs", "repetition_detection"):
            if isinstance(given[name], StructuredOutputsParams | RepetitionDetectionParams):
                given[name] = given[name].frozen()
        return sampling_params.SamplingParams(**given)

    @classmethod
    def from_frozen(cls, params: sampling_params.SamplingParams) -> Self:
        """Return parameters with the values of frozen ones, which have neither grammar nor detection."""
        return cls(**{name: getattr(params, name) for name in _FROZEN_FIELDS})

    @classmethod
    def from_optional(cls, *args: Any, **given: Any) -> Self:
        """Return parameters; None means the default of all but `max_tokens`.

        Those up to `stop_token_ids` may be positional. Biases are cut to -100 to 100, as in vLLM's method.

        Raises:
            InvalidRequestError: a value is out of range.
            TypeError: a name is unknown.
        """
        if len(args) > _NUM_POSITIONAL:
            raise TypeError(f"from_optional() takes {_NUM_POSITIONAL} positional arguments, not {len(args)}")
        given = dict(**dict(zip(cls.__match_args__, args, strict=False)), **given)
        params = cls(
            **{name: value for name, value in given.items() if value is not None or name == "max_tokens"}
        )
        if (biases := params.frozen().logit_bias) is not None:
            params.logit_bias = {token_id: min(100.0, max(-100.0, bias)) for token_id, bias in biases.items()}
        return params

    @classmethod
    def for_sampler_warmup(cls) -> Self:
        """Return parameters that exercise every part of a sampler."""
        return cls(
            temperature=0.9,
            top_p=0.9,
            top_k=50,
            min_p=0.1,
            frequency_penalty=0.5,
            presence_penalty=0.5,
            repetition_penalty=1.2,
            min_tokens=2,
            logit_bias={0: -1.0, 1: 0.5},
            logprobs=5,
            prompt_logprobs=1,
        )

    def clone(self) -> Self:
        """Return a copy; it shares no list with this object unless `skip_clone` is set."""
        return copy.copy(self) if self.skip_clone else copy.deepcopy(self)

    @property
    def sampling_type(self) -> SamplingType:
        if self.temperature < sampling_params.GREEDY_BELOW:
            return SamplingType.GREEDY
        return SamplingType.RANDOM if self.seed is None else SamplingType.RANDOM_SEED

    @property
    def num_logprobs(self) -> int | None:
        """Log-probabilities of each output token, or None where none are returned."""
        if self.logprobs is None and self.logprob_token_ids:
            return len(self.logprob_token_ids)
        return self.logprobs

    @property
    def all_stop_token_ids(self) -> set[int]:
        """The tokens that `min_tokens` holds off: `stop_token_ids` and the end tokens that are known."""
        return {*(self.stop_token_ids or ()), *self._end_token_ids}

    @property
    def eos_token_id(self) -> int | None:
        """The model's end token, once `update_from_generation_config` has set it."""
        return self._eos_token_id

    @property
    def bad_words_token_ids(self) -> list[list[int]] | None:
        """The tokens of `bad_words`, once `update_from_tokenizer` has set them."""
        return self._bad_words_token_ids

    def update_from_generation_config(
        self, generation_config: Mapping[str, Any], eos_token_id: int | None = None
    ) -> None:
        """Take a model's end tokens; engines do so by themselves.

        Args:
            eos_token_id: the end token of the tokenizer; the others of the file become `stop_token_ids`.
        """
        listed = generation_config.get("eos_token_id")
        others = [] if listed is None else [listed] if isinstance(listed, int) else list(listed)
        others = [token_id for token_id in others if token_id != eos_token_id]
        self._end_token_ids.update(others, () if eos_token_id is None else (eos_token_id,))
        if not self.ignore_eos:
            self._eos_token_id = eos_token_id
            self.stop_token_ids = list(dict.fromkeys([*(self.stop_token_ids or ()), *others]))

    def update_from_tokenizer(self, tokenizer: Any) -> None:
        """Set `bad_words_token_ids` with one of Transformers' tokenizers; engines do so by themselves.

        Raises:
            InvalidRequestError: a word is blank.
        """
        if words := self.frozen().bad_words:
            encoded = encode_bad_words(words, tokenizer, len(tokenizer))
            self._bad_words_token_ids = [list(token_ids) for token_ids in encoded]

    def verify(
        self,
        model_config: Any,
        speculative_config: None = None,
        structured_outputs_config: Any = None,
        tokenizer: Any = None,
    ) -> None:
        """Check what depends on the model; a grammar is checked when a request is made.

        Args:
            model_config: an object with `get_vocab_size()` and `max_logprobs`.

        Raises:
            InvalidRequestError: naming the field.
        """
        if speculative_config is not None:
            raise InvalidRequestError("speculative_config", speculative_config, "None: nothing is speculated")
        vocab_size = model_config.get_vocab_size()
        most = vocab_size if model_config.max_logprobs == -1 else model_config.max_logprobs
        check_vocabulary(self.frozen(), vocab_size=vocab_size, max_logprobs=most)

    def _validate_logit_bias(self, model_config: Any) -> None:
        """Refuse biases of tokens that the model lacks."""
        check_token_ids("logit_bias", tuple(self.frozen().logit_bias or ()), model_config.get_vocab_size())


class BeamSearchParams(PydanticField, msgspec.Struct, dict=True):
    """Parameters of `LLM.beam_search`.

    Raises:
        InvalidRequestError: a value is out of range.
    """

    beam_width: int
    """Completions to find for each prompt."""
    max_tokens: int
    ignore_eos: bool = False
    temperature: float = 0.0
    """0 or 1; neither changes anything, since the search does not sample."""
    length_penalty: float = 1.0
    """A completion's score is its log-probability over its number of tokens to this power."""
    include_stop_str_in_output: bool = False
    """Leave the end token in the output."""
    structured_outputs: StructuredOutputsParams | None = None
    """None: beams have no structured output."""
    skip_special_tokens: bool = True
    """Leave the model's special tokens out of the text."""
    watermarking: None = None

    def __post_init__(self) -> None:
        self.check()

    def check(self) -> None:
        """Check the values, which may have changed since the object was made.

        Raises:
            InvalidRequestError: a value is out of range.
        """
        for name in ("beam_width", "max_tokens"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InvalidRequestError(name, value, "an integer of at least 1")
        if self.temperature not in (0.0, 1.0):
            raise InvalidRequestError("temperature", self.temperature, "0, as beam search draws nothing")
        _check_unsupported(self, _BEAM_UNSUPPORTED)


def _check_unsupported(params: object, unsupported: Mapping[str, tuple[tuple[object, ...], str]]) -> None:
    for name, (neutral, allowed) in unsupported.items():
        if (value := getattr(params, name)) not in neutral:
            raise InvalidRequestError(name, value, allowed)
