"""One HTTP call as its route sees it: the request with its headers, and the ways to reply.

Streams are server-sent events; how each is written is the route's dialect, mostly OpenAI's: `data: {...}` for
each chunk, then `[DONE]`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from itertools import chain
from typing import Any, Final, Generic, ParamSpec, TypeVar

import msgspec
from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from baton_core.errors import ErrorCode, InvalidRequestError, RequestError
from baton_core.requests.request_context import NamedWorkers, RequestContext, Slo
from baton_router.http.app_state import AppState
from baton_router.http.bodies import READ_WITHIN_S, drop_body
from baton_router.http.comments import COMMENT, with_comments
from baton_router.http.errors import OPENAI, Dialect, Failure, HttpError
from baton_router.http.ignored_fields import IGNORED_HEADER, Removal
from baton_router.http.json_pieces import json_at_once, json_pieces
from baton_router.http.middleware import REQUEST_NAME, RequestName
from baton_router.http.picking import PICKING, Picking
from baton_router.requests.validation import (
    DATA_PARALLEL_KEY,
    TRACEPARENT,
    checked_session_id,
    read_data_parallel_rank,
    read_traceparent,
)
from baton_router.streams.client_stream import ClientStream
from baton_router.streams.memory import BodyReservation

RESUME_HEADER: Final = b"x-resume-token"
SESSION_HEADER: Final = "x-session-id"
TTFT_HEADER: Final = "x-slo-ttft-ms"
TPOT_HEADER: Final = "x-slo-tpot-ms"
PREFILL_HEADER: Final = "x-baton-prefill-worker"
DECODE_HEADER: Final = "x-baton-decode-worker"
"""Both name the workers that an endpoint picker has chosen for a request."""
_HEADERS: Final = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # proxies such as nginx pass on each event at once
)

BodyT = TypeVar("BodyT")
P = ParamSpec("P")
T = TypeVar("T")
_FAIL_WITHIN_S: Final = 1.0
"""Time that a client which does not read may delay the error of its stream."""
_PIECES_WITHIN_S: Final = 3600.0
"""Time for a whole body that its route reads as it comes."""
_PART_BYTES: Final = 2**16
"""A reply that is shorter goes out at once, with its length."""
_PIECES_PER_TURN: Final = 8
_CHUNKS_PER_PIECE: Final = 8
_encoder: Final = msgspec.json.Encoder()


def _start(*headers: tuple[bytes, bytes]) -> Message:
    """The response's head."""
    return {"type": "http.response.start", "status": 200, "headers": list(headers)}


def _event(head: bytes, pieces: Iterable[bytes]) -> Iterator[bytes]:
    """One event after its head; the pieces are those of one line."""
    return chain((head, b"data: "), pieces, (b"\n\n",))


def _body_message(data: bytes, *, is_last: bool = False) -> Message:
    """A part of the response's body."""
    return {"type": "http.response.body", "body": data, "more_body": not is_last}


