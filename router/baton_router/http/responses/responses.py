"""POST /v1/responses: OpenAI's Responses API, answered as chats are."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Collection, Sequence
from typing import Final

import msgspec

from baton_core.errors import InvalidRequestError
from baton_core.requests.logprobs import PositionLogprobs
from baton_router.http.calls import Call
from baton_router.http.chat.choices import chat_logprobs
from baton_router.http.chat.output_parsers import find_reasoning
from baton_router.http.chat.replies import TokenLogprob
from baton_router.http.chat.request import ChatPlan, chat_names, read_chat, release_conversation
from baton_router.http.chat.schemas import ChatRequest
from baton_router.http.errors import failure_of
from baton_router.http.field_names import renamed
from baton_router.http.generation import Generation, generating
from baton_router.http.json_pieces import elements_of
from baton_router.http.response_store import StoredResponse
from baton_router.http.responses.conversations import earlier_items, not_found, read_request
from baton_router.http.responses.echo import new_response
from baton_router.http.responses.items import ItemWriter
from baton_router.http.responses.replies import (
    Completed,
    Created,
    Failed,
    Incomplete,
    IncompleteDetails,
    InProgress,
    InputTokensDetails,
    OutputTokensDetails,
    ResponseError,
    ResponseUsage,
    StreamEvent,
)
from baton_router.http.responses.request import RESPONSE_NAMES
from baton_router.http.responses.schemas import ResponsesRequest
from baton_router.http.sampling_fields import generation_requests
from baton_router.requests.generation import Delta, Finished

_EVENTS_PER_PIECE: Final = 64


async def create_response(call: Call[ResponsesRequest]) -> None:
    """Handle a request, whole, as events or in the background.

    Raises:
        InvalidRequestError: a field is wrong or cannot be had here; the message names it.
        HttpError: 404, the response that it continues is not kept.
        RequestError: as `generating`.
    """
    state, body = call.state, call.body
    is_stored = state.responses.is_enabled and body.store is not False
    _check_background(body, is_stored=is_stored)
    earlier = await _earlier(call)
    with renamed(RESPONSE_NAMES):
        chat, items = await call.read(read_request, body, earlier, is_stored=is_stored)
        body.input = []
        del earlier
        with chat_names(chat):
            plan = await call.read(read_chat, chat, state.settings, state.service.model.sampling_defaults)
            release_conversation(chat)
            requests = generation_requests(call, chat, [plan.conversation], plan.sampling)
            async with generating(call, requests) as generation:
                reply = ResponseReply(call, chat, plan, generation, is_stored=is_stored)
                del plan, requests  # a conversation can be large, and a reply takes long
                reply.keep(items)
                del items
                try:
                    await _answer(call, reply)
                except BaseException:
                    reply.forget()
                    raise


def _check_background(body: ResponsesRequest, *, is_stored: bool) -> None:
    if not body.background:
        return
    if not is_stored:
        allowed = "false, unless the response is stored: store, and --max-stored-responses over 0"
        raise InvalidRequestError("background", True, allowed)
    if body.stream:
        raise InvalidRequestError("background", True, "false beside stream: events are not kept")


async def _earlier(call: Call[ResponsesRequest]) -> list[bytes]:
    """Return the JSON of the items before those of the request, which count as a part of its body."""
    name = call.body.previous_response_id
    if name is None:
        return []
    earlier = call.state.responses.get(call.tenant, name, call.arrived_s)
    if earlier is None:
        raise not_found("previous_response_id", name)
    items = earlier_items(name, earlier)
    call.room.add(sum(map(len, items)))
    await call.room.wait_to_decode()
    return items


async def _answer(call: Call[ResponsesRequest], reply: ResponseReply) -> None:
    if call.body.stream:
        await call.stream(reply.events())
    elif call.body.background:
        await call.reply(reply.response)
        await reply.run_in_background()
    else:
        await reply.run()
        await call.reply(reply.response)


class ResponseReply:
    """The reply to one call."""

    def __init__(
        self,
        call: Call[ResponsesRequest],
        chat: ChatRequest,
        plan: ChatPlan,
        generation: Generation,
        *,
        is_stored: bool,
    ) -> None:
        self._tenant = call.tenant
        self._store = call.state.responses
        self._share = call.state.share
        self._generation = generation
        self._tokenizer = tokenizer = call.state.service.tokenizer
        self._names_ids = bool(chat.return_tokens_as_token_ids)
        self._hides_reasoning = call.body.include_reasoning is False
        self._num_events = 0
        self._finish_reason: str | None = None
        (spec,) = generation.specs
        settings = call.state.settings
        reasoning = find_reasoning(
            settings.reasoning_parser,
            settings.answers.chat.complete(plan.conversation).template_arguments,
            spec.prompt_token_ids,
            tokenizer,
        )
        self._counter = reasoning.make_counter(tokenizer) if reasoning else None
        parser = plan.tool_use.make_parser()
        self._writer = ItemWriter(
            reasoning.make_parser(parser) if reasoning else parser,
            plan.tool_use,
            self._logprobs,
            hides_reasoning=self._hides_reasoning,
        )
        self.response = new_response(
            call.body,
            name=f"resp_{call.request_id.replace('/', '_')}",  # a part of paths
            model=chat.model or call.state.service.model_names[0],
            params=spec.params,
            is_stored=is_stored,
        )
        self._arrived_s = call.arrived_s

    def keep(self, items: Sequence[bytes]) -> None:
        """Keep the response with the items before it, if it is to be stored."""
        if self.response.store:
            task = asyncio.current_task() if self.response.background else None
            stored = StoredResponse(
                body=msgspec.json.encode(self.response), items=items, created_s=self._arrived_s, task=task
            )
            self._store.put(self._tenant, self.response.id, stored)

    def forget(self) -> None:
        """Forget the response, which never was a whole one."""
        if self.response.store:
            self._store.delete(self._tenant, self.response.id)

    async def run(self) -> None:
        """Make the response whole.

        Raises:
            RequestError: it failed.
        """
        num_events = 0
        async for _ in self._events():
            num_events += 1
            if num_events % _EVENTS_PER_PIECE == 0:
                await self._share.turn()

    async def run_in_background(self) -> None:
        """Make the response whole for those who fetch it; also one that fails is kept, with the reason."""
        try:
            await self.run()
        except asyncio.CancelledError:
            stored = self._store.get(self._tenant, self.response.id, self._arrived_s)
            if stored is not None and stored.status == "in_progress":
                raise  # it is not the client who cancels
            task = asyncio.current_task()
            assert task is not None, "a call is answered in a task"
            task.uncancel()
        except Exception as error:
            self._fail(error)

    async def events(self) -> AsyncGenerator[StreamEvent, None]:
        """Yield the response as events; the first comes with the first token, the last says how it ended.

        Raises:
            RequestError: it failed before the first event.
        """
        try:
            async for event in self._events():
                yield event
        except Exception as error:
            if not self._num_events:
                raise
            self._fail(error)
            yield self._numbered(Failed(response=self.response))

    async def _events(self) -> AsyncGenerator[StreamEvent, None]:
        has_begun = False
        async for _, event in self._generation.events:
            match event:
                case Delta():
                    if not has_begun:
                        has_begun = True
                        yield self._numbered(Created(response=self.response))
                        yield self._numbered(InProgress(response=self.response))
                    if self._counter is not None:
                        self._counter.add(event.token_ids)
                    for part in self._writer.piece(event):
                        yield self._numbered(part)
                    self._finish_reason = event.finish_reason
                case Finished():
                    self._finish(event)
                    is_cut = self.response.status == "incomplete"
                    end = Incomplete if is_cut else Completed
                    yield self._numbered(end(response=self.response))

    def _numbered(self, event: StreamEvent) -> StreamEvent:
        event.sequence_number = self._num_events
        self._num_events += 1
        return event

    def _finish(self, finished: Finished) -> None:
        response = self.response
        response.output = self._writer.items
        response.completed_at = int(time.time())
        response.usage = ResponseUsage(
            input_tokens=finished.num_prompt_tokens,
            input_tokens_details=InputTokensDetails(cached_tokens=finished.num_cached_tokens),
            output_tokens=finished.num_output_tokens,
            output_tokens_details=OutputTokensDetails(
                reasoning_tokens=self._counter.num_tokens if self._counter else 0
            ),
            total_tokens=finished.num_prompt_tokens + finished.num_output_tokens,
        )
        response.status = "completed"
        if self._finish_reason == "length":
            response.status = "incomplete"
            response.completed_at = None
            response.incomplete_details = IncompleteDetails(reason="max_output_tokens")
        self._update()

    def _fail(self, error: Exception) -> None:
        detail = failure_of(error).body.error
        self.response.status = "failed"
        self.response.output = self._writer.items
        self.response.error = ResponseError(code=detail.code or "server_error", message=detail.message)
        self._update()

    def _update(self) -> None:
        if self.response.store:
            body = msgspec.json.encode(self.response)
            self._store.update(self._tenant, self.response.id, body, self.response.status)

    def _logprobs(self, entries: Collection[PositionLogprobs]) -> list[TokenLogprob]:
        """Return no log-probabilities where they would reveal hidden reasoning."""
        if not entries or self._hides_reasoning:
            return []
        logprobs = chat_logprobs(entries, self._tokenizer, names_ids=self._names_ids)
        return list(elements_of(logprobs.content))
