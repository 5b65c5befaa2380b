"""Runs the generations of one call: one or several prompts, merged, and ended when the client hangs up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from baton_core.errors import BatonError
from baton_core.sessions.router_messages import RequestSpec
from baton_router.client_stream import ClientStream
from baton_router.generation import GenerationEvent, GenerationRequest
from baton_router.http.calls import Call

_MAX_MERGED_EVENTS: Final = 64
"""Events of several prompts that wait together; those behind them wait in the prompts' own streams."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """What runs for a call."""

    specs: tuple[RequestSpec, ...]
    """Each prompt as workers see it: tokenized, with all parameters."""
    resume_tokens: tuple[str, ...]
    """Of each prompt."""
    has_begun_before: bool
    """Whether the client has the beginning of the answer already."""
    events: AsyncGenerator[tuple[int, GenerationEvent], None]
    """Number of the prompt and its next event; each prompt's last is `Finished`. Raises any failure."""


@asynccontextmanager
async def generating(call: Call[Any], requests: Sequence[GenerationRequest]) -> AsyncIterator[Generation]:
    """Start one generation for each prompt; leaving the block cancels what is not over.

    Raises:
        InvalidRequestError: a field is out of range; the message names it.
        RequestError: NOT_FOUND, OVERLOADED, UNAVAILABLE, DEADLINE_EXCEEDED, or CANCELLED by a hang-up.
    """
    async with call.while_connected(), AsyncExitStack() as stack:
        door = call.site.door
        streams = [await stack.enter_async_context(door.generate(request)) for request in requests]
        call.traceparent = streams[0].spec.traceparent
        call.resume_token = streams[0].resume_token if len(streams) == 1 else ""
        source = _follow(streams[0]) if len(streams) == 1 else _merge(streams)
        async with aclosing(source) as events:
            yield Generation(
                specs=tuple(stream.spec for stream in streams),
                resume_tokens=tuple(stream.resume_token for stream in streams),
                has_begun_before=any(stream.has_begun_before for stream in streams),
                events=events,
            )


async def _follow(stream: ClientStream) -> AsyncGenerator[tuple[int, GenerationEvent], None]:
    while (event := await stream.next_event()) is not None:
        yield 0, event


async def _merge(streams: Sequence[ClientStream]) -> AsyncGenerator[tuple[int, GenerationEvent], None]:
    merged: asyncio.Queue[tuple[int, GenerationEvent | BatonError | None]] = asyncio.Queue(_MAX_MERGED_EVENTS)

    async def pump(number: int, stream: ClientStream) -> None:
        try:
            while (event := await stream.next_event()) is not None:
                await merged.put((number, event))
            await merged.put((number, None))
        except BatonError as error:
            await merged.put((number, error))

    pumps = [asyncio.create_task(pump(number, stream)) for number, stream in enumerate(streams)]
    num_open = len(streams)
    try:
        while num_open:
            number, event = await merged.get()
            if isinstance(event, BatonError):
                raise event
            if event is None:
                num_open -= 1
            else:
                yield number, event
    finally:
        for task in pumps:
            task.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