class Call(Generic[BodyT]):
    """Reply once: with `reply`, `respond` or `stream`, or with what the handler returns."""

    body: BodyT
    """The decoded body, where the route takes one."""
    room: BodyReservation
    """The memory that the body takes."""
    tenant: str = ""
    """The tenant whose key the call named."""
    is_strict: bool = False
    """True if unknown fields and parameters are refused."""
    is_batch_line: bool = False
    """True where the router itself makes the call, for a line of a batch."""

    def __init__(
        self, state: AppState, scope: Scope, receive: Receive, send: Send, dialect: Dialect = OPENAI
    ) -> None:
        self.state = state
        self.request = Request(scope)
        self.arrived_s = asyncio.get_running_loop().time()
        self.traceparent = ""
        """The call's position in a trace; empty without tracing."""
        self.ignored = ""
        """Unknown fields of the body or parameters, for the reply's header."""
        self.resumed_as: ClientStream | None = None
        """The stream whose resume token is in the reply's header; None where there are several, or none."""
        self.name: RequestName = scope[REQUEST_NAME]
        self.picking: Picking | None = scope.get(PICKING)
        """Takes the workers of a call that is only placed; None of all other calls."""
        self._dialect = dialect
        self._scope = scope
        self._receive = receive
        self._send = send
        self._is_read = False
        self._has_started = False
        self._is_stream = False
        self._is_complete = False

    def note_ignored(self, removal: Removal) -> None:
        """Name these fields in the reply's header, count and log them."""
        self.ignored = ", ".join(filter(None, (self.ignored, *removal.names)))
        self.state.ignored.note(removal)

    @property
    def request_id(self) -> str:
        """The call's name; also the name of its generation at the router."""
        return self.name.text

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """Yield the body as it comes, for routes that read it themselves.

        Raises:
            HttpError: 408, it takes too long.
            ClientDisconnect: the client is gone.
        """
        now, end_s = asyncio.get_running_loop().time, self.arrived_s + _PIECES_WITHIN_S
        while not self._is_read:
            try:
                async with asyncio.timeout_at(min(end_s, now() + READ_WITHIN_S)):
                    message = await self._receive()
            except TimeoutError:
                text = f"no piece of the body in {READ_WITHIN_S:g} s, or not all in {_PIECES_WITHIN_S:g} s"
                raise HttpError(408, "request_timeout", text) from None
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            self._is_read = not message.get("more_body", False)
            yield message.get("body", b"")

    async def drop_pieces(self) -> None:
        """Drop the rest of a refused body, so that its client reads the refusal."""
        if not self._is_read:
            await drop_body(self._receive)

    async def read(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Read the body, or a part of it, with a function: a large one beside the loop.

        Raises:
            RequestError: OVERLOADED, or what `function` raises.
        """
        if not self.room.is_large:
            return function(*args, **kwargs)
        return await self.state.service.run_in_thread(self.tenant, function, *args, **kwargs)

    async def reply(self, value: msgspec.Struct | Mapping[str, Any] | Sequence[msgspec.Struct]) -> None:
        """Reply with JSON: a short one at once, a long one as it is encoded."""
        pieces = self._parts(json_pieces(value))
        async with aclosing(pieces):
            first = await anext(pieces)
            async for part in pieces:
                if not self._has_started:
                    await self._watched_send(_start((b"content-type", b"application/json")))
                    await self._send(_body_message(first))
                await self._send(_body_message(part))
            if self._has_started:
                await self._watched_send(_body_message(b"", is_last=True))
            else:
                await self.respond(Response(first, media_type="application/json"))

    async def respond(self, response: Response) -> None:
        """Reply with any response."""
        await response(self._scope, self._receive, self._watched_send)

    async def stream(self, chunks: AsyncGenerator[msgspec.Struct, None]) -> None:
        """Reply with server-sent events; a failure before the first chunk or comment has its own status."""
        silent_s = self.state.settings.answers.keep_alive_s
        async with aclosing(with_comments(chunks, self._comment, silent_s)) as spoken:
            num_chunks = 0
            async for chunk in spoken:
                num_chunks += 1
                if num_chunks % _CHUNKS_PER_PIECE == 0:
                    await self.state.share.turn()
                await self._start_stream()
                head = self._dialect.head(chunk)
                if (whole := json_at_once(chunk)) is not None:  # as almost every chunk of a stream
                    await self._send(_body_message(b"%bdata: %b\n\n" % (head, whole)))
                    continue
                async for part in self._parts(_event(head, json_pieces(chunk))):
                    await self._send(_body_message(part))
        await self._start_stream()
        await self._watched_send(_body_message(self._dialect.last_event, is_last=True))

    async def _start_stream(self) -> None:
        """Send the head of a stream, once."""
        if self._has_started:
            return
        self._is_stream = True
        token = self.resumed_as.resume_token if self.resumed_as else ""
        resumption = ((RESUME_HEADER, token.encode()),) if token else ()
        await self._watched_send(_start(*_HEADERS, *resumption))

    async def _comment(self) -> None:
        await self._start_stream()
        await self._send(_body_message(COMMENT))

    async def fail(self, failure: Failure) -> None:
        """Send an error as far as that is still possible; a JSON body that has begun is cut off."""
        content = self._dialect.error_body(failure, self.request_id)
        body = _encoder.encode(content)
        if not self._has_started:
            headers = dict(failure.headers)
            await self.respond(Response(body, failure.status, headers, media_type="application/json"))
        elif self._is_stream and not self._is_complete:
            with suppress(TimeoutError):
                async with asyncio.timeout(_FAIL_WITHIN_S):
                    last = b"".join((*_event(self._dialect.head(content), (body,)), self._dialect.last_event))
                    await self._watched_send(_body_message(last, is_last=True))

    async def _parts(self, pieces: Iterable[bytes]) -> AsyncGenerator[bytes, None]:
        """Yield parts of a reply: pieces joined to a size worth sending, as the loop has time for them."""
        part: list[bytes] = []
        num_bytes = 0
        for piece in pieces:
            part.append(piece)
            num_bytes += len(piece)
            if num_bytes >= _PART_BYTES:
                yield b"".join(part)
                part, num_bytes = [], 0
            if len(part) % _PIECES_PER_TURN == 0:
                await self.state.share.turn()
        if part:
            yield b"".join(part)

    @asynccontextmanager
    async def while_connected(self) -> AsyncIterator[None]:
        """Cancel the block when the client disconnects.

        Raises:
            RequestError: CANCELLED, it has.
        """
        task = asyncio.current_task()
        assert task is not None, "a call is answered in a task"
        is_gone = False

        async def watch() -> None:
            nonlocal is_gone
            while (await self._receive())["type"] != "http.disconnect":
                pass
            if not self._is_complete:
                is_gone = True
                task.cancel()

        watching = asyncio.create_task(watch())
        try:
            yield
        except asyncio.CancelledError:
            if not is_gone or task.uncancel() > 0:
                raise
            raise RequestError(ErrorCode.CANCELLED, "the client hung up") from None
        finally:
            watching.cancel()

    async def _watched_send(self, message: Message) -> None:
        self._has_started = True
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            named = {
                TRACEPARENT: self.traceparent,
                IGNORED_HEADER: self.ignored,
                self._dialect.request_id_header: self.request_id,
            }
            headers.update({name: value for name, value in named.items() if name and value})
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            self._is_complete = True
        await self._send(message)


def read_context(call: Call[Any], session_id: str | None, prompt_cache_key: str | None) -> RequestContext:
    """Read a call's headers. The session is `session_id`, else that of its header, else `prompt_cache_key`.

    Raises:
        InvalidRequestError: a value is too long, or no number; the message names the field or header.
    """
    headers = call.request.headers
    prefill, decode = headers.get(PREFILL_HEADER), headers.get(DECODE_HEADER)
    named = {
        "session_id": session_id,
        SESSION_HEADER: headers.get(SESSION_HEADER),
        "prompt_cache_key": prompt_cache_key,
    }
    sessions = [checked_session_id(field, name) for field, name in named.items() if name]
    return RequestContext(
        tenant=call.tenant,
        session_id=sessions[0] if sessions else "",
        data_parallel_rank=read_data_parallel_rank(
            headers.get(DATA_PARALLEL_KEY), call.state.service.data_parallel_size
        ),
        named=NamedWorkers(prefill=prefill, decode=decode) if prefill and decode else None,
        slo=Slo(ttft_s=_read_s(call, TTFT_HEADER), tpot_s=_read_s(call, TPOT_HEADER)),
        traceparent=read_traceparent(headers.get(TRACEPARENT, "")),
        arrived_s=call.arrived_s,
        is_batch_line=call.is_batch_line,
    )


def _read_s(call: Call[Any], header: str) -> float | None:
    """Return a header of milliseconds in seconds."""
    text = call.request.headers.get(header)
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (0 < value < math.inf):
        raise InvalidRequestError(header, text, "milliseconds, over 0")
    return value / 1e3
