"""Writes the answer to a chat request out of the events of its generation, whole or in chunks."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from msgspec import UNSET, UnsetType

from baton_core.requests.logprobs import PositionLogprobs
from baton_router.generation import Delta, Finished, PromptDelta
from baton_router.http.calls import Call
from baton_router.http.chat_choices import ChoiceForm, ChoiceWriter
from baton_router.http.chat_replies import AnswerTimings, ChatChunk, ChatChunkChoice, ChatCompletion
from baton_router.http.chat_request import ChatPlan
from baton_router.http.chat_schemas import ChatRequest
from baton_router.http.collecting import collect
from baton_router.http.generating import Generation
from baton_router.http.prompt_logprobs import PromptLogprobs, prompt_logprobs_of
from baton_router.http.reasoning_use import ReasoningCounter, find_reasoning
from baton_router.http.usage import CompletionTokensDetails, Usage, usage_of, usage_so_far


class ChatAnswer:
    """The answer to one call: one choice for each sequence."""

    def __init__(self, call: Call[ChatRequest], plan: ChatPlan, generation: Generation) -> None:
        self._body = body = call.body
        self._tokenizer = tokenizer = call.site.door.tokenizer
        self._generation = generation
        (self._spec,) = generation.specs
        self._resume_token: str | UnsetType = generation.resume_tokens[0]
        reasoning = find_reasoning(
            call.site.settings.reasoning_parser,
            plan.conversation.template_arguments,
            self._spec.prompt_token_ids,
            tokenizer,
        )
        self._writers: list[ChoiceWriter] = []
        self._counters: list[ReasoningCounter] = []
        form = _choice_form(body, plan, has_reasoning=reasoning is not None)
        for index in range(self._spec.params.n):
            parser = plan.tool_use.make_parser()
            if reasoning is not None:
                parser = reasoning.make_parser(parser)
                counter = reasoning.make_counter(tokenizer)
                self._counters += [counter] if counter is not None else []
            self._writers.append(ChoiceWriter(index, form, parser, tokenizer))
        self._head: Mapping[str, Any] = {
            "id": f"chatcmpl-{call.request_id}",
            "created": int(time.time()),
            "model": body.model or call.site.door.model_names[0],
            "system_fingerprint": call.site.fingerprint,
        }

    async def whole(self) -> ChatCompletion:
        """The answer when all is there."""
        (prompt,) = await collect(self._generation)
        deltas = [sequence.as_delta(index) for index, sequence in enumerate(prompt.sequences)]
        for delta in deltas:
            self._count(delta)
        return ChatCompletion(
            **self._head,
            choices=[writer.whole(delta) for writer, delta in zip(self._writers, deltas, strict=True)],
            usage=self._billed(usage_of([prompt.finished])),
            prompt_logprobs=self._prompt_logprobs(prompt.prompt_logprobs),
            prompt_token_ids=self._prompt_token_ids(),
            timings=self._timings(prompt.finished),
        )

    async def chunks(self) -> AsyncGenerator[ChatChunk, None]:
        """The answer piece by piece, then its usage and timings, if they are asked for."""
        prompt_logprobs: list[PositionLogprobs] = []
        has_begun = self._generation.has_begun_before
        num_tokens = 0
        async for _, event in self._generation.events:
            match event:
                case PromptDelta():
                    prompt_logprobs += event.logprobs
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

    def _openings(self, prompt_logprobs: Sequence[PositionLogprobs]) -> list[ChatChunk]:
        """The first one also tells of the prompt."""
        choices = [choice for writer in self._writers for choice in writer.openings()]
        chunks = [self._chunk([choice], 0) for choice in choices]
        chunks[0].prompt_logprobs = self._prompt_logprobs(prompt_logprobs)
        chunks[0].prompt_token_ids = self._prompt_token_ids()
        return chunks

    def _chunk(self, choices: list[ChatChunkChoice], num_output_tokens: int) -> ChatChunk:
        chunk = ChatChunk(**self._head, choices=choices, resume_token=self._resume_token)
        self._resume_token = UNSET
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

    def _prompt_logprobs(self, entries: Sequence[PositionLogprobs]) -> PromptLogprobs | UnsetType:
        if self._spec.params.prompt_logprobs is None:
            return UNSET
        return prompt_logprobs_of(entries, self._tokenizer)

    def _prompt_token_ids(self) -> list[int] | UnsetType:
        return list(self._spec.prompt_token_ids) if self._body.return_token_ids else UNSET

    def _timings(self, finished: Finished | None) -> AnswerTimings | UnsetType:
        if finished is None or not self._body.include_timings:
            return UNSET
        return AnswerTimings(**asdict(finished.timings))


def _choice_form(body: ChatRequest, plan: ChatPlan, *, has_reasoning: bool) -> ChoiceForm:
    conversation = plan.conversation
    last = conversation.messages[-1]
    role = "assistant" if conversation.add_generation_prompt else last["role"]
    is_continued = bool(body.echo) and last["role"] == role
    return ChoiceForm(
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
    """The template has seen to it that all parts are text."""
    if isinstance(content, str):
        return content
    return "\n".join(_text_of_part(part) for part in content)


def _text_of_part(part: str | dict[str, Any]) -> str:
    if isinstance(part, str):
        return part
    return str(part["refusal" if part["type"] == "refusal" else "text"])
