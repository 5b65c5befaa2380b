"""Runs the generations of one call, merges their events, and collects them for whole replies."""

from __future__ import annotations

import asyncio
from array import array
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from baton_core.requests.packed_logprobs import PackedLogprobs
from baton_core.sessions.router_messages import RequestSpec
from baton_router.http.calls import Call
from baton_router.requests.generation import Delta, Finished, GenerationEvent, GenerationRequest, PromptDelta
from baton_router.requests.request_reader import PreparedRequest
from baton_router.streams.client_stream import ClientStream
from baton_router.streams.loop_turns import LoopShare

_EVENTS_PER_PIECE: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """The running generations of one call."""

    specs: tuple[RequestSpec, ...]
    """Each prompt as workers see it: tokenized, with all parameters."""
    streams: tuple[ClientStream, ...]
    """The stream of each prompt."""
    has_begun_before: bool
    """True if the client already has the beginning of the output."""
    events: AsyncGenerator[tuple[int, GenerationEvent], None]
    """Number of the prompt and its next event; each prompt's last is `Finished`. Raises any failure."""

    def resume_token(self, number: int = 0) -> str:
        """Return the resume token of a prompt; it is final with the first event."""
        return self.streams[number].resume_token


@asynccontextmanager
async def generating(
    call: Call[Any],
    requests: Sequence[GenerationRequest],
    *,
    is_resumable: bool = False,
    outlives_client: bool = False,
) -> AsyncIterator[Generation]:
    """Start one generation for each prompt; leaving the block cancels what is not over.

    A client that disconnects ends the block, unless it `outlives_client`. Where the route reads resume tokens
    (`is_resumable`), the head of a stream has that of a single prompt.

    Raises:
        InvalidRequestError: a field is out of range; the message names it.
        RequestError: NOT_FOUND, OVERLOADED, UNAVAILABLE, DEADLINE_EXCEEDED, or CANCELLED by a disconnect.
    """
    async with AsyncExitStack() as stack:
        if not outlives_client:
            await stack.enter_async_context(call.while_connected())
        service = call.state.service
        prepared = [await service.prepare(request) for request in requests]
        del requests
        call.room.release()
        if (picking := call.picking) is not None:
            picking.place(service, prepared)
        stack.enter_context(service.reserve_memory(prepared))
        streams: list[ClientStream] = []
        examined = [one.spec for one in prepared]
        for one in prepared:  # starting and ending many of them would hold up the loop
            await service.share.turn()
            running = service.run(_below(call.traceparent, one), examined)
            streams.append(await stack.enter_async_context(running))
            examined = []
            call.traceparent = streams[0].spec.traceparent
            streams[-1].check_taken()
            stack.push_async_callback(service.share.turn)
        del prepared
        if is_resumable and len(streams) == 1:
            call.resumed_as = streams[0]
        source = _follow(streams[0]) if len(streams) == 1 else _merge(streams)
        async with aclosing(source) as events:
            yield Generation(
                specs=tuple(stream.spec for stream in streams),
                streams=tuple(streams),
                has_begun_before=any(stream.has_begun_before for stream in streams),
                events=events,
            )


def _below(traceparent: str, prepared: PreparedRequest) -> PreparedRequest:
    """Return a request as a part of that trace, unless its client sent one; empty leaves it as it is."""
    if not traceparent or prepared.context.traceparent:
        return prepared
    return replace(prepared, context=replace(prepared.context, traceparent=traceparent))


async def _follow(stream: ClientStream) -> AsyncGenerator[tuple[int, GenerationEvent], None]:
    while (event := await stream.next_event()) is not None:
        yield 0, event


async def _merge(streams: Sequence[ClientStream]) -> AsyncGenerator[tuple[int, GenerationEvent], None]:
    """Read all streams in turns, one event of each that has some; without a task for each of them."""
    ready: deque[int] = deque()
    is_ready = [False] * len(streams)
    wake = asyncio.Event()

    def note(number: int) -> None:
        if not is_ready[number]:
            is_ready[number] = True
            ready.append(number)
            wake.set()

    for number, stream in enumerate(streams):
        stream.on_news = partial(note, number)
        note(number)
    num_open = len(streams)
    while num_open:
        while not ready:
            wake.clear()
            await wake.wait()
        number = ready.popleft()
        is_ready[number] = False
        stream = streams[number]
        if (event := stream.poll()) is not None:
            yield number, event
            note(number)
        elif stream.is_over:
            num_open -= 1


@dataclass(slots=True, kw_only=True)
class CollectedSequence:
    """One sequence from its first token to its end."""

    texts: list[str] = field(default_factory=list)
    token_ids: array[int] = field(default_factory=lambda: array("I"))
    logprobs: PackedLogprobs = field(default_factory=PackedLogprobs)
    finish_reason: str | None = None
    stop_reason: str | int | None = None

    @property
    def text(self) -> str:
        return "".join(self.texts)

    def as_delta(self, index: int = 0) -> Delta:
        """The whole sequence in one piece."""
        return Delta(
            index=index,
            text=self.text,
            token_ids=tuple(self.token_ids),
            logprobs=self.logprobs,
            finish_reason=self.finish_reason,
            stop_reason=self.stop_reason,
        )

    def add(self, delta: Delta) -> None:
        self.texts.append(delta.text)
        self.token_ids.extend(delta.token_ids)
        self.logprobs.extend(delta.logprobs)
        if delta.finish_reason is not None:
            self.finish_reason, self.stop_reason = delta.finish_reason, delta.stop_reason


@dataclass(slots=True, kw_only=True)
class CollectedPrompt:
    """One prompt and all that became of it."""

    spec: RequestSpec
    sequences: list[CollectedSequence]
    prompt_logprobs: PackedLogprobs = field(default_factory=PackedLogprobs)
    """Log-probabilities of each prompt token but the first, where they are requested."""
    finished: Finished | None = None


async def collect(
    generation: Generation, share: LoopShare, on_delta: Callable[[Delta], None] = lambda delta: None
) -> list[CollectedPrompt]:
    """Follow a generation to its end; `on_delta` sees what comes as it comes.

    Raises:
        RequestError: a prompt failed.
    """
    prompts = [
        CollectedPrompt(spec=spec, sequences=[CollectedSequence() for _ in range(spec.params.n)])
        for spec in generation.specs
    ]
    num_events = 0
    async for number, event in generation.events:
        num_events += 1
        if num_events % _EVENTS_PER_PIECE == 0:
            await share.turn()
        match event:
            case Delta():
                on_delta(event)
                prompts[number].sequences[event.index].add(event)
            case PromptDelta():
                prompts[number].prompt_logprobs.extend(event.logprobs)
            case Finished():
                prompts[number].finished = event
    return prompts
