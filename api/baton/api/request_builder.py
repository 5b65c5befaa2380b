"""Builds an executor's request from a prompt and its parameters, which are read as a router reads them."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache, partial
from random import Random
from typing import Any, Final

from baton.api.output_builder import OutputBuilder
from baton.api.pooled_output_builder import PooledOutputBuilder
from baton.api.prompts import PromptParts, read_prompt
from baton.api.refused import refuse_unsupported
from baton.api.tokenization_options import read_tokenization
from baton.inputs import PromptType
from baton.lora import KnownAdapters, LoRARequest
from baton.pooling_params import PoolingParams
from baton.sampling_params import RequestOutputKind, SamplingParams
from baton_core.errors import InvalidRequestError
from baton_core.requests import sampling_params
from baton_core.requests.pooling import PoolingModel, cannot_pool, check_runner
from baton_engine.sampling.logits_processors import LogitsProcessors
from baton_router.embeds.given_embeds import EmbedsPrompt
from baton_router.requests.generation import GenerationRequest
from baton_router.requests.request_limits import RequestLimits
from baton_router.requests.request_reader import PromptReader, bounded
from baton_router.requests.served_adapters import ServedAdapters
from baton_router.text.characters import TokenTexts
from baton_router.text.chat_template import Conversation
from baton_router.text.embedded_parts import has_embeds
from baton_router.text.model_folder import ModelFolder
from baton_router.text.prompts import AnyPrompt, TextPair
from baton_router.text.tokenization import Tokenizer

_SEED_BITS: Final = 63
_PARAMS: Final = tuple(field.name for field in fields(sampling_params.SamplingParams))


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOptions:
    """Options of a request besides its prompt and its parameters."""

    request_id: str = ""
    """Chosen when empty."""
    priority: int = 0
    kind: RequestOutputKind | None = None
    """The kind of output, instead of the one in the sampling parameters."""
    arrival_s: float | None = None
    """Wall clock; None is now."""
    tokenization: Mapping[str, Any] | None = None
    """The fields of `TokenizationOptions`, by name."""
    lora_request: LoRARequest | None = None
    traceparent: str = ""
    """W3C trace context of the caller; empty without one."""


class Counter:
    """Counts the requests whose ids are chosen."""

    def __init__(self, start: int = 0) -> None:
        self.counter = start

    def __next__(self) -> int:
        number = self.counter
        self.counter += 1
        return number

    def reset(self) -> None:
        self.counter = 0


class RequestBuilder:
    """Reads the requests of one model. Its seeds follow from `seed` and the order of the calls.

    Classes of `processors` check sampling parameters. Without `takes_text` prompts are token ids, and outputs
    have no text; without a `max_lora_rank` there are no adapters.
    """

    def __init__(
        self,
        model: ModelFolder,
        tokenizer: Tokenizer,
        limits: RequestLimits,
        *,
        processors: LogitsProcessors | None = None,
        seed: int,
        takes_text: bool = True,
        max_lora_rank: int | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self._defaults = model.sampling_defaults
        self._reader = PromptReader(ServedAdapters(), model, tokenizer, limits)
        self._processors = processors
        self._random = Random(seed)
        self._takes_text = takes_text
        self.adapters = KnownAdapters(max_lora_rank)
        self.counter = Counter()
        self.used_ids: Container[str] = ()
        """Ids that are not chosen: those of the open requests."""
        self._new_texts = partial(TokenTexts, cache(self._decode_token), tokenizer.token_bytes)

    @property
    def default_params(self) -> SamplingParams:
        """The parameters of requests that give none, as an object of the caller's own."""
        return SamplingParams.from_frozen(self._defaults)

    def build(
        self,
        prompt: PromptType | Conversation | TextPair,
        params: SamplingParams | PoolingParams | None,
        options: RequestOptions = RequestOptions(),
        *,
        max_model_len: int,
        pooling: PoolingModel | None = None,
    ) -> OutputBuilder | PooledOutputBuilder:
        """Check and tokenize a request; it is ready to be submitted, and its output to be collected.

        `pooling` is what the model pools; None where it generates.

        Raises:
            InvalidRequestError: a field is out of range; the message names it.
        """
        if isinstance(params, PoolingParams) or pooling is not None:
            return self._build_pooled(prompt, params, options, max_model_len, pooling)
        if isinstance(prompt, TextPair):
            raise InvalidRequestError("prompt", "a pair of texts", "one text, to generate from")
        tokenization = read_tokenization(options.tokenization)
        if isinstance(prompt, Conversation) and tokenization.add_special_tokens is None:
            tokenization = replace(tokenization, add_special_tokens=False)  # its template writes them
        parts = self._parts(prompt)
        text, cache_salt = parts.text, parts.cache_salt
        given = parts.embeds or parts.token_ids
        if given is None and not self._takes_text:
            raise InvalidRequestError("prompt", prompt, "token ids, for skip_tokenizer_init is True")
        sampling = self._given(self.default_params if params is None else params)
        most, room = max_model_len - 1, max(max_model_len - (sampling["max_tokens"] or 1), 1)
        request = GenerationRequest(
            prompt=tokenization.cut(
                given if given is not None else text or "", self.tokenizer, most=most, room=room
            ),
            sampling=sampling,
            request_id=options.request_id or self._next_id(),
            cache_salt=cache_salt,
            priority=options.priority,
            add_special_tokens=tokenization.add_special_tokens,
            truncate_prompt_tokens=tokenization.truncate_prompt_tokens,
        )
        spec = bounded(self._reader.read(request, max_model_len=max_model_len), max_model_len)
        if self._processors is not None:
            self._processors.of(spec.params)
        adapter = self.adapters.find(options.lora_request)
        spec = replace(spec, adapter=adapter, traceparent=options.traceparent)
        kind, arrival_s, lora = options.kind, options.arrival_s, options.lora_request
        return OutputBuilder(text, spec, self._new_texts, kind=kind, arrival_s=arrival_s, lora_request=lora)

    def _build_pooled(
        self,
        prompt: PromptType | Conversation | TextPair,
        params: SamplingParams | PoolingParams | None,
        options: RequestOptions,
        max_model_len: int,
        pooling: PoolingModel | None,
    ) -> PooledOutputBuilder:
        own = params if isinstance(params, PoolingParams) else PoolingParams()
        if pooling is None:
            raise cannot_pool(own.task or "pooling")
        if isinstance(params, SamplingParams):
            check_runner(pooling, None)
        refuse_unsupported(lora_request=options.lora_request)
        tokenization = read_tokenization(options.tokenization, is_pooled=True)
        cache_salt, type_one_from = "", None
        read: TextPair | AnyPrompt
        if isinstance(prompt, TextPair | Conversation):
            read = prompt
        else:
            parts = read_prompt(prompt, takes_types=True)
            cache_salt, type_one_from = parts.cache_salt, parts.type_one_from
            given = parts.embeds or parts.token_ids
            read = given if given is not None else parts.text or ""
        request = GenerationRequest(
            prompt=read,
            request_id=options.request_id or self._next_id(),
            cache_salt=cache_salt,
            priority=options.priority,
            pooling=own.request(pooling, type_one_from, tokenization.truncation_side),
            add_special_tokens=tokenization.add_special_tokens,
            truncate_prompt_tokens=tokenization.pooled_limit(max_model_len),
        )
        with tokenization.naming_limit():
            spec = self._reader.read(request, max_model_len=max_model_len, pooling=pooling)
        return PooledOutputBuilder(replace(spec, traceparent=options.traceparent))

    def _parts(self, prompt: PromptType | Conversation) -> PromptParts:
        if not isinstance(prompt, Conversation):
            return read_prompt(prompt)
        if has_embeds(prompt):
            embeds = partial(self.tokenizer.encode_embedded, prompt)
            return PromptParts(text=None, token_ids=None, embeds=EmbedsPrompt(embeds))
        return PromptParts(text=self.tokenizer.render_chat(prompt), token_ids=None)

    def _given(self, params: SamplingParams) -> dict[str, Any]:
        if not isinstance(params, SamplingParams):
            raise InvalidRequestError("sampling_params", params, "SamplingParams, or one for each prompt")
        frozen = params.frozen()
        given = {name: getattr(frozen, name) for name in _PARAMS}
        if given["seed"] is None:
            given["seed"] = self._random.getrandbits(_SEED_BITS)
        if not self._takes_text:
            given["detokenize"] = False
        return given

    def _next_id(self) -> str:
        while (request_id := str(next(self.counter))) in self.used_ids:
            pass
        return request_id

    def _decode_token(self, token_id: int) -> str:
        return self.tokenizer.decode((token_id,), skip_special_tokens=False)
