"""POST /inference/v1/generate: token ids in, token ids out."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from functools import partial
from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from baton_core.errors import InvalidRequestError
from baton_core.requests.logprobs import PositionLogprobs
from baton_core.requests.packed_logprobs import PackedLogprobs
from baton_router.http.calls import Call, read_context
from baton_router.http.generation import Generation, collect, generating
from baton_router.http.json_pieces import as_list, lazily
from baton_router.http.reply_parts import LEAST, PromptLogprobs, Usage, prompt_logprobs_of, usage_of
from baton_router.http.route import GENERATING, Routes, Tag
from baton_router.http.sampling_fields import (
    CallFields,
    SamplingFields,
    StreamOptions,
    check_stream_options,
    read_resuming,
    read_sampling,
)
from baton_router.requests.generation import Delta, Finished, GenerationRequest, PromptDelta

ROUTES: Final = Routes(method="POST", tag=Tag.TOKENS, errors=GENERATING)


class TokenSampling(SamplingFields, kw_only=True):
    """`SamplingParams`; without `stop` nothing is made text."""

    max_tokens: int | None = 16
    """Most tokens to generate; null means as many as the context holds."""
    logprobs: int | None = None
    """Most likely tokens to return at each position."""


class GenerateRequest(CallFields, kw_only=True):
    """Continue token ids."""

    token_ids: list[int]
    """The prompt."""
    sampling_params: TokenSampling | None = None
    """Settings by which tokens are sampled."""
    stream: bool | None = None
    """The reply comes in pieces, as server-sent events."""
    stream_options: StreamOptions | None = None
    """Settings of what a stream has beside the tokens; only with `stream`."""
    prompt_cache_key: str | None = None
    """The same, as OpenAI calls it; `session_id` comes first."""
    resume_token: str | None = None
    """Token of a broken stream: the same request resumes with it at any router."""
    num_received_tokens: int | list[int] | None = None
    """Tokens received of each sequence: the stream begins after them."""
    kv_transfer_params: Any = None
    """Refused: the router places requests and moves their blocks itself."""
    features: Any = None
    """Refused: prompts are tokens alone."""


class TokenIdLogprob(msgspec.Struct, kw_only=True):
    """Log-probability of one token."""

    token: str
    logprob: float
    bytes: list[int] | None


class PositionTokenLogprobs(TokenIdLogprob, kw_only=True):
    """Log-probabilities of the token at one position and of the most likely ones there."""

    top_logprobs: list[TokenIdLogprob]


class TokenLogprobs(msgspec.Struct, kw_only=True):
    """Log-probabilities of each token of the output."""

    content: list[PositionTokenLogprobs]


class GenerateChoice(msgspec.Struct, kw_only=True):
    """One sequence, or what is new of it."""

    index: int
    token_ids: list[int]
    logprobs: TokenLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None


class GenerateReply(msgspec.Struct, kw_only=True):
    """A whole reply, or a chunk of a streamed one."""

    request_id: str
    choices: list[GenerateChoice]
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    usage: Usage | UnsetType = UNSET
    resume_token: str | UnsetType = UNSET
    """Token in the first chunk, with which a broken stream resumes at any router."""


@ROUTES.route(
    "/inference/v1/generate",
    "generateTokens",
    "Continue token ids with token ids",
    example={"token_ids": [1, 2, 3], "sampling_params": {"max_tokens": 8}},
    reply=GenerateReply,
    chunk=GenerateReply,
)
async def generate(call: Call[GenerateRequest]) -> None:
    """Reply with tokens, whole or as a stream.

    Raises:
        InvalidRequestError: a field is wrong or cannot be had here; the message names it.
        RequestError: as `generating`.
    """
    body = call.body
    for name in ("kv_transfer_params", "features"):
        if (value := getattr(body, name)) is not None:
            raise InvalidRequestError(name, value, "nothing: the router places prompts, which are tokens")
    check_stream_options(stream=bool(body.stream), options=body.stream_options)
    params = body.sampling_params or TokenSampling()
    sampling = read_sampling(params) | {"max_tokens": params.max_tokens, "detokenize": bool(params.stop)}
    if params.logprobs is not None:
        sampling["logprobs"] = params.logprobs
    resumption = read_resuming(call, body)
    request = GenerationRequest(
        prompt=tuple(body.token_ids),
        prompt_field="token_ids",
        sampling=sampling,
        model=body.model or "",
        request_id=call.name.adopt(body.request_id),
        cache_salt=body.cache_salt or "",
        priority=body.priority or 0,
        context=read_context(call, body.session_id, body.prompt_cache_key),
        is_streamed=bool(body.stream),
        resumption=resumption,
    )
    async with generating(call, [request], is_resumable=True) as generation:
        if body.stream:
            await call.stream(_chunks(call, generation))
        else:
            await call.reply(await _whole(call, generation))


async def _whole(call: Call[GenerateRequest], generation: Generation) -> GenerateReply:
    (prompt,) = await collect(generation, call.state.share)
    choices = lazily(
        _choice(call.body, sequence.as_delta(index)) for index, sequence in enumerate(prompt.sequences)
    )
    reply = GenerateReply(request_id=call.request_id, choices=choices, usage=usage_of([prompt.finished]))
    if prompt.spec.params.prompt_logprobs is not None:
        reply.prompt_logprobs = prompt_logprobs_of(prompt.prompt_logprobs, call.state.service.tokenizer)
    return reply


async def _chunks(call: Call[GenerateRequest], generation: Generation) -> AsyncGenerator[GenerateReply, None]:
    options = call.body.stream_options
    reply = partial(GenerateReply, request_id=call.request_id)
    is_token_sent = False
    shows_prompt = generation.specs[0].params.prompt_logprobs is not None and not generation.has_begun_before
    entries = PackedLogprobs() if shows_prompt else None
    async for _, event in generation.events:
        match event:
            case PromptDelta() if entries is not None:
                entries.extend(event.logprobs)
            case Delta(is_received=False):
                token = UNSET if is_token_sent else generation.resume_token()
                chunk = reply(choices=[_choice(call.body, event)], resume_token=token)
                is_token_sent = True
                if entries is not None:
                    chunk.prompt_logprobs = prompt_logprobs_of(entries, call.state.service.tokenizer)
                    entries = None
                yield chunk
            case Finished():
                if options is not None and options.include_usage:
                    yield reply(choices=[], usage=usage_of([event]))


def _choice(body: GenerateRequest, delta: Delta) -> GenerateChoice:
    entries, params = delta.logprobs, body.sampling_params or TokenSampling()
    has_logprobs = params.logprobs is not None or params.logprob_token_ids is not None
    logprobs = TokenLogprobs(content=as_list(map(_position, entries), len(entries))) if has_logprobs else None
    return GenerateChoice(
        index=delta.index,
        token_ids=list(delta.token_ids),
        logprobs=logprobs,
        finish_reason=delta.finish_reason,
        stop_reason=delta.stop_reason,
    )


def _position(entry: PositionLogprobs) -> PositionTokenLogprobs:
    pairs = [
        TokenIdLogprob(token=f"token_id:{token_id}", logprob=max(logprob, LEAST), bytes=None)
        for token_id, logprob in zip(entry.token_ids, entry.logprobs, strict=True)
    ]
    own = pairs[0]
    return PositionTokenLogprobs(
        token=own.token, logprob=own.logprob, bytes=own.bytes, top_logprobs=pairs[1:]
    )
