"""One HTTP call, as the code that answers it sees it: what is asked, and the ways to answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any, Final, Generic, TypeVar

import msgspec
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from baton_core.errors import ErrorCode, RequestError
from baton_router.http import sse
from baton_router.http.errors import Failure
from baton_router.http.request_ids import adopt_request_id, request_id_of
from baton_router.http.site import Site
from baton_router.trace_context import HEADER as TRACEPARENT

BodyT = TypeVar("BodyT")
_FAIL_WITHIN_S: Final = 1.0
"""How long a client that does not read may hold up the news that its stream has failed."""
_encoder: Final = msgspec.json.Encoder()


class Call(Generic[BodyT]):
    """Answer it once: with `reply`, `respond` or `stream`."""

    body: BodyT
    """What the client sent, where the route takes a body."""
    tenant: str = ""
    """Whose key it came with."""

    def __init__(self, site: Site, scope: Scope, receive: Receive, send: Send) -> None:
        self.site = site
        self.request = Request(scope)
        self.arrived_s = asyncio.get_running_loop().time()
        self.traceparent = ""
        """Where the call is in a trace; empty where nobody traces it."""
        self.resume_token = ""
        """With which a stream's client goes on elsewhere; empty where there are several."""
        self._scope = scope
        self._receive = receive
        self._send = send
        self._has_started = False
        self._is_complete = False

    @property
    def request_id(self) -> str:
        """The call's name; also the name of its generation at the router."""
        return request_id_of(self._scope)

    def adopt_request_id(self, name: str | None) -> str:
        """Take the name that the body gives, if no header does; returns the name in force."""
        return adopt_request_id(self._scope, name)

    async def reply(self, value: msgspec.Struct | Mapping[str, Any], status: int = 200) -> None:
        """Answer with JSON."""
        await self.respond(Response(_encoder.encode(value), status, media_type="application/json"))

    async def respond(self, response: Response) -> None:
        """Answer with any response."""
        await response(self._scope, self._receive, self._watched_send)

    async def stream(self, chunks: AsyncGenerator[msgspec.Struct, None]) -> None:
        """Answer with server-sent events; a failure before the first chunk still gets its own status."""
        async with aclosing(chunks):
            async for chunk in chunks:
                if not self._has_started:
                    await self._watched_send(sse.start(self.resume_token))
                await self._send(sse.body(sse.event(_encoder.encode(chunk))))
        if not self._has_started:
            await self._watched_send(sse.start(self.resume_token))
        await self._watched_send(sse.body(sse.DONE, is_last=True))

    async def fail(self, failure: Failure) -> None:
        """Tell of an error as far as that is still possible."""
        body = _encoder.encode(failure.body)
        if not self._has_started:
            headers = dict(failure.headers)
            await self.respond(Response(body, failure.status, headers, media_type="application/json"))
        elif not self._is_complete:
            with suppress(TimeoutError):
                async with asyncio.timeout(_FAIL_WITHIN_S):
                    await self._watched_send(sse.body(sse.event(body) + sse.DONE, is_last=True))

    @asynccontextmanager
    async def while_connected(self) -> AsyncIterator[None]:
        """Cancel the block when the client hangs up.

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
        if self.traceparent and message["type"] == "http.response.start":
            MutableHeaders(scope=message)[TRACEPARENT] = self.traceparent
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            self._is_complete = True
        await self._send(message)
