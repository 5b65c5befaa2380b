"""Turns a client's request, new or resumed, into the one that workers get, in the tokenizing threads."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from random import Random, SystemRandom
from typing import Any, Final

from baton_core.errors import ContextLengthError, InvalidRequestError
from baton_core.model.model_identity import ModelIdentity, with_weights
from baton_core.prompt_embeds import check_places
from baton_core.requests.grammar_limits import check_grammar_limits
from baton_core.requests.pooling import PoolingModel, decode_pooling_model
from baton_core.requests.request_context import NO_CONTEXT, RequestContext
from baton_core.requests.sampling_params import (
    SamplingParams,
    check_first_token,
    check_vocabulary,
    held_off_token_ids,
)
from baton_core.requests.structured_backends import with_backend
from baton_core.requests.vocabulary import encode_bad_words
from baton_core.sessions.router_messages import RequestSpec
from baton_router.embeds.given_embeds import EmbedsLimits, EmbedsPrompt, PromptTokens, ReadEmbeds
from baton_router.requests.generation import GenerationRequest, ReceivedSequence, Resumption
from baton_router.requests.pooling import lacks_task, read_pooled_prompt
from baton_router.requests.request_limits import DEFAULT_LIMITS, RequestLimits
from baton_router.requests.resume_tokens import ResumeTicket, ResumeTokens, require_same
from baton_router.requests.resumption import checked_counts, outputs_so_far
from baton_router.requests.served_adapters import ServedAdapters
from baton_router.requests.thinking import read_thinking
from baton_router.requests.validation import (
    check_name,
    check_prompt,
    check_template_trust,
    read_priority,
    truncate_prompt,
)
from baton_router.structured_outputs.bounded_checks import BoundedGrammarChecks
from baton_router.text.chat_template import Conversation
from baton_router.text.embedded_parts import has_embeds
from baton_router.text.large_texts import TooManyTokensError
from baton_router.text.model_folder import ModelFolder
from baton_router.text.prompts import TextPair
from baton_router.text.tokenization import Tokenizer

MAX_REQUEST_ID_CHARACTERS: Final = 128
MAX_CACHE_SALT_CHARACTERS: Final = 128
_SEED_BITS: Final = 63
_POOLING_PARAMS: Final = SamplingParams(max_tokens=1, seed=0)
"""Sampling parameters of requests that pool, which sample nothing."""


class PromptReader:
    """Validates and tokenizes for one served model.

    `seed` is that of the seeds of requests without one. No output gets more than `max_output_tokens`.
    """

    def __init__(
        self,
        adapters: ServedAdapters,
        model: ModelFolder,
        tokenizer: Tokenizer,
        limits: RequestLimits = DEFAULT_LIMITS,
        *,
        seed: int | None = None,
        max_output_tokens: int | None = None,
    ) -> None:
        self._adapters = adapters
        self._max_output_tokens = max_output_tokens
        self._model = model
        self._tokenizer = tokenizer
        self._limits = limits
        self._random = SystemRandom() if seed is None else Random(seed)
        self._grammar_checks = BoundedGrammarChecks()

    def close(self) -> None:
        """End the processes that check grammars."""
        self._grammar_checks.close()

    def read(
        self, request: GenerationRequest, *, max_model_len: int, pooling: PoolingModel | None = None
    ) -> RequestSpec:
        """Check a request, tokenize its prompt, and set a missing name and seed.

        `pooling` is what the model pools, if that is known.

        Raises:
            InvalidRequestError: a field is out of range; the message names it.
            RequestError: NOT_FOUND, another model is requested.
        """
        adapter = self._adapters.find(request.model)
        check_name("request_id", request.request_id, MAX_REQUEST_ID_CHARACTERS)
        check_name("cache_salt", request.cache_salt, MAX_CACHE_SALT_CHARACTERS)
        check_template_trust(request.prompt, self._limits)
        name, priority = request.request_id or f"req-{secrets.token_hex(8)}", read_priority(request.priority)
        if request.pooling is not None:
            if adapter is not None:
                raise InvalidRequestError(
                    "model", adapter.name, f"{self._adapters.parent!r}: adapters generate"
                )
            token_ids, spec = read_pooled_prompt(
                request, request.pooling, self._tokenizer, pooling, max_model_len, self._model.vocab_size
            )
            return RequestSpec(
                request_id=name,
                prompt_token_ids=token_ids,
                params=_POOLING_PARAMS,
                cache_salt=request.cache_salt,
                priority=priority,
                pooling=spec,
            )
        if pooling is not None:
            raise lacks_task(self._adapters.parent, pooling, "generates", None)
        params = self._read_params(request)
        bad_words = encode_bad_words(params.bad_words, self._tokenizer, self._model.vocab_size)
        check_first_token(params, bad_words, held_off_token_ids(params, self._model.eos_token_ids))
        prompt = self._read_prompt(request, params, max_model_len)
        return RequestSpec(
            request_id=name,
            prompt_token_ids=prompt.token_ids,
            prompt_embeds=prompt.embeds,
            params=params,
            cache_salt=request.cache_salt,
            priority=priority,
            adapter=adapter,
            bad_words=bad_words,
            thinking=read_thinking(
                params.thinking_token_budget,
                prompt.token_ids,
                self._tokenizer,
                self._limits.reasoning,
                is_structured=params.structured_outputs is not None,
                continues_text=isinstance(request.prompt, Conversation) and request.prompt.continues_text,
            ),
        )

    def _read_params(self, request: GenerationRequest) -> SamplingParams:
        params = replace(self._model.sampling_defaults, **request.sampling)
        if (most := self._max_output_tokens) is not None:
            params = replace(params, max_tokens=min(params.max_tokens or most, most))
        _check_params(params, self._limits, self._model.vocab_size)
        if (structured := params.structured_outputs) is not None:
            check_grammar_limits(structured)  # the process below skips what takes too long to check
            self._grammar_checks.check(structured)
            structured = with_backend(structured, self._limits.structured_outputs_backend)
            params = replace(params, structured_outputs=structured)
        least = self._limits.stream_interval
        if least > (params.stream_interval or 1):
            params = replace(params, stream_interval=least)
        if params.seed is not None:
            return params
        return replace(params, seed=self._random.getrandbits(_SEED_BITS))

    def _read_prompt(
        self, request: GenerationRequest, params: SamplingParams, max_model_len: int
    ) -> PromptTokens:
        if isinstance(request.prompt, TextPair):
            raise InvalidRequestError(request.prompt_field, "a pair of texts", "one text, to generate from")
        prompt = self._read_embedded(request, params, max_model_len)
        if prompt is None:
            assert not isinstance(request.prompt, EmbedsPrompt), "it was read"
            limit = request.truncate_prompt_tokens
            try:
                token_ids = self._tokenizer.encode_prompt(
                    request.prompt,
                    add_special_tokens=request.add_special_tokens,
                    most=max_model_len if limit is None else None,
                )
            except TooManyTokensError as error:
                raise ContextLengthError(
                    request.prompt_field, error.num_tokens, max_model_len - 1, max_model_len, is_least=True
                ) from None
            if limit is not None:
                token_ids = truncate_prompt(token_ids, limit, params.max_tokens, max_model_len)
            prompt = PromptTokens(token_ids=token_ids)
        check_prompt(
            prompt.token_ids,
            max_model_len=max_model_len,
            vocab_size=self._model.vocab_size,
            field=request.prompt_field,
        )
        check_places(prompt.embeds, len(prompt.token_ids))
        _check_room(params, len(prompt.token_ids), max_model_len)
        return prompt

    def _read_embedded(
        self, request: GenerationRequest, params: SamplingParams, max_model_len: int
    ) -> PromptTokens | None:
        """Return a prompt with embeddings; None where it has none."""
        prompt = request.prompt
        if isinstance(prompt, Conversation):
            if not has_embeds(prompt):
                return None
            read: ReadEmbeds = partial(self._tokenizer.encode_embedded, prompt)
        elif isinstance(prompt, EmbedsPrompt):
            read = prompt.read
        else:
            return None
        _check_embeds_allowed(params, self._limits)
        if (limit := request.truncate_prompt_tokens) is not None:
            raise InvalidRequestError("truncate_prompt_tokens", limit, "nothing beside prompt_embeds")
        return read(EmbedsLimits(hidden_size=self._model.embedding_size, max_model_len=max_model_len))


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedRequest:
    """A request that is checked and tokenized but not submitted."""

    spec: RequestSpec
    context: RequestContext = NO_CONTEXT
    model: str = ""
    """The name that the client asked for; empty without one."""
    is_chat: bool = False
    """True if the prompt is a conversation."""
    is_streamed: bool = False
    resume_token: str = ""
    """Resumes the stream at any router."""
    call: str = ""
    """Name that the call and its resumptions share; empty where it cannot be resumed."""
    num_received: tuple[int, ...] = ()
    """Tokens of each sequence that the client has from an earlier call; empty means none."""
    is_resumed: bool = False
    """True if the client came with that token."""
    received: tuple[ReceivedSequence, ...] = ()
    """Tokens that the client has and workers continue after; empty where they generate from the beginning."""
    token_for: Callable[[str], str] | None = None
    """Returns the resume token for the hash of other weights, or nothing where it stays; None: it stays."""
    timeout_s: float = 0.0
    """Timeout from `began_s` on, on the loop's clock."""
    began_s: float = 0.0
    tokenized_s: float = 0.0


