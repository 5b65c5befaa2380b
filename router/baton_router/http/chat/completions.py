"""POST /v1/chat/completions: the reply to a conversation, whole or as a stream."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Iterable, Mapping
from dataclasses import asdict
from typing import Any, Final

from msgspec import UNSET, UnsetType

from baton_core.requests.logprobs import PositionLogprobs
from baton_core.requests.packed_logprobs import PackedLogprobs
from baton_router.http.calls import Call
from baton_router.http.chat.choices import ChoiceOptions, ChoiceWriter
from baton_router.http.chat.output_parsers import ReasoningCounter, find_reasoning
from baton_router.http.chat.replies import ChatChunk, ChatChunkChoice, ChatCompletion, ReplyTimings
from baton_router.http.chat.request import ChatPlan, chat_names, read_plan
from baton_router.http.chat.schemas import ChatRequest
from baton_router.http.generation import Generation, collect, generating
from baton_router.http.json_pieces import lazily
from baton_router.http.reply_parts import (
    CompletionTokensDetails,
    PromptLogprobs,
    Usage,
    prompt_logprobs_of,
    usage_of,
    usage_so_far,
)
from baton_router.http.route import BATCH_PRIORITY, GENERATING, Routes, Tag
from baton_router.requests.generation import Delta, Finished, PromptDelta

ROUTES: Final = Routes(method="POST", tag=Tag.CHAT, errors=GENERATING)


@ROUTES.route(
    "/v1/chat/completions",
    "createChatCompletion",
    "Answer a conversation",
    batch_defaults={"priority": BATCH_PRIORITY},
    example={"messages": [{"role": "user", "content": "What is os.path?"}], "max_tokens": 32},
    reply=ChatCompletion,
    chunk=ChatChunk,
)
async def chat(call: Call[ChatRequest]) -> None:
    """Handle a conversation, whole or as a stream.

    Raises:
        InvalidRequestError: a field is wrong or cannot be had here; the message names it.
        RequestError: as `generating`.
    """
    body = call.body
    with chat_names(body):
        plan, requests = await read_plan(call, body)
        async with generating(call, requests, is_resumable=True) as generation:
            reply = ChatReply(call, plan, generation)
            del plan, requests  # a conversation can be large, and a reply takes long
            if body.stream:
                await call.stream(reply.chunks())
            else:
                await call.reply(await reply.whole())


class ChatReply:
    """The reply to one call: one choice for each sequence."""

    def __init__(self, call: Call[ChatRequest], plan: ChatPlan, generation: Generation) -> None:
        self._body = body = call.body
        self._tokenizer = tokenizer = call.state.service.tokenizer
        self._generation = generation
        self._share = call.state.share
        (self._spec,) = generation.specs
        self._is_token_sent = False
        settings = call.state.settings
        reasoning = find_reasoning(settings, plan.conversation, self._spec.prompt_token_ids, tokenizer)
        self._writers: list[ChoiceWriter] = []
        self._counters: list[ReasoningCounter] = []
        role = settings.answers.response_role
        choice_options = _choice_options(body, plan, role, has_reasoning=reasoning is not None)
        for index in range(self._spec.params.n):
            parser = plan.tool_use.make_parser()
            if reasoning is not None:
                parser = reasoning.make_parser(parser)
                self._counters.append(reasoning.make_counter(tokenizer))
            self._writers.append(ChoiceWriter(index, choice_options, parser, tokenizer))
        self._head: Mapping[str, Any] = {
            "id": f"chatcmpl-{call.request_id}",
            "created": int(time.time()),
            "model": body.model or call.state.service.model_names[0],
            "system_fingerprint": call.state.fingerprint,
        }

    async def whole(self) -> ChatCompletion:
        """Return the whole reply."""
        (prompt,) = await collect(self._generation, self._share, self._count)
        return ChatCompletion(
            **self._head,
            choices=lazily(
                writer.whole(sequence.as_delta(index))
                for index, (writer, sequence) in enumerate(zip(self._writers, prompt.sequences, strict=True))
            ),
            usage=self._billed(usage_of([prompt.finished])),
            prompt_logprobs=self._prompt_logprobs(prompt.prompt_logprobs),
            prompt_token_ids=self._prompt_token_ids(),
            timings=self._timings(prompt.finished),
        )

    async def chunks(self) -> AsyncGenerator[ChatChunk, None]:
        """Yield the reply in chunks, then its usage and timings if they are requested."""
        prompt_logprobs = PackedLogprobs()
        has_begun = self._generation.has_begun_before
        num_tokens = 0
        async for _, event in self._generation.events:
            match event:
                case PromptDelta():
                    prompt_logprobs.extend(event.logprobs)
                case Delta():
                    if not has_begun:
                        has_begun = True
                        for chunk in self._openings(prompt_logprobs):
                            yield chunk
                    num_tokens += len(event.token_ids)
                    self._count(event)
                    choice = self._writers[event.index].piece(event)
                    if choice is not None and not event.is_received:
                        yield self._chunk([choice], num_tokens)
                case Finished():
                    if (last := self._last_chunk(event)) is not None:
                        yield last

    def _openings(self, prompt_logprobs: Iterable[PositionLogprobs]) -> list[ChatChunk]:
        """Return the first chunks; the very first one has the prompt's details."""
        choices = [choice for writer in self._writers for choice in writer.openings()]
        chunks = [self._chunk([choice], 0) for choice in choices]
        if (logprobs := self._prompt_logprobs(prompt_logprobs)) is not None:
            chunks[0].prompt_logprobs = logprobs
        if (token_ids := self._prompt_token_ids()) is not None:
            chunks[0].prompt_token_ids = token_ids
        return chunks

    def _chunk(self, choices: list[ChatChunkChoice], num_output_tokens: int) -> ChatChunk:
        token = UNSET if self._is_token_sent else self._generation.resume_token()
        chunk = ChatChunk(**self._head, choices=choices, resume_token=token)
        self._is_token_sent = True
        options = self._body.stream_options
        if options is not None and options.continuous_usage_stats:
            num_prompt_tokens = len(self._spec.prompt_token_ids)
            chunk.usage = self._billed(usage_so_far(num_prompt_tokens, num_output_tokens))
        elif options is not None and options.include_usage:
            chunk.usage = None
        return chunk

    def _last_chunk(self, finished: Finished) -> ChatChunk | None:
        options = self._body.stream_options
        has_usage = options is not None and bool(options.include_usage)
        if not has_usage and not self._body.include_timings:
            return None
        usage = self._billed(usage_of([finished])) if has_usage else UNSET
        return ChatChunk(**self._head, choices=[], usage=usage, timings=self._timings(finished))

    def _count(self, delta: Delta) -> None:
        if self._counters:
            self._counters[delta.index].add(delta.token_ids)

    def _billed(self, usage: Usage) -> Usage:
        if self._counters:
            num_tokens = sum(counter.num_tokens for counter in self._counters)
            usage.completion_tokens_details = CompletionTokensDetails(reasoning_tokens=num_tokens)
        return usage

    def _prompt_logprobs(self, entries: Iterable[PositionLogprobs]) -> PromptLogprobs | None:
        if self._spec.params.prompt_logprobs is None:
            return None
        return prompt_logprobs_of(entries, self._tokenizer)

    def _prompt_token_ids(self) -> list[int] | None:
        return list(self._spec.prompt_token_ids) if self._body.return_token_ids else None

    def _timings(self, finished: Finished | None) -> ReplyTimings | UnsetType:
        if finished is None or not self._body.include_timings:
            return UNSET
        return ReplyTimings(**asdict(finished.timings))


def _choice_options(
    body: ChatRequest, plan: ChatPlan, response_role: str, *, has_reasoning: bool
) -> ChoiceOptions:
    conversation = plan.conversation
    last = conversation.messages[-1]
    role = response_role if conversation.add_generation_prompt else last["role"]
    is_continued = bool(body.echo) and last["role"] == role
    return ChoiceOptions(
        role=role,
        echo=_text_of(last["content"]) if is_continued else "",
        tool_use=plan.tool_use,
        has_reasoning=has_reasoning,
        hides_reasoning=has_reasoning and body.include_reasoning is False,
        has_logprobs=bool(body.logprobs),
        has_token_ids=bool(body.return_token_ids),
        names_ids=bool(body.return_tokens_as_token_ids),
    )


def _text_of(content: str | list[str | dict[str, Any]]) -> str:
    """Return a content as text, without embeddings; all other parts are text, as was checked."""
    parts = [content] if isinstance(content, str) else content
    return "\n".join(
        part
        if isinstance(part, str)
        else str(part.get("refusal" if part["type"] == "refusal" else "text", ""))
        for part in parts
    )
