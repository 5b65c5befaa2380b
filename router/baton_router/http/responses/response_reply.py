"""The reply to one request for a response: made whole, as events or in the background, and kept."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Collection, Sequence
from typing import Any, Final

import msgspec

from baton_core.errors import InvalidRequestError, RequestError
from baton_core.requests.logprobs import PositionLogprobs
from baton_core.requests.sampling_params import SamplingParams
from baton_router.http.calls import Call
from baton_router.http.chat.choices import chat_logprobs
from baton_router.http.chat.output_parsers import find_reasoning
from baton_router.http.chat.replies import TokenLogprob
from baton_router.http.chat.request import ChatPlan
from baton_router.http.chat.schemas import ChatRequest
from baton_router.http.generation import Generation
from baton_router.http.json_pieces import elements_of
from baton_router.http.response_stores.response_store import (
    RunningResponse,
    StoredResponse,
    response_key,
)
from baton_router.http.responses.items import RESPONSE_PREFIX, ItemWriter
from baton_router.http.responses.replies import (
    Created,
    IncompleteDetails,
    InProgress,
    InputTokensDetails,
    OutputTokensDetails,
    Response,
    ResponseUsage,
    StreamEvent,
    last_event,
    response_error,
)
from baton_router.http.responses.schemas import ResponsesRequest, ToolChoice
from baton_router.http.responses.tools import namespaced_names, reply_tools
from baton_router.requests.generation import Delta, Finished

_EVENTS_PER_PIECE: Final = 64


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
        self._store = call.state.responses
        self._share = call.state.share
        self._generation = generation
        self._tokenizer = tokenizer = call.state.service.tokenizer
        self._names_ids = bool(chat.return_tokens_as_token_ids)
        self._num_events = 0
        self._finish_reason: str | None = None
        (spec,) = generation.specs
        reasoning = find_reasoning(call.state.settings, plan.conversation, spec.prompt_token_ids, tokenizer)
        self._hides_reasoning = reasoning is not None and call.body.include_reasoning is False
        self._counter = reasoning.make_counter(tokenizer) if reasoning else None
        self.response = new_response(
            call.body,
            name=_new_name(call),
            model=chat.model or call.state.service.model_names[0],
            params=spec.params,
            is_stored=is_stored,
        )
        parser = plan.tool_use.make_parser()
        self._writer = ItemWriter(
            reasoning.make_parser(parser) if reasoning else parser,
            plan.tool_use,
            self._logprobs,
            response_id=self.response.id,
            names=namespaced_names(call.body.tools),
            hides_reasoning=self._hides_reasoning,
        )
        self.key = response_key(call.tenant, self.response.id)
        """Its key in the store."""
        self._may_be_taken = call.body.request_id is not None
        self._must_be_kept = bool(call.body.background or call.body.store)
        self._has_events = bool(call.body.background and call.body.stream)
        self._running: RunningResponse | None = None
        self._task: asyncio.Task[Any] | None = None
        """The task that makes the response in the background, once it does."""
        self._is_stopped = False

    async def keep(self, items: Sequence[bytes]) -> None:
        """Keep the response with the items before it, if it is to be stored and can be.

        Raises:
            RequestError: UNAVAILABLE, the store cannot be reached, and the request wants it.
            InvalidRequestError: its name is taken, or it is made in the background and larger than the store.
        """
        response = self.response
        if not response.store:
            return
        body = msgspec.json.encode(response)
        stored = StoredResponse(body=body, items=items, has_events=self._has_events)
        try:
            if self._may_be_taken and await self._store.get(self.key) is not None:
                name = response.id.removeprefix(RESPONSE_PREFIX)
                raise InvalidRequestError("request_id", name, "a name that no stored response has")
            self._running = await self._store.put(self.key, stored, self._stop)
        except RequestError:
            if self._must_be_kept:
                raise
        response.store = self._running is not None
        if response.background and not response.store:
            allowed = "false, as the conversation has no room in --max-stored-response-bytes"
            raise InvalidRequestError("background", True, allowed)

    def discard(self) -> None:
        """Forget the response, which never was a whole one."""
        if self._running is not None:
            self._running.discard()

    async def run(self) -> None:
        """Make the response whole.

        Raises:
            RequestError: it failed.
        """
        num_events = 0
        async for event in self._events():
            if self._running is not None and self._has_events:
                self._running.append(msgspec.json.encode(event))
            num_events += 1
            if num_events % _EVENTS_PER_PIECE == 0:
                await self._share.turn()

    async def run_in_background(self) -> None:
        """Make the response whole for those who fetch it; also one that fails is kept, with the reason."""
        self._task = task = asyncio.current_task()
        assert task is not None, "a call is answered in a task"
        try:
            if not self._is_stopped:
                await self.run()
        except asyncio.CancelledError:
            if not self._is_stopped:
                raise  # it is not the client who cancels
            task.uncancel()
        except Exception as error:
            await self._fail(error)

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
            await self._fail(error)
        if (last := last_event(self.response)) is not None:
            yield self._numbered(last)

    async def _events(self) -> AsyncGenerator[StreamEvent, None]:
        """Yield the events before the last one."""
        if self._has_events:  # who reads them needs the response's id at once
            for first in self._first_events():
                yield first
        async for _, event in self._generation.events:
            match event:
                case Delta():
                    if not self._num_events:
                        for first in self._first_events():
                            yield first
                    if self._counter is not None:
                        self._counter.add(event.token_ids)
                    for part in self._writer.piece(event):
                        yield self._numbered(part)
                    self._finish_reason = event.finish_reason
                case Finished():
                    await self._finish(event)

    def _first_events(self) -> tuple[StreamEvent, StreamEvent]:
        created, in_progress = Created(response=self.response), InProgress(response=self.response)
        return self._numbered(created), self._numbered(in_progress)

    def _stop(self) -> None:
        """Stop making the response in the background: nobody can fetch it whole any more."""
        self._is_stopped = True
        if self._task is not None:
            self._task.cancel()

    def _numbered(self, event: StreamEvent) -> StreamEvent:
        event.sequence_number = self._num_events
        self._num_events += 1
        return event

    async def _finish(self, finished: Finished) -> None:
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
        await self._update()

    async def _fail(self, error: Exception) -> None:
        self.response.status = "failed"
        self.response.output = self._writer.items
        self.response.error = response_error(error)
        await self._update()

    async def _update(self) -> None:
        """Keep what became of the response, whose reply then says whether it is kept."""
        if self._running is not None:
            body = msgspec.json.encode(self.response)
            self.response.store = await self._running.finish(
                body, self.response.status, may_come_later=bool(self.response.background)
            )

    def _logprobs(self, entries: Collection[PositionLogprobs]) -> list[TokenLogprob]:
        """Return no log-probabilities where they would reveal hidden reasoning."""
        if not entries or self._hides_reasoning:
            return []
        logprobs = chat_logprobs(entries, self._tokenizer, names_ids=self._names_ids)
        return list(elements_of(logprobs.content))


def _new_name(call: Call[ResponsesRequest]) -> str:
    """Return the id of a response, a part of paths; a header's name alone would not be unique for long."""
    suffix = f"-{secrets.token_hex(8)}" if call.name.is_given else ""
    return f"{RESPONSE_PREFIX}{call.request_id.replace('/', '_')}{suffix}"