class RequestReader:
    """Reads requests of one served model; changes nothing of its own. In the tokenizing threads."""

    def __init__(self, prompts: PromptReader, tokens: ResumeTokens, vocab_size: int) -> None:
        self._prompts = prompts
        self._vocab_size = vocab_size
        self._tokens = tokens

    def read(
        self, request: GenerationRequest, *, max_model_len: int, identity: ModelIdentity | None, now_s: float
    ) -> PreparedRequest:
        """Check and tokenize a request, as `PromptReader.read`; `now_s` is in seconds since 1970.

        Raises:
            InvalidRequestError: a field is out of range, or this is not the request of its resume token.
            RequestError: NOT_FOUND, another model is requested.
        """
        if request.resumption is not None:
            if request.pooling is not None:
                raise InvalidRequestError("resume_token", "a token", "none, where something is pooled")
            prepared = self._read_resumed(request, request.resumption, max_model_len, identity, now_s)
        else:
            prepared = self._read_new(request, max_model_len, identity, now_s)
        return replace(
            prepared,
            context=request.context,
            model=request.model,
            is_chat=isinstance(request.prompt, Conversation),
            is_streamed=request.is_streamed,
        )

    def _read_new(
        self, request: GenerationRequest, max_model_len: int, identity: ModelIdentity | None, now_s: float
    ) -> PreparedRequest:
        pooling = decode_pooling_model(identity.pooling) if identity else None
        spec = self._prompts.read(request, max_model_len=max_model_len, pooling=pooling)
        if spec.pooling is not None:
            return PreparedRequest(spec=spec)
        ticket = ResumeTicket(
            request_id=spec.request_id,
            seed=spec.params.seed or 0,
            created_s=int(now_s),
            fingerprints=self._tokens.fingerprints(spec, request.context.tenant, identity),
        )
        return PreparedRequest(
            spec=bounded(spec, max_model_len),
            resume_token=self._tokens.write(ticket),
            call=ticket.call,
            token_for=partial(self._token_for, ticket, spec.adapter_digest, identity),
        )

    def _token_for(
        self, ticket: ResumeTicket, adapter_digest: str, identity: ModelIdentity | None, weights: str
    ) -> str:
        """Return the token of a request that begins on these weights, as after an update; empty: it stays."""
        if identity is None or weights in ("", identity.weights):
            return ""
        identity = with_weights(identity, weights)
        model = self._tokens.model_fingerprint(adapter_digest, identity)
        return self._tokens.write(replace(ticket, fingerprints=replace(ticket.fingerprints, model=model)))

    def _read_resumed(
        self,
        request: GenerationRequest,
        resumption: Resumption,
        max_model_len: int,
        identity: ModelIdentity | None,
        now_s: float,
    ) -> PreparedRequest:
        ticket = self._tokens.read(resumption.token, now_s)
        spec = self._prompts.read(_as_before(request, ticket), max_model_len=max_model_len)
        require_same(ticket, self._tokens.fingerprints(spec, request.context.tenant, identity))
        spec = replace(bounded(spec, max_model_len), weights=identity.weights if identity else "")
        most = spec.params.max_tokens or 0
        counts = checked_counts(resumption, spec.params.n, most)
        resumed = outputs_so_far(resumption.received, self._vocab_size, most)
        if resumed:  # its prompt log-probabilities were sent
            spec = replace(spec, params=replace(spec.params, prompt_logprobs=None), resumed=resumed)
        return PreparedRequest(
            spec=spec,
            resume_token=resumption.token,
            call=ticket.call,
            num_received=counts,
            is_resumed=True,
            received=resumption.received if resumed else (),
        )


