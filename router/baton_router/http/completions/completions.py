"""POST /v1/completions, and /invocations, which takes whatever generates, as Amazon SageMaker calls it."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from functools import partial
from typing import Any, Final

from msgspec import UNSET
from msgspec.structs import replace

from baton_core.errors import InvalidRequestError
from baton_router.embeds.given_embeds import (
    FIELD,
    EmbedsLimits,
    EmbedsPrompt,
    PromptTokens,
    placed,
    read_encoded,
)
from baton_router.http.calls import Call
from baton_router.http.chat.completions import chat
from baton_router.http.chat.schemas import ChatRequest
from baton_router.http.completions.choices import ChoiceWriter, ShownPrompt
from baton_router.http.completions.schemas import Completion, CompletionChoice, CompletionRequest
from baton_router.http.errors import renamed
from baton_router.http.generation import Generation, collect, generating
from baton_router.http.json_pieces import elements_of, lazily
from baton_router.http.reply_parts import Usage, usage_of, usage_so_far
from baton_router.http.route import BATCH_PRIORITY, GENERATING, Routes, Tag
from baton_router.http.sampling_fields import (
    check_request,
    constraint_names,
    fill_in,
    generation_requests,
    read_sampling,
)
from baton_router.requests.generation import Delta, Finished, PromptDelta
from baton_router.text.prompts import AnyPrompt, Prompt

ROUTES: Final = Routes(method="POST", tag=Tag.COMPLETIONS, errors=GENERATING)

MAX_PROMPTS: Final = 1024
MAX_SEQUENCES: Final = 4096
"""Sequences of one call: prompts times `n`."""


@ROUTES.route(
    "/v1/completions",
    "createCompletion",
    "Complete texts",
    batch_defaults={"priority": BATCH_PRIORITY},
    example={"prompt": "The os module", "max_tokens": 32},
    reply=Completion,
    chunk=Completion,
)
async def complete(call: Call[CompletionRequest]) -> None:
    """Handle a completion, whole or as a stream.

    Raises:
        InvalidRequestError: a field is wrong or cannot be had here; the message names it.
        RequestError: as `generating`.
    """
    body = call.body
    with renamed(constraint_names(body)):
        prompts, sampling = await read_completion(call)
        requests = generation_requests(call, body, prompts, sampling)
        async with generating(call, requests, is_resumable=True) as generation:
            reply = _CompletionReply(call, prompts, generation)
            await reply.prepare()
            if body.stream:
                await call.stream(reply.chunks())
            else:
                await call.reply(await reply.whole())


@ROUTES.route(
    "/invocations",
    "invoke",
    "Answer a conversation or complete texts, whichever the body asks for",
    tag=Tag.CHAT,
    example={"messages": [{"role": "user", "content": "What is os.path?"}], "max_tokens": 32},
)
async def invoke(call: Call[ChatRequest | CompletionRequest]) -> None:
    """Handle a body with `messages` as a conversation, another as a completion.

    Raises:
        InvalidRequestError: as `chat` and `complete`.
        RequestError: as `chat` and `complete`.
    """
    either: Call[Any] = call
    await (chat(either) if isinstance(call.body, ChatRequest) else complete(either))


async def read_completion(call: Call[CompletionRequest]) -> tuple[list[AnyPrompt], dict[str, Any]]:
    """Return the prompts of a body, which releases them, and its sampling parameters.

    Raises:
        InvalidRequestError: a field is wrong or cannot be had here; the message names it.
    """
    body = call.body
    check_request(body, takes_embeds=True)
    fill_in(body, call.state.settings.answers)
    if body.suffix:
        raise InvalidRequestError("suffix", body.suffix, "nothing: text can only be continued at its end")
    embeds = _read_embeds(body)
    prompts = [*embeds]
    if not embeds or body.prompt:
        prompts += await call.read(_read_prompts, body.prompt)
    body.prompt = body.prompt_embeds = None
    if len(prompts) * (body.n or 1) > MAX_SEQUENCES:
        allowed = f"at most {MAX_SEQUENCES} sequences of all prompts together"
        raise InvalidRequestError("n", f"{body.n} for {len(prompts)} prompts", allowed)
    return prompts, _read_sampling(body)


def _read_embeds(body: CompletionRequest) -> list[AnyPrompt]:
    given = body.prompt_embeds or []
    texts = [given] if isinstance(given, str) else given
    if not texts and body.prompt is None and body.prompt_embeds is not None:
        raise InvalidRequestError(FIELD, body.prompt_embeds, "base64 of a tensor, or a list of such")
    if texts and body.echo:
        raise InvalidRequestError("echo", True, "false beside prompt_embeds, which have no text")
    if len(texts) > MAX_PROMPTS:
        raise InvalidRequestError(FIELD, f"{len(texts)} of them", f"at most {MAX_PROMPTS}")
    return [EmbedsPrompt(partial(_decode, text)) for text in texts]


def _decode(text: str, limits: EmbedsLimits) -> PromptTokens:
    return placed(read_encoded(FIELD, text, limits))


def _read_prompts(prompt: str | list[str | int | list[int]] | None) -> list[Prompt]:
    if prompt is None:
        raise InvalidRequestError("prompt", None, "a text, token ids, or a list of either")
    if isinstance(prompt, str):
        return [prompt]
    if not len(prompt) >= 1:
        raise InvalidRequestError("prompt", prompt, "at least one text or token id")
    kinds = {type(part) for part in prompt}
    if kinds == {int}:
        return [tuple(prompt)]  # type: ignore[arg-type]  # all of them are
    if len(kinds) > 1:
        raise InvalidRequestError("prompt", "a mixed list", "texts, token ids, or lists of token ids")
    if len(prompt) > MAX_PROMPTS:
        raise InvalidRequestError("prompt", f"{len(prompt)} prompts", f"at most {MAX_PROMPTS}")
    return [tuple(part) if isinstance(part, list) else part for part in prompt]  # type: ignore[misc]


def _read_sampling(body: CompletionRequest) -> dict[str, Any]:
    sampling = read_sampling(body)
    only_echoes = body.echo and body.max_tokens == 0
    sampling["max_tokens"] = 1 if only_echoes else body.max_tokens
    if body.logprobs is not None:
        sampling["logprobs"] = body.logprobs
        if body.echo:
            sampling.setdefault("prompt_logprobs", body.logprobs)
    return sampling


class _CompletionReply:
    """The reply to one call: one choice for each sequence of each prompt."""

    def __init__(
        self, call: Call[CompletionRequest], prompts: list[AnyPrompt], generation: Generation
    ) -> None:
        body = call.body
        self._call = call
        self._generation = generation
        self._share = call.state.share
        self._given = prompts
        self._prompts = [ShownPrompt(spec=spec, echo=None) for spec in generation.specs]
        self._num_prompt_tokens = sum(len(spec.prompt_token_ids) for spec in generation.specs)
        n = self._n = generation.specs[0].params.n
        self._writers = [
            ChoiceWriter(number * n + index, body, prompt, call.state.service.tokenizer)
            for number, prompt in enumerate(self._prompts)
            for index in range(n)
        ]
        self._message = partial(
            Completion,
            id=f"cmpl-{call.request_id}",
            created=int(time.time()),
            model=body.model or call.state.service.model_names[0],
            system_fingerprint=call.state.fingerprint,
        )

    async def prepare(self) -> None:
        """Find the texts of the prompts, where they are echoed."""
        body = self._call.body
        if not body.echo:
            return
        for prompt, given in zip(self._prompts, self._given, strict=True):
            if isinstance(given, str) and body.truncate_prompt_tokens is None:
                prompt.echo = given
            else:
                params = prompt.spec.params
                prompt.echo = await self._call.state.service.detokenize(
                    prompt.spec.prompt_token_ids,
                    tenant=self._call.tenant,
                    skip_special_tokens=params.skip_special_tokens,
                )

    async def whole(self) -> Completion:
        """Return the whole reply."""
        collected = await collect(self._generation, self._share)
        for shown, prompt in zip(self._prompts, collected, strict=True):
            shown.logprobs = prompt.prompt_logprobs
        sequences = [sequence for prompt in collected for sequence in prompt.sequences]
        choices = lazily(
            writer.write(sequence.as_delta())
            for writer, sequence in zip(self._writers, sequences, strict=True)
        )
        usage = usage_of(prompt.finished for prompt in collected)
        return self._message(choices=choices, usage=self._billed(usage))

    async def chunks(self) -> AsyncGenerator[Completion, None]:
        """Yield the reply in chunks, then its usage if that is requested."""
        options = self._call.body.stream_options
        is_continuous = options is not None and bool(options.continuous_usage_stats)
        ends_with_usage = options is not None and bool(options.include_usage)
        told: set[int] = set()
        """Numbers of the prompts whose resume token was sent."""
        num_output_tokens = 0
        ends: list[Finished] = []
        async for number, event in self._generation.events:
            match event:
                case Delta():
                    writer = self._writers[number * self._n + event.index]
                    num_output_tokens += len(event.token_ids)
                    choice = writer.write(event)
                    if event.is_received:
                        await self._skip(choice)
                        continue
                    token = UNSET if number in told else self._generation.resume_token(number)
                    told.add(number)
                    chunk = self._message(choices=[choice], resume_token=token)
                    if is_continuous:
                        chunk.usage = self._billed(usage_so_far(self._num_prompt_tokens, num_output_tokens))
                    elif ends_with_usage:
                        chunk.usage = None
                    yield chunk
                case PromptDelta():
                    self._prompts[number].logprobs.extend(event.logprobs)
                case Finished():
                    ends.append(event)
        if ends_with_usage:
            yield self._message(choices=[], usage=self._billed(usage_of(ends)))

    async def _skip(self, choice: CompletionChoice) -> None:
        """Skip a choice that the client has: only its text offsets count on."""
        if choice.logprobs is not None:
            for _ in elements_of(choice.logprobs.text_offset):
                await self._share.turn()

    def _billed(self, usage: Usage) -> Usage:
        """Return the usage to bill: only the prompt's tokens where only the prompt is shown."""
        if self._call.body.shows_output:
            return usage
        return replace(usage, completion_tokens=0, total_tokens=usage.prompt_tokens)