def new_response(
    body: ResponsesRequest, *, name: str, model: str, params: SamplingParams, is_stored: bool
) -> Response:
    """Return the response to a request that begins; `params` are what it is sampled with."""
    choice = body.tool_choice
    text = {} if body.text is None else _given(body.text)
    return Response(
        id=name,
        created_at=int(time.time()),
        status="in_progress",
        background=bool(body.background),
        instructions=body.instructions,
        max_output_tokens=body.max_output_tokens,
        metadata=body.metadata or {},
        model=model,
        output=[],
        parallel_tool_calls=body.parallel_tool_calls is not False,
        previous_response_id=body.previous_response_id,
        prompt_cache_key=body.prompt_cache_key,
        reasoning={"effort": None, "summary": None, **(_given(body.reasoning) if body.reasoning else {})},
        safety_identifier=body.safety_identifier,
        store=is_stored,
        temperature=params.temperature,
        text={"format": {"type": "text"}, **text},
        tool_choice=_echoed(choice) if isinstance(choice, ToolChoice) else choice or "auto",
        tools=reply_tools(body.tools),
        top_logprobs=body.top_logprobs or 0,
        top_p=params.top_p,
        truncation=body.truncation or "disabled",
        user=body.user,
    )


def _echoed(choice: ToolChoice) -> dict[str, Any]:
    given = _given(choice)
    if choice.type != "function":
        del given["name"]
    return given


def _given(fields: msgspec.Struct) -> dict[str, Any]:
    return {name: value for name, value in msgspec.to_builtins(fields).items() if value is not None}