def _as_before(request: GenerationRequest, ticket: ResumeTicket) -> GenerationRequest:
    """Return the request with its former seed and name, where it sets none itself."""
    sampling: dict[str, Any] = dict(request.sampling)
    if sampling.get("seed") in (None, -1):
        sampling["seed"] = ticket.seed
    return replace(request, sampling=sampling, request_id=request.request_id or ticket.request_id)


def bounded(spec: RequestSpec, max_model_len: int) -> RequestSpec:
    """Return the request with its `max_tokens` set: at most as many as fit beside the prompt.

    Its workers may hold more or less, so the limit is set here.
    """
    room = max_model_len - len(spec.prompt_token_ids)
    if spec.pooling is not None:
        return spec
    if spec.params.max_tokens is not None and spec.params.max_tokens <= room:
        return spec
    return replace(spec, params=replace(spec.params, max_tokens=room))


def _check_params(params: SamplingParams, limits: RequestLimits, vocab_size: int) -> None:
    """Check what depends on the model and on the operator; ranges are checked already.

    Raises:
        InvalidRequestError: naming the field.
    """
    if params.n > limits.max_n_sequences:
        allowed = f"1 to {limits.max_n_sequences}, of which --max-n-sequences or VLLM_MAX_N_SEQUENCES decides"
        raise InvalidRequestError("n", params.n, allowed)
    check_vocabulary(params, vocab_size=vocab_size, max_logprobs=limits.most_logprobs(vocab_size))
    for processor in () if limits.is_in_process else params.logits_processors:
        if not isinstance(processor, str):
            allowed = "names; functions can be called in process alone"
            raise InvalidRequestError("logits_processors", processor, allowed)
        if processor not in limits.logits_processors:
            allowed = ", ".join(limits.logits_processors) or "none: --logits-processors names them"
            raise InvalidRequestError("logits_processors", processor, allowed)


def _check_embeds_allowed(params: SamplingParams, limits: RequestLimits) -> None:
    """Refuse embeddings where the operator does not take them, or beside what needs a prompt's tokens.

    Raises:
        InvalidRequestError: naming the field.
    """
    if not limits.enable_prompt_embeds:
        allowed = "nothing: this router runs without --enable-prompt-embeds (enable_prompt_embeds in Python)"
        raise InvalidRequestError("prompt_embeds", "given", allowed)
    if params.prompt_logprobs is not None:
        allowed = "none beside prompt_embeds, which are no tokens"
        raise InvalidRequestError("prompt_logprobs", params.prompt_logprobs, allowed)


def _check_room(params: SamplingParams, num_prompt_tokens: int, max_model_len: int) -> None:
    """Refuse a `min_tokens` that does not fit beside the prompt.

    Raises:
        InvalidRequestError: naming the field.
    """
    room = max_model_len - num_prompt_tokens
    if params.min_tokens > room:
        allowed = f"at most {room}, the room that the prompt leaves of {max_model_len} tokens"
        raise InvalidRequestError("min_tokens", params.min_tokens, allowed)
